"""What is believed before any answer, and around which scores rows are counted.

What was believed is a list of cases with their probabilities: that little or nothing changed, that
confidence means less than it did, that its curve bends. A sketch says how probable each is
afterwards (`privcal.calibration.sketch.model`). docs/sketch.md says where the numbers are from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from privcal.trusted.errors import InputError
from privcal.trusted.scores import FloatArray

ROWS_PER_SOURCE = 30
"""The guess of a source's rows where nobody says otherwise."""

FINE = 75.0
"""The resolution from which on more hats pay."""

UNCHANGED_WITH_PUBLIC = 0.3
UNCHANGED_EVENT = 0.25
UNCHANGED_IN_USE = 0.5
"""How probable it is beforehand that nothing changed: with public rows, of a risk, of a model that
is in use and thought to be right."""

COARSE_KNOTS = (-2.0, 4.0)
FINE_KNOTS = (-2.2, -1.0, 0.0, 1.0, 2.5, 4.5, 8.0)
WIDE_COARSE_KNOTS = (-3.0, -1.0, 1.0, 3.0, 6.0, 12.0)
WIDE_FINE_KNOTS = (-3.0, -1.0, 0.8, 2.5, 5.0, 8.0, 12.0)
EVENT_KNOTS = (-10.0, -4.0, -1.5, 0.0, 1.5, 4.0, 10.0)

Scale = tuple[float, float]
"""Standard deviation and length scale of a Gaussian process."""

_BENDS, _BEND = (0.3, 0.7), (0.5,)
"""Standard deviations of the bend of the curve, equally probable beforehand; and where a case is
improbable, the one that does for both."""


def resolution(rows_per_source: float, variance: float) -> float:
    """Rows over the standard deviation of the noise in one number, both of the average over sources.

    Everything in it is public: the law of the noise, and a guess of a source's rows.

    >>> from privcal.secure.round import NoiseLaw
    >>> round(resolution(30, NoiseLaw().variance(10**9, sources=50)))
    150
    """
    return rows_per_source / math.sqrt(variance)


def designs(public: bool, event: bool) -> list[tuple[float, ...]]:
    """The knots that there are to choose from, few ones first."""
    if event:
        return [EVENT_KNOTS]
    return [COARSE_KNOTS, FINE_KNOTS] if public else [WIDE_COARSE_KNOTS, WIDE_FINE_KNOTS]


def knots(
    public: bool, event: bool, resolution: float = math.inf, hats: int | None = None
) -> tuple[float, ...]:
    """The scores around which rows are counted: `hats` of them, or as many as pay."""
    possible = designs(public, event)
    if hats is None:
        return possible[-1] if resolution >= FINE else possible[0]
    for found in possible:
        if len(found) == hats:
            return found
    counts = " or ".join(str(len(found)) for found in possible)
    raise InputError(f"hats must be {counts} for such a sketch, not {hats}")


@dataclass(frozen=True, eq=False)
class Frame:
    """Where the scores of a sketch are looked at: shared by all cases that are believed possible."""

    knots: tuple[float, ...]
    """The scores around which rows are counted."""
    low: float
    """The lowest score of the grid; rows below it count as if they had it."""
    high: float
    """The highest score of the grid; rows above it count as if they had it."""
    bulk: float
    """The score far above which scores differ less and less, to the Gaussian processes."""
    points: int = 65
    """The size of the grid."""
    whole: float = 0.0
    """What a row adds, whatever its score, to a number beside those of the hats; 0: there is none."""

    def compressed(self, score: float | FloatArray) -> FloatArray:
        """The score as the Gaussian processes see it."""
        return np.asarray(self.bulk * np.arcsinh(np.asarray(score) / self.bulk))

    @property
    def x(self) -> FloatArray:
        """The compressed scores of the grid, in equal steps."""
        return np.linspace(self.compressed(self.low), self.compressed(self.high), self.points)

    @property
    def grid(self) -> FloatArray:
        """The scores of the grid."""
        grid = self.bulk * np.sinh(self.x / self.bulk)
        grid[0], grid[-1] = self.low, self.high
        return np.asarray(grid)


@dataclass(frozen=True, eq=False)
class Prior:
    """One case of what is believed.

    Where the mean score of clean rows is known, the drift δ is how far the hidden rows' mean lies
    below it, and what is believed of α and b moves with it.
    """

    slope: tuple[float, float]
    """Mean and standard deviation of α."""
    level: tuple[float, float]
    """Mean and standard deviation of b."""
    correlation: float = 0.0
    """Correlation of α and b: where confidence means less, it is usually too high as well."""
    base: FloatArray | None = None
    """Log-odds on the grid that the slope multiplies; the score itself, unless said."""
    clean: float | None = None
    """The mean score of clean rows, where known."""
    slope_drift: float = 0.0
    """Factor of tanh δ in the mean of α."""
    level_drift: tuple[float, float] = (0.0, 0.0)
    """Factors of δ in the mean and in the standard deviation of b."""
    bend: Scale = (0.3, 1.5)
    """Standard deviation and length scale of f."""
    density: tuple[float, float] | FloatArray = (1.5, 3.0)
    """What ρ varies around: centre and width of a bell, or a density on the grid."""
    roughness: Scale = (1.5, 1.5)
    """Standard deviation and length scale of log ρ around it."""
    trend: Scale = (0.0, 5.0)
    """The same of a slower one beside it: many classifiers have no rows in most places."""
    ends: tuple[float, float] = (0.0, 2.5)
    """Standard deviations of log ρ at the lowest and at the highest score of the grid, where all
    rows beyond are counted as well."""
    end_bends: tuple[float, float] = (0.0, 1.5)
    """Standard deviations of f there: rows beyond need not be like those before."""


