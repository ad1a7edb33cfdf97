"""A population: who is drawn from it, and what maps are worth on all of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import privcal
from privcal.calibration.fit import fit_local
from privcal.calibration.maps import BinsMap, CurveMap, Map, TemperatureMap
from privcal.calibration.methods.base import Ask
from privcal.planning.simulate.measure import measure
from privcal.planning.simulate.splits import Resampled, stream
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import BinnedGap, CellHistogram, Gap, Hats, Histogram, Nll, Query
from tests.support.builders import a_source, random_scores


@pytest.mark.parametrize(
    "query",
    [Gap(1.3), Nll(0.7, 3.0), BinnedGap(2.1), Histogram(10), CellHistogram(10), Hats(1.5)],
    ids=repr,
)
def test_noise_free_sums_are_the_integers_that_sources_would_add_up(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVCAL_KERNEL", "numpy")  # the one that sources use
    population = Resampled(random_scores(50, seed=1))
    drawn = population.draw(stream(0, "rows"), 5, 120)  # of 50: many more than once
    temperatures = None
    if isinstance(query, (Gap, Nll, BinnedGap)):
        temperatures = np.array([0.8, 1.3, 0.8, 2.0, 1.3])
    found = drawn.sums(Ask(query, NANO, temperatures))
    assert found.tolist() == drawn.sums(Ask(query, NANO, temperatures)).tolist()
    for trial in range(5):
        rows = np.repeat(np.arange(50), drawn.counts[trial].astype(int))
        asked = query if temperatures is None else query.at(temperatures[trial])
        assert len(rows) == 120
        assert (
            found[trial].tolist() == a_source(population.scores.take(rows))._exact(asked).tolist()
        )


@pytest.mark.parametrize("rows", [30, 20_000])
def test_every_row_is_drawn_equally_often(rows: int) -> None:
    population = Resampled(random_scores(25))
    counts = population.draw(stream(0), 400, rows).counts
    assert (counts.sum(axis=1) == rows).all()
    # Binomial(400 · rows, 1/25) for each row of the population: within 5 deviations.
    total, expected = counts.sum(axis=0), 400 * rows / 25
    assert np.abs(total - expected).max() < 5 * math.sqrt(expected)
    assert total.std() > 0.5 * math.sqrt(expected)  # and not by taking turns


def maps(kind: str, rng: np.random.Generator) -> list[Map]:
    if kind == "temperature":
        return [TemperatureMap(t) for t in rng.uniform(0.5, 3, 8)]
    if kind == "bins":
        values = [[None if v < 0.2 else float(v) for v in rng.random(n)] for n in (15, 15, 7, 10)]
        return [BinsMap(tuple(v)) for v in values]
    curves = rng.uniform(0.1, 2, (8, 6)).cumsum(axis=1) - 4
    return [CurveMap(1.4, tuple(np.linspace(-4.0, 8.0, 6)), tuple(c)) for c in curves]


@pytest.mark.parametrize("kind", ["temperature", "bins", "curve"])
@pytest.mark.parametrize("bundled", [False, True])
def test_measures_are_those_of_all_rows(kind: str, bundled: bool) -> None:
    scores = privcal.datasets.cifar10c("fog") if bundled else random_scores(600, seed=5)
    found = maps(kind, np.random.default_rng(2))
    ece, brier, _ = measure(found, Resampled(scores))
    expected = [m.confidence(scores) for m in found]
    off = np.abs(ece - [privcal.ece(c, scores.correct) for c in expected])
    # Curves are measured on 1,000 cells of rows; with fewer rows every one is a cell.
    assert off.mean() < (3e-4 if bundled and kind == "curve" else 1e-6)
    assert off.max() < 5e-4
    assert brier == pytest.approx([privcal.brier(c, scores.correct) for c in expected], abs=1e-5)


def test_a_sources_own_fit_is_the_owners_exact_fit() -> None:
    population = Resampled(random_scores(300, seed=3))
    drawn = population.draw(stream(1), 60, 15)
    found = drawn.own_fit()
    exact = [
        fit_local(population.scores.take(np.repeat(np.arange(300), c.astype(int))))
        for c in drawn.counts
    ]
    assert found == pytest.approx([fit.temperature for fit in exact], rel=1e-3)
    assert {0.5, 3.0} & set(np.round(found, 12))  # some lie at the bounds
