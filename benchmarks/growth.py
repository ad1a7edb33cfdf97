"""How time and memory grow with what there is to do: each of it doubled, and doubled again.

Printed is the exponent, log2 of what one doubling costs: 0 where it makes no difference, 1 where
twice as much takes twice as long. Time is that of the processor, over all threads.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.data import synthetic
from benchmarks.memory import traced_peak
from privcal import Policy, Scores, Source, fit_temperature
from privcal.calibration.sketch import Sketch, SketchReader
from privcal.lab import study
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import Gap, Query
from privcal.trusted.question import Question

ROUNDS = 3
SHORTEST = 0.05
"""Seconds: what takes less is repeated."""

LINEAR = 1.1
"""The largest exponent that needs no reason."""

REASONS: dict[tuple[str, str, str], str] = {}
"""Why something grows faster: by what, doubled, and time or memory."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """Something to do, of any size."""

    what: str
    doubled: str
    make: Callable[[int], Call]
    """From the size, in multiples of the smallest, to a call that does it."""
    sizes: tuple[int, ...] = (1, 2, 4, 8)


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [(case, *_exponents(case)) for case in _cases(Path(folder))]
    report.table(
        "growth: exponents, medians over doublings (1 is linear)",
        ("what", "doubled", "time", "memory"),
        ((case.what, case.doubled, f"{t:.2f}", f"{m:.2f}") for case, t, m in rows),
    )
    for case, *exponents in rows:
        for kind, exponent in zip(("time", "memory"), exponents, strict=True):
            if exponent > LINEAR:
                reason = REASONS.get((case.what, case.doubled, kind), "no reason is known")
                report.note(f"{case.what}, {case.doubled}, {kind}: {exponent:.2f}: {reason}")
    largest = max(max(exponents) for _, *exponents in rows)
    report.at_most("largest exponent", largest, LINEAR, "")


def _exponents(case: Case) -> tuple[float, float]:
    """Of processor time and of peak memory: medians over the doublings."""
    calls = [case.make(size) for size in case.sizes]
    repeats = max(1, math.ceil(SHORTEST / max(_seconds(calls[0], 1), 1e-6)))
    for call in calls:
        call()  # whatever is done once
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, mine in zip(calls, seconds, strict=True):
            mine.append(_seconds(call, repeats))
    times = [statistics.median(mine) for mine in seconds]
    return _exponent(times), _exponent([traced_peak(call) for call in calls])


def _seconds(call: Call, repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - start


def _exponent(costs: list[float]) -> float:
    """The median of log2 of what each doubling costs."""
    return statistics.median(math.log2(b / a) for a, b in pairwise(costs))


# --- what is done ------------------------------------------------------------------------


def _cases(folder: Path) -> Iterator[Case]:
    # Beyond what a fit does wholly in double precision: from there on all sizes take the same steps.
    yield Case("fit", "rows", lambda size: _fit(80_000 * size, 100), (1, 2, 4))
    yield Case("fit", "classes", lambda size: _fit(20_000, 50 * size))
    for name, query in (("gap", Gap(1.7)), ("sketch", SketchReader.of().query)):
        what = f"answer, {name} query"
        yield Case(what, "rows", lambda size, query=query: _answer(query, 20_000 * size, 100))  # type: ignore[misc]
        yield Case(what, "classes", lambda size, query=query: _answer(query, 40_000, 50 * size))  # type: ignore[misc]
    yield Case("sketch, read", "sources", lambda size: _read(500 * size))
    yield Case("sketch, read", "runs at once", lambda size: _read_many(100 * size))
    for doubled in ("rows", "classes", "sources", "settings", "trials"):
        yield Case("study", doubled, partial(_study, folder, doubled), (1, 2, 4))


def _scores(rows: int, classes: int) -> Scores:
    logits, labels = synthetic(rows, classes)
    return Scores(logits=logits, labels=labels)


def _fit(rows: int, classes: int) -> Call:
    logits, labels = synthetic(rows, classes)
    return lambda: fit_temperature(Scores(logits=logits, labels=labels))


def _answer(query: Query, rows: int, classes: int) -> Call:
    source = Source(_scores(rows, classes), Policy(epsilon=1000.0), ledger=None)
    numbers = count()
    return lambda: source.answer(Question.of(query, 0.1, "growth", index=next(numbers)))


def _read(sources: int) -> Call:
    """What a calibrator does with the answers, from the numbers to the map."""
    query = SketchReader.of().query
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 5, query.length) + rng.laplace(size=(sources, query.length))
    answers = {f"source {i}": tuple(row) for i, row in enumerate(values.tolist())}
    return lambda: Sketch.of(query, answers, {}, NANO, asker="a", campaign="c").fit()


def _read_many(runs: int) -> Call:
    """The same for many runs at once, as in a study."""
    reader = SketchReader.of()
    rng = np.random.default_rng(0)
    averages = rng.uniform(0, 5, (runs, reader.query.length))
    return lambda: reader.maps(reader.read(averages, 50, 0.05))


def _study(folder: Path, doubled: str, size: int) -> Call:
    """All methods at one shift, in this process."""
    usual = {"rows": 10_000, "classes": 10, "sources": 150, "settings": 8, "trials": 200}
    sizes = usual | {doubled: usual[doubled] * size}
    name = f"{doubled}-{size}"
    logits, labels = synthetic(sizes["rows"], sizes["classes"])
    np.savez(folder / f"{name}.npz", labels=labels, shift=logits)
    # Between half as many sources and all of them.
    sources = np.linspace(sizes["sources"] / 2, sizes["sources"], sizes["settings"])
    grid = folder / f"{name}.toml"
    values = [int(value) for value in sources]
    grid.write_text(f"[sources]\nvalues = {values}\nsamples = 10\nepsilon = 1.0\n", "utf-8")
    archive = [folder / f"{name}.npz"]
    return lambda: study.run(archive, grid=str(grid), trials=sizes["trials"], jobs=1)
