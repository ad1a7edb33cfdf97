"""Which answers are believed: every source's answer passes here before it is averaged.

A source adds its own noise on its own machine, so nobody can check its answer; but an average has
no defence of its own: one source that claims a million rows decides it alone. What can be checked
is whether an answer could be one of an honest source's, as far as the noise, the other sources and
a bound on rows tell:

- `impossible`: no sum on the grid of 2⁻²⁰ is so large.
- `beyond`: no source of so many rows gives that, with its noise. It needs nobody else's answer.
- `implausible`: nothing that the other sources answered comes near it. It needs enough others.

How sources are compared. Of each answer, take away what is common to all: for sums that may have
either sign the median over sources; for counts the shape that most sources share, times the
source's own size, so that a large hospital is not odd for being large. What is left of the worst
number is that source's deviation. Order sources by it and go through them from the nearest: the
first three quarters are never suspected, and after that one is left out, with all beyond it, as
soon as

    deviation² > (noise that hardly ever comes)² + (`JUMP` · spread of all nearer ones)²,

where spread is the root mean square of their deviations less what noise alone would make of them.
(With fewer than `ENOUGH` nearer ones, both may be larger.) So where sources are alike a small lie
stands out, and where they differ much, in size, patients or shift, only a large one does. Whoever is
suspected and kept, with at least `ENOUGH` nearer, moves an average over d sources, out of the common
shape, by no more than rare noise would and `JUMP`/√d of what their own spread does by chance
(spread/√d), added up. The order of sources plays no part, to the last bit.

What it cannot do: find a lie that is no larger than noise and spread, or one that several sources
agree on; tell a hospital that is far larger than all others, and differs from them, from a liar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import REFUSALS
from privcal.trusted.queries import (
    CellHistogram,
    ClassHats,
    Hats,
    Histogram,
    OffsetHats,
    Query,
)
from privcal.trusted.question import Question
from privcal.trusted.scores import BoolArray, FloatArray

IMPLAUSIBLE = "implausible"
"""The reason for which a source is dropped, where its answer is not believed."""

BOXES = "boxes"
"""The reason for which it is, where others cannot open what it dealt for a secure sum."""

REASONS = {
    **REFUSALS,
    IMPLAUSIBLE: "its answer is not believed; what it was charged is spent",
    BOXES: "others cannot open what it dealt for the sum; what it was charged is spent",
}
"""Why a source was dropped, by its code, in words."""

FEWEST = 8
"""The fewest answers of which one can be told from the others."""

BY_CHANCE = 1e-5
"""The probability that its noise alone leaves an honest source out, over a whole run."""

JUMP = 20.0
"""The deviation that the spread of the others explains, as a multiple of it."""

ENOUGH = 20
"""The number of others that is enough to know their spread; beside fewer, one may differ by more."""

BEYOND = 1e-9
"""The probability that an honest answer is beyond its rows and its noise."""

MAX_SITE_ROWS = 1_000_000
"""The rows that a distant site may claim where nobody declared a bound: more than hospitals have
labelled for one model. It keeps a lie finite and no more; a bound near the truth is better."""

_ALIKE = 0.75
"""The share of sources that are never suspected."""

_PASSES = 3
"""Steps from the median's shape to that of the sources near it."""

_NOTHING = 1e-9
"""A number far below one point of the grid."""

_COUNTS = (Histogram, CellHistogram, Hats, ClassHats, OffsetHats)
"""Queries that count rows in cells; the others are sums, which may have either sign."""


def impossible(points: Sequence[int]) -> bool:
    """Whether no source can have these sums: all stay below 2⁶² on the grid.

    >>> impossible([10**30]), impossible([3])
    (True, False)
    """
    return any(abs(point) >= 2**62 for point in points)


def beyond(values: Sequence[int], max_rows: int, rows_per_person: int, question: Question) -> bool:
    """Whether an honest source of so many rows answers this (on the grid) almost never: `BEYOND`.

    The exact sums of n rows are at most n bounds in L1. Each number's noise is at most t with
    probability above 1 − 2 exp(−tε/Δ), so for k numbers t = Δ/ε · log(2k / BEYOND) is exceeded
    by any of them with probability below `BEYOND`.
    """
    bound = question.query.bound
    scale = rows_per_person * bound * NANO / question.nano_epsilon
    noise = scale * math.log(2 * len(values) / BEYOND)
    return sum(max(0.0, abs(v) - noise) for v in values) > max_rows * bound


