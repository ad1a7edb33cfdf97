"""Secure sums: what ε they take for what each source's own noise takes 1, and what they make possible.

Under the usual terms: a fifth of the sources may collude, a tenth may fail, a floor of 10. Simulated,
with the noise's own law (`tests/planning/simulate/test_answers.py` compares it with real shares). `PRIVCAL_ICU`
names the table of intensive-care units that docs/hospitals.md describes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks import report
from privcal import Scores
from privcal.calibration import methods
from privcal.calibration.loop import AGGREGATIONS
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Ask
from privcal.calibration.metrics import ece
from privcal.data.readers import read_sources
from privcal.lab import study
from privcal.planning.simulate import answers
from privcal.planning.simulate.variants import Variant, epsilon_share, noise_law, with_public
from privcal.trusted.scores import FloatArray

PUBLIC = 2000
SOURCES, SAMPLES, TODAY = 50, 30, 1.0
EPSILONS = (0.08, 0.11, 0.15, 0.2, 0.28, 0.4)
TRIALS, GRID_TRIALS, RESAMPLED = 200, 100, 200
SPLITS, DRAWS = 20, 25
"""Of the intensive-care units: halves of the hospitals, and draws of the noise for each."""

COMPARED = ("sketch", str(with_public("sketch", PUBLIC)), "acc-t")


def run() -> None:
    _equal_ece()
    _papers_grid()
    if named := os.environ.get("PRIVCAL_ICU"):
        _intensive_care(Path(named))
    else:
        report.note("intensive care is skipped: PRIVCAL_ICU names no table")


# --- the ε for the same ECE --------------------------------------------------------------------


def _equal_ece() -> None:
    with tempfile.TemporaryDirectory() as folder:
        grid = Path(folder) / "grid.toml"
        grid.write_text(
            f"[epsilon]\nvalues = {[*EPSILONS, TODAY]}\nsources = {SOURCES}\nsamples = {SAMPLES}\n"
        )
        out = Path(folder) / "study"
        given: dict[str, Any] = {
            "methods": ["acc-t", "sketch"],
            "public_rows": PUBLIC,
            "trials": TRIALS,
        }
        study.run(**given, grid=str(grid), aggregation="both", out=out, keep_trials=True)
        kept = pl.read_parquet(out / "trials.parquet").filter(pl.col("shift") != "clean")
    rng = np.random.default_rng(0)
    rows, found = [], {}
    for name in COMPARED:
        each, secure = _values(kept, name), _values(kept, _secure(name))
        value = _equal(each, secure, np.arange(TRIALS))
        draws = [_equal(each, secure, rng.integers(0, TRIALS, TRIALS)) for _ in range(RESAMPLED)]
        found[name] = value
        today, same = float(each[TODAY].mean()), float(secure[TODAY].mean())
        rows.append((name, f"{today:.4f}", f"{same:.4f}", f"{value:.3f} ± {np.std(draws):.3f}"))
    report.table(
        f"secure sums: {SOURCES} sources of {SAMPLES} rows, mean over the bundled shifts",
        ("method", "ECE at ε = 1", "… secure", "secure ε for the first"),
        rows,
    )
    report.note(f"for equal noise: {epsilon_share(SOURCES):.3f}")
    report.at_most("sketch: ε for the ECE of ε = 1 at each source", found["sketch"], 0.25, "")


def _secure(name: str) -> str:
    variant = Variant.read(name)
    return str(Variant(variant.method, variant.options, "secure"))


def _values(kept: pl.DataFrame, method: str) -> dict[float, FloatArray]:
    """By ε: the ECE of every shift and trial."""
    of_method = kept.filter(pl.col("method") == method).sort("shift", "trial")
    return {
        float(epsilon): part["ece"].to_numpy().reshape(-1, TRIALS)
        for (epsilon,), part in of_method.group_by("epsilon")
    }


def _equal(
    each: dict[float, FloatArray], secure: dict[float, FloatArray], trials: np.ndarray
) -> float:
    """The ε at which secure sums have the ECE of today's, between those that were run."""
    today = each[TODAY][:, trials].mean()
    grid = np.array(EPSILONS)
    means = np.array([secure[epsilon][:, trials].mean() for epsilon in grid])
    falling = np.minimum.accumulate(means)
    return float(np.exp(np.interp(-today, -falling, np.log(grid))))


# --- the paper's settings ----------------------------------------------------------------------


