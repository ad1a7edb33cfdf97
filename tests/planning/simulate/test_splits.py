"""Splits say what real sources would: same sums, same law of noise, same results."""

from __future__ import annotations

import math

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.fit import fit_local
from privcal.calibration.maps import BinsMap, Map, TemperatureMap
from privcal.calibration.methods.base import Ask
from privcal.planning.simulate import answers
from privcal.planning.simulate.measure import TABULATED, measure
from privcal.planning.simulate.splits import Split, Splits, measure_tabulated
from privcal.planning.simulate.variants import ONE_SOURCE
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import GRID, BinnedGap, CellHistogram, Gap, Histogram, Nll
from tests.support.builders import a_source, random_scores

SMALL, ALSO = (6, 8), (4, 20)
"""Sources, and rows of each."""


def some_splits(trials: int = 7) -> Splits:
    scores = random_scores(400, seed=3)
    return Splits.alike(scores, [48, 80], trials, np.random.SeedSequence(5))


@pytest.mark.parametrize("sizes", [SMALL, ALSO])
@pytest.mark.parametrize(
    "query",
    [Gap(1.3), Nll(0.7, 3.0), BinnedGap(2.1, 15), Histogram(10), CellHistogram(10)],
    ids=repr,
)
def test_noise_free_sums_are_the_integers_that_sources_would_add_up(
    query: object, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVCAL_KERNEL", "numpy")  # the one that sources use
    sources, samples = sizes
    split = some_splits().at(sources * samples)
    temperatures = None
    if not isinstance(query, (Histogram, CellHistogram)):
        temperatures = np.where(np.arange(split.trials) % 2, 1.3, query.temperature)
    found = split.sums(Ask(query, NANO, temperatures))
    for trial in range(split.trials):
        asked = query if temperatures is None else query.at(temperatures[trial])
        total = np.zeros(query.length, np.int64)
        for rows in np.split(split.of.order[trial, : sources * samples], sources):
            total += a_source(split.of.scores.take(rows))._exact(asked)
        assert found[trial].tolist() == total.tolist()


def test_trials_are_random_orders_without_repetition() -> None:
    splits = some_splits(50)
    assert all(len(set(order)) == len(order) for order in splits.order.tolist())
    counts = np.bincount(splits.order.ravel(), minlength=400)
    assert counts.std() < 2.2 * math.sqrt(50 * 0.2 * 0.8)  # 80 of 400 rows in each of 50 trials


def test_a_run_without_noise_is_exact() -> None:
    split = some_splits().at(48)
    method = methods.make("acc-t")
    first, again = (
        answers.run(method, split, 6, math.inf, np.random.default_rng(seed)) for seed in (1, 2)
    )
    assert first == again


def by_hand(split: Split, maps: list[Map]) -> tuple[list[float], list[float]]:
    ece, brier = [], []
    scores = split.of.scores
    for trial, found in enumerate(maps):
        private = set(split.of.order[trial, : split.private_rows].tolist())
        test = scores.take(np.array([i for i in range(len(scores)) if i not in private]))
        c = found.confidence(test)
        ece.append(privcal.ece(c, test.correct))
        brier.append(privcal.brier(c, test.correct))
    return ece, brier


@pytest.mark.parametrize("sizes", [SMALL, ALSO])
@pytest.mark.parametrize("kind", ["temperature", "bins", "other bins", "mixed"])
def test_measures_are_those_of_the_test_rows(sizes: tuple[int, int], kind: str) -> None:
    split = some_splits().at(math.prod(sizes))
    rng = np.random.default_rng(0)
    maps: list[Map] = [TemperatureMap(float(t)) for t in rng.choice([0.8, 1.7, 2.6], split.trials)]
    if kind != "temperature":
        bins = 15 if kind == "bins" else 7
        maps = [
            BinsMap(tuple(None if v < 0.2 else float(v) for v in rng.random(bins))) for _ in maps
        ]
    if kind == "mixed":
        maps[0] = TemperatureMap(1.1)
    ece, brier, _ = measure(maps, split)
    expected = by_hand(split, maps)
    assert ece == pytest.approx(expected[0], abs=2e-6)  # the grid of 2^-20
    assert brier == pytest.approx(expected[1], abs=1e-6)


def test_interpolating_in_temperature_moves_ece_by_less_than_one_in_ten_thousand() -> None:
    scores = privcal.datasets.cifar10c("fog")
    split = Splits.alike(scores, [1500], 40, np.random.SeedSequence(0)).at(1500)
    temperatures = np.random.default_rng(1).uniform(0.5, 3.0, 40)
    [(ece, brier, _)] = measure_tabulated(temperatures, [split])
    expected = by_hand(split, [TemperatureMap(t) for t in temperatures])
    # In a trial, one row on the other side of a bin edge is worth up to 2/8500 = 2.4e-4.
    assert np.abs(ece - expected[0]).mean() < 1e-4
    assert abs((ece - expected[0]).mean()) < 5e-5
    assert np.abs(ece - expected[0]).max() < 2 * 2.4e-4
    assert np.abs(brier - expected[1]).max() < 1e-4


@pytest.mark.parametrize("query", [Gap(), Nll(), BinnedGap()])
def test_sums_at_many_temperatures_are_interpolated_closely(query: object) -> None:
    scores = random_scores(500, seed=3)
    split = Splits.alike(scores, [100], 100, np.random.SeedSequence(0)).at(100)
    temperatures = np.random.default_rng(1).uniform(0.5, 3.0, 100)
    many = split.sums(Ask(query, NANO, temperatures))
    each = [split.sums(Ask(query, NANO, np.full(100, t)))[i] for i, t in enumerate(temperatures)]
    # Of 100 rows: a row at the very edge of a bin may fall on its other side.
    assert (
        np.abs(many - each).sum(axis=1).max()
        < (2.5 if isinstance(query, BinnedGap) else 0.01) * GRID
    )
    assert np.median(np.abs(many - each).sum(axis=1)) < 0.01 * GRID


@pytest.mark.parametrize("query", [Gap(), Nll(), BinnedGap()])
def test_sums_at_many_temperatures_beyond_the_tables_are_exact(query: object) -> None:
    split = Splits.alike(random_scores(300, seed=3), [60], 80, np.random.SeedSequence(0)).at(60)
    temperatures = np.linspace(0.25, 8.0, 80)
    many = split.sums(Ask(query, NANO, temperatures))
    each = [split.sums(Ask(query, NANO, np.full(80, t)))[i] for i, t in enumerate(temperatures)]
    np.testing.assert_array_equal(many, each)


@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_the_first_sources_fit_is_the_owners_exact_fit(objective: str) -> None:
    splits, samples = some_splits(60), ALSO[1]
    found = splits.fit_first_source(samples, objective)
    exact = [
        fit_local(splits.scores.take(splits.order[t, :samples]), objective).temperature
        for t in range(60)
    ]
    assert found == pytest.approx(exact, rel=2e-4)
    assert {0.5, 3.0} & set(np.round(found, 12))  # some lie at the bounds


@pytest.mark.parametrize("name", [n for n in methods.names() if n != ONE_SOURCE])
def test_a_study_of_real_sources_agrees_within_its_standard_error(name: str) -> None:
    scores = random_scores(400, seed=3)
    trials = 60
    split = Splits.alike(scores, [90], 400, np.random.SeedSequence(5)).at(90)
    maps = answers.run(methods.make(name), split, 3, 2.0, np.random.default_rng(6))
    simulated = measure(maps, split).ece
    real = []
    for trial in range(trials):
        rows = split.of.order[trial]
        sources = [a_source(scores.take(part), epsilon=2.0) for part in np.split(rows, 3)]
        found = privcal.calibrate(sources, name, 2.0).map
        test = scores.take(np.setdiff1d(np.arange(len(scores)), rows))
        real.append(privcal.ece(found.confidence(test), test.correct))
    error = math.hypot(
        np.std(real) / math.sqrt(trials), simulated.std() / math.sqrt(len(simulated))
    )
    assert abs(np.mean(real) - simulated.mean()) < 5 * error + 1e-9


def test_temperatures_of_the_table_cover_the_search() -> None:
    assert (TABULATED[0], TABULATED[-1]) == (0.5, 3.0)


def test_the_scores_of_whoever_simulates_stay_as_they_are() -> None:
    scores = random_scores(400, seed=3)
    splits = Splits.alike(scores, [48], 3, np.random.SeedSequence(5))
    answers.run(methods.make("acc-t"), splits.at(48), 6, 1.0, np.random.default_rng(0))
    assert splits.scores.outputs.remembered
    assert scores.outputs.remembered is None


def test_private_rows_must_leave_some_to_test_on() -> None:
    scores = random_scores(40)
    for take in (
        lambda: Splits.alike(scores, [5, 40], 2, np.random.SeedSequence(0)),
        lambda: Splits.unlike(scores, scores.labels, 4, 10, 1.0, 2, np.random.SeedSequence(0)),
    ):
        with pytest.raises(privcal.InputError, match="takes 40 private rows of 40; none would"):
            take()
