"""A plan as a page (words, pictures, sliders to other settings), and as a picture on any axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from privcal.data.wording import as_odds
from privcal.planning.advise.plan import Expectation, Plan, Repeated, ShiftMean
from privcal.planning.advise.sentences import rounded_down
from privcal.planning.simulate.variants import EACH, UNCALIBRATED, Variant
from privcal.report.diagram import axes_to_draw_on
from privcal.report.pages import (
    Axis,
    Chart,
    Html,
    Section,
    Series,
    charts,
    facts,
    items,
    join,
    lines,
    page,
    paragraphs,
    table,
    tag,
)
from privcal.report.plots import check_picture, save_figure
from privcal.report.study.figures import Style, styles
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Document = Mapping[str, Any]
"""A plan as `Plan.to_dict` has it."""

MEASURES = {"ece": "ECE", "brier": "Brier score"}
TITLES = {measure: f"Expected {name}" for measure, name in MEASURES.items()}
ALONG = {"epsilons": "ε at each source", "sources": "sources", "samples": "rows of each source"}
BANDS = "Band: 10th to 90th percentile over shifts, of the recommended method."


def plan_page(plan: Document, methods: Sequence[Variant]) -> str:
    """`methods`: those of the plan's table, in its order."""
    looks = [
        _series(method, expected)
        for method, expected in zip(methods, plan["point"]["expected"], strict=True)
    ]
    sections = [Section("What to expect", _pictures(plan, looks), heading=False)]
    sections += [
        Section("All methods at this setting", _table(plan)),
        Section("What it costs", _costs(plan)),
        Section("What this rests on", _basis(plan)),
    ]
    around = plan["around"]
    return page(
        f"A plan: {_setting(plan)}",
        join(
            tag(
                "p", tag("strong", plan["recommendation"]), id="recommendation", aria_live="polite"
            ),
            tag("p", plan["enough"]["sentence"], id="enough", class_=plan["enough"]["verdict"]),
        ),
        sections,
        script=(files("privcal.report") / "plan.js").read_text("utf-8") if around else "",
        data=_data(plan, looks) if around else None,
        made=f"Simulated with seed {plan['basis']['seed']}; nobody was asked.",
    )


def _setting(plan: Document) -> str:
    repeated = plan["repeated"]
    sources = f"{plan['sources']:,} sources of {plan['samples']:,} rows{_summed(plan)}"
    if repeated is not None:
        return (
            f"{repeated['campaigns']:,} campaigns at {sources}, ε = {repeated['epsilon']:g} in all"
        )
    return f"{sources}, ε = {plan['epsilon']:g} at each"


def _summed(plan: Document) -> str:
    return "" if plan["aggregation"] == EACH else " in secure sums"


def _series(method: Variant, expected: Document) -> Series:
    """How a method looks in every picture of the page; what asks nobody is dashed."""
    look = styles([method])[method].look
    asks = bool(expected["private"])
    return Series(str(method), (), (), look=look, dashed=not asks, marked=asks)


# --- pictures ----------------------------------------------------------------------------------


def _pictures(plan: Document, looks: Sequence[Series]) -> Html:
    if plan["around"] is not None:
        drawn = charts(*(lines(_around_chart(plan, looks, measure)) for measure in MEASURES))
        return join(_controls(plan["around"], plan), drawn)
    if plan["repeated"] is not None:
        return charts(*(lines(_campaign_chart(plan, measure)) for measure in MEASURES))
    if plan["search"] is not None:
        return charts(*(lines(_search_chart(plan, looks, measure)) for measure in MEASURES))
    return charts(*(lines(_bar_chart(plan, measure)) for measure in MEASURES))


def _around_chart(plan: Document, looks: Sequence[Series], measure: str) -> Chart:
    """Along ε at the recommended setting; plan.js draws the others."""
    around = plan["around"]
    epsilons = around["epsilons"]
    start = _place(plan) - epsilons.index(plan["epsilon"])
    along = [spot[measure] for spot in around["spots"][start : start + len(epsilons)]]
    return _lines(plan, looks, measure, ALONG["epsilons"], epsilons, along, plan["epsilon"])


def _search_chart(plan: Document, looks: Sequence[Series], measure: str) -> Chart:
    search = plan["search"]
    along = [
        [tuple(e[measure][name] for name in ("mean", "low", "high")) for e in point["expected"]]
        for point in search["points"]
    ]
    name = ALONG["epsilons" if search["over"] == "epsilon" else "sources"]
    return _lines(plan, looks, measure, name, search["grid"], along, plan[search["over"]])


