"""A shared map refined at home: sources under different shifts, and sources that are alike.

Fifty sources of 30 rows make the shared sketch; then one source of each shift refines the map with
own rows, and the result is measured on rows of its shift that nobody has seen. An own temperature,
by likelihood, is what a source could have without the others. `PRIVCAL_TINY_IMAGENET` may name the
parts of a many-class archive, separated by colons.
"""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

import privcal
from benchmarks import report
from benchmarks.liars import Panel, rows
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.metrics import brier, ece
from privcal.data.datasets import NOT_SHIFTS
from privcal.data.scores import Scores
from privcal.planning.simulate.archive import Archive, read_archive

SOURCES, ROWS, EPSILON, DRAWS, PUBLIC = 50, 30, 1.0, 4, 2000
OWN = (10, 30, 100, 300)
TARGETS = {30: 0.070, 300: 0.042}
"""The largest ECE at a source under a shift of its own, by the number of its own rows."""

Found = dict[tuple[str, int], list[tuple[float, float]]]
"""ECE and Brier score of every source, by what gave the map and from how many own rows."""


def run() -> None:
    archives: dict[str, tuple[str, ...]] = {"CIFAR-10-C": ()}
    if parts := os.environ.get("PRIVCAL_TINY_IMAGENET"):
        archives["Tiny-ImageNet-C"] = tuple(parts.split(":"))
    for name, files in archives.items():
        archive = read_archive(files)
        shifts = [shift for shift in archive.shifts if shift not in (*NOT_SHIFTS, "clean")]
        for public in (True, False):
            said = f"{name}, {'public rows' if public else 'no public rows'}"
            unlike = _table(f"{said}, each source its own shift", archive, [shifts], public)
            _table(f"{said}, sources alike", archive, [[s] for s in shifts[::3]], public)
            for count, target in TARGETS.items():
                value = np.mean(unlike["shared map and own rows", count], axis=0)[0]
                report.at_most(f"shared map and {count} own rows, ECE", float(value), target, "")


def _table(
    title: str, archive: Archive, federations: Sequence[Sequence[str]], public: bool
) -> Found:
    """Each federation has these shifts, its sources one after the other."""
    found: Found = defaultdict(list)
    for shifts in federations:
        for draw in range(DRAWS):
            _measure(found, {s: archive.scores(s) for s in ("clean", *shifts)}, public, draw)
    lines = [
        (name, *(_cell(found.get((name, count), [])) for count in (0, *OWN)))
        for name in ("shared map", "own temperature", "shared map and own rows")
    ]
    report.table(
        f"refine: {title}; ECE / Brier, {SOURCES} sources of {ROWS} rows, ε = {EPSILON:g}",
        ("own rows", "none", *map(str, OWN)),
        lines,
    )
    return found


def _cell(values: list[tuple[float, float]]) -> str:
    return "{:.3f} / {:.3f}".format(*np.mean(values, axis=0)) if values else ""


def _measure(found: Found, scores: dict[str, Scores], public: bool, draw: int) -> None:
    rng = np.random.default_rng(draw)
    clean, shifts = scores["clean"], [s for s in scores if s != "clean"]
    private, rest = np.split(PUBLIC + rng.permutation(len(clean) - PUBLIC), [SOURCES * ROWS])
    taken = np.split(private, SOURCES)
    sources = [scores[shifts[i % len(shifts)]].take(part) for i, part in enumerate(taken)]
    method = privcal.methods.make("sketch", public=clean.take(slice(0, PUBLIC)) if public else None)
    shared = privcal.calibrate(Panel(sources, 0, rows(0), 1.0, draw), method, EPSILON).map
    for shift in shifts:
        own, unseen = np.split(rng.permutation(rest), [max(OWN)])
        test = scores[shift].take(np.sort(unseen))

        def measure(name: str, count: int, map: Map, test: Scores = test) -> None:
            p = map.confidence(test)
            found[name, count].append((ece(p, test.correct), brier(p, test.correct)))

        measure("shared map", 0, shared)
        for count in OWN:
            mine = scores[shift].take(own[:count])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # few rows may have no best temperature
                fitted = privcal.fit_temperature(mine)
            measure("own temperature", count, TemperatureMap(fitted.temperature))
            refined = privcal.refine(shared, mine, force=True)
            measure("shared map and own rows", count, refined)
