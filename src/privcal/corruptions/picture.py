"""A sheet of every corruption at every severity, to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from privcal.corruptions import NAMES, SEVERITIES, corrupt
from privcal.errors import InputError
from privcal.files import replacing

_SHOWN = 128
"""Pixels across for one image on the sheet."""
_GAP = 4
_MARGIN, _TOP = 170, 28
"""Room for the names, and for the severities above."""


def contact_sheet(
    images: Tensor, path: Path, seed: int = 0, frost: Sequence[Tensor] | None = None
) -> None:
    """A PNG with a row for each corruption: each image as it is, then at severities 1 to 5.

    `images` (n, side, side, 3) uint8; a few are enough.
    """
    from PIL import Image, ImageDraw, ImageFont

    if Path(path).suffix.lower() != ".png":
        raise InputError(f"the contact sheet is a PNG; {path} must end in .png")
    if len(images) == 0:
        raise InputError("a contact sheet needs at least one image")
    rows = []
    for name in NAMES:
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
    whole = Image.new("RGB", (_MARGIN + width * cell, _TOP + height * cell), "white")
    whole.paste(Image.fromarray(sheet.numpy()), (_MARGIN, _TOP))
    pen, font = ImageDraw.Draw(whole), ImageFont.load_default(size=16)
    for i, name in enumerate(NAMES):
        where = (8, _TOP + i * cell + side // 2)
        pen.text(where, name.replace("_", " "), fill="black", font=font, anchor="lm")
    for j, title in enumerate(["clean", *map(str, SEVERITIES)] * len(images)):
        where = (_MARGIN + j * cell + side // 2, _TOP // 2)
        pen.text(where, title, fill="black", font=font, anchor="mm")
    with replacing(path) as part:
        whole.save(part, format="PNG")
