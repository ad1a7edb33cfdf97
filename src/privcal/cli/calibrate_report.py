"""What `privcal calibrate` says: while it asks, and when it is done."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from privcal.calibration.campaign import kept_name, paid_map
from privcal.calibration.loop import Progress, Result
from privcal.calibration.sketch.sketch import Sketch
from privcal.cli.console import note, plural, show
from privcal.cli.sketch_report import document, draw, in_tables
from privcal.data.files import read_json
from privcal.data.plausible import FEWEST, REASONS
from privcal.data.scores import Scores
from privcal.report import pages
from privcal.report.result_pages import calibration_page
from privcal.secure.round import Total
from privcal.trusted.errors import InputError

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
    why: dict[str, list[str]] = {}
    for name, reason in result.dropped.items():
        why.setdefault(reason, []).append(name)
    for reason, names in why.items():
        some = ", ".join(names) if len(names) < 4 else f"{len(names)} sources, such as {names[0]}"
        note(f"left out: {some} ({reason}: {REASONS.get(reason, 'it failed')})")


def save(result: Result, out: Path, sketch: Path | None) -> None:
    """Write the map, and the sketch where one is wanted; what was paid for before is kept."""
    if (
        (paid := paid_map(out)) is not None
        and paid[1]
        and not _same_map(read_json(out, "map"), result.map.to_dict())
    ):
        _keep(out, "map", *paid)
    result.map.save(out)
    if sketch is not None and result.sketch is not None:
        with contextlib.suppress(InputError):  # nothing of ours is there
            older = Sketch.load(sketch)
            if older != result.sketch:
                _keep(sketch, "sketch", older.releases[0].campaign, older.epsilon)
        result.sketch.save(sketch)


def _same_map(older: Any, new: Any) -> bool:
    """Whether these documents are one map, but for when and by which version it was made."""
    made = dict.fromkeys(("created", "privcal"))
    old, now = ({**m, "provenance": {**m["provenance"], **made}} for m in (older, new))
    return bool(old == json.loads(json.dumps(now)))


def _keep(path: Path, what: str, campaign: str, cost: float) -> None:
    """A result of another campaign that lies where the new one goes was paid for: it is kept."""
    kept = kept_name(path, campaign)
    path.replace(kept)
    note(f"the {what} that was there, which cost epsilon {cost:g} at each source, is now {kept}")


def show_result(
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
    free: bool,
    again: str,
) -> None:
    """Print the result, with what a sketch estimates; `max_rows` is None for local sources.

    `free`: it was paid for before; `again` says how to have it once more.
    """
    cost = f"epsilon {max(result.spent):g}"
    paid = f"read again free of charge (it cost each {cost})" if free else f"each charged {cost}"
    parts: list[RenderableType] = [
        f"{result.method}: {result.map.describe()}, from {result.answered} of "
        f"{plural(len(result.spent), 'source')}, {paid}; map written to {out}",
        _aside(f"This is campaign {result.campaign}: {again}."),
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
        "free": free,
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
        parts += in_tables(evaluation, epsilon)
        facts["evaluation"] = document(evaluation, epsilon)
        if sketch is not None:
            parts.append(f"sketch, to merge and read again: {sketch}")
            facts["sketch"] = str(sketch)
        about = result.sketch.about.curve.capitalize()
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
            f"Nobody saw one source's answer. Against you, the carrier and up to {facts['colluding']} of the "
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
