"""`privcal calibrate --rehearse`: how it would go, and the truth beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from privcal.calibration import default
from privcal.calibration.loop import Result
from privcal.calibration.methods.base import Method
from privcal.calibration.sketch.evaluation import PrivateEvaluation
from privcal.cli.calibrate_report import say_dropped
from privcal.cli.console import counting, plural, show, table
from privcal.cli.sketch_report import draw
from privcal.data.scores import Scores
from privcal.data.sources import read_sources_of
from privcal.data.wording import as_odds
from privcal.report.rehearsal import (
    DRAWS,
    REHEARSAL,
    Error,
    Rehearsal,
    Rehearsed,
    check_open,
    rehearse,
)
from privcal.trusted.policy import Policy

WHAT = (
    f"{REHEARSAL}: the rows were looked at; no ledger was touched, nobody was charged, and no map "
    "was written."
)


def run(
    files: list[Path],
    method: Method,
    epsilon: float,
    *,
    source_column: str | None,
    source_names: list[str] | None,
    model: str | None,
    policy: Path | None,
    ledger_dir: Path | None,
    person: str | None,
    layout: dict[str, Any],
    min_sources: int | None,
    asker: str,
    public: Scores | None,
    named: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run and report it; where nobody `named` the method, with why it is this one."""
    split = (source_column, source_names, model, ledger_dir, person)
    sources = read_sources_of(files, *split, **layout)
    check_open(sources, ledger_dir)
    rules = None if policy is None else Policy.load(policy)
    with counting(f"{REHEARSAL.lower()}") as progress:
        rehearsal = rehearse(
            sources,
            method,
            epsilon,
            rules,
            min_sources=min_sources,
            asker=asker,
            model=model,
            progress=lambda _, done, total: progress(done, total),
        )
    say_dropped(rehearsal.result)
    told = None if rules is None else rules.rows
    event = getattr(method, "event", None)
    why = None
    if not named:
        setting = len(sources), told, epsilon, public is not None
        why = default.why(*setting) if event is None else default.ONLY
    lines, facts = _of_the_sketch(rehearsal, public, plot, epsilon)
    parts: list[RenderableType] = [
        Text(WHAT, style="bold"),
        Text(_cost(rehearsal, epsilon)),
        *([] if why is None else [Text(why)]),
        _table(rehearsal),
        *(Text(f"{name} cannot run here: {reason}") for name, reason in rehearsal.refused.items()),
        *lines,
    ]
    show(as_json, {**_document(rehearsal, why), **facts}, *parts)


def _cost(rehearsal: Rehearsal, epsilon: float) -> str:
    result, chosen = rehearsal.result, rehearsal.methods[0]
    return (
        f"{result.method} would make {result.map.describe()} from {result.answered} of "
        f"{plural(len(result.spent), 'source')}; each would be charged epsilon {chosen.epsilon:g} for "
        f"{plural(chosen.questions, 'question')} ({plural(chosen.numbers, 'number')} leave it), and "
        f"protect one {rehearsal.unit}: at epsilon {epsilon:g}, {as_odds(epsilon)}."
    )


def _table(rehearsal: Rehearsal) -> Table:
    about = rehearsal.result.map.about
    filled = table(
        ("method", "ECE", "lowest–highest", "Brier", "ε", "no noise: ECE", "Brier"),
        ("method",),
        narrow=True,
        title=f"{REHEARSAL}: error of the {about.claim}{about.of_class}, measured on the same {rehearsal.rows:,} rows",
        caption=f"Means over {DRAWS} draws of the noise, and the lowest and highest ECE among them. "
        "ECE: mean gap between confidence and truth. Brier: mean squared error. Lower is better; read "
        "both. No noise: what the same rows give without privacy, fitted and measured on them.",
    )
    filled.add_row("nothing done", *_both(rehearsal.before), "0", "", "")
    for tried in rehearsal.methods:
        style = "bold" if tried.method == rehearsal.result.method else None
        exact = (
            ("", "")
            if tried.exact is None
            else (_digits(tried.exact.ece), _digits(tried.exact.brier))
        )
        mean, all_eces = tried.mean, [error.ece for error in tried.errors]
        spread = f"{_digits(min(all_eces))}–{_digits(max(all_eces))}"
        row = (_digits(mean.ece), spread, _digits(mean.brier), f"{tried.epsilon:g}", *exact)
        filled.add_row(tried.method, *row, style=style)
    return filled


def _both(error: Error) -> tuple[str, str, str]:
    return _digits(error.ece), "", _digits(error.brier)


def _digits(value: float) -> str:
    return f"{value:.3f}"


def _of_the_sketch(
    rehearsal: Rehearsal, public: Scores | None, plot: Path | None, epsilon: float
) -> tuple[list[RenderableType], dict[str, Any]]:
    """What the sketch alone would have told, beside the truth; and its picture."""
    result: Result = rehearsal.result
    if result.sketch is None:
        return [], {}
    told = result.sketch.evaluate(public)
    lines: list[RenderableType] = []
    if isinstance(told, PrivateEvaluation):
        lines.append(
            Text(
                f"The sketch alone would have told: ECE {told.ece_before} before and {told.ece_after} "
                f"after; true of that draw: {rehearsal.before.ece:.3f} and "
                f"{rehearsal.methods[0].errors[0].ece:.3f}."
            )
        )
    title = f"{REHEARSAL}: {told.about.curve} on the rows"
    lines += draw(plot, told, title, epsilon)
    facts = {"told": told.to_dict(), "plot": None if plot is None else str(plot)}
    return lines, facts


def _document(rehearsal: Rehearsal, why: str | None) -> dict[str, Any]:
    return {
        REHEARSAL: WHAT,
        "method": rehearsal.result.method,
        "why": why,
        "note": rehearsal.result.note,
        "sources": len(rehearsal.result.spent),
        "dropped": rehearsal.result.dropped,
        "unit": rehearsal.unit,
        "measured_on": f"the same {rehearsal.rows:,} rows",
        "draws": DRAWS,
        "nothing_done": asdict(rehearsal.before),
        "methods": [_facts(tried) for tried in rehearsal.methods],
        "refused": rehearsal.refused,
    }


def _facts(tried: Rehearsed) -> dict[str, Any]:
    return {**asdict(tried), "mean": asdict(tried.mean)}
