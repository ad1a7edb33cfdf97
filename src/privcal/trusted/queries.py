"""The closed family of questions a source answers.

A query is a frozen description of one bounded sum over rows. It never carries code, and a
source rebuilds it from its own copy of these classes before it answers.

How the bound is kept, for every query alike
--------------------------------------------
`Query.contributions` turns each row into whole numbers on the grid of 2⁻²⁰: clip, scale, round
(towards zero where a row touches more than one cell, so rounding cannot add up), clip again as
an integer, and count a row as zero if the L1 norm of its integers still exceeds `bound` or if
it is malformed (not `scores.valid`). The answer before noise is the int64 sum of these rows.

Proof of sensitivity. A row's integers depend on that row alone (see `privcal.kernel`), and
so does whether it is malformed (see `privcal.trusted.scores`); their L1 norm is at most `bound` by the
last step. Adding or removing one row therefore changes the vector of sums by at most `bound` in
L1. Removing one person removes at most `rows_per_person` rows (see `privcal.trusted.source`), hence
`rows_per_person · bound`. At most 2³¹ rows of at most 1000 · 2²⁰ each stay below 2⁶², so no sum
wraps. ∎

What remains for each class to show is that the bound is no smaller than what an honest row
contributes, so that nothing is lost to the clipping.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from privcal.trusted import records
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import (
    NUMPY,
    Bins,
    Kernel,
    Temperature,
    bin_index,
)
from privcal.trusted.records import Between
from privcal.trusted.scores import BoolArray, FloatArray, IntArray, Scores

GRID = 1 << 20
"""Grid points in one unit: answers are multiples of 2⁻²⁰."""

MAX_CLIP = 1000.0
MAX_KNOTS = 32
MAX_KNOT = 100.0
MAX_CLASS = 2**31 - 1
MIN_STEP = 0.01
"""The least distance of two knots: a smaller one would only ask for the last bits of a score."""

MAX_CLASSES = 1000
MAX_OFFSET = 100.0
HATS_SHARE = 0.125
"""The share of a row's unit that `ClassHats` spends on hats: whole grid points, so nothing is lost."""


def _positive(name: str, value: float) -> float:
    if value == 0:
        raise InputError(f"{name} must be above 0")
    return value


