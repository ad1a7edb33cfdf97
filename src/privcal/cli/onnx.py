"""`privcal onnx`: a map as a file of ONNX, alone or behind a model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from privcal.calibration.maps import Map, load_map
from privcal.cli.console import note, show
from privcal.cli.options import Json
from privcal.data.files import check_outputs
from privcal.trusted.errors import InputError


def onnx(
    map: Annotated[Path, typer.Argument(help="A map written by calibrate, refine or fit.")],
    out: Annotated[Path, typer.Option(help="Where to write the ONNX file.")],
    append: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="An ONNX model: the map is put behind its scores."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="With --append: which of its outputs holds the scores of classes."),
    ] = None,
    holds: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="logits|probabilities",
            help="What the scores are. For a model, needed where its last operator leaves that open; a map "
            "alone takes logits where nothing is said.",
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="For a map alone: the number of classes.")
    ] = None,
    column: Annotated[
        bool,
        typer.Option(
            "--column", help="For a map alone: it is given one column, about class 1 of two."
        ),
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            metavar="float16|float32|float64", help="For a map alone: the type of its input."
        ),
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Write a map as ONNX, to run wherever a model does: alone, or as part of the model's own file.

    The file gives `probabilities`, `confidence`, `predicted` and, of a map of a risk, `risk`. Behind a
    model, whose inputs and outputs stay as they are, these are called `calibrated_probabilities` and so
    on. What is written was run beside the map first.

    Example: `privcal onnx map.json --append model.onnx --out calibrated.onnx`

    Example: `privcal onnx map.json --classes 10 --out map.onnx`
    """
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        raise InputError("this needs ONNX: pip install 'privcal[onnx]'")
    if holds not in (None, "logits", "probabilities"):
        raise InputError(f"--as must be logits or probabilities, not {holds!r}")
    if append is None and output is not None:
        raise InputError("--output names an output of the model to --append to")
    if append is not None and (classes is not None or column or precision != "float32"):
        raise InputError(
            "--classes, --column and --precision are for a map alone, without --append"
        )
    check_outputs([out], [map, append])
    from privcal.adapters import onnx as files

    loaded = load_map(map)
    if append is None:
        model = files.export(
            loaded,
            kind=holds,  # type: ignore[arg-type]
            classes=classes,
            column=column,
            precision=precision,  # type: ignore[arg-type]
        )
        before = 0
    else:
        _check_model(loaded, append)
        given = files.read_model(append)
        before = len(given.graph.output)
        model = files.append(loaded, given, output=output, kind=holds)  # type: ignore[arg-type]
    files.save(out, model, loaded)
    if loaded.stays_at_home:
        note("note: this map holds exact rows and stays here, and so does the file with it")
    added = [value.name for value in model.graph.output][before:]
    inputs = [value.name for value in model.graph.input]
    document = {"out": str(out), "map": loaded.kind, "inputs": inputs, "outputs": added}
    what = loaded.describe() if append is None else f"{append} with {loaded.describe()}"
    show(as_json, document, f"{what}, written to {out}; it gives {', '.join(added)}")


def _check_model(map: Map, file: Path) -> None:
    """Refuse another file than that of the model whose scores the map was made of, where it says so."""
    from privcal.data.scoring import model_name

    if (map.model or "").startswith("sha256:") and file.is_file():
        map.check_model(model_name(file))
