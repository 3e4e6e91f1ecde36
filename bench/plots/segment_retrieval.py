#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/segment_retrieval.png from the JSON of examples/segment_retrieval: recall without and with training."""
import panels

PUBLISHED_BM25 = 0.470  # the paper's, on another split


def draw(result):
    text, chains = result["text"], result["chains"]
    figure, (axes,) = panels.panels(1, 2, 3.6)
    a = axes[0]
    rows = text["rows"]
    for i, row in enumerate(rows):
        a.errorbar(row["recall"], i, xerr=row["error"], fmt=panels.MARKERS[i], color=panels.COLORS[i], markersize=8)
    a.plot(PUBLISHED_BM25, 0, "x", color="black", markersize=8, zorder=6, label="published, another split")
    a.set_yticks(range(len(rows)), [r["scorer"] for r in rows], fontsize=9)
    a.set_ylim(len(rows) - 0.4, -0.6)
    a.set_xlabel("recall@4 of supporting paragraphs, standard error")
    a.set_title(f"no training, {text['questions']} questions", loc="left")
    panels.legend(a, loc="lower left")
    a = axes[1]
    rows = chains["rows"]
    figures = [("one_pass", "local head, one pass"), ("global", "global head"), ("chained", "local head, chained")]
    for j, (key, label) in enumerate(figures):
        a.errorbar([r[key]["mean"] for r in rows], [i + 0.2 * (j - 1) for i in range(len(rows))],
                   xerr=[r[key]["sd"] for r in rows], fmt=panels.MARKERS[j], color=panels.COLORS[j], markersize=6,
                   label=label)
    for key, style in [("best_by_itself", ":"), ("best_with_order", "--")]:
        a.axvline(chains[key], color=panels.GREY, linestyle=style, linewidth=1,
                  label="at best, segments alone" if style == ":" else "at best, their order too")
    a.set_yticks(range(len(rows)), [r["retriever"] for r in rows], fontsize=9)
    a.set_ylim(len(rows) - 0.4, -0.6)
    a.set_xlim(0.46, 1.03)
    a.set_xlabel("recall@2 of both facts, deviation over seeds")
    a.set_title(f"trained, {chains['seeds']} seeds", loc="left")
    figure.legend(*a.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    panels.main("segment_retrieval", draw, __doc__)
