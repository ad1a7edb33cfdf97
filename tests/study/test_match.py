"""The paper's figures stand beside a study of the paper's own making, and beside no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privcal.simulate.unlike import MIXED
from privcal.study.grids import GRIDS, Setting
from privcal.study.paper.ranking import beside_the_paper
from privcal.study.show.render import render
from privcal.study.show.tables import all_tables
from privcal.study.store import load
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
