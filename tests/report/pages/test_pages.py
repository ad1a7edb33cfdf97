"""What every page promises: it says what it is told as text, and lets nothing in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privcal.data.html import document
from privcal.report import pages
from privcal.report.pages import Axis, Chart, Section, Series, tag
from privcal.report.pages.charts import Scale
from privcal.report.pages.shell import SCRIPTS, resource
from tests.support.html import read

EVIL = (
    "</script><script>document.title='taken'</script>",
    "</title></style><img src=x onerror=\"document.title='taken'\">",
    '" onmouseover="document.title=1" x="',
    "' autofocus onfocus='document.title=1",
    "<!--<script>",
    "]]><svg onload=document.title=1>",
    "javascript:document.title=1",
    "\u2028\u2029\x00\x1f\ud800&lt;b&gt;",
)


def everywhere(evil: str) -> str:
    """A page on which every text that a caller may give is the same hostile one."""
    series = Series(evil, (1.0, 2.0), (0.1, 0.2), (0.0, 0.1), (0.2, 0.3))
    bars = Series(evil, (0.0, 1.0), (3.0, 4.0), kind="bars")
    chart = Chart(evil, evil, Axis(evil), Axis(evil), (series,))
    named = Chart(evil, evil, Axis(evil, names=(evil, evil)), Axis(evil), (bars,))
    return pages.page(
        evil,
        [evil],
        [
            Section(evil, pages.lines(chart), id="a"),
            Section(evil, pages.lines(named), id="b"),
            Section(evil, pages.reliability(evil, evil, [series], bars, x=evil, y=evil), id="c"),
            Section(evil, pages.table(evil, [evil, evil], [[evil, 1.0], [evil, evil], ["a", None]]), id="d"),
            Section(evil, pages.facts({evil: evil}), id="e", heading=False),
            Section(evil, pages.join(pages.paragraphs(evil), pages.items([evil])), id="f"),
            Section("x", tag("p", evil, title=evil, data_name=evil, class_=evil), id="g"),
        ],
        data={evil: [evil]},
        made=evil,
    )  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_hostile_name_is_text_wherever_it_stands(evil: str) -> None:
    seen = read(everywhere(evil))
    assert seen.open == []
    # Our script and the data: no element came with the name, and no attribute that acts.
    plain = read(everywhere("x" * len(evil)))
    assert seen.tags == plain.tags
    assert seen.attributes == plain.attributes


def test_hostile_data_come_back_as_they_were() -> None:
    for evil in EVIL[:-1]:
        written = document({"name": evil})
        assert "<" not in written
        assert json.loads(written) == {"name": evil}
    assert "\u2028" not in document("\u2028")


def test_data_that_are_not_finite_are_null_and_figures_have_six_digits() -> None:
    assert json.loads(document([float("nan"), float("inf"), 1 / 3, 12, True])) == [
        *(None, None, 0.333333, 12, True)
    ]


def test_the_policy_names_the_one_style_and_the_one_script() -> None:
    text = pages.page("t", "l", [])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "unsafe" not in policy
    assert policy.startswith("default-src &#x27;none&#x27;")
    for element in ("style", "script"):
        inside = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{element}-src &#x27;sha256-{digest}&#x27;" in policy


@pytest.mark.parametrize("name", [*SCRIPTS, "page.css"])
def test_nothing_of_ours_ends_its_element_or_names_an_address(name: str) -> None:
    text = resource(name)
    assert "</" not in text
    assert "<!--" not in text
    assert not re.search(r"url\(|@import|innerHTML|eval\(|https?:|document\.write", text)


@pytest.mark.parametrize("attribute", ["style", "onclick", "on_load", "a b", "x=1"])
def test_attributes_that_act_cannot_be_made(attribute: str) -> None:
    with pytest.raises(ValueError, match=r"attribute|no name"):
        tag("p", **{attribute: "x"})


@given(
    st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.booleans(), st.integers(2, 12), st.booleans()
)
def test_an_axis_has_ticks_in_order_that_are_told_apart(
    low: float, times: float, log: bool, most: int, ends: bool
) -> None:
    scale = Scale.of([low, low * times], 0, 100, log=log, most=most, round_ends=ends)
    values, said = zip(*scale.ticks, strict=True)
    assert list(values) == sorted(values)
    assert len(set(said)) == len(said)
    assert 1 <= len(said) <= 3 * most + 1
    for value, text in scale.ticks:
        assert float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)
        assert -0.01 <= scale(value) <= 100.01
    assert scale(low) < scale(low * times)


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    path = pages.save(tmp_path / "p.html", pages.page("Title", "Lead.", []))
    assert path.read_text("utf-8").endswith("</html>\n")


def test_a_small_page_is_small() -> None:
    assert len(pages.page("t", "l", []).encode()) < 40_000