def _lines(
    plan: Document,
    looks: Sequence[Series],
    measure: str,
    name: str,
    x: Sequence[float],
    along: Sequence[Sequence[tuple[float, float, float]]],
    at: float,
) -> Chart:
    chosen = _index(plan)
    series = [_line(look, x, [p[i] for p in along], i == chosen) for i, look in enumerate(looks)]
    if plan["target_ece"] is not None and measure == "ece":
        series.append(_target(plan["target_ece"]))
    ring = Series("recommended", (at,), (along[list(x).index(at)][chosen][0],), kind="ring")
    low, high = _limits(plan, measure)
    axis = Axis(MEASURES[measure], low=low, high=high, digits=3)
    return Chart(TITLES[measure], BANDS, Axis(name, log=True), axis, (*series, ring))


def _target(ece: float) -> Series:
    return Series("target", (), (ece,), kind="level", look=5)


def _line(
    look: Series, x: Sequence[float], values: Sequence[tuple[float, float, float]], strong: bool
) -> Series:
    mean, low, high = zip(*values, strict=True)
    return Series(
        look.name, tuple(x), mean, low if strong else None, high if strong else None,
        look=look.look, dashed=look.dashed, marked=look.marked, strong=strong,
    )  # fmt: skip


def _bar_chart(plan: Document, measure: str) -> Chart:
    expected = plan["point"]["expected"]
    series = Series(
        MEASURES[measure],
        tuple(map(float, range(len(expected)))),
        tuple(e[measure]["mean"] for e in expected),
        tuple(e[measure]["low"] for e in expected),
        tuple(e[measure]["high"] for e in expected),
        kind="points",
        look=4,
    )
    names = tuple(e["method"] for e in expected)
    about = "Mean over shifts; the whisker goes from the 10th to the 90th percentile."
    axis = Axis(MEASURES[measure], low=0.0, digits=3)
    return Chart(TITLES[measure], about, Axis("method", names=names), axis, (series,), legend=False)


def _campaign_chart(plan: Document, measure: str) -> Chart:
    repeated = plan["repeated"]
    numbers = tuple(float(i + 1) for i in range(repeated["campaigns"]))
    series = [
        Series(
            f"{course['method']}, budget = \"{course['budget']}\"", numbers, tuple(course[measure]),
            look=look, strong=course["budget"] == repeated["recommended"],
        )
        for course, look in ((repeated["population"], 1), (repeated["person"], 4))
    ]  # fmt: skip
    series += [
        Series(e["method"], (), (e[measure]["mean"],), kind="level", look=look)
        for e, look in zip(plan["point"]["expected"], (0, 5, 7, 9), strict=False)
        if not e["private"]
    ]
    axis = Axis(MEASURES[measure], low=0.0, digits=3)
    return Chart(
        TITLES[measure],
        "The best method of each budget.",
        Axis("campaign", digits=0),
        axis,
        tuple(series),
    )


def _limits(plan: Document, measure: str) -> tuple[float, float]:
    """The same for all settings, so that pictures can be compared. What is worse than doing nothing
    need not be seen in full."""
    spots = plan["around"]["spots"] if plan["around"] else [_as_spot(plan)]
    best = [spot[measure][spot["method"]] for spot in spots]
    nothing = [spot[measure][0][0] for spot in spots]
    low = 0.0 if measure == "ece" else 0.9 * min(p[1] for p in best)
    return low, max(1.15 * max(nothing), 1.05 * max(p[2] for p in best))


# --- sliders -----------------------------------------------------------------------------------


def _controls(around: Document, plan: Document) -> Html:
    now = {"epsilons": plan["epsilon"], "sources": plan["sources"], "samples": plan["samples"]}
    sliders = [_slider(name, around[name], value) for name, value in now.items()]
    options = (tag("option", label, value=name) for name, label in ALONG.items())
    along = tag("label", "pictures along", tag("select", *options, id="along"))
    ranges = tag("label", tag("input", type="checkbox", id="ranges"), "ranges of all methods")
    form = tag("form", *sliders, along, ranges, class_="controls js", aria_label="Another setting")
    off = "The pictures are about the setting above; with JavaScript, sliders lead to others."
    return join(form, tag("p", off, class_="soft no-js"))


