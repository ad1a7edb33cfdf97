"""A study: what it runs, that it goes on where it stopped, and that its numbers are its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, Rounds
from privcal.lab import study
from privcal.lab.study.grids import GRIDS, Setting, read_grid, variants
from privcal.trusted.queries import Gap
from tests.support.builders import a_file, an_archive, sentence

SMALL = Setting("sources", 6, 8, 1.0)
ALSO = Setting("samples", 4, 20, 2.0)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    about = {"dataset": "tiny", "severity": 3}
    return an_archive(tmp_path / "tiny.npz", about=about, clean=1, fog=1.7, snow=0.6)


@pytest.fixture
def grid(tmp_path: Path) -> str:
    text = "[sources]\nvalues = [2, 4]\nsamples = 5\nepsilon = 1.0\n"
    text += "[epsilon]\nvalues = [0.5, 2.0]\nsources = 4\nsamples = 10\n"
    return str(a_file(tmp_path / "own.toml", text))


def test_the_numbers_do_not_depend_on_processes_methods_or_order(archive: Path, grid: str) -> None:
    alone = study.run([archive], grid=grid, trials=20, jobs=1)
    together = study.run([archive], grid=grid, trials=20, jobs=3)
    assert alone.equals(together)
    some = study.run(
        [archive], grid=grid, trials=20, jobs=1, methods=["acc-t", "one-source"], shifts=["fog"]
    )
    picked = alone.filter(
        (alone["shift"] == "fog") & alone["method"].is_in(["acc-t", "one-source"])
    )
    assert some.equals(picked)
    other = study.run([archive], grid=grid, trials=20, jobs=1, seed=1)
    assert not other.equals(alone)


def test_results_have_the_columns_people_rely_on(archive: Path, grid: str) -> None:
    found = study.run([archive], grid=grid, trials=5, jobs=1)
    assert found.columns == [
        "dataset", "shift", "severity", "sweep", "sources", "samples", "epsilon",
        "method", "trials", "ece_mean", "ece_se", "brier_mean",
        "aurc_mean", "brier_se", "aurc_se", "skew", "aggregation",
    ]  # fmt: skip
    assert found["dataset"].unique().to_list() == ["tiny"]
    assert found["severity"].unique().to_list() == [3]
    assert len(found) == 3 * 4 * len(variants("cifar", None))
    assert found["ece_mean"].is_between(0, 1).all()


def test_an_interrupted_study_goes_on_where_it_stopped(
    archive: Path, grid: str, tmp_path: Path
) -> None:
    whole = study.run([archive], grid=grid, trials=10, jobs=1, out=tmp_path / "whole")
    seen: list[tuple[str, str]] = []

    def stop_early(piece: object, done: int, total: int) -> None:
        if piece is not None:
            seen.append((piece.shift, piece.label))
        if len(seen) == 9:
            raise KeyboardInterrupt

    out = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        study.run([archive], grid=grid, trials=10, jobs=1, out=out, progress=stop_early)
    first = set(seen)
    seen.clear()
    resumed = study.run(
        [archive], grid=grid, trials=10, jobs=2, out=out,
        progress=lambda piece, done, total: seen.append((piece.shift, piece.label)) if piece else None,
    )  # fmt: skip
    assert not first & set(seen)
    assert resumed.equals(whole)
    assert (out / "results.parquet").exists()
    assert (out / "exact.parquet").exists()


@pytest.mark.parametrize(
    ("change", "names"),
    [({"seed": 1}, "seed"), ({"trials": 6}, "trials"), ({"shifts": ["fog"]}, "shifts")],
)
def test_a_folder_of_another_study_is_refused(
    change: dict[str, object], names: str, archive: Path, grid: str, tmp_path: Path
) -> None:
    common: dict[str, object] = {
        "grid": grid,
        "trials": 5,
        "jobs": 1,
        "methods": ["acc-t"],
        "out": tmp_path / "s",
    }
    study.run([archive], **common)
    with pytest.raises(privcal.InputError, match=rf"holds another study \({names} differs?\)"):
        study.run([archive], **(common | change))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(privcal.InputError, match="holds no study"):
        study.run([archive], **(common | {"out": tmp_path / "full"}))


def test_trials_are_kept_on_request(archive: Path, grid: str, tmp_path: Path) -> None:
    import polars as pl

    found = study.run(
        [archive],
        grid=grid,
        trials=6,
        jobs=1,
        methods=["acc-t"],
        out=tmp_path / "s",
        keep_trials=True,
    )
    kept = pl.read_parquet(tmp_path / "s" / "trials.parquet")
    assert len(kept) == 6 * len(found)
    means = kept.group_by("shift", "sweep", "sources", "epsilon", maintain_order=True).agg(
        pl.col("ece").mean()
    )
    assert means["ece"].to_list() == pytest.approx(found["ece_mean"].to_list())


def test_the_published_grids() -> None:
    cifar, imagenet = GRIDS["cifar"], GRIDS["imagenet"]
    assert [sum(s.sweep == w for s in cifar) for w in ("sources", "samples", "epsilon")] == [
        25,
        10,
        10,
    ]
    assert [sum(s.sweep == w for s in imagenet) for w in ("sources", "samples", "epsilon")] == [
        20,
        20,
        10,
    ]
    assert cifar[0] == Setting("sources", 10, 10, 1.0)
    assert cifar[24] == Setting("sources", 250, 10, 1.0)
    assert cifar[-1] == Setting("epsilon", 50, 30, 2.0)
    assert imagenet[39] == Setting("samples", 100, 100, 1.0)
    epsilons = [s.epsilon for s in cifar if s.sweep == "epsilon"]
    assert epsilons == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("[sources", "not valid TOML"),
        ("[people]\nvalues=[1]", "must be one of"),
        ("[sources]\nvalues=[1]\nsamples=2", "must be one of"),
        ("[sources]\nvalues=[]\nsamples=2\nepsilon=1", "list of numbers"),
        ("[sources]\nvalues=[0]\nsamples=2\nepsilon=1", "sources must be a whole number"),
        ("[epsilon]\nvalues=[0]\nsamples=2\nsources=1", "epsilon must be above 0"),
    ],
)
def test_a_wrong_grid_is_told_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    assert says in sentence(read_grid, str(a_file(tmp_path / "g.toml", text)))


def test_bad_requests_are_told_before_any_work(archive: Path, grid: str) -> None:
    for wrong, says in (
        ({"methods": ["acct"]}, "no method 'acct'"),
        ({"shifts": ["rain"]}, "no shift 'rain'"),
        ({"grid": "none"}, "no grid 'none'"),
        ({"trials": 0}, "trials must be"),
        ({"seed": -1}, "seed must be"),
        ({"jobs": 0}, "jobs must be"),
        ({"grid": "cifar"}, "the 2,500 private rows of grid cifar leave none of the 300 of tiny"),
    ):
        with pytest.raises(privcal.InputError, match=says):
            study.run([archive], **({"grid": grid, "trials": 5, "jobs": 1} | wrong))


def test_a_strangers_method_is_in_the_study(archive: Path, grid: str) -> None:
    @methods.register("stranger")
    @dataclass(frozen=True)
    class Stranger(methods.Method):
        def run(self, batch: Batch) -> Rounds:
            [gap] = yield [Ask(Gap(), batch.nano_epsilon, np.ones(batch.runs))]
            return [TemperatureMap(t) for t in np.where(gap[:, 0] < 0, 2.0, 1.0)]

    try:
        found = study.run([archive], grid=grid, trials=5, jobs=1)
        assert found.filter(found["method"] == "stranger").height == 3 * 4
    finally:
        del methods.base._METHODS["stranger"]


def test_the_factors_vary_what_the_paper_names() -> None:
    labels = [str(v) for v in variants("factors", None)]
    for name in ("acc-t(iterations=10)", "ece-t(bins=60)", "nll-t(clip=20)", "ece-t(search=grid)"):
        assert name in labels
    assert len(labels) == len(set(labels))
