# SPDX-License-Identifier: Apache-2.0
"""What the plots of the example programs share: colours, axes, arguments, small files."""
import argparse
import io
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from PIL import Image  # noqa: E402

BLUE, ORANGE, GREEN, GREY, PURPLE = COLORS = ["#0072b2", "#d55e00", "#009e73", "#444444", "#cc79a7"]
MARKERS = ["o", "s", "v", "D", "^"]  # told apart without colour vision too


def panels(rows, columns, height):
    figure, axes = pyplot.subplots(rows, columns, figsize=(9, height), layout="constrained", squeeze=False)
    for a in axes.flat:
        a.grid(color="#eeeeee", zorder=0)
        a.set_axisbelow(True)
        a.spines[["top", "right"]].set_visible(False)
    return figure, axes


def legend(axes, **where):
    axes.legend(frameon=False, fontsize=8, **where)


def save(figure, file):
    """As a PNG of 256 colours, which takes half the bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    raw = io.BytesIO()
    figure.savefig(raw, dpi=100)
    pyplot.close(figure)
    Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file)


def main(program, draw, description):
    """Draws docs/plots/<program>.png from the program's JSON."""
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    p = argparse.ArgumentParser(description=description)
    p.add_argument("result", nargs="?", type=pathlib.Path, default=root / f"bench/results/cpu/{program}.json",
                   help=f"what the program wrote with --json; default: bench/results/cpu/{program}.json")
    p.add_argument("--out", type=pathlib.Path, default=root / f"docs/plots/{program}.png")
    args = p.parse_args()
    save(draw(json.loads(args.result.read_text())), args.out)
