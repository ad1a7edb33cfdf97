"""`privcal score`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privcal.calibration.application import rows_of
from privcal.cli.console import note, plural, progress_bar, show
from privcal.cli.options import Json, PerRow, Person, words
from privcal.data import opening
from privcal.data.files import check_outputs
from privcal.data.place import Data
from privcal.data.tables import ending
from privcal.trusted.checks import one_of
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.data.scoring import Model, Setup

Features = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="The columns that the model takes as one matrix, in order; not needed where it takes "
        "each column by its name.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…", help="The classes in order, where the model does not say their names."
    ),
]
Output = Annotated[
    str | None, typer.Option(help="The model's output with the scores, where it has several.")
]
As = Annotated[
    str | None,
    typer.Option("--as", help="logits or probabilities, where the model leaves that open."),
]
Missing = Annotated[
    bool,
    typer.Option(
        "--allow-missing",
        help="Blank cells go to the model, as NaN or empty text: for one that fills them in.",
    ),
]


def score(
    model: Annotated[Path, typer.Argument(help="An ONNX model.")],
    tables: Annotated[
        list[Path], typer.Argument(help="Tables of features: .parquet, .csv, or .npz with x.")
    ],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column of the true classes.")],
    out: Annotated[
        Path,
        typer.Option(help="Where to write: .parquet or .csv; for several tables, a folder."),
    ],
    person: Person = None,
    per_row: PerRow = False,
    features: Features = None,
    classes: Classes = None,
    keep: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns to carry along, such as hospital.")
    ] = None,
    output: Output = None,
    kind: As = None,
    missing: Missing = False,
    skip_malformed: Annotated[
        bool,
        typer.Option(
            "--skip-malformed", help="Leave malformed rows out, rather than stop at the first."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a table through a model: labelled scores, which calibrate, advise and the others read.

    Each row is run alone, so that its scores depend on no other row. The model's name is its file's
    SHA-256, which Parquet files of scores carry along.

    Example: `privcal score model.onnx visits.parquet --label died --person patient_id
    --out scores.parquet`
    """
    from privcal.data.scoring.run import score_table

    outs = _outs(tables, out)
    check_outputs(outs, [model, *tables])
    if (person is None) != per_row:
        raise InputError(
            "say whom a row is about: --person COLUMN (a person may have several rows) or "
            "--per-row (each row is a person of its own)"
        )
    said = setup_of(label, features, classes, output, kind, missing)
    assert said is not None
    setup = replace(said, person=person)
    opened = setup.open(model)
    written = []
    for table, file in zip(tables, outs, strict=True):
        with progress_bar() as bar:
            task = bar.add_task(f"scoring {table.name}", total=rows_of(table))
            rows, left = score_table(
                opened,
                table,
                file,
                setup,
                keep=words(keep) or (),
                skip_malformed=skip_malformed,
                progress=lambda done, task=task, bar=bar: bar.update(task, completed=done),  # type: ignore[misc]
            )
        if notes := opening.notes_of(Data.at(table)):
            note(
                f"note: {table} has a ledger, and its scores are about the same people: before anybody "
                f"asks them, run privcal ledger attach {table} {file}"
                + ("" if None in (person, notes[0].person) else " --person person")
            )
        written.append({"table": str(table), "out": str(file), "rows": rows, "left_out": left})
    _report(opened, written, as_json)


def setup_of(
    label: str | None,
    features: str | None,
    classes: str | None,
    output: str | None,
    kind: str | None,
    missing: bool,
) -> Setup | None:
    """How a table goes through a model, as options say it; None where they say nothing."""
    from privcal.data.scoring import Setup

    columns, names = (
        None if text is None else tuple(words(text) or ()) for text in (features, classes)
    )
    said: Any = None if kind is None else one_of("--as", kind, ("logits", "probabilities"))
    if label is None:
        if any(value is not None for value in (columns, names, output, said)) or missing:
            raise InputError("say with --label which column holds the true classes")
        return None
    return Setup(label, None, columns, names, output, said, missing)


def _outs(tables: list[Path], out: Path) -> list[Path]:
    """The file of scores for each table."""
    if len(tables) == 1 and not out.is_dir():
        return [out]
    if out.is_file() or ending(out) in (".parquet", ".csv"):
        raise InputError(f"the scores of {len(tables)} tables need a folder; {out} names a file")
    out.mkdir(parents=True, exist_ok=True)
    return [out / f"{table.name.removesuffix(ending(table))}.parquet" for table in tables]


def _report(model: Model, written: list[dict[str, Any]], as_json: bool) -> None:
    lines = [f"model {model.name}: {model.kind} of {', '.join(model.classes)}"]
    for file in written:
        left = f", {plural(file['left_out'], 'malformed row')} left out" if file["left_out"] else ""
        lines.append(f"{plural(file['rows'], 'row')} written to {file['out']}{left}")
    if any(file["out"].lower().endswith(".csv") for file in written):
        note("note: a CSV cannot say which model its scores are of; a .parquet does")
    facts = {
        "model": model.name,
        "kind": model.kind,
        "classes": list(model.classes),
        "tables": written,
    }
    show(as_json, facts, *lines)
