"""Reliability diagrams, calibration curves of a risk, and what a sketch estimates, in words.

Measured rows are points with an interval each; an estimate from a sketch is a line with a band, and
no points, which would look as if something had been counted. The strip below says where the rows
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from privcal.calibration.binomial import interval
from privcal.calibration.evaluation import Evaluation, RiskMeasures, evaluate
from privcal.calibration.maps import CurveMap, Map, unchanged_in_words
from privcal.calibration.metrics import Reliability
from privcal.calibration.sketch.evaluation import Estimates, PrivateEvaluation, RiskEvaluation
from privcal.calibration.sketch.sketch import Sketch
from privcal.calibration.target import Target
from privcal.data.scores import Scores
from privcal.report.plots import BLUE, GREY, ORANGE, save_figure
from privcal.trusted.checks import number
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import bin_index
from privcal.trusted.scores import BoolArray, FloatArray

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_RARE = 0.02
"""The share of rows at an end for which no curve is drawn: it would show only the prior."""

_TICKS = (0, 0.25, 0.5, 0.75, 1)
_BOX = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}


@dataclass(eq=False, repr=False)
class Diagram:
    """The numbers of a diagram, rising in what was foretold."""

    foretold: FloatArray
    """The mean confidence or risk of the rows at a point."""
    observed: FloatArray
    """How often it came so."""
    low: FloatArray
    """The lower limit of `observed`."""
    high: FloatArray
    """The upper limit of `observed`."""
    share: FloatArray
    """The share of all rows at the point."""
    rows: FloatArray | None
    """The number of rows at the point; None of an estimate."""
    after: FloatArray | None
    """What is foretold after the map, beside an estimate."""
    level: float
    """Of the limits at each point, by itself."""
    epsilon: float | None
    """Of an estimate: the most that a source was charged. None where rows were measured."""
    summary: tuple[str, ...]
    """The figures in numbers, a line each."""
    informative: bool = True
    """False where noise drowned the data, and an estimate is what was believed beforehand."""

    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)

    _measured_in_words: ClassVar[tuple[str, ...]]
    """The measures of rows, a line each, and …"""
    _estimated_in_words: ClassVar[str]
    """… those of an estimate, in one."""

    @classmethod
    def _measured(cls, found: Evaluation | RiskMeasures, bins: Reliability, level: float) -> Self:
        """The points of measured rows, those without rows left out, with an interval for each."""
        if not 0 < number("level", level) < 1:
            raise InputError(f"level must be between 0 and 1, not {level}")
        full = bins.count > 0
        rows, came = bins.count[full], bins.correct[full]
        limits = [interval(int(n), int(k), level) for n, k in zip(rows, came, strict=True)]
        low, high = np.array(limits).T
        return cls(
            bins.confidence[full] / rows,
            came / rows,
            low,
            high,
            share=rows / rows.sum(),
            rows=rows,
            after=None,
            level=level,
            epsilon=None,
            **cls._named(found.about),
            summary=tuple(line.format(found) for line in cls._measured_in_words),
        )

    @classmethod
    def _estimated(cls, found: Estimates, epsilon: float | None) -> Self:
        """The curve that a sketch estimates, and the ε that it rests on."""
        if not issubclass(cls, right := kind_of(found.about)):
            raise InputError(f"this sketch is about {found.about}; use {right.__name__}")
        if epsilon is None:
            raise InputError("an estimate needs the epsilon that it rests on")
        band = found.band
        return cls(
            band.own,
            band.observed,
            band.low,
            band.high,
            share=band.share / band.share.sum(),
            rows=None,
            after=band.after,
            level=0.95,
            epsilon=epsilon,
            **cls._named(found.about),
            summary=tuple(cls._line(found, when) for when in ("before", "after")),
            informative=found.informative,
        )

    @staticmethod
    def _named(about: Target) -> dict[str, Any]:
        """What the fields of a display of its own say of the class."""
        return {}

    @classmethod
    def _line(cls, found: Estimates, when: str) -> str:
        known = found.estimates().items()
        values = {name.removesuffix(f"_{when}"): e.value for name, e in known}
        return f"{when}: {cls._estimated_in_words.format_map(values)}"

    @property
    def about(self) -> Target:
        """What was foretold: that the predicted class is right, or one class."""
        return Target()

    @property
    def foretold_name(self) -> str:
        """What was foretold, in a word."""
        return self.about.claim

    @property
    def observed_name(self) -> str:
        """The same of what was observed."""
        return "observed" if self.about.event is not None else self.about.observed

    @property
    def what(self) -> str:
        """What was observed, in words."""
        return self.about.observed

    @property
    def drawn(self) -> BoolArray:
        """The points that are drawn: of an estimate, not the rarest rows at an open end."""
        if self.epsilon is None:
            return np.ones(len(self.share), np.bool_)
        below = np.cumsum(self.share) / self.share.sum()
        certain = self.about.event is None  # a confidence ends at certainty, where rows are
        return np.asarray((below > _RARE) & ((below <= 1 - _RARE) | certain))

    def frame(self) -> pl.DataFrame:
        """The numbers behind the picture, a row for each point."""
        import polars as pl

        columns = {
            self.foretold_name: self.foretold,
            "after": self.after,
            self.observed_name: self.observed,
            "low": self.low,
            "high": self.high,
            "rows": None if self.rows is None else self.rows.astype(np.int64),
            "share": self.share,
        }
        return pl.DataFrame(
            {name: values for name, values in columns.items() if values is not None}
        )

    def plot(self, ax: Axes | None = None, *, name: str | None = None) -> Self:
        """Draw on `ax`, by default on a new figure of pyplot; `name` is the title.

        Afterwards `ax_` and `figure_` are what was drawn on.
        """
        self.ax_, self.figure_ = axes_to_draw_on(ax, (5.2, 6.2))
        self._draw(self.ax_)
        titles = [name] if name else []
        if self.epsilon is not None:
            titles.append(f"estimated under ε = {self.epsilon:g}, nothing here was measured")
        self.ax_.set_title("\n".join(titles), fontsize=9)
        return self

    def save(self, path: str | Path, title: str = "") -> None:
        """Write a figure of this alone as PNG, SVG or PDF, by the ending of `path`."""
        save_figure(path, together([(title, self)], "", columns=1))

    def __repr__(self) -> str:
        how = "measured" if self.epsilon is None else f"estimated under ε = {self.epsilon:g}"
        return f"{type(self).__name__}({', '.join((*self.summary, how))})"

    # --- the drawing ---------------------------------------------------------------------

    def _draw(self, ax: Axes) -> None:
        ax.plot(
            [0, 1], [0, 1], color=GREY, lw=1, ls=":", label=f"{self.foretold_name} = {self.what}"
        )
        if self.epsilon is None:
            self._draw_points(ax)
        else:
            self._draw_band(ax)
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", ylabel=self.what)
        ax.grid(color=GREY, alpha=0.15, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        _ticks(ax.yaxis, ("bottom", "top"))
        ax.legend(fontsize=8, loc="upper left", framealpha=0.8, edgecolor="none")
        self._sum_up(ax)
        self._draw_strip(ax)

    def _draw_points(self, ax: Axes) -> None:
        limits = np.abs(np.stack([self.low, self.high]) - self.observed)
        ax.vlines(
            self.foretold, self.observed, self.foretold, color=ORANGE, lw=3, alpha=0.5, label="gap"
        )
        ax.errorbar(
            self.foretold,
            self.observed,
            yerr=limits,
            fmt="o",
            ms=4,
            color=BLUE,
            lw=1.2,
            capsize=2,
            label=f"{self.what}, {100 * self.level:g} % interval of each bin",
        )

    def _draw_band(self, ax: Axes) -> None:
        assert self.after is not None
        drawn = self.drawn
        x, low, high = self.foretold[drawn], self.low[drawn], self.high[drawn]
        label = f"{100 * self.level:g} % interval at each point"
        ax.fill_between(x, low, high, color=BLUE, alpha=0.2, lw=0, label=label)
        ax.plot(x, self.observed[drawn], color=BLUE, lw=2, label=f"estimate of {self.what}")
        label = f"{self.foretold_name} after the map"
        ax.plot(x, self.after[drawn], color=ORANGE, lw=1.6, ls="--", label=label)

    def _sum_up(self, ax: Axes) -> None:
        """The figures in numbers, where the curve is not."""
        text = "\n".join((*self.summary, *(["(estimates)"] if self.epsilon is not None else [])))
        if not self.informative:
            text = "THE NOISE DROWNED THE DATA:\nonly what was believed beforehand"
        ax.text(
            0.98,
            0.03,
            text,
            ha="right",
            va="bottom",
            fontsize=8,
            transform=ax.transAxes,
            color="black" if self.informative else ORANGE,
            bbox=_BOX,
        )

    def _draw_strip(self, ax: Axes) -> None:
        """Where the rows are; part of the axes, so that a diagram fits wherever axes do."""
        strip = ax.inset_axes((0, -0.2, 1, 0.13), sharex=ax)
        if self.rows is not None:
            strip.vlines(self.foretold, 0, self.rows, color=BLUE, lw=5, alpha=0.5)
            most = f"up to {self.rows.max():,.0f}"
        else:
            shares = np.bincount(bin_index(self.foretold, 40), self.share, minlength=40)
            strip.bar(np.arange(40) / 40, shares, 1 / 40, align="edge", color=BLUE, alpha=0.5, lw=0)
            most = "estimated"
        strip.set_ylim(bottom=0)
        left = bool(self.share @ self.foretold > 0.5)
        x, side = (0.01, "left") if left else (0.99, "right")
        style: dict[str, Any] = {"fontsize": 7, "color": GREY, "transform": strip.transAxes}
        strip.text(x, 0.95, most, ha=side, va="top", **style)
        strip.set_ylabel("rows", fontsize=8)
        strip.set_yticks([])
        strip.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(labelbottom=False)
        _ticks(strip.xaxis, ("left", "right"))
        own = "" if self.epsilon is None else "the model's own "
        # A label of the axes themselves: those of a strip are not counted when a figure is laid out.
        ax.set_xlabel(f"{own}{self.foretold_name}")
        ax.xaxis.set_label_coords(0.5, -0.27)


def axes_to_draw_on(ax: Axes | None, size: tuple[float, float]) -> tuple[Axes, Figure]:
    """These axes, or new ones of pyplot in a figure of that size, with their figure."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=size, layout="compressed")
    figure: Any = ax.get_figure(root=True)
    return ax, figure