def _slider(name: str, values: Sequence[float], value: float) -> Html:
    """Its places are the values of the grid."""
    said = f"{value:,g}"
    last, at = len(values) - 1, list(values).index(value)
    moved = tag("input", type="range", id=name, max=last, value=at, aria_valuetext=said)
    shown = tag("output", said, id=f"{name}-value", for_=name)
    return tag("div", tag("label", ALONG[name], for_=name), shown, moved, class_="slider")


def _data(plan: Document, looks: Sequence[Series]) -> Document:
    """For plan.js."""
    around = plan["around"]
    return {
        **around,
        "at": {"epsilons": plan["epsilon"], "sources": plan["sources"], "samples": plan["samples"]},
        "odds": [_odds(epsilon) for epsilon in around["epsilons"]],
        "looks": [{"name": s.name, "look": s.look, "dashed": s.dashed, "marked": s.marked} for s in looks],
        "labels": ALONG,
        "measures": {
            measure: {"title": TITLES[measure], "label": label, "low": limits[0], "high": limits[1]}
            for measure, label in MEASURES.items()
            if (limits := _limits(plan, measure))
        },
        "bands": BANDS,
        "summed": _summed(plan),
        "target": plan["target_ece"],
    }  # fmt: skip


def _place(plan: Document) -> int:
    """The place of the recommended setting among the spots."""
    around, place = plan["around"], 0
    for name, value in (
        ("samples", plan["samples"]),
        ("sources", plan["sources"]),
        ("epsilons", plan["epsilon"]),
    ):
        place = place * len(around[name]) + around[name].index(value)
    return place


def _index(plan: Document) -> int:
    """The place of what to use among the methods."""
    if plan["around"] is not None:
        return int(plan["around"]["spots"][_place(plan)]["method"])
    names = [e["method"] for e in plan["point"]["expected"]]
    return names.index(UNCALIBRATED if plan["leave_alone"] else plan["method"])


def _as_spot(plan: Document) -> Document:
    expected = plan["chosen"]["expected"]
    return {
        "method": _index(plan),
        **{m: [[e[m][k] for k in ("mean", "low", "high")] for e in expected] for m in MEASURES},
    }


# --- words -------------------------------------------------------------------------------------


def _table(plan: Document) -> Html:
    expected = plan["chosen"]["expected"]
    rows = [
        [
            e["method"], e["ece"]["mean"], _range(e["ece"]), e["ece_if_right"]["mean"],
            e["brier"]["mean"], _range(e["brier"]), e["aurc"]["mean"],
        ]
        for e in expected
    ]  # fmt: skip
    chosen = _index(plan)
    about = (
        "Means over shifts, and the 10th to 90th percentile over shifts. Lower is better; read all. "
        "If right: the ECE of a model that was right already. prior: the sketch's map before any "
        "answer. leave_alone: the sketch, leaving the model alone in doubt. one-source: a source's "
        "own exact fit, which never leaves it."
    )
    header = ["method", "ECE", "range", "if right", "Brier", "range", "AURC"]
    strong = {(chosen, column) for column in range(len(header))}
    return table(about, header, rows, strong=strong, digits=3, id="methods")


def _range(mean: Document) -> str:
    return f"{mean['low']:.3f}–{mean['high']:.3f}"


def _costs(plan: Document) -> Html:
    spent = plan["repeated"]["epsilon"] if plan["repeated"] else plan["epsilon"]
    secure = plan["secure"]
    return join(
        tag("p", _odds(spent), id="odds", aria_live="polite"),
        tag("p", secure["sentence"] if secure else "", id="secure", aria_live="polite"),
        paragraphs(
            "One row is protected, or one person where ids are given. ε is spent at each source by "
            "itself: whoever is in the data of two sources is exposed to both. What is spent is gone "
            "for good; the ledger of each source keeps count."
        ),
    )


def _odds(epsilon: float) -> str:
    return f"At ε = {epsilon:g}, {as_odds(epsilon)}."


def _basis(plan: Document) -> Html:
    basis, public, around = plan["basis"], plan["public"], plan["around"]
    known: dict[str, Html | str] = {
        "archive": basis["dataset"],
        "shifts": ", ".join(name.replace("_", " ") for name in basis["shifts"]),
        "rows of each shift": f"{basis['rows']:,}",
        "trials at each shift": f"{basis['trials']:,}"
        + (f"; {around['trials']:,} for other settings" if around else ""),
    }
    if basis["current_ece"] is not None:
        known["eased to an ECE of"] = f"{basis['current_ece']:g}"
    if public is not None:
        known["public rows"] = (
            f"{public['rows']:,}, accuracy {public['accuracy']:.3f}, ECE {public['ece']:.3f}"
        )
    said = [plan["caveat"]]
    if plan["repeated"] is not None:
        said.append(plan["repeated"]["who"])
    return join(items(said), facts(known))


