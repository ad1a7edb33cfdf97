"""The whole of a page: head, contents, sections, tables, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from privcal.data.files import replacing
from privcal.data.html import Html, Node, document, join, paragraphs, slug, tag
from privcal.version import __version__

Cell = Node | float | int | None
"""Text, markup, a figure, or nothing to say."""


def table(
    caption: Node,
    header: Sequence[Node],
    rows: Sequence[Sequence[Cell]],
    *,
    strong: Collection[tuple[int, int]] = (),
    noted: Collection[tuple[int, int]] = (),
    soft: Collection[int] = (),
    sortable: bool = True,
    digits: int = 4,
    id: str | None = None,
) -> Html:
    """A table; the first cell of each row is its heading.

    Parameters
    ----------
    strong
        (row, column) of the cells to print in bold.
    noted
        (row, column) of the cells to print with a dagger, which the caption explains.
    soft
        Columns that stand back: what is there to compare with.
    sortable
        Whether a click on a heading sorts the rows.
    digits
        After the point, of every figure that is not a whole number.
    """
    figures = [_is_figures([row[c] for row in rows]) for c in range(len(header))]

    def classes(column: int) -> str | None:
        named = ["figure"] * figures[column] + ["theirs"] * (column in soft)
        return " ".join(named) or None

    head = tag("tr", *(tag("th", h, scope="col", class_=classes(c)) for c, h in enumerate(header)))
    lines = []
    for r, row in enumerate(rows):
        cells = []
        for c, value in enumerate(row):
            shown = said(value, digits)
            content = join(tag("b", shown) if (r, c) in strong else shown, "†" * ((r, c) in noted))
            sort = f"{value:.10g}" if isinstance(value, (int, float)) else None
            if c == 0:
                cells.append(tag("th", content, scope="row", class_=classes(c), data_value=sort))
            else:
                cells.append(tag("td", content, class_=classes(c), data_value=sort))
        lines.append(tag("tr", *cells))
    made = tag(
        "table",
        tag("caption", tag("div", caption)),
        tag("thead", head),
        tag("tbody", *lines),
        class_="sortable" if sortable and len(rows) > 2 else None,
        id=id,
    )
    # A region that scrolls must be reached by keyboard, and so must have a name.
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="table")


def facts(pairs: Mapping[str, Node]) -> Html:
    """What there is to know, each with its name before it."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()),
        class_="facts",
    )


def said(value: Cell, digits: int = 4) -> Node:
    """A cell's value as people read it."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "∞" if value == float("inf") else f"{value:.{digits}f}"


_FIGURE = re.compile(r"[<>≈−+-]?[\d.,]+ ?%?( ?[–/→] ?[\d.,]+ ?%?)?")
"""A number, a range or a pair of them, as text."""


def _is_figures(cells: Sequence[Cell]) -> bool:
    """Whether a column is set to the right and never broken."""
    said = [c for c in cells if c is not None and c != ""]
    return bool(said) and all(_FIGURE.fullmatch(c) if isinstance(c, str) else True for c in said)


SCRIPTS = ("draw.js", "charts.js", "tables.js")
"""What every page may do: draw its pictures to size and say their values, sort its tables."""


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading that the contents lead to."""

    title: str
    content: Html
    id: str = ""
    """By default the title as an id; needed where two titles are alike."""
    heading: bool = True
    """Without: the picture that leads the page, which the title above is heading enough for."""

    @property
    def anchor(self) -> str:
        return self.id or slug(self.title) or "section"


def page(
    title: str,
    lead: Node | Sequence[str],
    sections: Sequence[Section],
    *,
    script: str = "",
    data: Any = None,
    made: str = "",
) -> str:
    """One HTML file that needs nothing else.

    Parameters
    ----------
    title, lead
        What it is about, and what there is to say first: sentences, or markup.
    sections
        The rest, in this order; with more than three of them there is a table of contents.
    script
        The page's own JavaScript (our text, never anybody else's), run after those of every page.
    data
        For that script: plain values, found with `data()`.
    made
        How it was made, for the foot of the page.

    The policy names the digests of our one style sheet and our one script. So a browser runs no
    other, whatever came in with a name, and loads nothing from anywhere. Attributes `style` and
    `on…` are not allowed either, nor made.
    """
    style = resource("page.css")
    code = "\n".join([*map(resource, SCRIPTS), script])
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(code)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=f"privcal {__version__}"),
        tag("title", title),
        tag("style", Html(style)),
    )
    first = (
        lead if isinstance(lead, Html) else paragraphs(*([lead] if isinstance(lead, str) else lead))
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("h1", title), tag("div", first, class_="lead")),
        _contents(sections),
        tag("main", *map(_section, sections), id="content", tabindex="-1"),
        tag(
            "footer",
            tag("p", join(made, " " if made else "", f"Written by privcal {__version__}.")),
        ),
        None if data is None else _data(data),
        tag("script", Html(code)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def save(path: str | Path, text: str) -> Path:
    """Write a page, as a whole or not at all."""
    path = Path(path)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def resource(name: str) -> str:
    """The text of a file of ours. It stands inside an element that only its end tag ends."""
    return (files("privcal.report.pages") / name).read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> Html | None:
    named = [section for section in sections if section.heading]
    if len(named) < 4:
        return None
    links = (tag("li", tag("a", s.title, href=f"#{s.anchor}")) for s in named)
    return tag("nav", tag("ul", *links), aria_label="Contents")


def _section(section: Section) -> Html:
    if not section.heading:
        return tag("section", section.content, id=section.anchor, aria_label=section.title)
    return tag("section", tag("h2", section.title), section.content, id=section.anchor)


def _data(value: Any) -> Html:
    return tag("script", Html(document(value)), type="application/json", id="data")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
