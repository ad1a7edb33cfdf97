"""`privcal sketch`: merge, show, fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from privcal.calibration.sketch.answers import SketchAnswer, SketchTotal
from privcal.calibration.sketch.sketch import Sketch
from privcal.calibration.sketch.sketch import merge as merge_sketches
from privcal.cli.console import plural, show, table
from privcal.cli.options import (
    Json,
    LeaveAlone,
    MapOut,
    PageOut,
    PrivatePlot,
    Public,
    SketchFile,
    Unchanged,
    check_page,
)
from privcal.cli.sketch_report import document, draw, in_tables
from privcal.data.files import check_outputs
from privcal.data.html import some
from privcal.data.sources import read_public
from privcal.data.wording import asks
from privcal.report import pages
from privcal.report.plots import check_picture
from privcal.report.result_pages import sketch_page
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="SKETCH...", help="Sketches (JSON).")],
    out: Annotated[Path, typer.Option(help="Where to write the merged sketch.")],
    as_json: Json = False,
) -> None:
    """Put the answers of several sketches together. An answer counts once.

    Sketches merge where they ask the same question about the same model.

    Example: `privcal sketch merge spring.json autumn.json --out all.json`
    """
    check_outputs([out], files)
    merged = Sketch.load(files[0])
    for file in files[1:]:
        other = Sketch.load(file)
        try:
            merged = merge_sketches(merged, other)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
    merged.save(out)
    facts = {
        "out": str(out),
        "answers": len(merged.answers),
        "totals": len(merged.totals),
        "spent": merged.spent,
    }
    show(as_json, facts, f"{merged.describe()} written to {out}")


def show_sketch(
    file: SketchFile, html: PageOut = None, public: Public = None, as_json: Json = False
) -> None:
    """What is in a sketch: the question, the answers, ε at each source, the noisy totals.

    With --html: a page that also shows what it says of the hidden rows.

    Examples:

    `privcal sketch show all.json`

    `privcal sketch show all.json --html sketch.html`
    """
    check_page(html)
    check_outputs([html], [file, public])
    sketch = Sketch.load(file)
    if html is not None:
        clean = None if public is None else read_public(public)
        readable = clean is not None or sketch.query.temperature == 1.0
        pages.save(
            html, sketch_page(sketch, sketch.evaluate(clean) if readable else None, file.name)
        )
    elif public is not None:
        raise InputError("--public is for the page of a sketch: give --html as well")
    deviation = sketch.count * math.sqrt(sketch.noise_variance)
    sums = [float(value) for value in sketch.average * sketch.count]
    wrong, right = sums[: len(sketch.query.knots)], sums[len(sketch.query.knots) :]
    answers = [_answer(answer) for answer in sketch.answers]
    totals = [_total(total) for total in sketch.totals]
    facts = {
        "file": str(file),
        "query": sketch.query.to_dict(),
        "model": sketch.model,
        "answers": answers,
        "totals": totals,
        "spent": sketch.spent,
        "alone": sketch.alone,
        "noisy_totals": dict(zip(sketch.halves, (wrong, right), strict=True)),
        "noise_deviation": deviation,
    }
    question = f"asks {asks(sketch.query, sketch.schema.get('class_names'))}; model: {sketch.model or 'not said'}"
    noisy = _noisy(sketch, wrong, right, deviation)
    written = [] if html is None else [f"page: {html}"]
    title = Text(str(file), style="bold")
    listed = *_answers_table(answers), *_totals_tables(totals)
    show(as_json, facts, title, Text(question), *listed, *_often(sketch), noisy, *written)


def fit(
    file: SketchFile,
    out: MapOut,
    public: Public = None,
    unchanged: Unchanged = None,
    leave_alone: LeaveAlone = False,
    plot: PrivatePlot = None,
    as_json: Json = False,
) -> None:
    """The map that a sketch gives, and how good confidence is estimated to be.

    What was believed beforehand is a matter of reading a sketch, not of asking: another
    --unchanged costs nothing.

    Examples:

    `privcal sketch fit all.json --public clean.npz --out map.json`

    `privcal sketch fit all.json --leave-alone --out map.json`
    """
    check_outputs([out, plot], [file, public])
    check_picture(plot)
    sketch = Sketch.load(file)
    fitted = sketch.fit(
        None if public is None else read_public(public),
        unchanged=unchanged,
        leave_alone=leave_alone,
    )
    evaluation = fitted.evaluate()
    fitted.map.save(out)
    parts = in_tables(evaluation, sketch.epsilon)
    parts += draw(plot, evaluation, file.name, sketch.epsilon)
    facts = {
        "out": str(out),
        "map": fitted.map.to_dict(),
        "evaluation": document(evaluation, sketch.epsilon),
    }
    charged = f"each charged at most epsilon {sketch.epsilon:g}"
    what = f"{fitted.map.describe()} from {sketch.describe()}"
    show(as_json, facts, f"{what}, {charged}; map written to {out}", *parts)


def _answer(answer: SketchAnswer) -> dict[str, Any]:
    return {
        "source": answer.source,
        "asker": answer.asker,
        "campaign": answer.campaign,
        "epsilon": from_nano(answer.nano_epsilon),
        "rows_per_person": answer.rows_per_person,
    }


def _total(total: SketchTotal) -> dict[str, Any]:
    return {
        "groups": [list(part.sources) for part in total.parts],
        "asker": total.asker,
        "campaign": total.campaign,
        "epsilon": from_nano(total.nano_epsilon),
        "epsilon_alone": from_nano(total.nano_alone),
        "rows_per_person": total.noise.rows_per_person,
        "honest": total.noise.honest,
        "noise": total.noise.describe(),
    }


def _answers_table(answers: list[dict[str, Any]]) -> Iterator[Table]:
    if answers:
        columns = ("source", "asker", "campaign", "ε", "rows per person")
        listed = table(columns, columns[:3], title=plural(len(answers), "answer"))
        for answer in answers:
            cells = {**answer, "epsilon": f"{answer['epsilon']:g}"}
            listed.add_row(*map(str, cells.values()))
        yield listed


def _totals_tables(totals: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """For people: every total, and whose answers are in it."""
    for total in totals:
        names = [name for group in total["groups"] for name in group]
        columns = (
            "sources",
            "asker",
            "campaign",
            "ε",
            "ε if all others collude",
            "rows per person",
        )
        listed = table(
            columns,
            columns[1:3],
            title="A total: nobody saw what one of its sources answered",
            caption=f"Its noise: {total['noise']}.{_median(len(total['groups']))}",
        )
        epsilons = (f"{total[name]:g}" for name in ("epsilon", "epsilon_alone"))
        listed.add_row(
            f"{len(names):,}",
            total["asker"],
            total["campaign"],
            *epsilons,
            str(total["rows_per_person"]),
        )
        yield listed
        yield Text(f"In it: {some(sorted(names))}.")


def _often(sketch: Sketch) -> list[str]:
    """For people: who answered several times."""
    alike: dict[tuple[int, float], list[str]] = {}
    for source, times in sketch.times.items():
        if times > 1:
            alike.setdefault((times, sketch.spent[source]), []).append(source)
    return [
        f"{some(names)} answered {times} times, for ε = {epsilon:g} in all"
        for (times, epsilon), names in alike.items()
    ]


def _median(groups: int) -> str:
    return "" if groups == 1 else f" Of {groups} groups, the median counts."


def _noisy(sketch: Sketch, wrong: list[float], right: list[float], deviation: float) -> Table:
    noisy = table(
        ("score (log-odds)", sketch.about.claim, *sketch.halves),
        (),
        title="Noisy totals around each score: not counts",
        caption=f"Each number has noise of standard deviation {deviation:.3g}, and may be negative.",
    )
    places = 1 - math.floor(math.log10(deviation))  # more digits would be noise alone
    for knot, *totals in zip(sketch.query.knots, wrong, right, strict=True):
        rounded = (f"{round(total, places):,.{max(places, 0)}f}" for total in totals)
        noisy.add_row(f"{knot:g}", f"{1 / (1 + math.exp(-knot)):.3g}", *rounded)
    return noisy
