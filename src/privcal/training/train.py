"""Training: SGD with momentum and a cosine schedule, on one GPU or on the CPU."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from privcal.datasets.images import Images
from privcal.errors import InputError
from privcal.training.batches import Batches
from privcal.training.checkpoint import Checkpoint, load_checkpoint
from privcal.training.devices import precision
from privcal.training.logits import digest, network_logits
from privcal.training.networks import build
from privcal.training.recipe import Recipe

SAVE_EVERY = 120.0
"""Seconds between checkpoints: what an interruption can cost."""
LOOK_EVERY = 0.5
"""Seconds between readings of the loss: each one makes the device wait."""


@dataclass(frozen=True)
class Step:
    """Where a training stands."""

    epoch: int
    done: int
    total: int
    loss: float
    accuracy: float | None
    """Of the latest test, a fraction."""


def train(
    recipe: Recipe,
    images: Images,
    test: Images,
    out: Path,
    *,
    device: str = "cpu",
    compiled: bool = False,
    save_every: float = SAVE_EVERY,
    progress: Callable[[Step], None] = lambda step: None,
) -> Checkpoint:
    """Train a network, or go on with the one in `out`; returns it and leaves it there.

    The test images are looked at ten times on the way and once at the end, for the record alone.
    """
    for one, use in ((images, "training"), (test, "test")):
        if one.name != recipe.data:
            raise InputError(
                f"the recipe is for {recipe.data}, but the {use} images are {one.name}"
            )
        if one.classes != images.classes:
            raise InputError("training and test images have different classes")
    training = _Training(recipe, images, test, out, device, compiled)
    if not training.now.finished:
        with _at_the_next_step() as stopped:
            training.run(lambda since: stopped() or since > save_every, stopped, progress)
    return training.now


class _Training:
    """A network under way."""

    def __init__(
        self, recipe: Recipe, images: Images, test: Images, out: Path, device: str, compiled: bool
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
        self.now = Checkpoint(*about, weights=network.state_dict(), optimiser=start, step=0)
        if out.exists():
            self.now = _continued(out, self.now, device)
        if self.now.finished:
            return
        network.load_state_dict(self.now.weights)
        self.optimiser.load_state_dict(self.now.optimiser)
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
        """To the end, or until `stopped`; kept whenever it is `due`, given the seconds since."""
        now, length = self.now, len(self.batches)
        total = self.recipe.epochs * length
        tests = {round(self.recipe.epochs * k / 10) for k in range(1, 11)}
        accuracy: float | None = None
        looked = -math.inf
        while not now.finished:
            losses = torch.tensor(now.losses, dtype=torch.float64, device=self.device)
            self.network.train()
            for pixels, labels in self.batches.epoch(now.epochs, now.step - now.epochs * length):
                loss = self._step(pixels, labels, rate(self.recipe.learning_rate, now.step, total))
                losses += loss
                now.step += 1
                if time.monotonic() - looked >= LOOK_EVERY or now.step == total:
                    progress(Step(now.epochs, now.step, total, float(loss), accuracy))
                    looked = time.monotonic()
                if now.step % length and due(time.monotonic() - self.saved):
                    now.losses = float(losses)
                    now.seconds += self._lap()
                    self._keep()
                    if stopped():
                        return
            line = self._finish(float(losses) / length)
            if line["epoch"] in tests:
                said = network_logits(self.network, self.test, self.device).argmax(1)
                accuracy = line["accuracy"] = float((said == self.test.labels).mean())
                looked = -math.inf  # so the next step reports it, however soon that is
            if now.epochs == self.recipe.epochs:
                self._keep(finished=True)
            elif due(time.monotonic() - self.saved):
                self._keep()
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
        """The line of an epoch that is over."""
        now = self.now
        if not math.isfinite(loss):
            raise InputError(
                f"the loss is no longer a number in epoch {now.epochs + 1}; "
                "use a smaller learning rate"
            )
        line = {"epoch": now.epochs + 1, "loss": loss, "seconds": now.seconds + self._lap()}
        now.losses = now.seconds = 0.0
        now.history.append(line)
        return line

    def _lap(self) -> float:
        before, self.began = self.began, time.monotonic()
        return self.began - before

    def _keep(self, finished: bool = False) -> None:
        self.now.weights = self.network.state_dict()
        self.now.optimiser = None if finished else self.optimiser.state_dict()
        self.now.save(self.out)
        self.saved = time.monotonic()


@contextmanager
def _at_the_next_step() -> Iterator[Callable[[], bool]]:
    """Whether somebody asked to stop: not in the midst of a step, where nothing can be kept.

    The signal takes effect when the block is left; a second one does so at once.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where signals never come
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        restore()
        if came:
            signal.raise_signal(came[0])


def rate(first: float, step: int, total: int) -> float:
    """Half a cosine from the first rate down to zero."""
    return first * 0.5 * (1 + math.cos(math.pi * step / total))


def _continued(out: Path, fresh: Checkpoint, device: str) -> Checkpoint:
    found = load_checkpoint(out, device)
    if found.recipe != fresh.recipe:
        changed = [
            name
            for name, value in fresh.recipe.to_dict().items()
            if value != found.recipe.to_dict()[name]
        ]
        raise InputError(
            f"{out} was begun with another recipe ({', '.join(changed)}); choose another name"
        )
    if (found.data, found.classes) != (fresh.data, fresh.classes):
        raise InputError(f"{out} was begun with other images; choose another name")
    return found
