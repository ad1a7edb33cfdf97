"""The paper's figures stand beside a study of the paper's own making, and beside no other."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal.lab import study
from privcal.lab.study.grids import GRIDS, Setting
from privcal.lab.study.paper import Differs, grid_for, made_here, match_data
from privcal.lab.study.store import load
from privcal.planning.simulate.archive import read_archive
from privcal.planning.simulate.splits import MIXED
from privcal.report.study.ranking import beside_the_paper
from privcal.report.study.report import write
from privcal.report.study.tables import all_tables, render
from privcal.trusted.errors import InputError
from tests.support.study_folder import (
    EXACT,
    PAPERS_SHIFTS,
    THE_PAPERS,
    as_the_paper_says,
    make_study,
)

OTHERS: dict[str, dict[str, Any]] = {
    "40 rows, not 50,000": {
        "dataset": "ImageNet-C",
        "settings": GRIDS["imagenet"],
        "archive": {"rows": 40, "classes": 1000},
    },
    "4 classes, not 10": {"archive": {"classes": 4}},
    "severity 3, not 5": {"severity": 3},
    "sources that are not alike": {
        "grid": "heterogeneous",
        "settings": GRIDS["heterogeneous"],
        "shifts": [*PAPERS_SHIFTS, MIXED],
    },
    "the settings of grid own (1), not of cifar (45)": {
        "grid": "own",
        "settings": [Setting("sources", 10, 10, 0.5)],
    },
    "the settings of grid cifar (45), not of imagenet (50)": {
        "dataset": "ImageNet-C",
        "archive": {"rows": 50_000, "classes": 1000},
    },
    "4 of its 15 perturbations": {"shifts": ["fog", "snow", "frost", "contrast", "clean"]},
    "1 perturbation that it does not have (rain)": {"shifts": [*PAPERS_SHIFTS, "rain"]},
}


@pytest.mark.parametrize("differs", OTHERS)
def test_beside_another_study_the_papers_figures_are_left_out_and_what_differs_is_said(
    tmp_path: Path, differs: str
) -> None:
    folder = make_study(
        tmp_path / "s", as_the_paper_says, **{"exact": EXACT, **THE_PAPERS, **OTHERS[differs]}
    )
    results = load(folder)
    assert results.reported is None
    assert beside_the_paper(results) is None
    tables = all_tables(results)
    assert not any("paper" in heading for table in tables for heading in table.header)
    overall = tables[0]
    assert differs in overall.caption
    for form in ("markdown", "csv", "latex"):
        assert "0.0836" not in render(tables, form)
        assert "0.0289" not in render(tables, form)


def test_beside_the_papers_own_study_they_are_there_with_no_word_of_a_difference(
    tmp_path: Path,
) -> None:
    results = load(make_study(tmp_path / "s", as_the_paper_says, exact=EXACT, **THE_PAPERS))
    assert results.reported is not None
    overall = all_tables(results)[0]
    assert "median ECE (paper)" in overall.header
    assert "left out" not in overall.caption


def test_beside_corruptions_made_here_they_are_there_and_the_caption_and_titles_say_so(
    tmp_path: Path,
) -> None:
    here = {"corrupted": "made by privcal", "frost": "drawn by privcal"}
    folder = make_study(tmp_path / "s", as_the_paper_says, exact=EXACT, archive=here, **THE_PAPERS)
    results = load(folder)
    tables = {table.name: table for table in all_tables(results)}
    said = "The corruptions were made here, frost drawn; they are not the published images."
    for name in ("overall", "without-privacy", "accuracy"):
        assert any("(paper)" in heading for heading in tables[name].header)
        assert said in tables[name].caption
    assert all("corruptions made here" in table.title for table in tables.values())
    page = write(results, tmp_path / "r.html").read_text("utf-8")
    assert "CIFAR-10-C, severity 5, corruptions made here" in page
    assert said in page


@pytest.mark.parametrize(
    ("frost", "how"),
    [("procedural", ", frost drawn"), ("photographs 0f", ", frost from photographs"), (None, "")],
)
def test_it_is_said_which_frost_there_is(frost: str | None, how: str) -> None:
    assert made_here("made by privcal", frost) == (
        f"The corruptions were made here{how}; they are not the published images."
    )
    assert made_here("published archive 3f", None) == made_here(None, None) == ""


def test_what_nobody_states_and_what_is_set_aside_is_said_beside_them(tmp_path: Path) -> None:
    folder = make_study(
        tmp_path / "s",
        as_the_paper_says,
        severity=None,
        archive={"public_rows": 2000},
        **THE_PAPERS,
    )
    results = load(folder)
    assert results.reported is not None
    assert results.remark == (
        "The severity is not stated, and taken to be the paper's 5. "
        "Here 2,000 public rows are not tested on; the paper has none."
    )


@pytest.mark.parametrize(
    "name", ["severity_3", "severity 3", "(severity: 3)", "severity = 3", "of severity level 3"]
)
def test_a_severity_that_the_name_states_counts_however_it_is_written(name: str) -> None:
    found = match_data(f"CIFAR-10-C {name}", None, 10_000, 10)
    assert isinstance(found, Differs)
    assert found.what == ("severity 3, not 5",)


def test_a_data_set_the_paper_does_not_have_is_said_to_be_one(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, dataset="Flowers", **THE_PAPERS)
    assert load(folder).remark == "The paper has no figures for Flowers."


def test_a_title_without_the_papers_figures_is_not_the_papers_table(tmp_path: Path) -> None:
    few = make_study(tmp_path / "few", as_the_paper_says, shifts=["fog", "clean"])
    page = write(load(few), tmp_path / "r.html").read_text("utf-8")
    assert "The paper's Table 1" not in page.replace("&#x27;", "'")
    assert "are left out, because this is not what it measured: 1 of its 15" in page


# --- which grid --------------------------------------------------------------------------


def archive(folder: Path, dataset: str, rows: int, classes: int) -> Path:
    path = folder / "a.npz"
    logits = np.zeros((rows, classes), np.int8)
    logits[:, 0] = 2
    labels = np.zeros(rows, np.int16)
    np.savez(path, labels=labels, fog=logits, meta=json.dumps({"dataset": dataset}))
    return path


@pytest.mark.parametrize(
    ("dataset", "rows", "classes", "grid", "why"),
    [
        ("CIFAR-10-C", 10_000, 10, "cifar", "the paper's for CIFAR-10"),
        ("cifar100c_severity3", 10_000, 100, "cifar", "the paper's for CIFAR-100"),
        ("ImageNet-C", 20_001, 1000, "imagenet", "the paper's for ImageNet"),
        # Not what it is called: too few classes, or rows.
        ("ImageNet-C", 3_000, 10, "cifar", "the smaller one of the paper's"),
        ("ImageNet-C", 20_000, 1000, "cifar", "the smaller one of the paper's"),
        ("CIFAR-10-C", 50_000, 4, "imagenet", "the larger one of the paper's"),
        ("Flowers", 39_999, 5, "cifar", "since Flowers has 39,999 rows"),
        ("Flowers", 40_000, 5, "imagenet", "since Flowers has 40,000 rows"),
    ],
)
def test_the_grid_follows_from_the_data(
    tmp_path: Path, dataset: str, rows: int, classes: int, grid: str, why: str
) -> None:
    opened = read_archive([archive(tmp_path, dataset, rows, classes)])
    assert (opened.rows, opened.classes) == (rows, classes)
    chosen, said = grid_for(opened)
    assert chosen == grid
    assert why in said


def test_a_study_takes_that_grid_unless_told_otherwise(tmp_path: Path) -> None:
    path = archive(tmp_path, "Flowers", 40_000, 2)
    common: dict[str, Any] = {"methods": ["uncalibrated"], "trials": 1, "jobs": 1}
    found = study.run([path], out=tmp_path / "s", **common)
    assert len(found) == len(GRIDS["imagenet"])
    assert load(tmp_path / "s").config["grid"] == "imagenet"
    assert len(study.run([path], grid="cifar", **common)) == len(GRIDS["cifar"])


def test_too_few_rows_for_any_grid_are_told_before_a_folder_is_made(tmp_path: Path) -> None:
    path = archive(tmp_path, "ImageNet-C", 40, 4)
    for grid, says in (
        (
            None,
            "ImageNet-C has 40 rows, too few for the paper's grids (the smaller, cifar, takes 2,500",
        ),
        ("imagenet", "the 20,000 private rows of grid imagenet leave none of the 40 of ImageNet-C"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            study.run([path], grid=grid, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "many"},
        {"classes": None},
        {"trials": "500"},
        {"public_rows": []},
        {"shifts": None},
        {"methods": None},
        {"settings": None},
        {"settings": [{"sweep": "sources"}]},
        {"settings": [1]},
    ],
)
def test_a_description_that_cannot_be_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, **THE_PAPERS)
    edit(folder, **change)
    with pytest.raises(InputError, match=r"study\.json is damaged"):
        load(folder)


@pytest.mark.parametrize("change", [{"severity": 3}, {"dataset": "Flowers"}, {"trials": 1}])
def test_a_description_that_is_not_of_these_results_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, **THE_PAPERS)
    edit(folder, **change)
    with pytest.raises(InputError, match="is not of the study that"):
        load(folder)


def test_settings_that_were_not_run_are_refused(tmp_path: Path) -> None:
    run = [*THE_PAPERS["settings"][:-1], Setting("epsilon", 7, 7, 7.0)]
    folder = make_study(tmp_path / "s", as_the_paper_says, **{**THE_PAPERS, "settings": run})
    assert load(folder).reported is None
    edit(folder, settings=[asdict(setting) for setting in THE_PAPERS["settings"]])
    with pytest.raises(InputError, match="is not of the study that"):
        load(folder)


def edit(folder: Path, **change: Any) -> None:
    file = folder / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
