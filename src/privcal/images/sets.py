"""Image sets: what every reader returns, and those that are one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privcal.checks import whole
from privcal.errors import InputError

Rows = slice | NDArray[np.intp]


class ImageSet(Protocol):
    """Labelled square RGB images, any rows of which can be taken."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""

    @property
    def labels(self) -> NDArray[np.int64]: ...

    @property
    def side(self) -> int:
        """Height and width in pixels of what take() returns."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        """A new (rows, side, side, 3) array."""


@dataclass(frozen=True, eq=False)
class ImageArray:
    """An image set that is one (n, side, side, 3) array, in memory or a memory map."""

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    pixels: NDArray[np.uint8]

    @property
    def side(self) -> int:
        return int(self.pixels.shape[1])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        # A slice is a view, and what is done to it would be done to the images themselves.
        return np.array(self.pixels[rows]) if isinstance(rows, slice) else self.pixels[rows]


def missing_file(path: Path) -> InputError:
    return InputError(f"there is no file {path}; the archive is not whole")


def check_labels(path: Path, values: Any, classes: int) -> NDArray[np.int64]:
    """Labels from a list or an array of a stranger's file."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise InputError(
                f"{path} must hold one whole number for each image, "
                f"not an array of shape {values.shape} and type {values.dtype}"
            )
        values = values.tolist()
    if not isinstance(values, list):
        raise InputError(f"{path} must hold a list of labels, not {type(values).__name__}")
    for row, value in enumerate(values):
        if type(value) is not int or not 0 <= value < classes:  # fast: there may be a million
            whole(f"{path}: the label of row {row}", value, 0, classes - 1)
    return np.array(values, np.int64)


def check_every_class(
    path: Path, labels: NDArray[np.int64], classes: Sequence[str], split: str
) -> None:
    """Refuse training images that lack a class: the archive is damaged."""
    if not len(labels):
        raise InputError(f"{path} holds no images")
    if split == "train":
        missing = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
        if len(missing):
            raise InputError(
                f"{path} has no training image of class {classes[int(missing[0])]!r}; "
                "the archive is not whole"
            )
