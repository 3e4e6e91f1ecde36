#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/memory_cost.png from the JSON of examples/memory_cost: the bank's bytes as a multiple of one state."""
import panels


def draw(result):
    rows = result["memory"]
    models = list(dict.fromkeys(r["model"] for r in rows))
    figure, axes = panels.panels(1, len(models), 3.6)
    for a, model in zip(axes[0], models):
        own = [r for r in rows if r["model"] == model]
        for i, dr in enumerate(dict.fromkeys(r["d_r"] for r in own)):
            line = [r for r in own if r["d_r"] == dr]
            ratios = [r["bytes"] / r["bytes_single_state"] for r in line]
            extra = (ratios[0] / line[0]["states"] - 1) * 100
            a.plot([r["segment"] for r in line], ratios, panels.MARKERS[i % 5] + "-", color=panels.COLORS[i % 5],
                   markersize=8, fillstyle="none", label=f"$d_r$ {dr}: moments add {extra:.1f} %")
        kv = own[0]["bytes_kv_cache"] / own[0]["bytes_single_state"]
        a.axhline(kv, color=panels.GREY, linestyle=":", zorder=0, label="keys and values, bfloat16")
        a.set_xscale("log", base=2)
        a.set_yscale("log", base=2)
        a.set_xlabel("tokens a segment")
        a.set_title(model, loc="left")
        panels.legend(a, loc="upper right")
    axes[0][0].set_ylabel(f"bytes, one state = 1\n{result['tokens']} tokens")
    return figure


if __name__ == "__main__":
    panels.main("memory_cost", draw, __doc__)
