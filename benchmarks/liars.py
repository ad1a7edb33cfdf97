"""One source that lies, or two: what it does to the map with and without the gate of `plausible`.

Sources of 30 rows under motion blur; the loop is that of every calibration, the noise is ordinary
seeded noise, so that the runs of one line of a table differ in nothing but the lie and the gate.
Of a lie that has two sides (all rows wrong where the others are sure, all right where they are
not) the worse one is shown.

Then the same lies in secure sums, where nobody sees an answer: in one sum of all, and in groups of
which the median counts. These runs are arithmetic, with the law of the noise and all of the checks:
of each answer where answers are seen, of the total where only that is.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from unittest import mock

import numpy as np

import privcal
from benchmarks import report
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.loop import SourceDropped
from privcal.calibration.methods.base import Ask, Batch, History, drive
from privcal.calibration.metrics import ece
from privcal.data.datasets import cifar10c
from privcal.data.plausible import implausible
from privcal.data.scores import Scores
from privcal.planning.simulate.answers import average_noise
from privcal.secure.round import NoiseLaw
from privcal.secure.terms import usual_colluding, usual_needed
from privcal.trusted.epsilon import NANO, to_nano
from privcal.trusted.queries import GRID, Gap, Hats, Query
from privcal.trusted.question import Question
from privcal.trusted.scores import FloatArray
from privcal.trusted.source import Answer

ROWS, EPSILON, DRAWS = 30, 1.0, 10
COSTS = 0.01
"""An ECE that much above that without a liar is harmless."""

Lie = Callable[[Query, float], FloatArray]
"""What a liar says to a query, on the side +1 or -1."""


def rows(claimed: float) -> Lie:
    """So many rows, all of them wrong at the highest knot, or right at the lowest."""

    def said(query: Query, side: float) -> FloatArray:
        values = np.zeros(query.length)
        if isinstance(query, Hats):
            values[query.length // 2 - 1 if side < 0 else query.length // 2] = claimed
        else:
            values[0] = side * claimed
        return values

    return said


def everywhere(query: Query, side: float) -> FloatArray:
    return np.full(query.length, side * 1e6)


def lowest(query: Query, side: float) -> FloatArray:
    return np.where(np.arange(query.length) == 0, 1e6, 0.0)


LIARS: dict[str, tuple[int, Lie]] = {
    "none": (0, rows(0)),
    **{f"{n:,} rows": (1, rows(n)) for n in (30, 60, 100, 300, 10**6, 4 * 10**12)},
    "1e300": (1, rows(1e300)),
    "-1,000,000 (or +) in every number": (1, everywhere),
    "1,000,000 wrong at the lowest knot": (1, lowest),
    "two, of 90 rows each": (2, rows(3 * ROWS)),
}


class Panel:
    """Honest sources and the last few liars, without ledgers: nobody's rows are protected here."""

    asker, rows_per_person, rows_per_source = "benchmark", 1, None

    def __init__(
        self, honest: Sequence[Scores], liars: int, lie: Lie, side: float, seed: int
    ) -> None:
        self.names: Sequence[str] = [f"hospital-{i}" for i in range(len(honest))]
        self.sources = len(self.names)
        self._honest = dict(zip(self.names, honest, strict=True))
        self._liars, self._lie, self._side = self.names[len(honest) - liars :], lie, side
        self._seed = seed

    def release(self) -> None: ...

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        return {}

    def ask(self, names: Sequence[str], question: Question) -> Iterator[tuple[str, Answer]]:
        query, epsilon = question.query, question.epsilon
        rng = np.random.default_rng([self._seed, question.round, question.index])
        noise = rng.laplace(0, query.sensitivity / epsilon, (len(self.names), query.length))
        for name, own in zip(self.names, noise, strict=True):
            if name in names:
                exact = (
                    self._lie(query, self._side)
                    if name in self._liars
                    else query.contributions(self._honest[name]).sum(query.length) / GRID
                )
                points = tuple(round(v * GRID) for v in (exact + own).tolist())
                yield name, Answer(points, question, name)


