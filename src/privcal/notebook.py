"""Values as a notebook shows them: a few facts, never all of their digits.

A fragment has no colours of its own, so that it follows the notebook's theme, and no scripts. Whatever
came in with a file or a name is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privcal.pages.html import Html, Node, tag, text

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
