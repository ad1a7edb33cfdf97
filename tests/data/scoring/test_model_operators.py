"""Each operator that a model may have leaves nothing behind that the next row could meet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")
pytest.importorskip("skl2onnx")

from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from privcal.data.scoring import Model
from privcal.data.scoring.model import RUNTIMES
from privcal.trusted.errors import InputError
from tests.support import scoring_parts as parts
from tests.support.scoring_operators import OPERATORS, Framed, bits, framed, versions

WHATEVER_THE_VALUES = {"Constant", "EyeLike", "Shape", "Size"}
"""What gives the same for all rows of the same shape."""


def tried(folder: Path, framed: Framed) -> tuple[int, list[int]] | None:
    """How many other rows have other scores, and which ones left this one with others than before.

    None where the model does not run here at all: the version has no such operator, say.
    """
    try:
        model = Model(parts.save(folder / "model.onnx", framed.model), kind="logits")
    except InputError:
        return None
    first = bits(model, framed.row)
    if first is None:
        return None
    others, moved = 0, []
    for n, other in enumerate(framed.others):
        others += bits(model, other) not in (None, first)
        if bits(model, framed.row) != first:
            moved.append(n)
    return others, moved


@pytest.mark.parametrize(("domain", "name"), OPERATORS)
def test_a_row_has_the_same_bits_whatever_came_before_it(
    tmp_path: Path, domain: str, name: str
) -> None:
    """A row, another one, and the row again: in all cases of the newest version, three of each older one."""
    *older, newest = versions(domain, name)
    shown = False
    for version in (newest, *older):
        for model in framed((domain, name), version, None if version == newest else 3):
            found = tried(tmp_path, model)
            if found is not None:
                others, moved = found
                assert not moved, f"{model.name}: after others {moved} the row has other scores"
                shown |= others > 0 or name in WHATEVER_THE_VALUES
    assert shown, f"no graph shows that {name} keeps nothing: add one to TEXTS"


@pytest.mark.parametrize("name", ["BatchNormalization", "Dropout", "Bernoulli"])
def test_the_same_rows_show_the_state_of_operators_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("privcal.data.scoring.model.check_model", lambda model: None)
    found = [
        tried(tmp_path, model)
        for version in versions("", name)
        for model in framed(("", name), version)
    ]
    assert any(moved for _, moved in filter(None, found))


def test_no_runtime_has_operators_where_a_model_may_have_functions_of_its_own() -> None:
    """It would run these, and not the functions that were looked at."""
    domains = {schema.domain for schema in runtime.get_all_operator_schema()} - {""}
    assert domains
    assert all(domain.startswith(RUNTIMES) for domain in domains)


def test_the_page_lists_the_operators_that_are_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scoring.md").read_text()
    _, _, listed = page.partition("### Operators that are run\n")
    words = set(re.findall(r"\w+", listed.partition("\n## ")[0]))
    assert {name for _, name in OPERATORS} <= words
