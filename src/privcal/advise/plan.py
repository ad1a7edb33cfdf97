"""What a plan says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from privcal.advise.search import Over, Smallest
from privcal.scores import FloatArray

RANGE = (10, 90)
"""Percentiles over shifts of the value that is expected at each."""

Verdict = Literal["yes", "barely", "no"]


@dataclass(frozen=True)
class Figure:
    """An expected value: its mean over shifts, and how different it is from shift to shift."""

    mean: float
    se: float
    """Monte-Carlo standard error of the mean; more trials make it smaller."""
    low: float
    high: float
    """The range over shifts, which no number of trials makes smaller."""
    shifts: tuple[float, ...]
    """The expected value at each shift."""

    @classmethod
    def of(cls, values: FloatArray) -> Figure:
        """From values (shifts, trials)."""
        shifts, trials = values.shape
        expected = values.mean(axis=1)
        error = (
            values.std(axis=1, ddof=1) / np.sqrt(trials) if trials > 1 else np.full(shifts, np.nan)
        )
        low, high = np.percentile(expected, RANGE)
        return cls(
            float(expected.mean()),
            float(np.sqrt((error**2).sum()) / shifts),
            float(low),
            float(high),
            tuple(expected.tolist()),
        )

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Expected:
    """What to expect of one method at one setting."""

    method: str
    private: bool
    """Whether it asks sources; the others are there to compare with."""
    ece: Figure
    brier: Figure
    unclear: float | None = None
    """For a sketch: how often the noise drowns the data, and it falls back on its prior."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """One setting, and what to expect of every method there."""

    sources: int
    epsilon: float
    expected: tuple[Expected, ...]

    def of(self, method: str) -> Expected:
        return next(one for one in self.expected if one.method == method)

    def private(self) -> list[Expected]:
        return [one for one in self.expected if one.private]

    def without_data(self) -> Expected:
        """The best of the maps that need no data of any source."""
        priors = (one for one in self.expected if one.method.startswith(PRIOR))
        found = [one for one in priors if not one.private]
        return min(found, key=lambda one: one.ece.mean)


UNCALIBRATED = "uncalibrated"
ONE_SOURCE = "one-source"
PRIOR = "prior"
"""The map a sketch would give without an answer: what is believed beforehand."""


@dataclass(frozen=True)
class Search:
    """All points of a grid, and for each private method the least that reaches the target."""

    over: Over
    points: tuple[Point, ...]
    found: dict[str, Smallest]
    """Empty where no target was given."""

    @property
    def grid(self) -> list[float]:
        return [float(getattr(point, self.over)) for point in self.points]

    def to_dict(self) -> dict[str, Any]:
        return {
            "over": self.over,
            "grid": self.grid,
            "found": {method: one.to_dict() for method, one in self.found.items()},
            "points": [asdict(point) for point in self.points],
        }


@dataclass(frozen=True)
class Enough:
    """Is there enough data at all?"""

    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class Public:
    """What the calibrator's own clean rows say."""

    rows: int
    accuracy: float
    ece: float
    """At T = 1."""
    temperature: float
    """The one that calibrates them."""
    simulated: int
    """As many clean rows of the archive stood for them."""


@dataclass(frozen=True)
class Basis:
    """What the plan was simulated on."""

    dataset: str
    shifts: tuple[str, ...]
    rows: int
    trials: int
    seed: int


@dataclass(frozen=True)
class Plan:
    """What to expect, what to do, and what that rests on."""

    samples: int
    target_ece: float | None
    point: Point
    """The setting of the table: the one asked for, or the one the search chose."""
    method: str
    """The recommended one."""
    chosen: Point
    """Where it is recommended: `point`, or where it reaches the target."""
    reached: bool | None
    """Whether it reaches the target there; None where none was given."""
    recommendation: str
    enough: Enough
    caveat: str
    search: Search | None
    public: Public | None
    basis: Basis

    @property
    def sources(self) -> int:
        return self.chosen.sources

    @property
    def epsilon(self) -> float:
        return self.chosen.epsilon

    @property
    def expected(self) -> Expected:
        """Of the recommended method."""
        return self.chosen.of(self.method)

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            "sources": self.sources,
            "epsilon": self.epsilon,
            **{k: asdict(v) if hasattr(v, "__dataclass_fields__") else v for k, v in plain.items()},
            "search": None if self.search is None else self.search.to_dict(),
        }
