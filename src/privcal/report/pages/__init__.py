"""Pages to look at: one HTML file each, that loads nothing, runs only our own script, and escapes all it is told."""

from privcal.data.html import Html, Node, items, join, paragraphs, tag
from privcal.report.pages.charts import Axis, Chart, Series, charts, histogram, lines, reliability
from privcal.report.pages.shell import Cell, Section, facts, page, save, table

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
