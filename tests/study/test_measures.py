"""What the study measures at once for all runs is what each run's test rows say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import privcal
from privcal import methods
from privcal.kernel import log_odds
from privcal.maps import BinsMap, CurveMap, Map, TemperatureMap
from privcal.queries import GRID
from privcal.sketch import SketchReader
from privcal.study.cells import RankCells, tied_aurc
from privcal.study.grids import Setting
from privcal.study.measured import Measured
from privcal.study.simulator import Simulator
from tests.conftest import random_scores
from tests.support import reference

SETTING = Setting("sources", 50, 30, 1.0)
TRIALS = 30


@pytest.fixture(scope="module", params=["fog", "clean"])
def sim(request: pytest.FixtureRequest) -> Simulator:
    scores = privcal.datasets.cifar10c(request.param)
    also = Setting("sources", 10, 30, 1.0)
    return Simulator(scores, [also, SETTING], TRIALS, np.random.SeedSequence(0))


def some_curves(kind: str, trials: int = TRIALS) -> list[CurveMap]:
    rng = np.random.default_rng(1)
    found = []
    for trial in range(trials):
        points = 12 + (trial % 3 if kind == "other lengths" else 0)
        x = np.linspace(-2, 12, points)
        if kind != "common scores":
            x = np.sort(rng.uniform(-2, 12, points))
        y = np.cumsum([rng.normal(-1.5, 0.3), *(rng.gamma(2, 0.3, points - 1) + 1e-3)])
        temperature = 1.0 + trial % 2 if kind == "two temperatures" else 1.0
        found.append(CurveMap(temperature, tuple(x), tuple(y)))
    return found


def close(found: Measured, expected: Measured) -> None:
    for name in Measured._fields:
        error = getattr(found, name) - getattr(expected, name)
        assert np.abs(error).mean() < 1e-4, name
        assert abs(error.mean()) < 5e-5, name


@pytest.mark.parametrize(
    "kind", ["common scores", "own scores", "other lengths", "two temperatures"]
)
def test_curves_on_cells_are_measured_as_on_rows(sim: Simulator, kind: str) -> None:
    maps = some_curves(kind)
    found = sim.measure(maps, SETTING)
    assert sim._ranked  # by cells, not one run at a time
    expected = sim._measure_any(maps, SETTING)
    close(found, expected)
    # Two rows of 8,500 on the other side of a bin's edge are worth 2 · 2/8500 at most.
    assert np.abs(found.ece - expected.ece).max() < 4 / 8500
    assert np.abs(found.brier - expected.brier).max() < 2e-4


def test_without_noise_a_sketch_is_read_as_one_without_noise() -> None:
    setting = Setting("sources", 6, 8, math.inf)
    scores = random_scores(400, seed=3)
    sim = Simulator(scores, [setting], 5, np.random.SeedSequence(5))
    found = sim.run(methods.make("sketch"), setting, np.random.SeedSequence(1))
    reading = SketchReader.of()
    sums = sim.sums(reading.query)[:, 0] / (GRID * 6)
    maps = reading.read(sums, 6, 1e-9).maps(1.0)
    for value, expected in zip(found, sim.measure(maps, setting), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_rows_beyond_a_curves_last_point_are_measured_as_by_its_map() -> None:
    """A third of them have an infinite score, for which some curves stay below a bin's edge."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (600, 5)).astype(np.float32)
    labels = (logits + rng.gumbel(0, 2, logits.shape)).argmax(axis=1)
    logits[:200] *= 1000
    setting = Setting("sources", 6, 8, 1.0)
    scores = privcal.Scores(logits=logits, labels=labels)
    assert np.isinf(log_odds(scores.outputs, 1.0)).sum() > 150
    sim = Simulator(scores, [setting], 9, np.random.SeedSequence(5))
    maps = [CurveMap(1.0, (-2.0, 0.0, 2.0), (-1.0, 0.0, 0.02 + 0.06 * t)) for t in range(9)]
    found, expected = sim.measure(maps, setting), sim._measure_any(maps, setting)
    assert sim._ranked
    for name in Measured._fields:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-9)


def test_curves_of_many_scores_are_measured_one_by_one() -> None:
    setting = Setting("sources", 6, 8, 1.0)
    sim = Simulator(random_scores(400, seed=3), [setting], 9, np.random.SeedSequence(5))
    maps = [CurveMap(1 + t / 10, (-1.0, 2.0), (-1.0, 1.0)) for t in range(9)]
    found = sim.measure(maps, setting)
    assert not sim._ranked
    for trial, one in enumerate(maps):
        c, correct = on_test_rows(sim, one, trial, setting)
        assert found.aurc[trial] == pytest.approx(reference.aurc(c, correct), abs=1e-12)


def test_temperatures_between_the_ranked_ones_have_nearly_their_own_aurc(sim: Simulator) -> None:
    maps = [TemperatureMap(t) for t in np.random.default_rng(2).uniform(0.5, 3.0, TRIALS)]
    close(sim.measure(maps, SETTING), sim._measure_any(maps, SETTING))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 3.0, 7.5])
