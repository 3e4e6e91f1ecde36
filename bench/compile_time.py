#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What includes and calls cost nvcc: user CPU seconds, and kernels that they instantiate. Units are the bare include of every
operator, a call of every operator and pass with its sizes fixed (those of tests/compile_time, from a build folder
configured with POLYSTATE_CUDA), and CUB beside them. Writes a JSON file, and the tables of docs/compile_time.md from
it. Needs no GPU; a few minutes on one core."""
import argparse
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
sys.path.insert(0, str(ROOT / "tests" / "compile_time"))

from kernel_count import kernel_names  # noqa: E402

BEGIN, END = "<!-- compile_time: begin -->", "<!-- compile_time: end -->"
ONE_ARCHITECTURE = ["-gencode=arch=compute_90a,code=sm_90a"]
ARCHITECTURES = {
    "`90a-real` (`-gencode=arch=compute_90a,code=sm_90a`)": ONE_ARCHITECTURE,
    "`90a` (`-arch=sm_90a`)": ["-arch=sm_90a"],
    "`80-real;90a-real`": ["-gencode=arch=compute_80,code=sm_80", *ONE_ARCHITECTURE],
}
CUB = """#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
cudaError_t sum(void* scratch, std::size_t& bytes, const float* in, float* out, int n) {
  return cub::DeviceReduce::Sum(scratch, bytes, in, out, n);
}
cudaError_t scan(void* scratch, std::size_t& bytes, const float* in, float* out, int n) {
  return cub::DeviceScan::InclusiveSum(scratch, bytes, in, out, n);
}
"""


def bare_includes():
    """The entry of each operator, alone: it has the name of a contract."""
    entries = [f.stem for f in sorted((INCLUDE / "polystate" / "cuda").glob("*.cuh"))
               if (INCLUDE / "polystate" / f"{f.stem}.hpp").exists()]
    return {f"cuda/{name}.cuh": f"#include <polystate/cuda/{name}.cuh>\n" for name in entries}


def calls(build):
    units = {f.stem: f.read_text() for f in sorted((build / "tests" / "compile_time").glob("*.cu"))}
    units.pop("includes", None)
    if not units:
        sys.exit(f"compile_time.py: {build} has no tests/compile_time/*.cu; configure it with -D POLYSTATE_CUDA=ON")
    return units


def measure(nvcc, source, architecture, repeat):
    """The least of some runs: what else the machine does only adds."""
    with tempfile.TemporaryDirectory() as scratch:
        unit, built = pathlib.Path(scratch) / "unit.cu", pathlib.Path(scratch) / "unit.o"
        unit.write_text(source)
        seconds = []
        for _ in range(repeat):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run([nvcc, "-std=c++20", "-O3", *architecture, f"-I{INCLUDE}", "-c", str(unit), "-o", str(built)],
                           check=True)
            seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        names = kernel_names(nvcc, ["-std=c++20", "-arch=compute_90a", f"-I{INCLUDE}", str(unit)])
        return {"seconds": round(min(seconds), 1), "kernels": len(names)}


def table(title, rows):
    lines = [f"| {title} | kernels | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {row['kernels']} | {row['seconds']:.1f} |" for name, row in rows.items()]
    return "\n".join(lines)


def tables(result):
    parts = [f"{result['nvcc']}, `-std=c++20 -O3`, `90a-real`, {result['processor']}.",
             table("beside them", result["beside"]), table("include alone", result["includes"]),
             table("call, bf16, sizes fixed", result["calls"]),
             table(f"architectures of {result['architectures_of']}", result["architectures"])]
    return "\n\n".join(parts)


def processor():
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return names[0] if names else "unknown processor"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--build", type=pathlib.Path, required=True, help="a build folder configured with POLYSTATE_CUDA")
    p.add_argument("--nvcc", default="nvcc")
    p.add_argument("--repeat", type=int, default=1, help="runs of each unit, of which the least counts")
    p.add_argument("--only", default="", help="units whose name contains this; nothing is written")
    p.add_argument("--json", type=pathlib.Path, default=ROOT / "bench" / "results" / "cpu" / "compile_time.json")
    p.add_argument("--into", type=pathlib.Path, default=ROOT / "docs" / "compile_time.md")
    args = p.parse_args()

    def run(units, architecture=None):
        rows = {}
        for name, source in units.items():
            if args.only in name:
                rows[name] = measure(args.nvcc, source, architecture or ONE_ARCHITECTURE, args.repeat)
                print(f"{name}: {rows[name]['kernels']} kernels, {rows[name]['seconds']:.1f} s", flush=True)
        return rows

    version = subprocess.run([args.nvcc, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    of_calls = calls(args.build)
    probe = "gated_delta_rule_forward"
    result = {
        "nvcc": "nvcc " + re.search(r"V(\d+\.\d+\.\d+)", version).group(1),
        "processor": processor(),
        "beside": run({"an empty unit": "", "CUB's DeviceReduce::Sum and DeviceScan::InclusiveSum": CUB}),
        "includes": run(bare_includes()),
        "calls": run(of_calls),
        "architectures_of": probe,
        "architectures": {name: row for name, flags in ARCHITECTURES.items()
                          for row in run({probe: of_calls[probe]}, flags).values()},
    }
    if args.only:
        return
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    before, rest = args.into.read_text().split(BEGIN)
    args.into.write_text(f"{before}{BEGIN}\n\n{tables(result)}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
