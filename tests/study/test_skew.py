"""Sources that are not alike: who gets which rows, and that nothing else changes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal import study
from privcal.methods import make
from privcal.privacy.epsilon import NANO
from privcal.queries import CellHistogram, Gap
from privcal.source import Source
from privcal.study.archive import read_archive
from privcal.study.figures import draw
from privcal.study.grids import GRIDS, Setting, read_grid
from privcal.study.report import write
from privcal.study.results import load
from privcal.study.run import Task, _key, _rows
from privcal.study.simulator import Ask, Simulator
from privcal.study.skew import MIXED, draw_sizes, draw_sources, mixed
from privcal.study.tables import all_tables
from tests.conftest import random_scores
from tests.support.study_folder import as_the_paper_says, make_study

GROUPS = np.arange(2000) % 5


def setting(skew: float, sources: int = 20, samples: int = 15) -> Setting:
    return Setting("skew", sources, samples, 1.0, skew)


def drawn(skew: float, seed: int = 0, **more: int) -> tuple[np.ndarray, list[np.ndarray]]:
    rows, sizes = draw_sources(np.random.default_rng(seed), GROUPS, setting(skew, **more))
    assert sizes.sum() == len(rows)
    return sizes, np.split(rows, sizes.cumsum()[:-1])


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
    rows = [draw_sources(rng, groups, setting(1.0))[0] for _ in range(40)]
    # 800 sources of deviation √(0.1 · 0.9 / 2), and larger ones count for more.
    assert groups[np.concatenate(rows)].mean() == pytest.approx(0.1, abs=0.04)


def test_every_row_of_a_group_is_drawn_equally_often() -> None:
    rng = np.random.default_rng(0)
    rows = [draw_sources(rng, GROUPS, setting(100.0))[0] for _ in range(200)]
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
    where = Setting("skew", 4, 40, 1.0, 1e6)
    rows, _ = draw_sources(np.random.default_rng(0), groups, where)
    assert len(np.unique(rows)) == 160
    lopsided = np.array([0] * 100 + [1] * 100)
    for seed in range(20):  # some seeds ask for more of one group than there is
        rows, _ = draw_sources(
            np.random.default_rng(seed), lopsided, Setting("skew", 3, 60, 1, 0.1)
        )
        assert len(np.unique(rows)) == 180


def test_the_sums_of_unlike_sources_are_those_of_their_rows() -> None:
    where = setting(0.3, 6, 8)
    sim = Simulator(random_scores(400, seed=3), [where], 5, np.random.SeedSequence(5))
    for query in (CellHistogram(10), Gap(1.3)):
        temperatures = None if query.length > 1 else np.full(5, 1.3)
        found = sim.exact_sums(Ask(query, NANO, temperatures), where)
        for trial in range(5):
            pooled = Source(sim.scores.take(sim.order[trial]), ledger=None)
            assert found[trial].tolist() == pooled._exact(query).tolist()


@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_one_source_is_the_first_with_its_own_number_of_rows(objective: str) -> None:
    where = setting(1.0, 6, 20)
    sim = Simulator(random_scores(400, seed=3), [where], 40, np.random.SeedSequence(5))
    assert sim.first is not None
    assert len(set(sim.first.tolist())) > 5
    found = sim.fit_first_source(where.samples, objective)
    for trial, size in enumerate(sim.first):
        owner = Source(sim.scores.take(sim.order[trial, :size]), ledger=None)
        assert found[trial] == pytest.approx(owner.fit_local(objective).temperature, rel=2e-4)


def test_a_setting_of_like_sources_is_what_it_was() -> None:
    plain, said = Setting("sources", 6, 8, 1.0), Setting("sources", 6, 8, 1.0, math.inf)
    assert plain == said
    assert _key(plain) == ["'sources'", "6", "8", "1.0"]
    assert _key(setting(0.1)) == ["'skew'", "20", "15", "1.0", "0.1"]
    scores = random_scores(400, seed=3)
    sim = Simulator(scores, [plain], 4, np.random.SeedSequence(5), groups=np.arange(400))
    rng = np.random.default_rng(np.random.SeedSequence(5))
    assert sim.order.tolist() == [rng.permutation(400)[:48].tolist() for _ in range(4)]
    assert sim.first is None


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    scores = random_scores(300, seed=3)
    shifts = {"clean": 1.0, "fog": 1.7, "snow": 0.6}
    np.savez(
        tmp_path / "tiny.npz",
        labels=scores.labels,
        meta=json.dumps({"dataset": "tiny"}),
        **{name: scores.outputs.array * factor for name, factor in shifts.items()},
    )
    return tmp_path / "tiny.npz"


def test_mixed_rows_come_from_every_shift_and_say_which(archive: Path) -> None:
    opened = read_archive([archive])
    scores, group = mixed(opened, np.random.SeedSequence(1))
    assert np.bincount(group).min() > 50
    for number, shift in enumerate(opened.shifts):
        here = group == number
        expected = opened.scores(shift)
        assert np.array_equal(scores.outputs.array[here], expected.outputs.array[here])
        assert np.array_equal(scores.labels, expected.labels)


def test_a_source_of_the_mixture_lives_under_its_own_shift(archive: Path) -> None:
    task = Task(read_archive([archive]), MIXED, [], False, [], 5, 0, 0, False)
    scores, groups = _rows(task)
    where = setting(0.01, 5, 10)
    sim = Simulator(scores, [where], 20, np.random.SeedSequence(0), groups)
    assert sim.first is not None
    first = [groups[sim.order[t, :size]] for t, size in enumerate(sim.first)]
    alone = [len(set(g.tolist())) == 1 for g in first]
    assert np.mean(alone) > 0.8
    assert len({g[0] for g in first}) == 3


def test_the_sweep_is_run_and_shown_like_the_others(archive: Path, tmp_path: Path) -> None:
    grid = tmp_path / "g.toml"
    grid.write_text("[skew]\nvalues = [0.1, 10]\nsources = 4\nsamples = 10\nepsilon = 1\n")
    assert read_grid(str(grid))[0] == Setting("skew", 4, 10, 1.0, 0.1)
    common = {"grid": str(grid), "trials": 6, "methods": ["acc-t", "one-source"]}
    found = study.run([archive], jobs=1, out=tmp_path / "s", **common)
    assert found["skew"].to_list() == [0.1, 10.0] * 6
    assert found.equals(study.run([archive], jobs=2, **common))
    results = load(tmp_path / "s")
    assert results.sweeps == ["skew"]
    assert results.fixed("skew") == {"sources": 4, "samples": 10, "epsilon": 1.0}
    assert len(draw(results, tmp_path / "figures")) == 10
    assert "log-normal" in write(results, tmp_path / "r.html").read_text("utf-8")


def test_mixed_is_a_shift_of_the_heterogeneous_grid_alone(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {s.skew for s in GRIDS["heterogeneous"]} == {0.1, 0.3, 1, 3, 10, 100}
    monkeypatch.setitem(GRIDS, "heterogeneous", [setting(0.1, 4, 10)])
    common = {"trials": 3, "jobs": 1, "methods": ["acc-t"]}
    found = study.run([archive], grid="heterogeneous", out=tmp_path / "s", **common)
    assert found["shift"].to_list() == ["fog", "snow", "clean", MIXED]
    with pytest.raises(privcal.InputError, match="no shift 'mixed'"):
        study.run([archive], grid="factors", shifts=[MIXED], **common)
    results = load(tmp_path / "s")
    assert results.perturbations == ["fog", "snow"]
    exact = next(t for t in all_tables(results) if t.name == "without-privacy")
    assert [row[0] for row in exact.rows][-2:] == [MIXED, "clean"]
    np.savez(tmp_path / "odd.npz", labels=[0, 1], mixed=np.eye(2))
    with pytest.raises(privcal.InputError, match="shift of the archive is called 'mixed'"):
        study.run([tmp_path / "odd.npz"], grid="heterogeneous", **common)


def test_a_shift_that_happens_to_be_called_mixed_counts_elsewhere(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, shifts=["fog", MIXED])
    assert load(folder).perturbations == ["fog", MIXED]


@pytest.mark.parametrize("value", ["0", "-1", "'a'", "true", "nan"])
def test_a_skew_is_a_number_above_zero(value: str, tmp_path: Path) -> None:
    grid = tmp_path / "g.toml"
    grid.write_text(f"[skew]\nvalues = [{value}]\nsources = 4\nsamples = 10\nepsilon = 1\n")
    with pytest.raises(privcal.InputError, match="skew must be a number above 0"):
        read_grid(str(grid))


def test_sums_barely_notice_who_holds_the_rows() -> None:
    # Without noise, any method that asks for sums ends where it ends on the same rows of one.
    free = Setting("skew", 6, 20, math.inf, 0.1)
    sim = Simulator(random_scores(400, seed=3), [free], 10, np.random.SeedSequence(5))
    together = Setting("sources", 1, 120, math.inf)
    method = make("histogram-binning")
    found, expected = (sim.run(method, s, np.random.SeedSequence(0)) for s in (free, together))
    assert found.brier == pytest.approx(expected.brier, abs=1e-12)