def _spaced(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    if any(b - a < MIN_STEP for a, b in itertools.pairwise(values)):
        raise InputError(f"{name} must each be at least {MIN_STEP:g} above the one before")
    return values


_Knot = Annotated[float, Between(-MAX_KNOT, MAX_KNOT)]
_Offset = Annotated[float, Between(-MAX_OFFSET, MAX_OFFSET)]
Knots = Annotated[tuple[_Knot, ...], Between(2, MAX_KNOTS), _spaced]


@dataclass(frozen=True)
class Contributions:
    """What each row adds: row i adds `values[i, r]`, on the grid, to cell `cells[i, r]`.

    Both arrays are (rows, touched cells).
    """

    cells: IntArray
    values: IntArray

    def sum(self, length: int) -> IntArray:
        """The sums over all rows, of shape (length,), in grid points."""
        total = np.zeros(length, np.int64)
        np.add.at(total, self.cells.ravel(), self.values.ravel())
        return total

    def take(self, rows: Any) -> Contributions:
        """The contributions of some rows."""
        return Contributions(self.cells[rows], self.values[rows])


@dataclass(frozen=True)
class Query(ABC):
    """One bounded sum over rows: `length` numbers, with L1 sensitivity `sensitivity`.

    A query is immutable, carries no code, and is equal to another of the same kind and parameters.
    The family is closed: `Gap`, `Nll`, `BinnedGap`, `Histogram`, `CellHistogram`, `Hats`,
    `EventHats`, `ClassHats`, `OffsetHats`.

    Examples
    --------
    >>> query = Histogram(bins=10)
    >>> query.length, query.sensitivity
    (20, 2.0)
    >>> parse(query.to_dict()) == query
    True
    """

    kind: ClassVar[str]
    searched: ClassVar[tuple[str, ...]] = ("temperature",)
    """Parameters that may depend on the answers to earlier questions."""

    def __post_init__(self) -> None:
        records.check(self)

    @property
    @abstractmethod
    def length(self) -> int:
        """How many numbers the answer has."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The most that one row can change the answer, in L1."""

    @property
    def classes(self) -> int:
        """The fewest classes that a model must have for this to mean anything."""
        return 1

    @property
    def all_classes(self) -> bool:
        """Whether it needs the outputs of all classes: not just the confidence in each answer.

        Whatever is at another temperature than 1 does.
        """
        return bool(getattr(self, "temperature", 1.0) != 1.0)

    @abstractmethod
    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        """Cells and real values, each (n, touched cells)."""

    @property
    def bound(self) -> int:
        """The sensitivity in grid points, rounded up."""
        return math.ceil(self.sensitivity * GRID)

    def contributions(self, scores: Scores, kernel: Kernel = NUMPY) -> Contributions:
        """What each row adds to the sums, clipped so that the bound holds whatever the scores are.

        A source gives no `kernel`; simulations may give a faster one.
        """
        if self.all_classes:
            scores.outputs.need_all_classes(f"the query {self.kind}")
        with np.errstate(all="ignore"):
            cells, values = self._rows(scores, kernel)
            values = np.where(np.isfinite(values), values, 0.0)
            values = np.clip(values, -self.sensitivity, self.sensitivity) * GRID
            rounded = np.rint(values) if values.shape[1] == 1 else np.trunc(values)
            grid = np.clip(rounded.astype(np.int64), -self.bound, self.bound)
            grid[(np.abs(grid).sum(axis=1) > self.bound) | ~scores.valid] = 0
        return Contributions(np.clip(cells, 0, self.length - 1), grid)

    def at(self, temperature: float) -> Query:
        """The same question at another temperature."""
        return replace(self, temperature=float(temperature))  # type: ignore[call-arg]

    def to_dict(self) -> dict[str, Any]:
        """The query as `parse` reads it."""
        return {"kind": self.kind, **records.facts(self)}

    def canonical(self) -> str:
        """The one JSON spelling of this query."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return records.text(self.to_dict())

    def fixed(self) -> str:
        """The one spelling of what is known of this query before any answer is.

        In place of a parameter that is `searched` stands how many numbers it is.
        """
        facts = self.to_dict()
        open = {name: np.size(facts[name]) for name in self.searched if name in facts}
        return records.text({**facts, **open})


@dataclass(frozen=True)
class Gap(Query):
    """Σ (correct − confidence at T): what Acc-T asks.

    Bound: correct is 0 or 1 and confidence is in [0, 1], so |correct − confidence| ≤ 1.

    Parameters
    ----------
    temperature
        T, a positive number: the scores are divided by it before the softmax.

    Examples
    --------
    >>> Gap(1.5).length, Gap(1.5).sensitivity
    (1, 1.0)
    """

    kind = "gap"
    temperature: Temperature = 1.0

    @property
    def length(self) -> int:
        return 1

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        gap = scores.correct - kernel.confidence(scores.outputs, self.temperature)
        return np.zeros((len(scores), 1), np.int64), gap[:, None]


@dataclass(frozen=True)
class Nll(Query):
    """Σ min(negative log-likelihood of the label at T, clip): what NLL-T asks.

    Bound: each row is in [0, clip] after clipping. (The paper uses the unclipped sum and takes
    10 for its sensitivity because no larger value was seen; unclipped it has none.)

    Parameters
    ----------
    temperature
        T, a positive number: the scores are divided by it before the softmax.
    clip
        The most that one row counts, above 0 and at most 1000; the noise grows with it.

    Examples
    --------
    >>> Nll(clip=4.0).sensitivity
    4.0
    """

    kind = "nll"
    temperature: Temperature = 1.0
    clip: Annotated[float, Between(0, MAX_CLIP), _positive] = 10.0

    @property
    def length(self) -> int:
        return 1

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def all_classes(self) -> bool:
        return True

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        loss = np.maximum(kernel.nll(scores, self.temperature), 0.0)
        return np.zeros((len(scores), 1), np.int64), loss[:, None]


@dataclass(frozen=True)
class BinnedGap(Query):
    """Σ (correct − confidence at T) within each of `bins` equal-width bins: what ECE-T asks.

    Bound: a row lies in exactly one bin, where it adds at most 1 in absolute value.

    Parameters
    ----------
    temperature
        T, a positive number: the scores are divided by it before the softmax.
    bins
        How many bins of equal width confidence is divided into.

    Examples
    --------
    >>> BinnedGap(bins=10).length
    10
    """

    kind = "binned-gap"
    temperature: Temperature = 1.0
    bins: Bins = 15

    @property
    def length(self) -> int:
        return self.bins

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        c = kernel.confidence(scores.outputs, self.temperature)
        return bin_index(c, self.bins)[:, None], (scores.correct - c)[:, None]


@dataclass(frozen=True)
class _TwoByBin(Query):
    """Two numbers for each bin of confidence at T = 1."""

    bins: Bins = 15

    @property
    def length(self) -> int:
        return 2 * self.bins

    def _where(self, scores: Scores, kernel: Kernel) -> IntArray:
        return bin_index(kernel.confidence(scores.outputs, 1.0), self.bins)


@dataclass(frozen=True)
class Histogram(_TwoByBin):
    """Correct rows, then all rows, of each bin: the paper's histogram.

    Bound: a row adds 1 to its bin's total and, if correct, 1 to its bin's correct count: 2.

    Parameters
    ----------
    bins
        How many bins of equal width confidence (at T = 1) is divided into.

    Examples
    --------
    >>> Histogram(bins=10).length, Histogram(bins=10).sensitivity
    (20, 2.0)
    """

    kind = "histogram"

    @property
    def sensitivity(self) -> float:
        return 2.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        where = self._where(scores, kernel)
        cells = np.stack([where, where + self.bins], axis=1)
        return cells, np.stack([scores.correct, np.ones(len(scores))], axis=1)


@dataclass(frozen=True)
class CellHistogram(_TwoByBin):
    """Wrong rows, then correct rows, of each bin.

    Bound: a row is either wrong or correct, so it adds 1 to exactly one cell: 1. It says the
    same as `Histogram` (total = wrong + correct) with half the noise.

    Parameters
    ----------
    bins
        How many bins of equal width confidence (at T = 1) is divided into.

    Examples
    --------
    >>> CellHistogram(bins=10).length, CellHistogram(bins=10).sensitivity
    (20, 1.0)
    """

    kind = "cell-histogram"

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        cells = self._where(scores, kernel) + self.bins * scores.correct
        return cells[:, None], np.ones((len(scores), 1))


@dataclass(frozen=True)
class Hats(Query):
    """Wrong rows, then correct rows, near each of a few knots of the score: what `sketch` asks.

    The score is the log-odds s of the confidence at T. A row between two knots counts for both,
    in proportion to how near it is (a hat function around each knot: linear, non-negative,
    summing to 1); beyond the ends it counts for the last knot alone.

    Bound: a row is either wrong or correct and its two shares are non-negative and sum to 1, so
    it adds 1 in L1. Rounding each towards zero keeps it so on the grid.

    Parameters
    ----------
    temperature
        T, a positive number: the scores are divided by it before the softmax.
    knots
        2 to 32 log-odds from -100 to 100, each at least 0.01 above the one before.

    Examples
    --------
    >>> Hats(knots=(-2.0, 0.0, 3.0)).length
    6
    """

    kind = "hats"
    temperature: Temperature = 1.0
    knots: Knots = (-2.0, 4.0)

    @property
    def event(self) -> int | None:
        """The class whose score it is; None where it is that of the predicted one."""
        return None

    @property
    def length(self) -> int:
        return 2 * len(self.knots)

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        return _in_hats(self.knots, *self._split(scores, kernel))

    def _split(self, scores: Scores, kernel: Kernel) -> tuple[FloatArray, BoolArray]:
        """The score of each row, and whether it goes to the second half of the cells."""
        return kernel.log_odds(scores.outputs, self.temperature), scores.correct


@dataclass(frozen=True)
class EventHats(Hats):
    """Rows of other classes, then rows of the class `event`, near each knot of its score.

    What `sketch` asks for the risk of an event. The score is the log-odds of P(`event`) at T, of
    that class against all others, whether it is predicted or not; rows are split by their label.

    Bound: a row's label is either `event` or not, and its two shares are non-negative and sum to
    1, so it adds 1 in L1, as for `Hats`. A model without such a class has nothing to add.

    Parameters
    ----------
    temperature, knots
        As for `Hats`.
    event
        The class, counted from 0.

    Examples
    --------
    >>> EventHats(knots=(-2.0, 0.0, 2.0), event=1).length
    6
    """

    kind = "event-hats"
    event: Annotated[int, Between(0, MAX_CLASS)] = 1

    @property
    def classes(self) -> int:
        return self.event + 1

    @property
    def all_classes(self) -> bool:
        return True

    def _split(self, scores: Scores, kernel: Kernel) -> tuple[FloatArray, BoolArray]:
        if scores.classes < self.classes:
            return np.full(len(scores), np.nan), np.zeros(len(scores), np.bool_)
        odds = kernel.log_odds(scores.outputs, self.temperature, of=self.event)
        return odds, np.asarray(scores.labels == self.event)


@dataclass(frozen=True)
class ClassHats(Query):
    """`Hats`, and wrong rows, then correct rows, of each predicted class.

    A row divides its unit: `HATS_SHARE` of it goes to the hats of its score, the rest to its
    predicted class. A class beyond `classes` is not counted.

    Bound: the two shares of the hats are non-negative and sum to `HATS_SHARE`, the predicted class
    is one class and gets 1 − `HATS_SHARE`, and a row is either wrong or correct: 1 in L1. Rounding
    each towards zero keeps it so on the grid.

    Parameters
    ----------
    temperature, knots
        As those of `Hats`.
    classes
        How many classes are counted, from 2 to 1,000; a model must have as many.

    Examples
    --------
    >>> query = ClassHats(knots=(-2.0, 0.0, 3.0), classes=10)
    >>> query.length, query.sensitivity
    (26, 1.0)
    """

    kind = "class-hats"
    temperature: Temperature = 1.0
    knots: Knots = (-2.0, 4.0)
    classes: Annotated[int, Between(2, MAX_CLASSES)] = 2

    @property
    def all_classes(self) -> bool:
        return True

    @property
    def length(self) -> int:
        return 2 * (len(self.knots) + self.classes)

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        cells, shares = Hats(self.temperature, self.knots)._rows(scores, kernel)
        predicted = scores.outputs.predicted[:, None]
        counted = predicted < self.classes
        own = 2 * len(self.knots) + self.classes * scores.correct[:, None] + predicted
        return (
            np.concatenate([cells, own], axis=1),
            np.concatenate([HATS_SHARE * shares, (1 - HATS_SHARE) * counted], axis=1),
        )


@dataclass(frozen=True)
class OffsetHats(Query):
    """Hats of a corrected score: a curve of the score, plus an offset for the predicted class.

    The curve is straight lines through the points (`scores`, `log_odds`), level beyond both ends.
    A predicted class without an offset has 0.

    Bound: only where a row counts is another than in `Hats`, so it is the same: 1.

    Parameters
    ----------
    temperature
        T, at which the score itself is taken.
    scores, log_odds
        2 to 32 points of the curve: scores as knots are, and as many numbers from -100 to 100 that
        never fall.
    offsets
        For each of 2 to 1,000 classes a number from -100 to 100.
    knots
        As those of `Hats`, of the corrected score.

    Examples
    --------
    >>> query = OffsetHats(scores=(-2.0, 4.0), log_odds=(-2.0, 1.0), offsets=(0.0, -0.5, 0.5))
    >>> query.length
    4
    """

    kind = "offset-hats"
    searched = ("temperature", "scores", "log_odds", "offsets")
    temperature: Temperature = 1.0
    scores: Knots = (-2.0, 4.0)
    log_odds: Annotated[tuple[_Offset, ...], Between(2, MAX_KNOTS)] = (-2.0, 4.0)
    offsets: Annotated[tuple[_Offset, ...], Between(2, MAX_CLASSES)] = (0.0, 0.0)
    knots: Knots = (-2.0, 4.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        falls = any(b < a for a, b in itertools.pairwise(self.log_odds))
        if falls or len(self.log_odds) != len(self.scores):
            raise InputError("log_odds of a curve must be as many as its scores and never fall")

    @property
    def classes(self) -> int:
        return len(self.offsets)

    @property
    def all_classes(self) -> bool:
        return True

    @property
    def length(self) -> int:
        return 2 * len(self.knots)

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: Scores, kernel: Kernel) -> tuple[IntArray, FloatArray]:
        s = kernel.log_odds(scores.outputs, self.temperature)
        corrected = corrected_score(
            s, scores.outputs.predicted, self.scores, self.log_odds, self.offsets
        )
        return _in_hats(self.knots, corrected, scores.correct)


def corrected_score(
    s: FloatArray,
    predicted: IntArray,
    scores: tuple[float, ...],
    log_odds: tuple[float, ...],
    offsets: tuple[float, ...],
) -> FloatArray:
    """Lines through the points (`scores`, `log_odds`) at `s`, plus the predicted class's offset."""
    left, share = _between(np.array(scores), s)
    y, offset = np.array(log_odds), np.array([*offsets, 0.0])
    line = y[left] + share * (y[left + 1] - y[left])
    return np.asarray(line + offset[np.minimum(predicted, len(offsets))])


def _in_hats(
    knots: tuple[float, ...], score: FloatArray, yes: BoolArray
) -> tuple[IntArray, FloatArray]:
    """The two hats that each row counts for, in the second half of the cells where `yes`."""
    left, share = _between(np.array(knots), score)
    cells = left + len(knots) * yes
    return np.stack([cells, cells + 1], axis=1), np.stack([1 - share, share], axis=1)


def _between(knots: FloatArray, s: FloatArray) -> tuple[IntArray, FloatArray]:
    """The knot left of each score, and how far the score is from there to the next, from 0 to 1."""
    s = np.clip(s, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, s, side="right") - 1, 0, len(knots) - 2)
    return left, (s - knots[left]) / (knots[left + 1] - knots[left])


FAMILY: dict[str, type[Query]] = {
    cls.kind: cls
    for cls in (
        *(Gap, Nll, BinnedGap, Histogram, CellHistogram),
        *(Hats, EventHats, ClassHats, OffsetHats),
    )
}


def parse(message: Any) -> Query:
    """A query from its JSON form; anything outside the family is an InputError.

    >>> parse({"kind": "gap", "temperature": 1.5})
    Gap(temperature=1.5)
    >>> parse({"kind": "sum"})
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: unknown query; the family is gap, nll, binned-gap, histogram, cell-histogram, hats, event-hats, class-hats, offset-hats
    """
    kind = message.get("kind") if isinstance(message, dict) else None
    if not isinstance(kind, str) or kind not in FAMILY:
        raise InputError(f"unknown query; the family is {', '.join(FAMILY)}")
    facts = {name: value for name, value in message.items() if name != "kind"}
    return records.read(FAMILY[kind], facts, f"query {kind}")
