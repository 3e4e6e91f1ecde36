# SPDX-License-Identifier: Apache-2.0
"""Times, memory and ceilings of the GPU."""
import dataclasses
import re
import statistics
import subprocess

import torch

DEVICE = torch.device("cuda")

METHOD = {
    "call": "each call is captured into a CUDA graph of its own; between replays the L2 cache is overwritten (memset "
            "of 512 MiB, outside the timed span); time between two events around a replay",
    "back_to_back": "for steps and short calls also: one graph of many calls, each on operands of its own, together "
                    "larger than 256 MiB, replayed after the same memset; time of the graph / calls",
    "repetitions": "at least 9 replays after a warm-up; median, least and greatest",
    "memory": "peak of torch's allocator during one call, less what was allocated before it: outputs, checkpoints, "
              "accumulators and workspace of either side",
    "fairness": "outputs, checkpoints and workspaces of both sides are allocated inside the captured call, which costs "
                "nothing at a replay. What a side must do besides its kernels is timed: the peer zero-fills the "
                "gradients that it adds to by atomics, and rounds float32 gradients of B and C to the operands' type. "
                "A peer's Python functions are called without gradients to record, forward and backward by "
                "themselves, and tuned before. Autograd and Python overhead of either side is not timed",
    "errors": "relative L2 error of each output at the shape and layout that is timed, against the definition in "
              "float64 on the same rounded operands (torch, on the GPU); outputs, checkpoints, workspace start as NaN",
}

FLUSH_BYTES = 512 << 20
ROTATION_BYTES = 256 << 20


class Fresh:
    """Allocates what a call writes: as it comes, or poisoned with NaN for a check."""

    def __init__(self, poisoned=False):
        self.poisoned = poisoned

    def __call__(self, *shape, dtype, device=None):
        return self._poison(torch.empty(*shape, dtype=dtype, device=device or DEVICE))

    def like(self, tensor, dtype=None):
        """Of the tensor's shape and memory order."""
        return self._poison(torch.empty_like(tensor, dtype=dtype))

    def _poison(self, tensor):
        if self.poisoned:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0xFF)
        return tensor


@dataclasses.dataclass
class Times:
    """Of one call, in milliseconds."""

    median: float
    least: float
    greatest: float
    repetitions: int

    @classmethod
    def of(cls, samples):
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))

    def scaled(self, factor):
        return Times(self.median * factor, self.least * factor, self.greatest * factor, self.repetitions)

    def json(self):
        return {"median_ms": four_digits(self.median), "min_ms": four_digits(self.least),
                "max_ms": four_digits(self.greatest), "repetitions": self.repetitions}


def four_digits(x):
    return None if x is None else float(f"{x:.4g}")


def capture(calls):
    """A CUDA graph of the calls, one after the other, whose kernels are loaded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2] + calls[:1]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = [call() for call in calls]  # kept meanwhile, so that no call writes where another did
    del written
    torch.cuda.synchronize()
    return graph


def time_graph(graph, repetitions=None):
    """Times of a replay with a cold L2 cache."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)

    def sample():
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        return begin, end

    def times(n):
        events = [sample() for _ in range(n)]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]

    estimate = statistics.median(times(3)) + 0.15  # and the memset
    times(max(1, min(100, int(50 / estimate))))  # clocks come up
    return Times.of(times(repetitions or max(9, min(101, int(400 / estimate)))))


def time_calls(calls, repetitions=None):
    """Times of one of the calls, run back to back."""
    graph = capture(calls)
    try:
        return time_graph(graph, repetitions).scaled(1 / len(calls))
    finally:
        del graph
        torch.cuda.empty_cache()


def peak_extra_bytes(call):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def relative_l2(got, expected):
    """|got - expected| / |expected|; infinite where got is not finite."""
    got = got.double()
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    norm = expected.norm().item()
    return (got - expected).norm().item() / (norm if norm > 0 else 1.0)


def _output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def describe():
    """Device and versions, for the results."""
    properties = torch.cuda.get_device_properties(0)
    query = "--query-gpu=driver_version,clocks.max.sm"
    smi = _output_of("nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits")
    driver, clock = smi.split(", ") if smi else (None, None)
    nvcc = _output_of("nvcc", "--version") or _output_of("/usr/local/cuda/bin/nvcc", "--version")
    release = re.search(r"V([\d.]+)", nvcc or "")
    try:
        import triton
        triton_version = triton.__version__
    except ImportError:
        triton_version = None
    return {"device": properties.name, "multiprocessors": properties.multi_processor_count,
            "max_sm_clock_mhz": int(clock) if clock else None, "driver": driver,
            "nvcc": release.group(1) if release else None, "torch": torch.__version__, "triton": triton_version}


def copy_rate(size):
    """Bytes read and written per second by a kernel: a copy node of a graph may go to a copy engine, which is slower."""
    source = torch.ones(size // 8, dtype=torch.int64, device=DEVICE)
    target = torch.empty_like(source)
    return four_digits(2 * size / time_calls([lambda: torch.bitwise_not(source, out=target)]).median * 1e3)


def ceilings(quick):
    """What the device reaches, measured now."""
    less = 6 if quick else 0
    result = {"copy_4GiB_bytes_per_second": copy_rate((4 << 30) >> less),
              "copy_256MiB_bytes_per_second": copy_rate((256 << 20) >> less)}
    one = torch.zeros(1, device=DEVICE)
    result["one_tiny_kernel_ms"] = four_digits(time_calls([lambda: one.add_(1)]).median)
    result["tiny_kernels_back_to_back_ms"] = four_digits(time_calls([lambda: one.add_(1)] * 100).median)
    return result


def exponentials_per_second(device):
    """Of the special function units: 16 a clock and multiprocessor. A kernel may compute some elsewhere."""
    if not device["max_sm_clock_mhz"]:
        return None
    return 16 * device["multiprocessors"] * device["max_sm_clock_mhz"] * 1e6


def require_device():
    if not torch.cuda.is_available():
        raise SystemExit("run.py: torch sees no CUDA device")
