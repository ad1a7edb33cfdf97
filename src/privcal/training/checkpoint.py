"""Checkpoints: a network on disk, with its recipe, its progress and what is needed to go on."""

from __future__ import annotations

import io
import warnings
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
            "recipe": self.recipe.to_dict(),
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
        torch.save({"version": VERSION, **vars(self), "recipe": self.recipe.to_dict()}, content)
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
        recipe = Recipe.from_dict(content.pop("recipe"), str(path))
        return Checkpoint(recipe=recipe, **{**content, "classes": tuple(content["classes"])})
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a network that privcal trained, or is cut short ({type(error).__name__})"
        ) from None
