"""Reliability diagrams, as matplotlib figures and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal.errors import InputError
from privcal.evaluation import Evaluation
from privcal.files import replacing
from privcal.metrics import bin_index
from privcal.scores import FloatArray
from privcal.sketch.evaluation import PrivateEvaluation
from privcal.sketch.risk import RiskEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours: colour-blind readers can tell them apart too.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"

_RARE = 0.02
"""The share of rows at an end for which no curve is drawn: it would show only the prior."""

PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: Path | None) -> None:
    """Raise InputError unless the name ends like a picture."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise InputError(f"{path}: a picture must end in .png, .svg or .pdf")


def save_figure(path: str | Path, figure: Figure, dpi: int = 150) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of `path`, as a whole or not at all."""
    with replacing(path) as part:
        figure.savefig(part, dpi=dpi)


def save_reliability(
    path: str | Path, panels: Sequence[tuple[str, Evaluation]], title: str, columns: int = 4
) -> None:
    """Write `reliability_figure` as PNG, SVG or PDF."""
    save_figure(path, reliability_figure(panels, title, columns))


def reliability_figure(
    panels: Sequence[tuple[str, Evaluation]], title: str = "", columns: int = 4
) -> Figure:
    """One reliability diagram for each (name, evaluation), in a grid.

    >>> scores = privcal.Scores(probabilities=[0.25, 0.75], labels=[0, 0])
    >>> figure = reliability_figure([("before", privcal.evaluate(scores))])
    >>> len(figure.axes)
    1
    """
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.1 * columns + 0.3, 3.5 * rows + 0.7), layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, evaluation) in zip(axes.flat, panels, strict=False):
        draw_reliability(axis, evaluation, name)
        axis.label_outer()
    axes[0, 0].legend(loc="upper left", fontsize=8, frameon=False)
    figure.supxlabel("confidence", fontsize=11)
    figure.supylabel("accuracy", fontsize=11)
    return figure


def draw_reliability(axis: Any, evaluation: Evaluation, name: str = "") -> None:
    """Draw one reliability diagram on a matplotlib axis."""
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
    # The gap of each bin, drawn at its mean confidence, as wide as its share of rows.
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
    path: str | Path, evaluation: PrivateEvaluation | RiskEvaluation, title: str, epsilon: float
) -> None:
    """Write `private_reliability_figure` as PNG, SVG or PDF."""
    save_figure(path, private_reliability_figure(evaluation, title, epsilon))


def private_reliability_figure(
    evaluation: PrivateEvaluation | RiskEvaluation, title: str, epsilon: float
) -> Figure:
    """The accuracy by confidence that a sketch estimates: a curve with its 95 % band.

    Of a sketch of an event: how often it was so, by the model's own risk. There are no bars, which
    would look as if something had been counted. The strip below shows where the hidden rows are
    estimated to lie.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 6.6), layout="constrained")
    figure.suptitle(
        f"{title}\nestimated under ε = {epsilon:g}, nothing here was measured", fontsize=11
    )
    axis, strip = figure.subplots(2, 1, sharex=True, height_ratios=(8, 1))
    if isinstance(evaluation, RiskEvaluation):
        own, seen, name = evaluation.band.risk, evaluation.band.outcome, "risk"
        what = f"how often it was class {evaluation.event}"
        ratios = evaluation.observed_expected_before, evaluation.observed_expected_after
        means = [f"observed / expected {ratio.value:.2f}" for ratio in ratios]
    else:
        own, seen, name = evaluation.band.confidence, evaluation.band.accuracy, "confidence"
        what = "accuracy"
        means = [f"ECE {e.value:.3f}" for e in (evaluation.ece_before, evaluation.ece_after)]
    above = bool(evaluation.band.share @ (seen - own) > 0)
    _band(axis, evaluation, own, seen, name, what, above)
    _sum_up(axis, evaluation, means, above)
    _strip(strip, own, evaluation.band.share, name)
    return figure


def _band(
    axis: Any,
    evaluation: PrivateEvaluation | RiskEvaluation,
    own: FloatArray,
    seen: FloatArray,
    name: str,
    what: str,
    above: bool,
) -> None:
    """`above`: whether the curve is above the diagonal, where the legend would stand."""
    band = evaluation.band
    below = np.cumsum(band.share) / band.share.sum()
    drawn = below > _RARE
    if isinstance(evaluation, RiskEvaluation):  # a confidence ends at certainty, where rows are
        drawn &= below <= 1 - _RARE
    x = own[drawn]
    axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":", label=f"{name} = {what}")
    axis.fill_between(
        x, band.low[drawn], band.high[drawn], color=BLUE, alpha=0.2, lw=0, label="95 % interval"
    )
    axis.plot(x, seen[drawn], color=BLUE, lw=2, label=f"estimate of {what}")
    axis.plot(x, band.after[drawn], color=ORANGE, lw=1.6, ls="--", label=f"{name} after the map")
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", ylabel=what)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axis.grid(color=GREY, alpha=0.15, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    place: dict[str, Any] = {"loc": "upper left"}
    if above:
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.12)}
    axis.legend(fontsize=9, frameon=False, **place)


def _sum_up(
    axis: Any, evaluation: PrivateEvaluation | RiskEvaluation, means: Sequence[str], above: bool
) -> None:
    """The figures in numbers, under the legend."""
    briers = evaluation.brier_before, evaluation.brier_after
    before, after = (
        f"{mean}, Brier {brier.value:.3f}" for mean, brier in zip(means, briers, strict=True)
    )
    text = f"before: {before}\nafter: {after}\n(estimates)"
    if not evaluation.informative:
        text = "THE NOISE DROWNED THE DATA:\nonly what was believed beforehand"
    x, y, ha, va = (0.98, 0.03, "right", "bottom") if above else (0.025, 0.8, "left", "top")
    axis.text(
        x,
        y,
        text,
        ha=ha,
        va=va,
        fontsize=9,
        color="black" if evaluation.informative else ORANGE,
        bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2},
    )


def _strip(axis: Any, own: FloatArray, rows: FloatArray, name: str, bins: int = 40) -> None:
    share = np.bincount(bin_index(own, bins), rows, minlength=bins)
    axis.bar(np.arange(bins) / bins, share, 1 / bins, align="edge", color=BLUE, alpha=0.5, lw=0)
    axis.set(xlabel=f"the model's own {name}")
    axis.set_ylabel("rows\n(estimated)", fontsize=8)
    axis.set_yticks([])
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.spines[["top", "right", "left"]].set_visible(False)
