"""What to expect of every method in every scenario of a plan, on every shift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Method
from privcal.calibration.metrics import ece
from privcal.calibration.sketch.reader import SketchReader
from privcal.data.scores import Scores
from privcal.planning.advise.plan import LEAVE_ALONE, PRIOR, Expectation, Point, ShiftMean
from privcal.planning.simulate import answers
from privcal.planning.simulate.archive import CLEAN, Archive
from privcal.planning.simulate.measure import Measured, measure
from privcal.planning.simulate.splits import Resampled, stream
from privcal.planning.simulate.variants import (
    EACH,
    ONE_SOURCE,
    PUBLIC,
    UNCALIBRATED,
    Variant,
    noise_law,
    takes_public,
    with_public,
)
from privcal.trusted.errors import InputError
from privcal.trusted.scores import IntArray
from privcal.trusted.threads import default_threads

MAX_PUBLIC_ROWS = 2000
"""More clean rows than this are not simulated: they would hardly say more."""

MAX_POPULATION = 20_000
"""Of a larger archive so many rows, chosen at random, are the population."""

RIGHT = "already calibrated"
"""In place of a shift: unperturbed outputs that are right already."""

_TRIES = 20

SettingsDone = Callable[[int, int], None]
"""Called with how many scenarios of how many are done."""


class Scenario(NamedTuple):
    """One run: how many sources, the rows of each that count, and the ε of the run."""

    sources: int
    samples: int
    epsilon: float


@dataclass(frozen=True)
class PlanTask:
    """What is simulated at every shift."""

    archive: Archive
    samples: int
    """Rows that a source has for itself."""
    scenarios: Sequence[Scenario]
    public_rows: int
    trials: int
    seed: int
    current_ece: float | None = None
    """What every shift is eased to; None: none is."""
    aggregation: str = EACH
    """Whether each source answers by itself, or secure sums are taken."""
    shifts: Sequence[str] = ()
    progress: SettingsDone = lambda done, total: None


@dataclass(frozen=True)
class Outcome:
    """One method at one shift in one scenario."""

    method: Variant
    private: bool
    measured: Measured
    unclear: float | None = None


def expect(task: PlanTask) -> tuple[list[Point], int]:
    """What to expect in every scenario, and of how many rows the populations are.

    Shifts run on threads; the numbers do not depend on how many.
    """
    simulated = [*task.shifts, RIGHT]
    done, total = 0, len(simulated) * len(task.scenarios)

    def tell() -> None:
        nonlocal done
        done += 1
        task.progress(done, total)

    task.progress(0, total)
    pool = ThreadPoolExecutor(min(default_threads(), len(simulated)))
    try:
        running = [pool.submit(_shift, task, shift, tell) for shift in simulated]
        for future in wait(running, return_when=FIRST_EXCEPTION).done:
            future.result()  # one shift's error is raised without waiting for the others
        results = [future.result() for future in running]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    points = []
    for index, scenario in enumerate(task.scenarios):
        together = zip(*(outcomes[index] for outcomes, _ in results), strict=True)
        expected = tuple(_expectation(*outcomes) for outcomes in together)
        points.append(Point(scenario.sources, scenario.epsilon, expected, task.aggregation))
    return points, results[0][1]


def _expectation(*simulated: Outcome) -> Expectation:
    """One method at all shifts; the last outcome is for a model that is right already."""
    *outcomes, right = simulated
    unclear = [e.unclear for e in outcomes if e.unclear is not None]
    gap, brier, aurc = (
        ShiftMean.of(np.stack(values))
        for values in zip(*(o.measured for o in outcomes), strict=True)
    )
    return Expectation(
        outcomes[0].method,
        outcomes[0].private,
        gap,
        brier,
        aurc,
        ShiftMean.of(right.measured.ece[None, :]),
        float(np.mean(unclear)) if unclear else None,
    )


def _shift(task: PlanTask, shift: str, tell: Callable[[], None]) -> tuple[list[list[Outcome]], int]:
    """All scenarios at one shift, in their order, and the number of rows of the population."""
    scores, clean = _population(task, shift)
    public, rest = _set_aside(task, shift, len(scores), clean)
    population = Resampled(scores.take(np.sort(rest)))
    without = list(_without_answers(task, shift, population, public))
    contestants = _contestants(public)
    drawn: tuple[int, int] | None = None
    results = []
    for sources, samples, epsilon in task.scenarios:
        if drawn != (sources, samples):
            rng = stream(task.seed, shift, "rows", sources, samples)
            rows = population.draw(rng, task.trials, sources * samples)
            drawn = sources, samples
        outcomes = [*without]
        for variant, method in contestants:
            rng = stream(task.seed, shift, variant, sources, samples, epsilon)
            noise = noise_law(task.aggregation, sources)
            maps = answers.run(method, rows, sources, epsilon, rng, noise, rows_per_source=samples)
            measured = measure(maps, population)
            outcomes.append(Outcome(variant, True, measured, _unclear(maps)))
        results.append(outcomes)
        tell()
    return results, population.size


def _population(task: PlanTask, shift: str) -> tuple[Scores, Scores | None]:
    """The rows of a shift, and the clean ones of the same samples, where public rows are simulated."""
    archive, rng = task.archive, stream(task.seed, shift, "eased")
    if shift == RIGHT:
        scores = eased(
            archive.scores(CLEAN if CLEAN in archive.where else archive.shifts[0]), 0, rng
        )
        return scores, scores
    scores = archive.scores(shift)
    if task.current_ece is not None:
        scores = eased(scores, task.current_ece / max(own_ece(scores), 1e-12), rng)
    return scores, archive.scores(CLEAN) if task.public_rows else None


def own_ece(scores: Scores) -> float:
    """The ECE of a model's own confidence."""
    return ece(FAST.confidence(scores.outputs, 1.0), scores.correct)


