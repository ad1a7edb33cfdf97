"""What corruptions are made of: random numbers by counting, and filters on images."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

# --- Randomness by counting: a draw is a hash of what it is for, not of what was drawn before -----
# So an image's draws are the same in any batch and on any device. The hash is that of SplitMix64: a
# 64-bit counter stepped by an odd constant, then mixed by two multiplications.


def _as_signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - 2**64 if word >= 2**63 else word


_STEP = _as_signed(0x9E3779B97F4A7C15)
_FIRST = _as_signed(0xBF58476D1CE4E5B9)
_SECOND = _as_signed(0x94D049BB133111EB)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """A logical shift, where torch's own repeats the sign."""
    return (bits >> by).bitwise_and_(2 ** (64 - by) - 1)


def mix(bits: Tensor) -> Tensor:
    """The hash of SplitMix64, for each int64."""
    bits = (bits ^ _shift_right(bits, 30)).mul_(_FIRST)
    bits = bits.bitwise_xor_(_shift_right(bits, 27)).mul_(_SECOND)
    return bits.bitwise_xor_(_shift_right(bits, 31))


class CounterRng:
    """Random numbers for some images, a row for each; every call draws new ones."""

    def __init__(self, name: str, severity: int, seed: int, index: Tensor) -> None:
        """`index` (n,) int64 holds the images' places in their set."""
        digest = hashlib.sha256(f"{seed} {name} {severity}".encode()).digest()
        start = int.from_bytes(digest[:8], "big", signed=True)
        self.keys = mix(index * _STEP + start)
        self.drawn = 0

    def uniform(self, *shape: int) -> Tensor:
        """(n, *shape) float64, uniform on the multiples of 2⁻⁵³ in [0, 1)."""
        count = math.prod(shape)
        counter = torch.arange(self.drawn + 1, self.drawn + count + 1, device=self.keys.device)
        self.drawn += count
        bits = mix(self.keys[:, None] + counter * _STEP)
        return (_shift_right(bits, 11).double() * 2.0**-53).reshape(-1, *shape)

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """(n, *shape) float64, uniform in [low, high)."""
        return self.uniform(*shape) * (high - low) + low

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """(n, *shape) int64, uniform among low, ..., high − 1."""
        return (self.uniform(*shape) * (high - low)).long() + low

    def normal(self, *shape: int) -> Tensor:
        """(n, *shape) float64, standard normal (Box and Muller)."""
        count = math.prod(shape)
        half = (count + 1) // 2
        uniform = self.uniform(2, half)
        length = (-2.0 * (1.0 - uniform[:, 0]).log_()).sqrt_()  # 1 − u is never 0
        angle = uniform[:, 1] * (2.0 * math.pi)
        both = torch.cat([length * angle.cos(), length * angle.sin()], dim=1)
        return both[:, :count].reshape(-1, *shape)


# --- Sums of neighbouring pixels and samples between them, on images (n, side, side, channels) -----
# Every result is a fixed sequence of elementwise operations, never a convolution or a float
# matrix product of a library: those may add up in another order for another batch or device, and
# truncation to whole levels would show it.

NUDGE = 1 / 1024
"""A part of a level: less than anyone sees, more than float32 rounds."""


def truncate_levels(levels: Tensor) -> Tensor:
    """Whole levels 0 to 255, cut off rather than rounded, as in the published files.

    The nudge keeps a value that is whole in exact arithmetic (in a flat area, say) from falling
    a level because it came out as 99.99999.
    """
    return (levels + NUDGE).clamp_(0.0, 255.0).floor_()


def border_index(index: Tensor, size: int, border: str) -> Tensor:
    """Index of the pixel that stands for one beyond the border.

    edge: a a | a b c d | d d; mirror: c b | a b c d | c b; reflect: b a | a b c d | d c.
    """
    if border == "edge":
        return index.clamp(0, size - 1)
    last = size - 1 if border == "mirror" else size
    period = 2 * last
    index = torch.remainder(index, period)
    return torch.minimum(index, (period if border == "mirror" else period - 1) - index)


