"""JPEG compression and back, as libjpeg does by default, without the lossless middle.

Baseline, chroma halved both ways, integer transforms. All numbers are whole and below 2⁵³, so
float64 holds them exactly and matrix products do not round.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from privcal.corruptions.random import CounterRng

# Annex K of the standard: quantisation steps of brightness and of colour at quality 50.
_BRIGHTNESS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COLOUR = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)

# Sixteen-bit fractions: of red, green and blue in each of Y, Cb, Cr, and what is added.
_TO_YCC = (
    ((19595, 38470, 7471), 32768),
    ((-11059, -21709, 32768), (128 << 16) + 32767),
    ((32768, -27439, -5329), (128 << 16) + 32767),
)


def _steps(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = [[min(max((s * scale + 50) // 100, 1), 255) for s in row] for row in table]
    return torch.tensor(steps, dtype=torch.float64)


@lru_cache(maxsize=1)
def _cosines() -> Tensor:
    """The 8-point transform of Loeffler, Ligtenberg and Moschytz in 13-bit fractions.

    Their flow graph is linear, so it is a matrix; but its entries are sums of the graph's
    rounded constants, which differ in the last bit from the rounded cosines.
    """

    def fixed(constant: float) -> int:
        return round(constant * 8192)

    one, half = 8192, fixed(0.541196100)
    # From the sums of mirrored samples (0+7, 1+6, 2+5, 3+4) ...
    wide, narrow = half + fixed(0.765366865), half - fixed(1.847759065)
    even = {
        0: (one, one, one, one),
        2: (wide, half, -half, -wide),
        4: (one, -one, -one, one),
        6: (half, narrow, -narrow, -half),
    }
    # ... and from their differences (0−7, 1−6, 2−5, 3−4). `all_` is in every entry; `ends`,
    # `middle`, `near` and `far` each in those of two samples.
    all_ = fixed(1.175875602)
    ends, middle = fixed(0.899976223), fixed(2.562915447)
    near, far = fixed(1.961570560), fixed(0.390180644)
    odd = {
        1: (fixed(1.501321110) + all_ - ends - far, all_, all_ - far, all_ - ends),
        3: (all_, fixed(3.072711026) + all_ - middle - near, all_ - middle, all_ - near),
        5: (all_ - far, all_ - middle, fixed(2.053119869) + all_ - middle - far, all_),
        7: (all_ - ends, all_ - near, all_, fixed(0.298631336) + all_ - ends - near),
    }
    rows = [
        (*even[k], *even[k][::-1]) if k in even else (*odd[k], *(-v for v in odd[k][::-1]))
        for k in range(8)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _descale(x: Tensor, bits: int) -> Tensor:
    return ((x + 2.0 ** (bits - 1)) * 2.0**-bits).floor_()


def _quantise(plane: Tensor, steps: Tensor) -> Tensor:
    """A plane (n, height, width) of levels, after its 8×8 blocks were quantised and restored."""
    n, height, width = plane.shape
    forward, steps = _cosines().to(plane.device), steps.to(plane.device)
    back = forward.T.contiguous()
    blocks = plane.reshape(n, height // 8, 8, width // 8, 8).transpose(2, 3) - 128.0
    # Along rows, then columns; two bits more than whole numbers in between.
    waves = _descale(forward @ _descale(blocks @ back, 11), 15)  # eight times the transform
    whole = ((waves.abs() + steps * 4.0) / (steps * 8.0)).floor_() * waves.sign()
    waves = whole * steps
    blocks = _descale(_descale(back @ waves, 11) @ forward, 18) + 128.0
    return blocks.clamp_(0.0, 255.0).transpose(2, 3).reshape(n, height, width)


def _halve(plane: Tensor) -> Tensor:
    """Means of 2×2 pixels; halves are rounded down and up by turns, so as not to drift."""
    total = plane[:, ::2, ::2] + plane[:, 1::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, 1::2]
    turn = 1.0 + torch.arange(total.shape[2], device=plane.device) % 2
    return ((total + turn) * 0.25).floor_()


def _double(plane: Tensor) -> Tensor:
    """A plane of twice the size: three parts of the nearest sample, one of the next, each way."""
    n, height, width = plane.shape
    above = torch.cat([plane[:, :1], plane[:, :-1]], dim=1)
    below = torch.cat([plane[:, 1:], plane[:, -1:]], dim=1)
    tall = torch.stack([plane * 3.0 + above, plane * 3.0 + below], dim=2)
    tall = tall.reshape(n, 2 * height, width)
    before = torch.cat([tall[..., :1], tall[..., :-1]], dim=2)
    after = torch.cat([tall[..., 1:], tall[..., -1:]], dim=2)
    wide = torch.stack([tall * 3.0 + before + 8.0, tall * 3.0 + after + 7.0], dim=3)
    return (wide * 0.0625).floor_().reshape(n, 2 * height, 2 * width)


def jpeg_compression(x: Tensor, rng: CounterRng, quality: float) -> Tensor:
    red, green, blue = x.double().unbind(dim=3)
    y, cb, cr = (
        ((red * r + green * g + blue * b + added) * 2.0**-16).floor_()
        for (r, g, b), added in _TO_YCC
    )
    colour = _steps(_COLOUR, int(quality))
    y = _quantise(y, _steps(_BRIGHTNESS, int(quality)))
    cb = _double(_quantise(_halve(cb), colour)) - 128.0
    cr = _double(_quantise(_halve(cr), colour)) - 128.0
    red = y + _descale(cr * 91881.0, 16)
    green = y + _descale(cb * -22554.0 - cr * 46802.0, 16)
    blue = y + _descale(cb * 116130.0, 16)
    return torch.stack([red, green, blue], dim=3).clamp_(0.0, 255.0).float()
