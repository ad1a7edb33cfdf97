"""Training recipes: one small TOML file each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from privcal.checks import number, one_of, whole
from privcal.documents import read_toml
from privcal.errors import InputError

AUGMENTATIONS = ("shift", "resized-crop")


@dataclass(frozen=True)
class Recipe:
    """Data set, network and settings of a training."""

    data: str
    """Name of the image set: CIFAR-10, CIFAR-100, ImageNet or Tiny-ImageNet."""
    network: str
    epochs: int
    batch: int
    learning_rate: float
    """First learning rate; it falls to zero along half a cosine."""
    momentum: float
    weight_decay: float
    augment: str
    """`shift`: by up to an eighth of the side; `resized-crop`: a random part, enlarged. Both
    mirror half of the images."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Mean and standard deviation of the training pixels, in units of 255."""
    seed: int = 0

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, 1)
        whole("batch", self.batch, 1)
        whole("seed", self.seed, 0, 2**32 - 1)
        number("learning_rate", self.learning_rate, 0)
        number("weight_decay", self.weight_decay, 0)
        if number("momentum", self.momentum, 0, 1) == 1:
            raise InputError("momentum must be below 1")
        one_of("augment", self.augment, AUGMENTATIONS)
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)) or len(value) != 3:
                raise InputError(f"{name} must be three numbers, one for each colour: {value!r}")
            object.__setattr__(self, name, tuple(number(f"each {name}", v) for v in value))
        if min(self.std) <= 0:
            raise InputError(f"std must be above 0 for each colour: {self.std!r}")
        for name in ("data", "network"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} must be a name in quotes, not {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, table: dict[str, Any], where: str) -> Recipe:
        known = {field.name for field in fields(cls)}
        unknown, missing = set(table) - known, known - set(table) - {"seed"}
        if unknown:
            raise InputError(f"{where} has an unknown entry {min(unknown)!r}")
        if missing:
            raise InputError(f"{where} does not say {min(missing)!r}")
        try:
            return cls(**table)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if ".toml" in p.name)


def read_recipe(name: str | Path) -> Recipe:
    """The recipe of that name, or in that TOML file."""
    if str(name) in recipe_names():
        with as_file(_folder() / f"{name}.toml") as path:
            return Recipe.from_dict(read_toml(path, "recipe"), str(name))
    if Path(name).suffix == ".toml":
        return Recipe.from_dict(read_toml(name, "recipe"), str(name))
    raise InputError(
        f"there is no recipe {str(name)!r}; there are {', '.join(recipe_names())}, or a .toml file"
    )


def _folder() -> Any:
    return files("privcal.training") / "recipes"
