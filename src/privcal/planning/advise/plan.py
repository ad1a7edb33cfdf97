"""A plan: the result of `advise`, the settings it went through, and how to choose among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from privcal.data.files import replacing
from privcal.planning.simulate.variants import EACH, UNCALIBRATED, Variant
from privcal.trusted.records import facts, write
from privcal.trusted.scores import FloatArray

# --- Grids of ε and of numbers of sources, and the smallest value that reaches a target -----------

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


# --- The plan, and what it consists of ------------------------------------------------------------

RANGE = (10, 90)
"""Percentiles over shifts of the value that is expected at each."""

Verdict = Literal["yes", "barely", "no"]
"""Whether there is enough data."""

Budget = Literal["population", "person"]
"""What a ledger's policy calls one budget for all people, and one for each."""


@dataclass(frozen=True)
class ShiftMean:
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
    def of(cls, values: FloatArray) -> ShiftMean:
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

    @classmethod
    def mixed(cls, means: Sequence[ShiftMean], weights: Sequence[float]) -> ShiftMean:
        """The average of values that were simulated independently; the weights add up to 1."""
        expected = np.asarray(weights) @ np.array([mean.shifts for mean in means])
        low, high = np.percentile(expected, RANGE)
        errors = [weight * mean.se for weight, mean in zip(weights, means, strict=True)]
        return cls(
            float(expected.mean()),
            float(np.hypot.reduce(errors)),
            float(low),
            float(high),
            tuple(expected.tolist()),
        )

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Expectation:
    """What to expect of one method at one setting."""

    method: Variant
    private: bool
    """Whether it asks sources; the others are there to compare with."""
    ece: ShiftMean
    brier: ShiftMean
    aurc: ShiftMean
    ece_if_right: ShiftMean
    """The ECE afterwards, where the model was right already: what asking can spoil."""
    unclear: float | None = None
    """For a sketch: how often the noise drowns the data, and it falls back on its prior."""

    def to_dict(self) -> dict[str, Any]:
        return {**facts(self), "method": str(self.method)}


@dataclass(frozen=True)
class Point:
    """One setting, and what to expect of every method there."""

    sources: int
    epsilon: float
    expected: tuple[Expectation, ...]
    aggregation: str = EACH
    """Whether each source answers by itself, or secure sums are taken."""

    def of(self, method: Variant | str) -> Expectation:
        """What to expect of a method, by its value or its name."""
        return next(e for e in self.expected if str(e.method) == str(method))

    def private(self) -> list[Expectation]:
        return [e for e in self.expected if e.private]

    def candidates(self) -> list[Expectation]:
        """The private ones that may be recommended as the best.

        Whether a model is left alone in doubt is for its users to say: that is no better method.
        """
        return [e for e in self.private() if LEAVE_ALONE not in e.method.names]

    def in_doubt(self) -> Expectation:
        """The private one that leaves a model alone in doubt."""
        return next(e for e in self.private() if LEAVE_ALONE in e.method.names)

    @property
    def nothing_done(self) -> Expectation:
        return self.of(Variant(UNCALIBRATED))

    def without_data(self) -> Expectation:
        """The best of the maps that need no data of any source."""
        priors = [e for e in self.expected if e.method.method == PRIOR and not e.private]
        return min(priors, key=lambda e: e.ece.mean)


LEAVE_ALONE = "leave_alone"
"""The option of a method that leaves a model alone in doubt."""

PRIOR = "prior"
"""The map a sketch would give without an answer: what is believed beforehand."""


@dataclass(frozen=True)
class GridSearch:
    """All points of a grid, and for each private method the least that reaches the target."""

    over: Over
    points: tuple[Point, ...]
    smallest: dict[Variant, Smallest]
    """Where each method first reaches the target; empty where there is none."""

    @property
    def grid(self) -> list[float]:
        return [float(getattr(point, self.over)) for point in self.points]

    def to_dict(self) -> dict[str, Any]:
        found = {str(method): least for method, least in self.smallest.items()}
        every = {"over": self.over, "grid": self.grid, "found": found, "points": self.points}
        return {name: write(value) for name, value in every.items()}


