"""A finished study, read back from its folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal import methods
from privcal.errors import InputError
from privcal.scores import FloatArray
from privcal.study import paper
from privcal.study.grids import HETEROGENEOUS, SWEEPS
from privcal.study.run import CLEAN, COLUMNS, EXACT, VERSION
from privcal.study.skew import MIXED

if TYPE_CHECKING:
    import polars as pl

MEASURES = {"ece": "ECE", "brier": "Brier", "aurc": "AURC"}
EXACT_COLUMNS = (
    "shift",
    "method",
    "halves",
    "accuracy",
    "ece_mean",
    "ece_se",
    "brier_mean",
    "aurc_mean",
)


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
        found: FloatArray = getattr(self, measure)
        return found

    def se(self, measure: str) -> FloatArray:
        return self.of(f"{measure}_se")

    def part(self, rows: Any) -> Curve:
        """Some of its points."""
        return Curve(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class Results:
    """A study's configuration and its two tables of results."""

    config: dict[str, Any]
    results: pl.DataFrame
    exact: pl.DataFrame | None = None

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def severity(self) -> int | None:
        found: int | None = self.config["severity"]
        return found

    @property
    def trials(self) -> int:
        return int(self.config["trials"])

    @property
    def shifts(self) -> list[str]:
        """The perturbations, then the unperturbed scores, as in the paper's tables."""
        found = [str(s) for s in self.config["shifts"]]
        return [s for s in found if s != CLEAN] + [s for s in found if s == CLEAN]

    @property
    def perturbations(self) -> list[str]:
        """The shifts that count in an average: not the unperturbed one, nor a mixture of all."""
        apart = (CLEAN, MIXED) if self.config["grid"] == HETEROGENEOUS else (CLEAN,)
        return [s for s in self.shifts if s not in apart]

    @property
    def methods(self) -> list[str]:
        return ordered(self.config["methods"])

    @property
    def is_factors(self) -> bool:
        return bool(self.config["grid"] == "factors")

    @property
    def reported(self) -> paper.Reported | None:
        """The paper's figures for this data set, where it has it."""
        return paper.reported(self.dataset, self.severity)

    @property
    def title(self) -> str:
        return self.dataset + ("" if self.severity is None else f", severity {self.severity}")

    @property
    def sweeps(self) -> list[str]:
        here = {s["sweep"] for s in self.config["settings"]}
        return [s for s in SWEEPS if s in here]

    def fixed(self, sweep: str) -> dict[str, float]:
        """What the sweep holds constant."""
        first = next(s for s in self.config["settings"] if s["sweep"] == sweep)
        return {
            name: first[name]
            for name in SWEEPS
            if name != sweep and not (name == "skew" and math.isinf(first[name]))
        }

    def curve(self, method: str, sweep: str, shift: str | None = None) -> Curve:
        """A method along a sweep at one shift; without a shift, averaged over perturbations.

        The standard error of the average is that of the trials; how much perturbations differ
        is not in it.
        """
        if shift is not None:
            return self._curves[shift, method, sweep]
        each = [self._curves[s, method, sweep] for s in self.perturbations]
        if not each:
            raise InputError(f"the study of {self.dataset} has no perturbation to average over")
        return Curve(
            each[0].x,
            *(np.mean([c.of(m) for c in each], axis=0) for m in MEASURES),
            *(np.sqrt(np.sum([c.se(m) ** 2 for c in each], axis=0)) / len(each) for m in MEASURES),
        )

    @cached_property
    def _curves(self) -> dict[tuple[str, str, str], Curve]:
        found = {}
        parts = self.results.partition_by(["shift", "method", "sweep"], as_dict=True)
        for (shift, method, sweep), part in parts.items():
            part = part.sort(sweep)
            found[str(shift), str(method), str(sweep)] = Curve(
                part[sweep].to_numpy().astype(np.float64),
                *(part[f"{m}_mean"].to_numpy() for m in MEASURES),
                *(part[f"{m}_se"].to_numpy() for m in MEASURES),
            )
        return found


@dataclass(frozen=True)
class Label:
    """A method's name in the results, taken apart: `ece-t(bins=30)`."""

    text: str
    method: str
    options: dict[str, str]

    @property
    def is_default(self) -> bool:
        """Whether the options are those the method has anyway."""
        if not self.options:
            return True
        try:
            usual = methods.make(self.method)
        except InputError:
            return False
        return all(_said(getattr(usual, name, None)) == v for name, v in self.options.items())


def read_label(text: str) -> Label:
    found = re.fullmatch(r"(.+?)\((.*)\)", text)
    if found is None:
        return Label(text, text, {})
    options = dict(part.split("=", 1) for part in found[2].split(", ") if "=" in part)
    return Label(text, found[1], options)


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def ordered(names: Sequence[str]) -> list[str]:
    """The paper's methods first, in its order, then the others as they come."""
    first = [m for m in paper.METHODS if m in names]
    return first + [m for m in dict.fromkeys(names) if m not in first]


def number(value: float) -> str:
    """A setting's value as tables and figures say it."""
    return "∞" if math.isinf(value) else f"{value:g}"


def load(folder: str | Path) -> Results:
    """Read a finished study; a missing, unfinished or damaged one is an `InputError`."""
    folder = Path(folder)
    said = folder / "study.json"
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not said.is_file():
        raise InputError(f"{folder} holds no study (there is no study.json)")
    config = _config(said)
    if not (folder / "results.parquet").is_file():
        raise InputError(
            f"the study in {folder} is not finished; run the same `privcal study run` again to go on"
        )
    results = _frame(folder / "results.parquet", COLUMNS)
    expected = len(config["shifts"]) * len(config["settings"]) * len(config["methods"])
    cells = results.select("shift", "method").unique().rows()
    missing = {(s, m) for s in config["shifts"] for m in config["methods"]} - set(cells)
    if missing or len(results) != expected:
        raise InputError(
            f"{folder / 'results.parquet'} has {len(results)} of {expected} rows; delete it and "
            "run the study again"
        )
    exact = folder / "exact.parquet"
    return Results(config, results, _exact(exact, config) if exact.is_file() else None)


def _config(path: Path) -> dict[str, Any]:
    wanted = {"dataset", "severity", "grid", "settings", "methods", "shifts", "trials"}
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or not wanted <= set(config):
        raise InputError(f"{path} is damaged; run the study again in another folder")
    if config.get("version") != VERSION:
        raise InputError(
            f"{path} is of another version of privcal ({config.get('version')!r}, not {VERSION}); "
            "run the study again in another folder"
        )
    return config


def _exact(path: Path, config: dict[str, Any]) -> pl.DataFrame:
    frame = _frame(path, EXACT_COLUMNS)
    wanted = {(s, m) for s in config["shifts"] for m in EXACT}
    if wanted - set(frame.select("shift", "method").rows()):
        raise InputError(f"{path} lacks some shifts; delete it and run the study again")
    return frame


def _frame(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except Exception:
        raise InputError(
            f"{path} is damaged or cut short; delete it and run the study again"
        ) from None
    lost = [c for c in columns if c not in frame.columns]
    if lost:
        raise InputError(f"{path} has no column {', '.join(lost)}; run the study again")
    return frame
