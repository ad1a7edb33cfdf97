"""Pages in a real browser: nothing is loaded, no name acts, every control is used."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from privcal.data.html import document
from privcal.report import pages
from privcal.report.pages import Axis, Chart, Section, Series
from privcal.report.pages.charts import picture, swatch, values
from tests.report.pages.test_pages import EVIL, everywhere
from tests.support.browser import CONTRAST, Browser, needs_browser

pytestmark = needs_browser

LINE = Series("sketch", (0.05, 0.5, 1.0, 10.0), (0.1, 0.05, None, 0.03), strong=True, look=4)
BAND = replace(
    LINE, name="band", y=(0.2, 0.1, 0.08, 0.07), low=(0.1, 0.05, None, 0.0), high=(0.3, 0.2, 0.1, 0.1), look=9
)  # fmt: skip
LEVEL = Series("nothing done", (), (0.15,), kind="level", dashed=True)
RING = Series("recommended", (1.0,), (0.08,), kind="ring")
CHART = Chart(
    "ECE along ε", "What to expect.", Axis("ε", log=True), Axis("ECE", digits=3), (LINE, BAND, LEVEL, RING)
)  # fmt: skip
TENTHS = tuple(0.05 + 0.1 * i for i in range(10))
CHARTS = {
    "lines on a log axis": CHART,
    "both axes log, cut off": replace(CHART, y=Axis("ECE", log=True, low=0.04, high=0.25)),
    "many values": replace(
        CHART,
        x=Axis("sources"),
        series=(Series("a", tuple(map(float, range(45))), tuple(i * 37.5 for i in range(45))),),
    ),
    "thousands, log": replace(
        CHART, x=Axis("rows", log=True), series=(Series("a", (2.0, 12_345.0), (1e-4, 2e-4)),)
    ),
    "bars with names": replace(
        CHART,
        x=Axis("asker", names=("a", "b", "c")),
        series=(Series("ε", (0.0, 1.0, 2.0), (1.0, 0.25, None), kind="bars", look=3),),
    ),
    "long names": replace(
        CHART,
        x=Axis("asker", names=("a department of somewhere", "b", "histogram-binning")),
        series=(Series("ε", (0.0, 1.0, 2.0), (1.0, 0.25, None), kind="bars", look=3),),
    ),
    "points with whiskers": replace(
        CHART,
        x=Axis("confidence", low=0.0, high=1.0),
        y=Axis("accuracy", low=0.0, high=1.0),
        series=(
            Series("right", (0.0, 1.0), (0.0, 1.0), kind="guide"),
            Series("before", TENTHS, TENTHS, tuple(t - 0.04 for t in TENTHS), tuple(t + 0.04 for t in TENTHS), "points"),
        ),
    ),
    "a narrow log axis": replace(
        CHART,
        y=Axis("Brier", log=True),
        series=(Series("a", (1.0, 2.0), (0.22, 0.31)),),
        height=170,
    ),
    "one value": replace(CHART, series=(Series("a", (1.0,), (0.5,)),)),
    "nothing at all": replace(CHART, series=()),
    "a smooth curve below zero": replace(
        CHART, x=Axis("score"), series=(Series("a", (-3.0, 0.0, 3.0), (-1.0, 0.2, 1.0), marked=False),)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = Series("rows", TENTHS, tuple(float(i * i) for i in range(10)), kind="bars")
    table = pages.table(
        "Methods", ["method", "ECE", "rows"], [["b", 0.5, 20], ["a", None, 3], ["c", 0.1, 100]]
    )
    return pages.save(
        tmp_path_factory.mktemp("page") / "page.html",
        pages.page(
            "A page",
            "What it says first.",
            [
                Section("Picture", pages.lines(CHART), heading=False),
                Section("Two", pages.charts(pages.lines(CHART), pages.lines(CHART))),
                Section("Diagram", pages.reliability("Reliability", "About.", [], counts)),
                Section("Table", table),
                Section("Facts", pages.facts({"ε": "1"})),
            ],
        ),
    )


@pytest.mark.parametrize("name", CHARTS)
def test_the_browser_draws_the_very_picture_that_python_draws(
    tab: Browser, plain: Path, name: str
) -> None:
    chart = CHARTS[name]
    tab.open(plain)
    for width in (720.0, 300.0):
        there = tab.run(f"picture({document(asdict(chart))}, {width}).outerHTML")
        assert same(there, picture(chart, width))
    assert same(tab.run(f"values({document(asdict(chart))}).outerHTML"), plain_table(values(chart)))
    for series in chart.series:
        assert same(tab.run(f"swatch({document(asdict(series))}).outerHTML"), swatch(series))


def same(there: str, here: str) -> bool:
    """The same markup, and numbers as near as a tenth of a pixel may be rounded."""
    number = r"-?\d+(?:\.\d+)?"
    split = [re.split(f"({number})", _one_way(text)) for text in (there, here)]
    assert len(split[0]) == len(split[1]), f"{there}\n\n{here}"
    for one, other in zip(*split, strict=True):
        if re.fullmatch(number, one) and re.fullmatch(number, other):
            assert float(one) == pytest.approx(float(other), abs=0.11), f"{there}\n\n{here}"
        else:
            assert one == other, f"{there}\n\n{here}"
    return True


def _one_way(markup: str) -> str:
    """Attributes in the order of their names; entities as characters."""

    def ordered(match: re.Match[str]) -> str:
        attributes = re.findall(r' [a-zA-Z-]+="[^"]*"', match[2])
        return f"<{match[1]}{''.join(sorted(attributes))}>"

    return re.sub(r"<(\w+)((?: [a-zA-Z-]+=\"[^\"]*\")*) ?/?>", ordered, markup)


def plain_table(markup: str) -> str:
    return markup.replace(' class="figure"', "")


@pytest.mark.parametrize("evil", EVIL)
def test_no_hostile_name_runs_or_loads_anything(tab: Browser, tmp_path: Path, evil: str) -> None:
    path = pages.save(tmp_path / "evil.html", everywhere(evil))
    tab.open(path)
    tab.run("document.querySelectorAll('figure.chart .picture').forEach((e) => e.focus())")
    tab.press("ArrowRight", "ArrowRight")
    assert tab.requests() == [path.as_uri()]
    assert tab.complaints() == []
    assert tab.run("document.title") not in ("taken", "1")
    assert tab.run("document.querySelectorAll('img, iframe, object, embed, link').length") == 0
    assert tab.run("document.scripts.length") == everywhere("plain").count("<script")


def test_the_policy_stops_what_gets_in_all_the_same(tab: Browser, tmp_path: Path) -> None:
    # As if a name had not been escaped: this very page acts without the policy, and not with it.
    attack = (
        "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
        "<img src='http://127.0.0.1:9/x'><style>p{color:red}</style>"
    )
    text = pages.page("t", "l", []).replace("<main", f"{attack}<main")
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert bare != text
    open_door, closed = (
        pages.save(tmp_path / f"{i}.html", made) for i, made in enumerate((bare, text))
    )
    tab.open(open_door)
    assert tab.run("document.title") == "taken"
    assert len(tab.requests()) > 1
    tab.open(closed)
    assert tab.run("document.title") == "t"
    loaded = [e for e in tab.events if e["method"] == "Network.responseReceived"]
    assert [e["params"]["response"]["url"] for e in loaded] == [closed.as_uri()]


def test_a_page_loads_nothing_but_itself(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    assert tab.requests() == [plain.as_uri()]
    assert tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_what_is_behind_it(tab: Browser, plain: Path, dark: bool) -> None:
    tab.open(plain, dark=dark)
    tab.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    tab.focus(".picture")
    tab.press("ArrowRight")
    assert tab.run("document.querySelectorAll('.tip').length") == 1
    assert tab.run(CONTRAST) == []
    assert tab.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_every_line_stands_out_from_the_page(tab: Browser, plain: Path, dark: bool) -> None:
    tab.open(plain, dark=dark)
    style = "getComputedStyle(document.documentElement).getPropertyValue"
    page = tab.run(f"{style}('--page')")
    for look in range(16):
        colour = tab.run(f"{style}('--c{look}')")
        assert contrast(colour, page) >= 3, (look, colour)


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_arrow_keys_tell_the_values_and_a_screen_reader_hears_them(
    tab: Browser, plain: Path
) -> None:
    tab.open(plain)
    tab.focus(".picture")
    tab.press("ArrowRight", "ArrowRight")
    assert tab.text(".tip p") == "ε: 0.5"
    assert tab.text(".heard") == (
        "ε: 0.5; sketch 0.050; band 0.100 (0.050–0.200); nothing done 0.150"
    )
    tab.press("End")
    assert tab.text(".tip p") == "ε: 10"
    tab.press("ArrowRight", "Home")
    assert tab.text(".tip p") == "ε: 0.05"
    tab.press("Escape")
    assert tab.run("document.querySelectorAll('.tip, .here').length") == 0


def test_hovering_tells_the_nearest_values(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    box = tab.run("(() => { const r = document.querySelector('.picture').getBoundingClientRect(); return [r.x, r.y, r.width]; })()")  # fmt: skip
    tab.move(box[0] + box[2] - 20, box[1] + 100)
    assert tab.text(".tip p") == "ε: 10"
    tab.move(5, 5)
    assert tab.run("document.querySelectorAll('.tip').length") == 0


def test_a_heading_sorts_by_click_and_by_key(tab: Browser, plain: Path) -> None:
    def column(index: int) -> Any:
        return tab.run(
            f"[...document.querySelector('table.sortable').tBodies[0].rows].map((r) => r.cells[{index}].textContent)"
        )

    tab.open(plain)
    tab.click("table.sortable th:nth-child(3) button")
    assert column(2) == ["3", "20", "100"]
    tab.press("Enter")
    assert column(2) == ["100", "20", "3"]
    tab.click("table.sortable th:nth-child(2) button")
    assert column(0) == ["c", "b", "a"]  # nothing said comes last
    tab.click("table.sortable th button")
    assert column(0) == ["a", "b", "c"]
    assert tab.run("document.querySelector('th[aria-sort]').textContent") == "method"


def test_all_that_can_be_used_has_a_name(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    named = tab.named()
    roles = {role for role, _ in named}
    assert {"main", "banner", "navigation", "contentinfo", "heading", "table"} <= roles
    used = {"button", "link", "slider", "checkbox", "combobox", "image", "table", "columnheader"}
    assert [entry for entry in named if entry[0] in used and not entry[1]] == []
    assert ("link", "Skip to the content") in named


def test_the_first_tab_skips_to_the_content(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    tab.press("Tab")
    assert tab.run("document.activeElement.textContent") == "Skip to the content"
    assert tab.run("document.activeElement.getBoundingClientRect().left") >= 0
    tab.press("Enter")
    assert tab.run("document.activeElement.id") == "content"


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_nothing_sticks_out_of_a_phone_or_a_desk(tab: Browser, plain: Path, width: int) -> None:
    tab.open(plain, width=width)
    assert tab.run("document.documentElement.scrollWidth") <= width
    tab.size(320)
    tab.settle()
    assert tab.run("document.documentElement.scrollWidth") <= 320


def test_text_in_a_picture_is_as_large_on_a_phone(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    for width in (1100, 360):
        tab.size(width)
        tab.settle()
        shown, drawn = tab.run(
            "(() => { const svg = document.querySelector('.picture > svg');"
            "return [svg.getBoundingClientRect().width, svg.viewBox.baseVal.width]; })()"
        )
        assert shown == pytest.approx(drawn, rel=0.01)


def test_without_javascript_the_pictures_and_tables_are_there(tab: Browser, plain: Path) -> None:
    tab.open(plain, script=False)
    images = [name for role, name in tab.named() if role == "image"]
    assert images.count("ECE along ε") == 3
    assert ("table", "Methods") in tab.named()


def test_it_prints(tab: Browser, plain: Path) -> None:
    tab.open(plain)
    assert tab.pdf().startswith(b"%PDF")


def test_data_for_scripts_arrive_as_they_were(tab: Browser, tmp_path: Path) -> None:
    path = pages.save(
        tmp_path / "p.html", pages.page("t", "l", [], data=list(EVIL[:-1]), script="data();")
    )
    tab.open(path)
    assert tab.run("data()") == list(EVIL[:-1])
