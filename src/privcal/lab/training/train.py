"""Training: SGD with momentum and a cosine schedule, on one GPU or on the CPU."""

from __future__ import annotations

import io
import math
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privcal.data.files import read_toml, replacing
from privcal.lab.images import ImageSet
from privcal.lab.training.logits import Network, build, digest, network_logits
from privcal.trusted import records
from privcal.trusted.errors import InputError
from privcal.trusted.records import Between

# --- Training recipes: one small TOML file each ---------------------------------------------------

Colours = tuple[float, float, float]


def _below_one(name: str, value: float) -> float:
    if value == 1:
        raise InputError(f"{name} must be below 1")
    return value


def _above_zero(name: str, value: Colours) -> Colours:
    if min(value) <= 0:
        raise InputError(f"{name} must be above 0 for each colour: {value!r}")
    return value


@dataclass(frozen=True)
class Recipe:
    """Data set, network and settings of a training."""

    data: str
    """Name of the image set: CIFAR-10, CIFAR-100, ImageNet or Tiny-ImageNet."""
    network: str
    epochs: Annotated[int, Between(1)]
    batch: Annotated[int, Between(1)]
    learning_rate: Annotated[float, Between(0)]
    """First learning rate; it falls to zero along half a cosine."""
    momentum: Annotated[float, Between(0, 1), _below_one]
    weight_decay: Annotated[float, Between(0)]
    augment: Literal["shift", "resized-crop"]
    """`shift`: by up to an eighth of the side; `resized-crop`: a random part, enlarged. Both
    mirror half of the images."""
    mean: Colours
    std: Annotated[Colours, _above_zero]
    """Mean and standard deviation of the training pixels, in units of 255."""
    seed: Annotated[int, Between(0, 2**32 - 1)] = 0

    def __post_init__(self) -> None:
        records.check(self)


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if ".toml" in p.name)


def read_recipe(name: str | Path) -> Recipe:
    """The recipe of that name, or in that TOML file."""
    if str(name) in recipe_names():
        with as_file(_folder() / f"{name}.toml") as path:
            return records.read(Recipe, read_toml(path, "recipe"), f"recipe {name}")
    if Path(name).suffix == ".toml":
        return records.read(Recipe, read_toml(name, "recipe"), f"recipe {name}")
    raise InputError(
        f"there is no recipe {str(name)!r}; there are {', '.join(recipe_names())}, or a .toml file"
    )


def _folder() -> Any:
    return files("privcal.lab.training") / "recipes"


# --- Checkpoints: a network on disk, with its recipe, its progress and what is needed to go on ----

VERSION = 1


@dataclass
class Checkpoint:
    """A network, finished or under way."""

    recipe: Recipe
    classes: tuple[str, ...]
    side: int
    """Height and width in pixels of the images it was trained on."""
    data: str
    """Digest of the training images, so that a run is not continued with others."""
    weights: dict[str, Any]
    optimiser: dict[str, Any] | None
    """State of the optimiser; None once the training is finished."""
    step: int
    losses: float = 0.0
    """Sum of the losses in the epoch that is under way."""
    seconds: float = 0.0
    """Duration of the epoch that is under way, so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """A dictionary for each epoch: its number, loss, seconds, and accuracy where it was tested."""
    torch: str = str(torch.__version__)

    @property
    def finished(self) -> bool:
        return self.optimiser is None

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def trained_on(self) -> str:
        return self.recipe.data

    def about(self) -> dict[str, Any]:
        """Its part of an archive's provenance."""
        return {
            "network": self.recipe.network,
            "recipe": records.facts(self.recipe),
            "epochs": self.epochs,
            "seed": self.recipe.seed,
            "torch": self.torch,
        }

    def network(self, device: str) -> Network:
        recipe = self.recipe
        network = build(recipe.network, len(self.classes), recipe.mean, recipe.std)
        try:
            network.load_state_dict(self.weights)
        except RuntimeError:  # with a line for each weight
            raise InputError(f"the weights do not fit a {recipe.network}") from None
        network.to(device).eval()
        return network

    def save(self, path: Path) -> None:
        content = io.BytesIO()  # torch's own error about a full disk cannot be understood
        torch.save(
            {"version": VERSION, **vars(self), "recipe": records.facts(self.recipe)}, content
        )
        with replacing(path) as part:
            part.write_bytes(content.getbuffer())


