"""A finished study: its results by method, sweep and shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal.lab.study.grids import FACTORS, HETEROGENEOUS, SWEEPS, Setting, is_usual
from privcal.lab.study.paper import (
    METHODS,
    Differs,
    Reported,
    made_here,
    match_data,
    match_study,
    stated_severity,
)
from privcal.planning.simulate.archive import CLEAN
from privcal.planning.simulate.splits import MIXED
from privcal.planning.simulate.variants import AGGREGATION, ASSUMED, SECURE, Variant
from privcal.trusted.errors import InputError
from privcal.trusted.scores import FloatArray

if TYPE_CHECKING:
    import polars as pl

MEASURES = {"ece": "ECE", "brier": "Brier", "aurc": "AURC"}


@dataclass(frozen=True)
class Curve:
    """One method along one sweep."""

    x: FloatArray
    ece: FloatArray
    brier: FloatArray
    aurc: FloatArray
    ece_se: FloatArray
    """The standard error over trials; NaN after a single trial."""
    brier_se: FloatArray
    aurc_se: FloatArray

    def of(self, measure: str) -> FloatArray:
        return np.asarray(getattr(self, measure))

    def se(self, measure: str) -> FloatArray:
        return self.of(f"{measure}_se")

    def part(self, rows: Any) -> Curve:
        """Some of its points."""
        return Curve(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def middle(self) -> int | None:
        """The index of the middle one of the finite x, which come first; None without any."""
        return int(np.isfinite(self.x).sum() - 1) // 2 if np.isfinite(self.x).any() else None


@dataclass(frozen=True)
class Results:
    """A study's configuration and its two tables of results."""

    config: dict[str, Any]
    given: list[Variant]
    """The variants that were run, in the order of the configuration."""
    results: pl.DataFrame
    exact: pl.DataFrame | None = None
    missing: tuple[str, ...] = ()
    """Shifts that are still to come, where the study is not finished; `config` is without them."""

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def severity(self) -> int | None:
        severity: int | None = self.config["severity"]
        return severity

    @property
    def trials(self) -> int:
        return int(self.config["trials"])

    @property
    def shifts(self) -> list[str]:
        """The perturbations, then the unperturbed scores, as in the paper's tables."""
        return sorted(map(str, self.config["shifts"]), key=lambda shift: shift == CLEAN)

    @property
    def perturbations(self) -> list[str]:
        """The shifts that count in an average: not the unperturbed one, nor a mixture of all."""
        apart = (CLEAN, MIXED) if self.config["grid"] == HETEROGENEOUS else (CLEAN,)
        return [s for s in self.shifts if s not in apart]

    @property
    def variants(self) -> list[Variant]:
        """The variants that were run: the paper's methods first, in its order, then the others as they come."""
        first = [v for v in METHODS if v in self.given]
        return first + [v for v in dict.fromkeys(self.given) if v not in first]

    @property
    def secure(self) -> str:
        """What is meant by secure sums, in a sentence, where there are any."""
        summed = any(variant.aggregation == SECURE for variant in self.given)
        return f"{AGGREGATION}={SECURE}: {ASSUMED}." if summed else ""

    @property
    def is_factors(self) -> bool:
        return bool(self.config["grid"] == FACTORS)

    @cached_property
    def paper(self) -> Reported | Differs | None:
        """The paper's figures; or what differs from its study; or None, if it has no such data."""
        c = self.config
        return match_study(
            match_data(self.dataset, self.severity, c["rows"], c["classes"]),
            c["grid"],
            [Setting(**setting) for setting in c["settings"]],
            self.perturbations,
        )

    @property
    def reported(self) -> Reported | None:
        """The paper's figures, if this study is like the paper's."""
        return self.paper if isinstance(self.paper, Reported) else None

    @property
    def remark(self) -> str:
        """What to know before this study is compared with the paper, in sentences."""
        parts = [made_here(self.config["corrupted"], self.config["frost"])]
        if self.paper is None:
            parts.append(f"The paper has no figures for {self.dataset}.")
        elif isinstance(self.paper, Differs):
            parts.append(str(self.paper))
        else:
            if stated_severity(self.dataset, self.severity) is None:
                parts.append(
                    f"The severity is not stated, and taken to be the paper's {self.paper.severity}."
                )
            if public := self.config["public_rows"]:
                parts.append(f"Here {public:,} public rows are not tested on; the paper has none.")
        return " ".join(filter(None, parts))

    @property
    def title(self) -> str:
        severity = "" if self.severity is None else f", severity {self.severity}"
        made = ", corruptions made here" if made_here(self.config["corrupted"], None) else ""
        return self.dataset + severity + made

    @property
    def sweeps(self) -> list[str]:
        swept = {s["sweep"] for s in self.config["settings"]}
        return [s for s in SWEEPS if s in swept]

    def fixed(self, sweep: str) -> dict[str, float]:
        """What the sweep holds constant."""
        first = next(s for s in self.config["settings"] if s["sweep"] == sweep)
        return {
            name: first[name]
            for name in SWEEPS
            if name != sweep and not (name == "skew" and math.isinf(first[name]))
        }

    def curve(self, variant: Variant, sweep: str, shift: str | None = None) -> Curve:
        """A method along a sweep at one shift; without a shift, averaged over perturbations.

        The standard error of the average is that of the trials; how much perturbations differ
        is not in it.
        """
        if shift is not None:
            return self._curves[shift, str(variant), sweep]
        each = [self._curves[s, str(variant), sweep] for s in self.perturbations]
        if not each:
            raise InputError(f"the study of {self.dataset} has no perturbation to average over")
        return Curve(
            each[0].x,
            *(np.mean([c.of(m) for c in each], axis=0) for m in MEASURES),
            *(np.sqrt(np.sum([c.se(m) ** 2 for c in each], axis=0)) / len(each) for m in MEASURES),
        )

    def cells(self, variant: Variant, column: str) -> FloatArray:
        """A method's figures over all (perturbation, setting) cells."""
        import polars as pl

        of_method = self.results.filter(
            (pl.col("method") == str(variant)) & pl.col("shift").is_in(self.perturbations)
        )
        return of_method[column].to_numpy()

    def constants(self, sweep: str) -> str:
        """What a sweep holds constant, in words."""
        return ", ".join(
            f"{'ε' if name == 'epsilon' else name} = {setting_text(value)}"
            for name, value in self.fixed(sweep).items()
        )

    @cached_property
    def _curves(self) -> dict[tuple[str, str, str], Curve]:
        curves = {}
        parts = self.results.partition_by(["shift", "method", "sweep"], as_dict=True)
        for (shift, method, sweep), part in parts.items():
            part = part.sort(sweep)
            curves[str(shift), str(method), str(sweep)] = Curve(
                part[sweep].to_numpy().astype(np.float64),
                *(part[f"{m}_mean"].to_numpy() for m in MEASURES),
                *(part[f"{m}_se"].to_numpy() for m in MEASURES),
            )
        return curves


def shown(figure: float) -> str:
    """Four digits, as in the paper."""
    return f"{figure:.4f}"


def setting_text(value: float) -> str:
    """A setting's value as tables and figures say it."""
    return "∞" if math.isinf(value) else f"{value:g}"


def point(sweep: str, x: float) -> str:
    """A point of a sweep, in words."""
    if sweep == "epsilon":
        return "no noise" if np.isinf(x) else f"ε = {setting_text(x)}"
    if sweep == "skew":
        return f"skew {setting_text(x)}"
    return f"{setting_text(x)} {sweep}"


def paper_first(methods: Sequence[str]) -> list[str]:
    """Names of methods, the paper's first and in its order, then the others as they come."""
    first = [v.method for v in METHODS if v.method in methods]
    return first + [m for m in dict.fromkeys(methods) if m not in first]


def defaults(variants: Sequence[Variant]) -> list[Variant]:
    """For each method the variant with its usual options, or else its first."""
    chosen: dict[str, Variant] = {}
    for variant in sorted(variants, key=lambda v: not is_usual(v)):
        chosen.setdefault(variant.method, variant)
    return [chosen[method] for method in paper_first([v.method for v in variants])]
