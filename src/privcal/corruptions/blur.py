"""Defocus, frosted glass, motion and zoom."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privcal.corruptions import filters
from privcal.corruptions.random import CounterRng


def _disk(radius: float, softness: float) -> npt.NDArray[np.float64]:
    """A flat disk on the grid −4 to 4, its rim softened by a Gaussian three pixels wide."""
    grid = np.arange(-4, 5)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float64)
    disk /= disk.sum()
    before, middle, after = filters.gaussian_weights(softness, 1)
    for axis in (0, 1):  # a radius is at most 3, so only zeros are rolled around
        disk = before * np.roll(disk, -1, axis) + middle * disk + after * np.roll(disk, 1, axis)
    return disk


def defocus_blur(x: Tensor, rng: CounterRng, radius: float, softness: float) -> Tensor:
    kernel, side = _disk(radius, softness), x.shape[1]
    reach = filters.border_index(torch.arange(-4, side + 4, device=x.device), side, "mirror")
    wide = x.index_select(1, reach).index_select(2, reach)
    total = torch.zeros_like(x)
    for row, column in zip(*np.nonzero(kernel), strict=True):
        weight = float(kernel[row, column])
        total += wide[:, row : row + side, column : column + side] * weight
    return total


def glass_blur(x: Tensor, rng: CounterRng, sigma: float, reach: float, passes: float) -> Tensor:
    x = filters.truncate_levels(filters.gaussian_blur(x, sigma, 4.0, "edge"))
    for _ in range(int(passes)):
        x = filters.gather_pixels(x, *_copy_sources(x, rng, int(reach)))
    return filters.gaussian_blur(x, sigma, 4.0, "edge")


def _copy_sources(x: Tensor, rng: CounterRng, reach: int) -> tuple[Tensor, Tensor]:
    """Row and column that each pixel's colour comes from in one pass of copying.

    Pixels are taken one after another, from the lower right to the upper left, and each copies
    one near it: as it was, or as an earlier copy left it. That makes chains. Rather than walk
    them, every pixel points at what it copies, and pointers are followed twice as far each time.
    """
    n, side = x.shape[:2]
    pixels = side * side
    low, high = reach + 1, side - reach + 1  # the rows and columns that copy
    step = rng.whole(-reach, reach, 2, high - low, high - low)
    grid = torch.arange(low, high, device=x.device)
    pointer = torch.arange(pixels, device=x.device).reshape(side, side).repeat(n, 1, 1)
    own = pointer[:, low:high, low:high].clone()
    source = (grid[:, None] + step[:, 0]) * side + grid + step[:, 1]
    # Below `pixels` a pointer is to a pixel as copied, from there on to one before the pass.
    pointer += pixels
    pointer[:, low:high, low:high] = torch.where(source > own, source, source + pixels)
    pointer = pointer.reshape(n, pixels)
    if reach > 1:  # a reach of 1 is up and left only: nothing there has been copied to yet
        for _ in range(math.ceil(math.log2(pixels))):
            further = pointer.gather(1, pointer.clamp(max=pixels - 1))
            pointer = torch.where(pointer < pixels, further, pointer)
    origin = (pointer - pixels).reshape(n, side, side)
    return torch.div(origin, side, rounding_mode="floor"), torch.remainder(origin, side)


def motion_blur(x: Tensor, rng: CounterRng, radius: float, sigma: float) -> Tensor:
    return filters.directional_blur(x, radius, sigma, rng.between(-math.pi / 4, math.pi / 4))


def zoom_blur(x: Tensor, rng: CounterRng, stop: float) -> Tensor:
    factors = np.arange(1.0, stop, 0.01)
    n, side = x.shape[:2]
    # As one image of many channels: rows and columns are then copied in long runs.
    x = x.permute(1, 2, 0, 3).reshape(1, side, side, 3 * n)
    total = x.clone()
    for factor in factors:
        total += filters.zoom_centre(x, float(factor))
    total *= 1.0 / (len(factors) + 1)
    return total.reshape(side, side, n, 3).permute(2, 0, 1, 3)
