"""Search over temperature, by noisy answers: golden section, or a plain grid to compare with.

K shrinkages need K + 1 answers, each with ε/(K + 1): two before the first shrinkage, one before
each of the others. (The paper gives each answer ε/K in one place and ε/(K + 1) in another, and
its listing draws one last sample that nothing uses.)

The defaults are not the paper's K = 5 and [0.5, 3], which a study runs (`PAPERS_SEARCH`). More
questions make each answer noisier; a wider range holds more optima, and costs where noise decides.
`python -m benchmarks ranges` compares, and says by which rule we chose: K = 3; and for Acc-T, whose
answers are the clearest, K = 4 on [0.5, 6], cut in log T.

Proof that privacy does not depend on the range: a source answers one query after the other, each
with noise for that query's sensitivity. The sensitivity of `Gap`, `BinnedGap` and `Nll` is a bound on
what a row adds at *every* T that a query can have: |correct − confidence| ≤ 1 since both are in
[0, 1], and the clip bounds the NLL, which no T does. Range and K decide only which T are asked, and
that from noisy answers; the shares add up to ε. So the run is ε-private for any range, by
composition and post-processing. ∎
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, History, Method, Plan, Rounds
from privcal.calibration.methods.options import written
from privcal.trusted.checks import number, one_of, whole
from privcal.trusted.epsilon import split
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import MAX_TEMPERATURE, MIN_TEMPERATURE, check_temperature
from privcal.trusted.queries import Query
from privcal.trusted.scores import FloatArray

Ends = tuple[FloatArray, FloatArray]
"""The two ends (B,) of the interval that a search is left with."""

PAPERS_SEARCH: dict[str, Any] = {"iterations": 5, "bounds": (0.5, 3.0), "spacing": "linear"}
"""The paper's options: a study's, where a variant does not say otherwise."""

RATIO = (math.sqrt(5) - 1) / 2
MAX_ITERATIONS = 100

SPACINGS: dict[str, tuple[Callable[[FloatArray], FloatArray], ...]] = {
    "linear": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
}
"""From T to where it lies on the scale that a search cuts, and back."""


@dataclass(frozen=True)
class TemperatureSearch(Method):
    """The options of every method that searches for a temperature."""

    iterations: int = 3
    """How often the range shrinks, K: K + 1 questions are asked. The paper's is 5."""
    bounds: tuple[float, float] = (0.5, 3.0)
    """The lowest and the highest temperature; the map says where the search never left one of them."""
    search: str = "golden"
    """`golden` or `grid`."""
    spacing: str = "linear"
    """`linear` or `log`: whether an interval of T or one of log T is cut."""

    def __post_init__(self) -> None:
        iterations = whole("iterations", self.iterations, 1, MAX_ITERATIONS)
        object.__setattr__(self, "iterations", iterations)
        if not isinstance(self.bounds, (tuple, list)) or len(self.bounds) != 2:
            raise InputError(f"bounds must be two temperatures, not {self.bounds!r}")
        low, high = (check_temperature(number("bounds", t)) for t in self.bounds)
        if not low < high:
            raise InputError(f"bounds must be two temperatures, the lower first, not {self.bounds}")
        object.__setattr__(self, "bounds", (low, high))
        one_of("search", self.search, ("golden", "grid"))
        one_of("spacing", self.spacing, tuple(SPACINGS))

    @property
    @abstractmethod
    def query(self) -> Query:
        """What is asked at every temperature."""

    @abstractmethod
    def value(self, average: FloatArray) -> FloatArray:
        """From an averaged answer (B, length) to the number to be made small (B,)."""

    def plan(self, batch: Batch) -> Plan:
        """Where a later question looks is stated as if the lower end moved up each time."""
        if self.search == "grid":
            return Plan([self._asks(batch, self._points())], (TemperatureMap,))
        low, high = self._scale()
        places = [high - RATIO * (high - low), low + RATIO * (high - low)]
        for _ in range(1, self.iterations):
            places.append(places[-2] + RATIO * (high - places[-2]))
        first, second, *later = self._asks(batch, np.array(places))
        return Plan([[first, second], *([ask] for ask in later)], (TemperatureMap,))

    def run(self, batch: Batch) -> Rounds:
        low, high = yield from (self._golden if self.search == "golden" else self._grid)(batch)
        first, last = self._scale()
        ends = np.where(low == first, "lower", np.where(high == last, "upper", "neither"))
        if self.search == "golden" and self.iterations == 1:
            ends[:] = "neither"  # one cut leaves an end whatever the answers: that says nothing
        facts = {"lower": self._at_end("lower"), "upper": self._at_end("upper"), "neither": {}}
        return [
            TemperatureMap(t, provenance=facts[end])
            for t, end in zip(self._at((low + high) / 2), ends.tolist(), strict=True)
        ]

    def _at_end(self, end: str) -> dict[str, str]:
        """The provenance of a map for which the search never moved off one end of its range."""
        low, high = self.bounds
        wider = (max(low / 2, MIN_TEMPERATURE), high)
        if end == "upper":
            wider = (low, min(high * 2, MAX_TEMPERATURE))
        note = (
            f"the search never left the {end} end of its range, T from {low:g} to {high:g}, so the "
            f"best temperature may lie {'below' if end == 'lower' else 'above'} it"
        )
        if wider != self.bounds:
            note += (
                f"; to look there, start another campaign with a wider range, such as the option "
                f"bounds={written(wider)}, which costs its epsilon again"
            )
        return {"range_end": end, "note": note}

    def _scale(self) -> tuple[float, float]:
        """Where the bounds lie on the scale of the search."""
        place, _ = SPACINGS[self.spacing]
        low, high = place(np.array(self.bounds))
        return float(low), float(high)

    def _at(self, places: FloatArray) -> FloatArray:
        """The temperatures at these places of the scale."""
        _, back = SPACINGS[self.spacing]
        return np.clip(back(places), *self.bounds)  # log and back may end a bit outside

    def _asks(self, batch: Batch, places: FloatArray) -> list[Ask]:
        """A question at each of these places (K + 1,)."""
        share = split(batch.nano_epsilon, self.iterations + 1)
        return [
            Ask(self.query, nano, np.full(batch.runs, t))
            for nano, t in zip(share, self._at(places), strict=True)
        ]

    def _points(self) -> FloatArray:
        return np.linspace(*self._scale(), self.iterations + 1)

    def _grid(self, batch: Batch) -> Generator[Sequence[Ask], History, Ends]:
        """As many questions as golden section, all in one round, evenly spaced."""
        points = self._points()
        history = yield self._asks(batch, points)
        values = np.stack([self.value(average) for average in history])
        best = points[values.argmin(axis=0)]
        return best, best

    def _golden(self, batch: Batch) -> Generator[Sequence[Ask], History, Ends]:
        """Where the two inner values are equal, the lower end moves up: the paper's listing."""
        share = split(batch.nano_epsilon, self.iterations + 1)
        runs = np.arange(batch.runs)
        lo, hi = (np.full(batch.runs, end) for end in self._scale())
        left, right = hi - RATIO * (hi - lo), lo + RATIO * (hi - lo)
        # Which answer, of all so far, belongs to the left and right point of each run.
        at_left, at_right = np.zeros(batch.runs, int), np.ones(batch.runs, int)
        history = yield [
            Ask(self.query, share[0], self._at(left)),
            Ask(self.query, share[1], self._at(right)),
        ]
        for shrinkage in range(1, self.iterations + 1):
            values = np.stack([self.value(average) for average in history])
            up = values[at_left, runs] >= values[at_right, runs]
            lo, hi = np.where(up, left, lo), np.where(up, hi, right)
            if shrinkage == self.iterations:
                break
            fresh = np.where(up, lo + RATIO * (hi - lo), hi - RATIO * (hi - lo))
            newest = len(history)
            left, right = np.where(up, right, fresh), np.where(up, fresh, left)
            at_left, at_right = np.where(up, at_right, newest), np.where(up, newest, at_left)
            history = yield [Ask(self.query, share[shrinkage + 1], self._at(fresh))]
        return lo, hi