def load_weights(path: Path, device: str = "cpu") -> Any:
    """Weights and plain values in a file of torch: one from elsewhere can run nothing here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's thoughts on unusual pickles
        return torch.load(path, map_location=device, weights_only=True)


def load_checkpoint(path: str | Path, device: str = "cpu") -> Checkpoint:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        content = load_weights(path, device)
        if content.pop("version") != VERSION:
            raise InputError(f"{path} was written by another version of privcal")
        recipe = records.read(Recipe, content.pop("recipe"), f"the recipe in {path}")
        return Checkpoint(recipe=recipe, **{**content, "classes": tuple(content["classes"])})
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a network that privcal trained, or is cut short ({type(error).__name__})"
        ) from None


# --- Training -------------------------------------------------------------------------------------

SAVE_EVERY = 120.0
"""Seconds between checkpoints: what an interruption can cost."""
REPORT_EVERY = 0.5
"""Seconds between reports of the loss: each one makes the device wait."""


@dataclass(frozen=True)
class Step:
    """Progress of a training."""

    epoch: int
    done: int
    total: int
    loss: float
    accuracy: float | None
    """Share of the test images right at the latest test."""


def train(
    recipe: Recipe,
    images: ImageSet,
    test: ImageSet,
    out: Path,
    *,
    device: str = "cpu",
    compiled: bool = False,
    save_every: float = SAVE_EVERY,
    progress: Callable[[Step], None] = lambda step: None,
) -> Checkpoint:
    """Train a network, or go on with the one in `out`; returns what it leaves there.

    It is tested ten times, the last time when it is finished, for the record alone.
    """
    for image_set, use in ((images, "training"), (test, "test")):
        if image_set.name != recipe.data:
            raise InputError(
                f"the recipe is for {recipe.data}, but the {use} images are {image_set.name}"
            )
        if image_set.classes != images.classes:
            raise InputError("training and test images have different classes")
    training = _Training(recipe, images, test, out, device, compiled)
    if not training.state.finished:
        with _deferred_signals() as stopped:
            training.run(lambda since: stopped() or since > save_every, stopped, progress)
    return training.state


class _Training:
    """A network, its optimiser and its batches."""

    def __init__(
        self,
        recipe: Recipe,
        images: ImageSet,
        test: ImageSet,
        out: Path,
        device: str,
        compiled: bool,
    ) -> None:
        self.recipe, self.test, self.out, self.device = recipe, test, out, device
        torch.manual_seed(recipe.seed)
        network = build(recipe.network, len(images.classes), recipe.mean, recipe.std).to(device)
        self.network = network
        self.optimiser = torch.optim.SGD(
            network.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.momentum > 0,
            fused=device.startswith("cuda"),
        )
        start = self.optimiser.state_dict()
        about = (recipe, images.classes, test.side, digest(images))
        self.state = Checkpoint(*about, weights=network.state_dict(), optimiser=start, step=0)
        if out.exists():
            self.state = _resume(out, self.state, device)
        if self.state.finished:
            return
        network.load_state_dict(self.state.weights)
        self.optimiser.load_state_dict(self.state.optimiser)
        self.batches = Batches(images, recipe.batch, recipe.augment, recipe.seed, device)
        # As graphs: a step of a small batch is a thousand launches, which take longer than the
        # work itself.
        self.forward = torch.compile(network, mode="reduce-overhead") if compiled else network
        torch.backends.cudnn.benchmark = True  # every batch has the same shape
        self.saved = self.began = time.monotonic()

    def run(
        self,
        due: Callable[[float], bool],
        stopped: Callable[[], bool],
        progress: Callable[[Step], None],
    ) -> None:
        """Train to the end or until `stopped`; save when `due`, given the seconds since."""
        state, length = self.state, len(self.batches)
        total = self.recipe.epochs * length
        tests = {round(self.recipe.epochs * k / 10) for k in range(1, 11)}
        accuracy: float | None = None
        reported = -math.inf
        while not state.finished:
            losses = torch.tensor(state.losses, dtype=torch.float64, device=self.device)
            self.network.train()
            first = state.step - state.epochs * length
            for pixels, labels in self.batches.epoch(state.epochs, first):
                learning_rate = rate(self.recipe.learning_rate, state.step, total)
                loss = self._step(pixels, labels, learning_rate)
                losses += loss
                state.step += 1
                if time.monotonic() - reported >= REPORT_EVERY or state.step == total:
                    progress(Step(state.epochs, state.step, total, float(loss), accuracy))
                    reported = time.monotonic()
                if state.step % length and due(time.monotonic() - self.saved):
                    state.losses = float(losses)
                    state.seconds += self._lap()
                    self._save()
                    if stopped():
                        return
            line = self._finish(float(losses) / length)
            if line["epoch"] in tests:
                predicted = network_logits(self.network, self.test, self.device).argmax(1)
                accuracy = line["accuracy"] = float((predicted == self.test.labels).mean())
                reported = -math.inf  # so the next step reports it, however soon that is
            if state.epochs == self.recipe.epochs:
                self._save(finished=True)
            elif due(time.monotonic() - self.saved):
                self._save()
                if stopped():
                    return

    def _step(self, pixels: Tensor, labels: Tensor, learning_rate: float) -> Tensor:
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        with precision(self.device):
            loss = F.cross_entropy(self.forward(pixels), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def _finish(self, loss: float) -> dict[str, Any]:
        """Close an epoch; returns its line of the history."""
        state = self.state
        if not math.isfinite(loss):
            raise InputError(
                f"the loss is no longer a number in epoch {state.epochs + 1}; "
                "use a smaller learning rate"
            )
        line = {"epoch": state.epochs + 1, "loss": loss, "seconds": state.seconds + self._lap()}
        state.losses = state.seconds = 0.0
        state.history.append(line)
        return line

    def _lap(self) -> float:
        before, self.began = self.began, time.monotonic()
        return self.began - before

    def _save(self, finished: bool = False) -> None:
        self.state.weights = self.network.state_dict()
        self.state.optimiser = None if finished else self.optimiser.state_dict()
        self.state.save(self.out)
        self.saved = time.monotonic()


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], bool]]:
    """Hold back the first SIGINT or SIGTERM until the block is left; yields whether one came.

    In the midst of a step nothing can be saved. A second signal takes effect at once.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where signals never come
        yield lambda: False
        return

    def note(sent: int, frame: object) -> None:
        received.append(sent)
        restore()

    def restore() -> None:
        for sent, handler in before.items():
            signal.signal(sent, handler)

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])


