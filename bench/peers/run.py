#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times operators of polystate beside a peer's on the same tensors, on this machine's GPU: docs/benchmarks.md."""
import argparse
import datetime
import importlib
import json
import pathlib
import sys

import contest
import measure
import peer_libraries
import polystate_c
import report

OPERATORS = ("selective_scan", "causal_conv1d", "gated_delta_rule", "ssd", "multi_state")
WRONG = 1e-2  # relative L2; rounding a result to bf16 alone costs 1.7e-3


def arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("operators", nargs="+", choices=OPERATORS)
    p.add_argument("--library", type=pathlib.Path, help="libpolystate_c.so; without it the peers run alone")
    p.add_argument("--peers", type=pathlib.Path, help="folder of the peers' libraries; without it ours runs alone")
    p.add_argument("--out", type=pathlib.Path, help="folder for <operator>.json")
    p.add_argument("--only", default="", help="rows whose name contains this")
    p.add_argument("--repetitions", type=int, help="replays a time is the median of; default by their length")
    p.add_argument("--compile", action="store_true",
                   help="call each side once and measure nothing: fills the caches of peers that compile at a first "
                        "call; several processes may share the rows by --only")
    p.add_argument("--quick", action="store_true", help="tiny shapes, to see that everything runs")
    return p.parse_args()


def library(path):
    if path is None or not path.exists():
        print(f"polystate is not measured: no library {path or 'given (--library)'}", file=sys.stderr)
        return None
    return polystate_c.Library(path.resolve())


def write_results(args, operator, device, ours, peers, ceilings, rows, complete):
    if not args.out:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    measured = {name for row in rows for name in row["peer"].get("name", "").split(" + ")}
    (args.out / f"{operator}.json").write_text(json.dumps({
        "operator": operator, "backend": "cuda", "date": datetime.date.today().isoformat(), **device,
        "polystate": ours.build if ours else None,
        "peers": {p.name: p.version for p in peers.values() if p.name in measured}, "quick": args.quick,
        "complete": complete, "method": measure.METHOD, "ceilings": ceilings, "rows": rows}, indent=1) + "\n")


def main():
    args = arguments()
    measure.require_device()
    ours = library(args.library)
    peers = peer_libraries.find(args.peers)
    for reason in sorted({peer.why_not for peer in peers.values() if not peer.works}):
        print(reason, file=sys.stderr)
    device = measure.describe()
    ceilings = {} if args.compile else measure.ceilings(args.quick)
    print(json.dumps({**device, **ceilings}), flush=True)

    failed = False
    for operator in args.operators:
        rows = []
        contestants = contest.Contest(device, ceilings, args.repetitions)
        shape = None
        for case in importlib.import_module(operator).cases(ours, peers, args.quick):
            if case.shape != shape:
                contestants.forget()
                shape = case.shape
            if args.only not in case.name:
                continue
            if args.compile:
                contestants.call_once(case)
                print(f"called {case.name}", flush=True)
                continue
            rows.append(contestants.row(case))
            print(report.line(rows[-1]), flush=True)
            # After each row: a run that is cut short leaves what it saw.
            write_results(args, operator, device, ours, peers, ceilings, rows, complete=False)
            result = rows[-1]["ours"]
            failed |= "failed" in result or (report.worst_error(result) or 0) > WRONG
        if args.compile:
            continue
        write_results(args, operator, device, ours, peers, ceilings, rows, complete=not args.only)
        if args.out:
            print(f"wrote {args.out / operator}.json")
        print(report.table(rows), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
