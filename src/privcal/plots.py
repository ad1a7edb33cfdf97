"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privcal.errors import InputError
from privcal.evaluate import Evaluation
from privcal.files import replacing
from privcal.metrics import bin_index
from privcal.sketch.evaluation import Band, PrivateEvaluation

# Okabe and Ito's colours: told apart by colour-blind readers too.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"

_RARE = 0.02
"""So small a share of rows, at the low end, has no curve drawn: only the prior speaks there."""

PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: Path | None) -> None:
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"{path}: a picture must end in .png, .svg or .pdf")


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


def save_private_reliability(
    path: str | Path, evaluation: PrivateEvaluation, title: str, epsilon: float
) -> None:
    """Accuracy by confidence as a sketch tells it: a curve with its 95 % band, no bars.

    Bars are for what was counted. Below it, where the hidden rows are estimated to lie.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{title}\nestimated under ε = {epsilon:g}, nothing here was measured", fontsize=11
    )
    axis, strip = figure.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    _band(axis, evaluation)
    _strip(strip, evaluation.band)
    with replacing(path) as part:
        figure.savefig(part, dpi=150)


def _band(axis: Any, evaluation: PrivateEvaluation) -> None:
    band = evaluation.band
    here = np.cumsum(band.share) > _RARE * band.share.sum()
    x = band.confidence[here]
    axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label="confidence = accuracy")
    axis.fill_between(
        x, band.low[here], band.high[here], color=BLUE, alpha=0.2, lw=0, label="95 % interval"
    )
    axis.plot(x, band.accuracy[here], color=BLUE, lw=2, label="estimated accuracy")
    axis.plot(x, band.after[here], color=ORANGE, lw=1.6, ls="--", label="confidence after the map")
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", ylabel="accuracy")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axis.grid(color=GREY, alpha=0.15, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", fontsize=9, frameon=False)
    before, after = (
        f"ECE {ece.value:.3f}, Brier {brier.value:.3f}"
        for ece, brier in (
            (evaluation.ece_before, evaluation.brier_before),
            (evaluation.ece_after, evaluation.brier_after),
        )
    )
    said = f"before: {before}\nafter: {after}\n(estimates)"
    if not evaluation.informative:
        said = "THE NOISE DROWNED THE DATA:\nonly what was believed beforehand"
    axis.text(
        0.98,
        0.03,
        said,
        ha="right",
        va="bottom",
        fontsize=9,
        color="black" if evaluation.informative else ORANGE,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2},
    )


def _strip(axis: Any, band: Band, bins: int = 40) -> None:
    share = np.bincount(bin_index(band.confidence, bins), band.share, minlength=bins)
    axis.bar(np.arange(bins) / bins, share, 1 / bins, align="edge", color=BLUE, alpha=0.5, lw=0)
    axis.set(xlabel="the model's own confidence")
    axis.set_ylabel("rows\n(estimated)", fontsize=8)
    axis.set_yticks([])
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.spines[["top", "right", "left"]].set_visible(False)
