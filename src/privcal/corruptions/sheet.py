"""A contact sheet: every corruption at every severity in one image file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from privcal.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from privcal.errors import InputError
from privcal.files import replacing

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
