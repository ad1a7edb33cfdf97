"""Tables: a caption, headings that say what they head, a first column that stays in sight."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from privcal.pages.html import Html, Node, join, tag

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
