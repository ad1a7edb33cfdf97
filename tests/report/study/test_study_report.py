"""Figures and the page: everything in them, about this study, and nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from privcal.lab.study.paper import METHODS
from privcal.lab.study.store import load
from privcal.planning.simulate.variants import Variant, with_public
from privcal.report.study.figures import FIXED, draw, styles
from privcal.report.study.report import write
from privcal.trusted.errors import InputError
from tests.support.browser import CONTRAST, Browser, needs_browser
from tests.support.html import read
from tests.support.study_folder import (
    EXACT,
    FACTOR_SETTINGS,
    VARIANTS,
    as_the_paper_says,
    factors_as_the_paper_says,
    make_study,
)
from tests.support.study_folder import few_will_do as few_will_do  # a fixture

pytestmark = pytest.mark.usefixtures("few_will_do")

NEW = "brand-new"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(
        tmp_path_factory.mktemp("made") / "study",
        as_the_paper_says,
        [NEW, *METHODS],
        ["motion_blur", "clean"],
        exact=EXACT,
    )


@pytest.fixture(scope="module")
def factors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(
        tmp_path_factory.mktemp("made") / "factors",
        factors_as_the_paper_says,
        [*VARIANTS, NEW],
        settings=FACTOR_SETTINGS,
        grid="factors",
    )


@pytest.fixture(scope="module")
def page(folder: Path, factors: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert write(load(folder), path, load(factors)) == path
    return path.read_text("utf-8")


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_every_shift_has_its_figure_in_both_formats(folder: Path, tmp_path: Path) -> None:
    paths = draw(load(folder), tmp_path / "new" / "figures", jobs=1)
    assert [p.name for p in paths] == [
        f"{name}.{ending}"
        for name in ("mean", "overview", "shift-motion_blur", "shift-clean")
        for ending in ("png", "svg")
    ]
    for path in paths:
        if path.suffix == ".svg":
            # Text is text, and every method is in the legend, the new one too.
            said = set(words(path.read_text("utf-8")))
            assert {NEW, *map(str, METHODS)} <= said
            assert path.stem == "overview" or {"ECE", "Brier", "AURC"} <= said
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (tmp_path / "new" / "figures").iterdir()) == sorted(
        p.name for p in paths
    )


def test_two_processes_draw_the_very_files_that_one_draws(folder: Path, tmp_path: Path) -> None:
    one, two = (draw(load(folder), tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert [path.name for path in one] == [path.name for path in two]
    for alone, shared in zip(one, two, strict=True):
        assert alone.read_bytes() == shared.read_bytes()


def test_interrupted_drawing_leaves_the_pictures_that_are_finished(
    folder: Path, tmp_path: Path
) -> None:
    told = []

    def interrupt(name: str | None, done: int, total: int) -> None:
        told.append((name, done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(load(folder), tmp_path, jobs=1, progress=interrupt)
    assert told == [(None, 0, 4), ("mean", 1, 4), ("overview", 2, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("mean.png", "mean.svg", "overview.png", "overview.svg")
    ]


def test_the_same_results_give_the_same_drawing(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, ["acc-t", NEW], ["clean"])
    first, again = (draw(load(folder), tmp_path / name) for name in ("a", "b"))
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]


def test_a_study_of_factors_has_a_panel_for_each(factors: Path, tmp_path: Path) -> None:
    paths = draw(load(factors), tmp_path)
    assert [p.stem for p in paths] == [
        f"factors-{measure}" for measure in ("ece", "brier", "aurc") for _ in range(2)
    ]
    text = " ".join(words(paths[1].read_text("utf-8")))
    for panel in ("iterations", "bins", "clip", "search", "more data", "higher ε", "no noise"):
        assert panel in text
    assert NEW in text


def test_one_trial_has_no_bands_and_is_drawn_all_the_same(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, ["acc-t"], ["fog"], se=float("nan"))
    assert len(draw(load(folder), tmp_path)) == 6


def test_a_method_looks_the_same_in_every_study() -> None:
    everyone = styles([*METHODS, *map(Variant, ("one-source-nll", "one-hot-binning", NEW))])
    for some in (["acc-t", NEW], ["one-hot-binning"], [NEW, "one-hot-binning", "nll-t"]):
        variants = [Variant(name) for name in some]
        assert styles(variants) == {variant: everyone[variant] for variant in variants}
    assert everyone[Variant("acc-t")] == FIXED["acc-t"]


def test_a_method_with_public_rows_is_dashed_in_its_own_colour() -> None:
    for name in ("sketch", NEW):
        [plain] = styles([Variant(name)]).values()
        public, _ = styles([with_public(name, 2000), Variant("acc-t")]).values()
        assert (public.colour, public.marker) == (plain.colour, plain.marker)
        assert (plain.dashes, public.dashes) == ("-", "--")


def test_many_methods_are_told_apart() -> None:
    found = styles([*METHODS, *(Variant(f"method-{i}") for i in range(12))])
    assert len(set(found.values())) == len(found)


def test_the_page_is_well_formed_and_every_link_leads_somewhere(page: str) -> None:
    seen = read(page)
    assert seen.open == []
    assert len(set(seen.ids)) == len(seen.ids)
    for target in seen.targets:
        assert target[1:] in seen.ids


def test_the_page_leads_with_what_was_found_and_the_picture(page: str) -> None:
    text = read(page).text
    assert "acc-t has the lowest median ECE" in text
    assert page.index("<svg") < page.index("<table>") < page.index("<h2>")


def test_the_new_method_is_in_the_tables_and_pictures(page: str) -> None:
    assert re.search(rf'<th scope="row"[^>]*>{NEW}</th>', page)
    drawn = re.findall(r'<script type="application/json" class="chart">(.*?)</script>', page)
    # One to choose in, one for each shift, and of factors six for each of three measures.
    assert len(drawn) == 1 + 2 + 6 * 3
    assert sum(f'"{NEW}"' in chart for chart in drawn) == 1 + 2 + 2 * 3


def test_the_page_has_every_verdict_and_the_papers_figures(page: str) -> None:
    text = read(page).text
    for said in (
        "Acc-T is best in the median",
        "One source is best at the smallest ε",
        "ECE-T is good at large ε",
        "Acc-T is on a par without privacy",
        "More sources help every private method",
        "More bins help without noise",
        "Golden section beats grid search",
        "Acc-T is best by a wide margin",
        "The optimal T always lies in [0.5, 3]",
        "each source sends K + 1 noisy gaps",
        "no recalibration (uncalibrated) and one source are the paper's",
        "0.0836",
        "The ECE alone can mislead",
        "The paper's Table 1",
    ):
        assert said in text


def test_what_to_run_for_the_other_claims_is_said_once_and_in_no_row(
    folder: Path, page: str, tmp_path: Path
) -> None:
    alone = read(write(load(folder), tmp_path / "r.html").read_text("utf-8")).text
    assert alone.count("privcal study run --grid factors --out factors") == 1
    assert alone.count("--factors factors") == 1
    assert "cannot be told here" not in alone
    assert "`" not in alone
    assert "--grid factors --out" not in read(page).text


def test_a_study_of_ones_own_does_not_speak_of_the_paper(tmp_path: Path) -> None:
    folder = make_study(
        tmp_path / "s",
        as_the_paper_says,
        shifts=["ward 3", "ward 4"],
        dataset="Our Clinic",
        exact=EXACT,
    )
    text = read(write(load(folder), tmp_path / "r.html").read_text("utf-8")).text
    assert "Over 2 shifts of Our Clinic" in text
    assert "paper" not in text
    assert "†" not in text


def test_a_study_of_factors_alone_makes_a_page_too(factors: Path, tmp_path: Path) -> None:
    page = write(load(factors), tmp_path / "r.html").read_text("utf-8")
    assert read(page).open == []
    assert "Acc-T is best in the median" not in page
    assert "More iterations help without noise" in page


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    evil = "</script><b>x</b>&\"'"
    folder = make_study(
        tmp_path / "s", as_the_paper_says, ["acc-t", evil], ["fog", evil], dataset="<script>"
    )
    page = write(load(folder), tmp_path / "r.html").read_text("utf-8")
    seen = read(page)
    assert seen.open == []
    assert seen.tags.count("b") == page.count("<b>0.")
    assert evil in seen.text


def test_a_page_of_clean_alone_is_made(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, shifts=["clean"], exact=EXACT)
    assert read(write(load(folder), tmp_path / "r.html").read_text("utf-8")).open == []


def test_a_folder_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write(load(folder), tmp_path / "none" / "r.html")


def test_progress_is_told_to_the_end(folder: Path, tmp_path: Path) -> None:
    told = []
    write(load(folder), tmp_path / "r.html", progress=lambda *at: told.append(at[1:]))
    assert told == [(i, 4) for i in range(5)]


# --- in a browser ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "study.html"
    path.write_text(page, "utf-8")
    return path


def heard(tab: Browser) -> str:
    """What a screen reader hears at the last place of the large picture."""
    tab.focus("#explorer .picture")
    tab.press("End")
    return tab.text("#explorer .heard")


def choose(tab: Browser, id: str, key: str) -> None:
    """By keyboard, as a list takes a first letter."""
    tab.focus(f"#{id}")
    tab.press(key)


def said(folder: Path, measure: str, sweep: str, method: str, shift: str | None) -> str:
    curve = load(folder).curve(Variant(method), sweep, shift)
    mean, half = curve.of(measure)[-1], 1.96 * curve.se(measure)[-1]
    return f"{method} {mean:.4f} ({mean - half:.4f}–{mean + half:.4f})"


@needs_browser
def test_measures_shifts_and_sweeps_are_chosen_by_key(
    tab: Browser, written: Path, folder: Path
) -> None:
    tab.open(written)
    assert heard(tab).startswith("ε: 2; ")
    assert said(folder, "ece", "epsilon", "acc-t", None) in heard(tab)
    choose(tab, "measure", "B")
    assert said(folder, "brier", "epsilon", "acc-t", None) in heard(tab)
    choose(tab, "shift", "u")
    assert said(folder, "brier", "epsilon", "nll-t", "clean") in heard(tab)
    choose(tab, "sweep", "p")
    assert heard(tab).startswith("private sources: 20; ")
    assert said(folder, "brier", "sources", "ece-t", "clean") in heard(tab)
    assert tab.text("#explorer h3") == "Brier, unperturbed, samples = 10, ε = 1"
    assert tab.complaints() == []


@needs_browser
def test_methods_are_chosen_and_every_picture_follows(tab: Browser, written: Path) -> None:
    def drawn() -> list[int]:
        counted = "[...document.querySelectorAll('#explorer .picture, #every-shift .picture')].map((p) => p.querySelectorAll('.series').length)"
        found: list[int] = tab.run(counted)
        return found

    tab.open(written)
    every = len(METHODS) + 1
    assert drawn() == [every] * 3
    tab.click("input[name=method]")
    assert drawn() == [every - 1] * 3
    assert "uncalibrated" not in heard(tab)
    tab.click("#methods-none")
    assert drawn() == [0] * 3
    tab.click("#methods-all")
    assert drawn() == [every] * 3
    log = tab.run("document.querySelector('#explorer .picture svg').outerHTML")
    tab.click("#log")
    assert tab.run("document.querySelector('#explorer .picture svg').outerHTML") != log


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_legible_named_and_alone(tab: Browser, written: Path, dark: bool) -> None:
    tab.open(written, dark=dark, width=360)
    assert tab.requests() == [written.as_uri()]
    assert tab.complaints() == []
    assert tab.run(CONTRAST) == []
    assert tab.run("document.documentElement.scrollWidth") <= 360
    used = ("combobox", "checkbox", "button", "image", "link", "table")
    assert [entry for entry in tab.named() if entry[0] in used and not entry[1]] == []


@needs_browser
def test_a_picture_has_no_white_ground_in_the_dark(tab: Browser, written: Path) -> None:
    tab.open(written, dark=True)
    grounds = "[...new Set([...document.querySelectorAll('figure, .picture, .picture svg')].map((e) => getComputedStyle(e).backgroundColor))]"
    assert tab.run(grounds) == ["rgba(0, 0, 0, 0)"]


@needs_browser
def test_without_javascript_the_first_picture_and_all_tables_are_there(
    tab: Browser, written: Path, page: str
) -> None:
    tab.open(written, script=False)
    named = tab.named()
    assert not [role for role, _ in named if role in ("combobox", "checkbox", "button")]
    assert ("image", "ECE, the one perturbation, sources = 50, samples = 30") in named
    assert [role for role, _ in named].count("table") >= 6
