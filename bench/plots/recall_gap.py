#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/recall_gap.png from the JSON of examples/recall_gap: recall against pairs, and against bytes of stacks."""
import panels


def draw(result):
    rows, stacks = result["rows"], result["stacks"]
    figure, (axes,) = panels.panels(1, 2, 3.8)
    m = [r["pairs"] for r in rows]
    a = axes[0]
    lines = [("attention", "softmax attention", panels.GREY), ("multi_state", "multi-state, merlin", panels.GREEN),
             ("state", "fixed state", panels.BLUE), ("delta", "delta rule", panels.ORANGE),
             ("gated_delta", "gated delta rule", panels.PURPLE)]
    for i, (key, label, color) in enumerate(lines):
        error = [r[key]["sd"] / result["seeds"] ** 0.5 for r in rows]
        a.errorbar(m, [r[key]["mean"] for r in rows], error, fmt=panels.MARKERS[i] + "-", color=color, markersize=6,
                   fillstyle="none", label=label)
    given = [r for r in rows if "published" in r]
    a.plot([r["pairs"] for r in given], [r["published"] for r in given], "x", color="black", markersize=7, zorder=6,
           label="published, fixed state")
    a.set_xlabel(f"pairs in a state of {result['dim']} x {result['dim']}")
    a.set_ylabel("recall")
    a.set_title(f"{result['seeds']} draws", loc="left")
    panels.legend(a, loc="lower left")
    a = axes[1]
    for i, (rule, style) in enumerate([("linear", "-"), ("delta", ":")]):
        own = [r for r in stacks if r["rule"] == rule]
        for j, (key, label) in enumerate([("states", "all states"), ("softmax", "one softmax"),
                                          ("window", f"one window of {result['window']}")]):
            a.plot([r[key]["bytes"] / 1024 for r in own], [r[key]["recall"]["mean"] for r in own],
                   panels.MARKERS[j] + style, color=panels.COLORS[j], markersize=6, fillstyle="none",
                   label=f"{rule}, {label}")
    a.set_xscale("log", base=2)
    a.set_xlabel("KiB kept; points: r = " + ", ".join(str(r["reads"]) for r in stacks if r["rule"] == "linear"))
    a.set_title(f"stacks of r reads, {result['stack_pairs']} pairs", loc="left")
    panels.legend(a)
    return figure


if __name__ == "__main__":
    panels.main("recall_gap", draw, __doc__)
