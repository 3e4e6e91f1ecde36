#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/gating_theory.png from the JSON of examples/gating_theory: its four panels."""
import numpy

import panels


def draw_a(a, of):
    rows = of["rows"]
    alpha = [r["alpha"] for r in rows]
    a.plot(alpha, [r["expected_ratio"] for r in rows], "-", color=panels.GREY, label="Proposition 1")
    a.plot(alpha, [r["ratio"] for r in rows], "o", color=panels.BLUE, fillstyle="none", label="trained, 25 steps")
    a.axvline(of["alpha_star"], color=panels.ORANGE, linestyle=":", label=r"$\alpha^*$")
    a.axvline(of["alpha_crossing"], color=panels.GREEN, linestyle="--", label=r"$\alpha^*/(1-\alpha^*)$")
    a.axhline(1, color="#bbbbbb", zorder=0)
    a.set_xscale("log")
    a.set_yscale("log")
    a.set_xticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
    a.minorticks_off()
    a.set_xlabel(r"$\alpha$, what is left of the asked token")
    a.set_ylabel("margin of recall / of memory")
    a.set_title("a. Which margin dominates", loc="left")
    panels.legend(a)


def draw_b(a, of):
    rows = of["rows"]
    x = [r["scale"] for r in rows]
    a.plot(x, [r["flow_time"] for r in rows], "-", color=panels.GREY, label="gradient flow")
    a.errorbar(x, [r["time"]["mean"] for r in rows], [r["time"]["error"] for r in rows], fmt="o", color=panels.BLUE,
               fillstyle="none", label="trained")
    a.plot(x, [of["offset"] + of["slope"] * s for s in x], ":", color=panels.ORANGE,
           label=f"line, correlation {of['correlation']:.3f}")
    a.set_xlabel(r"$1 / (\alpha \log 1/\alpha)$")
    a.set_ylabel("steps x rate until the gate is open")
    a.set_title("b. Escape", loc="left")
    panels.legend(a)


def draw_c(a, of):
    for i, distance in enumerate(dict.fromkeys(c["distance"] for c in of["cells"])):
        own = [c for c in of["cells"] if c["distance"] == distance]
        tau = [c["tau"] for c in own]
        a.plot(tau, [c["bayes"] for c in own], "-", color=panels.COLORS[i], zorder=2)
        a.plot(tau, [c["accuracy"] for c in own], panels.MARKERS[i], color=panels.COLORS[i], fillstyle="none",
               label=f"distance {distance}")
    a.plot([], [], "-", color=panels.GREY, label="Bayes")
    a.set_xscale("log", base=2)
    a.set_xlabel(r"effective context length $\tau$")
    a.set_ylabel("accuracy")
    a.set_title(f"c. {of['context']} tokens", loc="left")
    panels.legend(a)


def draw_d(figure, a, of):
    taus = list(dict.fromkeys(c["tau"] for c in of["cells"]))
    distances = list(dict.fromkeys(c["distance"] for c in of["cells"]))
    grid = numpy.array([c["accuracy"] for c in of["cells"]]).reshape(len(taus), len(distances))
    a.grid(False)
    mesh = a.pcolormesh(taus, distances, grid.T, cmap="cividis", vmin=0.5, vmax=1, shading="nearest")
    figure.colorbar(mesh, ax=a, label="accuracy")
    reach = of["reach"]
    a.plot([r["tau"] for r in reach], [r["measured"] for r in reach], "o", color="white", markersize=5,
           label="75 %, trained")
    a.plot([r["tau"] for r in reach], [r["bayes"] for r in reach], "-", color="white", label="75 %, Bayes")
    tau = numpy.geomspace(min(taus), of["d"] * 0.95, 60)
    a.plot(tau, tau * numpy.log(of["d"] / tau), ":", color=panels.ORANGE, linewidth=2, label=r"$\tau \log(d/\tau)$")
    a.set_xscale("log", base=2)
    a.set_yscale("log", base=2)
    a.set_ylim(distances[0], distances[-1])
    a.set_xlabel(r"effective context length $\tau$")
    a.set_ylabel("distance")
    a.set_title(f"d. {of['context']} tokens", loc="left")
    legend = a.legend(fontsize=8, loc="upper left", facecolor="#00224e", labelcolor="white")
    legend.get_frame().set_linewidth(0)


def draw(result):
    figure, axes = panels.panels(2, 2, 7)
    draw_a(axes[0][0], result["a"])
    draw_b(axes[0][1], result["b"])
    draw_c(axes[1][0], result["c"])
    draw_d(figure, axes[1][1], result["d"])
    return figure


if __name__ == "__main__":
    panels.main("gating_theory", draw, __doc__)
