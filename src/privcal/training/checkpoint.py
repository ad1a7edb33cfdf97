"""A network on disk: weights, recipe, how far it got, and what is needed to go on."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from privcal.errors import InputError
from privcal.files import replacing
from privcal.training.networks import Network, build
from privcal.training.recipe import Recipe

VERSION = 1


@dataclass
class Checkpoint:
    recipe: Recipe
    classes: tuple[str, ...]
    side: int
    """Pixels of a side of the images it was trained on."""
    data: str
    """Identifies the training images, so that a run is not continued with others."""
    weights: dict[str, Any]
    optimiser: dict[str, Any] | None
    """None once the training is finished."""
    step: int
    losses: float = 0.0
    """Sum over the steps of the epoch that is under way."""
    seconds: float = 0.0
    """That it has taken so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """A line for each epoch."""
    torch: str = str(torch.__version__)

    @property
    def finished(self) -> bool:
        return self.optimiser is None

    @property
    def epochs(self) -> int:
        return len(self.history)

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
        whole = io.BytesIO()  # of a full disk, torch would say nothing that can be understood
        torch.save({"version": VERSION, **vars(self), "recipe": self.recipe.to_dict()}, whole)
        with replacing(path) as part:
            part.write_bytes(whole.getbuffer())


def load_checkpoint(path: str | Path, device: str = "cpu") -> Checkpoint:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        # Weights and plain values alone: a file from elsewhere can run nothing here.
        found = torch.load(path, map_location=device, weights_only=True)
        if found.pop("version") != VERSION:
            raise InputError(f"{path} was written by another version of privcal")
        recipe = Recipe.of(found.pop("recipe"), str(path))
        return Checkpoint(recipe=recipe, **{**found, "classes": tuple(found["classes"])})
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a network that privcal trained, or is cut short ({type(error).__name__})"
        ) from None
