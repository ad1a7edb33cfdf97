"""Figures of a study, for papers and slides: how each method looks, one file for each shift, one measure on any axes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from privcal.calibration import methods
from privcal.data.files import replacing
from privcal.lab.study.grids import OWN_FITS
from privcal.lab.study.results import MEASURES, Curve, Results, defaults, point, setting_text
from privcal.lab.study.run import work
from privcal.lab.study.store import load
from privcal.planning.simulate.archive import CLEAN
from privcal.planning.simulate.variants import EACH, Variant
from privcal.report.diagram import axes_to_draw_on
from privcal.report.study.tables import OPTION_WORDS
from privcal.trusted.errors import InputError
from privcal.trusted.scores import FloatArray
from privcal.trusted.threads import default_threads

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    dashes: str | tuple[int, tuple[int, ...]] = "-"
    look: int = 0
    """The same on a page, whose style sheet has a colour for light and one for dark."""
    dotted: bool = False
    """Whether it is dotted on a page, where secure sums are beside others."""

    @property
    def line(self) -> dict[str, Any]:
        """For `axis.plot`."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dashes}

    @property
    def on_page(self) -> dict[str, Any]:
        """For a `Series`."""
        plain = DOTTED if self.dotted else "-"
        return {"look": self.look, "dashed": self.dashes != plain, "dotted": self.dotted}


DOTTED, DASH_DOTTED = (0, (1, 1)), (0, (4, 1, 1, 1))

# Okabe and Ito's colours, told apart by colour-blind readers too. Acc-T is red in the paper;
# the two that ask nothing are grey and black and dashed.
FIXED = {
    "uncalibrated": Style("#7a7a7a", "x", "--", look=0),
    "one-source-ece": Style("#000000", "o", "--", look=5),
    "histogram-binning": Style("#56B4E9", "s", look=6),
    "ece-t": Style("#009E73", "^", look=3),
    "nll-t": Style("#0072B2", "v", look=1),
    "acc-t": Style("#D55E00", "D", look=2),
    # Ours, beside the paper's.
    "one-source": Style("#8A6D3B", "o", "--", look=9),
    "one-source-nll": Style("#E69F00", "<", look=7),
    "one-hot-binning": Style("#CC79A7", ">", look=8),
    "sketch": Style("#882255", "*", look=4),
    "prior": Style("#9B2D3F", "", DOTTED, look=12),  # the sketch's, before any answer
}
COLOURS = ("#999933", "#332288", "#44AA99", "#AA4499", "#661100")
MARKERS = ("<", ">", "*", "P", "d", "X", "p")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", DASH_DOTTED, DOTTED)


