"""A study's table on a page."""

from __future__ import annotations

from privcal.pages import Html, join, table, tag
from privcal.study.table import Table


def page_table(shown: Table) -> Html:
    """With its title; the paper's columns stand back, and headings sort."""
    theirs = {c for c, heading in enumerate(shown.header) if "(paper)" in heading}
    made = table(
        shown.caption,
        shown.header,
        shown.rows,
        strong=shown.best,
        noted=shown.marked,
        soft=theirs,
        id=f"table-{shown.name}",
    )
    return join(tag("h3", shown.title), made)
