"""Frost on a window: a crop of a photograph laid over the image.

The photographs are the user's own, or else drawn here (see `crystals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privcal.corruptions.crystals import built_in
from privcal.corruptions.filters import NUDGE
from privcal.corruptions.random import Draws
from privcal.errors import InputError

SHRUNK = {32: 0.2, 64: 0.3}
"""How far the photographs are shrunk for each image size."""
USED = 5
"""The published files use the first five photographs only."""


@dataclass(frozen=True)
class Pictures:
    """Shrunk pictures of several sizes, their pixels end to end."""

    pixels: Tensor  # (all, 3) float32
    heights: Tensor
    widths: Tensor
    starts: Tensor


def frost_pictures(folder: Path) -> list[Tensor]:
    """The PNG and JPEG pictures in a folder, in the order of their names, (h, w, 3) uint8."""
    from PIL import Image

    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} with frost pictures")
    paths = sorted(
        path
        for path in folder.iterdir()
        # Archivers of some systems leave ._x.png beside x.png.
        if path.suffix.lower() in (".png", ".jpg", ".jpeg") and not path.name.startswith(".")
    )
    if not paths:
        raise InputError(f"{folder} holds no PNG or JPEG picture of frost")
    pictures = []
    for path in paths:
        try:
            # No other decoder meets a file: some run programs.
            with Image.open(path, formats=("PNG", "JPEG")) as opened:
                pictures.append(torch.from_numpy(np.array(opened.convert("RGB"))))
        except Exception:  # decoders raise all kinds, for pictures too large as well
            raise InputError(f"{path} cannot be read as a PNG or JPEG picture") from None
    return pictures


def shrunk(picture: Tensor, factor: float) -> Tensor:
    """Bilinear readings `factor` times as dense, not smoothed first, in whole levels."""
    for dim in (0, 1):
        size = picture.shape[dim]
        count = round(size * factor)
        reading = (torch.arange(count, dtype=torch.float64) + 0.5) / factor - 0.5
        reading = reading.clamp(0.0, size - 1.0)
        # To a millionth, or 5i + 2 could come out a hair below and count as the pixel before.
        low = (reading + 1e-6).floor().long()
        weight = (reading - low).float().reshape([-1 if d == dim else 1 for d in range(3)])
        first = picture.index_select(dim, low).float()
        second = picture.index_select(dim, (low + 1).clamp(max=size - 1)).float()
        picture = first + (second - first) * weight
    return (picture + (0.5 + NUDGE)).floor()  # exact halves are common: weights are sixths


def prepared(pictures: Sequence[Tensor] | None, side: int, device: torch.device) -> Pictures:
    small = _built_in_shrunk(side) if pictures is None else _shrunk_checked(pictures, side)
    sizes = torch.tensor([picture.shape[:2] for picture in small], device=device)
    areas = sizes[:, 0] * sizes[:, 1]
    pixels = torch.cat([picture.reshape(-1, 3) for picture in small]).to(device)
    return Pictures(pixels, sizes[:, 0], sizes[:, 1], areas.cumsum(0) - areas)


@lru_cache(maxsize=2)
def _built_in_shrunk(side: int) -> list[Tensor]:
    return [shrunk(picture, SHRUNK[side]) for picture in built_in()]


def _shrunk_checked(pictures: Sequence[Tensor], side: int) -> list[Tensor]:
    if not pictures:
        raise InputError("frost needs at least one picture; without any, leave `frost` out")
    small = []
    for number, picture in enumerate(pictures[:USED], start=1):
        if picture.dim() != 3 or picture.shape[2] != 3 or picture.dtype != torch.uint8:
            raise InputError(f"frost picture {number} must be (height, width, 3) of uint8")
        least = min(round(size * SHRUNK[side]) for size in picture.shape[:2])
        if least < side:
            raise InputError(
                f"frost picture {number} is {picture.shape[1]} by {picture.shape[0]} pixels; "
                f"shrunk by {SHRUNK[side]} it must still be {side} by {side}"
            )
        small.append(shrunk(picture.cpu(), SHRUNK[side]))
    return small


def frost(
    x: Tensor, draws: Draws, image_weight: float, frost_weight: float, pictures: Pictures
) -> Tensor:
    side = x.shape[1]
    choice, down, right = draws.uniform(3).unbind(dim=1)
    which = (choice * len(pictures.starts)).long()
    width = pictures.widths[which]
    # One offset short of the last that would fit, as published.
    top = (down * (pictures.heights[which] - side).clamp(min=1)).long()
    left = (right * (width - side).clamp(min=1)).long()
    place = torch.arange(side, device=x.device)
    corner = pictures.starts[which] + top * width + left
    index = corner[:, None, None] + place[:, None] * width[:, None, None] + place
    return x * image_weight + pictures.pixels[index] * frost_weight
