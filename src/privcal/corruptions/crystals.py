"""Five drawn images of frost on a window, for those who have no photographs.

Ice ferns are strokes that branch at about 60 degrees, three times over; between them lies a
rough film of ice. The images are the same everywhere: random numbers are counted, not seeded by
a library.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from privcal.corruptions.random import CounterRng

HEIGHT, WIDTH = 600, 1000
LEVELS = ((131.0, 43.0), (207.0, 23.0), (207.0, 23.0), (152.0, 31.0), (123.0, 44.0))
"""Mean and standard deviation of each image's levels: those of the five published photographs."""

_DARK = (0.80, 0.98, 1.22)
_LIGHT = (0.96, 1.00, 1.03)
"""Red, green and blue relative to grey, where there is little ice and where there is much."""


@lru_cache(maxsize=1)
def drawn_frost() -> list[Tensor]:
    """Five images, (600, 1000, 3) uint8 each."""
    return [
        _draw(CounterRng("crystals", number, 0, torch.zeros(1).long()), *levels)
        for number, levels in enumerate(LEVELS)
    ]


def _draw(rng: CounterRng, mean: float, deviation: float) -> Tensor:
    cover = _clouds(rng, (2, 3))  # where the ice is thick
    film = 1.0 - (2.0 * _clouds(rng, (12, 25, 50, 100)) - 1.0).abs()  # ridges
    fine = _clouds(rng, (100, 200, 400))
    grain = rng.normal(HEIGHT, WIDTH)[0]
    ferns = _ferns(rng)
    ice = 0.9 * cover + ferns * (0.35 + 1.15 * cover) + 0.45 * (film**3) * cover + 0.35 * fine
    ice += grain * (0.05 + 0.1 * ferns)
    level = (ice - ice.mean()) * (deviation / ice.std()) + mean
    share = (level * (1 / 255.0)).clamp(0.0, 1.0)[..., None]
    tint = torch.tensor(_DARK) * (1.0 - share) + torch.tensor(_LIGHT) * share
    return (level[..., None] * tint).clamp(0.0, 255.0).to(torch.uint8)


def _clouds(rng: CounterRng, cells: tuple[int, ...]) -> Tensor:
    """Smooth noise in [0, 1]: `cells` spots across the width, each finer scale half as strong."""
    total, strength = torch.zeros(HEIGHT, WIDTH).double(), 1.0
    for across in cells:
        down = max(2, across * HEIGHT // WIDTH)
        spots = rng.uniform(down + 1, across + 1)[0]
        for dim, size in ((0, HEIGHT), (1, WIDTH)):
            position = torch.arange(size).double() * ((spots.shape[dim] - 1) / size)
            low = position.long()
            weight = position - low
            weight = weight * weight * (3.0 - 2.0 * weight)
            first, second = spots.index_select(dim, low), spots.index_select(dim, low + 1)
            spots = first + (second - first) * (weight[:, None] if dim == 0 else weight)
        total += spots * strength
        strength *= 0.6
    total -= total.min()
    return total / total.max()


def _ferns(rng: CounterRng) -> Tensor:
    """The amount of crystal at each pixel, in [0, 1]."""
    stems = int(rng.whole(45, 80))  # some windows are frosted more densely than others
    start = rng.uniform(stems, 2)[0] * torch.tensor([HEIGHT * 1.0, WIDTH * 1.0])
    angle = rng.between(-math.pi, math.pi, stems)[0]
    length = rng.between(80.0, 340.0, stems)[0]
    canvas = torch.zeros(HEIGHT, WIDTH).double()
    # For each generation: spacing and length of its branches, its own strength and thickness.
    for spacing, share, strength, thick in ((16, 0.6, 1.0, 4), (12, 0.5, 0.95, 2), (0, 0, 0.8, 1)):
        bend = rng.between(-0.006, 0.006, len(length))[0]
        steps = torch.arange(int(length.max()) + 1).double()
        heading = angle[:, None] + bend[:, None] * steps
        rows = start[:, 0, None] + heading.sin().cumsum(dim=1)
        columns = start[:, 1, None] + heading.cos().cumsum(dim=1)
        left = length[:, None] - steps  # to the tip
        inside = (left > 0) & (rows >= 0) & (rows < HEIGHT) & (columns >= 0) & (columns < WIDTH)
        shine = strength * (0.55 + 0.45 * rng.uniform(len(length), 1)[0])
        layer = torch.zeros(HEIGHT * WIDTH).double()
        pixel = (rows.long() * WIDTH + columns.long())[inside]
        layer.scatter_reduce_(0, pixel, shine.expand_as(left)[inside], "amax")
        canvas = torch.maximum(canvas, _thicken(layer.reshape(HEIGHT, WIDTH), thick))
        if not spacing:
            break
        knots = inside & (steps % spacing == spacing - 1) & (left > 4)
        angles, reach = [], []
        for turn in (-1.0, 1.0):  # a branch on either side
            wobble = rng.between(0.85, 1.2, len(length), 1)[0]
            angles.append((heading + turn * wobble * (math.pi / 3))[knots])
            vary = rng.between(0.5, 1.0, *left.shape)[0]
            reach.append((left.clamp(max=150.0) * share * vary)[knots])
        start = torch.stack([rows[knots], columns[knots]], dim=1).repeat(2, 1)
        angle, length = torch.cat(angles), torch.cat(reach)
    return canvas


def _thicken(layer: Tensor, by: int) -> Tensor:
    """A layer in which each pixel is the largest within `by`, fading outwards."""
    for _ in range(by):
        wide = layer.clone()
        for dim in (0, 1):
            size = layer.shape[dim] - 1
            before, after = layer.narrow(dim, 0, size) * 0.85, layer.narrow(dim, 1, size) * 0.85
            for start, other in ((1, before), (0, after)):
                part = wide.narrow(dim, start, size)
                part.copy_(torch.maximum(part, other))
        layer = wide
    return layer
