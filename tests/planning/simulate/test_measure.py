"""What is measured at once for all trials is what each trial's test rows say, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import BinsMap, CurveMap, Map, TemperatureMap
from privcal.calibration.sketch import SketchReader
from privcal.data.scores import Outputs
from privcal.planning.simulate import answers
from privcal.planning.simulate.measure import (
    HeldOut,
    Measured,
    RankCells,
    measure,
    measures,
    row_by_row,
    tied_aurc,
)
from privcal.planning.simulate.splits import Resampled, Split, Splits
from privcal.trusted.queries import GRID
from tests.support import reference
from tests.support.builders import random_scores

TRIALS = 30
FEW, MANY = 300, 1500
"""Private rows."""


@pytest.fixture(scope="module", params=["fog", "clean"])
def splits(request: pytest.FixtureRequest) -> Splits:
    scores = privcal.datasets.cifar10c(request.param)
    return Splits.alike(scores, [FEW, MANY], TRIALS, np.random.SeedSequence(0))


@pytest.fixture(scope="module")
def split(splits: Splits) -> Split:
    return splits.at(MANY)


def small(trials: int, rows: int = 400, private: int = 48) -> Split:
    scores = random_scores(rows, seed=3)
    return Splits.alike(scores, [private], trials, np.random.SeedSequence(5)).at(private)


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
def test_curves_on_cells_are_measured_as_on_rows(split: Split, kind: str) -> None:
    maps = some_curves(kind)
    found, expected = measure(maps, split), row_by_row(maps, split)
    assert not np.array_equal(found.aurc, expected.aurc)  # by cells, not one trial at a time
    close(found, expected)
    # Two rows of 8,500 on the other side of a bin's edge are worth 2 · 2/8500 at most.
    assert np.abs(found.ece - expected.ece).max() < 4 / 8500
    assert np.abs(found.brier - expected.brier).max() < 2e-4


def test_without_noise_a_sketch_is_read_as_one_without_noise() -> None:
    split = small(5)
    method = methods.make("sketch")
    maps = answers.run(method, split, 6, math.inf, np.random.default_rng(1))
    reading = SketchReader.of()
    sums = split.of.sums(reading.query)[:, 0] / (GRID * 6)
    expected = reading.read(sums, 6, 1e-9).maps(1.0)
    for values, others in zip(measure(maps, split), measure(expected, split), strict=True):
        np.testing.assert_allclose(values, others, atol=1e-5)


def test_rows_beyond_a_curves_last_point_are_measured_as_by_its_map() -> None:
    """A third of them have an infinite score, for which some curves stay below a bin's edge."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (600, 5)).astype(np.float32)
    labels = (logits + rng.gumbel(0, 2, logits.shape)).argmax(axis=1)
    logits[:200] *= 1000
    scores = privcal.Scores(logits=logits, labels=labels)
    assert np.isinf(FAST.log_odds(scores.outputs, 1.0)).sum() > 150
    split = Splits.alike(scores, [48], 9, np.random.SeedSequence(5)).at(48)
    maps = [CurveMap(1.0, (-2.0, 0.0, 2.0), (-1.0, 0.0, 0.02 + 0.06 * t)) for t in range(9)]
    found, expected = measure(maps, split), row_by_row(maps, split)
    for name in Measured._fields:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-9)


def test_curves_of_many_scores_are_measured_one_by_one() -> None:
    split = small(9)
    maps = [CurveMap(1 + t / 10, (-1.0, 2.0), (-1.0, 1.0)) for t in range(9)]
    found = measure(maps, split)
    for trial, one in enumerate(maps):
        c, correct = on_test_rows(split, one, trial)
        assert found.aurc[trial] == pytest.approx(reference.aurc(c, correct), abs=1e-12)


def test_temperatures_between_the_ranked_ones_have_nearly_their_own_aurc(split: Split) -> None:
    maps = [TemperatureMap(t) for t in np.random.default_rng(2).uniform(0.5, 3.0, TRIALS)]
    close(measure(maps, split), row_by_row(maps, split))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 3.0, 7.5])
def test_one_temperature_for_all_within_and_beyond_the_search(
    split: Split, temperature: float
) -> None:
    maps = [TemperatureMap(temperature)] * TRIALS
    close(measure(maps, split), row_by_row(maps, split))


def test_many_temperatures_beyond_the_tables_are_measured_one_by_one() -> None:
    split = small(70)
    maps = [TemperatureMap(t) for t in np.linspace(0.3, 4, 70)]
    for values, others in zip(measure(maps, split), row_by_row(maps, split), strict=True):
        assert values.tolist() == others.tolist()


@pytest.mark.parametrize("name", ["histogram-binning", "one-hot-binning"])
def test_maps_of_bins_have_nearly_their_own_aurc(splits: Splits, name: str) -> None:
    few = splits.at(FEW)  # so noisy that many bins are left as they were
    maps = answers.run(methods.make(name), few, 10, 1.0, np.random.default_rng(3))
    assert any(v is None for m in maps for v in m.values)  # type: ignore[attr-defined]
    close(measure(maps, few), row_by_row(maps, few))


