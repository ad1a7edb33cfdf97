"""Pictures as SVG of our own: light, sharp, readable by a screen reader, in the reader's colours.

A `Chart` is plain values. This module draws it for readers without JavaScript and for print; `draw.js`
draws the very same one (a test compares them) wherever it has to change: to the width of a phone, or for
another choice of methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal, TypeGuard

from privcal.data.html import Html, document, tag
from privcal.report.pages.shell import table

Kind = Literal["line", "points", "bars", "level", "guide", "ring"]


@dataclass(frozen=True)
class Axis:
    """What is along an axis."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    """Its ends; by default those of the values. What lies beyond is cut off."""
    digits: int | None = None
    """After the point, where values are said; by default four digits in all."""
    names: tuple[str, ...] | None = None
    """For values that are no numbers: the names of 0, 1, 2, …"""


@dataclass(frozen=True)
class Series:
    """One method, one curve, one row of bars.

    Kinds: `line` with a band from `low` to `high`; `points` with a whisker each; `bars`; `level`,
    one value that holds everywhere; `guide`, a line to compare with, of which no values are said;
    `ring`, around a point to look at.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    kind: Kind = "line"
    look: int = 0
    """Its colour and its mark."""
    dashed: bool = False
    dotted: bool = False
    strong: bool = False
    """Drawn thicker: what the page is about."""
    marked: bool = True
    """With a mark at every value; without for smooth curves of many."""


@dataclass(frozen=True)
class Chart:
    title: str
    about: str
    """What it shows, in a sentence, for those who do not see it and those who do."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    height: int = 320
    legend: bool = True
    values: bool = True
    """Whether all values stand below it as a table."""


_STEPS = (1, 2, 2.5, 5, 10)
_LOG_TICKS = ((1, 2, 5), (1, 3), (1,))
"""Within a power of ten, from many to few."""


@dataclass(frozen=True)
class Scale:
    """A line from `low` at pixel `start` to `high` at pixel `end`, or a logarithmic one."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]
    inset: float = 0.0

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            # What a logarithm cannot show lies below the edge, not nowhere.
            value = math.log10(max(value, low / 10))
            low, high = math.log10(low), math.log10(high)
        inset = math.copysign(self.inset, self.end - self.start)
        start, end = self.start + inset, self.end - inset
        return start + (value - low) / (high - low) * (end - start)

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        low: float | None = None,
        high: float | None = None,
        names: Sequence[str] | None = None,
        most: int = 8,
        round_ends: bool = False,
        inset: float = 0.0,
    ) -> Scale:
        """A scale that holds the values, with at most about `most` ticks.

        With `round_ends` it goes on to the next tick, or a little further.
        """
        if names is not None:
            ticks = tuple((float(i), name) for i, name in enumerate(names))
            return cls(-0.5, max(len(names), 1) - 0.5, start, end, False, ticks, inset)
        held = [v for v in values if v > 0] if log else list(values)
        bottom = low if low is not None else min(held, default=0.1 if log else 0.0)
        top = high if high is not None else max(held, default=1.0)
        if not bottom < top:
            bottom, top = (bottom / 2, bottom * 2) if log else (bottom - 0.5, bottom + 0.5)
        if log:
            room = (top / bottom) ** 0.04 if round_ends else 1.0
            bottom = bottom if low is not None else bottom / room
            top = top if high is not None else top * room
            made = log_ticks(bottom, top, most)
            return cls(bottom, top, start, end, True, made, inset)
        step = step_of(bottom, top, most)
        if round_ends:
            bottom = bottom if low is not None else math.floor(bottom / step + 1e-9) * step
            top = top if high is not None else math.ceil(top / step - 1e-9) * step
        return cls(bottom, top, start, end, False, linear_ticks(bottom, top, step), inset)


def step_of(low: float, high: float, most: int) -> float:
    """The least round step that makes at most `most` ticks."""
    scale = 10.0 ** math.floor(math.log10((high - low) / most))
    return next(s * scale for s in (*_STEPS, 20) if (high - low) / (s * scale) <= most)


def linear_ticks(low: float, high: float, step: float) -> tuple[tuple[float, str], ...]:
    # As many digits as the step has, so that neighbours are told apart and none has more.
    digits = 0
    while (
        digits < 12 and abs(step * 10**digits - round(step * 10**digits)) > 1e-6 * step * 10**digits
    ):
        digits += 1
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple((i * step, f"{i * step:,.{digits}f}") for i in range(first, last + 1))


def log_ticks(low: float, high: float, most: int) -> tuple[tuple[float, str], ...]:
    """1, 2, 5 of each power of ten, or fewer where those are too many."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    found: list[float] = []
    for tens in _LOG_TICKS:
        every = [t * 10.0**power for power in range(first, last + 1) for t in tens]
        fewer = [v for v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        found = fewer if len(fewer) > 1 else found
        if len(found) <= most:
            break
    if not found:  # less than from one of these to the next: as on a line, at least two
        tried = (linear_ticks(low, high, step_of(low, high, most * k)) for k in (1, 2, 3))
        return next((ticks for ticks in tried if len(ticks) > 1), ())
    return tuple((v, shown(v, None)) for v in found)


def shown(value: float | None, digits: int | None) -> str:
    """A figure as people read it: with so many digits after the point, or four in all."""
    if value is None or value != value:
        return ""
    if math.isinf(value):
        return "∞"
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    after = max(0, 3 - math.floor(math.log10(abs(value))))
    said = f"{value:,.{after}f}"
    return said.rstrip("0").rstrip(".") if "." in said else said


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


def lines(chart: Chart) -> Html:
    """A chart with its legend, and its values as a table."""
    return tag(
        "figure",
        tag("h3", chart.title),
        tag("div", picture(chart), class_="picture"),
        legend(chart) if chart.legend else None,
        tag("figcaption", chart.about),
        values(chart) if chart.values else None,
        tag("script", Html(document(asdict(chart))), type="application/json", class_="chart"),
        class_="chart",
    )


def charts(*figures: Html) -> Html:
    """Several of them, side by side where there is room."""
    return tag("div", *figures, class_="charts")


def histogram(
    title: str, about: str, x: Axis, y: Axis, centres: Sequence[float], counts: Sequence[float]
) -> Html:
    """Bars of equal width around `centres`."""
    series = Series(y.label, tuple(centres), tuple(counts), kind="bars", look=1)
    return lines(Chart(title, about, x, y, (series,), legend=False))


def reliability(
    title: str,
    about: str,
    series: Sequence[Series],
    counts: Series | None = None,
    *,
    x: str = "confidence",
    y: str = "share that is correct",
) -> Html:
    """A reliability diagram: right is what lies on the diagonal. With `counts` (bars), how many
    rows there are at each confidence, below it on the same scale."""
    diagonal = Series("right: confidence is what it says", (0.0, 1.0), (0.0, 1.0), kind="guide")
    top = Chart(
        title,
        about,
        Axis(x, low=0.0, high=1.0, digits=3),
        Axis(y, low=0.0, high=1.0, digits=3),
        (diagonal, *series),
        height=380,
    )
    if counts is None:
        return lines(top)
    below = Chart(
        counts.name,
        f"{counts.name}, at each {x}.",
        top.x,
        Axis(counts.name, low=0.0),
        (counts,),
        height=170,
        legend=False,
    )
    return tag("div", lines(top), lines(below), class_="stacked")
