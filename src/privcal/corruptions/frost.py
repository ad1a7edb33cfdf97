"""Frost on a window: a crop of an image of frost laid over the image.

Images of frost are the user's own photographs, or else drawn here (see `crystals`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privcal.corruptions.crystals import drawn_frost
from privcal.corruptions.filters import NUDGE
from privcal.corruptions.random import CounterRng
from privcal.errors import InputError
from privcal.images.image_files import list_image_files, open_image

SHRINKING = {32: 0.2, 64: 0.3}
"""Factor by which images of frost are shrunk, for each image size."""
FROST_IMAGES = 5
"""The published files use the first five photographs only."""


@dataclass(frozen=True)
class PackedFrost:
    """Shrunk images of frost, of several sizes, with their pixels end to end."""

    pixels: Tensor  # (all, 3) float32
    heights: Tensor
    widths: Tensor
    starts: Tensor


def read_frost(folder: Path) -> list[Tensor]:
    """The PNG and JPEG files in a folder, in the order of their names, (h, w, 3) uint8 each."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} with images of frost")
    images = []
    for name in list_image_files(folder, (".png", ".jpg", ".jpeg")):
        with open_image(folder / name) as image:
            images.append(torch.from_numpy(np.array(image.convert("RGB"))))
    if not images:
        raise InputError(f"{folder} holds no PNG or JPEG file of frost")
    return images


def shrink(image: Tensor, factor: float) -> Tensor:
    """An image of frost at `factor` of its size: bilinear samples, not smoothed first."""
    for dim in (0, 1):
        size = image.shape[dim]
        count = round(size * factor)
        position = (torch.arange(count, dtype=torch.float64) + 0.5) / factor - 0.5
        position = position.clamp(0.0, size - 1.0)
        # To a millionth, or 5i + 2 could come out a hair below and count as the pixel before.
        low = (position + 1e-6).floor().long()
        weight = (position - low).float().reshape([-1 if d == dim else 1 for d in range(3)])
        first = image.index_select(dim, low).float()
        second = image.index_select(dim, (low + 1).clamp(max=size - 1)).float()
        image = first + (second - first) * weight
    return (image + (0.5 + NUDGE)).floor()  # exact halves are common: weights are sixths


def pack_frost(images: Sequence[Tensor] | None, side: int, device: torch.device) -> PackedFrost:
    small = _shrink_drawn(side) if images is None else _shrink_given(images, side)
    sizes = torch.tensor([image.shape[:2] for image in small], device=device)
    areas = sizes[:, 0] * sizes[:, 1]
    pixels = torch.cat([image.reshape(-1, 3) for image in small]).to(device)
    return PackedFrost(pixels, sizes[:, 0], sizes[:, 1], areas.cumsum(0) - areas)


@lru_cache(maxsize=2)
def _shrink_drawn(side: int) -> list[Tensor]:
    return [shrink(image, SHRINKING[side]) for image in drawn_frost()]


def _shrink_given(images: Sequence[Tensor], side: int) -> list[Tensor]:
    if not images:
        raise InputError("frost needs at least one image; without any, leave `frost` out")
    small = []
    for number, image in enumerate(images[:FROST_IMAGES], start=1):
        if image.dim() != 3 or image.shape[2] != 3 or image.dtype != torch.uint8:
            raise InputError(f"frost image {number} must be (height, width, 3) of uint8")
        least = min(round(size * SHRINKING[side]) for size in image.shape[:2])
        if least < side:
            raise InputError(
                f"frost image {number} is {image.shape[1]} by {image.shape[0]} pixels; "
                f"shrunk by {SHRINKING[side]} it must still be {side} by {side}"
            )
        small.append(shrink(image.cpu(), SHRINKING[side]))
    return small


def frost(
    x: Tensor, rng: CounterRng, image_weight: float, frost_weight: float, images: PackedFrost
) -> Tensor:
    side = x.shape[1]
    choice, down, right = rng.uniform(3).unbind(dim=1)
    which = (choice * len(images.starts)).long()
    width = images.widths[which]
    # One offset short of the last that would fit, as published.
    top = (down * (images.heights[which] - side).clamp(min=1)).long()
    left = (right * (width - side).clamp(min=1)).long()
    grid = torch.arange(side, device=x.device)
    corner = images.starts[which] + top * width + left
    index = corner[:, None, None] + grid[:, None] * width[:, None, None] + grid
    return x * image_weight + images.pixels[index] * frost_weight
