"""The fifteen common image corruptions at five severities, batched, for 32 and 64 pixels.

They follow those of the published CIFAR-10-C and Tiny-ImageNet-C. Needs torch: the extra `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from privcal.checks import known, whole
from privcal.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from privcal.corruptions.digital import contrast, elastic_transform, pixelate
from privcal.corruptions.filters import truncate_levels
from privcal.corruptions.frost import frost as _frost
from privcal.corruptions.frost import pack_frost, read_frost
from privcal.corruptions.jpeg import jpeg_compression
from privcal.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from privcal.corruptions.random import CounterRng
from privcal.corruptions.table import SIDES, constants
from privcal.corruptions.weather import brightness, fog, snow
from privcal.errors import InputError
from privcal.images.names import CORRUPTIONS, SEVERITIES

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt", "read_frost"]

_CHUNK_PIXELS = {"cpu": 1 << 17, "other": 1 << 21}
"""Pixels worked on at once: on a CPU 128 images of side 32, which its cache holds, else 2,048."""

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur,
        snow, _frost, fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression,
    )
}  # fmt: skip


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    first: int = 0,
    frost: Sequence[Tensor] | None = None,
) -> Tensor:
    """Corrupted images, of the same shape, type and device as `images` (n, side, side, 3) of uint8.

    Row i of the result is a function of that image, `name`, `severity`, `seed` and `first` + i
    alone, so a set may be worked through in any batches. `frost` gives images of frost, (height,
    width, 3) of uint8, to use in place of those drawn here.
    """
    _check_images(images)
    known("corruption", name, CORRUPTIONS)
    severity = whole("severity", severity, 1, len(SEVERITIES))
    side = images.shape[1]
    function = _FUNCTIONS[name]
    if name == "frost":
        function = partial(function, images=pack_frost(frost, side, images.device))
    settings = constants(name, severity, side)
    result = torch.empty_like(images)
    rows = _CHUNK_PIXELS.get(images.device.type, _CHUNK_PIXELS["other"]) // (side * side)
    with torch.no_grad():
        for start in range(0, len(images), rows):
            chunk = images[start : start + rows]
            index = torch.arange(start, start + len(chunk), device=images.device) + first
            levels = function(chunk.float(), CounterRng(name, severity, seed, index), *settings)
            result[start : start + rows] = truncate_levels(levels).to(torch.uint8)
    return result


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        raise InputError("images must be a torch tensor of uint8")
    if images.dim() != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3:
        raise InputError(f"images must be (n, side, side, 3), not {tuple(images.shape)}")
    if images.shape[1] not in SIDES:
        raise InputError(f"images must be 32 or 64 pixels wide, not {images.shape[1]}")
