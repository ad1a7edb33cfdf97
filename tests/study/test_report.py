"""Figures and the page: everything in them, and nothing from outside."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from privcal.errors import InputError
from privcal.simulate.variants import Variant, with_public
from privcal.study.paper.reported import METHODS
from privcal.study.show.figures import draw
from privcal.study.show.report import write
from privcal.study.show.styles import FIXED, styles
from privcal.study.store import load
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


class Checker(HTMLParser):
    VOID = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href"):
                self.targets.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"nothing to close with </{tag}>"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


def test_the_page_is_well_formed_and_every_link_leads_somewhere(page: str) -> None:
    checker = read(page)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    for target in checker.targets:
        assert target.startswith("data:") or target[1:] in checker.ids


def test_the_page_asks_nothing_of_any_network(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page
    assert not re.search(r"url\(|@import", page)


def test_the_new_method_is_in_the_page_and_in_its_figures(page: str) -> None:
    assert f'<td class="text">{NEW}</td>' in page
    images = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    assert len(images) == 4 + 3
    for image in images:
        assert NEW in words(base64.b64decode(image).decode("utf-8"))


def test_the_page_has_every_verdict_and_the_papers_figures(page: str) -> None:
    text = " ".join(read(page).text)
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
    ):
        assert said in text


def test_a_page_without_factors_says_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    page = write(load(folder), tmp_path / "r.html").read_text("utf-8")
    assert "cannot be told here" in page
    assert "--grid factors" in page


def test_the_claims_of_a_study_unlike_the_papers_are_said_to_be_of_its_own_settings(
    page: str, tmp_path: Path
) -> None:
    words = "this study's settings and shifts, which are not the paper's"
    assert words not in page
    folder = make_study(tmp_path / "s", as_the_paper_says, shifts=["fog"], dataset="of our own")
    assert words in write(load(folder), tmp_path / "r.html").read_text("utf-8")


def test_a_study_of_factors_alone_makes_a_page_too(factors: Path, tmp_path: Path) -> None:
    page = write(load(factors), tmp_path / "r.html").read_text("utf-8")
    assert read(page).open == []
    assert "Acc-T is best in the median" not in page
    assert "More iterations help without noise" in page


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    evil = "<b>x</b>&\"'"
    folder = make_study(
        tmp_path / "s", as_the_paper_says, ["acc-t", evil], ["fog"], dataset="<script>"
    )
    page = write(load(folder), tmp_path / "r.html").read_text("utf-8")
    assert read(page).open == []
    assert "<script>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


def test_a_page_of_clean_alone_is_made(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "s", as_the_paper_says, shifts=["clean"], exact=EXACT)
    assert read(write(load(folder), tmp_path / "r.html").read_text("utf-8")).open == []


def test_a_folder_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write(load(folder), tmp_path / "none" / "r.html")
