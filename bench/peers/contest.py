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
    kind: str  # forward, forward_backward, step, read
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
    target_of_peer: Optional[float] = None  # times the peer's time
    target_over_launch_ms: Optional[float] = None  # more than an empty launch
    basis: Optional[str] = None  # the times that ratio, floor and target are about, if not as usual
    variant: str = ""  # told apart from another row of the same shape
    no_ours: str = ""
    no_peer: str = ""

    @property
    def name(self):
        shape = "/".join(f"{k}{v}" for k, v in self.shape.items())
        state = f"/{self.dtypes['state']} state" if "state" in self.dtypes else ""
        variant = f"/{self.variant}" if self.variant else ""
        return f"{self.kind}/{self.layout}/{shape}{state}{variant}"

    def target(self, bytes_floor_ms, peer_ms, launch_ms):
        """In milliseconds, by whichever rule is given; None without one or without what it needs."""
        if self.target_of_bytes_floor:
            return self.target_of_bytes_floor * bytes_floor_ms
        if self.target_of_peer:
            return self.target_of_peer * peer_ms if peer_ms else None
        if self.target_over_launch_ms:
            return self.target_over_launch_ms + launch_ms
        return self.target_ms


class Contest:
    def __init__(self, device, ceilings, repetitions=None):
        self.device = device
        self.ceilings = ceilings
        self.repetitions = repetitions
        self.results = {}  # of contenders that stand in several rows

    def row(self, case):
        row = {"name": case.name, "pass": case.kind, "layout": case.layout, "shape": case.shape, "dtypes": case.dtypes,
               "bytes": case.bytes}
        if case.variant:
            row["variant"] = case.variant
        for side, contender, why_not in (("ours", case.ours, case.no_ours), ("peer", case.peer, case.no_peer)):
            row[side] = self._result(contender, case) if contender else {"missing": why_not}
        basis = case.basis or ("back_to_back" if case.kind == "step" else "call")
        row["basis"] = basis
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
        target = case.target(row["floors_ms"]["bytes"], times[1], self.ceilings[launch])
        row["target_ms"] = measure.four_digits(target)
        row["met"] = times[0] <= target if times[0] and target else None
        return row

    def call_once(self, case):
        """Calls each side on its operands and looks at nothing: what is compiled at a first call then is."""
        for contender in (case.ours, case.peer):
            try:
                if contender:
                    contender.call(contender.operands(0), measure.Fresh())
                    torch.cuda.synchronize()
            except Exception:  # one row must not cost the others
                traceback.print_exc()

    def _result(self, contender, case):
        if contender not in self.results:
            try:
                self.results[contender] = self._measure(contender, case.reference(), case.kind == "step")
            except Exception as e:  # one row must not cost the others
                traceback.print_exc()
                self.results[contender] = {"name": contender.name, "failed": f"{type(e).__name__}: {e}"[:400]}
            torch.cuda.empty_cache()
        return self.results[contender]

    def _measure(self, contender, expected, is_step):
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
        if is_step or call.median < SHORT_MS:
            size = sum(t.numel() * t.element_size() for t in operands.values())
            least = 8 if size < measure.ROTATION_BYTES else 2  # large sets leave nothing of each other in the L2 cache
            sets = [operands] + [own(i) for i in range(1, max(least, min(128, measure.ROTATION_BYTES // size)))]
            result["back_to_back"] = measure.time_calls([on(s) for s in sets], self.repetitions).json()
            result["back_to_back"]["calls"] = len(sets)
        return result

    def forget(self):
        """Lets go of the contenders, and so of their operands."""
        self.results.clear()

