"""Pages to look at: one HTML file each, that loads nothing, runs only our own script, and escapes all it is told."""

from privcal.pages.charts import Axis, Chart, Series
from privcal.pages.figures import charts, histogram, lines, reliability
from privcal.pages.html import Html, Node, items, join, paragraphs, tag
from privcal.pages.shell import Section, page, save
from privcal.pages.tables import Cell, facts, table

__all__ = [
    "Axis",
    "Cell",
    "Chart",
    "Html",
    "Node",
    "Section",
    "Series",
    "charts",
    "facts",
    "histogram",
    "items",
    "join",
    "lines",
    "page",
    "paragraphs",
    "reliability",
    "save",
    "table",
    "tag",
]