def rate(first: float, step: int, total: int) -> float:
    """Half a cosine from the first rate down to zero."""
    return first * 0.5 * (1 + math.cos(math.pi * step / total))


def _resume(out: Path, fresh: Checkpoint, device: str) -> Checkpoint:
    """The checkpoint in `out`, if it is of the same recipe and images as the fresh one."""
    saved = load_checkpoint(out, device)
    if saved.recipe != fresh.recipe:
        entries = records.facts(saved.recipe)
        changed = [k for k, value in records.facts(fresh.recipe).items() if value != entries[k]]
        raise InputError(
            f"{out} was begun with another recipe ({', '.join(changed)}); choose another name"
        )
    if (saved.data, saved.classes) != (fresh.data, fresh.classes):
        raise InputError(f"{out} was begun with other images; choose another name")
    return saved


# --- Training images, shuffled and augmented on the device ----------------------------------------
# The order of an epoch and how each of its images is changed are functions of the seed and the epoch
# alone, so that a run that was interrupted goes on as if it had not been.


def choose_device(name: str) -> str:
    """The device of that name, which must be there; for `auto`, a GPU if there is one."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name == "auto":
        return "cuda" if "cuda" in devices else "cpu"
    if name not in devices:
        raise InputError(f"there is no device {name!r} here; use auto or {' or '.join(devices)}")
    return name


def precision(device: str) -> Any:
    """bfloat16 where the GPU is fast at it; on a CPU it would be slower than plain numbers."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda"))