@dataclass(frozen=True)
class Enough:
    """Is there enough data at all?"""

    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class PublicFacts:
    """What the calibrator's own clean rows say."""

    rows: int
    accuracy: float
    ece: float
    """The ECE at T = 1."""
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
    current_ece: float | None = None
    """The ECE that the shifts were eased to, where the calibrator said that of the own model."""


@dataclass(frozen=True)
class SecureSums:
    """What a plan takes with secure sums, and with each source's own noise: as much noise in all."""

    each: float
    """ε where each source answers by itself."""
    secure: float
    """ε with secure sums under the usual terms (see `privcal.planning.simulate.variants`)."""
    colluding: int
    """So many of the sources may then work with whoever asks."""
    needed: int
    """So many must answer."""
    alone: int
    """If more work with whoever asks, or the encryption is broken: at most so many times the ε."""
    pays_from: int
    """From so many sources on they take less than half the ε."""
    sentence: str
    """All that in words, and what it rests on."""


@dataclass(frozen=True)
class Course:
    """All campaigns of one budget."""

    budget: Budget
    times: int
    """How often a person counts before the budget is used up."""
    rows: tuple[int, ...]
    """Rows of each source that count, in each campaign."""
    points: tuple[Point, ...]
    """What to expect in each campaign."""
    mean: Point
    """Over all campaigns."""
    method: Variant
    """The best one, in the mean."""

    @property
    def epsilon(self) -> float:
        """The ε of each campaign."""
        return self.mean.epsilon

    @property
    def expected(self) -> Expectation:
        """What to expect of its method, in the mean over campaigns."""
        return self.mean.of(self.method)

    @property
    def last(self) -> Expectation:
        """What to expect of its method, in the last campaign."""
        return self.points[-1].of(self.method)

    def to_dict(self) -> dict[str, Any]:
        along = [point.of(self.method) for point in self.points]
        return {
            "budget": self.budget,
            "times": self.times,
            "epsilon": self.epsilon,
            "method": str(self.method),
            "rows": self.rows,
            "ece": [e.ece.mean for e in along],
            "brier": [e.brier.mean for e in along],
            "aurc": [e.aurc.mean for e in along],
            "mean": write(self.mean),
            "last": write(self.points[-1]),
        }


@dataclass(frozen=True)
class Repeated:
    """Several campaigns out of one ε, with one budget for all people or one for each."""

    campaigns: int
    new_people: float
    """The share of a campaign's people who were not there at the one before."""
    epsilon: float
    """For all campaigns together."""
    population: Course
    person: Course
    """The best of those tried that last: in the last campaign no worse than one budget for all."""
    tried: tuple[Course, ...]
    """With a budget for each person, by how often a person counts."""
    recommended: Budget
    who: str
    """Who is there, and who counts, in sentences."""

    @property
    def course(self) -> Course:
        """The recommended one."""
        return self.person if self.recommended == "person" else self.population

    def to_dict(self) -> dict[str, Any]:
        return {
            **facts(self),
            "tried": [
                {
                    "times": course.times,
                    "epsilon": course.epsilon,
                    "method": str(course.method),
                    "ece": course.expected.ece.mean,
                    "brier": course.expected.brier.mean,
                    "aurc": course.expected.aurc.mean,
                }
                for course in self.tried
            ],
        }


@dataclass(frozen=True)
class Spot:
    """One setting near the recommended one, and what to do there."""

    samples: int
    point: Point
    method: Variant
    """What to use: the best private method, or what needs no data where that is no worse."""
    recommendation: str
    enough: Enough
    secure: str
    """What it takes with secure sums and without, in words."""

    def to_dict(self) -> dict[str, Any]:
        """Methods by their place in the plan's list of them: there are many settings."""
        expected = self.point.expected
        return {
            "method": [e.method for e in expected].index(self.method),
            "recommendation": self.recommendation,
            "verdict": self.enough.verdict,
            "enough": self.enough.sentence,
            "secure": self.secure,
            "ece": [(e.ece.mean, e.ece.low, e.ece.high) for e in expected],
            "brier": [(e.brier.mean, e.brier.low, e.brier.high) for e in expected],
            "aurc": [e.aurc.mean for e in expected],
            "ece_if_right": [e.ece_if_right.mean for e in expected],
        }