def convolve_1d(x: Tensor, dim: int, weights: Sequence[float], border: str) -> Tensor:
    """A convolution along one dimension: sums of weights[i] times the pixel i − radius away."""
    radius, size = len(weights) // 2, x.shape[dim]
    reach = torch.arange(-radius, size + radius, device=x.device)
    wide = x.index_select(dim, border_index(reach, size, border))
    total = wide.narrow(dim, 0, size) * weights[0]
    for i, weight in enumerate(weights[1:], start=1):
        total += wide.narrow(dim, i, size) * weight
    return total


def gaussian_weights(sigma: float, radius: int) -> list[float]:
    """Weights of a Gaussian from −radius to radius, of sum 1."""
    if radius == 0:
        return [1.0]
    weights = [math.exp(-(i * i) / (2.0 * sigma * sigma)) for i in range(-radius, radius + 1)]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def gaussian_blur(x: Tensor, sigma: float, deviations: float, border: str) -> Tensor:
    """A Gaussian blur of dimensions 1 and 2, out to that many standard deviations."""
    weights = gaussian_weights(sigma, int(deviations * sigma + 0.5))
    if len(weights) == 1:
        return x
    return convolve_1d(convolve_1d(x, 1, weights, border), 2, weights, border)


def gather_pixels(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels at integer positions (n, side, side) of each image, all inside."""
    n, side, _, channels = x.shape
    flat = (rows * side + columns).reshape(n, side * side, 1).expand(-1, -1, channels)
    return x.reshape(n, side * side, channels).gather(1, flat).reshape(x.shape)


def sample_bilinear(x: Tensor, rows: Tensor, columns: Tensor, border: str) -> Tensor:
    """Bilinear samples at positions (n, side, side), which may lie outside."""
    side = x.shape[1]
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top).float()[..., None], (columns - left).float()[..., None]
    r0, c0 = top.long(), left.long()
    r1, c1 = border_index(r0 + 1, side, border), border_index(c0 + 1, side, border)
    r0, c0 = border_index(r0, side, border), border_index(c0, side, border)

    def along(row: Tensor) -> Tensor:
        first = gather_pixels(x, row, c0)
        return first + (gather_pixels(x, row, c1) - first) * right

    upper = along(r0)
    return upper + (along(r1) - upper) * down


def zoom_centre(x: Tensor, factor: float) -> Tensor:
    """The centre of each image enlarged by `factor` to the same size, bilinearly."""
    side = x.shape[1]
    crop = math.ceil(side / factor)
    size = round(crop * factor)
    start, trim = (side - crop) // 2, (size - side) // 2
    position = [(i + trim) * (crop - 1) / (size - 1) for i in range(side)]  # corners on corners
    low = [min(int(p), crop - 2) for p in position]
    index = torch.tensor(low, device=x.device) + start
    weight = torch.tensor(
        [p - i for p, i in zip(position, low, strict=True)], dtype=x.dtype, device=x.device
    )
    for dim in (1, 2):
        first, second = x.index_select(dim, index), x.index_select(dim, index + 1)
        shape = [-1 if d == dim else 1 for d in range(x.dim())]
        x = first + (second - first) * weight.reshape(shape)
    return x


def directional_blur(x: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """Motion blur along `angle` (n,) in radians: one-sided, in whole pixels, in whole levels.

    Levels are cut off, not rounded: the published files went through PNG as ImageMagick 6 writes
    it (its other formats round).
    """
    side = x.shape[1]
    width = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(i * i) / (2.0 * sigma * sigma)) for i in range(width)]
    total = math.fsum(weights)
    grid = torch.arange(side, device=x.device)
    across, down = angle.cos(), angle.sin()
    result = torch.zeros_like(x)
    for i, weight in enumerate(weights):
        right = (across * i - 0.5).ceil().long()[:, None, None]
        below = (down * i - 0.5).ceil().long()[:, None, None]
        rows = (grid[:, None] + below).clamp(0, side - 1)
        columns = (grid + right).clamp(0, side - 1)
        result += gather_pixels(x, rows, columns) * (weight / total)
    return truncate_levels(result)
