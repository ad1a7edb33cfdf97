"""Where a private search for a temperature should look: ranges, spacings and numbers of iterations.

`python -m benchmarks ranges` simulates the shipped methods on the bundled archive, or on those that
`PRIVCAL_ARCHIVES` names: "a.npz b/part0.npz,b/part1.npz" are two, the second in two parts. All
candidates see the same rows in each trial.

The rule by which the defaults of `calibrate` were chosen, for each method by itself: of the
candidates whose mean ECE at `clean` is on no archive more than .003 above that of the paper's
search, the one with the least mean ECE over the other shifts. Settings and archives count the same;
archives without `clean` count as one together. (With K below 3 there are four answers or two: no
search.)

A trial's sums are read off tables at `POINTS` temperatures by straight lines in log T, and so is the
ECE of the whole shift. A spacing is a scale on which the linear search works as it is: T, log T
or 1/T.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks import report
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Ask
from privcal.calibration.methods.search import PAPERS_SEARCH, TemperatureSearch
from privcal.data.scores import Scores
from privcal.planning.simulate import answers
from privcal.planning.simulate.archive import CLEAN, Archive, read_archive
from privcal.planning.simulate.measure import BINS, binned_gaps
from privcal.trusted.kernel import bin_index
from privcal.trusted.queries import GRID, BinnedGap, Gap, Nll
from privcal.trusted.scores import FloatArray, IntArray

TRIALS = 100
POINTS = np.geomspace(0.1, 40, 241)
"""Temperatures at which every row is tabulated."""

SETTINGS = [
    *((sources, 10, 1.0) for sources in (10, 50, 250)),
    *((50, 30, epsilon) for epsilon in (0.5, 1.0, 2.0)),
    (250, 30, 1.0),
]
"""Sources, rows at each, ε."""

NAMES = ("acc-t", "nll-t", "ece-t")
RANGES = ((0.5, 3.0), (0.5, 4.0), (0.5, 5.0), (0.5, 6.0), (0.5, 10.0), (0.25, 8.0), (0.3, 10.0))
ITERATIONS = (3, 4, 5, 6, 7)
ALLOWED = 0.003
"""How much worse at `clean` a candidate may be."""
SHOWN = 8
"""Candidates in a table, beside the paper's."""

Scale = Callable[[FloatArray], FloatArray]
SPACINGS: dict[str, tuple[Scale, Scale]] = {
    "linear": (np.asarray, np.asarray),
    "log": (lambda t: 10 + np.log(t), lambda place: np.exp(place - 10)),  # a search wants T > 0
    "inverse": (np.reciprocal, np.reciprocal),
}
"""From T to its place on the scale, and back."""


@dataclass(frozen=True)
class Candidate:
    """One search."""

    bounds: tuple[float, float]
    spacing: str
    iterations: int

    def __str__(self) -> str:
        return f"{self.bounds[0]:g} to {self.bounds[1]:g}, {self.spacing}, K = {self.iterations}"

    def temperatures(
        self, name: str, rows: Tabulated, setting: tuple[int, int, float], rng: np.random.Generator
    ) -> FloatArray:
        """What the search finds in every trial."""
        place, back = SPACINGS[self.spacing]
        low, high = sorted(float(place(np.array(t))) for t in self.bounds)
        options = {"bounds": (low, high), "iterations": self.iterations, "spacing": "linear"}
        method = methods.make(name, **options)
        sources, _, epsilon = setting
        maps = answers.run(method, _OnScale(rows, back), sources, epsilon, rng)
        return back(np.array([map.temperature for map in maps if isinstance(map, TemperatureMap)]))


PAPERS = Candidate(PAPERS_SEARCH["bounds"], "linear", PAPERS_SEARCH["iterations"])
CANDIDATES = [Candidate(*each) for each in product(RANGES, SPACINGS, ITERATIONS)]


class Tables:
    """Every row of a shift at each of `POINTS`."""

    def __init__(self, scores: Scores) -> None:
        self.correct = scores.correct
        self.confidence = np.stack([FAST.confidence(scores.outputs, t) for t in POINTS])
        self.nll = np.stack([np.clip(FAST.nll(scores, t), 0, Nll().clip) for t in POINTS])
        gaps = (binned_gaps(c, self.correct)[0] for c in self.confidence)
        self.ece = np.array([np.abs(gap).sum() for gap in gaps]) / len(scores)


