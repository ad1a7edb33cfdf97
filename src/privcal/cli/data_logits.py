"""`privcal data logits`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privcal.cli.console import note, progress_bar, show, stderr
from privcal.cli.data import frost_images, image_path
from privcal.cli.options import Device, Frost, Images, Json, Seed
from privcal.cli.systems import need_torch
from privcal.data.files import check_outputs
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.lab.images import ImageSet
    from privcal.lab.training.logits import Model


def logits(
    model: Annotated[
        Path,
        typer.Option(
            help="What `privcal data train` wrote; with --network, weights from elsewhere "
            "(.safetensors, or a state dict)."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="The archive (.npz); with several severities, {severity} in its name."),
    ],
    data: Images = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Of weights from elsewhere: wrn-28-10 (or wrn-DEPTH-WIDTH), resnet-50, resnet-50-64."
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="R,G,B",
            help="With --network: what it subtracts from pixels in [0, 1]; by default the data "
            "set's usual mean.",
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="With --network: what it divides them by."),
    ] = None,
    corruptions: Annotated[str, typer.Option(help="all, none, or some, as a,b,c.")] = "all",
    severities: Annotated[str, typer.Option(help="1 to 5, as 5 or 1,3 or 1-5.")] = "5",
    corrupted: Annotated[
        Path | None,
        typer.Option(
            help="A published archive (CIFAR-10-C, ImageNet-C ...); by default the corruptions "
            "are made here."
        ),
    ] = None,
    frost: Frost = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Ask a network about the test images, clean and corrupted, and write what it says.

    The archive holds float16 logits for `clean` and each corruption, the labels, and in `meta`
    where it all comes from. Corruptions are made here for images of 32 and 64 pixels; for larger
    ones give the published archive. Needs torch. A severity of CIFAR-10-C (16 times 10,000 images)
    takes 10 seconds on an H200 and 6 hours on two CPU cores; the same command goes on after an
    interruption. An archive that is there is never replaced by another.

    Weights from elsewhere may have torchvision's names (ResNet-50) or those of the usual Wide ResNets
    for PyTorch. Their outputs are taken to be the data set's classes in its own order; look at the
    accuracy on `clean`.

    Examples:

    `privcal data logits --model cifar10.pt --out cifar10c.npz`

    `privcal data logits --model cifar10.pt --severities 1-5 --out 'cifar10c-{severity}.npz'`

    `privcal data logits --model cifar10.pt --corrupted CIFAR-10-C --out official.npz`

    `privcal data logits --model resnet50.safetensors --network resnet-50 --data imagenet --corrupted
    ImageNet-C --out imagenetc.npz`
    """
    need_torch()
    import torch

    from privcal.lab.corruptions import CORRUPTIONS, corrupt
    from privcal.lab.images import open_corrupted
    from privcal.lab.training.logits import ArchiveSpec, make_archive
    from privcal.lab.training.train import choose_device
    from privcal.planning.simulate.archive import CLEAN

    if corrupted is not None and frost is not None:
        raise InputError("--frost is for corruptions made here, not for those of --corrupted")
    outs = _archive_paths(out, _severities(severities))
    check_outputs(list(outs.values()), [model])
    whole("seed", seed, 0)
    device = choose_device(device)
    if network is None:
        if mean or std:
            raise InputError("--mean and --std go with --network: others have their own")
        trained, images = _trained(model, data)
    else:
        trained, images = _pretrained(
            model, data, network, _three("mean", mean), _three("std", std)
        )
    archive = None if corrupted is None else open_corrupted(corrupted)
    shifts = [CLEAN, *_chosen(corruptions, archive.corruptions if archive else CORRUPTIONS)]
    if archive is None and len(shifts) > 1 and images.side not in (32, 64):
        raise InputError(
            "corruptions are made here for images of 32 and 64 pixels; "
            "give the published archive with --corrupted"
        )
    photographs = frost_images(frost) if archive is None and "frost" in shifts else None
    if photographs is not None:  # too small ones are refused before the work
        corrupt(torch.from_numpy(images.take(slice(0, 1))), "frost", 1, frost=photographs)
    written: dict[str, Any] = {}
    with progress_bar() as bar:
        task = bar.add_task("starting", total=len(outs) * len(shifts) * len(images))
        for severity, path in outs.items():

            def progress(shift: str, rows: int, severity: int = severity) -> None:
                bar.update(task, description=f"{shift} {severity}", advance=rows)

            spec = ArchiveSpec(trained, images, severity, archive, photographs, seed)
            written[str(path)] = make_archive(spec, shifts, path, device=device, progress=progress)
    show(as_json, written, *(f"{name}; next: privcal data check {name}" for name in written))


def _trained(path: Path, data: Path | None) -> tuple[Model, ImageSet]:
    """A network that privcal trained, and its test images."""
    from privcal.lab.images import open_images
    from privcal.lab.training.train import load_checkpoint

    try:
        checkpoint = load_checkpoint(path)
    except InputError as error:
        if path.is_file():
            raise InputError(f"{error}; weights from elsewhere need --network") from None
        raise
    if not checkpoint.finished:
        note(
            f"note: {path} is not trained to the end "
            f"({checkpoint.epochs} of {checkpoint.recipe.epochs} epochs)"
        )
    with stderr.status("reading the images"):
        return checkpoint, open_images(image_path(checkpoint.recipe.data, data), "test")


def _pretrained(
    path: Path,
    data: Path | None,
    network: str,
    mean: list[float] | None,
    std: list[float] | None,
) -> tuple[Model, ImageSet]:
    """A network trained elsewhere, for these test images."""
    from privcal.lab.images import open_images
    from privcal.lab.training.pretrained import load_pretrained

    with stderr.status("reading the images"):
        usual = "CIFAR-10" if network.startswith("wrn") else "ImageNet"
        images = open_images(image_path(usual, data), "test")
    return load_pretrained(path, network, images, mean, std), images


def _three(name: str, text: str | None) -> list[float] | None:
    """Three numbers, one for each colour."""
    if text is None:
        return None
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = []
    low = 0 if name == "mean" else 1e-6
    if len(values) != 3 or not all(low <= value <= 1e6 for value in values):
        raise InputError(
            f"--{name} must be three numbers for pixels in [0, 1], as .5,.5,.5, not {text!r}"
        )
    return values


def _archive_paths(out: Path, severities: list[int]) -> dict[int, Path]:
    """The archive of each severity."""
    if out.suffix != ".npz":
        raise InputError(f"an archive's name must end in .npz, not {out.name}")
    if len(severities) > 1 and "{severity}" not in str(out):
        raise InputError("with several severities, --out must contain {severity}")
    return {level: Path(str(out).replace("{severity}", str(level))) for level in severities}


def _chosen(text: str, every: Sequence[str]) -> list[str]:
    """The corruptions that are asked for, each once."""
    names = {"all": list(every), "none": []}.get(text, [name.strip() for name in text.split(",")])
    return list(dict.fromkeys(known("corruption", name, every) for name in names))


def _severities(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    parts = [part.strip() for part in ([first, last] if dash else text.split(","))]
    if set(parts) <= set("12345"):
        levels = [int(part) for part in parts]
        levels = list(range(levels[0], levels[-1] + 1)) if dash else sorted(set(levels))
        if levels:
            return levels
    raise InputError(f"severities are 1 to 5, as 5 or 1,3 or 1-5, not {text!r}")