def test_one_temperature_for_all_within_and_beyond_the_search(
    sim: Simulator, temperature: float
) -> None:
    maps = [TemperatureMap(temperature)] * TRIALS
    close(sim.measure(maps, SETTING), sim._measure_any(maps, SETTING))


@pytest.mark.parametrize("name", ["histogram-binning", "one-hot-binning"])
def test_maps_of_bins_have_nearly_their_own_aurc(
    sim: Simulator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Setting("sources", 10, 30, 1.0)  # so noisy that many bins are left as they were
    maps: list[Map] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "measure", lambda found, setting: maps.extend(found))
        sim.run(methods.make(name), few, np.random.SeedSequence(3))
    assert any(v is None for m in maps for v in m.values)  # type: ignore[attr-defined]
    close(sim.measure(maps, few), sim._measure_any(maps, few))


def test_bins_of_one_value_are_one_tie(sim: Simulator) -> None:
    maps = [BinsMap((0.5,) * 7 + (0.25,) * 3 + (1.0,) * 5)] * TRIALS
    found, expected = sim.measure(maps, SETTING), sim._measure_any(maps, SETTING)
    assert found.aurc == pytest.approx(expected.aurc, abs=1e-9)
    constant = [BinsMap((0.7,) * 15)] * TRIALS
    wrong = [1 - on_test_rows(sim, constant[0], t, SETTING)[1].mean() for t in range(TRIALS)]
    assert sim.measure(constant, SETTING).aurc == pytest.approx(wrong, abs=1e-12)


def on_test_rows(
    sim: Simulator, one: Map, trial: int, setting: Setting
) -> tuple[np.ndarray, np.ndarray]:
    test = np.setdiff1d(np.arange(len(sim.scores)), sim.order[trial, : setting.private_rows])
    scores = sim.scores.take(test)
    return one.confidence(scores), scores.correct


@pytest.mark.parametrize("kind", ["curve", "bins", "temperature"])
def test_measures_of_few_rows_are_what_plain_loops_say(kind: str) -> None:
    setting = Setting("sources", 6, 8, 1.0)
    sim = Simulator(random_scores(200, seed=3), [setting], 6, np.random.SeedSequence(5))
    maps: Sequence[Map] = some_curves("own scores", 6)
    if kind == "bins":
        values = np.random.default_rng(0).random((6, 7))
        maps = [BinsMap(tuple(None if v < 0.3 else v for v in row)) for row in values.tolist()]
    elif kind == "temperature":
        maps = [TemperatureMap(t) for t in (0.5, 1, 1, 3, 0.3, 4)]
    found = sim.measure(maps, setting)
    for trial, one in enumerate(maps):
        c, correct = (a.tolist() for a in on_test_rows(sim, one, trial, setting))
        assert found.ece[trial] == pytest.approx(reference.ece(c, correct, 15), abs=2e-6)
        assert found.brier[trial] == pytest.approx(reference.brier(c, correct), abs=1e-6)
        # Cells of up to three rows of 200, in which wrong ones count as spread evenly.
        assert found.aurc[trial] == pytest.approx(reference.aurc(c, correct), abs=2e-3)


def test_a_cell_for_each_score_gives_the_exact_aurc() -> None:
    scores = random_scores(60, seed=4)
    score = np.round(log_odds(scores.outputs, 1.0), 1)  # with ties
    order = np.stack([np.random.default_rng(t).permutation(60)[:20] for t in range(5)])
    cells = RankCells(score, scores.correct, order, [5, 20], 1000)
    assert len(cells.starts) == len(set(score.tolist())) < 60
    for trial in range(5):
        for column, prefix in enumerate([5, 20]):
            test = np.setdiff1d(np.arange(60), order[trial, :prefix])
            expected = reference.aurc(score[test].tolist(), scores.correct[test].tolist())
            assert cells.aurc[trial, column] == pytest.approx(expected, abs=1e-12)


def test_tied_groups_have_the_aurc_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    for trials in (1, 3):
        groups = 40
        trial = np.concatenate([np.arange(trials), rng.integers(0, trials, groups)])
        value = rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], len(trial))
        rows = rng.integers(1, 5, len(trial))
        wrong = rng.integers(0, rows + 1)
        found = tied_aurc(trial, value, wrong.astype(float), rows.astype(float))
        for t in range(trials):
            c, correct = [], []
            for g in np.flatnonzero(trial == t):
                c += [float(value[g])] * int(rows[g])
                correct += [False] * int(wrong[g]) + [True] * int(rows[g] - wrong[g])
            assert found[t] == pytest.approx(reference.aurc(c, correct), abs=1e-12)


def test_a_summary_has_means_and_standard_errors() -> None:
    found = Measured(np.array([0.1, 0.3]), np.array([0.2, 0.2]), np.array([0.0, 1.0])).summary()
    assert found == pytest.approx(
        {
            "ece_mean": 0.2, "ece_se": 0.1, "brier_mean": 0.2, "brier_se": 0.0,
            "aurc_mean": 0.5, "aurc_se": 0.5,
        }
    )  # fmt: skip
    one = Measured(*(np.array([0.1]) for _ in range(3))).summary()
    assert math.isnan(one["aurc_se"])
