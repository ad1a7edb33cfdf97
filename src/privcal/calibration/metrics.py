"""Metrics of a confidence: plain functions on arrays, and states that add up.

`confidence` is the probability that a model gives its predicted class, `correct` whether that
class is the true one. A state of some rows plus the state of others is the state of all of them,
so that large data can be measured block by block.

ECE alone can mislead: a constant equal to the accuracy has almost none and is useless. Read it
beside the Brier score, which counts calibration and sharpness, and the area under the
risk–coverage curve (AURC), which counts only the order of rows.

Edge rules, the same for every metric
-------------------------------------
* No rows are an `InputError`; one row is measured like any other number of rows.
* Bin b of k equal-width bins holds the confidences c with min(⌊k·c⌋, k − 1) = b in float64, so a
  confidence of exactly 1 is in the last bin and one on an inner edge in the upper bin.
* Bins without rows count nothing.
* Equal confidences are never told apart: the order of rows changes nothing but rounding.
* A confidence or probability that is NaN or outside [0, 1] is an `InputError` that names its row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from privcal.trusted.errors import InputError
from privcal.trusted.kernel import bin_index, check_bins
from privcal.trusted.scores import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Reliability:
    """Rows, correct rows and summed confidence of each bin: a state for the binned metrics.

    Attributes
    ----------
    count, correct, confidence
        Arrays of shape (bins,): the number of rows in each bin, how many of them are correct,
        and the sum of their confidences.

    Examples
    --------
    >>> first = privcal.metrics.Reliability.of([0.25, 0.75], [False, True], bins=2)
    >>> second = privcal.metrics.Reliability.of([1.0, 1.0], [True, False], bins=2)
    >>> both = first + second
    >>> both.count
    array([1., 3.])
    >>> both.ece
    0.25
    """

    count: FloatArray
    correct: FloatArray
    confidence: FloatArray

    @classmethod
    def of(cls, confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> Reliability:
        """The state of some rows, of which there may be none, in `bins` equal-width bins."""
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
class AllRows:
    """All rows, kept for the metrics that need their order: equal-mass bins and AURC.

    Attributes
    ----------
    confidence, correct
        Arrays of shape (n,).

    Examples
    --------
    >>> rows = privcal.metrics.AllRows.of([0.5, 0.6, 0.7, 0.7], [False, True, True, True])
    >>> rows.reliability(bins=2).count  # equal confidences stay in one bin
    array([2., 2.])
    """

    confidence: FloatArray
    correct: BoolArray

    @classmethod
    def of(cls, confidence: ArrayLike, correct: ArrayLike) -> AllRows:
        """The state of some rows, of which there may be none."""
        return cls(*_rows(confidence, correct))

    def __add__(self, other: AllRows) -> AllRows:
        return AllRows(
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
        # In random order every row of a tie is as likely at each of the tie's ranks.
        weights = np.add.reduceat(rank_weights(n), np.cumsum(rows) - rows)
        return float((wrong * weights / rows).sum() / n)


def rank_weights(rows: int) -> FloatArray:
    """What a wrong row adds to rows · AURC at each rank, the most confident first.

    At rank r it is among the k most confident for all k ≥ r, so it adds Σ 1/k over those.
    """
    return np.asarray(np.cumsum(1.0 / np.arange(rows, 0, -1))[::-1])


@dataclass(frozen=True, eq=False)
class ClassWise:
    """Rows, rows of that class, and summed probability of each class and bin.

    Attributes
    ----------
    count, members, probability
        Arrays of shape (classes, bins).
    rows
        The number of rows.

    Examples
    --------
    >>> privcal.metrics.ClassWise.of([[0.75, 0.25], [0.25, 0.75]], [0, 1], bins=4).ece
    0.25
    """

    count: FloatArray
    members: FloatArray
    probability: FloatArray
    rows: int

    @classmethod
    def of(cls, probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> ClassWise:
        """The state of a table of probabilities, (n, m), and its labels, (n,)."""
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
    """A mean as a sum and a count; NLL, Brier scores, accuracy and mean confidence are means.

    Examples
    --------
    >>> (privcal.metrics.Mean.of([1.0, 2.0]) + privcal.metrics.Mean.of([6.0])).value
    3.0
    """

    total: float
    count: int

    @classmethod
    def of(cls, values: ArrayLike) -> Mean:
        """The mean of an array of any shape."""
        array = np.asarray(values, np.float64)
        return cls(float(array.sum()), array.size)

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """The mean itself; without values an `InputError`."""
        return self.total / float(_some(self.count))


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error with equal-width bins: Σ share · |accuracy − mean confidence|.

    Parameters
    ----------
    confidence
        Shape (n,), in [0, 1]: the probability of each row's predicted class.
    correct
        Shape (n,), true or false (or 1 or 0): whether the predicted class is the true one.
    bins
        The number of bins, from 1 to 1,000. A confidence of exactly 1 is in the last one.

    Returns
    -------
    float
        From 0 (no bin is off) to 1. For one row it is |correct − confidence|.

    Examples
    --------
    >>> privcal.ece([0.75, 0.75, 0.75, 1.0], [True, True, False, True], bins=4)
    0.0625
    >>> privcal.ece([], [])
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: there are no rows to measure
    """
    c, y = _rows(confidence, correct)
    bins = check_bins(bins)
    gaps = _sums(bin_index(c, bins), bins, y - c)
    return float(np.abs(gaps).sum() / _some(len(c)))