def _papers_grid() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        given: dict[str, Any] = {
            "methods": ["acc-t", "sketch"],
            "public_rows": PUBLIC,
            "trials": GRID_TRIALS,
        }
        found = study.run(**given, aggregation="both", out=out)
        exact = pl.read_parquet(out / "exact.parquet").filter(pl.col("method") == "acc-t")
    shifted = found.filter(pl.col("shift") != "clean")
    base = float(np.median(exact.filter(pl.col("shift") != "clean")["ece_mean"].to_numpy()))
    rows = []
    for method in [m for name in COMPARED for m in (name, _secure(name))]:
        cells = shifted.filter(pl.col("method") == method)["ece_mean"].to_numpy()
        middle = float(np.median(cells))
        rows.append((method, f"{middle:.4f}", f"{cells.mean():.4f}", f"{middle / base:.3f}"))
        if method == _secure(COMPARED[1]):
            ratio = middle / base
    report.table(
        f"secure sums: bundled archive, the paper's grid, {GRID_TRIALS} trials",
        ("method", "median ECE", "mean ECE", "median over that of exact Acc-T"),
        rows,
    )
    report.at_most("sketch with public rows: median ECE over exact Acc-T's", ratio, 0.9, "x")


# --- intensive care ----------------------------------------------------------------------------


class Pooled:
    """The rows of all sources, the same ones in every trial."""

    def __init__(self, scores: Scores, trials: int) -> None:
        self.scores, self.trials = scores, trials

    def sums(self, ask: Ask) -> FloatArray:
        def once(run: int) -> FloatArray:
            query = ask.for_run(run)
            return query.contributions(self.scores).sum(query.length).astype(np.float64)

        if ask.temperatures is None and ask.queries is None:
            return np.tile(once(0), (self.trials, 1))
        return np.stack([once(run) for run in range(self.trials)])


def _intensive_care(path: Path) -> None:
    """Half of the hospitals are asked, one row of each person; the others test."""
    hospitals = read_sources(path, "hospital")
    names = sorted(hospitals)
    found: dict[tuple[str, str, float], list[FloatArray]] = {}
    for split in range(SPLITS):
        rng = np.random.default_rng([0, split])
        order = [names[i] for i in rng.permutation(len(names))]
        half = len(order) // 2
        asked = _together([_one_each(hospitals[name]) for name in order[:half]])
        test = _together([hospitals[name] for name in order[half:]])
        before = _ece([TemperatureMap(1.0)], test)
        for label, options in ASKED.items():
            method = methods.make("sketch", **options)
            for aggregation in AGGREGATIONS:
                for epsilon in ICU_EPSILONS:
                    maps = answers.run(
                        method,
                        Pooled(asked, DRAWS),
                        half,
                        epsilon,
                        rng,
                        noise_law(aggregation, half),
                    )
                    key = label, aggregation, epsilon
                    found.setdefault(key, []).append(_ece(maps, test) - before)
    rows = []
    for label in ASKED:
        for aggregation in AGGREGATIONS:
            values = [found[label, aggregation, epsilon] for epsilon in ICU_EPSILONS]
            rows.append((f"{label}, {aggregation}", *(f"{np.mean(v):+.4f}" for v in values)))
    report.table(
        f"secure sums: ECE above leaving alone, {len(names) // 2} intensive-care units, {SPLITS} "
        f"splits, {DRAWS} draws each",
        ("", *(f"ε = {epsilon:g}" for epsilon in ICU_EPSILONS)),
        rows,
    )
    for label in ("sketch", "sketch, risk"):
        each = np.mean(found[label, "secure", 0.5], axis=1)  # of each split
        report.at_most(
            f"intensive care, {label}, ε = 0.5: ECE above leaving alone (splits: "
            f"{np.percentile(each, 10):+.4f} to {np.percentile(each, 90):+.4f})",
            float(each.mean()),
            0.0,
            "",
        )


ICU_EPSILONS = (0.25, 0.5, 1.0, 2.0)
ASKED: dict[str, dict[str, object]] = {
    "sketch": {},
    "sketch, leave alone": {"leave_alone": True},
    "sketch, risk": {"event": 1},
}


def _ece(maps: Sequence[Map], test: Scores) -> FloatArray:
    correct = [map.predict(test) == test.labels for map in maps]
    return np.array(
        [ece(map.confidence(test), right) for map, right in zip(maps, correct, strict=True)]
    )


def _one_each(scores: Scores) -> Scores:
    assert scores.person is not None
    return scores.take(np.sort(np.unique(scores.person, return_index=True)[1]))


def _together(parts: Sequence[Scores]) -> Scores:
    return Scores(
        probabilities=np.concatenate([part.outputs.array for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )
