#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of bench/peers/run.py as tables into docs/benchmarks.md, between its two marks."""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import report  # noqa: E402

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def section(result):
    peers = ", ".join(f"{name} {version}" for name, version in result["peers"].items()) or "no peer"
    copy = result["ceilings"]["copy_4GiB_bytes_per_second"] / 1e12
    return (f"### {result['operator']}\n\n{result['device']}, {result['date']}, driver {result['driver']}, "
            f"{result['polystate']}; {peers}; torch {result['torch']}. Device copy {copy:.2f} TB/s, one tiny kernel "
            f"{result['ceilings']['one_tiny_kernel_ms'] * 1e3:.1f} us.\n\n{report.table(result['rows'])}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("results", nargs="*", type=pathlib.Path, help="default: all of bench/results/h200")
    p.add_argument("--into", type=pathlib.Path, default=ROOT / "docs" / "benchmarks.md")
    args = p.parse_args()
    files = args.results or sorted((ROOT / "bench" / "results" / "h200").glob("*.json"))
    results = [json.loads(f.read_text()) for f in files]
    text = args.into.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    sections = "\n".join(section(r) for r in results if "peers" in r)
    args.into.write_text(f"{before}{BEGIN}\n\n{sections}\n{END}{after}")


if __name__ == "__main__":
    main()