def eased(scores: Scores, share: float, rng: np.random.Generator) -> Scores:
    """The same logits, as wrong as this share of what they were; at 0 they are right.

    Each row keeps its label with that probability, and otherwise gets one drawn from the model's own
    probabilities. So at every confidence the gap to the accuracy is that share of what it was: the
    way in which the model is wrong stays, and its ECE is that share too, but for chance.
    """
    logits = scores.outputs.array
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return Scores(
        logits=logits, labels=np.where(rng.random(len(drawn)) < share, scores.labels, drawn)
    )


def _without_answers(
    task: PlanTask, shift: str, population: Resampled, public: Scores | None
) -> Iterator[Outcome]:
    """What there is to compare with: it does not depend on ε or on the number of sources."""

    def same(method: Variant, map: Map) -> Outcome:
        values = measure([map], population)
        return Outcome(method, False, Measured(*(v.repeat(task.trials) for v in values)))

    yield same(Variant(UNCALIBRATED), TemperatureMap(1.0))
    yield same(Variant(PRIOR), answers.prior_map())
    if public is not None:
        yield same(with_public(PRIOR, len(public)), answers.prior_map(public))
    rng = stream(task.seed, shift, ONE_SOURCE, task.samples)
    fitted = population.draw(rng, task.trials, task.samples).own_fit()
    measured = measure([TemperatureMap(t) for t in fitted], population)
    yield Outcome(Variant(ONE_SOURCE), False, measured)


def _contestants(public: Scores | None) -> list[tuple[Variant, Method]]:
    """Every method that asks sources; with public rows once more, if it has a use for them.

    The sketch also as it is for a model in use: left alone in doubt.
    """
    chosen: list[tuple[Variant, Method]] = []
    for name in methods.names():
        if name in (UNCALIBRATED, ONE_SOURCE):
            continue
        chosen.append((Variant(name), methods.make(name)))
        if public is not None and takes_public(name):
            chosen.append((with_public(name, len(public)), methods.make(name, public=public)))
    in_use = {LEAVE_ALONE: True, **({} if public is None else {PUBLIC: public})}
    told = ((PUBLIC, len(public)),) if public is not None else ()
    variant = Variant("sketch", (*told, (LEAVE_ALONE, True)))
    return [*chosen, (variant, methods.make("sketch", **in_use))]


def _unclear(maps: Sequence[Map]) -> float | None:
    """The share of trials in which the noise drowned the data, where the method says so."""
    known = [map.informative for map in maps if map.informative is not None]
    return float(np.mean(np.logical_not(known))) if known else None


def _set_aside(
    task: PlanTask, shift: str, size: int, clean: Scores | None
) -> tuple[Scores | None, IntArray]:
    """Public rows, clean, and the rows of the population: never of the same sample.

    Every shift has other public rows, so that a plan does not hang on one lucky draw of them.
    """
    rng = stream(task.seed, shift, PUBLIC)
    if task.public_rows == 0:
        rest = np.arange(size) if size <= MAX_POPULATION else rng.permutation(size)[:MAX_POPULATION]
        return None, rest
    assert clean is not None
    for _ in range(_TRIES):
        order = rng.permutation(size)
        public = clean.take(order[: task.public_rows])
        try:
            SketchReader.of(public)
        except InputError as error:
            problem = error
        else:
            return public, order[task.public_rows :][:MAX_POPULATION]
    raise InputError(f"clean rows of the archive cannot stand for yours: {problem}")
