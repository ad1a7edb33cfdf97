"""`privcal data pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privcal.cli.console import show
from privcal.cli.options import Json
from privcal.data.datasets import pack as write
from privcal.data.files import check_outputs
from privcal.trusted.errors import InputError


def pack(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[SHIFT=]FILE",
            help="A file of logits for each shift, which by default is called as its file: "
            "fog.npy, clean=original.csv.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The archive (.npz).")],
    dataset: Annotated[
        str, typer.Option(help="Its name, such as CIFAR-10-C, CIFAR-100-C or ImageNet-C.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help=".npy, .npz with `labels`, or a table with a column `label`; by default each file "
            "holds its own."
        ),
    ] = None,
    severity: Annotated[int | None, typer.Option(help="1 to 5, where shifts have one.")] = None,
    network: Annotated[
        str | None, typer.Option(help="What computed the logits, in your own words.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack logits that were computed elsewhere into an archive that a study reads.

    Files are .npy (rows × classes), .npz with `logits`, Parquet or CSV with columns logit_0, logit_1,
    …; all of the same rows in the same order, without missing values. `clean` is the shift of the
    unperturbed rows. The archive holds them as float32 (float16 stays) and says in `meta` that they
    were given, not computed here, with the name and a digest of each file. No torch.

    Example: `privcal data pack clean.npy fog.npy --labels labels.npy --dataset CIFAR-10-C --severity 5
    --network "ResNet-18, ours" --out mine.npz`
    """
    shifts: dict[str, Path] = {}
    for text in files:
        before, given, after = text.partition("=")
        name, path = (before, Path(after)) if given else (Path(text).name.split(".")[0], Path(text))
        if name in shifts:
            raise InputError(f"shift {name!r} is given twice: {shifts[name]} and {path}")
        shifts[name] = path
    if out.suffix != ".npz":
        raise InputError(f"an archive's name must end in .npz, not {out.name}")
    check_outputs([out], [*shifts.values(), labels])
    if out.exists():
        raise InputError(f"{out} is there; delete it, or rename --out")
    meta = write(shifts, out, dataset=dataset, labels=labels, severity=severity, network=network)
    show(as_json, {str(out): meta}, f"{out}; next: privcal data check {out}")