RESIDENT = 8 << 30
"""Bytes of pixels that are kept on the device for the whole training; larger sets are read as needed."""


class Batches:
    """Batches of an image set, epoch by epoch."""

    def __init__(self, images: ImageSet, batch: int, augment: str, seed: int, device: str) -> None:
        self.images, self.size, self.seed, self.device = images, batch, seed, device
        self.augment = _shift if augment == "shift" else _resized_crop
        self.labels = torch.from_numpy(images.labels).to(device)
        self.resident: Tensor | None = None
        if len(images) * images.side**2 * 3 <= RESIDENT:
            self.resident = torch.from_numpy(images.take(slice(None))).to(device)

    def __len__(self) -> int:
        """Number of batches in an epoch; the few images left over are others in every epoch."""
        return max(1, len(self.images) // self.size)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the `first` one on: pixels and labels."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.images), generator=random)
        draws = torch.rand((len(self.images), 5), generator=random).to(self.device)
        pieces = list(order.split(self.size))[first : len(self)]
        for rows, pixels in zip(pieces, self._pixels(pieces), strict=True):
            index = rows.to(self.device)
            yield self.augment(pixels, draws[index]), self.labels[index]

    def _pixels(self, pieces: list[Tensor]) -> Iterator[Tensor]:
        if self.resident is not None:
            for rows in pieces:
                yield self.resident[rows.to(self.device)]
            return
        # A few batches ahead of the device, no more: an epoch may be larger than memory.
        with ThreadPoolExecutor(1) as pool:
            ahead: deque[Future[NDArray[np.uint8]]] = deque()
            for rows in pieces:
                ahead.append(pool.submit(self.images.take, rows.numpy().astype(np.intp)))
                if len(ahead) > 3:
                    yield torch.from_numpy(ahead.popleft().result()).to(self.device)
            while ahead:
                yield torch.from_numpy(ahead.popleft().result()).to(self.device)


def _mirror(rows: Tensor, draw: Tensor) -> Tensor:
    """The images, those with a draw of 1/2 or more mirrored."""
    return torch.where((draw < 0.5)[:, None, None, None], rows, rows.flip(2))


def _shift(rows: Tensor, draws: Tensor) -> Tensor:
    """Each image moved by up to an eighth of its side in both directions, black beyond its edge."""
    count, side = rows.shape[0], rows.shape[1]
    most = side // 8
    wide = F.pad(rows, (0, 0, most, most, most, most))
    grid = torch.arange(side, device=rows.device)
    down = (draws[:, 0] * (2 * most + 1)).long()[:, None] + grid
    right = (draws[:, 1] * (2 * most + 1)).long()[:, None] + grid
    image = torch.arange(count, device=rows.device)[:, None, None]
    return _mirror(wide[image, down[:, :, None], right[:, None, :]], draws[:, 2])


def _resized_crop(rows: Tensor, draws: Tensor) -> Tensor:
    """A part of each image, of 1/4 to all of its area and 3:4 to 4:3, at 7/8 of its side."""
    side = rows.shape[1]
    area = 0.25 + 0.75 * draws[:, 0]
    ratio = torch.exp(math.log(4 / 3) * (2 * draws[:, 1] - 1))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros((len(rows), 2, 3), device=rows.device)
    theta[:, 0, 0], theta[:, 1, 1] = width, height
    theta[:, 0, 2] = (1 - width) * (2 * draws[:, 3] - 1)
    theta[:, 1, 2] = (1 - height) * (2 * draws[:, 4] - 1)
    small = side * 7 // 8
    grid = F.affine_grid(theta, [len(rows), 3, small, small], align_corners=False)
    parts = F.grid_sample(
        rows.permute(0, 3, 1, 2).float(), grid, padding_mode="border", align_corners=False
    )
    return _mirror(parts.round().to(torch.uint8).permute(0, 2, 3, 1), draws[:, 2])
