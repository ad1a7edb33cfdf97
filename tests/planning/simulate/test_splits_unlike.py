"""Sources that are not alike: who gets which rows, and that nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from privcal.calibration import methods
from privcal.calibration.fit import fit_local
from privcal.calibration.methods.base import Ask
from privcal.planning.simulate import answers
from privcal.planning.simulate.archive import read_archive
from privcal.planning.simulate.measure import measure
from privcal.planning.simulate.splits import Splits, draw_sizes, draw_sources, mixed
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import CellHistogram, Gap
from tests.support.builders import a_source, random_scores
from tests.support.study_folder import tiny_archive

GROUPS = np.arange(2000) % 5


def drawn(skew: float, seed: int = 0, samples: int = 15) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    rows, sizes = draw_sources(rng, GROUPS, 20, 20 * samples, skew)
    assert sizes.sum() == len(rows)
    return sizes, np.split(rows, sizes.cumsum()[:-1])


def some_splits(sources: int, samples: int, skew: float, trials: int) -> Splits:
    scores = random_scores(400, seed=3)
    seed = np.random.SeedSequence(5)
    return Splits.unlike(scores, scores.labels, sources, samples, skew, trials, seed)


@pytest.mark.parametrize("skew", [0.01, 0.1, 1.0, 100.0, 1e9])
@pytest.mark.parametrize("samples", [1, 15, 95])
def test_no_row_is_drawn_twice_and_every_source_has_its_size(skew: float, samples: int) -> None:
    for seed in range(5):
        sizes, sources = drawn(skew, seed, samples=samples)
        rows = np.concatenate(sources)
        assert len(np.unique(rows)) == len(rows) == 20 * samples
        assert rows.min() >= 0
        assert rows.max() < 2000
        assert [len(s) for s in sources] == sizes.tolist()
        assert sizes.min() >= 1


def test_sizes_are_unequal_and_add_up() -> None:
    rng = np.random.default_rng(0)
    sizes = np.stack([draw_sizes(rng, 50, 1500) for _ in range(300)])
    assert (sizes.sum(axis=1) == 1500).all()
    assert sizes.min() >= 1
    # A log-normal law with σ = 1 has a deviation of √(e − 1) means, 1.31; less here, because one
    # row is everyone's and a sum of 50 varies with its largest.
    share = sizes.std(axis=1).mean() / 30
    assert 0.9 < share < 1.35
    assert draw_sizes(rng, 7, 7).tolist() == [1] * 7
    # Every place in the list is alike: the first source is no special one.
    assert abs(sizes[:, 0].mean() - 30) < 5 * sizes.std() / math.sqrt(300)


def test_groups_are_drawn_around_their_shares_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    groups = (np.arange(5000) < 500).astype(int)
    rows = [draw_sources(rng, groups, 20, 300, 1.0)[0] for _ in range(40)]
    # 800 sources of deviation √(0.1 · 0.9 / 2), and larger ones count for more.
    assert groups[np.concatenate(rows)].mean() == pytest.approx(0.1, abs=0.04)


def test_every_row_of_a_group_is_drawn_equally_often() -> None:
    rng = np.random.default_rng(0)
    rows = [draw_sources(rng, GROUPS, 20, 300, 100.0)[0] for _ in range(200)]
    often = np.bincount(np.concatenate(rows), minlength=2000)
    assert often.mean() == 30
    assert often.min() > 0
    assert often.max() < 70


def purity(sources: list[np.ndarray]) -> float:
    """The mean share of a source's most frequent group, over sources of ten rows or more."""
    some = [np.bincount(GROUPS[rows]).max() / len(rows) for rows in sources if len(rows) >= 10]
    return float(np.mean(some))


def test_a_small_skew_gives_a_source_nearly_one_group_and_a_large_one_all() -> None:
    means = [np.mean([purity(drawn(s, seed)[1]) for seed in range(10)]) for s in (0.1, 1.0, 1e4)]
    assert means[0] > 0.9
    assert means[0] > means[1] + 0.1 > means[2] + 0.2
    # Alike: 25 rows of five groups have 9 of one at most on average; a fifth would be 5.
    assert means[2] < 0.5


def test_all_groups_are_drawn_as_often_on_average() -> None:
    counts = sum(np.bincount(GROUPS[np.concatenate(drawn(0.3, s)[1])]) for s in range(100))
    assert np.abs(counts / counts.sum() - 0.2).max() < 0.05


def test_a_group_that_runs_out_is_filled_up_from_the_rest() -> None:
    groups = np.array([0] * 10 + [1] * 190)
    rows, _ = draw_sources(np.random.default_rng(0), groups, 4, 160, 1e6)
    assert len(np.unique(rows)) == 160
    lopsided = np.array([0] * 100 + [1] * 100)
    for seed in range(20):  # some seeds ask for more of one group than there is
        rows, _ = draw_sources(np.random.default_rng(seed), lopsided, 3, 180, 0.1)
        assert len(np.unique(rows)) == 180


def test_the_sums_of_unlike_sources_are_those_of_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVCAL_KERNEL", "numpy")  # the one that sources use
    split = some_splits(6, 8, 0.3, 5).at(48)
    for query in (CellHistogram(10), Gap(1.3)):
        temperatures = None if query.length > 1 else np.full(5, 1.3)
        found = split.sums(Ask(query, NANO, temperatures))
        for trial in range(5):
            pooled = a_source(split.of.scores.take(split.of.order[trial]))
            assert found[trial].tolist() == pooled._exact(query).tolist()


@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_one_source_is_the_first_with_its_own_number_of_rows(objective: str) -> None:
    splits = some_splits(6, 20, 1.0, 40)
    assert splits.first is not None
    assert len(set(splits.first.tolist())) > 5
    found = splits.fit_first_source(20, objective)
    for trial, size in enumerate(splits.first):
        owner = splits.scores.take(splits.order[trial, :size])
        assert found[trial] == pytest.approx(fit_local(owner, objective).temperature, rel=2e-4)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tiny_archive(tmp_path)


def test_mixed_rows_come_from_every_shift_and_say_which(archive: Path) -> None:
    opened = read_archive([archive])
    scores, group = mixed(opened, np.random.default_rng(1))
    assert np.bincount(group).min() > 50
    for number, shift in enumerate(opened.shifts):
        here = group == number
        expected = opened.scores(shift)
        assert np.array_equal(scores.outputs.array[here], expected.outputs.array[here])
        assert np.array_equal(scores.labels, expected.labels)


def test_sums_barely_notice_who_holds_the_rows() -> None:
    # Without noise, any method that asks for sums ends where it ends on the same rows of one.
    split = some_splits(6, 20, 0.1, 10).at(120)
    method = methods.make("histogram-binning")
    apart, together = (
        answers.run(method, split, sources, math.inf, np.random.default_rng(0))
        for sources in (6, 1)
    )
    brier = measure(together, split).brier
    assert measure(apart, split).brier == pytest.approx(brier, abs=1e-12)