@dataclass(frozen=True)
class Case:
    """Something that may be so, and how probable it is beforehand."""

    prior: Prior
    weight: float
    unchanged: bool = False
    """Whether it says that nothing changed."""


def cases(frame: Frame, unchanged: float, *, event: bool = False) -> list[Case]:
    """What is believed without public rows, the scores being taken at T = 1.

    Nobody knows the scale of the logits, so it is wide. `unchanged` is the probability that
    nothing changed.
    """
    if event:
        slab = Prior(
            (-0.4, 0.6),
            (0.0, 1.5),
            density=(0.0, 4.0),
            trend=(5.0, 5.0),
            ends=(1.5, 1.5),
            end_bends=(1.5, 1.5),
        )
        mild = replace(slab, slope=(-0.2, 0.25), level=(0.0, 0.5))
    else:
        slab = Prior((-0.75, 0.5), (-0.6, 1.4), trend=(5.0, 5.0), ends=(0.0, 5.0))
        mild = replace(slab, slope=(-0.3, 0.3), level=(-0.25, 0.5))
    parts: list[tuple[Prior, float, tuple[float, ...]]]
    parts = [(slab, 2 / 3, _BENDS), (mild, 1 / 3, _BENDS)]
    if unchanged == 0:
        # Votes of trees, and scores fitted to few rows, mean more than they say.
        modest = replace(slab, slope=(0.2, 0.6), level=(2.0, 2.0))
        parts = [(slab, 1.0, _BENDS)] if event else [(slab, 0.8, _BENDS), (modest, 0.2, _BEND)]
    spike = replace(
        slab, slope=(0.0, 0.07), level=(0.0, 0.1), bend=(0.1, 1.5), end_bends=(0.1, 0.1)
    )
    return _cases(parts, spike, unchanged)


def cases_with_public(
    frame: Frame,
    unchanged: float,
    clean: float,
    curve: FloatArray,
    density: FloatArray,
    *,
    event: bool = False,
) -> list[Case]:
    """What is believed where scores are taken at the temperature that calibrates public rows.

    Their mean score is `clean`; on the grid, the log-odds fitted to them are `curve` and the
    density of their scores is `density`.
    """
    bell = -0.5 * ((frame.x - frame.compressed(clean - 0.5)) / 3.0) ** 2
    # Where public rows lie beyond the ends, hidden ones may; elsewhere few will.
    beyond = np.log(np.maximum(density[[0, -1]], 1e-3)) - np.log(density[1:-1].mean())
    bell[[0, -1]] = np.log(np.exp(bell[1:-1]).mean()) + beyond
    if event:
        slab = Prior(
            (-0.1, 0.3),
            (0.0, 1.2),
            density=np.exp(bell),
            ends=(1.0, 1.0),
            end_bends=(1.5, 1.5),
        )
    else:
        slab = Prior(
            (-0.1, 0.15),
            (-0.15, 0.3),
            correlation=0.4,
            clean=clean,
            slope_drift=-0.3,
            level_drift=(-0.25, 0.3),
            density=np.exp(bell),
            roughness=(1.2, 2.0),
            ends=(0.0, 1.0),
        )
    bell = np.exp(bell - bell.max())
    spike = Prior(
        (0.0, 0.07),
        (0.0, 0.1),
        base=curve,
        bend=(0.1, 1.5),
        density=0.97 * density + 0.03 * bell / bell.sum(),
        roughness=(0.1, 1.5),
        ends=(0.1, 0.1),
        end_bends=(0.1, 0.1),
    )
    return _cases([(slab, 1.0, _BENDS)], spike, unchanged)


def _cases(
    changed: Sequence[tuple[Prior, float, tuple[float, ...]]], spike: Prior, unchanged: float
) -> list[Case]:
    """The cases of a change, each with its probability and bends, and the one of none."""
    if not 0 <= unchanged < 1:
        raise InputError(f"unchanged must be a probability from 0 to below 1, not {unchanged}")
    found = [
        Case(replace(prior, bend=(bend, prior.bend[1])), (1 - unchanged) * share / len(bends))
        for prior, share, bends in changed
        for bend in bends
    ]
    return found + ([Case(spike, unchanged, unchanged=True)] if unchanged else [])
