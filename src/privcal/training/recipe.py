"""How a network is trained: one small TOML file for each recipe."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from privcal.errors import InputError

AUGMENTATIONS = ("shift", "resized-crop")


@dataclass(frozen=True)
class Recipe:
    data: str
    """The data set's name: CIFAR-10, CIFAR-100, ImageNet or Tiny-ImageNet."""
    network: str
    epochs: int
    batch: int
    learning_rate: float
    """The first one; it falls to zero along half a cosine."""
    momentum: float
    weight_decay: float
    augment: str
    """`shift`: by up to an eighth of the side; `resized-crop`: a random part, enlarged. Both
    mirror half of the images."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """Of the training pixels, in units of 255."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        seed = self.seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1, not {seed!r}")
        for name, low, high in (
            ("learning_rate", 0, math.inf),
            ("momentum", 0, 1),
            ("weight_decay", 0, math.inf),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"{name} must be a number, not {value!r}")
            if not low <= value < high:
                raise InputError(f"{name} must be at least {low} and below {high}, not {value!r}")
        if self.augment not in AUGMENTATIONS:
            raise InputError(
                f"augment must be one of {', '.join(AUGMENTATIONS)}, not {self.augment!r}"
            )
        for name in ("mean", "std"):
            value = getattr(self, name)
            numbers = isinstance(value, (list, tuple)) and all(
                isinstance(v, (int, float)) and math.isfinite(v) for v in value
            )
            if not numbers or len(value) != 3 or (name == "std" and min(value) <= 0):
                raise InputError(f"{name} must be three numbers, one for each colour: {value!r}")
            object.__setattr__(self, name, tuple(float(v) for v in value))
        for name in ("data", "network"):
            if not isinstance(getattr(self, name), str):
                raise InputError(f"{name} must be a name in quotes, not {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def of(cls, table: dict[str, Any], where: str) -> Recipe:
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


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if ".toml" in p.name)


def read_recipe(name: str | Path) -> Recipe:
    """One of `names()`, or a TOML file of one's own."""
    path = Path(name)
    if str(name) in names():
        text = (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    elif path.suffix == ".toml":
        if not path.is_file():
            raise InputError(f"there is no file {path}")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path} is not a text file") from None
    else:
        raise InputError(
            f"there is no recipe {str(name)!r}; there are {', '.join(names())}, or a .toml file"
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    return Recipe.of(table, str(path))


def _folder() -> Any:
    return files("privcal.training") / "recipes"
