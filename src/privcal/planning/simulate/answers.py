"""A method answered by arithmetic: exact sums of simulated sources, and the noise of their average.

The methods are those of a real calibration; the sums are the very integers that a Source would add
up (`Query.contributions`). The noise of the average of d sources is drawn at once: a sum of d
Laplace variables is a difference of two Gamma(d) variables, and d of h shares that make one Laplace
variable (`privcal.secure.shares`, on a grid that is fine beside the noise) add up to a difference
of two Gamma(d/h) variables. This is ordinary seeded noise: what is simulated is not a Source,
protects nobody, and cannot be mistaken for one. Simulated sources all answer, they do not
lie, and nothing is left out of their averages as implausible (see `privcal.data.plausible`): a real
calibration leaves out honest sources so seldom that it makes no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from privcal.calibration.kernel import FAST
from privcal.calibration.maps import Map
from privcal.calibration.methods.base import Ask, Batch, History, Method, drive
from privcal.calibration.sketch.reader import SketchReader
from privcal.data.scores import Scores
from privcal.secure.round import NoiseLaw
from privcal.trusted.epsilon import MAX_EPSILON, NANO, to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.queries import GRID, Query
from privcal.trusted.scores import BoolArray, FloatArray


class PrivateRows(Protocol):
    """The rows of all sources together, in every trial."""

    @property
    def trials(self) -> int: ...

    def sums(self, ask: Ask) -> FloatArray:
        """The sums without noise over all sources, (trials, length), in grid points."""


def run(
    method: Method,
    rows: PrivateRows,
    sources: int,
    epsilon: float,
    rng: np.random.Generator,
    noise: NoiseLaw | None = None,
    rows_per_source: float | None = None,
) -> Sequence[Map]:
    """The map of every trial. An infinite ε is none: the same method without noise.

    `noise` is the law of the noise, by default that of sources which each add their own.
    `rows_per_source` is what the method is told of the sources' size; it may be none or wrong.
    """
    law = noise or NoiseLaw()
    noisy = math.isfinite(epsilon)
    # A method that reckons with noise is told that there is next to none.
    nano = to_nano(epsilon if noisy else MAX_EPSILON)
    history = History(sources=sources, noise=law)

    def answer(asks: Sequence[Ask]) -> History:
        for ask in asks:
            average = rows.sums(ask) / (GRID * sources)
            if noisy:
                average += average_noise(rng, sources, ask, average.shape, law)
            history.append(average)
        return history

    batch = Batch(rows.trials, nano, rng, law, sources, rows_per_source)
    return drive(method.run(batch), answer)


def exactly(method: Method, scores: Scores) -> Map:
    """The method's map from all these rows together, without noise and without privacy."""
    return run(method, _OneSource(scores), 1, math.inf, np.random.default_rng(0))[0]


def prior_map(public: Scores | None = None) -> Map:
    """The map that a sketch gives where its answer says nothing: that of its prior."""
    reader = SketchReader.of(public)
    nothing = np.zeros((1, reader.query.length))
    return reader.maps(reader.read(nothing, 1, 1.0))[0]


def average_noise(
    rng: np.random.Generator,
    sources: int,
    ask: Ask,
    shape: tuple[int, ...],
    noise: NoiseLaw | None = None,
) -> FloatArray:
    """The noise in the average of `sources` answers, in the units of the question."""
    law = noise or NoiseLaw()
    if law.groups > 1:
        raise InputError("simulated sources are summed all together, not in groups")
    scale = law.rows_per_person * ask.query.bound / GRID * NANO / ask.nano_epsilon
    total = np.zeros(shape)
    for laplaces, multiple in _laplaces(sources, law):
        gamma = rng.standard_gamma(laplaces, (2, *shape))
        total += (gamma[0] - gamma[1]) * (scale / multiple / sources)
    return total


def _laplaces(sources: int, noise: NoiseLaw) -> list[tuple[float, float]]:
    """What the sum of all noise consists of: how many Laplace variables, at how many times the ε."""
    if noise.honest is None or noise.alone is None:
        return [(sources, 1)]
    return [(sources / noise.honest, 1), (sources, noise.alone)]


def by_temperature(
    ask: Ask, trials: int, sums: Callable[[Query, BoolArray], FloatArray]
) -> FloatArray:
    """The sums of an ask, from those of its query at each temperature for the trials that ask there."""
    if ask.temperatures is None:
        return sums(ask.query, np.ones(trials, bool))
    total = np.empty((trials, ask.query.length))
    for temperature in np.unique(ask.temperatures):
        some = ask.temperatures == temperature
        total[some] = sums(ask.query.at(temperature), some)
    return total


def by_run(ask: Ask, trials: int, sums: Callable[[Query, int], FloatArray]) -> FloatArray:
    """The sums of an ask that is another in each trial, from those of each: none is kept."""
    return np.stack([sums(ask.for_run(trial), trial) for trial in range(trials)])


class _OneSource:
    """One trial in which one source holds all rows."""

    trials = 1

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def sums(self, ask: Ask) -> FloatArray:
        query = ask.for_run(0)
        return query.contributions(self.scores, FAST).sum(query.length)[None, :].astype(np.float64)
