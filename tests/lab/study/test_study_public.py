"""Public rows: set aside for all shifts alike, and given to who has a use for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, Rounds
from privcal.lab import study
from privcal.lab.study.grids import variants
from privcal.lab.study.run import ShiftTask, _public, _rows
from privcal.planning.simulate.archive import Archive, read_archive
from privcal.trusted.queries import Gap
from tests.support.builders import a_file, random_scores

ROWS = 300
COMMON = {"trials": 4, "jobs": 1}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    scores = random_scores(ROWS, seed=3)
    logits = scores.outputs.array.copy()
    logits[:, 0] += np.arange(ROWS)  # so that a row is known by its logits
    np.savez(
        tmp_path / "tiny.npz",
        labels=scores.labels,
        clean=logits,
        fog=logits * 2,
        meta=json.dumps({"dataset": "tiny"}),
    )
    return tmp_path / "tiny.npz"


@pytest.fixture
def grid(tmp_path: Path) -> str:
    text = "[sources]\nvalues = [2, 4]\nsamples = 5\nepsilon = 1.0\n"
    return str(a_file(tmp_path / "own.toml", text))


SEEN: list[privcal.Scores | None] = []


@pytest.fixture
def sketchy() -> Iterator[str]:
    @methods.register("sketchy")
    @dataclass(frozen=True)
    class Sketchy(methods.Method):
        takes_public: ClassVar[bool] = True
        public: privcal.Scores | None = None

        def run(self, batch: Batch) -> Rounds:
            SEEN.append(self.public)
            yield [Ask(Gap(), batch.nano_epsilon, np.ones(batch.runs))]
            return [TemperatureMap(1.0 if self.public is None else 2.0)] * batch.runs

    SEEN.clear()
    yield "sketchy"
    del methods.base._METHODS["sketchy"]


def rows_of(scores: privcal.Scores, factor: float = 1.0) -> set[float]:
    return set(np.round(scores.outputs.array[:, 1] / factor, 5).tolist())


def test_the_rows_set_aside_are_in_no_shift(archive: Path) -> None:
    opened = read_archive([archive])
    aside, public = _public(opened, 120, 0)
    assert len(set(aside.tolist())) == len(public) == 120
    for shift, factor in (("clean", 1.0), ("fog", 2.0)):
        scores, groups = _rows(ShiftTask(opened, shift, [], False, [], 4, 0, 120, False))
        assert len(scores) == len(groups) == 180
        assert not rows_of(scores, factor) & rows_of(public)
        assert rows_of(scores, factor) | rows_of(public) == rows_of(opened.scores("clean"))
    other, _ = _public(opened, 120, 1)
    assert set(other.tolist()) != set(aside.tolist())


def test_a_method_with_a_use_for_them_runs_without_and_with_them(
    archive: Path, grid: str, sketchy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = Archive.scores

    def counted(self: Archive, shift: str) -> privcal.Scores:
        reads.append(shift)
        return read(self, shift)

    monkeypatch.setattr(Archive, "scores", counted)
    _public.cache_clear()
    found = study.run(
        [archive], grid=grid, public_rows=50, methods=[sketchy, "uncalibrated"], **COMMON
    )
    labels = ["uncalibrated", "sketchy", "sketchy(public=50)"]
    assert found["method"].unique(maintain_order=True).to_list() == labels
    given = [s for s in SEEN if s is not None]
    assert len(given) == len(SEEN) / 2 == 2 * 2  # shifts, settings
    assert {id(s) for s in given} == {id(given[0])}
    _, public = _public(read_archive([archive]), 50, 0)
    assert np.array_equal(given[0].outputs.array, public.outputs.array)
    # As a shift of its own, and once to take public ones from it.
    assert reads.count("clean") == 2
    ece = {m: found.filter(found["method"] == m)["ece_mean"].to_list() for m in labels}
    assert ece["sketchy"] == ece["uncalibrated"]  # T = 1 without them
    assert ece["sketchy(public=50)"] != ece["sketchy"]


def test_without_public_rows_there_is_no_such_variant(sketchy: str) -> None:
    assert [str(v) for v in variants("cifar", [sketchy])] == ["sketchy"]
    both = [str(v) for v in variants("cifar", [sketchy], 2000)]
    assert both == ["sketchy", "sketchy(public=2000)"]
    assert [str(v) for v in variants("cifar", ["acc-t"], 2000)] == ["acc-t"]


def test_none_set_aside_is_the_same_study_as_before(archive: Path, grid: str) -> None:
    plain = study.run([archive], grid=grid, methods=["acc-t"], **COMMON)
    assert plain.equals(study.run([archive], grid=grid, methods=["acc-t"], public_rows=0, **COMMON))


def test_another_number_of_public_rows_is_another_study(
    archive: Path, grid: str, tmp_path: Path
) -> None:
    common = {"grid": grid, "methods": ["acc-t"], "out": tmp_path / "s", **COMMON}
    study.run([archive], public_rows=10, **common)
    with pytest.raises(privcal.InputError, match=r"another study \(public_rows differs\)"):
        study.run([archive], public_rows=11, **common)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (-1, "public rows must be a whole number of at least 0, not -1"),
        (1.5, "public rows must be a whole number"),
        (True, "public rows must be a whole number"),
        (
            280,
            "280 public rows and the 20 private rows of grid .* leave none of the 300 of tiny to test on",
        ),
    ],
)
def test_a_wrong_number_is_told_in_one_sentence(
    rows: object, says: str, archive: Path, grid: str
) -> None:
    with pytest.raises(privcal.InputError, match=says):
        study.run([archive], grid=grid, public_rows=rows, **COMMON)
    study.run([archive], grid=grid, public_rows=279, methods=["uncalibrated"], **COMMON)


def test_public_rows_need_unperturbed_ones(archive: Path, grid: str, tmp_path: Path) -> None:
    loaded = np.load(archive)
    np.savez(tmp_path / "dim.npz", labels=loaded["labels"], fog=loaded["fog"])
    with pytest.raises(privcal.InputError, match="the shift 'clean', and there is none"):
        study.run([tmp_path / "dim.npz"], grid=grid, public_rows=5, **COMMON)