def implausible(
    answers: Sequence[FloatArray],
    questions: Sequence[Question],
    rows_per_person: int = 1,
    numbers: int | None = None,
) -> BoolArray:
    """Which sources gave an answer to the newest question that the others speak against.

    `answers` has the answers of the same sources, each (sources, length of the query), to the
    `questions` of the run so far, of which the last two play a part; `numbers` says how many numbers
    all its questions ask for together. With fewer than `FEWEST` sources nobody is suspected, and at
    least half are always believed.

    A lie that is told twice shows sooner. The smaller of two deviations has the noise of twice the
    ε, because the lesser of two exponential variables is exponential with twice the rate; both
    questions cost the same, as the rounds of every search do. (More than two would tell sources
    that are merely unlike the others from them, too.)
    """
    newest = questions[-1]
    sources, length = answers[-1].shape
    if sources < FEWEST:
        return np.zeros(sources, bool)
    chance = BY_CHANCE / (2 * (numbers or length))  # two looks at each number
    scale = rows_per_person * newest.query.sensitivity * NANO / newest.nano_epsilon
    deviations = _deviations(answers[-1], newest.query)
    odd = _jump(deviations, scale, chance)
    if len(questions) > 1 and questions[-2].query.kind == newest.query.kind:
        before = _deviations(answers[-2], questions[-2].query)
        odd |= _jump(np.minimum(deviations, before), scale / 2, chance)
    return odd


def _jump(deviations: FloatArray, scale: float, chance: float) -> BoolArray:
    """Which sources are beyond the first gap that noise and the spread of nearer ones leave open."""
    sources, length = deviations.shape
    worst = deviations.max(axis=1)
    sorted_ = np.sort(worst)
    # The middle of the i-th of d parts of the law of the largest of `length` Laplace variables.
    parts = (np.arange(sources) + 0.5) / sources
    noise = -scale * np.log1p(-(parts ** (1 / length)))
    nearer = np.arange(1, sources)
    spread2 = np.maximum(np.cumsum(sorted_**2 - noise**2)[:-1] / nearer, 0.0)
    few = np.maximum(1.0, ENOUGH / nearer)  # the powers were found by trying
    hardly_ever = -scale * math.log(chance) * few**0.5
    gap = sorted_[1:] ** 2 > hardly_ever**2 + (JUMP * few**1.5) ** 2 * spread2
    gap &= sorted_[1:] > sorted_[:-1]  # of equals, all or none
    gap[: _alike(sources) - 1] = False
    return worst > sorted_[gap.argmax()] if gap.any() else np.zeros(sources, bool)


def _deviations(answers: FloatArray, query: Query) -> FloatArray:
    """How far each number is from what the others make one expect."""
    middle = np.median(answers, axis=0)
    if not isinstance(query, _COUNTS):
        return np.asarray(np.abs(answers - middle))
    deviations = np.abs(answers)
    for _ in range(_PASSES):
        shape = np.maximum(middle, 0.0)
        deviations = np.abs(answers - _sizes(answers, shape)[:, None] * shape)
        worst = deviations.max(axis=1)
        near = answers[worst <= np.sort(worst)[_alike(len(worst)) - 1]]
        middle = np.sort(near, axis=0).mean(axis=0)  # sorted: the order of sources plays no part
    return deviations


def _sizes(answers: FloatArray, shape: FloatArray) -> FloatArray:
    """The size of each answer, as a multiple n of the shape: n makes Σ |answer − n · shape| least.

    That is the median of answer/shape weighted by the shape, and at least 0: what a liar puts into
    cells with less than half of all rows does not move it beyond what its other cells say.
    """
    filled = shape > _NOTHING
    if not filled.any():
        return np.zeros(len(answers))
    ratio = answers[:, filled] / shape[filled]
    order = np.argsort(ratio, axis=1, kind="stable")
    weight = shape[filled][order].cumsum(axis=1)
    half = (weight >= weight[:, -1:] / 2).argmax(axis=1)
    middle = np.take_along_axis(order, half[:, None], axis=1)
    return np.maximum(np.take_along_axis(ratio, middle, axis=1)[:, 0], 0.0)


def _alike(sources: int) -> int:
    """How many of so many sources are never suspected."""
    return math.ceil(_ALIKE * sources)
