"""Draws before-after.png, the picture on the first page: `python docs/before_after.py`.

One real run: 50 sources of 30 rows with ledgers in memory, ε = 1 at each, noise of the operating
system. So each drawing is another draw. What is measured is measured on rows that nobody asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import privcal
from privcal.datasets import cifar10c
from privcal.report.plots import BLUE, GREY, ORANGE, save_figure

SOURCES, ROWS = 50, 30


def run() -> tuple[privcal.Evaluation, Any, privcal.Evaluation]:
    """The measured reliability before, what the sketch says, and the measured one after."""
    scores = cifar10c("motion_blur")
    order = np.random.default_rng(0).permutation(len(scores))
    asked, unseen = order[: SOURCES * ROWS], scores.take(order[SOURCES * ROWS :])
    sources = [
        privcal.Source(scores.take(part), privcal.Policy(epsilon=1.0), ledger=None)
        for part in np.split(asked, SOURCES)
    ]
    result = privcal.calibrate(sources, method="sketch", epsilon=1.0)
    assert result.sketch is not None
    before, after = privcal.evaluate(unseen), privcal.evaluate(unseen, result.map)
    return before, result.sketch.evaluate(), after


def draw(before: privcal.Evaluation, private: Any, after: privcal.Evaluation) -> Figure:
    """Three panels of one run, beside each other."""
    figure = Figure(figsize=(11, 4.3), layout="constrained")
    figure.suptitle(
        f"CIFAR-10 network under motion blur; {SOURCES} sources of {ROWS} private rows, ε = 1 at each",
        fontsize=11.5,
    )
    left, middle, right = figure.subplots(1, 3, sharey=True)
    measured(left, before, "the model as it came")
    band, shown = private.band, private.band.own > 0.25  # fewer rows than that have less
    own = band.own[shown]
    middle.fill_between(
        own, band.low[shown], band.high[shown], color=BLUE, alpha=0.2, lw=0, label="95 % band"
    )
    middle.plot(own, band.observed[shown], color=BLUE, lw=2, label="estimate from 50 noisy answers")
    points(middle, before, "the truth: unseen rows")
    frame(middle, "what private answers say about it")
    middle.legend(loc="upper left", fontsize=8.5, frameon=False)
    measured(right, after, "with the map made of them")
    left.set_ylabel("accuracy")
    return figure


def measured(axis: Any, evaluation: privcal.Evaluation, title: str) -> None:
    confidence, accuracy = points(axis, evaluation)
    axis.vlines(confidence, accuracy, confidence, color=ORANGE, lw=1, alpha=0.6)
    frame(axis, title)
    axis.text(
        0.97,
        0.04,
        f"ECE {evaluation.ece:.3f}\nBrier {evaluation.brier:.3f}",
        ha="right",
        fontsize=11,
    )


def points(axis: Any, evaluation: privcal.Evaluation, label: str = "") -> tuple[Any, Any]:
    """Draw the accuracy of each bin at its mean confidence; a larger point has more rows."""
    state = evaluation.reliability
    full = state.count > 20
    confidence = state.confidence[full] / state.count[full]
    accuracy = state.correct[full] / state.count[full]
    size = 12 + 260 * state.count[full] / state.count.sum()
    axis.scatter(confidence, accuracy, size, color=ORANGE, zorder=3, label=label, clip_on=False)
    return confidence, accuracy


def frame(axis: Any, title: str) -> None:
    axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence")
    axis.set_title(title, fontsize=11.5)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    save_figure(Path(__file__).with_name("before-after.png"), draw(*run()), dpi=130)
