#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/segment_mass.png from the JSON of examples/segment_mass: misplaced mass by temperature."""
import panels


def draw(result):
    figure, axes = panels.panels(2, 2, 6)
    for a, of in zip(axes.flat, result["kinds"]):
        rows = of["rows"]
        delta = [r["delta"] for r in rows]
        for i, (key, label) in enumerate([("even", "every segment the same"), ("first", "mean"),
                                          ("second", "mean and second moment")]):
            a.errorbar(delta, [r[key]["mean"] for r in rows], [r[key]["error"] for r in rows],
                       fmt=panels.MARKERS[i] + "-", color=[panels.GREY, panels.BLUE, panels.ORANGE][i],
                       fillstyle="none", label=label)
        a.axvline(of["limit"], color=panels.GREEN, linestyle=":", label=r"$\sqrt{2 \log m}$ / spread")
        a.set_xscale("log", base=2)
        a.set_ylim(-0.02, 1.02)
        a.set_title(of["kind"], loc="left")
    for a in axes[:, 0]:
        a.set_ylabel("mass misplaced")
    for a in axes[1]:
        a.set_xlabel(r"inverse temperature $\delta$")
    panels.legend(axes[0][0], loc="upper left")
    return figure


if __name__ == "__main__":
    panels.main("segment_mass", draw, __doc__)
