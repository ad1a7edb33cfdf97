"""The whole of a page: head, contents, sections, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from privcal.files import replacing
from privcal.pages.html import Html, Node, document, join, paragraphs, slug, tag
from privcal.version import __version__

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
    return (files("privcal.pages") / name).read_text(encoding="utf-8")


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