PANELS = {"ece": "expected ECE", "brier": "expected Brier score"}
AXES = {"epsilon": "ε at each source", "sources": "sources"}
_BUDGETS = {"person": Style("#882255", "o"), "population": Style("#0072B2", "s")}


@dataclass(eq=False, repr=False)
class PlanDisplay:
    """What a plan expects, along ε, the number of sources, or the campaigns.

    Make one with `from_plan`; `plot` draws one measure, `frame` gives the numbers, `save` writes both
    measures side by side. The band is that of the recommended method: the 10th to the 90th percentile
    of shifts.

    Attributes
    ----------
    plan
        The plan. It must have gone through several settings (`sweep=True`, a target, or campaigns).
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> plan = privcal.advise(samples=20, sources=20, shifts=["fog"], trials=2, campaigns=2)
    >>> display = privcal.PlanDisplay.from_plan(plan)
    >>> display.frame().columns
    ['campaign', 'method', 'ece', 'ece_low', 'ece_high', 'brier', 'brier_low', 'brier_high']
    >>> from matplotlib.figure import Figure
    >>> display.plot(Figure().add_subplot(), measure="brier").ax_.get_title()
    'expected Brier score'
    """

    plan: Plan
    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Of a `plan` that `privcal.advise` made."""
        if plan.search is None and plan.repeated is None:
            raise InputError(
                "there is only one point to draw; plan with a target or with sweep=True"
            )
        return cls(plan)

    def frame(self) -> pl.DataFrame:
        """What is expected of every method that is drawn, at every point."""
        import polars as pl

        return pl.DataFrame(
            [
                {over: x, "method": str(expected.method)}
                | {
                    f"{measure}{end}": getattr(_mean(expected, measure), name)
                    for measure in PANELS
                    for end, name in (("", "mean"), ("_low", "low"), ("_high", "high"))
                }
                for over, x, expected in self._points()
            ]
        )

    def _points(self) -> Iterator[tuple[str, float, Expectation]]:
        if (repeated := self.plan.repeated) is not None:
            for course in (repeated.population, repeated.person):
                for number, point in enumerate(course.points, 1):
                    yield "campaign", float(number), point.of(course.method)
            return
        assert self.plan.search is not None
        for x, point in zip(self.plan.search.grid, self.plan.search.points, strict=True):
            for expected in point.expected:
                yield self.plan.search.over, x, expected

    def plot(self, ax: Axes | None = None, *, measure: str = "ece") -> Self:
        """Draw one `measure`, "ece" or "brier", on `ax`, by default on a new figure of pyplot."""
        if measure not in PANELS:
            raise InputError(f"measure must be one of {', '.join(PANELS)}, not {measure!r}")
        self.ax_, self.figure_ = axes_to_draw_on(ax, (6.4, 5.2))
        self._draw(self.ax_, measure)
        self.ax_.legend(fontsize=7.5, framealpha=0.85, edgecolor="none")
        return self

    def save(self, path: str | Path) -> None:
        """Write both measures side by side as PNG, SVG or PDF, by the ending of `path`."""
        from matplotlib.figure import Figure

        check_picture(Path(path))
        plan, basis = self.plan, self.plan.basis
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        title = f"{_headline(plan)}: mean over {len(basis.shifts)} shifts of {basis.dataset}"
        figure.suptitle(title, fontsize=12)
        axes = figure.subplots(1, 2)
        for axis, measure in zip(axes, PANELS, strict=True):
            self._draw(axis, measure)
        handles, labels = axes[0].get_legend_handles_labels()
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": 4}
        figure.legend(handles, labels, **place, fontsize=9, frameon=False)
        save_figure(path, figure)

    def _draw(self, axis: Any, measure: str) -> None:
        if self.plan.repeated is not None:
            _campaigns(axis, self.plan, self.plan.repeated, measure)
        else:
            _panel(axis, self.plan, measure)
        axis.set_title(PANELS[measure], fontsize=11)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
        _axis_limits(axis, self.plan, measure)

    def __repr__(self) -> str:
        return f"PlanDisplay({_headline(self.plan)})"


def _panel(axis: Any, plan: Plan, measure: str) -> None:
    search = plan.search
    assert search is not None
    grid = search.grid
    looks = styles([e.method for e in search.points[0].expected])
    for expected in search.points[0].expected:
        look, chosen = looks[expected.method], expected.method == plan.method
        along = [_mean(point.of(expected.method), measure) for point in search.points]
        means = [mean.mean for mean in along]
        if not expected.private:  # a level, the same everywhere
            axis.plot(
                grid, means, color=look.colour, ls=look.dashes, lw=1.4, label=str(expected.method)
            )
            continue
        axis.plot(
            grid,
            means,
            **look.line,
            ms=4,
            lw=2.4 if chosen else 1.2,
            zorder=4 if chosen else 2,
            label=str(expected.method),
        )
        if chosen:
            low, high = [f.low for f in along], [f.high for f in along]
            label = f"{expected.method}: 10th–90th percentile of shifts"
            axis.fill_between(grid, low, high, color=look.colour, alpha=0.15, lw=0, label=label)
    if measure == "ece":
        right = [point.of(plan.method).ece_if_right.mean for point in search.points]
        style = {"color": looks[plan.method].colour, "ls": ":", "lw": 1.6}
        axis.plot(grid, right, **style, label=f"{plan.method}, if the model was right already")
    axis.plot(
        [getattr(plan.chosen, search.over)],
        [_mean(plan.chosen.nothing_done if plan.leave_alone else plan.expected, measure).mean],
        "o",
        ms=12,
        mfc="none",
        mec="black",
        mew=1.6,
        zorder=5,
        label="recommended" if not plan.leave_alone else "recommended: leave the model alone",
    )
    if measure == "ece" and plan.target_ece is not None:
        axis.axhline(plan.target_ece, color="black", lw=1, ls=":", label="target")
    axis.set_xscale("log")
    axis.set_xlabel(AXES[search.over])


def _campaigns(axis: Any, plan: Plan, repeated: Repeated, measure: str) -> None:
    """The best method of each budget; what needs no answers is the same in all campaigns."""
    numbers = range(1, repeated.campaigns + 1)
    for course in (repeated.population, repeated.person):
        look = _BUDGETS[course.budget]
        along = [_mean(point.of(course.method), measure) for point in course.points]
        label = f'{course.method}, budget = "{course.budget}", ε = {rounded_down(course.epsilon)} in each'
        chosen = course.budget == repeated.recommended
        axis.plot(
            numbers,
            [mean.mean for mean in along],
            **look.line,
            ms=0 if repeated.campaigns > 60 else 5 if chosen else 8,
            mfc=look.colour if chosen else "none",  # seen around the other where both are one
            lw=2.4 if chosen else 1.2,
            zorder=3 if chosen else 4,
            label=label,
        )
        if chosen:
            low, high = [f.low for f in along], [f.high for f in along]
            axis.fill_between(
                numbers,
                low,
                high,
                color=look.colour,
                alpha=0.15,
                lw=0,
                label="recommended: 10th–90th percentile of shifts",
            )
    looks = styles([e.method for e in plan.point.expected if not e.private])
    for method, look in looks.items():
        level = _mean(plan.point.of(method), measure).mean
        axis.axhline(level, color=look.colour, ls=look.dashes, lw=1.4, label=str(method))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlim(0.5, repeated.campaigns + 0.5)
    axis.set_xlabel("campaign")


def _headline(plan: Plan) -> str:
    point, repeated = plan.chosen, plan.repeated
    summed = "" if point.aggregation == EACH else " in secure sums"
    sources = f"{point.sources:,} sources of {plan.samples:,} rows{summed}"
    if repeated is None:
        today = plan.basis.current_ece
        sources += "" if today is None else f", a model of ECE {today:g}"
        return f"{plan.method}, ε = {point.epsilon:g}, {sources}"
    new = f"{100 * repeated.new_people:g}% new people"
    return f"{sources}, {new}, ε = {repeated.epsilon:g} for {repeated.campaigns:,} campaigns"


def _axis_limits(axis: Any, plan: Plan, measure: str) -> None:
    """What is worse than doing nothing need not be seen in full."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    nothing = _mean(plan.point.nothing_done, measure).mean
    worst = _mean(plan.expected, measure).high
    low = 0.0 if measure == "ece" else 0.9 * _mean(plan.expected, measure).low
    axis.set_ylim(low, max(1.15 * nothing, 1.1 * worst))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _mean(expected: Expectation, measure: str) -> ShiftMean:
    mean: ShiftMean = getattr(expected, measure)
    return mean
