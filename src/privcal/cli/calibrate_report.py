"""What `privcal calibrate` says: while it asks, and when it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from privcal import pages
from privcal.calibrate import Progress, Result
from privcal.cli.console import note, plural, show
from privcal.cli.sketch_report import document, draw
from privcal.cli.sketch_report import report as sketch_report
from privcal.displays.calibration_page import calibration_page
from privcal.documents import read_json
from privcal.errors import InputError
from privcal.plausible import FEWEST, REASONS
from privcal.scores import Scores
from privcal.totals import Total

_STAGES = {"share": "answered", "check": "checked", "open": "opened"}
"""What so many have done in a stage of a secure sum."""


def step_text(method: str, step: Progress) -> str:
    """For the progress bar: the question, where it looks, and how many have left, and why."""
    temperature = getattr(step.query, "temperature", None)
    where = "" if temperature is None else f" at T = {temperature:.3f}"
    stage = "" if step.stage is None else f", {_STAGES[step.stage]}"
    left = "".join(f", {n} left ({why})" for why, n in Counter(step.dropped.values()).items())
    return f"{method}: question {step.asked + 1}{where}{stage}{left}"


def say_dropped(result: Result) -> None:
    for name, reason in result.dropped.items():
        note(f"left out: {name} ({reason}: {REASONS.get(reason, 'it failed')})")


def save(result: Result, out: Path, sketch: Path | None) -> None:
    """Write the map, and the sketch where one is wanted."""
    _keep_older(out, result.campaign)
    result.map.save(out)
    if sketch is not None and result.sketch is not None:
        result.sketch.save(sketch)


def _keep_older(out: Path, campaign: str) -> None:
    """A map of another campaign that lies where the new one goes was paid for: it is kept."""
    try:
        before = read_json(out, "map") if out.exists() else {}
    except InputError:
        return
    facts = before.get("provenance") if isinstance(before, dict) else None
    cost, by = (facts.get("epsilon_per_source"), facts.get("campaign")) if facts else (None, None)
    if cost and by != campaign:
        kept = out.with_name(f"{out.stem}-{by}{out.suffix}")
        out.replace(kept)
        note(f"the map that was there, which cost epsilon {cost:g} at each source, is now {kept}")


def report(
    result: Result,
    names: Sequence[str],
    public: Scores | None,
    out: Path,
    sketch: Path | None,
    plot: Path | None,
    html: Path | None,
    unit: str,
    max_rows: int | None,
    as_json: bool,
) -> None:
    """Print the result, with what a sketch estimates; `max_rows` is None for local sources."""
    parts: list[RenderableType] = [
        f"{result.method}: {result.map.describe()}, from {result.answered} of "
        f"{plural(len(result.spent), 'source')}, each charged epsilon {max(result.spent):g}; "
        f"map written to {out}"
    ]
    if result.note and result.sketch is None:  # a sketch says it in words of its own, below
        parts.append(Text(f"{result.note[0].upper()}{result.note[1:]}."))
    each = result.noise is None
    if each and max_rows is not None and "left_out" not in result.map.provenance:
        parts.append(
            _aside(
                f"With fewer than {FEWEST} sites a false answer cannot be told from the others: only "
                f"the bound of {max_rows:,} rows (--max-rows) limits what one of them could claim."
            )
        )
    parts.append(
        _aside(
            f"Protected at each source: one {unit}. A person at k sources is exposed to k times "
            "epsilon."
        )
    )
    if result.noise is not None:
        parts += _secure(result, local=max_rows is None)
    facts: dict[str, Any] = {
        "method": result.method,
        "map": result.map.to_dict(),
        "note": result.note,
        "unchanged": result.unchanged,
        "out": str(out),
        "campaign": result.campaign,
        "spent": dict(zip(names, result.spent, strict=True)),
        "epsilon_alone": result.alone,
        "dropped": result.dropped,
        "left_out": result.left_out,
        "rounds": [
            {
                "round": asked.round,
                "query": asked.query.to_dict(),
                "epsilon": asked.epsilon,
                "answers": asked.answers,
                "total": None if asked.total is None else _total(asked.total),
            }
            for asked in result.rounds
        ],
    }
    if result.sketch is not None:
        epsilon = result.sketch.epsilon
        evaluation = result.sketch.evaluate(public)
        parts += sketch_report(evaluation, epsilon)
        facts["evaluation"] = document(evaluation, epsilon)
        if sketch is not None:
            parts.append(f"sketch, to merge and read again: {sketch}")
            facts["sketch"] = str(sketch)
        about = "Reliability" if result.sketch.query.event is None else "Risk"
        parts += draw(plot, evaluation, f"{about} on the hidden rows", epsilon)
        if plot is not None:
            facts["plot"] = str(plot)
    if html is not None:
        estimated = None if result.sketch is None else evaluation
        pages.save(html, calibration_page(result, names, estimated, unit))
        parts.append(f"page: {html}")
        facts["html"] = str(html)
    show(as_json, facts, *parts)


def _secure(result: Result, local: bool) -> list[RenderableType]:
    """What is promised of secure sums, and what did not go well in them."""
    facts = result.map.provenance
    parts: list[RenderableType] = [
        _aside(
            f"Nobody saw one source's answer. Against you, the server and up to {facts['colluding']} of the "
            f"sources working together that is epsilon {max(result.spent):g}; against all others "
            f"together at most {result.alone:g}."
            + (" But whoever runs the sources, as here, has their rows." if local else "")
        )
    ]
    odd = sorted({name for a in result.rounds if a.total is not None for name in a.total.left_out})
    if odd:
        names = ", ".join(odd)
        parts.append(
            _aside(
                f"Not used in opening a sum: {names}. It need not be their doing: whoever deals them "
                "a false share brings that about."
            )
        )
    return parts


def _total(total: Total) -> dict[str, Any]:
    """A total for programs."""
    return {
        "parts": [{"sources": p.sources, "values": p.values} for p in total.parts],
        "average": total.average.tolist(),
        "variance": total.variance,
        "honest": total.noise.honest,
        "alone": total.noise.alone,
        "left_out": total.left_out,
    }


def _aside(text: str) -> Text:
    return Text(text, style="dim")
