"""Every method at every setting of a plan, on every shift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privcal import methods
from privcal.advise.plan import ONE_SOURCE, PRIOR, UNCALIBRATED, Expected, Figure, Point
from privcal.advise.population import Draws, Measured, Population, stream
from privcal.errors import InputError
from privcal.maps import Map, TemperatureMap
from privcal.methods.base import Method
from privcal.scores import IntArray, Scores
from privcal.sketch.reader import SketchReader
from privcal.study.archive import Archive
from privcal.study.run import CLEAN, PUBLIC, Variant
from privcal.threads import default_threads

MAX_PUBLIC = 2000
"""More clean rows than this are not simulated: they would hardly say more."""

MAX_ROWS = 20_000
"""Of a larger archive so many rows, chosen at random, are the population."""

_TRIES = 20

Progress = Callable[[int, int], None]
"""Told how many settings of how many are done."""


class Setting(NamedTuple):
    """One run: how many sources, the rows of each that count, and the ε of the run."""

    sources: int
    samples: int
    epsilon: float


@dataclass(frozen=True)
class Task:
    """What is simulated at every shift."""

    archive: Archive
    samples: int
    """Rows that a source has for itself."""
    settings: Sequence[Setting]
    public_rows: int
    trials: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """One method at one shift and setting."""

    label: str
    private: bool
    measured: Measured
    unclear: float | None = None


def simulate(
    task: Task, shifts: Sequence[str], progress: Progress | None = None
) -> tuple[list[Point], int]:
    """What to expect at every setting, and of how many rows the populations are.

    Shifts run on threads; the numbers do not depend on how many.
    """
    done, total = 0, len(shifts) * len(task.settings)

    def tell() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    if progress:
        progress(0, total)
    pool = ThreadPoolExecutor(min(default_threads(), len(shifts)))
    try:
        running = [pool.submit(_shift, task, shift, tell) for shift in shifts]
        for future in wait(running, return_when=FIRST_EXCEPTION).done:
            future.result()  # one shift's error is raised without waiting for the others
        found = [future.result() for future in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    points = []
    for place, setting in enumerate(task.settings):
        together = zip(*(outcomes[place] for outcomes, _ in found), strict=True)
        expected = tuple(_expected(one) for one in together)
        points.append(Point(setting.sources, setting.epsilon, expected))
    return points, found[0][1]


def _expected(outcomes: Sequence[Outcome]) -> Expected:
    """One method at all shifts."""
    unclear = [one.unclear for one in outcomes if one.unclear is not None]
    return Expected(
        outcomes[0].label,
        outcomes[0].private,
        Figure.of(np.stack([one.measured.ece for one in outcomes])),
        Figure.of(np.stack([one.measured.brier for one in outcomes])),
        float(np.mean(unclear)) if unclear else None,
    )


def _shift(task: Task, shift: str, tell: Callable[[], None]) -> tuple[list[list[Outcome]], int]:
    """All settings at one shift, in their order, and the number of rows of the population."""
    scores = task.archive.scores(shift)
    public, rest = _set_aside(task, shift, len(scores))
    population = Population(scores.take(np.sort(rest)))
    without = list(_without_answers(task, shift, population, public))
    contestants = _contestants(public)
    drawn: tuple[int, int] | None = None
    found = []
    for sources, samples, epsilon in task.settings:
        if drawn != (sources, samples):
            rng = stream(task.seed, shift, "rows", sources, samples)
            draws = Draws(population, rng, task.trials, sources, samples)
            drawn = sources, samples
        here = [Outcome(label, False, measured) for label, measured in without]
        for label, method in contestants:
            rng = stream(task.seed, shift, label, sources, samples, epsilon)
            maps = draws.run(method, epsilon, rng)
            here.append(Outcome(label, True, population.measure(maps), _unclear(maps)))
        found.append(here)
        tell()
    return found, len(population.scores)


def _without_answers(
    task: Task, shift: str, population: Population, public: Scores | None
) -> Iterator[tuple[str, Measured]]:
    """What there is to compare with: it does not depend on ε or on the number of sources."""

    def same(map: Map) -> Measured:
        ece, brier = population.measure([map])
        return Measured(ece.repeat(task.trials), brier.repeat(task.trials))

    yield UNCALIBRATED, same(TemperatureMap(1.0))
    yield PRIOR, same(_prior(SketchReader.of()))
    if public is not None:
        label = Variant(PRIOR, ((PUBLIC, len(public)),)).label
        yield label, same(_prior(SketchReader.of(public)))
    rng = stream(task.seed, shift, ONE_SOURCE, task.samples)
    fitted = population.own_fit(population.draw(rng, task.trials, task.samples))
    yield ONE_SOURCE, population.measure([TemperatureMap(t) for t in fitted])


def _prior(reader: SketchReader) -> Map:
    """What a sketch gives where its answer says nothing."""
    nothing = np.zeros((1, reader.query.length))
    return reader.read(nothing, 1, 1.0).maps(reader.temperature)[0]


def _contestants(public: Scores | None) -> list[tuple[str, Method]]:
    """Every method that asks sources; with public rows once more, if it has a use for them."""
    found: list[tuple[str, Method]] = []
    for name in methods.names():
        if name in (UNCALIBRATED, ONE_SOURCE):
            continue
        method = methods.make(name)
        found.append((name, method))
        if public is not None and method.takes_public:
            label = Variant(name, ((PUBLIC, len(public)),)).label
            found.append((label, methods.make(name, public=public)))
    return found


def _unclear(maps: Sequence[Map]) -> float | None:
    """The share of trials in which the noise drowned the data, where the method says so."""
    known = [map.informative for map in maps if map.informative is not None]
    return float(np.mean(np.logical_not(known))) if known else None


def _set_aside(task: Task, shift: str, size: int) -> tuple[Scores | None, IntArray]:
    """Public rows, clean, and the rows of the population: never of the same sample.

    Every shift has other public rows, so that a plan does not hang on one lucky draw of them.
    """
    rng = stream(task.seed, shift, PUBLIC)
    if task.public_rows == 0:
        rest = np.arange(size) if size <= MAX_ROWS else rng.permutation(size)[:MAX_ROWS]
        return None, rest
    clean = task.archive.scores(CLEAN)
    for _ in range(_TRIES):
        order = rng.permutation(size)
        public = clean.take(order[: task.public_rows])
        try:
            SketchReader.of(public)
        except InputError as error:
            problem = error
        else:
            return public, order[task.public_rows :][:MAX_ROWS]
    raise InputError(f"clean rows of the archive cannot stand for yours: {problem}")
