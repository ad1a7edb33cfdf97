"""How good a confidence is: states that add up (state(a) + state(b) = state of both), and
plain functions on arrays.

`confidence` is the probability a model gives its predicted class, `correct` whether that class
is the true one. Bin b of k equal-width bins holds the confidences with
min(⌊k·c⌋, k − 1) = b in float64, so a confidence of exactly 1 is in the last bin.

ECE alone can mislead: a constant equal to the accuracy has almost none and is useless. Read it
beside the Brier score, which counts both, and the area under the risk–coverage curve, which
counts the order of rows alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privcal.errors import InputError
from privcal.scores import BoolArray, FloatArray, IntArray

MAX_BINS = 1000


def check_bins(bins: int) -> int:
    if (
        isinstance(bins, bool)
        or not isinstance(bins, (int, np.integer))
        or not 1 <= bins <= MAX_BINS
    ):
        raise InputError(f"bins must be a whole number from 1 to {MAX_BINS}, not {bins!r}")
    return int(bins)


def bin_index(confidence: FloatArray, bins: int) -> IntArray:
    """min(⌊bins·confidence⌋, bins − 1), for confidences in [0, 1]."""
    return np.minimum((confidence * bins).astype(np.int64), bins - 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Rows, correct rows and summed confidence of each equal-width bin."""

    count: FloatArray
    correct: FloatArray
    confidence: FloatArray

    @classmethod
    def of(cls, confidence: Any, correct: Any, bins: int = 15) -> Reliability:
        c, y = _rows(confidence, correct)
        bins = check_bins(bins)
        where = bin_index(c, bins)
        return cls._from_index(c, y, where, bins)

    @classmethod
    def _from_index(cls, c: FloatArray, y: BoolArray, where: IntArray, bins: int) -> Reliability:
        return cls(
            _sums(where, bins),
            _sums(where, bins, y),
            _sums(where, bins, c),
        )

    def __add__(self, other: Reliability) -> Reliability:
        if len(self.count) != len(other.count):
            raise InputError(f"cannot add {len(self.count)} bins to {len(other.count)} bins")
        return Reliability(
            self.count + other.count,
            self.correct + other.correct,
            self.confidence + other.confidence,
        )

    def curve(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean confidence, accuracy and share of rows of each bin that has rows."""
        full = self.count > 0
        n = self.count[full]
        return self.confidence[full] / n, self.correct[full] / n, n / n.sum()

    @property
    def ece(self) -> float:
        """Expected calibration error: Σ share · |accuracy − mean confidence|."""
        return float(np.abs(self.correct - self.confidence).sum() / _some(self.count.sum()))

    @property
    def mce(self) -> float:
        """Maximum calibration error: the largest |accuracy − mean confidence| of a bin."""
        _some(self.count.sum())
        c, a, _ = self.curve()
        return float(np.abs(a - c).max())

    @property
    def debiased_ece(self) -> float:
        """ECE less its estimated bias, after Kumar, Liang and Ma 2019.

        The plain estimate is too large because a noisy accuracy is never exactly right. Their
        code redraws each bin's accuracy from a normal law with its own standard error and
        subtracts the mean excess; that mean has a closed form (the folded normal), used here.
        """
        _some(self.count.sum())
        c, a, share = self.curve()
        gap = a - c
        deviation = np.sqrt(a * (1 - a) / self.count[self.count > 0])
        expected = [_folded_normal_mean(g, s) for g, s in zip(gap, deviation, strict=True)]
        plain = float(share @ np.abs(gap))
        return 2 * plain - float(share @ np.asarray(expected))

    @property
    def debiased_rms(self) -> float:
        """Root-mean-square calibration error with the unbiased square of Kumar et al. 2019.

        A bin with a single row has no variance estimate and keeps its plain square.
        """
        _some(self.count.sum())
        c, a, share = self.curve()
        n = self.count[self.count > 0]
        bias = a * (1 - a) / np.maximum(n - 1, 1)
        return math.sqrt(max(0.0, float(share @ ((a - c) ** 2 - bias))))


@dataclass(frozen=True, eq=False)
class EqualMass:
    """For what depends on the order of all rows, as the edges of equal-mass bins do: keeps them."""

    confidence: FloatArray
    correct: BoolArray

    @classmethod
    def of(cls, confidence: Any, correct: Any) -> EqualMass:
        return cls(*_rows(confidence, correct))

    def __add__(self, other: EqualMass) -> EqualMass:
        return EqualMass(
            np.concatenate([self.confidence, other.confidence]),
            np.concatenate([self.correct, other.correct]),
        )

    def reliability(self, bins: int = 15) -> Reliability:
        """Bins of as equal a number of rows as ties allow: equal confidences stay together."""
        n = _some(len(self.confidence))
        bins = check_bins(bins)
        # A row's bin is that of the first row with the same confidence, so that the value
        # depends neither on the order of rows nor on how a sort breaks ties.
        ranks = np.searchsorted(np.sort(self.confidence), self.confidence, side="left")
        where = np.minimum(ranks * bins // n, bins - 1).astype(np.int64)
        return Reliability._from_index(self.confidence, self.correct, where, bins)

    @property
    def aurc(self) -> float:
        """Area under the risk–coverage curve (see `aurc`)."""
        n = _some(len(self.confidence))
        _, group = np.unique(-self.confidence, return_inverse=True)
        rows, wrong = np.bincount(group), np.bincount(group, ~self.correct)
        # In random order every row of a tie is as likely at each of the tie's places.
        weights = np.add.reduceat(rank_weights(n), np.cumsum(rows) - rows)
        return float((wrong * weights / rows).sum() / n)


def rank_weights(rows: int) -> FloatArray:
    """What a wrong row adds to rows · AURC at each place, the most confident first.

    At place r it is among the k most confident for all k ≥ r, so it adds Σ 1/k over those.
    """
    return np.asarray(np.cumsum(1.0 / np.arange(rows, 0, -1))[::-1])


@dataclass(frozen=True, eq=False)
class ClassWise:
    """Rows, rows of that class, and summed probability of each class and bin."""

    count: FloatArray
    members: FloatArray
    probability: FloatArray
    rows: int

    @classmethod
    def of(cls, probabilities: Any, labels: Any, bins: int = 15) -> ClassWise:
        p, y = _table(probabilities, labels)
        n, m = p.shape
        bins = check_bins(bins)
        cell = bin_index(p, bins) + np.arange(m) * bins
        hit = cell[np.arange(n), y]
        shape = (m, bins)
        return cls(
            _sums(cell.ravel(), m * bins).reshape(shape),
            _sums(hit, m * bins).reshape(shape),
            _sums(cell.ravel(), m * bins, p.ravel()).reshape(shape),
            n,
        )

    def __add__(self, other: ClassWise) -> ClassWise:
        if self.count.shape != other.count.shape:
            raise InputError(f"cannot add shapes {self.count.shape} and {other.count.shape}")
        return ClassWise(
            self.count + other.count,
            self.members + other.members,
            self.probability + other.probability,
            self.rows + other.rows,
        )

    @property
    def ece(self) -> float:
        """The mean over classes of the ECE of that class's own probability."""
        gaps = np.abs(self.members - self.probability).sum(axis=1) / _some(self.rows)
        return float(gaps.mean())


@dataclass(frozen=True)
class Mean:
    """A mean as a sum and a count; NLL, Brier scores, accuracy and mean confidence are means."""

    total: float
    count: int

    @classmethod
    def of(cls, values: Any) -> Mean:
        array = np.asarray(values, np.float64)
        return cls(float(array.sum()), array.size)

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        return self.total / float(_some(self.count))


def ece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Expected calibration error with `bins` equal-width bins."""
    c, y = _rows(confidence, correct)
    bins = check_bins(bins)
    gaps = _sums(bin_index(c, bins), bins, y - c)
    return float(np.abs(gaps).sum() / _some(len(c)))


def equal_mass_ece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """ECE with bins of (nearly) the same number of rows."""
    return EqualMass.of(confidence, correct).reliability(bins).ece


def debiased_ece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """ECE less its estimated bias (see `Reliability.debiased_ece`)."""
    return Reliability.of(confidence, correct, bins).debiased_ece


def debiased_rms(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Root-mean-square calibration error, unbiased in the square."""
    return Reliability.of(confidence, correct, bins).debiased_rms


def mce(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Maximum calibration error."""
    return Reliability.of(confidence, correct, bins).mce


def brier(confidence: Any, correct: Any) -> float:
    """Brier score of the predicted class: the mean of (confidence − correct)²."""
    c, y = _rows(confidence, correct)
    return Mean.of((c - y) ** 2).value


def aurc(confidence: Any, correct: Any) -> float:
    """Area under the risk–coverage curve: answer only the k most confident rows, and take the
    mean over k = 1 … n of their error rate.

    Only the order of confidences counts; rows of equal confidence stand in random order, over
    which this is the expectation.
    """
    return EqualMass.of(confidence, correct).aurc


def accuracy(correct: Any) -> float:
    return Mean.of(_checked_correct(correct)).value


def mean_confidence(confidence: Any) -> float:
    return Mean.of(_checked_confidence(confidence)).value


def classwise_ece(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """The mean over classes of the ECE of each class's own probability."""
    return ClassWise.of(probabilities, labels, bins).ece


def brier_multiclass(probabilities: Any, labels: Any) -> float:
    """The mean over rows of Σ over classes of (probability − [label is that class])²."""
    return Mean.of(brier_multiclass_rows(probabilities, labels)).value


def brier_multiclass_rows(probabilities: Any, labels: Any) -> FloatArray:
    p, y = _table(probabilities, labels)
    hit = p[np.arange(len(p)), y]
    return np.asarray(np.einsum("ij,ij->i", p, p) - 2 * hit + 1)


def nll(probabilities: Any, labels: Any) -> float:
    """The mean negative log-probability of the label; infinite where one is 0."""
    p, y = _table(probabilities, labels)
    with np.errstate(divide="ignore"):
        return Mean.of(-np.log(p[np.arange(len(p)), y])).value


def _sums(where: IntArray, cells: int, values: Any = None) -> FloatArray:
    """The number of rows in each cell, or the sum of their values."""
    return np.bincount(where, values, cells).astype(np.float64, copy=False)


def _folded_normal_mean(mean: float, deviation: float) -> float:
    """E|X| of a normal X."""
    if deviation == 0:
        return abs(mean)
    z = mean / deviation
    density = math.sqrt(2 / math.pi) * math.exp(-z * z / 2)
    return deviation * density + mean * math.erf(z / math.sqrt(2))


def _some(count: float) -> Any:
    if not count:
        raise InputError("there are no rows to measure")
    return count


def _checked_confidence(confidence: Any) -> FloatArray:
    c = np.asarray(confidence, np.float64)
    if c.ndim != 1:
        raise InputError(f"confidence must have one dimension, not shape {c.shape}")
    # One comparison that also catches NaN: min and max propagate it.
    if c.size and not (c.min() >= 0 and c.max() <= 1):
        row = int(np.argmin((c >= 0) & (c <= 1)))
        raise InputError(f"confidence of row {row} is {c[row]}, not in [0, 1]")
    return c


def _rows(confidence: Any, correct: Any) -> tuple[FloatArray, BoolArray]:
    c = _checked_confidence(confidence)
    y = _checked_correct(correct)
    if y.shape != c.shape:
        raise InputError(f"confidence has shape {c.shape} but correct has {y.shape}")
    return c, y


def _checked_correct(correct: Any) -> BoolArray:
    y = np.asarray(correct)
    if y.dtype != bool and y.size and not np.isin(y, (0, 1)).all():
        raise InputError("correct must be true or false (or 1 or 0) for each row")
    return y.astype(bool, copy=False)


def _table(probabilities: Any, labels: Any) -> tuple[FloatArray, IntArray]:
    p = np.asarray(probabilities, np.float64)
    y = np.asarray(labels)
    if p.ndim != 2 or y.shape != p.shape[:1]:
        raise InputError(f"probabilities have shape {p.shape} but labels have {y.shape}")
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        row = int(np.argmin(((p >= 0) & (p <= 1)).all(axis=1)))
        raise InputError(f"probabilities of row {row} are not all in [0, 1]")
    if y.size and not np.isin(y, np.arange(p.shape[1])).all():
        raise InputError(f"labels must be whole numbers from 0 to {p.shape[1] - 1}")
    return p, y.astype(np.int64)
