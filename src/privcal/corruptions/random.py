"""Randomness by counting: a draw is a hash of what it is for, not of what was drawn before.

So an image's draws are the same in any batch and on any device. The hash is that of SplitMix64: a 64-bit counter stepped by an odd constant, then mix by two multiplications.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor


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
