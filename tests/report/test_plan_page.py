"""The plan's page: what to do in words, and sliders to settings that were simulated."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import privcal
from privcal.planning.advise.plan import Plan
from privcal.planning.advise.planner import MOST_ROWS, _multiples
from privcal.trusted.errors import InputError
from tests.support.browser import CONTRAST, Browser, needs_browser
from tests.support.html import read

settings = sys.modules["privcal.planning.advise.planner"]  # `privcal.advise` is the function

FOG = {"samples": 20, "shifts": ["fog"], "trials": 2}


@pytest.fixture(scope="module", autouse=True)
def few_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "EPSILONS", (0.1, 1.0, 10.0))
        patch.setattr(settings, "SOURCES", (0.5, 1.0, 2.0))
        yield


@pytest.fixture(scope="module")
def plan() -> Plan:
    return privcal.advise(**FOG, sources=20, epsilon=0.7, around=True)


@pytest.fixture(scope="module")
def page(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plan.save_html(tmp_path_factory.mktemp("plan") / "plan.html")


def test_the_grid_is_around_the_setting_and_holds_it_as_it_was_planned(plan: Plan) -> None:
    around = plan.around
    assert around.epsilons == (0.1, 0.7, 1.0, 10.0)
    assert around.sources == (10, 20, 40)
    assert around.samples == (10, 20, 40)
    settings = [(s.samples, s.point.sources, s.point.epsilon) for s in around.spots]
    assert settings == [
        (rows, sources, epsilon)
        for rows in around.samples
        for sources in around.sources
        for epsilon in around.epsilons
    ]
    [here] = [s for s in around.spots if s.point is plan.chosen]
    assert (here.samples, here.recommendation, here.method) == (
        20,
        plan.recommendation,
        plan.method,
    )


def test_every_setting_says_what_to_do_with_its_own_numbers(plan: Plan) -> None:
    for spot in plan.around.spots:
        setting = f"ε = {spot.point.epsilon:g} at each of {spot.point.sources} sources of {spot.samples} rows"
        assert setting in spot.recommendation
        assert f"{spot.point.of(spot.method).ece.mean:.3f}" in spot.recommendation


def test_what_is_marked_asks_nobody_where_the_words_say_so() -> None:
    poor = privcal.advise(samples=2, sources=2, epsilon=0.1, current_ece=0.01, shifts=["fog"], trials=2, around=True)  # fmt: skip
    marked = {s.recommendation.split(":")[0]: s.point.of(s.method) for s in poor.around.spots}
    assert "Leave the model alone" in marked
    for opening, expected in marked.items():
        assert expected.private == opening.startswith("Use ")
    assert not marked["Leave the model alone"].private


def test_one_sources_own_fit_knows_how_many_rows_it_has(plan: Plan) -> None:
    own = {s.samples: s.point.of("one-source").ece.mean for s in plan.around.spots}
    assert len(set(own.values())) == 3


def test_progress_is_told_of_the_whole_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "SOURCES", (1.0,))
    told = []
    privcal.advise(**FOG, sources=5, around=True, progress=lambda *at: told.append(at))
    of_plan, of_grid = told[0][1], told[-1][1]
    assert of_grid == 3 * 3 * of_plan
    assert [at for at in told if at[1] == of_grid][-1] == (of_grid, of_grid)
    done = [at[0] for at in told if at[1] == of_grid]
    assert done == sorted(done)


def test_campaigns_have_no_sliders_but_a_page() -> None:
    with pytest.raises(InputError, match="one campaign"):
        privcal.advise(**FOG, sources=5, campaigns=2, around=True)
    repeated = privcal.advise(**FOG, sources=5, campaigns=3)
    text = read(repeated.to_html()).text
    assert "3 campaigns at 5 sources of 20 rows" in text
    assert repeated.recommendation in text


@pytest.mark.parametrize("more", [{}, {"sweep": True}, {"target_ece": 0.05}])
def test_a_plan_without_a_grid_has_a_page_too(more: dict) -> None:
    planned = privcal.advise(**FOG, sources=10, **more)
    seen = read(planned.to_html())
    assert seen.open == []
    assert planned.recommendation in seen.text
    assert planned.caveat in seen.text
    assert "input" not in seen.tags
    assert ("target" in seen.text) == ("target_ece" in more)


def test_a_very_large_plan_does_not_grow_beyond_itself() -> None:
    assert max(_multiples(3_000_000, (1.0, 2.0), MOST_ROWS)) == 3_000_000
    assert _multiples(1, (0.25, 0.5, 1.0, 2.0), 100) == (1, 2)


def test_the_page_says_the_plan_without_javascript(plan: Plan, page: Path) -> None:
    seen = read(page.read_text("utf-8"))
    assert seen.open == []
    assert plan.secure is not None
    sentences = plan.recommendation, plan.enough.sentence, plan.caveat, plan.secure.sentence
    for said in (*sentences, "at most 67 of 100"):
        assert said in seen.text
    assert page.stat().st_size < 300_000


def test_hostile_names_of_an_archive_are_text(plan: Plan) -> None:
    from privcal.report.plan import plan_page

    evil = "</script><script>alert(1)</script>"
    document = json.loads(json.dumps(plan.to_dict(), default=str))
    document["basis"] |= {"dataset": evil, "shifts": [evil]}
    text = plan_page(document, [e.method for e in plan.point.expected])
    assert text.count("<script") == plan.to_html().count("<script")
    assert evil in read(text).text


@needs_browser
def test_the_sliders_lead_to_what_was_simulated(tab: Browser, page: Path, plan: Plan) -> None:
    tab.open(page)
    around = plan.around
    for keys, name, values in (
        (("Home",), "epsilons", around.epsilons[:1]),
        (("ArrowRight",), "epsilons", around.epsilons[1:2]),
        (("End",), "sources", around.sources[-1:]),
        (("ArrowLeft",), "samples", around.samples[:1]),
    ):
        tab.focus(f"#{name}")
        tab.press(*keys)
        assert tab.text(f"#{name}-value") == f"{values[0]:,g}"
    [spot] = [
        s for s in around.spots if (s.samples, s.point.sources, s.point.epsilon) == (10, 40, 0.7)
    ]
    assert tab.text("h1") == "A plan: 40 sources of 10 rows, ε = 0.7 at each"
    assert tab.text("#recommendation") == spot.recommendation
    assert tab.text("#enough") == spot.enough.sentence
    assert "At ε = 0.7" in tab.text("#odds")
    assert tab.text("#secure") == spot.secure
    assert "36 of the 40 must answer" in spot.secure
    assert tab.text("#methods tbody b") == str(spot.method)
    row = tab.run(
        "[...document.querySelectorAll('#methods tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    for expected, cells in zip(spot.point.expected, row, strict=True):
        ece, brier = expected.ece, expected.brier
        assert cells == [
            str(expected.method), f"{ece.mean:.3f}", f"{ece.low:.3f}–{ece.high:.3f}",
            f"{expected.ece_if_right.mean:.3f}", f"{brier.mean:.3f}",
            f"{brier.low:.3f}–{brier.high:.3f}", f"{expected.aurc.mean:.3f}",
        ]  # fmt: skip
    assert tab.complaints() == []


@needs_browser
def test_the_pictures_follow_the_sliders(tab: Browser, page: Path, plan: Plan) -> None:
    def heard() -> str:
        tab.focus(".picture")
        tab.press("End")
        return tab.text(".heard")

    def expected(**setting: float) -> str:
        [spot] = [
            s
            for s in plan.around.spots
            if (s.samples, s.point.sources, s.point.epsilon)
            == (setting["samples"], setting["sources"], setting["epsilon"])
        ]
        return f"{spot.point.of('acc-t').ece.mean:.3f}"

    tab.open(page)
    assert "ε at each source: 10; uncalibrated" in heard()
    assert re.search(r"acc-t ([\d.]+)", heard())[1] == expected(samples=20, sources=20, epsilon=10)
    tab.run(
        "document.getElementById('along').value = 'sources'; document.getElementById('along').dispatchEvent(new Event('change'))"
    )
    assert heard().startswith("sources: 40;")
    assert re.search(r"acc-t ([\d.]+)", heard())[1] == expected(samples=20, sources=40, epsilon=0.7)
    assert "acc-t 0" in heard()
    tab.click("#ranges")
    assert re.search(r"acc-t [\d.]+ \([\d.]+–[\d.]+\)", heard())


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_legible_named_and_alone(tab: Browser, page: Path, dark: bool) -> None:
    tab.open(page, dark=dark, width=360)
    assert tab.requests() == [page.as_uri()]
    assert tab.complaints() == []
    assert tab.run(CONTRAST) == []
    assert tab.run("document.documentElement.scrollWidth") <= 360
    used = ("slider", "combobox", "checkbox", "button", "image", "link")
    found = [entry for entry in tab.named() if entry[0] in used]
    assert [entry for entry in found if not entry[1]] == []
    assert [name for role, name in found if role == "slider"] == [
        *("ε at each source", "sources", "rows of each source")
    ]


@needs_browser
def test_without_javascript_there_are_no_dead_sliders(tab: Browser, page: Path) -> None:
    tab.open(page, script=False)
    assert not [entry for entry in tab.named() if entry[0] in ("slider", "checkbox")]
    assert [name for role, name in tab.named() if role == "image"] == [
        *("Expected ECE", "Expected Brier score")
    ]