def equal_mass_ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """ECE with bins of as equal a number of rows as ties allow.

    Parameters
    ----------
    confidence, correct
        Shape (n,) each, as for `ece`.
    bins
        The number of bins, from 1 to 1,000. Rows of equal confidence stay in one bin, so bins
        may be unequal, and with fewer rows than bins some are empty.

    Returns
    -------
    float
        From 0 to 1. For one row it is |correct − confidence|; no rows are an `InputError`.

    Examples
    --------
    >>> privcal.equal_mass_ece([0.5, 0.625, 0.875, 1.0], [False, True, True, True], bins=2)
    0.0625
    """
    return AllRows.of(confidence, correct).reliability(bins).ece


def debiased_ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """ECE less its estimated bias, after Kumar, Liang and Ma 2019.

    The plain ECE is too large because a bin's accuracy is noisy; see
    `privcal.metrics.Reliability.debiased_ece` for the estimate of the excess.

    Parameters
    ----------
    confidence, correct, bins
        As for `ece`.

    Returns
    -------
    float
        At most the plain ECE; below 0 where that is smaller than its expected excess. A bin whose
        rows are all correct, or all wrong, has no estimated noise and keeps its plain gap: so does
        a single row. No rows are an `InputError`.

    Examples
    --------
    >>> confidence, correct = [0.75] * 4, [True, True, False, False]
    >>> privcal.ece(confidence, correct)
    0.25
    >>> round(privcal.debiased_ece(confidence, correct), 3)
    0.208
    """
    return Reliability.of(confidence, correct, bins).debiased_ece