def test_bins_of_one_value_are_one_tie(split: Split) -> None:
    maps = [BinsMap((0.5,) * 7 + (0.25,) * 3 + (1.0,) * 5)] * TRIALS
    assert measure(maps, split).aurc == pytest.approx(row_by_row(maps, split).aurc, abs=1e-9)
    constant = [BinsMap((0.7,) * 15)] * TRIALS
    wrong = [1 - on_test_rows(split, constant[0], t)[1].mean() for t in range(TRIALS)]
    assert measure(constant, split).aurc == pytest.approx(wrong, abs=1e-12)


def on_test_rows(rows: HeldOut, one: Map, trial: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of the rows that a trial leaves to test on."""
    scores = rows.of.scores
    if isinstance(rows, Split):
        private = rows.of.order[trial, : rows.private_rows]
        scores = scores.take(np.setdiff1d(np.arange(len(scores)), private))
    return one.confidence(scores), scores.correct


def some_maps(kind: str, trials: int = 6) -> Sequence[Map]:
    if kind == "bins":
        values = np.random.default_rng(0).random((trials, 7))
        return [BinsMap(tuple(None if v < 0.3 else v for v in row)) for row in values.tolist()]
    if kind == "temperature":
        return [TemperatureMap(t) for t in (0.5, 1, 1, 3, 0.3, 4)]
    if kind == "unknown":
        return [Power(1 + t / 10) for t in range(trials)]
    if kind == "mixed":
        return [*some_curves("own scores", trials - 2), TemperatureMap(2.0), Power(1.5)]
    return some_curves("own scores", trials)


@dataclass(frozen=True)
class Power(Map):
    """A map of a kind that nobody has registered a way for."""

    kind = "power"
    power: float

    def apply(self, outputs: Outputs) -> np.ndarray:
        return TemperatureMap(1.0).confidence(outputs) ** self.power


@pytest.mark.parametrize("rows", ["split", "population"])
@pytest.mark.parametrize("kind", ["curve", "bins", "temperature", "unknown", "mixed"])
def test_measures_of_few_rows_are_what_plain_loops_say(kind: str, rows: str) -> None:
    maps = some_maps(kind)
    held = small(6, 200) if rows == "split" else Resampled(random_scores(200, seed=3))
    found = measure(maps, held)
    for trial, one in enumerate(maps):
        c, correct = (a.tolist() for a in on_test_rows(held, one, trial))
        assert found.ece[trial] == pytest.approx(reference.ece(c, correct, 15), abs=2e-6)
        assert found.brier[trial] == pytest.approx(reference.brier(c, correct), abs=1e-6)
        # Cells of up to three rows of 200, in which wrong ones count as spread evenly.
        assert found.aurc[trial] == pytest.approx(reference.aurc(c, correct), abs=2e-3)


def test_a_map_of_an_unknown_kind_is_measured_row_by_row() -> None:
    maps = [Power(1 + t / 10) for t in range(TRIALS)]
    split = small(TRIALS)  # the reference takes its time
    found = measure(maps, split)
    for trial in (0, TRIALS - 1):
        c, correct = (a.tolist() for a in on_test_rows(split, maps[trial], trial))
        assert found.ece[trial] == pytest.approx(reference.ece(c, correct, 15), abs=1e-12)
        assert found.brier[trial] == pytest.approx(reference.brier(c, correct), abs=1e-12)
        assert found.aurc[trial] == pytest.approx(reference.aurc(c, correct), abs=1e-12)


def test_a_kind_of_map_registers_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privcal.planning.simulate.measure._WAYS", {})
    seen = []

    @measures(Power)
    def way(maps: Sequence[Power], rows: HeldOut) -> Measured:
        seen.append(len(maps))
        return row_by_row(maps, rows)

    split = small(4)
    measure([Power(2.0)] * 4, split)
    measure([Power(2.0)] * 3 + [TemperatureMap(1.0)], split)  # not all of that kind
    assert seen == [4]


@pytest.mark.parametrize("shift", ["fog", "clean"])
@pytest.mark.parametrize("name", ["acc-t", "histogram-binning", "one-hot-binning", "sketch"])
def test_a_populations_aurc_is_that_of_all_its_rows(name: str, shift: str) -> None:
    population = Resampled(privcal.datasets.cifar10c(shift))
    rng = np.random.default_rng(0)
    drawn = population.draw(rng, 12, 300)
    maps = answers.run(methods.make(name), drawn, 10, 1.0, rng)
    error = np.abs(measure(maps, population).aurc - row_by_row(maps, population).aurc)
    assert error.mean() < 1e-4
    if name == "sketch":  # a curve rises with the score, so its order is that of the score
        assert error.max() < 1e-9


def test_a_study_of_one_trial_tests_on_its_own_rows() -> None:
    for kind in ("bins", "curve", "temperature"):
        [one, *_] = some_maps(kind)
        split = small(1)
        for values, others in zip(measure([one], split), row_by_row([one], split), strict=True):
            assert values == pytest.approx(others, abs=2e-3)


def test_a_cell_for_each_score_gives_the_exact_aurc() -> None:
    scores = random_scores(60, seed=4)
    score = np.round(FAST.log_odds(scores.outputs, 1.0), 1)  # with ties
    order = np.stack([np.random.default_rng(t).permutation(60)[:20] for t in range(5)])
    cells = RankCells(score, Splits(scores, [5, 20], order), 1000)
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
