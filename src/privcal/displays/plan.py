"""A plan as a picture: what is expected along ε, the number of sources, or the campaigns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from privcal.advise.plan import Expectation, Plan, Repeated, ShiftMean
from privcal.advise.sentences import rounded_down
from privcal.displays.diagram import axes_to_draw_on
from privcal.errors import InputError
from privcal.plots import check_picture, save_figure
from privcal.simulate.aggregation import EACH
from privcal.study.show.styles import Style, styles

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        title = f"{_setting(plan)}: mean over {len(basis.shifts)} shifts of {basis.dataset}"
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
        _limits(axis, self.plan, measure)

    def __repr__(self) -> str:
        return f"PlanDisplay({_setting(self.plan)})"


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


def _setting(plan: Plan) -> str:
    point, repeated = plan.chosen, plan.repeated
    summed = "" if point.aggregation == EACH else " in secure sums"
    sources = f"{point.sources:,} sources of {plan.samples:,} rows{summed}"
    if repeated is None:
        today = plan.basis.current_ece
        sources += "" if today is None else f", a model of ECE {today:g}"
        return f"{plan.method}, ε = {point.epsilon:g}, {sources}"
    new = f"{100 * repeated.new_people:g}% new people"
    return f"{sources}, {new}, ε = {repeated.epsilon:g} for {repeated.campaigns:,} campaigns"


def _limits(axis: Any, plan: Plan, measure: str) -> None:
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
