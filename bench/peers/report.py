# SPDX-License-Identifier: Apache-2.0
"""Results as text."""
COLUMNS = ("row", "ours ms", "min..max", "peer ms", "peer/ours", "floor ms", "x floor", "target ms", "met", "error",
           "peer error", "MB", "peer MB")


def worst_error(result):
    """Of a side's outputs; None if it was not measured."""
    errors = result.get("errors")
    return max(errors.values()) if errors else None


def _number(x, form=".4g"):
    return "-" if x is None else format(x, form)


def cells(row):
    ours, peer = row["ours"], row["peer"]
    time, theirs = ours.get(row["basis"]) or {}, peer.get(row["basis"]) or {}
    median = time.get("median_ms")
    spread = f"{time['min_ms']:.4g}..{time['max_ms']:.4g}" if time else "-"
    megabytes = [None if r.get("peak_extra_bytes") is None else r["peak_extra_bytes"] / 1e6 for r in (ours, peer)]
    return (row["name"], _number(median), spread, _number(theirs.get("median_ms")), _number(row["ratio"], ".2f"),
            _number(row["floor_ms"]), _number(median and median / row["floor_ms"], ".2f"), _number(row["target_ms"]),
            {True: "yes", False: "NO", None: "-"}[row["met"]], _number(worst_error(ours), ".1e"),
            _number(worst_error(peer), ".1e"), _number(megabytes[0], ".0f"), _number(megabytes[1], ".0f"))


def line(row):
    name, *values = cells(row)
    why = [f"{side}: {row[side][k]}" for side in ("ours", "peer") for k in ("failed", "missing") if k in row[side]]
    return "  ".join([name, *(f"{c} {v}" for c, v in zip(COLUMNS[1:], values) if v != "-"), *why])


def table(rows):
    """Markdown."""
    body = [COLUMNS, *(cells(r) for r in rows)]
    widths = [max(len(r[i]) for r in body) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, widths)) + " |" for r in body]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
