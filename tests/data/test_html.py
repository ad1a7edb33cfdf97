"""What a notebook shows of our values: short, escaped, and nothing that was not released."""

from __future__ import annotations

import math
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.trusted.errors import Refused
from tests.support.builders import a_source

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def scores(rows: int = 357, model: str | None = None) -> privcal.Scores:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(rows, 3)) * 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return privcal.Scores(logits=logits, labels=labels, model=model)


def result(method: str = "sketch", names: tuple[str, ...] = ("north", "south"), **more: Any) -> Any:
    parts = np.array_split(np.arange(357), len(names))
    mine = scores(model=more.get("model"))
    sources = [
        a_source(mine.take(rows), name=name) for name, rows in zip(names, parts, strict=True)
    ]
    return privcal.calibrate(sources, method, epsilon=1.0, **more)


class Tags(HTMLParser):
    """The elements and attributes of some markup, and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


@cache
def everything() -> dict[str, Any]:
    found = result()
    risk = result(event=1)
    return {
        "result": found,
        "map": found.map,
        "temperature": privcal.TemperatureMap(2.0),
        "sketch": found.sketch,
        "private": found.sketch.evaluate(),
        "risk": risk.sketch.evaluate(),
        "evaluation": privcal.evaluate(scores()),
        "ledger": privcal.Ledger.in_memory(privcal.Policy(epsilon=2.0)),
        "plan": privcal.advise(samples=20, sources=20, shifts=["fog"], trials=2),
    }


NAMES = (
    "result", "map", "temperature", "sketch", "private", "risk", "evaluation", "ledger", "plan",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_a_few_facts_and_no_wall_of_digits(name: str) -> None:
    value = everything()[name]
    plain, page = repr(value), Tags(value._repr_html_())
    assert plain.startswith(type(value).__name__)
    assert len(plain) < 200
    assert "\n" not in plain
    assert page.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert not page.attributes  # no colours, no scripts
    assert len(page.text) < 2000
    assert not re.search(r"\d\.\d{5}", plain + page.text)


@pytest.mark.parametrize("name", ["result", "map", "sketch", "private", "risk"])
def test_no_exact_figure_of_private_rows_is_shown(name: str) -> None:
    found = result(names=("all",))
    value = {"result": found, "map": found.map, "sketch": found.sketch}.get(
        name, everything()[name]
    )
    shown = repr(value) + value._repr_html_()
    exact = privcal.evaluate(scores())
    assert not re.search(r"(?<![\d.])357(?![\d.])", shown)
    for figure in (exact.accuracy, exact.mean_confidence, exact.ece, exact.brier):
        assert f"{figure:.4f}" not in shown
        assert f"{figure:.4g}" not in shown


def test_names_and_notes_that_are_markup_are_shown_as_text(tmp_path: Path) -> None:
    found = result(names=(HOSTILE, "south"), model=HOSTILE)
    found.dropped[HOSTILE] = HOSTILE
    map = privcal.TemperatureMap(2.0).with_provenance(
        note=HOSTILE, method=HOSTILE, model=[HOSTILE], sources={HOSTILE: HOSTILE}
    )
    map.save(tmp_path / "map.json")
    ledger = privcal.Ledger.in_memory(privcal.Policy(epsilon=1.0), name=HOSTILE)
    for value in (found, found.map, found.sketch, privcal.load_map(tmp_path / "map.json"), ledger):
        page = Tags(value._repr_html_())
        assert not {"script", "img"} & page.tags
        assert not page.attributes
        assert "alert(1)" in page.text


def test_a_ledger_that_refuses_is_shown_with_its_reason(tmp_path: Path) -> None:
    ledger = privcal.Ledger(tmp_path / "gone.ledger")
    with pytest.raises(Refused):
        ledger.nano_spent  # noqa: B018
    assert "ledger is missing" in ledger._repr_html_()
    assert str(tmp_path) not in ledger._repr_html_()


# --- a flat dict of numbers ------------------------------------------------------------------


def test_the_metrics_of_a_result_are_finite_numbers_by_name() -> None:
    found = result()
    metrics = found.metrics()
    assert all(type(v) in (int, float) and math.isfinite(v) for v in metrics.values())
    assert all(re.fullmatch(r"[a-z_]+", name) for name in metrics)
    assert metrics["epsilon"] == 1
    assert metrics["sources"] == metrics["answered"] == 2
    assert metrics["questions"] == 1
    estimates = found.sketch.evaluate().estimates()
    assert set(metrics) >= set(estimates)
    for name, estimate in estimates.items():
        assert metrics[f"{name}_low"] == estimate.low <= metrics[name] <= metrics[f"{name}_high"]


def test_every_estimate_among_the_metrics_has_its_limits_and_nothing_else_has() -> None:
    metrics = result(event=1).metrics()
    estimated = {name.removesuffix("_low") for name in metrics if name.endswith("_low")}
    plain = {"epsilon", "sources", "answered", "dropped", "questions", "temperature", "unchanged"}
    assert "slope_after" in estimated
    assert {n for n in metrics if not n.endswith(("_low", "_high"))} - estimated <= plain


def test_a_method_without_a_sketch_has_its_temperature_and_no_estimates() -> None:
    found = result("acc-t")
    metrics = found.metrics()
    assert metrics["temperature"] == found.map.temperature
    assert metrics["questions"] == 5 == len(found.rounds)
    assert not any(name.endswith("_low") for name in metrics)


def test_a_run_with_public_rows_is_read_with_them_again() -> None:
    found = result(public=scores(200))
    assert found.metrics()["ece_after"] > 0
    assert "estimate" in found._repr_html_()
