"""`privcal evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from privcal.calibration.evaluation import evaluate as measure
from privcal.calibration.maps import CurveMap, Map, load_map
from privcal.calibration.sketch import Sketch
from privcal.cli.console import counting, note, plural, show
from privcal.cli.options import (
    Classes,
    Columns,
    Json,
    LeaveAlone,
    PageOut,
    Public,
    Unchanged,
    check_page,
    columns_of,
    words,
)
from privcal.cli.sketch_report import document, draw, in_tables
from privcal.data.columns import Layout
from privcal.data.files import check_outputs
from privcal.data.readers import class_names_of, read_scores
from privcal.data.scores import Scores
from privcal.data.sources import read_public, warn_of_exact_figures
from privcal.data.tables import is_scores
from privcal.data.wording import place_of
from privcal.report import pages
from privcal.report.diagram import display_of, together
from privcal.report.plots import check_picture, save_figure
from privcal.report.result_pages import aim, evaluation_page, sketch_page
from privcal.trusted.errors import InputError


def evaluate(
    scores: Annotated[Path, typer.Argument(help="Labelled scores; with --private, a sketch.")],
    map: Annotated[Path | None, typer.Option(help="A map: measures before and after it.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Reliability diagram (.png, .svg, .pdf).")
    ] = None,
    bins: Annotated[int, typer.Option(help="Equal-width bins of confidence.")] = 15,
    event: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="Also measure the risk of this class (its name, or its number, counted from 0). The "
            "default is the class of a risk map.",
        ),
    ] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="Estimate from a saved sketch; nothing is measured."),
    ] = False,
    public: Public = None,
    unchanged: Unchanged = None,
    leave_alone: LeaveAlone = False,
    columns: Columns = None,
    classes: Classes = None,
    html: PageOut = None,
    as_json: Json = False,
) -> None:
    """Measure calibration exactly, on data you may look at: no privacy is involved.

    With --private: estimate it, with intervals, on rows nobody may look at, from a sketch of them.

    Examples:

    `privcal evaluate scores.npz --map map.json --plot reliability.png`

    `privcal evaluate scores.csv --event died --plot risk.png`

    `privcal evaluate sketch.json --private --public clean.npz --plot reliability.png`
    """
    check_picture(plot)
    check_page(html)
    check_outputs([plot, html], [scores, map, public])
    named: dict[str, Any] = {"columns": columns_of(columns), "class_names": words(classes)}
    if private:
        if event is not None:
            raise InputError("a sketch names its own class: leave --event out")
        clean = None if public is None else read_public(public, **named)
        _estimate(scores, clean, map, plot, html, bins, unchanged, leave_alone, as_json)
    elif scores.suffix.lower() == ".json":
        raise InputError(
            f"{scores} holds no scores; if it is a sketch, say --private to estimate from it"
        )
    elif public is not None or unchanged is not None or leave_alone:
        raise InputError(
            "--public, --unchanged and --leave-alone are for reading a sketch, with --private"
        )
    else:
        _measure(scores, Layout.of(**named), map, plot, html, bins, event, as_json)


def _measure(
    file: Path,
    layout: Layout,
    map: Path | None,
    plot: Path | None,
    html: Path | None,
    bins: int,
    event: str | None,
    as_json: bool,
) -> None:
    loaded = None if map is None else load_map(map)
    if loaded is not None and class_names_of(file, layout) is None:
        layout = replace(layout, class_names=loaded.class_names or ())
    with counting(f"reading {file.name}"):
        scores = read_scores(file, columns=layout)
    about = place_of(event, scores.class_names)
    if about is None and loaded is not None:
        about = loaded.about.event
    results = {}
    maps: dict[str, Map | None] = {"before": None}
    maps |= {} if loaded is None else {"after": loaded}
    for when, applied in maps.items():
        with counting(f"measuring {file.name}" if loaded is None else f"measuring {when}") as done:
            results[when] = measure(scores, applied, bins, event=about, progress=done)
    if plot is not None:
        pictures = [(when, display_of(found)) for when, found in results.items()]
        save_figure(plot, together(pictures, file.name, columns=2))
    if html is not None:
        pages.save(html, evaluation_page(file.name, results, loaded))
    table = Table(title=f"{file}, {plural(len(scores), 'row')}")
    table.add_column("measure")
    for when in results:
        table.add_column(when if loaded else "value", justify="right")
    values = {when: result.to_dict() for when, result in results.items()}
    for name in (name for name in values["before"] if name not in ("rows", "event")):
        table.add_row(name, *(f"{figures[name]:.4f}" for figures in values.values()))
        if name == "auroc":  # the last of the risk
            table.add_section()
    said = [Text(text) for text in aim(loaded, results["before"])]
    drawn = [] if plot is None else [f"reliability diagram: {plot}"]
    facts = {**values, "has_ledger": warn_of_exact_figures(file, note)}
    show(as_json, facts, *said, table, *drawn, *([] if html is None else [f"page: {html}"]))


def _estimate(
    file: Path,
    clean: Scores | None,
    map: Path | None,
    plot: Path | None,
    html: Path | None,
    bins: int,
    unchanged: float | None,
    leave_alone: bool,
    as_json: bool,
) -> None:
    if is_scores(file):
        raise InputError(
            f"{file} holds scores, not a sketch; --private estimates from a saved sketch (.json)"
        )
    sketch = Sketch.load(file)
    loaded = None if map is None else load_map(map)
    if loaded is not None and not isinstance(loaded, CurveMap):
        raise InputError(
            f"a sketch can judge a curve, as privcal sketch fit writes it; {map} is not one"
        )
    evaluation = sketch.evaluate(clean, loaded, bins, unchanged=unchanged, leave_alone=leave_alone)
    parts = in_tables(evaluation, sketch.epsilon)
    parts += draw(plot, evaluation, file.name, sketch.epsilon)
    if html is not None:
        pages.save(html, sketch_page(sketch, evaluation, file.name))
        parts.append(f"page: {html}")
    show(as_json, document(evaluation, sketch.epsilon), *parts)
