"""`privcal thresholds`: when to answer at all, read off a map."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from privcal.calibration.maps import load_map
from privcal.calibration.thresholds import USUAL, abstention
from privcal.cli.console import note, plural, show, table
from privcal.cli.options import Classes, Columns, Json, columns_of, words
from privcal.data.readers import model_of, read_outputs
from privcal.trusted.errors import InputError


def thresholds(
    map: Annotated[Path, typer.Argument(help="A map written by calibrate, refine or fit.")],
    scores: Annotated[Path, typer.Argument(help="Scores as they come; labels are not looked at.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="C,C,...", help="The confidences to try, each from 0 to 1."),
    ] = None,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """When to answer at all: for each confidence, the share of rows above it and the errors to expect.

    It is the map's own confidence on these rows that says so: right where the map is calibrated on rows
    like these. Count errors on labelled rows now and then: a share several deviations off says that
    the map no longer fits.

    Example: `privcal thresholds map.json scores.parquet --at 0.8,0.9,0.95`
    """
    loaded = load_map(map)
    loaded.check_model(model_of(scores))
    outputs = read_outputs(scores, columns=columns_of(columns), class_names=words(classes))
    found = abstention(loaded, outputs, thresholds=USUAL if at is None else _numbers(at))
    rows = table(["answer where confidence is at least", "answered", "errors expected"], [])
    for row in found:
        error = (
            "-"
            if row.expected_error is None
            else f"{100 * row.expected_error:.1f} % ± {100 * (row.deviation or 0):.1f}"
        )
        share = "-" if row.answered is None else f"{100 * row.answered:.1f} %"
        rows.add_row(f"{row.confidence:g}", share, error)
    if loaded.stays_at_home:
        note("note: this map holds exact rows and stays here, and so does what it gives")
    document = {"rows": outputs.rows, "thresholds": [asdict(row) for row in found]}
    said = f"of {plural(outputs.rows, 'row')}, by {loaded.describe()}; ± is one standard deviation"
    show(as_json, document, rows, said)


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in words(text) or ()]
    except ValueError:
        raise InputError(f"--at must be numbers from 0 to 1 with commas, not {text!r}") from None