def styles(variants: Sequence[Variant]) -> dict[Variant, Style]:
    """A style for each method: the paper's and some of ours have theirs, others get one by their
    index, and a method with public rows is dashed in its own colour, one with secure sums dotted.

    The index is that in the list of all methods, so that a study of some of them looks the same
    as one of all; methods that are in the results but not installed here come after.
    """
    plain = [v.method if v.public_rows else str(replace(v, aggregation=EACH)) for v in variants]
    rest = dict.fromkeys(n for n in (*OWN_FITS, *methods.names(), *plain) if n not in FIXED)
    looks = dict(FIXED)
    for index, name in enumerate(rest):
        looks[name] = Style(
            COLOURS[index % len(COLOURS)],
            MARKERS[index % len(MARKERS)],
            DASHES[index // len(COLOURS) % len(DASHES)],
            10 + index % 6,  # those that the style sheet has left
        )
    return {v: _beside(looks[name], v) for v, name in zip(variants, plain, strict=True)}


def _beside(look: Style, variant: Variant) -> Style:
    """The look of a method, told apart from the same one without public rows or secure sums."""
    public = bool(variant.public_rows)
    if variant.aggregation != EACH:
        return replace(look, dashes=DASH_DOTTED if public else DOTTED, dotted=True)
    return replace(look, dashes="--") if public else look


SWEEP_NAMES = {
    "sources": "private sources",
    "samples": "samples at each source",
    "epsilon": "ε",
    "skew": "skew (smaller: sources less alike)",
}
ENDINGS = ("png", "svg")
BAND = 1.96
"""Standard errors on each side of a line: a 95 % interval of the mean over trials."""

RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titley": 1.02,  # placed by hand, which spares measuring every label
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "svg.hashsalt": "privcal",  # the same results give the same file
}


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is asked for."""

    name: str
    caption: str
    build: Callable[[], Figure]
    shift: str | None = None
    """The one it is about, where it is about one."""


@dataclass(frozen=True)
class _Drawing:
    """One picture of a study, as a process gets it: it builds the figure itself."""

    results: Results
    name: str


def draw(
    results: Results,
    folder: str | Path,
    *,
    jobs: int | None = None,
    progress: Callable[[str | None, int, int], None] | None = None,
) -> list[Path]:
    """Write every figure as PNG and SVG; the folder is made if there is none.

    Parameters
    ----------
    jobs
        Processes; by default one for each core. The files do not depend on it. Only this one
        writes, so that an interruption leaves whole files.
    progress
        Called with the name of the picture that is there, and how many of how many are.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = [picture.name for picture in pictures(results)]
    if progress:
        progress(None, 0, len(names))
    tasks = [_Drawing(results, name) for name in names]
    drawn = work(_drawn, tasks, min(jobs or default_threads(), len(names) or 1))
    for done, (name, files) in enumerate(drawn, 1):
        for ending, content in files.items():
            with replacing(folder / f"{name}.{ending}") as part:
                part.write_bytes(content)
        if progress:
            progress(name, done, len(names))
    return [folder / f"{name}.{ending}" for name in names for ending in ENDINGS]


def _drawn(task: _Drawing) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A picture's name, and its files by their endings."""
    [picture] = [p for p in pictures(task.results) if p.name == task.name]
    files = {}
    with drawing():
        figure = picture.build()
        for ending in ENDINGS:
            save(figure, file := io.BytesIO(), ending)
            files[ending] = file.getvalue()
    yield task.name, files


def pictures(results: Results) -> Iterator[Picture]:
    """The average over perturbations and the overview first, then each shift."""
    if results.is_factors:
        yield from _factor_pictures(results)
        return
    bands = f"Bands: ±{BAND} standard errors over {results.trials} trials."
    if results.perturbations:
        count = len(results.perturbations)
        yield Picture(
            "mean",
            f"{results.title}, mean of {count} perturbations. {bands} The scale of the ECE is logarithmic.",
            lambda: _panels(results, None),
        )
    yield Picture(
        "overview",
        f"{results.title}: ECE at every shift, on one logarithmic scale. {bands}",
        lambda: _overview(results),
    )
    for shift in results.shifts:
        yield Picture(
            f"shift-{shift}",
            f"{results.title}, {shift_title(shift)}. {bands} The scale of the ECE is logarithmic.",
            lambda shift=shift: _panels(results, shift),  # type: ignore[misc]
            shift,
        )


def drawing() -> Any:
    """The settings figures are built and saved under."""
    from matplotlib import rc_context

    return rc_context(RC)


def save(figure: Figure, to: Any, ending: str) -> None:
    metadata = {"Date": None} if ending == "svg" else None
    figure.savefig(to, format=ending, dpi=200, metadata=metadata)


def shift_title(shift: str) -> str:
    return "unperturbed" if shift == CLEAN else shift.replace("_", " ")


# --- one shift ---------------------------------------------------------------------------


