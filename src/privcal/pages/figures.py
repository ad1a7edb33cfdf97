"""Pictures with their legend, their words and their values: what a page's section is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from privcal.pages.charts import Axis, Chart, Series
from privcal.pages.drawing import legend, picture, values
from privcal.pages.html import Html, document, tag


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
