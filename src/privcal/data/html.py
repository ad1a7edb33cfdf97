"""Markup that cannot be broken by what it says: text is escaped unless it was made here.

The last functions show values in a notebook: a few facts, never all of their digits. Such a fragment has no
colours of its own, so that it follows the notebook's theme, and no scripts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


class Html(str):
    """Markup made by this module. Any other string is text, and is escaped where it is put in."""

    __slots__ = ()


Node = Html | str
"""Markup, or text that is still to be escaped."""

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_VOID = frozenset({"meta", "br", "hr", "input"})
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def text(value: str) -> Html:
    """Text as markup. Characters that no page may hold are shown as a question mark in a box."""
    if isinstance(value, Html):
        return value
    return Html(escape(_CONTROLS.sub("\ufffd", value)))


def join(*nodes: Node | None) -> Html:
    """Several pieces, one after the other; None is nothing."""
    return Html("".join(text(node) for node in nodes if node is not None))


def tag(name: str, /, *content: Node | None, **attributes: Any) -> Html:
    """An element. Attributes: `class_` and `for_` for the words Python keeps, `aria_label` for
    aria-label; True is an attribute without a value, None and False are none.

    Examples
    --------
    >>> tag("p", "a < b", class_="soft")
    '<p class="soft">a &lt; b</p>'
    """
    parts = [_name(name)]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = _name(key.rstrip("_").replace("_", "-"))
        if key == "style" or key.startswith("on"):
            raise ValueError(
                f"{key!r}: the page's policy allows no styles or scripts in attributes"
            )
        parts.append(key if value is True else f'{key}="{text(str(value))}"')
    opened = f"<{' '.join(parts)}>"
    return Html(opened if name in _VOID else f"{opened}{join(*content)}</{name}>")


def _name(name: str) -> str:
    """Names of elements and attributes are ours; what a file says must never become one."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for an element or attribute here")
    return name


def paragraphs(*sentences: str) -> Html:
    return join(*(tag("p", sentence) for sentence in sentences))


def items(notes: Iterable[Node]) -> Html:
    return tag("ul", *(tag("li", note) for note in notes))


def document(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it ends the element or a line.

    What is not finite becomes null, and figures have six digits: no page shows more.
    """
    plain = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    return _CONTROLS.sub("\ufffd", plain)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def slug(name: str) -> str:
    """A name as an id: small letters, digits and hyphens."""
    return "-".join(
        "".join(c if c.isascii() and c.isalnum() else " " for c in name.lower()).split()
    )


# --- in a notebook ---------------------------------------------------------------------------

Fact = Node | float | int | None


def fragment(title: str, facts: Mapping[str, Fact], note: str | None = None) -> str:
    """A heading, facts by name, and a sentence; what is None is left out.

    >>> fragment("Map", {"method": "a<b", "model": None})
    '<div><b>Map</b><table><tbody><tr><th>method</th><td>a&lt;b</td></tr></tbody></table></div>'
    """
    rows = [
        tag("tr", tag("th", name), tag("td", shown(value)))
        for name, value in facts.items()
        if value is not None
    ]
    return str(
        tag(
            "div",
            tag("b", title),
            tag("table", tag("tbody", *rows)),
            tag("p", note) if note else None,
        )
    )


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Fact]], note: str) -> str:
    """A heading, a small table and a sentence."""
    head = tag("tr", *(tag("th", column) for column in columns))
    body = [
        tag("tr", tag("th", shown(first)), *(tag("td", shown(cell)) for cell in rest))
        for first, *rest in rows
    ]
    made = tag("table", tag("thead", head), tag("tbody", *body))
    return str(tag("div", tag("b", title), made, tag("p", note)))


def shown(value: Fact) -> Html:
    """A fact as people read it: figures with at most four decimals, long text cut off."""
    if value is None:
        return Html("")
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        return text(value if len(value) <= 300 else f"{value[:299]}…")
    if isinstance(value, bool):
        return text("yes" if value else "no")
    return text(f"{value:,}" if isinstance(value, int) else f"{round(value, 4):g}")


def some(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
