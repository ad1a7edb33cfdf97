"""A study's methods along a sweep, drawn on any axes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from privcal.displays.diagram import axes_to_draw_on
from privcal.errors import InputError
from privcal.study.results import MEASURES, Results
from privcal.study.show.figures import SWEEP_NAMES, draw_line, shift_title
from privcal.study.show.styles import styles
from privcal.study.store import load

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
