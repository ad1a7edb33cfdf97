"""`privcal fit`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

import privcal
from privcal.calibration.fit import fit_temperature
from privcal.calibration.maps import TemperatureMap
from privcal.cli.console import note, show
from privcal.cli.options import Classes, Columns, Json, columns_of, words
from privcal.data.files import check_outputs
from privcal.data.readers import read_scores
from privcal.data.sources import warn_of_exact_figures
from privcal.data.wording import schema_of


def fit(
    scores: Annotated[Path, typer.Argument(help="Labelled scores.")],
    objective: Annotated[str, typer.Option(help="nll, accuracy or ece.")] = "nll",
    bounds: Annotated[
        tuple[float, float], typer.Option(help="Range of temperatures: lower and upper.")
    ] = (0.05, 20.0),
    out: Annotated[Path | None, typer.Option(help="Write the map (JSON).")] = None,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """The exact temperature, without privacy: the rows decide every digit of it.

    Example: `privcal fit scores.npz --objective nll --out map.json`
    """
    check_outputs([] if out is None else [out], [scores])
    data = read_scores(scores, columns=columns_of(columns), class_names=words(classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below
        fitted = fit_temperature(data, objective, bounds)  # type: ignore[arg-type]
    if out is not None:
        TemperatureMap(fitted.temperature, private=False).with_provenance(
            method=f"exact fit by {objective}", **schema_of([data]), privcal=privcal.__version__
        ).save(out)
    if fitted.outside:
        note(f"note: {fitted.message}")
    document = {
        "temperature": fitted.temperature,
        "objective": objective,
        "value": fitted.value,
        "outside": fitted.outside,
        "private": False,
        "has_ledger": warn_of_exact_figures(scores, note),
    }
    show(as_json, document, f"temperature {fitted.temperature:.6f}, {objective} {fitted.value:.6g}")
