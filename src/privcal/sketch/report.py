"""A private evaluation in words and numbers, for people and for JSON."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from privcal.sketch.evaluation import Estimate, PrivateEvaluation

DROWNED = (
    "The noise drowned the data: the map and these figures are only what was believed beforehand. "
    "More sources or a larger epsilon would help."
)


def headline(epsilon: float) -> str:
    return f"estimated under ε = {epsilon:g}, not measured"


def report(evaluation: PrivateEvaluation, epsilon: float) -> list[RenderableType]:
    """For people: a table, and a warning where the noise was all there was."""
    table = Table(
        title=f"The hidden rows, {headline(epsilon)}",
        caption="In brackets: 95 % credible intervals. Computed from the answers already given, "
        "at no further cost in privacy.",
        box=box.SIMPLE_HEAD,
    )
    for name in ("measure", "before", "after"):
        table.add_column(name, justify="left" if name == "measure" else "right", no_wrap=True)
    for name, before, after in _measures(evaluation):
        table.add_row(name, str(before), "" if after is None else str(after))
    return [table] if evaluation.informative else [table, Text(DROWNED)]


def document(evaluation: PrivateEvaluation, epsilon: float) -> dict[str, Any]:
    """For --json: every estimate with its interval, and what it is."""
    facts = {"measured": False, "epsilon": epsilon, **evaluation.to_dict()}
    return facts if evaluation.informative else {**facts, "note": DROWNED}


def _measures(evaluation: PrivateEvaluation) -> list[tuple[str, Estimate, Estimate | None]]:
    """(measure, before, after); a map changes no prediction, so accuracy has one value."""
    return [
        ("accuracy", evaluation.accuracy, None),
        ("mean confidence", evaluation.confidence_before, evaluation.confidence_after),
        ("ECE", evaluation.ece_before, evaluation.ece_after),
        ("Brier", evaluation.brier_before, evaluation.brier_after),
    ]
