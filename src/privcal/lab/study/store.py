"""A study's folder: `study.json` says what it is, `parts/` grows, tables are collected at the end."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal.data.files import replacing
from privcal.lab.study.exact import EXACT
from privcal.lab.study.grids import FACTORS, Setting
from privcal.lab.study.results import Results
from privcal.planning.simulate.measure import Measured
from privcal.planning.simulate.variants import EACH, Variant, with_public
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl

VERSION = 3
COLUMNS = (
    *("dataset", "shift", "severity", "sweep", "sources", "samples", "epsilon", "method", "trials"),
    *("ece_mean", "ece_se", "brier_mean", "aurc_mean", "brier_se", "aurc_se", "skew"),
    "aggregation",
)
EXACT_COLUMNS = (
    *("shift", "method", "halves", "accuracy"),
    *("ece_mean", "ece_se", "brier_mean", "aurc_mean"),
)
RAN = ("dataset", "severity", "trials", "sweep", "sources", "samples", "epsilon", "skew")
"""The columns that say what was run: they must be what `study.json` says."""
EXACT_FITS = "exact"
"""The name of the piece that is not a method's."""


@dataclass(frozen=True)
class Config:
    """Everything that decides the numbers of a study."""

    dataset: str
    severity: int | None
    rows: int
    classes: int
    corrupted: str | None
    frost: str | None
    digest: str
    grid: str
    settings: list[Setting]
    methods: list[Variant]
    shifts: list[str]
    trials: int
    seed: int
    public_rows: int

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self), "methods": [str(v) for v in self.methods]}


@dataclass(frozen=True)
class Done:
    """A piece of a study that finished: one method (or the exact fits) at one shift."""

    shift: str
    variant: Variant | None
    """None: the exact fits."""
    rows: list[dict[str, Any]]
    runs: int

    @property
    def label(self) -> str:
        return EXACT_FITS if self.variant is None else str(self.variant)


class StudyFolder:
    """The folder of a study that runs."""

    def __init__(self, path: Path, config: Config, keep_trials: bool) -> None:
        self.path, self.config, self.keep_trials = path, config, keep_trials
        self.parts = path / "parts"
        file = path / "study.json"
        facts = json.loads(json.dumps({**config.to_dict(), "keep_trials": keep_trials}))
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file; a study needs a folder")
        if file.exists():
            before = _json(file)
            if before != facts:
                changed = sorted(k for k in facts if before.get(k) != facts[k])
                how = f"{', '.join(changed)} differ{'s' * (len(changed) == 1)}"
                fixed = "; no trials can be added to a study" * (changed == ["trials"])
                raise InputError(
                    f"{path} holds another study ({how}){fixed}; choose another folder"
                )
        elif path.exists() and any(path.iterdir()):
            raise InputError(f"{path} is not empty and holds no study; choose another folder")
        self.parts.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with replacing(file) as part:
                part.write_text(json.dumps(facts, indent=2), "utf-8")

    def _part(self, shift: str, label: str) -> Path:
        return part_of(self.parts, shift, label)

    def finished(self, shift: str, variant: Variant | None) -> bool:
        return self._part(shift, Done(shift, variant, [], 0).label).exists()

    def add(self, piece: Done) -> None:
        with replacing(self._part(piece.shift, piece.label)) as part:
            part.write_text(json.dumps(piece.rows), "utf-8")

    def collect(self) -> pl.DataFrame:
        """All parts into `results.parquet`, `exact.parquet` and, if kept, `trials.parquet`."""
        import polars as pl

        rows: list[dict[str, Any]] = []
        exact: list[dict[str, Any]] = []
        for shift in self.config.shifts:
            for label in [*map(str, self.config.methods), EXACT_FITS]:
                file = self._part(shift, label)
                if file.exists():
                    (exact if label == EXACT_FITS else rows).extend(_json(file))
        frame = in_order(rows, self.config)
        tables = {"results": frame.select(COLUMNS)}
        if exact:
            tables["exact"] = pl.DataFrame(exact, infer_schema_length=None)
        if self.keep_trials:
            keep = (*COLUMNS[:8], "skew", "aggregation")
            tables["trials"] = (
                frame.with_columns(trial=pl.int_ranges(pl.col("trials")))
                .select(*keep, "trial", *Measured._fields)
                .explode("trial", *Measured._fields)
            )
        for name, table in tables.items():
            with replacing(self.path / f"{name}.parquet") as part:
                table.write_parquet(part)
        return tables["results"]


def part_of(parts: Path, shift: str, label: str) -> Path:
    """The file of one piece."""
    return parts / f"{zlib.crc32(shift.encode()):08x}-{zlib.crc32(label.encode()):08x}.json"


def in_order(rows: list[dict[str, Any]], config: Config) -> pl.DataFrame:
    """The rows in the order of the configuration, however many processes there were."""
    import polars as pl

    shifts = {s: i for i, s in enumerate(config.shifts)}
    methods = {str(v): i for i, v in enumerate(config.methods)}
    sweeps = {s: i for i, s in enumerate(dict.fromkeys(x.sweep for x in config.settings))}
    return _told_apart(pl.DataFrame(rows, infer_schema_length=None), config.methods).sort(
        pl.col("shift").replace_strict(shifts),
        pl.col("method").replace_strict(methods),
        pl.col("sweep").replace_strict(sweeps),
        "sources",
        "samples",
        "epsilon",
        "skew",
    )


