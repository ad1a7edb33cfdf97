"""`privcal apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.cli.console import note, plural, show
from privcal.cli.options import Json
from privcal.files import check_outputs, write_columns
from privcal.maps import RiskMap, load_map
from privcal.readers import read_outputs


def apply(
    map: Annotated[Path, typer.Argument(help="A map written by calibrate, refine or fit.")],
    scores: Annotated[Path, typer.Argument(help="Scores; labels are not needed.")],
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv or .npz.")],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probabilities of all classes too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply a map: predicted class and calibrated confidence of each row, in the same order.

    A map of a risk adds the risk of its class, and predicts the class that is the most probable by it.

    Example: `privcal apply map.json scores.npz --out calibrated.parquet`
    """
    check_outputs([out], [map, scores])
    loaded = load_map(map)
    outputs = read_outputs(scores)
    columns: dict[str, Any] = {
        "predicted": loaded.predict(outputs),
        "confidence": loaded.confidence(outputs),
    }
    if isinstance(loaded, RiskMap):
        columns["risk"] = loaded.risk(outputs)
    if probabilities:
        table = loaded.predict_proba(outputs)
        columns |= {f"probability_{j}": table[:, j] for j in range(outputs.classes)}
    write_columns(out, columns)
    if loaded.stays_at_home:
        note("note: this map holds exact rows and stays here, and so does what it gives")
    document = {"rows": outputs.rows, "out": str(out), "columns": list(columns)}
    show(as_json, document, f"{plural(outputs.rows, 'row')} written to {out}")
