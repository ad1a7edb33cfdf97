"""Geometric grids of ε and of numbers of sources, and the smallest value that reaches a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from privcal.scores import FloatArray

Over = Literal["epsilon", "sources"]

LARGEST_EPSILON = 10.0
LARGEST_SOURCES = 10_000

_TENTHS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
"""Ten steps to a factor of ten, each about a quarter above the one before."""


def epsilons() -> list[float]:
    """From 0.05 to 10."""
    values = [round(t * scale, 6) for scale in (0.01, 0.1, 1.0) for t in _TENTHS]
    return [*(e for e in values if e >= 0.05), LARGEST_EPSILON]


def source_counts() -> list[int]:
    """From 2 to 10,000, in twice as long steps: every number of sources is a draw of its own."""
    values = [round(t * scale) for scale in (1, 10, 100, 1000) for t in _TENTHS[::2]]
    return sorted({*(n for n in values if n >= 2), LARGEST_SOURCES})


def smoothed(values: Sequence[float], errors: Sequence[float]) -> FloatArray:
    """The falling sequence nearest to `values`: neighbours that rise are pooled.

    More ε or more sources cannot really hurt; where the simulated means rise it is
    Monte-Carlo error (or a hump smaller than the plan cares for). Each value counts with the
    inverse square of its standard error.
    """
    weights = 1 / np.maximum(np.asarray(errors, np.float64), 1e-6) ** 2
    pools: list[list[float]] = []  # value, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append([float(value), float(weight), 1])
        while len(pools) > 1 and pools[-1][0] > pools[-2][0]:
            late, early = pools.pop(), pools.pop()
            total = early[1] + late[1]
            mean = (early[0] * early[1] + late[0] * late[1]) / total
            pools.append([mean, total, early[2] + late[2]])
    return np.array([value for value, _, many in pools for _ in range(int(many))])


@dataclass(frozen=True)
class Smallest:
    """Where a method first reaches the target, on a grid."""

    value: float | None
    """None: nowhere on the grid."""
    failed: float | None
    """The next lower value of the grid, which does not; None where the first one does."""
    floor: float
    """The lowest expected ECE on the grid, smoothed."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def smallest(
    grid: Sequence[float], means: Sequence[float], errors: Sequence[float], target: float
) -> Smallest:
    """The least value at which both the smoothed and the simulated mean reach the target.

    The smoothed one falls, so it reaches the target at all larger values too.
    """
    falling = smoothed(means, errors)
    good = (falling <= target) & (np.asarray(means) <= target)
    floor = float(falling[-1])
    if not good.any():
        return Smallest(None, float(grid[-1]), floor)
    first = int(good.argmax())
    return Smallest(float(grid[first]), float(grid[first - 1]) if first else None, floor)
