"""`privcal sketch`: merge, show, fit."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from privcal.cli.console import Json, human, print_json
from privcal.errors import InputError
from privcal.files import check_outputs
from privcal.plots import check_picture, save_private_reliability
from privcal.readers import read_scores
from privcal.sketch.report import document, headline, tell
from privcal.sketch.sketch import Sketch
from privcal.sketch.sketch import merge as merge_sketches

app = typer.Typer(
    no_args_is_help=True,
    help="A sketch: noisy answers that were saved. Merging and reading them costs no privacy.",
)

File = Annotated[Path, typer.Argument(metavar="SKETCH", help="A sketch (JSON).")]
Public = Annotated[
    Path | None,
    typer.Option(
        help="Your own clean labelled scores, those the sketch was taken with. These rows get no "
        "privacy: the map depends on them exactly."
    ),
]
Plot = Annotated[
    Path | None, typer.Option(help="Estimated reliability diagram (.png, .svg, .pdf).")
]


@app.command()
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
    human(as_json).print(
        f"{len(merged.answers)} answers of {len(merged.spent)} sources written to {out}"
    )
    if as_json:
        print_json({"out": str(out), "answers": len(merged.answers), "spent": merged.spent})


@app.command()
def show(file: File, as_json: Json = False) -> None:
    """What is in a sketch: the question, the answers, ε at each source, the noisy totals.

    Example: `privcal sketch show all.json`
    """
    sketch = Sketch.load(file)
    count = len(sketch.answers)
    deviation = count * math.sqrt(sketch.noise_variance)
    console = human(as_json)
    console.print(str(file), style="bold")
    console.print(f"asks {sketch.query.describe()}; model: {sketch.model or 'not said'}")
    answers = Table(title=f"{count} answers", box=box.SIMPLE_HEAD)
    for name in ("source", "asker", "campaign", "ε", "rows per person"):
        answers.add_column(name, justify="right" if name in ("ε", "rows per person") else "left")
    for entry in sketch.answers:
        answers.add_row(
            entry.source,
            entry.asker,
            entry.campaign,
            f"{entry.nano_epsilon / 1e9:g}",
            str(entry.rows_per_person),
        )
    console.print(answers)
    times = Counter(entry.who for entry in sketch.answers)
    for (_, count_of), (source, epsilon) in zip(times.items(), sketch.spent.items(), strict=True):
        if count_of > 1:
            console.print(f"{source} answered {count_of} times, for ε = {epsilon:g} in all")
    knots = sketch.query.knots
    totals = [float(v) for v in sketch.average * count]
    table = Table(
        title="Noisy totals around each score: not counts",
        caption=f"Each number has noise of standard deviation {deviation:.3g}, and may be negative.",
        box=box.SIMPLE_HEAD,
    )
    for name in ("score (log-odds)", "confidence", "wrong", "right"):
        table.add_column(name, justify="right")
    for knot, wrong, right in zip(knots, totals[: len(knots)], totals[len(knots) :], strict=True):
        confidence = 1 / (1 + math.exp(-knot))
        table.add_row(
            f"{knot:g}", f"{confidence:.3g}", *(_rounded(v, deviation) for v in (wrong, right))
        )
    console.print(table)
    if as_json:
        print_json(
            {
                "file": str(file),
                "query": sketch.query.to_dict(),
                "model": sketch.model,
                "answers": [
                    {
                        "source": entry.source,
                        "asker": entry.asker,
                        "campaign": entry.campaign,
                        "epsilon": entry.nano_epsilon / 1e9,
                        "rows_per_person": entry.rows_per_person,
                    }
                    for entry in sketch.answers
                ],
                "spent": sketch.spent,
                "noisy_totals": {"wrong": totals[: len(knots)], "right": totals[len(knots) :]},
                "noise_deviation": deviation,
            }
        )


@app.command()
def fit(
    file: File,
    out: Annotated[Path, typer.Option(help="Where to write the map (JSON).")],
    public: Public = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """The map that a sketch gives, and how good confidence is estimated to be.

    Example: `privcal sketch fit all.json --public clean.npz --out map.json`
    """
    outputs = [path for path in (out, plot) if path is not None]
    check_outputs(outputs, [file, *([] if public is None else [public])])
    check_picture(plot)
    sketch = Sketch.load(file)
    clean = None if public is None else read_scores(public)
    fitted = sketch.fit(clean)
    evaluation = fitted.evaluate()
    fitted.map.save(out)
    if plot is not None:
        save_private_reliability(plot, evaluation, file.name, sketch.epsilon)
    console = human(as_json)
    console.print(
        f"a curve from {len(sketch.answers)} answers of {len(sketch.spent)} sources, each charged "
        f"at most epsilon {sketch.epsilon:g}; map written to {out}"
    )
    tell(console, evaluation, sketch.epsilon)
    if plot is not None:
        console.print(f"reliability diagram, {headline(sketch.epsilon)}: {plot}")
    if as_json:
        print_json(
            {
                "out": str(out),
                "map": fitted.map.to_dict(),
                "evaluation": document(evaluation, sketch.epsilon),
            }
        )


def _rounded(value: float, deviation: float) -> str:
    """To a tenth of the noise: more digits would be noise alone."""
    places = 1 - math.floor(math.log10(deviation))
    return f"{round(value, places):,.{max(places, 0)}f}"
