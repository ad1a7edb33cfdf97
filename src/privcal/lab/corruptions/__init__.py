"""The fifteen common image corruptions at five severities, batched, for 32 and 64 pixels.

They follow those of the published CIFAR-10-C and Tiny-ImageNet-C. Needs torch: the extra `train`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from privcal.data.files import replacing
from privcal.lab.corruptions import kinds
from privcal.lab.corruptions.filters import CounterRng, truncate_levels
from privcal.lab.corruptions.kinds import pack_frost, read_frost
from privcal.lab.images.sets import CORRUPTIONS, SEVERITIES
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt", "read_frost"]

SIDES = (32, 64)
STRENGTHS = tomllib.loads((files("privcal.lab.corruptions") / "strengths.toml").read_text("utf-8"))
"""The constants of each corruption, by size and severity."""

_CHUNK_PIXELS = {"cpu": 1 << 17, "other": 1 << 21}
"""Pixels worked on at once: on a CPU 128 images of side 32, which its cache holds, else 2,048."""


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
    function = getattr(kinds, name)
    if name == "frost":
        function = partial(function, images=pack_frost(frost, side, images.device))
    settings = STRENGTHS[name][SIDES.index(side)][severity - 1]
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


# --- A contact sheet: every corruption at every severity in one image file ------------------------

_SHOWN = 128
"""Width in pixels of one image on the sheet."""
_GAP = 4
_MARGIN, _TOP = 170, 28
"""Width of the names at the left, and height of the severities above."""


def contact_sheet(
    images: Tensor, path: Path, seed: int = 0, frost: Sequence[Tensor] | None = None
) -> None:
    """Write a PNG with a row for each corruption: each image, then its severities 1 to 5.

    `images` (n, side, side, 3) uint8; a few are enough.
    """
    from PIL import Image, ImageDraw, ImageFont

    if Path(path).suffix.lower() != ".png":
        raise InputError(f"the contact sheet is a PNG; {path} must end in .png")
    if len(images) == 0:
        raise InputError("a contact sheet needs at least one image")
    rows = []
    for name in CORRUPTIONS:
        severities = [corrupt(images, name, s, seed=seed, frost=frost) for s in SEVERITIES]
        # Of each image first the original, then its severities, from left to right.
        rows.append(torch.stack([images, *severities], dim=1).flatten(0, 1).cpu())
    times = max(1, _SHOWN // images.shape[1])
    tiles = torch.stack(rows).repeat_interleave(times, 2).repeat_interleave(times, 3)
    height, width, side = tiles.shape[:3]
    cell = side + _GAP
    sheet = torch.full((height * cell, width * cell, 3), 255, dtype=torch.uint8)
    for i in range(height):
        for j in range(width):
            top, left = i * cell, j * cell
            sheet[top : top + side, left : left + side] = tiles[i, j]
    page = Image.new("RGB", (_MARGIN + width * cell, _TOP + height * cell), "white")
    page.paste(Image.fromarray(sheet.numpy()), (_MARGIN, _TOP))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(size=16)
    for i, name in enumerate(CORRUPTIONS):
        position = (8, _TOP + i * cell + side // 2)
        pen.text(position, name.replace("_", " "), fill="black", font=font, anchor="lm")
    for j, title in enumerate(["clean", *map(str, SEVERITIES)] * len(images)):
        position = (_MARGIN + j * cell + side // 2, _TOP // 2)
        pen.text(position, title, fill="black", font=font, anchor="mm")
    with replacing(path) as part:
        page.save(part, format="PNG")
