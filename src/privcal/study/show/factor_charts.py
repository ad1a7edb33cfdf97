"""A study of factors as pictures: what each option does, with noise and without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privcal.pages import Axis, Chart, Html, Series, charts, join, lines, tag
from privcal.simulate.variants import Variant
from privcal.study.results import MEASURES, Curve, Results, defaults, point, setting_text
from privcal.study.show.figures import BAND, SWEEP_NAMES
from privcal.study.show.styles import styles
from privcal.study.show.tables import OPTION_WORDS


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
    return [*made, *(_sweep(results, sweep, usual, measure) for sweep in swept)]


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
    return _series(name, method, x, means, halves, noise)


def _series(
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


def _sweep(results: Results, sweep: str, variants: Sequence[Variant], measure: str) -> Chart:
    """Every method with its usual options; without noise is the last place along ε."""
    curves = {v: results.curve(v, sweep) for v in variants}
    texts = [setting_text(float(x)) for x in next(iter(curves.values())).x]
    series = tuple(
        _series(v.method, v.method, tuple(map(float, range(len(texts)))), curve.of(measure).tolist(), (BAND * curve.se(measure)).tolist())
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
