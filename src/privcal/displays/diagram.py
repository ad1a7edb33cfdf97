"""What was foretold against what came: the drawing that reliability and risk have in common.

Measured rows are points with an interval each; an estimate from a sketch is a line with a band, and
no points, which would look as if something had been counted. The strip below says where the rows
are.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from privcal.binomial import interval
from privcal.checks import number
from privcal.errors import InputError
from privcal.metrics import Reliability, bin_index
from privcal.plots import BLUE, GREY, ORANGE, save_figure
from privcal.scores import BoolArray, FloatArray
from privcal.sketch.evaluation import Band
from privcal.sketch.risk import RiskBand

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RARE = 0.02
"""The share of rows at an end for which no curve is drawn: it would show only the prior."""

_TICKS = (0, 0.25, 0.5, 0.75, 1)
_BOX = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 2}


@dataclass(eq=False, repr=False)
class Diagram(ABC):
    """The numbers of a diagram, rising in what was foretold."""

    foretold_name: ClassVar[str]
    open_ends: ClassVar[tuple[bool, bool]]
    """Whether an estimated curve stops short of its rarest rows, at the lower and the upper end."""

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

    observed_name: ClassVar[str] = ""

    @property
    def what(self) -> str:
        """What was observed, in words."""
        return self.observed_name

    @property
    def drawn(self) -> BoolArray:
        """The points that are drawn: of an estimate, not the rarest rows at an open end."""
        if self.epsilon is None:
            return np.ones(len(self.share), np.bool_)
        below = np.cumsum(self.share) / self.share.sum()
        drawn = (below > _RARE) | (not self.open_ends[0])
        return np.asarray(drawn & ((below <= 1 - _RARE) | (not self.open_ends[1])))

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


def estimated(band: Band | RiskBand, epsilon: float | None) -> dict[str, Any]:
    """What both kinds of estimates have in common: limits, shares, and the ε they rest on."""
    if epsilon is None:
        raise InputError("an estimate needs the epsilon that it rests on")
    return {
        "low": band.low,
        "high": band.high,
        "share": band.share / band.share.sum(),
        "rows": None,
        "after": band.after,
        "level": 0.95,
        "epsilon": epsilon,
    }


def binned(state: Reliability, level: float) -> dict[str, Any]:
    """The points of measured rows, those without rows left out, with an interval for each."""
    if not 0 < number("level", level) < 1:
        raise InputError(f"level must be between 0 and 1, not {level}")
    full = state.count > 0
    rows, came = state.count[full], state.correct[full]
    limits = [interval(int(n), int(k), level) for n, k in zip(rows, came, strict=True)]
    low, high = np.array(limits).T
    return {
        "foretold": state.confidence[full] / rows,
        "observed": came / rows,
        "low": low,
        "high": high,
        "share": rows / rows.sum(),
        "rows": rows,
        "after": None,
        "level": level,
        "epsilon": None,
    }
