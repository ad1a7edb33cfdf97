"""Where a private search for a temperature should look: ranges, spacings and numbers of iterations.

`python -m benchmarks ranges` simulates the shipped methods on the bundled archive; with
`PRIVCAL_ARCHIVES="a.npz b/part0.npz,b/part1.npz"` on those (parts of one archive joined by commas).
Every table row is a candidate; all of them see the same rows in each trial.

The rule by which calibrate's default was chosen was fixed before the first run: of the candidates
whose mean ECE at `clean` (over archives, settings and the three methods) is at most .003 above
that of the paper's search, the one with the least mean ECE over the other shifts, every archive
counting the same.

Sums over a trial's rows are read off tables at `POINTS` temperatures, by straight lines in log T,
and so is the ECE of the whole shift; on these scales the error of that is far below the noise's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks import report
from privcal import kernel, methods
from privcal.maps import TemperatureMap
from privcal.methods.base import Ask
from privcal.metrics import bin_index
from privcal.queries import GRID, BinnedGap, Gap, Nll
from privcal.scores import FloatArray, Scores
from privcal.simulate import answers
from privcal.simulate.archive import CLEAN, Archive, read_archive
from privcal.simulate.measure import BINS, binned_gaps

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
SPACINGS = ("linear", "log", "inverse")
ITERATIONS = (2, 3, 4, 5, 6, 7)

ALLOWED = 0.003
"""How much worse at `clean` a candidate may be."""


@dataclass(frozen=True)
class Candidate:
    """The options of one search."""

    bounds: tuple[float, float]
    spacing: str
    iterations: int

    def __str__(self) -> str:
        return f"[{self.bounds[0]:g}, {self.bounds[1]:g}] {self.spacing}, K = {self.iterations}"


PAPERS = Candidate((0.5, 3.0), "linear", 5)
CANDIDATES = [Candidate(*each) for each in product(RANGES, SPACINGS, ITERATIONS)]


class Tables:
    """Every row of a shift at each of `POINTS`."""

    def __init__(self, scores: Scores) -> None:
        self.correct = scores.correct
        self.confidence = np.stack([kernel.confidence(scores.outputs, t) for t in POINTS])
        self.nll = np.stack([np.clip(kernel.nll(scores, t), 0, Nll().clip) for t in POINTS])
        gaps = (binned_gaps(c, self.correct)[0] for c in self.confidence)
        self.ece = np.array([np.abs(gap).sum() for gap in gaps]) / len(scores)


class Tabulated:
    """The rows of all sources in every trial, for the methods' three questions at any temperature."""

    def __init__(self, tables: Tables, order: np.ndarray) -> None:
        """`order` holds the rows of each trial, (trials, rows)."""
        self.trials = len(order)
        self._ece = tables.ece
        self._gaps, self._nll = np.empty((2, len(POINTS), self.trials))
        self._binned = np.empty((len(POINTS), self.trials, BINS))
        begins = np.arange(self.trials)[:, None] * BINS
        for g, (confidence, nll) in enumerate(zip(tables.confidence, tables.nll, strict=True)):
            gap = (tables.correct - confidence)[order]
            cells = begins + bin_index(confidence, BINS)[order]
            binned = np.bincount(cells.ravel(), gap.ravel(), self.trials * BINS)
            self._binned[g] = binned.reshape(self.trials, BINS)
            self._gaps[g] = gap.sum(axis=1)
            self._nll[g] = nll[order].sum(axis=1)

    def sums(self, ask: Ask) -> FloatArray:
        tables = {Gap: self._gaps, Nll: self._nll, BinnedGap: self._binned}
        assert ask.temperatures is not None
        table = tables[type(ask.query)].reshape(len(POINTS), self.trials, -1)
        low, share = _places(ask.temperatures)
        runs, share = np.arange(self.trials), share[:, None]
        return np.asarray(GRID * (table[low, runs] * (1 - share) + table[low + 1, runs] * share))

    def ece(self, temperatures: FloatArray) -> FloatArray:
        """The ECE of the whole shift at the temperature of each trial."""
        low, share = _places(temperatures)
        return np.asarray(self._ece[low] * (1 - share) + self._ece[low + 1] * share)


