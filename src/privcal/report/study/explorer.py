"""Pictures of a study's page: any measure of any methods, along any sweep, at any shift; and what each option does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from privcal.lab.study.results import MEASURES, Curve, Results, defaults, point, setting_text
from privcal.planning.simulate.variants import Variant
from privcal.report.pages import Axis, Chart, Html, Series, charts, join, lines, tag
from privcal.report.pages.charts import legend, swatch
from privcal.report.study.figures import BAND, SWEEP_NAMES, shift_title, styles
from privcal.report.study.tables import OPTION_WORDS
from privcal.trusted.scores import FloatArray

WIDE = 20
"""A range of so many times its least value has a logarithmic axis."""

SMALL = 170
"""The height of the picture of one shift among many."""


def explorer(document: Mapping[str, Any]) -> Html:
    """One large picture, with what to choose above it."""
    chart = chart_of(document, *_first(document))
    unchosen = tag("div", legend(chart), class_="no-js printed")
    return join(_controls(document), lines(chart), unchosen)


def each_shift(document: Mapping[str, Any]) -> Html:
    """A small picture for each shift, of what is chosen above."""
    _, sweep, measure = _first(document)
    many = map(lines, small_charts(document, sweep, measure))
    return tag("div", *many, class_="charts many", id="every-shift")


def script() -> str:
    return (files("privcal.report.study") / "study.js").read_text("utf-8")


# --- the values --------------------------------------------------------------------------


def of_study(results: Results) -> dict[str, Any]:
    """Everything that can be chosen, as plain values: for study.js, and for the first picture."""
    shifts = [*([None] if results.perturbations else []), *results.shifts]
    looks = styles(results.variants)
    return {
        "measures": MEASURES,
        "sweeps": {sweep: _sweep(results, sweep) for sweep in results.sweeps},
        "shifts": [
            _mean(results) if shift is None else shift_title(shift)
            for shift in shifts
        ],
        "mean": bool(results.perturbations),
        "methods": [
            {"name": str(v), **style.on_page}
            for v, style in looks.items()
        ],
        "values": {
            sweep: [
                [_values(results.curve(v, sweep, shift)) for v in results.variants]
                for shift in shifts
            ]
            for sweep in results.sweeps
        },
        "about": f"Bands: ±{BAND} standard errors over {results.trials:,} trials.",
    }  # fmt: skip


def _mean(results: Results) -> str:
    many = len(results.perturbations)
    return f"mean of {many} perturbations" if many > 1 else "the one perturbation"


def _sweep(results: Results, sweep: str) -> dict[str, Any]:
    x = results.curve(results.variants[0], sweep, results.shifts[0]).x
    finite = bool(np.isfinite(x).all())
    return {
        "label": SWEEP_NAMES[sweep],
        "constants": results.constants(sweep),
        "x": x.tolist() if finite else list(range(len(x))),
        "names": None if finite else [setting_text(float(value)) for value in x],
        "log": finite and bool(x.min() > 0 and x.max() >= WIDE * x.min()),
    }


def _values(curve: Curve) -> dict[str, Any]:
    """Of each measure the means, and half the width of the band."""
    return {
        measure: [_plain_values(curve.of(measure)), _plain_values(BAND * curve.se(measure))]
        for measure in MEASURES
    }


def _plain_values(values: FloatArray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]


# --- pictures: study.js makes the same ones ----------------------------------------------


def _first(document: Mapping[str, Any]) -> tuple[int, str, str]:
    sweeps = list(document["sweeps"])
    return 0, "epsilon" if "epsilon" in sweeps else sweeps[0], "ece"


def chart_of(document: Mapping[str, Any], shift: int, sweep: str, measure: str) -> Chart:
    name, along = document["measures"][measure], document["sweeps"][sweep]
    return Chart(
        f"{name}, {document['shifts'][shift]}, {along['constants']}",
        document["about"],
        _across(along),
        Axis(name, log=True, digits=4),
        tuple(
            _series(method, along, document["values"][sweep][shift][m][measure])
            for m, method in enumerate(document["methods"])
        ),
        height=420,
        legend=False,
    )


def small_charts(document: Mapping[str, Any], sweep: str, measure: str) -> list[Chart]:
    """Every shift, the ECE on one scale, so that they can be compared."""
    first = int(document["mean"])
    large = [chart_of(document, i, sweep, measure) for i in range(first, len(document["shifts"]))]
    found = [y for chart in large for series in chart.series for y in series.y if y is not None]
    up = Axis(document["measures"][measure], log=True, low=min(found), high=max(found), digits=4)
    return [
        Chart(
            document["shifts"][first + i],
            "",
            chart.x,
            up,
            tuple(_plain(series) for series in chart.series),
            height=SMALL,
            legend=False,
            values=False,
        )
        for i, chart in enumerate(large)
    ]


def _plain(series: Series) -> Series:
    return replace(series, low=None, high=None, marked=False)


def _across(along: Mapping[str, Any]) -> Axis:
    names = along["names"]
    return Axis(along["label"], log=along["log"], names=None if names is None else tuple(names))


def _series(
    method: Mapping[str, Any], along: Mapping[str, Any], values: Sequence[Sequence[float | None]]
) -> Series:
    means, halves = values
    bands = all(half is not None for half in halves)
    around = [(y or 0.0, half or 0.0) for y, half in zip(means, halves, strict=True)]
    return Series(
        method["name"],
        tuple(along["x"]),
        tuple(means),
        tuple(y - half for y, half in around) if bands else None,
        tuple(y + half for y, half in around) if bands else None,
        **_look(method),
    )


def _look(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: method[name] for name in ("look", "dashed", "dotted")}


# --- what to choose ----------------------------------------------------------------------


def _controls(document: Mapping[str, Any]) -> Html:
    shift, sweep, measure = _first(document)
    along = {name: entry["label"] for name, entry in document["sweeps"].items()}
    shifts = {str(i): name for i, name in enumerate(document["shifts"])}
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", checked=True, name="method", value=m),
            swatch(Series(method["name"], (), (), **_look(method))),
            method["name"],
        )
        for m, method in enumerate(document["methods"])
    ]
    every = (tag("button", word, type="button", id=f"methods-{word}") for word in ("all", "none"))
    return tag(
        "form",
        _choice("measure", "measure", document["measures"], measure),
        _choice("shift", "shift", shifts, str(shift)),
        _choice("sweep", "along", along, sweep),
        tag("label", tag("input", type="checkbox", id="log", checked=True), "logarithmic"),
        tag("fieldset", tag("legend", "methods"), *boxes, *every, class_="looks"),
        class_="controls js",
        aria_label="What to show",
    )


def _choice(id: str, label: str, options: Mapping[str, str], chosen: str) -> Html:
    made = (
        tag("option", name, value=value, selected=value == chosen)
        for value, name in options.items()
    )
    return tag("label", label, tag("select", *made, id=id))


def factor_charts(results: Results) -> Html:
    """The ECE in sight, the other measures folded away."""
    first, *others = (charts(*map(lines, charts_of(results, measure))) for measure in MEASURES)
    names = list(MEASURES.values())[1:]
    folded = (tag("details", tag("summary", f"The same for {n}"), made) for n, made in zip(names, others, strict=True))  # fmt: skip
    return join(first, *folded)


def charts_of(results: Results, measure: str) -> list[Chart]:
    variants, usual = results.variants, defaults(results.variants)
    options = dict.fromkeys(name for v in variants for name in v.names)
    made = [
        _option(results, option, [v for v in variants if option in v.names], measure)
        for option in options
    ]
    swept = [s for s in ("sources", "epsilon") if s in results.sweeps]
    return [*made, *(_swept(results, sweep, usual, measure) for sweep in swept)]


def _option(results: Results, option: str, variants: Sequence[Variant], measure: str) -> Chart:
    """An option's values along x, at the middle ε and without noise."""
    sweep = "epsilon" if "epsilon" in results.sweeps else results.sweeps[0]
    texts = list(dict.fromkeys(v.text(option) for v in variants))
    series, shown = [], ""
    for method in dict.fromkeys(v.method for v in variants):
        mine = [v for v in variants if v.method == method]
        curves = [results.curve(v, sweep) for v in mine]
        x = tuple(float(texts.index(v.text(option))) for v in mine)
        first = curves[0].x
        middle = curves[0].middle or 0
        shown = f"{results.constants(sweep)}, {point(sweep, float(first[middle]))}"
        for index in (middle, *np.flatnonzero(np.isinf(first))):
            noise = bool(np.isfinite(first[index]))
            name = method if noise else f"{method}, no noise"
            series.append(_at(name, method, x, curves, int(index), measure, noise))
    title = f"{OPTION_WORDS.get(option, option)} ({shown})"
    axis = Axis(option, names=tuple(texts))
    return Chart(title, _about(results), axis, _up(measure), tuple(series))


