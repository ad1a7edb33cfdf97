"""The range of a search as a factor: in tables and figures by the text that a user types."""

from __future__ import annotations

from pathlib import Path

from privcal.lab.study.grids import Setting
from privcal.lab.study.results import defaults
from privcal.lab.study.store import load
from privcal.planning.simulate.variants import Variant
from privcal.report.study.figures import draw
from privcal.report.study.tables import all_tables
from tests.support.study_folder import FACTOR_SETTINGS, make_study

RANGES = [
    Variant(method, (("bounds", bounds),))
    for method in ("acc-t", "nll-t")
    for bounds in ((0.5, 3.0), (0.5, 6.0))
]


def wider_is_better(shift: str, label: str, setting: Setting) -> float:
    return 0.04 if "bounds=0.5,6" in label else 0.08


def test_ranges_have_a_table_and_a_panel_with_readable_names(tmp_path: Path) -> None:
    folder = make_study(
        tmp_path / "s", wider_is_better, RANGES, settings=FACTOR_SETTINGS, grid="factors"
    )
    results = load(folder)
    assert results.given == RANGES
    table = next(t for t in all_tables(results) if t.name == "factor-bounds")
    assert [row[:3] for row in table.rows] == [
        ("nll-t", "0.5,3", 0.08),
        ("nll-t", "0.5,6", 0.04),
        ("acc-t", "0.5,3", 0.08),
        ("acc-t", "0.5,6", 0.04),
    ]
    assert {v.value("bounds") for v in defaults(results.variants)} == {(0.5, 3.0)}  # the paper's
    pictures = draw(results, tmp_path / "figures")
    [drawn] = [path for path in pictures if path.name == "factors-ece.svg"]
    text = drawn.read_text()
    assert "0.5,3" in text
    assert "0.5,6" in text
