#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/token_modulation.png from the JSON of examples/token_modulation: how far decoding that forgets a state
drifts from the full pass, by position."""
import argparse
import io
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from PIL import Image  # noqa: E402

LINES = [  # told apart without colour vision too
    ("of_spread", "nothing carried", "#d55e00", "", "-"),
    ("of_spread_with_state", "scan's state alone", "#444444", "v", ""),
    ("of_spread_with_window", "convolution's window alone", "#0072b2", "", "-"),
]


def draw(result, file):
    forms = result["discrepancy"]
    figure, panels = pyplot.subplots(1, len(forms), figsize=(9, 3.6), layout="constrained", sharey=True, squeeze=False)
    for axes, form in zip(panels[0], forms):
        for key, label, color, marker, line in LINES:
            mean = form[key]["mean"]
            error = [d / result["seeds"] ** 0.5 for d in form[key]["deviation"]]
            x = range(len(mean))
            axes.plot(x, mean, marker + line, color=color, markersize=4, fillstyle="none", linewidth=1.2, label=label)
            if line:
                axes.fill_between(x, [m - 2 * e for m, e in zip(mean, error)], [m + 2 * e for m, e in zip(mean, error)],
                                  color=color, alpha=0.15, linewidth=0)
        axes.set_title(f"MaLoRA {form['form']}", loc="left")
        axes.set_xlabel("position")
        axes.grid(color="#eeeeee")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("change of $\\lambda$ over its spread\n(random weights, untrained)")
    panels[0][0].set_ylim(bottom=0)
    panels[0][-1].legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1, 0.4))
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(64).save(file, optimize=True)  # a third of the bytes


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("result", nargs="?", type=pathlib.Path, default=root / "bench/results/cpu/token_modulation.json")
    p.add_argument("--out", type=pathlib.Path, default=root / "docs/plots/token_modulation.png")
    args = p.parse_args()
    draw(json.loads(args.result.read_text()), args.out)


if __name__ == "__main__":
    main()