def _ticks(axis: Any, inward: tuple[str, str]) -> None:
    """Quarters, the outer labels within the axis: neighbours' labels never meet."""
    axis.set_ticks(_TICKS, ["0", "", "0.5", "", "1"])
    labels = axis.get_ticklabels()
    for label, side in ((labels[0], inward[0]), (labels[-1], inward[1])):
        if axis.axis_name == "x":
            label.set_horizontalalignment(side)
        else:
            label.set_verticalalignment(side)


def together(panels: Sequence[tuple[str, Diagram]], title: str = "", columns: int = 4) -> Figure:
    """One figure of several diagrams, each under its name, in a grid."""
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 5.4 * lines + 0.4), layout="compressed")
    if title:
        figure.suptitle(title, fontsize=12)
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, display) in zip(axes.flat, panels, strict=False):
        display.plot(axis, name=name)
    if len(panels) > 1:  # one legend, below all of them
        for axis in axes.flat[: len(panels)]:
            axis.get_legend().remove()
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False
        )
    return figure


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(Diagram):
    """A reliability diagram: how often a model is right, by how sure it is.

    Make one with `from_scores` for rows one may look at, or with `from_sketch` for rows nobody may;
    `plot` draws it, `frame` gives its numbers.

    Of measured rows, the interval of each bin is Clopper and Pearson's: it covers the bin's true
    accuracy in at least `level` of all cases where rows are independent. It is *pointwise*: of 15
    bins at 0.95, one in 20 may miss. Of a sketch, the band is the 95 % credible interval at each
    confidence, of the model's accuracy on the hidden rows.

    Attributes
    ----------
    foretold, observed, low, high, share
        Arrays, one entry for each point: mean confidence, accuracy, its limits, and the share of all
        rows there.
    rows
        The number of rows at each point; None of an estimate.
    after
        Of an estimate: what is foretold at each point after the map.
    level, epsilon
        Of the limits; and of an estimate, the most ε that a source was charged.
    summary, informative
        The measures in words; False where noise drowned the data.
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.2, 0.7, 0.8, 0.9], labels=[0, 1, 0, 1])
    >>> display = privcal.ReliabilityDisplay.from_scores(scores, bins=4)
    >>> display.frame()["rows"].to_list(), display.observed.round(2).tolist()
    ([1, 3], [1.0, 0.67])
    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> display.plot(figure.add_subplot()).figure_ is figure
    True
    """

    _measured_in_words = "ECE {.ece:.3f}", "Brier {.brier:.3f}", "AURC {.aurc:.3f}"
    _estimated_in_words = "ECE {ece:.3f}, Brier {brier:.3f}"

    @classmethod
    def from_scores(
        cls, scores: Scores, map: Map | None = None, bins: int = 15, level: float = 0.95
    ) -> Self:
        """Of rows one may look at, after `map` where one is given; exact, so nothing is private.

        `bins` of equal width, `level` of the interval of each.
        """
        return cls.from_evaluation(evaluate(scores, map, bins), level=level)

    @classmethod
    def from_sketch(
        cls,
        sketch: Sketch,
        public: Scores | None = None,
        map: CurveMap | None = None,
        bins: int = 15,
    ) -> Self:
        """Of hidden rows, as a sketch estimates them: no further cost in privacy.

        `public`, `map` and `bins` are those of `Sketch.evaluate`.
        """
        return cls._estimated(sketch.evaluate(public, map, bins), sketch.epsilon)

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation | PrivateEvaluation,
        *,
        level: float = 0.95,
        epsilon: float | None = None,
    ) -> Self:
        """Of an evaluation that is there already; a private one needs the `epsilon` it rests on.

        `level` is that of measured rows; an estimate has 0.95.
        """
        if isinstance(evaluation, Evaluation):
            return cls._measured(evaluation, evaluation.reliability, level)
        return cls._estimated(evaluation, epsilon)