def _panels(results: Results, shift: str | None) -> Figure:
    """A row for each measure, a column for each sweep."""
    looks = styles(results.variants)
    sweeps = results.sweeps
    columns = 4 if len(sweeps) > 2 else 2
    legend_rows = -(-len(looks) // columns)
    width = 1.0 + 2.1 * max(len(sweeps), 1.3)
    height = 0.9 + 1.6 * len(MEASURES) + 0.17 * legend_rows
    figure = _figure(width, height)
    axes = figure.subplots(len(MEASURES), len(sweeps), sharey="row", squeeze=False)
    for column, sweep in enumerate(sweeps):
        for row, measure in enumerate(MEASURES):
            axis = axes[row, column]
            for variant, style in looks.items():
                draw_line(axis, results.curve(variant, sweep, shift), measure, style)
            if column == 0:
                axis.set_ylabel(MEASURES[measure])
                axis.yaxis.set_label_coords(-0.48 * len(sweeps) / (width - 0.72), 0.5)
            if sweep == "skew":
                _log_skew(axis, results.curve(results.variants[0], sweep, shift).x)
            axis.tick_params(labelbottom=row == len(MEASURES) - 1)
        axes[0, column].set_title(results.constants(sweep))
        axes[-1, column].set_xlabel(SWEEP_NAMES[sweep])
    _log(axes[0, 0])
    for axis in axes[1:, 0]:
        axis.locator_params(axis="y", nbins=5)
    name = (
        f"mean of {len(results.perturbations)} perturbations"
        if shift is None
        else shift_title(shift)
    )
    figure.suptitle(f"{results.dataset}, {name}", fontsize=9, y=1 - 0.08 / height, va="top")
    _legend(figure, looks, columns)
    figure.subplots_adjust(
        left=0.62 / width,
        right=1 - 0.1 / width,
        top=1 - 0.46 / height,
        bottom=(0.5 + 0.17 * legend_rows) / height,
        wspace=0.08,
        hspace=0.08,
    )
    return figure


def draw_line(
    axis: Any, curve: Curve, measure: str, style: Style, size: float | None = None
) -> None:
    # A marker for every point of a long sweep would hide the line.
    every = max(1, -(-len(curve.x) // 10))
    more = {} if size is None else {"markersize": size, "linewidth": 0.9}
    axis.plot(
        curve.x, curve.of(measure), markevery=every, markeredgewidth=0.9, **style.line, **more
    )
    _band(axis, curve, measure, style)


def _log_skew(axis: Any, x: FloatArray) -> None:
    axis.set_xscale("log")
    axis.set_xticks(x, [setting_text(v) for v in x])
    axis.minorticks_off()


def _band(axis: Any, curve: Curve, measure: str, style: Style) -> None:
    y, se = curve.of(measure), curve.se(measure)
    if not np.isfinite(se).all():
        return
    low = np.maximum(y - BAND * se, 1e-4)  # a log axis has no zero
    high = y + BAND * se
    axis.fill_between(curve.x, low, high, color=style.colour, alpha=0.2, linewidth=0)


def _log(axis: Any, ticks: Sequence[float] = (1, 2, 3, 5)) -> None:
    """A log axis, its ticks in plain figures."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=ticks))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.yaxis.set_minor_locator(NullLocator())


# --- all shifts --------------------------------------------------------------------------


def _overview(results: Results) -> Figure:
    """A row for each shift, a column for each sweep, in two halves side by side."""
    looks = styles(results.variants)
    sweeps, shifts = results.sweeps, results.shifts
    halves = 2 if len(shifts) > 4 else 1
    rows = -(-len(shifts) // halves)
    columns = 5 if len(sweeps) > 2 else 3
    legend_rows = -(-len(looks) // columns)
    # As wide as the line of what is constant needs.
    width = halves * max(0.75 + 1.15 * len(sweeps), 4.6 / halves)
    height = 1.25 * rows + 0.75 + 0.18 * legend_rows
    figure = _figure(width, height)
    top, bottom = 1 - 0.6 / height, (0.45 + 0.18 * legend_rows) / height
    each = None
    for half in range(halves):
        mine = shifts[half * rows : (half + 1) * rows]
        grid = figure.add_gridspec(
            rows,
            len(sweeps),
            left=(half + 0.7 / (width / halves)) / halves,
            right=(half + 1) / halves - 0.08 / width,
            top=top,
            bottom=bottom,
            wspace=0.1,
            hspace=0.12,
        )
        for row, shift in enumerate(mine):
            for column, sweep in enumerate(sweeps):
                axis = figure.add_subplot(grid[row, column], sharey=each)
                each = each or axis
                for variant, style in looks.items():
                    draw_line(axis, results.curve(variant, sweep, shift), "ece", style, 2.2)
                if sweep == "skew":
                    _log_skew(axis, results.curve(results.variants[0], sweep, shift).x)
                axis.tick_params(
                    labelleft=column == 0, labelbottom=row == len(mine) - 1, labelsize=6, length=2
                )
                if column == 0:
                    axis.set_ylabel(shift_title(shift), fontsize=7.5)
                if row == 0:
                    axis.set_title(sweep if sweep != "epsilon" else "ε", fontsize=7.5)
    _log(each, (1, 2, 5))
    figure.suptitle(f"{results.dataset}: ECE", fontsize=9, y=1 - 0.06 / height, va="top")
    constant = "; ".join(
        f"{'ε' if sweep == 'epsilon' else sweep} "
        f"{'varies' if sweep == 'skew' else 'vary'}: {results.constants(sweep)}"
        for sweep in sweeps
    )
    figure.text(0.5, 1 - 0.24 / height, constant, fontsize=7, ha="center", va="top")
    _legend(figure, looks, columns)
    return figure


# --- factors -----------------------------------------------------------------------------


def _factor_pictures(results: Results) -> Iterator[Picture]:
    if not results.perturbations:
        return
    count = len(results.perturbations)
    bands = f" Bands: ±{BAND} standard errors over {results.trials} trials."
    for measure, name in MEASURES.items():
        yield Picture(
            f"factors-{measure}",
            f"{results.title}: {name} by factor, mean of {count} perturbations. Filled markers: "
            f"with noise; hollow and dotted: the same method without.{bands}",
            lambda measure=measure: _factors(results, measure),  # type: ignore[misc]
        )


def _factors(results: Results, measure: str) -> Figure:
    variants, usual = results.variants, defaults(results.variants)
    looks = styles([Variant(v.method) for v in usual])
    options = list(dict.fromkeys(name for v in variants for name in v.names))
    swept = [s for s in ("sources", "epsilon") if s in results.sweeps]
    panels = len(options) + len(swept)
    columns = min(3, panels)
    rows = -(-panels // columns)
    legend_rows = -(-len(looks) // 4) + 1
    width, height = 0.7 + 2.2 * columns, 2.2 * rows + 0.62 + 0.18 * legend_rows
    figure = _figure(width, height)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axis in axes.flat[panels:]:
        axis.set_axis_off()
    for axis, option in zip(axes.flat, options, strict=False):
        _option(axis, results, option, [v for v in variants if option in v.names], measure)
    for axis, sweep in zip(axes.flat[len(options) :], swept, strict=False):
        for v in usual:
            _swept(axis, results.curve(v, sweep), measure, looks[Variant(v.method)])
        axis.set_title(
            f"{'more data' if sweep == 'sources' else 'higher ε'} ({results.constants(sweep)})"
        )
        axis.set_xlabel(SWEEP_NAMES[sweep])
    for axis in axes[:, 0]:
        axis.set_ylabel(MEASURES[measure])
    if measure == "ece":
        _log(axes[0, 0])
    _legend(figure, looks, 4, noise=True)
    figure.suptitle(
        f"{results.dataset}: {MEASURES[measure]}", fontsize=9, y=1 - 0.06 / height, va="top"
    )
    figure.subplots_adjust(
        left=0.55 / width,
        right=1 - 0.1 / width,
        top=1 - 0.62 / height,
        bottom=(0.62 + 0.18 * legend_rows) / height,
        wspace=0.08,
        hspace=0.62,
    )
    return figure


def _option(
    axis: Any, results: Results, option: str, variants: Sequence[Variant], measure: str
) -> None:
    """An option's values along x, at the middle ε and without noise."""
    sweep = "epsilon" if "epsilon" in results.sweeps else results.sweeps[0]
    values = list(dict.fromkeys(v.value(option) for v in variants))
    numbers = all(isinstance(value, (int, float)) for value in values)
    ticks = {value: float(value) if numbers else float(i) for i, value in enumerate(values)}
    looks = styles([Variant(method) for method in dict.fromkeys(v.method for v in variants)])
    shown = ""
    for plain, style in looks.items():
        mine = [v for v in variants if v.method == plain.method]
        curves = [results.curve(v, sweep) for v in mine]
        x = np.array([ticks[v.value(option)] for v in mine])
        middle = curves[0].middle or 0
        shown = f"{results.constants(sweep)}, {point(sweep, curves[0].x[middle])}"
        for index in (middle, *np.flatnonzero(np.isinf(curves[0].x))):
            names = [field.name for field in fields(Curve)][1:]
            taken = Curve(
                x, *(np.array([getattr(c, name)[index] for c in curves]) for name in names)
            )
            _mark(axis, taken, measure, style, noise=bool(np.isfinite(curves[0].x[index])))
    title = OPTION_WORDS.get(option, option).split(",")[0]
    axis.set_title(f"{title}\n({shown})")
    axis.set_xlabel(option)
    low, high = min(ticks.values()), max(ticks.values())
    if low > 0 and high >= 12 * low:
        axis.set_xscale("log")
    axis.set_xticks(list(ticks.values()), list(dict.fromkeys(v.text(option) for v in variants)))
    axis.minorticks_off()
    if low == 0:
        axis.set_xlim(-0.5, len(values) - 0.5)


def _swept(axis: Any, curve: Curve, measure: str, style: Style) -> None:
    finite = np.isfinite(curve.x)
    _mark(axis, curve.part(finite), measure, style, noise=True)
    x = curve.x[finite]
    wide = x.max() >= 20 * x.min()
    if wide:
        axis.set_xscale("log")
    if finite.all():
        axis.set_xticks(x, [setting_text(v) for v in x])
    else:
        # Without noise: to the right of the last ε, set apart.
        beyond = x.max() * (3.0 if wide else 1.3)
        rest = replace(curve.part(~finite), x=np.array([beyond]))
        _mark(axis, rest, measure, style, noise=False)
        axis.set_xticks([*x, beyond], [*map(setting_text, x), "no\nnoise"])
    axis.minorticks_off()


def _mark(axis: Any, curve: Curve, measure: str, style: Style, noise: bool) -> None:
    look = dict(style.line)
    if not noise:
        look |= {"linestyle": ":", "markerfacecolor": "white"}
    axis.plot(curve.x, curve.of(measure), markeredgewidth=0.9, **look)
    _band(axis, curve, measure, style)


# --- small things ------------------------------------------------------------------------


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _legend(figure: Any, looks: dict[Variant, Style], columns: int, noise: bool = False) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=str(v), **style.line) for v, style in looks.items()]
    if noise:
        grey: dict[str, Any] = {"color": "#444444", "marker": "o"}
        lines += [
            Line2D([], [], label="with noise", **grey),
            Line2D([], [], label="no noise", linestyle=":", markerfacecolor="white", **grey),
        ]
    figure.legend(
        handles=lines,
        loc="lower center",
        ncols=min(columns, len(lines)),
        frameon=False,
        handlelength=2.6,
        columnspacing=1.4,
        borderaxespad=0.1,
    )


@dataclass(eq=False, repr=False)
class StudyDisplay:
    """All methods of a study along one sweep.

    Make one with `from_folder`; `plot` draws one measure, `frame` gives the numbers. Bands are 95 %
    intervals of the mean over trials, for each point by itself.

    Attributes
    ----------
    results
        The study's results.
    sweep
        What varies: "sources", "samples", "epsilon" or "skew".
    shift
        The shift; None for the mean over all perturbations.
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> grid = "[sources]\\nvalues = [5, 10]\\nsamples = 10\\nepsilon = 1.0\\n"
    >>> _ = open("grid.toml", "w").write(grid)
    >>> given = {"grid": "grid.toml", "methods": ["acc-t"], "shifts": ["fog"], "trials": 2, "jobs": 1}
    >>> _ = privcal.study.run(**given, out="fog")
    >>> display = privcal.StudyDisplay.from_folder("fog")
    >>> display.frame().columns
    ['method', 'sources', 'ece', 'brier', 'aurc', 'ece_se', 'brier_se', 'aurc_se']
    >>> from matplotlib.figure import Figure
    >>> display.plot(Figure().add_subplot(), measure="aurc").ax_.get_xlabel()
    'private sources'
    """

    results: Results
    sweep: str
    shift: str | None = None
    ax_: Axes = field(init=False)
    figure_: Figure = field(init=False)

    @classmethod
    def from_folder(
        cls, folder: str | Path, sweep: str | None = None, shift: str | None = None
    ) -> Self:
        """Of the finished study in `folder`; `sweep` is by default the first one there is."""
        return cls.from_results(load(folder), sweep, shift)

    @classmethod
    def from_results(
        cls, results: Results, sweep: str | None = None, shift: str | None = None
    ) -> Self:
        """Of `results` that are loaded already; `sweep` and `shift` as in `from_folder`."""
        sweep = results.sweeps[0] if sweep is None else sweep
        for name, value, known in (
            ("sweep", sweep, results.sweeps),
            ("shift", shift, [*results.shifts, None]),
        ):
            if value not in known:
                there = ", ".join(str(k) for k in known if k is not None)
                raise InputError(f"the study has no {name} {value!r}; it has {there}")
        return cls(results, sweep, shift)

    def frame(self) -> pl.DataFrame:
        """Mean and standard error of every measure, for every method and point."""
        import polars as pl

        parts = []
        for variant in self.results.variants:
            curve = self.results.curve(variant, self.sweep, self.shift)
            columns = {m: curve.of(m) for m in MEASURES}
            columns |= {f"{m}_se": curve.se(m) for m in MEASURES}
            parts.append(pl.DataFrame({"method": str(variant), self.sweep: curve.x, **columns}))
        return pl.concat(parts)

    def plot(self, ax: Axes | None = None, *, measure: str = "ece") -> Self:
        """Draw one `measure`, "ece", "brier" or "aurc", on `ax`, by default on a new figure of pyplot."""
        if measure not in MEASURES:
            raise InputError(f"measure must be one of {', '.join(MEASURES)}, not {measure!r}")
        self.ax_, self.figure_ = axes_to_draw_on(ax, (6.4, 5.2))
        for variant, style in styles(self.results.variants).items():
            curve = self.results.curve(variant, self.sweep, self.shift)
            draw_line(self.ax_, curve, measure, style)
            self.ax_.lines[-1].set_label(str(variant))
        self.ax_.set(xlabel=SWEEP_NAMES[self.sweep], ylabel=MEASURES[measure])
        self.ax_.set_title(f"{self._where}: {self.results.constants(self.sweep)}", fontsize=10)
        self.ax_.grid(alpha=0.2)
        self.ax_.spines[["top", "right"]].set_visible(False)
        self.ax_.legend(fontsize=7.5, framealpha=0.85, edgecolor="none")
        return self

    @property
    def _where(self) -> str:
        if self.shift is not None:
            return shift_title(self.shift)
        return f"mean of {len(self.results.perturbations)} perturbations"

    def __repr__(self) -> str:
        return f"StudyDisplay({self.results.title}, along {self.sweep}, {self._where})"
