"""What a sketch estimates, in words and numbers, for people and for JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from privcal.cli.console import table
from privcal.plots import save_private_reliability
from privcal.sketch.evaluation import Estimate, PrivateEvaluation

DROWNED = (
    "The noise drowned the data: the map and these figures are only what was believed beforehand. "
    "More sources or a larger epsilon would help."
)


def report(evaluation: PrivateEvaluation, epsilon: float) -> list[RenderableType]:
    """For people: a table, and a warning where the noise was all there was."""
    measures = table(
        ("measure", "before", "after"),
        ("measure",),
        title=f"The hidden rows, {_headline(epsilon)}",
        caption="In brackets: 95 % credible intervals. Computed from the answers already given, "
        "at no further cost in privacy.",
    )
    for name, before, after in _measures(evaluation):
        measures.add_row(name, str(before), "" if after is None else str(after))
    return [measures] if evaluation.informative else [measures, Text(DROWNED)]


def draw(
    plot: Path | None, evaluation: PrivateEvaluation, title: str, epsilon: float
) -> list[RenderableType]:
    """Draw the estimated reliability diagram, where one is wanted; what to say of it."""
    if plot is None:
        return []
    save_private_reliability(plot, evaluation, title, epsilon)
    return [f"reliability diagram, {_headline(epsilon)}: {plot}"]


def document(evaluation: PrivateEvaluation, epsilon: float) -> dict[str, Any]:
    """For --json: every estimate with its interval, and what it is."""
    facts = {"measured": False, "epsilon": epsilon, **evaluation.to_dict()}
    return facts if evaluation.informative else {**facts, "note": DROWNED}


def _headline(epsilon: float) -> str:
    return f"estimated under ε = {epsilon:g}, not measured"


def _measures(evaluation: PrivateEvaluation) -> list[tuple[str, Estimate, Estimate | None]]:
    """(measure, before, after); a map changes no prediction, so accuracy has one value."""
    return [
        ("accuracy", evaluation.accuracy, None),
        ("mean confidence", evaluation.confidence_before, evaluation.confidence_after),
        ("ECE", evaluation.ece_before, evaluation.ece_after),
        ("Brier", evaluation.brier_before, evaluation.brier_after),
    ]