@dataclass(frozen=True)
class Around:
    """Every ε, number of sources and of rows of a grid around the recommended setting."""

    epsilons: tuple[float, ...]
    sources: tuple[int, ...]
    samples: tuple[int, ...]
    spots: tuple[Spot, ...]
    """In the order of rows, then sources, then ε."""
    trials: int
    """Simulated runs at each shift, fewer than for the plan itself."""


@dataclass(frozen=True, repr=False)
class Plan:
    """What to expect, what to do, and what that rests on: the result of `privcal.advise`.

    Examples
    --------
    >>> plan = privcal.advise(samples=20, sources=20, shifts=["fog"], trials=4)
    >>> plan.sources, plan.epsilon, plan.reached
    (20, 1.0, None)
    >>> plan.recommendation.startswith("Use ")
    True
    """

    samples: int
    """Rows at each source."""
    target_ece: float | None
    """The expected ECE that was asked for, if any."""
    point: Point
    """The setting of the table: the one asked for, or the one the search chose; of several
    campaigns the last."""
    method: Variant
    """The recommended one."""
    chosen: Point
    """Where it is recommended: `point`, or where it reaches the target."""
    reached: bool | None
    """Whether it reaches the target there; None where none was given."""
    recommendation: str
    """What to do, in words."""
    enough: Enough
    """Whether the data are enough to be better than doing nothing."""
    caveat: str
    """What the plan cannot know."""
    search: GridSearch | None
    """The settings gone through for a target or a picture."""
    public: PublicFacts | None
    """What was found in the calibrator's public rows, where there are any."""
    basis: Basis
    """The archive, shifts and trials that were simulated."""
    leave_alone: bool
    """Whether to leave the model as it is: nothing that asks is expected to be better."""
    secure: SecureSums | None = None
    """What it takes with secure sums and without; None where there are too few sources for any."""
    repeated: Repeated | None = None
    """Where several campaigns were planned."""
    around: Around | None = None
    """The settings around it, where a page with sliders was asked for."""

    @property
    def sources(self) -> int:
        """The number of sources where the method is recommended."""
        return self.chosen.sources

    @property
    def aggregation(self) -> str:
        """ "each" or "secure": whether each source answers by itself, or secure sums are taken."""
        return self.chosen.aggregation

    @property
    def epsilon(self) -> float:
        """The budget of the run at each source there."""
        return self.chosen.epsilon

    @property
    def expected(self) -> Expectation:
        """What to expect of the recommended method."""
        return self.chosen.of(self.method)

    def __repr__(self) -> str:
        return (
            f"Plan({self.method}, ε = {self.epsilon:g}, {self.sources} sources of {self.samples} rows: "
            f"expected ECE {self.expected.ece.mean:.3f})"
        )

    def _repr_html_(self) -> str:
        from privcal.data.html import Fact, fragment

        facts: dict[str, Fact] = {
            "method": "leave the model as it is" if self.leave_alone else str(self.method),
            "sources": f"{self.sources:,} of {self.samples:,} rows",
            "ε at each source": self.epsilon,
            "expected ECE": self.expected.ece.mean,
            "expected ECE, nothing done": self.chosen.nothing_done.ece.mean,
            "is that enough": self.enough.sentence,
        }
        return fragment("Plan", facts, self.recommendation)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, as `privcal advise --json` prints it."""
        return {
            "sources": self.sources,
            "epsilon": self.epsilon,
            "aggregation": self.aggregation,
            **facts(self),
            "method": str(self.method),
        }

    def to_html(self) -> str:
        """The plan as one HTML page, as `privcal advise --html` writes it: with sliders if it was
        made with `around=True`.

        Examples
        --------
        >>> plan = privcal.advise(samples=20, sources=20, shifts=["fog"], trials=4)
        >>> plan.to_html().startswith("<!doctype html>")
        True
        """
        pages = import_module("privcal.report.plan")  # what is shown comes after what is planned
        return str(pages.plan_page(self.to_dict(), [e.method for e in self.point.expected]))

    def save_html(self, path: str | Path) -> Path:
        """Write the page to the file `path`, and return that."""
        with replacing(Path(path)) as part:
            part.write_text(self.to_html(), encoding="utf-8")
        return Path(path)


# --- Which method to recommend, and whether it is worth any ε at all ------------------------------

AS_GOOD = 0.02
"""A Brier score at most this share above the best is as good: then the ECE decides."""

CLEAR_ERRORS = 2.0
"""A difference counts from so many Monte-Carlo standard errors on."""

MOST_SHIFTS = 0.75
"""A clear gain is one at this share of the shifts, not only in the mean."""


def best(point: Point) -> Variant:
    """The best private method."""
    return best_of(point.candidates()).method


def best_of(several: Sequence[Expectation]) -> Expectation:
    """The one of lowest expected ECE among those with about the best Brier score.

    Not the lowest ECE of all: binning has it at times and pays with a worse confidence.
    """
    least = min(e.brier.mean for e in several)
    close = [e for e in several if e.brier.mean <= (1 + AS_GOOD) * least]
    return min(close, key=lambda e: e.ece.mean)


class Choice(NamedTuple):
    """The recommended method, where, and whether it reaches the target there, if there is one."""

    method: Variant
    point: Point
    reached: bool


def choose(asked: Point | None, search: GridSearch | None) -> Choice:
    """What to recommend.

    With a target: the one that reaches it first; of several the one with the better Brier
    score; none whose Brier score is worse than with nothing done. Otherwise the best one at the
    setting asked about, or at the end of the grid.
    """
    reached: list[tuple[float, float, Variant, Point]] = []
    if search is not None:
        for method, least in search.smallest.items():
            if least.value is not None:
                point = search.points[search.grid.index(least.value)]
                brier = point.of(method).brier.mean
                if brier < point.nothing_done.brier.mean:
                    reached.append((least.value, brier, method, point))
    if reached:
        _, _, method, point = min(reached, key=lambda entry: entry[:2])
        return Choice(method, point, True)
    if asked is None:
        assert search is not None
        asked = search.points[-1]
    return Choice(best(asked), asked, False)


def best_without_data(point: Point) -> Expectation:
    """The best that needs no data of any source: nothing at all, or a prior map."""
    return min(point.nothing_done, point.without_data(), key=lambda e: e.ece.mean)


def judge(method: Variant, point: Point) -> Verdict:
    """Do private answers beat doing nothing, and the best map that needs no data?"""
    private = point.of(method)
    others = [point.nothing_done, point.without_data()]
    if all(clearly(private, other) for other in others):
        return "yes"
    better = (
        private.ece.mean < other.ece.mean and private.brier.mean < other.brier.mean
        for other in others
    )
    return "barely" if all(better) else "no"


def leaves_alone(method: Variant, point: Point) -> bool:
    """Is the model best left as it is?"""
    return judge(method, point) == "no" and best_without_data(point) is point.nothing_done


def clearly(private: Expectation, other: Expectation) -> bool:
    """Better in both measures beyond the Monte-Carlo error, and at most of the shifts."""
    sure = all(
        theirs.mean - ours.mean > CLEAR_ERRORS * (ours.se**2 + theirs.se**2) ** 0.5
        for ours, theirs in ((private.ece, other.ece), (private.brier, other.brier))
    )
    return sure and wins(private.ece.shifts, other.ece.shifts) >= MOST_SHIFTS * len(
        private.ece.shifts
    )


def wins(ours: Sequence[float], theirs: Sequence[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))