@dataclass(eq=False, repr=False)
class RiskDisplay(Diagram):
    """The calibration curve of the risk of one class: observed against predicted.

    Make one with `from_scores` for rows one may look at, or with `from_sketch` for rows nobody may;
    `plot` draws it with observed/expected, calibration intercept and slope, `frame` gives its numbers.

    Measured rows are put into groups of equally many, from low risk to high, as risks are often small.
    Limits are as those of `ReliabilityDisplay`, for each group by itself.

    Attributes
    ----------
    foretold, observed, low, high, share
        Arrays, one entry for each point: mean risk, how often it was so, its limits, and the share of
        all rows there.
    rows
        The number of rows at each point; None of an estimate.
    after
        Of an estimate: what is foretold at each point after the map.
    level, epsilon
        Of the limits; and of an estimate, the most ε that a source was charged.
    summary, informative
        The measures in words; False where noise drowned the data.
    event
        The class whose risk it is, counted from 0.
    event_name
        What it is called, where it has a name.
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.1, 0.2, 0.4, 0.7], labels=[0, 1, 0, 1])
    >>> display = privcal.RiskDisplay.from_scores(scores, event=1, bins=2)
    >>> display
    RiskDisplay(observed / expected 1.43, intercept 0.81, slope 0.92, AUROC 0.750, measured)
    >>> display.frame()["observed"].to_list()
    [0.5, 0.5]
    """

    _measured_in_words = (
        "observed / expected {.observed_expected:.2f}",
        "intercept {.intercept:z.2f}",
        "slope {.slope:.2f}",
        "AUROC {.auroc:.3f}",
    )
    _estimated_in_words = (
        "O/E {observed_expected:.2f}, intercept {intercept:z.2f}, slope {slope:.2f}"
    )

    event: int = field(default=1, kw_only=True)
    event_name: str | None = field(default=None, kw_only=True)

    @property
    def about(self) -> Target:
        return Target(self.event, self.event_name or str(self.event))

    @staticmethod
    def _named(about: Target) -> dict[str, Any]:
        return vars(about)

    @classmethod
    def from_scores(
        cls,
        scores: Scores,
        map: Map | None = None,
        *,
        event: int | str | None = None,
        bins: int = 10,
        level: float = 0.95,
    ) -> Self:
        """Of rows one may look at, after `map` where one is given; exact, so nothing is private.

        `event` is the class, by default the one that `map` is about; `bins` groups of rows, `level`
        of the interval of each.
        """
        if event is None and (map is None or map.about.event is None):
            raise InputError("say which class the risk is of, with event=")
        return cls.from_evaluation(evaluate(scores, map, event=event), bins=bins, level=level)

    @classmethod
    def from_sketch(
        cls, sketch: Sketch, public: Scores | None = None, map: CurveMap | None = None
    ) -> Self:
        """Of hidden rows, as a sketch of an event estimates them: no further cost in privacy.

        `public` and `map` are those of `Sketch.evaluate`.
        """
        return cls._estimated(sketch.evaluate(public, map), sketch.epsilon)

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation | RiskEvaluation,
        *,
        bins: int = 10,
        level: float = 0.95,
        epsilon: float | None = None,
    ) -> Self:
        """Of an evaluation that is there already; a private one needs the `epsilon` it rests on.

        `bins` and `level` are those of measured rows; an estimate has 0.95.
        """
        if isinstance(evaluation, Evaluation):
            if (risk := evaluation.risk) is None:
                raise InputError("no risk was measured; evaluate with event=")
            return cls._measured(risk, risk.rows.reliability(bins), level)
        return cls._estimated(evaluation, epsilon)


