"""`make docs` builds without a warning, loads nothing from elsewhere, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.pages import ROOT

pytest.importorskip("sphinx", reason="sphinx is not installed: make docs installs it")
pytest.importorskip("pydata_sphinx_theme", reason="the theme is not installed: make docs does it")
# One build at a time: its copies of other pages lie in a folder of the sources.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("documentation")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `make docs` builds them: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = ["-W", "--keep-going", "-q", "-E", "-b", "html", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *command], capture_output=True, text=True, check=False
    )
    assert not done.stderr
    assert done.returncode == 0
    return folder


class Page(HTMLParser):
    """What a page loads, what it leads to, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        address = given.get("src") or given.get("href") or ""
        if tag == "a":
            self.links.add(address)
        elif address:
            self.loads.add(address)


def test_the_command_is_that_of_the_makefile() -> None:
    assert "sphinx-build -W --keep-going -q -b html docs " in (ROOT / "Makefile").read_text("utf-8")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [a for a in Page(path).loads if urlsplit(a).netloc], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:\w+:)?//", path.read_text("utf-8")), (
            path
        )
    for path in site.rglob("*.js"):
        loads = r"""(?:import|fetch|importScripts|src\s*=|href\s*=)\s*\(?\s*["'`](?:\w+:)?//"""
        assert not re.findall(loads, path.read_text("utf-8")), path


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 30
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in ("", "#"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if "_modules" in path.parts:  # viewcode guesses the way back from the source
                continue
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"


def test_every_public_name_has_its_place_in_the_api(site: Path) -> None:
    """With its parameters and its example, not only in the list of the reference."""
    places = {name for path in (site / "made").glob("api-*.html") for name in Page(path).ids}
    listed = re.findall(
        r"^\| \[`([\w.]+)`\]", (ROOT / "docs/reference.md").read_text("utf-8"), re.M
    )
    assert len(listed) > 60
    assert not {f"privcal.{name}" for name in listed} - {p.removeprefix("module-") for p in places}
