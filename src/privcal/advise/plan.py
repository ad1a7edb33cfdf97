"""A plan: the result of `advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privcal.advise.grid import Over, Smallest
from privcal.scores import FloatArray
from privcal.simulate.aggregation import EACH
from privcal.simulate.variants import UNCALIBRATED, Variant

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
        return {**asdict(self), "method": str(self.method)}


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "sources": self.sources,
            "epsilon": self.epsilon,
            "aggregation": self.aggregation,
            "expected": [e.to_dict() for e in self.expected],
        }


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
        return {
            "over": self.over,
            "grid": self.grid,
            "found": {str(method): least.to_dict() for method, least in self.smallest.items()},
            "points": [point.to_dict() for point in self.points],
        }


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
    """ε with secure sums under the usual terms (see `privcal.simulate.aggregation`)."""
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
            "mean": self.mean.to_dict(),
            "last": self.points[-1].to_dict(),
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
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "population": self.population.to_dict(),
            "person": self.person.to_dict(),
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

    def to_dict(self) -> dict[str, Any]:
        return {
            "epsilons": self.epsilons,
            "sources": self.sources,
            "samples": self.samples,
            "trials": self.trials,
            "spots": [spot.to_dict() for spot in self.spots],
        }


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
        from privcal.notebook import Fact, fragment

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
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "point": self.point.to_dict(),
            "method": str(self.method),
            "chosen": self.chosen.to_dict(),
            "enough": asdict(self.enough),
            "search": None if self.search is None else self.search.to_dict(),
            "public": None if self.public is None else asdict(self.public),
            "basis": asdict(self.basis),
            "secure": None if self.secure is None else asdict(self.secure),
            "repeated": None if self.repeated is None else self.repeated.to_dict(),
            "around": None if self.around is None else self.around.to_dict(),
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
        from privcal.advise.page import plan_page

        return plan_page(self.to_dict(), [e.method for e in self.point.expected])

    def save_html(self, path: str | Path) -> Path:
        """Write the page to the file `path`, and return that."""
        from privcal.pages import save

        return save(path, self.to_html())