def kind_of(about: Target) -> type[ReliabilityDisplay | RiskDisplay]:
    """The display of a target."""
    return ReliabilityDisplay if about.event is None else RiskDisplay


def display_of(found: Any, epsilon: float | None = None) -> ReliabilityDisplay | RiskDisplay:
    """The picture of an evaluation, of the risk where there is one; an estimate rests on `epsilon`."""
    return kind_of(found.about).from_evaluation(found, epsilon=epsilon)


DROWNED = (
    "The noise drowned the data: the map and these figures are only what was believed beforehand. "
    "More sources or a larger epsilon would help."
)


def unchanged(evaluation: Estimates) -> str:
    """How probable it is that nothing changed, and what came of it."""
    assert evaluation.unchanged is not None
    assert evaluation.unchanged_before is not None
    words = unchanged_in_words(evaluation.unchanged, evaluation.unchanged_before)
    left = " The model was left as it is." if evaluation.left_alone else ""
    return f"{words[0].upper()}{words[1:]}.{left}"


def in_words(evaluation: RiskEvaluation) -> str:
    """What was wrong with the model's own risk, as far as the intervals can tell."""
    ratio, slope = evaluation.observed_expected_before, evaluation.slope_before
    said = []
    if not ratio.low <= 1 <= ratio.high:
        said.append(
            f"The model's own risk is too {'low' if ratio.value > 1 else 'high'} on the whole: for "
            f"every 100 expected there were about {100 * ratio.value:.0f}."
        )
    if not slope.low <= 1 <= slope.high:
        wrong = ("too high", "too low") if slope.value < 1 else ("too low", "too high")
        said.append(f"Its high risks are {wrong[0]} and its low ones {wrong[1]}.")
    return " ".join(said or ["As far as this can tell, the model's own risk fits."])