def debiased_rms(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Root-mean-square calibration error whose square is unbiased, after Kumar et al. 2019.

    Parameters
    ----------
    confidence, correct, bins
        As for `ece`.

    Returns
    -------
    float
        At least 0: a square that is estimated below 0 counts as 0. A bin of one row has no
        estimate of its variance and keeps its plain square. No rows are an `InputError`.

    Examples
    --------
    >>> privcal.debiased_rms([0.75] * 4, [False] * 4)
    0.75
    >>> privcal.debiased_rms([0.75] * 4, [True, True, True, False])
    0.0
    """
    return Reliability.of(confidence, correct, bins).debiased_rms


def mce(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Maximum calibration error: the largest |accuracy − mean confidence| of a bin with rows.

    Parameters
    ----------
    confidence, correct, bins
        As for `ece`.

    Returns
    -------
    float
        From 0 to 1, at least the ECE. A bin of one row counts as much as one of many. No rows
        are an `InputError`.

    Examples
    --------
    >>> privcal.mce([0.75, 0.75, 0.75, 0.25], [True, True, True, True], bins=2)
    0.75
    """
    return Reliability.of(confidence, correct, bins).mce


def brier(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Brier score of the predicted class: the mean of (confidence − correct)².

    Parameters
    ----------
    confidence, correct
        Shape (n,) each, as for `ece`.

    Returns
    -------
    float
        From 0 (certain and right) to 1 (certain and wrong). No rows are an `InputError`.

    Examples
    --------
    >>> privcal.brier([0.5, 1.0], [True, False])
    0.625
    """
    c, y = _rows(confidence, correct)
    return Mean.of((c - y) ** 2).value


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean error rate of the k most confident rows.

    The mean is over k = 1 … n. Only the order of confidences counts.

    Parameters
    ----------
    confidence, correct
        Shape (n,) each, as for `ece`. Rows of equal confidence stand in random order; the
        value is the expectation over it.

    Returns
    -------
    float
        From 0 (every row is correct) to 1. For one row it is 0 or 1; no rows are an `InputError`.

    Examples
    --------
    >>> round(privcal.aurc([0.9, 0.8, 0.7, 0.6], [True, True, False, False]), 3)
    0.208
    >>> round(privcal.aurc([0.7, 0.7, 0.7, 0.7], [True, True, False, False]), 3)  # all tied
    0.5
    """
    return AllRows.of(confidence, correct).aurc


def accuracy(correct: ArrayLike) -> float:
    """The share of correct rows.

    Parameters
    ----------
    correct
        True or false (or 1 or 0) for each row.

    Returns
    -------
    float
        From 0 to 1. No rows are an `InputError`.

    Examples
    --------
    >>> privcal.accuracy([True, True, False, True])
    0.75
    """
    return Mean.of(_checked_correct(correct)).value


def mean_confidence(confidence: ArrayLike) -> float:
    """The mean confidence of all rows.

    Parameters
    ----------
    confidence
        Shape (n,), in [0, 1].

    Returns
    -------
    float
        From 0 to 1. Above the accuracy a model is overconfident. No rows are an `InputError`.

    Examples
    --------
    >>> privcal.mean_confidence([0.5, 1.0])
    0.75
    """
    return Mean.of(_checked_confidence(confidence)).value


def classwise_ece(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """The mean over classes of the ECE of each class's own probability.

    Parameters
    ----------
    probabilities
        Shape (n, m), in [0, 1]. Rows need not sum to 1.
    labels
        Shape (n,): the true class of each row, 0 … m − 1.
    bins
        The number of equal-width bins of each class, from 1 to 1,000.

    Returns
    -------
    float
        From 0 to 1. A class without a row among the labels counts like any other: its
        probabilities should be 0. No rows are an `InputError`.

    Examples
    --------
    >>> privcal.classwise_ece([[0.75, 0.25], [0.75, 0.25]], [0, 1], bins=2)
    0.25
    """
    return ClassWise.of(probabilities, labels, bins).ece


def brier_multiclass(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Brier score over all classes: the mean of Σ (probability − [label is that class])².

    Parameters
    ----------
    probabilities, labels
        Shapes (n, m) and (n,), as for `classwise_ece`.

    Returns
    -------
    float
        From 0 to 2 where rows sum to 1. No rows are an `InputError`.

    Examples
    --------
    >>> privcal.brier_multiclass([[0.75, 0.25], [0.0, 1.0]], [0, 0])
    1.0625
    """
    return Mean.of(brier_multiclass_rows(probabilities, labels)).value


def brier_multiclass_rows(probabilities: ArrayLike, labels: ArrayLike) -> FloatArray:
    """The Brier score over all classes of each row, shape (n,)."""
    p, y = _table(probabilities, labels)
    hit = p[np.arange(len(p)), y]
    return np.asarray(np.einsum("ij,ij->i", p, p) - 2 * hit + 1)


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Negative log-likelihood: the mean of −log(probability of the label).

    Parameters
    ----------
    probabilities, labels
        Shapes (n, m) and (n,), as for `classwise_ece`.

    Returns
    -------
    float
        At least 0, in nats; infinite where the probability of a label is 0. No rows are an
        `InputError`.

    Examples
    --------
    >>> round(privcal.nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    >>> privcal.nll([[0.0, 1.0]], [0])
    inf
    """
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


def _checked_confidence(confidence: ArrayLike) -> FloatArray:
    c = np.asarray(confidence, np.float64)
    if c.ndim != 1:
        raise InputError(f"confidence must have one dimension, not shape {c.shape}")
    # One comparison that also catches NaN: min and max propagate it.
    if c.size and not (c.min() >= 0 and c.max() <= 1):
        row = int(np.argmin((c >= 0) & (c <= 1)))
        raise InputError(f"confidence of row {row} is {c[row]}, not in [0, 1]")
    return c


def _rows(confidence: ArrayLike, correct: ArrayLike) -> tuple[FloatArray, BoolArray]:
    c = _checked_confidence(confidence)
    y = _checked_correct(correct)
    if y.shape != c.shape:
        raise InputError(f"confidence has shape {c.shape} but correct has {y.shape}")
    return c, y


def _checked_correct(correct: ArrayLike) -> BoolArray:
    y = np.asarray(correct)
    if y.dtype != bool and y.size and not np.isin(y, (0, 1)).all():
        raise InputError("correct must be true or false (or 1 or 0) for each row")
    return y.astype(bool, copy=False)


def _table(probabilities: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, IntArray]:
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
