#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/<operator>.png from results of bench/peers/run.py: our time, the peer's, the floor and the target of
each row."""
import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

OURS, PEER, FLOOR, TARGET = "#0072b2", "#d55e00", "#444444", "#009e73"  # told apart without colour vision too


def label(row):
    shape = " ".join(f"{k}{v}" for k, v in row["shape"].items())
    state = f", {row['dtypes']['state']} state" if "state" in row["dtypes"] else ""
    variant = f", {row['variant']}" if "variant" in row else ""
    return f"{row['pass'].replace('_', ' + ')}, {row['layout'].replace('_', '-')}{variant}\n{shape}{state}"


def median(row, side):
    return (row[side].get(row["basis"]) or {}).get("median_ms")


def draw(result, file):
    rows = [r for r in result["rows"] if median(r, "ours") or median(r, "peer")]
    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.52 * len(rows)), layout="constrained")
    for i, row in enumerate(rows):
        ours, peer = median(row, "ours"), median(row, "peer")
        if ours and peer:
            axes.plot([ours, peer], [i, i], color="#bbbbbb", linewidth=3, zorder=1)
        axes.plot(row["floor_ms"], i, "|", color=FLOOR, markersize=16, markeredgewidth=2, zorder=2)
        if row["target_ms"]:
            axes.plot(row["target_ms"], i, "v", color=TARGET, markersize=8, fillstyle="none", zorder=5)
        if peer:
            axes.plot(peer, i, "s", color=PEER, markersize=8, zorder=3)
        if ours:
            axes.plot(ours, i, "o", color=OURS, markersize=9, zorder=4)
        text = f"{ours:.3g} ms" if ours else ""
        text += f", {row['ratio']:.2g} times as fast" if row["ratio"] else ""
        axes.annotate(text, (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=9,
                      annotation_clip=False)
    names = dict.fromkeys(name for r in rows for name in r["peer"].get("name", "").split(" + ") if name)
    peers = ", ".join(f"{name} {result['peers'].get(name) or ''}".strip() for name in names)
    axes.plot([], [], "|", color=FLOOR, markersize=16, markeredgewidth=2, label="floor")
    if any(row["target_ms"] for row in rows):
        axes.plot([], [], "v", color=TARGET, markersize=8, fillstyle="none", label="target")
    axes.plot([], [], "o", color=OURS, markersize=9, label="polystate")
    axes.plot([], [], "s", color=PEER, markersize=8, label=peers or "no peer measured")
    axes.set_yticks(range(len(rows)), [label(r) for r in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds (logarithmic); left is faster")
    axes.grid(axis="x", which="both", color="#eeeeee", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    axes.set_title(f"{result['operator']} on {result['device']}, {result['date']}", loc="left")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("results", nargs="*", type=pathlib.Path, help="default: all of bench/results/h200")
    p.add_argument("--out", type=pathlib.Path, default=root / "docs" / "plots")
    args = p.parse_args()
    for file in args.results or sorted((root / "bench" / "results" / "h200").glob("*.json")):
        result = json.loads(file.read_text())
        if "peers" not in result:
            print(f"{file}: no results of bench/peers, left out", file=sys.stderr)
            continue
        draw(result, args.out / f"{result['operator']}.png")
        print(args.out / f"{result['operator']}.png")


if __name__ == "__main__":
    main()
