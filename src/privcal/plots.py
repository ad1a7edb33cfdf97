"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privcal.evaluate import Evaluation
from privcal.files import replacing

# Okabe and Ito's colours: told apart by colour-blind readers too.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"


def save_reliability(
    path: str | Path, panels: Sequence[tuple[str, Evaluation]], title: str, columns: int = 4
) -> None:
    """One reliability diagram for each (name, evaluation), in a grid, as PNG, SVG or PDF."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.3, 3.5 * rows + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for place, (axis, (name, evaluation)) in enumerate(zip(axes.flat, panels, strict=False)):
        _panel(axis, name, evaluation)
        axis.label_outer()
        if place == 0:
            axis.legend(loc="upper left", fontsize=8, frameon=False)
    figure.supxlabel("confidence", fontsize=11)
    figure.supylabel("accuracy", fontsize=11)
    with replacing(path) as part:
        figure.savefig(part, dpi=150)


def _panel(axis: Any, name: str, evaluation: Evaluation) -> None:
    state = evaluation.reliability
    bins = len(state.count)
    full = state.count > 0
    share = state.count / state.count.sum()
    accuracy = np.divide(state.correct, state.count, out=np.zeros(bins), where=full)
    confidence = np.divide(state.confidence, state.count, out=np.zeros(bins), where=full)
    left = np.arange(bins) / bins
    axis.bar(
        left[full],
        accuracy[full],
        1 / bins,
        align="edge",
        color=BLUE,
        edgecolor="white",
        lw=0.6,
        alpha=0.8,
        label="accuracy",
    )
    # The gap of each bin, drawn where its mean confidence is, as wide as its share of rows.
    axis.vlines(
        confidence[full],
        accuracy[full],
        confidence[full],
        color=ORANGE,
        lw=1 + 14 * share[full],
        alpha=0.75,
        label="gap (width: share of rows)",
    )
    axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set_xticks([0, 0.5, 1])
    axis.set_yticks([0, 0.5, 1])
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title(name, fontsize=10)
    axis.text(
        0.97,
        0.04,
        f"ECE {evaluation.ece:.3f}\nBrier {evaluation.brier:.3f}\nAURC {evaluation.aurc:.3f}",
        ha="right",
        va="bottom",
        fontsize=9,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2},
    )
