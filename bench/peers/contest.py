# SPDX-License-Identifier: Apache-2.0
"""A row of the results: ours and a peer on the same operands, checked and timed."""
import dataclasses
import traceback
from typing import Callable, Optional

import torch

import measure

SHORT_MS = 0.05  # calls below, and steps, are timed back to back as well


@dataclasses.dataclass(eq=False)
class Contender:
    """An implementation on operands in its own memory order. A call returns what it wrote, by name, in the logical
    order of indices of polystate's headers."""

    name: str
    layout: str
    operands: Callable[[int], dict]  # set number -> tensors; set 0 is the one that is checked
    call: Callable[[dict, measure.Fresh], dict]
    in_place: tuple = ()  # operands that a call updates
    note: str = ""


@dataclasses.dataclass
class Case:
    kind: str  # forward, forward_backward, step
    layout: str
    shape: dict
    dtypes: dict
    reference: Callable[[], dict]
    ours: Optional[Contender]
    peer: Optional[Contender]
    bytes: int  # every operand read once, every result written once
    exponentials: int = 0
    target_ms: Optional[float] = None
    target_of_bytes_floor: Optional[float] = None
    no_ours: str = ""
    no_peer: str = ""

    @property
    def name(self):
        shape = "/".join(f"{k}{v}" for k, v in self.shape.items())
        state = f"/{self.dtypes['state']} state" if "state" in self.dtypes else ""
        return f"{self.kind}/{self.layout}/{shape}{state}"


class Contest:
    def __init__(self, device, ceilings, repetitions=None):
        self.device = device
        self.ceilings = ceilings
        self.repetitions = repetitions
        self.results = {}  # of contenders that stand in several rows

    def row(self, case):
        row = {"name": case.name, "pass": case.kind, "layout": case.layout, "shape": case.shape, "dtypes": case.dtypes,
               "bytes": case.bytes}
        for side, contender, why_not in (("ours", case.ours, case.no_ours), ("peer", case.peer, case.no_peer)):
            row[side] = self._result(contender, case.reference) if contender else {"missing": why_not}
        basis = "back_to_back" if case.kind == "step" else "call"
        row["basis"] = basis  # the times that ratio, floor and target are about
        times = [row[side].get(basis, {}).get("median_ms") for side in ("ours", "peer")]
        row["ratio"] = measure.four_digits(times[1] / times[0]) if all(times) else None

        seconds = {"bytes": case.bytes / self.ceilings["copy_4GiB_bytes_per_second"]}
        rate = measure.exponentials_per_second(self.device)
        if case.exponentials and rate:
            seconds["exponentials"] = case.exponentials / rate
        launch = "one_tiny_kernel_ms" if basis == "call" else "tiny_kernels_back_to_back_ms"
        seconds["launch"] = self.ceilings[launch] / 1e3
        row["floors_ms"] = {k: measure.four_digits(v * 1e3) for k, v in seconds.items()}
        row["floor_ms"] = max(row["floors_ms"].values())
        target = case.target_ms
        if case.target_of_bytes_floor:
            target = case.target_of_bytes_floor * row["floors_ms"]["bytes"]
        row["target_ms"] = measure.four_digits(target)
        row["met"] = times[0] <= target if times[0] and target else None
        return row

    def _result(self, contender, reference):
        if contender not in self.results:
            try:
                self.results[contender] = self._measure(contender, reference())
            except Exception as e:  # one row must not cost the others
                traceback.print_exc()
                self.results[contender] = {"name": contender.name, "failed": f"{type(e).__name__}: {e}"[:400]}
            torch.cuda.empty_cache()
        return self.results[contender]

    def _measure(self, contender, expected):
        def own(i):
            tensors = contender.operands(i)
            return dict(tensors, **{k: tensors[k].clone() for k in contender.in_place})

        result = {"name": contender.name, "layout": contender.layout}
        if contender.note:
            result["note"] = contender.note

        got = contender.call(own(0), measure.Fresh(poisoned=True))
        result["errors"] = {k: measure.four_digits(measure.relative_l2(got[k], expected[k])) for k in sorted(got)}
        del got

        fresh = measure.Fresh()

        def on(tensors):
            return lambda: contender.call(tensors, fresh)

        operands = own(0)
        result["peak_extra_bytes"] = measure.peak_extra_bytes(on(operands))
        call = measure.time_calls([on(operands)], self.repetitions)
        result["call"] = call.json()
        if contender.in_place or call.median < SHORT_MS:
            size = sum(t.numel() * t.element_size() for t in operands.values())
            sets = [operands] + [own(i) for i in range(1, max(8, min(128, measure.ROTATION_BYTES // size)))]
            result["back_to_back"] = measure.time_calls([on(s) for s in sets], self.repetitions).json()
            result["back_to_back"]["calls"] = len(sets)
        return result

    def forget(self):
        """Lets go of the contenders, and so of their operands."""
        self.results.clear()

