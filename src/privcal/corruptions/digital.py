"""Contrast, elastic warps and coarse pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from privcal.corruptions.filters import gaussian_blur, sample_bilinear
from privcal.corruptions.random import CounterRng


def contrast(x: Tensor, rng: CounterRng, left: float) -> Tensor:
    pixels = x.shape[1] * x.shape[2]
    # A sum of whole numbers has no rounding, whatever its order.
    mean = (x.long().sum(dim=(1, 2), keepdim=True).double() * (1.0 / pixels)).float()
    return (x - mean) * left + mean


def elastic_transform(
    x: Tensor, rng: CounterRng, strength: float, smoothness: float, shift: float
) -> Tensor:
    side = x.shape[1]
    grid = torch.arange(side, dtype=torch.float64, device=x.device)
    rows, columns = grid[:, None].expand(side, side), grid.expand(side, side)
    x = sample_bilinear(x, *_affine(rng, side, shift * side, rows, columns), "mirror")
    if strength == 0:
        return x
    field = rng.between(-1.0, 1.0, side, side, 2)
    field = gaussian_blur(field, smoothness * side, 3.0, "reflect") * (strength * side)
    return sample_bilinear(x, rows + field[..., 1], columns + field[..., 0], "reflect")


def _affine(
    rng: CounterRng, side: int, shift: float, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions that each output pixel reads, if three points move by up to `shift` each way."""
    centre, s = side // 2, side // 3
    old = torch.tensor(
        [[centre + s, centre + s], [centre + s, centre - s], [centre - s, centre - s]],
        dtype=torch.float64,
        device=rows.device,
    )  # (x, y) each
    new = old + rng.between(-shift, shift, 3, 2)
    # In the basis of the new points' sides a pixel has coordinates (a, b); the old point with
    # the same coordinates in the basis of the old sides is what it reads.
    x0, y0 = (new[:, 0, i, None, None] for i in (0, 1))
    x1, y1 = (new[:, 1, i, None, None] - new[:, 0, i, None, None] for i in (0, 1))
    x2, y2 = (new[:, 2, i, None, None] - new[:, 0, i, None, None] for i in (0, 1))
    area = x1 * y2 - x2 * y1
    right, down = columns - x0, rows - y0
    a = (right * y2 - down * x2) / area
    b = (down * x1 - right * y1) / area
    # The old sides: from the first point, straight up by 2s, and up and left by 2s.
    return old[0, 1] - (a + b) * (2 * s), old[0, 0] - b * (2 * s)


def pixelate(x: Tensor, rng: CounterRng, left: float) -> Tensor:
    side = x.shape[1]
    small = int(side * left)
    for size in (small, side):
        x = _box_resize(x.movedim(2, 3), size).movedim(3, 2)  # Pillow's order: along the rows first
        x = _box_resize(x.movedim(1, 3), size).movedim(3, 1)
    return x.float()


def _box_resize(x: Tensor, size: int) -> Tensor:
    """The last dimension resized to `size` as Pillow does: means over boxes, in whole levels.

    Pillow's weights are multiples of 2⁻²². The products are whole numbers below 2⁵³, so this
    matrix product has no rounding.
    """
    given = x.shape[-1]
    scale = given / size
    support = 0.5 * max(scale, 1.0)
    weights = torch.zeros(given, size, dtype=torch.float64)
    for i in range(size):
        centre = (i + 0.5) * scale
        low, high = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), given)
        inside = [j for j in range(low, high) if -0.5 < (j - centre + 0.5) / max(scale, 1.0) <= 0.5]
        weights[inside, i] = float(int(0.5 + 2**22 / len(inside)))
    total = x.double() @ weights.to(x.device)
    return ((total + 2.0**21) * 2.0**-22).floor_()
