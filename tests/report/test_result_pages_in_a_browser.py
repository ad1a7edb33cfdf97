"""The pages of commands, in a real browser: nothing is loaded, every control works, names are text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.report import pages
from privcal.report.description import describe
from privcal.report.owner_pages import description_page, ledger_page
from privcal.report.result_pages import calibration_page, evaluation_page, sketch_page
from tests.support.browser import CONTRAST, Browser, needs_browser
from tests.support.builders import a_source, save
from tests.support.html import read

HOSTILE = "</title></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
ROWS = 391


def scores() -> privcal.Scores:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(ROWS, 2)) * 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return privcal.Scores(logits=logits, labels=labels, model=HOSTILE)


def run(ledger: privcal.Ledger | None = None, **more: Any) -> privcal.Result:
    source = privcal.Source(scores(), ledger=ledger, name=HOSTILE)
    given = {"method": "sketch", "model": HOSTILE, **more}
    return privcal.calibrate([source], epsilon=0.5, **given)


def run_together() -> privcal.Result:
    """A secure sum of sources that share a model's name, of which one has a hostile name."""
    names = [HOSTILE, "b", "c"]
    parts = (scores().take(slice(i, None, 3)) for i in range(3))
    sources = [a_source(p, name=n) for p, n in zip(parts, names, strict=True)]
    return privcal.calibrate(sources, "sketch", 0.5, model=HOSTILE, aggregation="secure")


@cache
def all_pages() -> dict[str, str]:
    """One of each, with a hostile name wherever a name goes."""
    found, risk, summed = run(), run(event=1), run_together()
    assert summed.sketch is not None
    assert found.sketch is not None
    assert risk.sketch is not None
    ledger = privcal.Ledger.in_memory(privcal.Policy(epsilon=2.0), name=HOSTILE)
    searched = run(ledger, method="acc-t")
    searched.dropped[HOSTILE] = HOSTILE
    before, after = privcal.evaluate(scores(), event=1), privcal.evaluate(scores(), risk.map)
    told = dict.fromkeys(("model", "asker", "purpose", "contact"), HOSTILE)
    told["campaign"] = HOSTILE.replace("/", "")  # no campaign can have one
    return {
        "calibrate": calibration_page(found, [HOSTILE], found.sketch.evaluate(), "row"),
        "calibrate a risk": calibration_page(risk, [HOSTILE], risk.sketch.evaluate(), "row"),
        "calibrate by search": calibration_page(searched, [HOSTILE], None, "row"),
        "calibrate together": calibration_page(
            summed, [HOSTILE, "b", "c"], summed.sketch.evaluate(), "row"
        ),
        "sketch of a total": sketch_page(summed.sketch, summed.sketch.evaluate(), HOSTILE),
        "evaluate": evaluation_page(HOSTILE, {"before": privcal.evaluate(scores())}),
        "evaluate a risk": evaluation_page(HOSTILE, {"before": before, "after": after}),
        "sketch": sketch_page(found.sketch, found.sketch.evaluate(), HOSTILE),
        "sketch without public rows": sketch_page(found.sketch, None, HOSTILE),
        "ledger": ledger_page(ledger),
        "describe": description_page(describe(methods.make("nll-t"), 10**9, **told)),
    }


NAMES = (
    "calibrate", "calibrate a risk", "calibrate by search", "calibrate together", "evaluate",
    "evaluate a risk", "sketch", "sketch without public rows", "sketch of a total", "ledger", "describe",
)  # fmt: skip
PRIVATE = [name for name in NAMES if not name.startswith("evaluate")]
TOGETHER = ("calibrate together", "sketch of a total")


# --- without a browser -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_small_whole_file_and_a_hostile_name_is_text(name: str) -> None:
    page = read(all_pages()[name])
    assert page.open == []
    assert "img" not in page.tags
    assert "document.title='taken'" in page.text
    assert not [t for t in page.targets if not t.startswith("#")]
    assert {t[1:] for t in page.targets} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert len(all_pages()[name]) < 150_000


@pytest.mark.parametrize("name", PRIVATE)
def test_no_page_shows_an_exact_figure_of_private_rows(name: str) -> None:
    """Of a hundred noisy figures one may be the exact one by chance, but not in every draw."""
    exact = privcal.evaluate(scores())
    counts = (ROWS, round(exact.accuracy * ROWS))
    figures = (exact.accuracy, exact.mean_confidence, exact.ece, exact.brier)
    tells = [rf"(?<![\d.,]){count}(?![\d.,])" for count in counts]
    tells += [re.escape(f"{figure:.4f}") for figure in figures]  # estimates have three digits
    for draw in (all_pages, *[all_pages.__wrapped__] * 8):
        shown = read(draw()[name]).text
        tells = [tell for tell in tells if re.search(tell, shown)]
        if not tells:
            return
    raise AssertionError(f"every page shows {tells}")


