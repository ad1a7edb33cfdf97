"""How `make docs` turns these pages into a site.

The pages are plain Markdown with relative links, readable where the code is hosted. What only a site
needs is made here, each time: the tables of contents, the glossary, the pages of the API, and copies
of the pages that lie outside this folder.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "made"  # not kept in git
sys.path.insert(0, str(ROOT / "src"))

from privcal.version import __version__  # noqa: E402

project = "privcal"
release = version = __version__
project_copyright = "privcal contributors, Apache-2.0"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:(class|data|exc|meth|attr)", ".*")]  # types in signatures, of anybody
linkcheck_anchors = False
suppress_warnings = ["myst.header"]  # a page may begin with a picture

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
default_role = "code"  # docstrings say `name`
autodoc_typehints = "none"  # the docstrings say what is taken, in words
autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "exclude-members": "set_fit_request,set_score_request",  # scikit-learn makes these
}
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "privcal"
html_static_path = ["_static"]
html_sidebars: dict[str, list[str]] = {"gallery": []}
html_css_files = ["privcal.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "navigation_with_keys": False,
    "show_toc_level": 2,
}

# --- pages that lie elsewhere, and links ------------------------------------------------------

COPIES = {
    ROOT / "CONTRIBUTING.md": MADE / "contributing.md",
    ROOT / "CHANGELOG.md": MADE / "changelog.md",
    ROOT / "SECURITY.md": MADE / "reporting.md",
    ROOT / "RELEASING.md": MADE / "releasing.md",
    ROOT / "deploy" / "README.md": MADE / "deploy.md",
    ROOT / "README.md": DOCS / "index.md",
}


def relinked(text: str, page: Path, place: Path) -> str:
    """The text of `page` with its relative links as they must be in `place`."""

    def link(match: re.Match[str]) -> str:
        file, hash_, anchor = match[1].partition("#")
        target = Path(os.path.normpath(page.parent / file)) if file else page
        where = os.path.relpath(COPIES.get(target, target), place.parent)
        return f"]({where if file else ''}{hash_}{anchor})"

    return re.sub(r"\]\((?!\w+:)([^)\s]+)\)", link, text)


# --- tables of contents and glossary ----------------------------------------------------------

SECTIONS = ("index", "tutorials", "roles", "guides", "background", "reference")
"""Pages whose lists of links are tables of contents as well."""


def contents(text: str, more: list[str]) -> str:
    """A hidden table of contents: the pages to which list items lead first (in bold: only cards)."""
    pages = re.findall(r"^- \[[^*\]]+\]\(([\w/.-]+)\.md\)", text, re.MULTILINE) + more
    return "\n".join(["", "", "```{toctree}", ":hidden:", "", *dict.fromkeys(pages), "```", ""])


def glossary(text: str) -> str:
    """The items `- **word**: meaning` of a list as entries of a glossary."""

    def entries(match: re.Match[str]) -> str:
        items = re.findall(r"^- \*\*(.+?)\*\*(.*(?:\n  .*)*)", match[0], re.MULTILINE)
        lines = (f"{word}\n  {meaning.lstrip(':').strip()}\n" for word, meaning in items)
        return "```{glossary}\n" + "\n".join(lines) + "```\n"

    return re.sub(r"(?:^- \*\*.*\n(?:  .*\n)*)+", entries, text, flags=re.MULTILINE)


def prepare(_: Any, docname: str, source: list[str]) -> None:
    """What happens to each page before it is parsed."""
    page = DOCS / f"{docname}.md"
    if page.is_relative_to(MADE):
        return
    text = re.sub(r"\[`([\w.]+)`\]\((?:\.\./)+src/[^)]*\)", r"{py:obj}`\1 <privcal.\1>`", source[0])
    text = relinked(text, page, page)
    if docname == "words":
        text = glossary(text)
    if docname in SECTIONS:
        text += contents(text, APIS if docname == "reference" else [])
    source[0] = text


# --- the API, as the reference lists it --------------------------------------------------------


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """The headings of the reference, each with the names listed below it."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        if names := re.findall(r"^\| \[`([\w.]+)`\]", part, re.MULTILINE):
            yield part.partition("\n")[0], names


def directive(name: str) -> str:
    """How autodoc is told of one public name."""
    try:
        value: Any = pkgutil.resolve_name(f"privcal.{name}")
    except ImportError:
        return f".. py:class:: privcal.{name}\n\n   It needs an extra that is not installed here.\n"
    if inspect.ismodule(value):
        return f".. automodule:: privcal.{name}\n   :no-members:\n"
    if isinstance(value, type):
        return f".. autoclass:: privcal.{name}\n"
    return f".. auto{'function' if inspect.isroutine(value) else 'data'}:: privcal.{name}\n"


def plain_bars(_: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """In docstrings |x| is an absolute value, not a substitution."""
    lines[:] = [line if ">>>" in line else line.replace("|", "\\|") for line in lines]


APIS: list[str] = []
"""The pages of the API, in the order of the reference."""


def make_pages(_: Any) -> None:
    """Copy what lies outside, and write a page for each section of the reference."""
    MADE.mkdir(exist_ok=True)
    texts = {
        copy: relinked(page.read_text("utf-8"), page, copy)
        for page, copy in COPIES.items()
        if copy.parent == MADE
    }
    for title, names in sections((DOCS / "reference.md").read_text("utf-8")):
        body = "\n".join(map(directive, names))
        name = f"api-{re.sub(r'[^a-z]+', '-', title.lower())}"
        texts[MADE / f"{name}.md"] = f"# {title}\n\n```{{eval-rst}}\n{body}```\n"
        APIS.append(f"made/{name}")
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    for path in set(MADE.iterdir()) - set(texts):  # of a page that is no more
        path.unlink()


def setup(app: Any) -> None:
    """Tell Sphinx of all this."""
    app.connect("builder-inited", make_pages)
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", plain_bars)