def _places(temperatures: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """The index of the point below each temperature, and how far it is to the next one."""
    places = np.interp(np.log(temperatures), np.log(POINTS), np.arange(len(POINTS)))
    low = np.minimum(places.astype(np.int64), len(POINTS) - 2)
    return low, places - low


def means(archive: Archive, candidates: Sequence[Candidate], trials: int = TRIALS) -> FloatArray:
    """The mean ECE over trials: (candidates, methods, settings, shifts), in their order."""
    found = np.empty((len(candidates), len(NAMES), len(SETTINGS), len(archive.shifts)))
    for s, shift in enumerate(archive.shifts):
        scores = archive.scores(shift)
        tables = Tables(scores)
        rng = np.random.default_rng([s, len(scores)])
        private = max(sources * samples for sources, samples, _ in SETTINGS)
        order = np.stack([rng.permutation(len(scores))[:private] for _ in range(trials)])
        rows = {n: Tabulated(tables, order[:, :n]) for n in {a * b for a, b, _ in SETTINGS}}
        for (c, candidate), (m, name), (i, setting) in product(
            enumerate(candidates), enumerate(NAMES), enumerate(SETTINGS)
        ):
            method = methods.make(name, **vars(candidate))
            sources, samples, epsilon = setting
            tabulated = rows[sources * samples]
            noise = np.random.default_rng([s, i, m])
            maps = answers.run(method, tabulated, sources, epsilon, noise)
            temperatures = np.array(
                [map.temperature for map in maps if isinstance(map, TemperatureMap)]
            )
            found[c, m, i, s] = tabulated.ece(temperatures).mean()
    return found


def run() -> None:
    given = os.environ.get("PRIVCAL_ARCHIVES", "").split()
    archives = [read_archive(text.split(",")) for text in given] or [read_archive()]
    shifted, clean = [], []
    for archive in archives:
        found = means(archive, CANDIDATES)
        is_clean = np.array([shift == CLEAN for shift in archive.shifts])
        shifted.append(found[..., ~is_clean])
        if is_clean.any():
            clean.append(found[..., is_clean].mean(axis=(2, 3)))
        for m, name in enumerate(NAMES):
            _table(f"{name}, {archive.dataset}", shifted[-1][:, m], clean[-1][:, m])
    _choice(shifted, clean)


def _table(title: str, ece: FloatArray, clean: FloatArray) -> None:
    """Mean, median and worst over settings and shifts (but the clean one), best first."""
    cells = ece.reshape(len(ece), -1)
    rows = (
        [str(CANDIDATES[c])]
        + [_digits(x) for x in (cells[c].mean(), np.median(cells[c]), cells[c].max(), clean[c])]
        for c in cells.mean(axis=1).argsort()
    )
    report.table(title, ("search", "mean", "median", "worst", "clean"), rows)


def _choice(shifted: Sequence[FloatArray], clean: Sequence[FloatArray]) -> None:
    over = np.mean([each.mean(axis=(1, 2, 3)) for each in shifted], axis=0)
    costs = np.mean([each.mean(axis=1) for each in clean], axis=0)
    costs = costs - costs[CANDIDATES.index(PAPERS)]
    allowed = costs <= ALLOWED
    ranked = over.argsort()
    rows = (
        [str(CANDIDATES[c]), _digits(over[c]), f"{costs[c]:+.4f}", "yes" if allowed[c] else "no"]
        for c in ranked
    )
    report.table("all methods", ("search", "mean", "at clean", "allowed"), rows)
    best = next(c for c in ranked if allowed[c])
    report.note(f"by the rule: {CANDIDATES[best]}")


def _digits(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")
