"""`privcal apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privcal.calibration import application
from privcal.calibration.maps import load_map
from privcal.cli.console import counting, note, plural, show
from privcal.cli.options import Classes, Columns, Json, columns_of, words
from privcal.data.columns import Layout
from privcal.data.files import check_outputs
from privcal.data.tables import read_with


def apply(
    map: Annotated[Path, typer.Argument(help="A map written by calibrate, refine or fit.")],
    scores: Annotated[Path, typer.Argument(help="Scores; labels are not needed.")],
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv, .npz or .npy.")],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probabilities of all classes too.")
    ] = False,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Apply a map: predicted class and calibrated confidence of each row, in the same order.

    All other columns are kept. Where labels are among them, `correct` says whether each prediction is
    right, and `privcal evaluate` reads the result. A map of a risk adds the risk of its class, and
    predicts the class that is the most probable by it. Files may be larger than memory.

    Example: `privcal apply map.json scores.npz --out calibrated.parquet`
    """
    application.check_written(out, probabilities)
    check_outputs([out, *application.beside(out)], [map, *read_with(scores)])
    loaded = load_map(map)
    layout = Layout.of(columns_of(columns), words(classes))
    total = application.rows_of(scores)
    with counting(f"applying {map.name}") as done:
        parts = application.batches(loaded, scores, layout, probabilities)
        rows, names = application.write(out, parts, lambda rows: done(rows, total or rows))
    if loaded.stays_at_home:
        note("note: this map holds exact rows and stays here, and so does what it gives")
    document = {"rows": rows, "out": str(out), "columns": names}
    show(as_json, document, f"{plural(rows, 'row')} written to {out}")
