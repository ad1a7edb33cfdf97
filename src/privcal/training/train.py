"""Training: SGD with momentum and a cosine schedule, on one GPU or on the CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
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
LOOK_EVERY = 50
"""Steps between readings of the loss: each one makes the device wait."""


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
    torch.manual_seed(recipe.seed)
    network = build(recipe.network, len(images.classes), recipe.mean, recipe.std).to(device)
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
        fused=device.startswith("cuda"),
    )
    now = Checkpoint(
        recipe, images.classes, test.side, digest(images), network.state_dict(), None, 0
    )
    if out.exists():
        now = _continued(out, now, device)
        if now.finished:
            return now
        network.load_state_dict(now.weights)
        optimiser.load_state_dict(now.optimiser)
    batches = Batches(images, recipe.batch, recipe.augment, recipe.seed, device)
    total = recipe.epochs * len(batches)
    tests = {round(recipe.epochs * k / 10) for k in range(1, 11)}
    # As graphs: a step of a small batch is a thousand launches, which take longer than the work.
    forward = torch.compile(network, mode="reduce-overhead") if compiled else network
    saved = began = time.monotonic()
    torch.backends.cudnn.benchmark = True  # every batch has the same shape
    accuracy: float | None = None

    def keep(finished: bool = False) -> None:
        nonlocal saved
        now.weights = network.state_dict()
        now.optimiser = None if finished else optimiser.state_dict()
        now.save(out)
        saved = time.monotonic()

    while now.epochs < recipe.epochs:
        losses = torch.tensor(now.losses, dtype=torch.float64, device=device)
        first = now.step - now.epochs * len(batches)
        network.train()
        for pixels, labels in batches.epoch(now.epochs, first):
            for group in optimiser.param_groups:
                group["lr"] = rate(recipe.learning_rate, now.step, total)
            loss = _step(forward, optimiser, pixels, labels, device)
            losses += loss
            now.step += 1
            if now.step % LOOK_EVERY == 0 or now.step == total:
                progress(Step(now.epochs, now.step, total, float(loss), accuracy))
                if time.monotonic() - saved > save_every and now.step % len(batches):
                    now.losses = float(losses)
                    now.seconds += time.monotonic() - began
                    began = time.monotonic()
                    keep()
        mean = float(losses) / len(batches)
        if not math.isfinite(mean):
            raise InputError(
                f"the loss is no longer a number in epoch {now.epochs + 1}; "
                "use a smaller learning rate"
            )
        seconds = now.seconds + time.monotonic() - began
        line = {"epoch": now.epochs + 1, "loss": mean, "seconds": seconds}
        now.losses, now.seconds, began = 0.0, 0.0, time.monotonic()
        if now.epochs + 1 in tests:
            said = network_logits(network, test, device).argmax(1)
            accuracy = line["accuracy"] = float((said == test.labels).mean())
        now.history.append(line)
        if time.monotonic() - saved > save_every:
            keep()
    keep(finished=True)
    return now


def rate(first: float, step: int, total: int) -> float:
    """Half a cosine from the first rate down to zero."""
    return first * 0.5 * (1 + math.cos(math.pi * step / total))


def _step(
    forward: nn.Module, optimiser: torch.optim.SGD, pixels: Tensor, labels: Tensor, device: str
) -> Tensor:
    with precision(device):
        loss = F.cross_entropy(forward(pixels), labels)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return loss.detach()


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
