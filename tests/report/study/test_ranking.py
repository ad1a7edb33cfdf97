"""The order of the methods: ours beside the paper's, by ECE and by other measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privcal.lab.study.paper import METHODS
from privcal.lab.study.results import Results
from privcal.lab.study.store import load
from privcal.report.study import ranking
from tests.support.study_folder import make_study, set_beside_the_paper

PAPERS = {
    "acc-t": 0.1,
    "nll-t": 0.2,
    "ece-t": 0.3,
    "histogram-binning": 0.4,
    "one-source-ece": 0.5,
    "uncalibrated": 0.6,
}
"""In the order of the paper's medians; by mean histogram binning is its first."""


def study(folder: Path, ece: dict[str, float], **more: Any) -> Results:
    return load(make_study(folder / "study", lambda _, method, __: ece[method], **more))


def test_pairs_are_counted_by_median_and_by_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_beside_the_paper(monkeypatch)
    found = ranking.beside_the_paper(study(tmp_path, PAPERS))
    assert found is not None
    _, notes = found
    assert notes[0] == (
        "By median the order is the paper's, in all 15 pairs of methods. 15 of the 15 differ here by "
        "more than 1.96 standard errors."
    )
    # By mean the paper has histogram binning, Acc-T, one source, NLL-T, ECE-T.
    assert notes[1].startswith(
        "By mean 10 of 15 pairs of methods are in the paper's order; turned: "
    )
    assert "acc-t before histogram-binning" in notes[1]
    assert "(5 of them surely)" in notes[1]


def test_a_pair_that_cannot_be_told_apart_is_not_surely_turned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_beside_the_paper(monkeypatch)
    close = PAPERS | {"one-source-ece": 0.3999}
    found = ranking.beside_the_paper(study(tmp_path, close))
    assert found is not None
    assert found[1][0] == (
        "By median 14 of 15 pairs of methods are in the paper's order; turned: one-source-ece before "
        "histogram-binning (0 of them surely). 14 of the 15 differ here by more than 1.96 standard "
        "errors."
    )


def test_places_stand_side_by_side_and_it_is_said_how_one_source_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_beside_the_paper(monkeypatch)
    moved = PAPERS | {"one-source-ece": 0.15, "one-source": 0.11, "one-source-nll": 0.12}
    methods = [*METHODS, "one-source", "one-source-nll"]
    found = ranking.beside_the_paper(study(tmp_path, moved, methods=methods))
    assert found is not None
    table, notes = found
    assert notes[-1].startswith("The paper does not say how it fits one source.")
    assert notes[-1].endswith(
        "by accuracy (one-source) 0.1100 and 0.1100, by NLL (one-source-nll) 0.1200 and 0.1200."
    )
    [row] = [row for row in table.rows if row[0] == "one-source-ece"]
    assert [cell if isinstance(cell, str) else round(cell or 0, 9) for cell in row] == [
        "one-source-ece",
        *("2", "5", 0.15, 0.1241),
        *("2", "3", 0.15, 0.1359),
    ]


def test_there_is_no_order_beside_a_paper_that_has_no_such_data(tmp_path: Path) -> None:
    assert ranking.beside_the_paper(study(tmp_path, PAPERS, dataset="Tiny-ImageNet-C")) is None


def test_where_brier_tells_another_story_it_is_told(tmp_path: Path) -> None:
    # In these made-up studies a lower ECE means a higher Brier.
    notes = ranking.ece_against_others(study(tmp_path, PAPERS))
    assert notes[0] == "In the median the ECE puts acc-t first, the Brier score uncalibrated."
    assert notes[1].startswith("acc-t looks better by ECE (place 1 of 6) than by Brier (place 6)")
    assert "The AURC, which is about order alone, is least for acc-t (median 0.0" in notes[-1]
    assert "and greatest for uncalibrated" in notes[-1]