@contextmanager
def ungated() -> Iterator[None]:
    loop = sys.modules["privcal.calibrate"]
    with (
        mock.patch.object(loop, "FEWEST", float("inf")),
        mock.patch.object(loop, "impossible", return_value=False),
    ):
        yield


def run() -> None:
    scores = cifar10c("motion_blur")
    before = ece(FAST.confidence(scores.outputs, 1.0), scores.correct)
    for method in ("sketch", "acc-t"):
        for sources in (21, 50):
            _table(method, sources, scores, before)
    for sources in (60, 100):
        _in_sums(sources, scores)
    _speed()


def _table(method: str, sources: int, scores: Scores, before: float) -> None:
    lines, honest = [], 0.0
    for name, (liars, lie) in LIARS.items():
        if lie is lowest and method != "sketch":
            continue
        sides = [
            [_ece(method, sources, scores, liars, lie, side, gate) for gate in (False, True)]
            for side in (-1.0, 1.0)
        ]
        without, gated = (max((s[g][0] for s in sides), key=_rank) for g in (0, 1))
        caught = min(s[1][1] for s in sides)
        if not liars:
            honest = gated
        lines.append(
            (
                name,
                "the run fails" if np.isnan(without) else f"{without:.3f}",
                f"{gated:.3f}",
                f"{caught:.0%}" if liars else "",
            )
        )
    title = f"liars: {method}, {sources} sources of {ROWS} rows, ε = {EPSILON:g}, {DRAWS} draws"
    report.table(
        f"{title}; ECE without any calibration {before:.3f}",
        ("liar", "ECE without the gate", "with it", "liars found"),
        lines,
    )
    worst = max((float(gated), name) for name, _, gated, _ in lines)
    report.at_most(f"the worst of them with the gate ({worst[1]})", worst[0] - honest, COSTS, "")


def _rank(value: float) -> float:
    return np.inf if np.isnan(value) else value


def _ece(
    method: str, sources: int, scores: Scores, liars: int, lie: Lie, side: float, gate: bool
) -> tuple[float, float]:
    """The mean over draws, NaN where a run fails, and the share of liars that were left out."""
    found, caught = [], 0
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(scores))
        private, test = np.split(order, [sources * ROWS])
        panel = Panel(
            [scores.take(part) for part in np.split(private, sources)], liars, lie, side, draw
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceDropped)
            try:
                if gate:
                    result = privcal.calibrate(panel, method, EPSILON)
                else:
                    with ungated(), np.errstate(all="ignore"):
                        result = privcal.calibrate(panel, method, EPSILON)
            except Exception:  # whatever it is, it comes after everybody has paid
                return np.nan, 0.0
        kept = scores.take(np.sort(test))
        found.append(ece(result.map.confidence(kept), kept.correct))
        caught += len(set(result.left_out) & set(panel.names[sources - liars :]))
    return float(np.mean(found)), caught / max(liars * DRAWS, 1)


IN_SUMS = 0.3
"""The ε at which lies in secure sums are told: there the noise of one source is enough for all."""

SUM_DRAWS = 40


@dataclass(frozen=True)
class Way:
    """How answers are put together: each by itself, or in secure sums of so many groups."""

    name: str
    groups: int
    law: NoiseLaw


def ways(sources: int) -> list[Way]:
    """All ways that terms allow, where a fifth may collude, and where only a few may."""
    found = [Way("each, the odd left out", 0, NoiseLaw())]
    for colluding in (usual_colluding(sources), 3):
        for groups in (1, 3, 5, 7):
            each = sources // groups
            needed = usual_needed(each, colluding) if each > colluding + 1 else each + 1
            if needed <= each:
                name = f"{groups} groups" if groups > 1 else "one sum"
                law = NoiseLaw(honest=needed - colluding, alone=10, groups=groups)
                found.append(Way(f"{name}, t = {colluding}", groups, law))
    return found