def _at(
    name: str, method: str, x: tuple[float, ...], curves: Sequence[Curve], index: int,
    measure: str, noise: bool,
) -> Series:  # fmt: skip
    means = [float(curve.of(measure)[index]) for curve in curves]
    halves = [BAND * float(curve.se(measure)[index]) for curve in curves]
    return _banded(name, method, x, means, halves, noise)


def _banded(
    name: str, method: str, x: tuple[float, ...], means: Sequence[float], halves: Sequence[float],
    noise: bool = True,
) -> Series:  # fmt: skip
    """With noise a line, without a dashed one; the band where there is an error to tell."""
    look = styles([Variant(method)])[Variant(method)].look
    around = list(zip(means, halves, strict=True))
    banded = bool(np.isfinite(halves).all())
    low = tuple(mean - half for mean, half in around) if banded else None
    high = tuple(mean + half for mean, half in around) if banded else None
    return Series(name, x, tuple(means), low, high, look=look, dashed=not noise)


def _swept(results: Results, sweep: str, variants: Sequence[Variant], measure: str) -> Chart:
    """Every method with its usual options; without noise is the last place along ε."""
    curves = {v: results.curve(v, sweep) for v in variants}
    texts = [setting_text(float(x)) for x in next(iter(curves.values())).x]
    series = tuple(
        _banded(v.method, v.method, tuple(map(float, range(len(texts)))), curve.of(measure).tolist(), (BAND * curve.se(measure)).tolist())
        for v, curve in curves.items()
    )  # fmt: skip
    words = "more data" if sweep == "sources" else "higher ε"
    names = tuple("no noise" if text == "∞" else text for text in texts)
    title = f"{words} ({results.constants(sweep)})"
    axis = Axis(SWEEP_NAMES[sweep], names=names)
    return Chart(title, _about(results), axis, _up(measure), series)


def _up(measure: str) -> Axis:
    return Axis(MEASURES[measure], log=measure == "ece", digits=4)


def _about(results: Results) -> str:
    return (
        f"Mean of {len(results.perturbations)} perturbations. Bands: ±{BAND} standard errors over "
        f"{results.trials:,} trials."
    )
