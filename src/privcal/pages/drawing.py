"""Pictures as SVG of our own: light, sharp, readable by a screen reader, in the reader's colours.

This module draws a `Chart` for readers without JavaScript and for print; `draw.js` draws the very
same one (a test compares them) wherever it has to change: to the width of a phone, or for another
choice of methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeGuard

from privcal.pages.charts import Chart, Series
from privcal.pages.html import Html, tag
from privcal.pages.scales import Scale, shown
from privcal.pages.tables import table

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 24, 42
"""Room around the panel for figures and the names of the axes, in pixels."""

MARKS = (
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z",
    "M-2.7,-2.7h5.4v5.4h-5.4z",
    "M0,-3.6L3.4,2.5H-3.4z",
    "M0,-3.9L3.9,0L0,3.9L-3.9,0z",
    "M0,3.6L3.4,-2.5H-3.4z",
    "M-3,-3L3,3M-3,3L3,-3",
    "M-3.8,0H3.8M0,-3.8V3.8",
)
"""Shapes, so that lines are told apart without colours too."""

LETTER, LONGEST = 6.3, 16
"""About the width of a letter, and the letters of a name that are shown where it must be turned."""

LOOKS = 16
"""Colours that the style sheet has: a look is one of them."""

Bound = tuple[float | None, ...]


def picture(chart: Chart, width: float = WIDTH) -> Html:
    across, up = scales(chart, width)
    right, bottom = width - RIGHT, _n(_bottom(chart, width))
    inner_width, inner_height = width - LEFT - RIGHT, _bottom(chart, width) - TOP
    grid = []
    for value, label in up.ticks:
        y = up(value)
        grid.append(tag("path", d=f"M{LEFT},{_n(y)}H{right}", class_="grid"))
        grid.append(_text(LEFT - 6, y + 3.5, label, "end"))
    for value, label in across.ticks:
        x = across(value)
        grid.append(tag("path", d=f"M{_n(x)},{bottom}v4", class_="tick"))
        grid.append(_below(x, _bottom(chart, width), label, _is_turned(chart, width)))
    drawn = (_drawn(s, across, up) for s in chart.series)
    # An svg in an svg cuts off what is beyond its edges; marks on them stay whole.
    left, top, wide, high = LEFT - 5, TOP - 5, _n(inner_width + 10), _n(inner_height + 5)
    panel = tag(
        "svg",
        *drawn,
        x=left,
        y=top,
        width=wide,
        height=high,
        viewBox=f"{left} {top} {wide} {high}",
    )
    return tag(
        "svg",
        tag("title", chart.title),
        tag("desc", chart.about),
        tag("g", *grid, aria_hidden="true"),
        tag("path", d=f"M{LEFT},{bottom}H{right}", class_="axis"),
        panel,
        _text(0, 11, chart.y.label, "start", "name"),
        _text(right, chart.height - 6, chart.x.label, "end", "name"),
        viewBox=f"0 0 {_n(width)} {chart.height}",
        width=_n(width),
        height=chart.height,
        role="img",
        aria_label=chart.title,
    )


def scales(chart: Chart, width: float = WIDTH) -> tuple[Scale, Scale]:
    """From values to pixels, along and up."""
    shown_series = [s for s in chart.series if s.kind not in ("level", "guide")]
    xs = [v for s in shown_series for v in s.x]
    bands = [v for s in chart.series if s.kind != "guide" for v in (s.y, s.low, s.high)]
    ys = [v for each in bands if each is not None for v in each if _is_finite(v)]
    bars = any(s.kind == "bars" for s in chart.series)
    panel = width - LEFT - RIGHT
    across = Scale.of(
        [v for v in xs if math.isfinite(v)],
        LEFT,
        width - RIGHT,
        log=chart.x.log,
        low=chart.x.low,
        high=chart.x.high,
        names=chart.x.names,
        most=max(2, int(panel // 64)),
        inset=0 if bars or chart.x.high is not None else 10,
    )
    up = Scale.of(
        ys,
        _bottom(chart, width),
        TOP,
        log=chart.y.log,
        low=0.0 if bars and chart.y.low is None else chart.y.low,
        high=chart.y.high,
        names=chart.y.names,
        most=max(2, int((_bottom(chart, width) - TOP) // 44)),
        round_ends=True,
    )
    return across, up


def _is_turned(chart: Chart, width: float) -> bool:
    """Whether names along x are too long to stand side by side."""
    names = chart.x.names or ()
    longest = max(map(len, names), default=0)
    return longest * LETTER > (width - LEFT - RIGHT) / max(len(names), 1)


def _bottom(chart: Chart, width: float) -> float:
    """Where the panel ends: turned names need more room."""
    longest = min(max(map(len, chart.x.names or ()), default=0), LONGEST)
    return chart.height - BOTTOM - (longest * LETTER * 0.6 if _is_turned(chart, width) else 0)


def _below(x: float, bottom: float, label: str, turned: bool) -> Html:
    """A figure or a name below its tick."""
    if not turned:
        return _text(x, bottom + 16, label, "middle")
    short = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
    place = f"translate({_n(x + 4)},{_n(bottom + 12)}) rotate(-35)"
    return tag("text", short, transform=place, text_anchor="end")


def _drawn(series: Series, across: Scale, up: Scale) -> Html:
    match series.kind:
        case "level":
            y = _n(up(series.y[0] or 0.0))
            d = f"M{_n(across.start)},{y}H{_n(across.end)}"
            parts = [tag("path", d=d, class_="line")]
        case "bars":
            parts = _bars(series, across, up)
        case "ring":
            parts = [
                tag("circle", cx=_n(x), cy=_n(y), r="8", class_="ring")
                for x, y in _points(series, across, up)
            ]
        case _:
            parts = _line(series, across, up)
    return tag("g", *parts, class_=look(series))


def _points(series: Series, across: Scale, up: Scale) -> list[tuple[float, float]]:
    return [(across(x), up(y)) for x, y in zip(series.x, series.y, strict=True) if _is_finite(y)]


def _bars(series: Series, across: Scale, up: Scale) -> list[Html]:
    half, floor = _bar(series.x, across) / 2, _n(up(up.low))
    return [
        tag("path", d=f"M{_n(x - half)},{floor}V{_n(y)}h{_n(2 * half)}V{floor}z", class_="bar")
        for x, y in _points(series, across, up)
    ]


def _line(series: Series, across: Scale, up: Scale) -> list[Html]:
    """A line or points, with what is around them and the marks on them."""
    points, parts = _points(series, across, up), []
    if series.low is not None and series.high is not None:
        parts.append(_spread(series, series.low, series.high, across, up))
    if series.kind != "points":
        parts.append(tag("path", d=_path(points), class_="line"))
    if series.marked and series.kind != "guide":
        every, shape = max(1, math.ceil(len(points) / 12)), MARKS[series.look % len(MARKS)]
        parts += [
            tag("path", d=shape, transform=f"translate({_n(x)},{_n(y)})", class_="mark")
            for x, y in points[::every]
        ]
    return parts


def _spread(series: Series, lows: Bound, highs: Bound, across: Scale, up: Scale) -> Html:
    """The band around a line, or a whisker through each point."""
    around = [
        (across(x), up(low), up(high))
        for x, low, high in zip(series.x, lows, highs, strict=True)
        if _is_finite(low) and _is_finite(high)
    ]
    if series.kind == "points":
        d = "".join(f"M{_n(x)},{_n(low)}V{_n(high)}" for x, low, high in around)
        return tag("path", d=d, class_="whisker")
    edge = [(x, high) for x, _, high in around] + [(x, low) for x, low, _ in reversed(around)]
    return tag("path", d=_path(edge) + ("z" if edge else ""), class_="band")


def look(series: Series) -> str:
    """The classes that the style sheet knows."""
    named = ["series", series.kind, f"look{series.look % LOOKS}"]
    named += [kind for kind in ("dashed", "dotted", "strong") if getattr(series, kind)]
    return " ".join(named)


def _bar(xs: Sequence[float], across: Scale) -> float:
    """How wide a bar is: nine tenths of the least distance."""
    if len(xs) < 2:
        return 0.5 * abs(across.end - across.start)
    places = sorted(across(x) for x in xs)
    return 0.9 * min(b - a for a, b in pairwise(places))


def legend(chart: Chart) -> Html:
    return tag("ul", *(tag("li", swatch(s), s.name) for s in chart.series), class_="legend")


def swatch(series: Series) -> Html:
    """A small sample of how a series looks."""
    if series.kind == "bars":
        parts = [tag("path", d="M4,1H24V13H4z", class_="bar")]
    elif series.kind == "ring":
        parts = [tag("circle", cx="14", cy="7", r="6", class_="ring")]
    else:
        parts = [] if series.kind == "points" else [tag("path", d="M0,7H28", class_="line")]
        if series.marked and series.kind not in ("level", "guide"):
            shape = MARKS[series.look % len(MARKS)]
            parts.append(tag("path", d=shape, transform="translate(14,7)", class_="mark"))
    group = tag("g", *parts, class_=look(series))
    return tag("svg", group, viewBox="0 0 28 14", width="28", height="14", aria_hidden="true")


def values(chart: Chart) -> Html:
    """Every value, folded away below the picture."""
    told = [s for s in chart.series if s.kind not in ("guide", "ring")]
    xs = sorted({x for s in told if s.kind != "level" for x in s.x})
    rows = [[place(chart, x), *(said_at(chart, s, x) for s in told)] for x in xs]
    made = table(chart.title, [chart.x.label, *(s.name for s in told)], rows, sortable=False)
    return tag("details", tag("summary", "The values as a table"), made, class_="values")


def place(chart: Chart, x: float) -> str:
    """A place along x, as people say it."""
    if chart.x.names is not None:
        return chart.x.names[int(x)]
    return shown(x, chart.x.digits)


def said_at(chart: Chart, series: Series, x: float) -> str:
    """The value there, with its range; nothing where there is none."""
    if series.kind == "level":
        return shown(series.y[0], chart.y.digits)
    if x not in series.x:
        return ""
    i = series.x.index(x)
    value = shown(series.y[i], chart.y.digits)
    if series.low is None or series.high is None or not _is_finite(series.low[i]):
        return value
    return (
        f"{value} ({shown(series.low[i], chart.y.digits)}–{shown(series.high[i], chart.y.digits)})"
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{_n(x)},{_n(y)}" for i, (x, y) in enumerate(points))


def _text(x: float, y: float, said: str, anchor: str, class_: str | None = None) -> Html:
    return tag("text", said, x=_n(x), y=_n(y), text_anchor=anchor, class_=class_)


def _n(value: float) -> str:
    """A pixel's place to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def _is_finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
