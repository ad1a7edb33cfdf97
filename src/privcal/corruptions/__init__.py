"""The fifteen common image corruptions at five severities, batched, for 32 and 64 pixels.

They follow those of the published CIFAR-10-C and Tiny-ImageNet-C. Needs torch: the extra `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from privcal.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from privcal.corruptions.digital import contrast, elastic_transform, pixelate
from privcal.corruptions.filters import truncated
from privcal.corruptions.frost import frost as _frost
from privcal.corruptions.frost import frost_pictures, prepared
from privcal.corruptions.jpeg import jpeg_compression
from privcal.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from privcal.corruptions.random import Draws
from privcal.corruptions.table import SEVERITIES, SIDES, constants
from privcal.corruptions.weather import brightness, fog, snow
from privcal.datasets.names import CORRUPTIONS
from privcal.errors import InputError

__all__ = ["NAMES", "SEVERITIES", "corrupt", "frost_pictures"]

NAMES = CORRUPTIONS

_PIXELS = {"cpu": 1 << 17, "other": 1 << 21}
"""Worked on at once: on a CPU 128 images of 32 pixels, which its cache holds, else 2,048."""

_CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": _frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    first: int = 0,
    frost: Sequence[Tensor] | None = None,
) -> Tensor:
    """Images (n, side, side, 3) of uint8, corrupted; the same shape, type and device.

    Row i of the result is a function of that image, `name`, `severity`, `seed` and `first` + i
    alone, so a set may be worked through in any batches. `frost` gives pictures to use in place
    of those drawn here.
    """
    _check(images, name, severity)
    side = images.shape[1]
    work = _CORRUPTIONS[name]
    if name == "frost":
        work = partial(work, pictures=prepared(frost, side, images.device))
    severity = int(severity)  # the draws depend on how it is written
    settings = constants(name, severity, side)
    result = torch.empty_like(images)
    height = _PIXELS.get(images.device.type, _PIXELS["other"]) // (side * side)
    with torch.no_grad():
        for start in range(0, len(images), height):
            chunk = images[start : start + height]
            index = torch.arange(start, start + len(chunk), device=images.device) + first
            levels = work(chunk.float(), Draws(name, severity, seed, index), *settings)
            result[start : start + height] = truncated(levels).to(torch.uint8)
    return result


def _check(images: Tensor, name: str, severity: int) -> None:
    if name not in _CORRUPTIONS:
        raise InputError(f"there is no corruption {name!r}; there are {', '.join(NAMES)}")
    if severity not in SEVERITIES:
        raise InputError(f"severity must be a whole number from 1 to 5, not {severity!r}")
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        raise InputError("images must be a torch tensor of uint8")
    if images.dim() != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3:
        raise InputError(f"images must be (n, side, side, 3), not {tuple(images.shape)}")
    if images.shape[1] not in SIDES:
        raise InputError(f"images must be 32 or 64 pixels wide, not {images.shape[1]}")