def _told_apart(frame: pl.DataFrame, variants: Sequence[Variant]) -> pl.DataFrame:
    """With the column `aggregation`, which the name of each variant says."""
    import polars as pl

    said = {str(variant): variant.aggregation for variant in variants}
    return frame.with_columns(aggregation=pl.col("method").replace_strict(said, default=EACH))


# --- reading -----------------------------------------------------------------------------


def load(folder: str | Path) -> Results:
    """Read a study; of one that is not finished, the shifts that are.

    A missing or damaged one, and one of which no shift is finished, is an `InputError`.
    """
    folder = Path(folder)
    file = folder / "study.json"
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not file.is_file():
        raise InputError(f"{folder} holds no study (there is no study.json)")
    config = _config(file)
    if not (folder / "results.parquet").is_file():
        return _unfinished(folder, config)
    results = _frame(folder / "results.parquet", [c for c in COLUMNS if c != "aggregation"])
    expected = len(config["shifts"]) * len(config["settings"]) * len(config["methods"])
    cells = results.select("shift", "method").unique().rows()
    missing = {(s, m) for s in config["shifts"] for m in config["methods"]} - set(cells)
    if missing or len(results) != expected:
        raise InputError(
            f"{folder / 'results.parquet'} has {len(results)} of {expected} rows; delete it and "
            "run the study again"
        )
    if set(results.select(*RAN).rows()) != {
        (config["dataset"], config["severity"], config["trials"], *astuple(setting))
        for setting in _settings(config)
    }:
        raise InputError(
            f"{folder / 'results.parquet'} is not of the study that {file} describes; run the study "
            "again in another folder"
        )
    exact = folder / "exact.parquet"
    variants = _variants(config)
    results = _told_apart(results, variants)  # those of before had none
    return Results(config, variants, results, _exact(exact, config) if exact.is_file() else None)


def _unfinished(folder: Path, config: dict[str, Any]) -> Results:
    """What there is of a study that still runs, or was interrupted: its finished shifts."""
    import polars as pl

    labels = [*config["methods"], *([] if config["grid"] == FACTORS else [EXACT_FITS])]
    parts = {
        shift: [part_of(folder / "parts", shift, label) for label in labels]
        for shift in config["shifts"]
    }
    done = [shift for shift, files in parts.items() if all(file.is_file() for file in files)]
    if not done:
        raise InputError(
            f"the study in {folder} is not finished, and no shift of it is; run the same "
            "`privcal study run` again to go on"
        )
    methods = len(config["methods"])
    rows = [row for shift in done for file in parts[shift][:methods] for row in _json(file)]
    exact = [row for shift in done for file in parts[shift][methods:] for row in _json(file)]
    variants = _variants(config)
    return Results(
        {**config, "shifts": done},
        variants,
        _told_apart(pl.DataFrame(rows, infer_schema_length=None), variants).select(COLUMNS),
        pl.DataFrame(exact, infer_schema_length=None) if exact else None,
        missing=tuple(shift for shift in parts if shift not in done),
    )


def _variants(config: dict[str, Any]) -> list[Variant]:
    """The variants of a study, read back from their names."""
    names = config["methods"]
    public = (with_public(name, config.get("public_rows", 0)) for name in names)
    known = {str(variant): variant for variant in public}
    return [known.get(name) or _variant(name) for name in names]


def _variant(name: str) -> Variant:
    """What cannot be read, of a method that is gone perhaps, is a method of that name."""
    with suppress(InputError):
        variant = Variant.read(name)
        if str(variant) == name:
            return variant
    return Variant(name)


_WANTED: dict[str, type] = {
    **dict.fromkeys(("version", "dataset", "severity", "corrupted", "frost", "grid"), object),
    **dict.fromkeys(("rows", "classes", "trials", "public_rows"), int),
    **dict.fromkeys(("settings", "methods", "shifts"), list),
}


def _config(path: Path) -> dict[str, Any]:
    damaged = InputError(f"{path} is damaged; run the study again in another folder")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise damaged from None
    # The version first: one from before may lack what is wanted now.
    if isinstance(config, dict) and config.get("version", VERSION) != VERSION:
        raise InputError(
            f"{path} is of another version of privcal ({config['version']!r}, not {VERSION}); "
            "run the study again in another folder"
        )
    try:
        if not all(isinstance(config[name], kind) for name, kind in _WANTED.items()):
            raise damaged
        _settings(config)
    except (LookupError, TypeError):
        raise damaged from None
    return dict(config)


def _settings(config: dict[str, Any]) -> list[Setting]:
    return [Setting(**setting) for setting in config["settings"]]


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


def _json(path: Path) -> Any:
    # Not `documents.read_json`: an infinite skew, or the error of a single trial, is no JSON there.
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged; delete it and run the study again") from None
