"""The sweep of skew and the shift `mixed`: run, stored and shown like the others."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.lab import study
from privcal.lab.study.grids import GRIDS, Setting, read_grid
from privcal.lab.study.run import ShiftTask, _key, _rows, _splits
from privcal.lab.study.store import load
from privcal.planning.simulate.archive import read_archive
from privcal.planning.simulate.splits import MIXED, stream
from privcal.report.study.figures import draw
from privcal.report.study.report import write
from privcal.report.study.tables import all_tables
from tests.support.builders import random_scores
from tests.support.study_folder import as_the_paper_says, make_study, tiny_archive


def setting(skew: float, sources: int = 20, samples: int = 15) -> Setting:
    return Setting("skew", sources, samples, 1.0, skew)


def test_a_setting_of_like_sources_is_what_it_was() -> None:
    plain, said = Setting("sources", 6, 8, 1.0), Setting("sources", 6, 8, 1.0, math.inf)
    assert plain == said
    assert _key(plain) == ["'sources'", "6", "8", "1.0"]
    assert _key(setting(0.1)) == ["'skew'", "20", "15", "1.0", "0.1"]
    scores = random_scores(400, seed=3)
    task = ShiftTask(read_archive(), "fog", [], False, [plain], 4, 5, 0, False)
    [split] = _splits(task, scores, np.arange(400)).values()
    rng = stream(5, "fog", "splits")
    assert split.of.order.tolist() == [rng.permutation(400)[:48].tolist() for _ in range(4)]
    assert split.of.first is None


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tiny_archive(tmp_path)


def test_a_source_of_the_mixture_lives_under_its_own_shift(archive: Path) -> None:
    where = setting(0.01, 5, 10)
    task = ShiftTask(read_archive([archive]), MIXED, [], False, [where], 20, 0, 0, False)
    scores, groups = _rows(task)
    splits = _splits(task, scores, groups)[where].of
    assert splits.first is not None
    first = [groups[splits.order[t, :size]] for t, size in enumerate(splits.first)]
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
    assert len(draw(results, tmp_path / "figures", jobs=1)) == 10
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