def test_every_page_says_what_epsilon_means_in_odds() -> None:
    for name in ("calibrate", "sketch", "ledger", "describe"):
        assert re.search(r"at most \d\d of 100", read(all_pages()[name]).text), name


@pytest.mark.parametrize("name", TOGETHER)
def test_a_page_of_a_secure_sum_says_what_is_different_in_it(name: str) -> None:
    text = " ".join(read(all_pages()[name]).text.split())
    assert "The sums of one source were opened by nobody." in text
    assert "the seals be broken, it is ε = 5 at most" in text  # ten times 0.5
    assert "shares, of which 2 make the noise of one source" in text
    assert "opened by nobody" not in read(all_pages()["calibrate"]).text


def test_a_sketch_taken_with_public_rows_says_what_is_needed_to_read_it() -> None:
    assert "only with the same rows" in read(all_pages()["sketch without public rows"]).text


def test_a_ledgers_page_tells_who_asked_what_when_and_for_how_much(tmp_path: Path) -> None:
    ledger = privcal.Ledger.create(
        tmp_path / "ward.ledger", privcal.Policy(epsilon=2.0, askers=("ann", "bob")), unit="row"
    )
    ledger.attach({"path": str(tmp_path / "visits.parquet")})
    source = privcal.Source(scores(), ledger=ledger)
    for asker, epsilon in (("ann", 0.3), ("bob", 0.2)):
        privcal.calibrate([source], "sketch", epsilon=epsilon, asker=asker, campaign=f"of-{asker}")
    page = ledger_page(ledger)
    said = read(page).text
    assert '"y":[0.3,0.5]' in page  # what is drawn: charges added up
    for part in ("ann", "bob", "of-ann", "of-bob", "how many were wrong, how many were right"):
        assert part in said
    assert "50 → at most 57 of 100" in said  # ε = 0.3
    assert "50 of 100 to at most 62 of 100" in said  # ε = 0.5 in all
    assert "visits.parquet" in said
    assert str(tmp_path) not in said
    assert "not limited" not in said.partition("who may ask")[2].partition("rows")[0]


# --- in a browser ----------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize("name", NAMES)
def test_a_page_in_a_browser(tab: Browser, tmp_path: Path, name: str) -> None:
    """Nothing loaded, nothing complained of, every control named and used; wide, narrow, dark."""
    file = pages.save(tmp_path / "page.html", all_pages()[name])
    tab.open(file)
    assert tab.requests() == [file.as_uri()]
    assert tab.run("document.title") != "taken"
    used = tab.run(
        "(() => { let used = 0;"
        " for (const d of document.querySelectorAll('details')) { d.querySelector('summary').click(); used += d.open; }"
        " for (const b of document.querySelectorAll('th button')) { b.click();"
        "   used += b.closest('th').getAttribute('aria-sort') !== null; }"
        " for (const a of document.querySelectorAll('nav a')) { a.click(); used += location.hash === a.hash; }"
        " return used === document.querySelectorAll('details, th button, nav a').length; })()"
    )
    assert used
    roles = ("link", "button", "DisclosureTriangle", "region", "image", "slider", "textbox")
    assert all(said for role, said in tab.named() if role in roles)
    assert not tab.complaints()
    for width, dark in ((360, False), (1100, True), (360, True)):
        tab.open(file, width=width, dark=dark)
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        assert tab.run(CONTRAST) == []
    assert not tab.complaints()


# --- from the commands -----------------------------------------------------------------------


def test_commands_write_their_pages(run: Any, tmp_path: Path, clinic: Path) -> None:
    made = tmp_path / "pages"
    made.mkdir()
    commands: list[tuple[Any, ...]] = [
        ("calibrate", clinic, "--new-ledger", "--per-row", "--method", "sketch", "--out",
         tmp_path / "map.json", "--sketch", tmp_path / "s.json", "--html", made / "c.html"),
        ("evaluate", clinic, "--map", tmp_path / "map.json", "--html", made / "e.html"),
        ("evaluate", tmp_path / "s.json", "--private", "--html", made / "p.html"),
        ("sketch", "show", tmp_path / "s.json", "--html", made / "s.html"),
        ("ledger", "show", f"{clinic}.ledger", "--html", made / "l.html"),
    ]  # fmt: skip
    for command in commands:
        stdout, _ = run.ok(*command)
        assert f"page: {command[-1]}" in stdout
        assert command[-1].read_text("utf-8").startswith("<!doctype html>")
        assert "must end in .html" in run.fails(*command[:-1], made / "page.txt")
    assert str(tmp_path) not in "".join(page.read_text("utf-8") for page in made.iterdir())


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    file = tmp_path / "clinic.npz"
    return save(file, scores())
