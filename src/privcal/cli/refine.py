"""`privcal refine`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from privcal.calibration.maps import load_map, percent
from privcal.calibration.refinement import refine as refined_by
from privcal.cli.console import plural, show
from privcal.cli.options import Classes, Columns, Json, columns_of, words
from privcal.data.files import check_outputs
from privcal.data.readers import read_scores


def refine(
    map: Annotated[Path, typer.Argument(help="The shared map, of a sketch.")],
    scores: Annotated[Path, typer.Argument(help="Labelled scores of your own.")],
    out: Annotated[Path, typer.Option(help="Where to write the map that stays here (JSON).")],
    force: Annotated[
        bool, typer.Option("--force", help="Refine with fewer than 30 rows, too.")
    ] = False,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Fit a shared map to your own rows as well. Nothing leaves, so it costs no ε.

    The result holds your rows exactly: use it here, and give it to nobody.

    Example: `privcal refine map.json own.parquet --out own-map.json`
    """
    check_outputs([out], [map, scores])
    shared = load_map(map)
    own = read_scores(scores, columns=columns_of(columns), class_names=words(classes))
    refined = refined_by(shared, own, force=force)
    refined.save(out)
    facts = refined.provenance
    rows, alike = facts["rows"], facts["like_the_others"]
    document = {
        "out": str(out),
        "rows": rows,
        "like_the_others": alike,
        "private": refined.private,
        "stays_at_home": refined.stays_at_home,
    }  # not the map: what is printed ends up in logs
    show(
        as_json,
        document,
        f"refined with {plural(rows, 'own row')}; map written to {out}",
        Text(f"Probability that your rows are like those of the other sources: {percent(alike)}."),
        Text(
            "The map holds your rows exactly, without privacy: use it here, and let neither it nor "
            "what it says of other people's inputs leave.",
            style="dim",
        ),
    )
