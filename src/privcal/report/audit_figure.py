"""An audit as a picture: how near each lower bound came to its claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privcal.lab.audit.run import CONFIDENCE, Audit, Promise
from privcal.report.plots import BLUE, GREY, ORANGE, check_picture, save_figure

_GREEN, _LIGHT = "#009E73", "#56B4E9"
_MARKERS = (("o", _LIGHT), ("D", BLUE), ("s", _GREEN), ("^", "#CC79A7"), ("v", "#E69F00"))
"""Shape and colour for each ε claimed of the mechanism; what exceeds its claim is orange-red."""

_END_TO_END = ("P", "black")


def save_audit(path: Path, audit: Audit) -> None:
    """Draw one line for each thing audited, with a marker for each claim at measured ÷ claimed.

    What was seen end to end has a marker of its own.
    """
    from matplotlib.figure import Figure

    check_picture(path)
    names = list(dict.fromkeys(row.name for row in audit.rows))
    canvas = Figure(figsize=(8.4, 2.0 + 0.32 * len(names)), layout="constrained")
    axis = canvas.subplots()
    _draw_markers(axis, audit.rows, names)
    widest = max(row.ratio for row in audit.rows)
    edge = max(1.15, 1.08 * widest)
    axis.axvspan(1, edge, color=ORANGE, alpha=0.08, lw=0)
    axis.axvline(1, color="black", lw=1.2)
    axis.set(xlim=(-0.02, edge), ylim=(len(names) - 0.5, -0.5))
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel(f"lower bound on ε that was measured ({CONFIDENCE:.0%}) ÷ ε that is claimed")
    axis.set_title(
        "How much of each promised ε could be seen\n"
        f"{audit.draws:,} draws for each mark, fewer end to end. Orange beyond the line: a promise is broken;\n"
        "of the others 1 in 100 lies there by chance. Before the line: what was seen, which proves nothing.",
        fontsize=9.5,
    )
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.2)
    axis.spines[["top", "right", "left"]].set_visible(False)
    canvas.legend(loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    save_figure(path, canvas)


def _draw_markers(axis: Any, rows: tuple[Promise, ...], names: list[str]) -> None:
    for line in range(len(names)):
        axis.axhspan(line - 0.5, line + 0.5, color=GREY, alpha=0.07 * (line % 2), lw=0)
    kinds = sorted({(row.end_to_end, row.epsilon) for row in rows})
    apart = 0.75 / len(kinds)  # markers of one line stand above each other
    for i, (end_to_end, claim) in enumerate(kinds):
        shape, colour = _END_TO_END if end_to_end else _MARKERS[i % len(_MARKERS)]
        claimed = [row for row in rows if (row.end_to_end, row.epsilon) == (end_to_end, claim)]
        axis.scatter(
            [row.ratio for row in claimed],
            [names.index(row.name) + _offset(rows, row) * apart for row in claimed],
            c=[ORANGE if row.exceeds else colour for row in claimed],
            marker=shape,
            s=36,
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
        )
        label = f"ε = {claim:g}" + (", end to end" if end_to_end else "")
        axis.scatter([], [], c=colour, marker=shape, s=36, label=label)
    if any(row.exceeds for row in rows):
        axis.scatter([], [], c=ORANGE, marker="o", s=36, label="exceeds its claim")


def _offset(rows: tuple[Promise, ...], row: Promise) -> float:
    """The position of a marker among those of its line, around 0."""
    of_line = sorted((r.end_to_end, r.epsilon) for r in rows if r.name == row.name)
    return of_line.index((row.end_to_end, row.epsilon)) - (len(of_line) - 1) / 2