class Tabulated:
    """The rows of all sources in every trial, for the methods' three questions at any temperature."""

    def __init__(self, tables: Tables, order: IntArray) -> None:
        """`order` holds the rows of each trial, (trials, rows)."""
        self.trials = len(order)
        self._ece = tables.ece
        self._gaps, self._nll = np.empty((2, len(POINTS), self.trials, 1))
        self._binned = np.empty((len(POINTS), self.trials, BINS))
        begins = np.arange(self.trials)[:, None] * BINS
        for g, (confidence, nll) in enumerate(zip(tables.confidence, tables.nll, strict=True)):
            gap = (tables.correct - confidence)[order]
            cells = begins + bin_index(confidence, BINS)[order]
            binned = np.bincount(cells.ravel(), gap.ravel(), self.trials * BINS)
            self._binned[g] = binned.reshape(self.trials, BINS)
            self._gaps[g, :, 0] = gap.sum(axis=1)
            self._nll[g, :, 0] = nll[order].sum(axis=1)

    def sums(self, ask: Ask) -> FloatArray:
        tables = {Gap: self._gaps, Nll: self._nll, BinnedGap: self._binned}
        assert ask.temperatures is not None
        low, share = _places(ask.temperatures)
        table, runs = tables[type(ask.query)], np.arange(self.trials)
        both = table[low, runs], table[low + 1, runs]
        return np.asarray(GRID * (both[0] + share[:, None] * (both[1] - both[0])))

    def ece(self, temperatures: FloatArray) -> FloatArray:
        """The ECE of the whole shift at the temperature of each trial."""
        return np.interp(np.log(temperatures), np.log(POINTS), self._ece)


@dataclass(frozen=True)
class _OnScale:
    """The same rows, asked at places of a scale."""

    rows: Tabulated
    back: Scale

    @property
    def trials(self) -> int:
        return self.rows.trials

    def sums(self, ask: Ask) -> FloatArray:
        assert ask.temperatures is not None
        return self.rows.sums(Ask(ask.query, ask.nano_epsilon, self.back(ask.temperatures)))


def _places(temperatures: FloatArray) -> tuple[IntArray, FloatArray]:
    """The index of the point below each temperature, and how far it is to the next one."""
    places = np.interp(np.log(temperatures), np.log(POINTS), np.arange(len(POINTS)))
    low = np.minimum(places.astype(np.int64), len(POINTS) - 2)
    return low, places - low


def means(archive: Archive) -> FloatArray:
    """The mean ECE over trials: (methods, candidates, settings, shifts), in their order."""
    found = np.empty((len(NAMES), len(CANDIDATES), len(SETTINGS), len(archive.shifts)))
    for s, shift in enumerate(archive.shifts):
        scores = archive.scores(shift)
        rng = np.random.default_rng([s, len(scores)])
        # Rows may be drawn twice where an archive is small.
        most = max(sources * samples for sources, samples, _ in SETTINGS)
        order = rng.integers(len(scores), size=(TRIALS, most))
        tables = Tables(scores)
        rows = {n: Tabulated(tables, order[:, :n]) for n in {a * b for a, b, _ in SETTINGS}}
        for i, setting in enumerate(SETTINGS):
            mine = rows[setting[0] * setting[1]]
            for (m, name), (c, candidate) in product(enumerate(NAMES), enumerate(CANDIDATES)):
                noise = np.random.default_rng([s, i, m])
                found[m, c, i, s] = mine.ece(
                    candidate.temperatures(name, mine, setting, noise)
                ).mean()
    return found


def run() -> None:
    given = os.environ.get("PRIVCAL_ARCHIVES", "").split()
    archives = [read_archive(text.split(",")) for text in given] or [read_archive()]
    names = ", ".join(archive.dataset for archive in archives)
    report.note(f"mean ECE over {names}: {len(SETTINGS)} settings, {TRIALS} trials of each")
    shifted, clean, alone = [], [], []
    for archive in archives:
        found, still = means(archive), np.array([shift == CLEAN for shift in archive.shifts])
        if still.any():
            shifted.append(found[..., ~still])
            clean.append(found[..., still].mean(axis=(2, 3)))
        else:
            alone.append(found.mean(axis=-1))
    if alone:
        shifted.append(np.stack(alone, axis=-1))
    for m, name in enumerate(NAMES):
        _table(name, [x[m] for x in shifted], [x[m] for x in clean])


def _table(name: str, shifted: Sequence[FloatArray], still: Sequence[FloatArray]) -> None:
    """The candidates with the least means, the paper's and calibrate's, and what the rule says."""
    every = np.concatenate([x.reshape(len(x), -1) for x in shifted], axis=1)
    mean = np.mean([x.mean(axis=(1, 2)) for x in shifted], axis=0)
    ranked = mean.argsort().tolist()
    ours = methods.make(name)
    assert isinstance(ours, TemperatureSearch)
    names = {PAPERS: " (paper)", Candidate(ours.bounds, ours.spacing, ours.iterations): " (ours)"}
    rows = [
        [
            str(CANDIDATES[c]) + names.get(CANDIDATES[c], ""),
            _digits(mean[c]),
            *(_digits(x[c].mean()) for x in shifted),
            _digits(np.median(every[c])),
            _digits(every[c].max()),
            *(_digits(x[c]) for x in still),
        ]
        for c in ranked
        if c in ranked[:SHOWN] or CANDIDATES[c] in names
    ]
    each = [f"archive {i}" for i in range(1, len(shifted) + 1)]
    cleans = [f"clean {i}" for i in range(1, len(still) + 1)]
    report.table(name, ("search", "mean", *each, "median", "worst", *cleans), rows)
    costs = np.max([x - x[CANDIDATES.index(PAPERS)] for x in still] or [0 * mean], axis=0)
    report.note(f"by the rule: {next(CANDIDATES[c] for c in ranked if costs[c] <= ALLOWED)}")


def _digits(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