def _in_sums(sources: int, scores: Scores) -> None:
    """What liars do to the curve, and to the mean gap between accuracy and confidence."""
    lies = {"none": (0, 0), **{f"{k} of {n} rows": (k, n) for k in (1, 3) for n in (30, 300)}}
    found: dict[str, list[list[str]]] = {"ECE of the sketch": [], "rms error of the mean gap": []}
    for way in ways(sources):
        cells = [
            [max(of_side) for of_side in zip(*sides, strict=True)]
            for sides in (
                [_lied(way, sources, scores, liars, rows(claimed), side) for side in (-1.0, 1.0)]
                for liars, claimed in lies.values()
            )
        ]
        for column, lines in enumerate(found.values()):
            lines.append([way.name, *(f"{cell[column]:.3f}" for cell in cells)])
    for measure, lines in found.items():
        report.table(
            f"liars: {measure}, {sources} sources of {ROWS} rows, ε = {IN_SUMS:g}, {SUM_DRAWS} draws",
            ("answers, and liars", *lies),
            lines,
        )


def _lied(
    way: Way, sources: int, scores: Scores, liars: int, lie: Lie, side: float
) -> tuple[float, float]:
    """The mean ECE after a sketch, and the root mean squared error of the mean gap."""
    eces, errors = [], []
    truth = float((scores.correct - FAST.confidence(scores.outputs, 1.0)).mean())
    nano = to_nano(IN_SUMS)
    for draw in range(SUM_DRAWS):
        rng = np.random.default_rng([draw, sources])
        lying = rng.permutation(sources)[:liars]
        private, kept = _split(scores, sources, draw)

        def average(query: Query) -> tuple[FloatArray, int]:
            exact = _exact(private, sources, query).copy()  # noqa: B023
            exact[lying] = lie(query, side)  # noqa: B023
            return _together(way, exact, Question("liars", 0, 0, nano, query), rng)  # noqa: B023

        def answer(asks: Sequence[Ask]) -> History:
            averages, believed = average(asks[0].query)
            return History([averages[None]], sources=believed, noise=way.law)

        batch = Batch(1, nano, rng, way.law, sources, ROWS)
        [map] = drive(methods.make("sketch").run(batch), answer)
        eces.append(ece(map.confidence(kept), kept.correct))
        errors.append(float(average(Gap())[0][0]) / ROWS - truth)
    return float(np.mean(eces)), float(np.sqrt(np.mean(np.square(errors))))


@cache
def _split(scores: Scores, sources: int, draw: int) -> tuple[Scores, Scores]:
    """The rows of all sources, one after the other, and all others."""
    order = np.random.default_rng(draw).permutation(len(scores))
    private, test = np.split(order, [sources * ROWS])
    return scores.take(private), scores.take(np.sort(test))


@cache
def _exact(private: Scores, sources: int, query: Query) -> FloatArray:
    each = query.contributions(private)
    rows = np.arange(len(private)).reshape(sources, ROWS)
    return np.array([each.take(own).sum(query.length) for own in rows]) / GRID


def _together(
    way: Way, exact: FloatArray, question: Question, rng: np.random.Generator
) -> tuple[FloatArray, int]:
    """The noisy average of these answers (sources, length), and of how many it is."""
    query = question.query
    if way.groups == 0:
        scale = query.sensitivity / question.epsilon
        answers = exact + rng.laplace(scale=scale, size=exact.shape)
        kept = ~implausible([answers], [question])
        return answers[kept].mean(axis=0), int(kept.sum())
    ask, one = Ask(query, question.nano_epsilon), replace(way.law, groups=1)
    averages = [
        group.mean(axis=0) + average_noise(rng, len(group), ask, (query.length,), one)
        for group in np.array_split(rng.permutation(exact), way.groups)
    ]
    return np.asarray(np.median(averages, axis=0)), len(exact)


def _speed() -> None:
    query = Hats(knots=tuple(np.linspace(-8, 8, 32)))
    question = Question("speed", 0, 0, NANO, query, None)
    answers = np.random.default_rng(0).gamma(2.0, 5.0, (300, query.length))
    implausible([answers], [question])
    began = time.perf_counter()
    for _ in range(100):
        implausible([answers], [question])
    each = (time.perf_counter() - began) * 10
    report.at_most("300 answers of 64 numbers", each, 10.0, " ms")
