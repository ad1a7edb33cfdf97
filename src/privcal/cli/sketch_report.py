"""What a sketch estimates, in words and numbers, for people and for JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from privcal.calibration.sketch.evaluation import Estimates, RiskEvaluation
from privcal.cli.console import table
from privcal.report.diagram import (
    DROWNED,
    display_of,
    in_words,
    unchanged,
)


def in_tables(evaluation: Estimates, epsilon: float) -> list[RenderableType]:
    """For people: a table, and a warning where the noise was all there was."""
    about, words = "", []
    if isinstance(evaluation, RiskEvaluation):
        about, words = f"risk{evaluation.about.of_class} in the ", [Text(in_words(evaluation))]
    listed = table(
        ("measure", "before", "after"),
        ("measure",),
        title=f"The {about}hidden rows, {_headline(epsilon)}",
        caption="In brackets: 95 % credible intervals. Computed from the answers already given, "
        "at no further cost in privacy.",
    )
    for name, before, after in evaluation.measures():
        listed.add_row(name, str(before), "" if after is None else str(after))
    said = [] if evaluation.unchanged is None else [Text(unchanged(evaluation), style="bold")]
    return [listed, *(words if evaluation.informative else [Text(DROWNED)]), *said]


def draw(
    plot: Path | None, evaluation: Estimates, title: str, epsilon: float
) -> list[RenderableType]:
    """Draw the estimated reliability diagram, where one is wanted; what to say of it."""
    if plot is None:
        return []
    display_of(evaluation, epsilon).save(plot, title)
    return [f"{evaluation.about.diagram}, {_headline(epsilon)}: {plot}"]


def document(evaluation: Estimates, epsilon: float) -> dict[str, Any]:
    """For --json: every estimate with its interval, and what it is."""
    facts = {"measured": False, "epsilon": epsilon, **evaluation.to_dict()}
    if evaluation.unchanged is not None:
        facts["unchanged_in_words"] = unchanged(evaluation)
    return facts if evaluation.informative else {**facts, "note": DROWNED}


def _headline(epsilon: float) -> str:
    return f"estimated under ε = {epsilon:g}, not measured"
