"""`privcal audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from privcal.cli.console import counting, plural, show, table
from privcal.cli.options import Json, words
from privcal.data.files import check_outputs
from privcal.data.opening import layout_of, person_column
from privcal.data.place import Data
from privcal.data.readers import read_scores
from privcal.lab.audit.run import (
    ALARM,
    CONFIDENCE,
    DRAWS,
    MEANING,
    NOT_REACHED,
    NOTE,
    Promise,
    Removals,
    audit_data,
)
from privcal.lab.audit.run import audit as audit_noise
from privcal.report.audit_figure import save_audit
from privcal.report.plots import check_picture
from privcal.trusted.errors import InputError


def audit(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Audit the bounds on these rows instead: .npz, .npy, .parquet or .csv. Exact "
            "figures, for their owner alone."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Some kinds of query and methods, as gap,acc-t.")
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(
            help="The claims to test, as 0.5,2; by default 1, and 0.1,1,4 of the noise of queries."
        ),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(
            help="For each claim: 20,000 take a minute, 1,000,000 come near the claim. At most "
            "2,000 of them are questions to sources; the rest draw the noise alone."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of it (.png, .svg, .pdf).")] = None,
    person: Annotated[
        str | None, typer.Option(help="With data: the column of person ids; as their ledger says.")
    ] = None,
    per_row: Annotated[
        bool, typer.Option("--per-row", help="With data: every row is a person of its own.")
    ] = False,
    rows_per_person: Annotated[
        int | None, typer.Option(help="With data: how many rows of a person count; 1 unless said.")
    ] = None,
    removals: Annotated[
        int | None,
        typer.Option(help="With data: how many rows or persons to try, at random."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try to break the privacy promises: does any answer tell more than its ε allows?

    Builds the hardest neighbouring data sets, asks real sources thousands of questions over a
    ledger, draws the noise alone even more often, and learns to tell the two apart. Ends with 1
    if a promise was seen broken.

    With data: removes each row, or person, and adds up everything anew; the exact change of
    every kind of answer stands beside its bound.

    Examples:

    `privcal audit`

    `privcal audit --draws 1000000 --plot audit.png`

    `privcal audit --only cell-histogram,sketch --epsilon 0.5,2`

    `privcal audit hospital.parquet --person patient --rows-per-person 3`
    """
    names = words(only)
    if data is None:
        if person is not None or per_row or rows_per_person is not None or removals is not None:
            raise InputError(
                "--person, --per-row, --rows-per-person and --removals are for data: name a file"
            )
        ok = _noise(names, epsilon, draws, plot, as_json)
    else:
        if epsilon is not None or draws is not None or plot is not None:
            raise InputError(
                "with data nothing is drawn: --epsilon, --draws and --plot are for the audit "
                "without a file"
            )
        if per_row and person is not None:
            raise InputError("give --person or --per-row, not both")
        limit = 1 if rows_per_person is None else rows_per_person
        ok = _data(data, names, person, per_row, limit, removals, as_json)
    if not ok:
        raise typer.Exit(1)


def _noise(
    only: list[str] | None,
    epsilon: str | None,
    draws: int | None,
    plot: Path | None,
    as_json: bool,
) -> bool:
    check_picture(plot)
    check_outputs([plot], [])
    with counting("drawing") as progress:
        result = audit_noise(
            only=only,
            epsilons=None if epsilon is None else _numbers(epsilon),
            draws=DRAWS if draws is None else draws,
            progress=progress,
        )
    if plot is not None:
        save_audit(plot, result)
    parts: list[RenderableType] = []
    for end_to_end, title in (
        (True, "end to end: questions to real sources, over a ledger"),
        (False, "the mechanism alone: exact sums of these sources, and their noise"),
    ):
        if rows := [row for row in result.rows if row.end_to_end == end_to_end]:
            parts.append(_bounds(title, rows))
    for question in dict.fromkeys(row.what for row in result.rows):
        names = dict.fromkeys(row.name for row in result.rows if row.what == question)
        parts.append(Text(f"{', '.join(names)}: {question}."))
    parts += [
        Text(
            f"{MEANING} Each bound by itself holds with {CONFIDENCE:.0%}, so one in a hundred may lie a "
            "little above its claim by chance. EXCEEDS: a sound mechanism would look so with a chance "
            f"below {ALARM:g}."
        ),
        Text(NOT_REACHED),
    ]
    if plot is not None:
        parts.append(f"picture: {plot}")
    document = {**result.to_dict(), "plot": None if plot is None else str(plot)}
    show(as_json, document, *parts)
    return result.ok


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--epsilon must be numbers, as 0.1,1,4, not {text!r}") from None


def _data(
    file: Path,
    names: list[str] | None,
    person: str | None,
    per_row: bool,
    rows_per_person: int,
    removals: int | None,
    as_json: bool,
) -> bool:
    if person is None and not per_row:  # as its ledger says, if it has one
        person = person_column(Data.at(file))
    scores = read_scores(file, person=person, columns=layout_of(Data.at(file)))
    with counting("removing") as progress:
        result = audit_data(
            scores,
            rows_per_person=rows_per_person,
            only=names,
            removals=removals,
            progress=progress,
        )
    show(as_json, {"file": str(file), **result.to_dict()}, _changes(file, result))
    return result.ok


def _bounds(title: str, rows: list[Promise]) -> Table:
    bounds = table(
        ("what", "draws", "ε claimed", "ε measured ≥", "ratio", ""),
        ("what", ""),
        narrow=True,
        title=title,
    )
    before = ""
    for row in rows:
        name, before = "" if row.name == before else row.name, row.name
        bounds.add_row(
            name,
            f"{row.draws:,}",
            f"{row.epsilon:g}",
            f"{row.measured:.3f}",
            f"{row.ratio:.2f}",
            "EXCEEDS" if row.exceeds else "ok",
            style="bold red" if row.exceeds else None,
        )
    return bounds


def _changes(file: Path, result: Removals) -> Table:
    limit = result.rows_per_person
    tried = "all" if result.tried == result.possible else f"{result.tried:,}, at random, of the"
    counts = f" ({limit} rows of each count)" if limit > 1 else ""
    units = plural(result.possible, result.unit)
    changes = table(
        ("query", "largest change", "bound", "share", "others", ""),
        ("query", ""),
        narrow=True,
        title=f"{file}: {tried} {units} removed, one at a time{counts}",
        caption=f"Largest change of the exact sums when one {result.unit} is removed, in L1, beside the "
        "bound that the noise is made for. others: of that, what moved in rows that stayed; it "
        f"must be 0. {NOTE}",
    )
    for row in result.rows:
        changes.add_row(
            row.name,
            f"{row.largest:.6f}",
            f"{row.bound:g}",
            f"{row.share:.1%}",
            f"{row.others:g}",
            "EXCEEDS" if row.exceeds else "ok",
            style="bold red" if row.exceeds else None,
        )
    return changes
