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

from privcal.errors import InputError
from privcal.images import ImageSet
from privcal.training.batches import Batches
from privcal.training.checkpoint import Checkpoint, load_checkpoint
from privcal.training.devices import precision
from privcal.training.logits import digest, network_logits
from privcal.training.networks import build
from privcal.training.recipe import Recipe

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

    def note(number: int, frame: object) -> None:
        received.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

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
        entries = saved.recipe.to_dict()
        changed = [k for k, value in fresh.recipe.to_dict().items() if value != entries[k]]
        raise InputError(
            f"{out} was begun with another recipe ({', '.join(changed)}); choose another name"
        )
    if (saved.data, saved.classes) != (fresh.data, fresh.classes):
        raise InputError(f"{out} was begun with other images; choose another name")
    return saved
