"""Logit archives from logits that were computed elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.checks import whole
from privcal.datasets import NOT_SHIFTS
from privcal.errors import InputError
from privcal.files import replacing
from privcal.readers import read_outputs, read_scores
from privcal.scores import Outputs, Scores
from privcal.version import __version__

GIVEN = "given, not computed here"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def pack(
    shifts: Mapping[str, Path],
    out: Path,
    *,
    dataset: str,
    labels: Path | None = None,
    severity: int | None = None,
    network: str | None = None,
) -> dict[str, Any]:
    """Write an archive that a study reads from one file of logits for each shift; returns its meta.

    Files are those of `read_outputs`, or any .npy file of (rows, classes). Without `labels` each file
    holds its own, the same in all of them.
    """
    if not shifts:
        raise InputError("there is no file of logits to pack")
    if severity is not None:
        whole("severity", severity, 1, 5)
    truth = None if labels is None else _labels(labels)
    first = next(iter(shifts.values()))
    entries: dict[str, Any] = {}
    files: dict[str, str] = {}
    accuracy: dict[str, float] = {}
    classes = 0
    for shift, path in shifts.items():
        if not NAME.fullmatch(shift) or shift in NOT_SHIFTS:
            raise InputError(f"a shift cannot be called {shift!r}; give it as NAME={path}")
        if labels is None:
            scores = read_scores(path, person=None)
            outputs, own = scores.outputs, scores.labels
            if truth is not None and not np.array_equal(truth, own):
                raise InputError(f"{path} has other labels than {first}; rows must line up")
            truth = own
        else:
            outputs = _outputs(path)
        if outputs.kind != "logits":
            raise InputError(
                f"{path} holds probabilities, an archive logits; give their logarithms as logits"
            )
        assert truth is not None
        if outputs.rows != len(truth):
            raise InputError(
                f"{path} has {outputs.rows:,} rows, but there are {len(truth):,} labels"
            )
        classes = classes or outputs.classes
        if outputs.classes != classes:
            raise InputError(f"{path} has {outputs.classes} classes, but {first} has {classes}")
        entries[shift] = _narrow(path, outputs.array)
        try:
            scored = Scores(logits=entries[shift], labels=truth)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        files[shift] = f"{path.name}, SHA-256 {_digest(path)}"
        accuracy[shift] = round(float((scored.outputs.predicted == scored.labels).mean()), 4)
    meta = {
        "dataset": dataset,
        "severity": severity,
        "rows": len(truth) if truth is not None else 0,
        "network": network,
        "logits": GIVEN,
        "corrupted": "not known: the logits were given",
        "files": files,
        "versions": {"privcal": __version__, "numpy": np.__version__},
        "accuracy": accuracy,
    }
    text = np.array(json.dumps(meta))
    with replacing(out) as part:
        np.savez_compressed(part, meta=text, labels=np.asarray(truth, np.int64), **entries)
    return meta


def _outputs(path: Path) -> Outputs:
    if path.suffix.lower() == ".npy" and "probabilities" not in path.name:
        try:
            return Outputs(logits=_array(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    return read_outputs(path)


def _labels(path: Path) -> NDArray[np.int64]:
    """Labels from a .npy file, the array `labels` of a .npz file, or the column `label` of a table."""
    if path.suffix.lower() in (".parquet", ".csv"):
        values: Any = _column(path)
    else:
        values = _array(path, "labels")
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not (values == np.floor(values)).all():
        raise InputError(f"{path} must hold one whole number for each row: its label")
    whole_numbers: NDArray[np.int64] = values.astype(np.int64)
    return whole_numbers


def _array(path: Path, name: str = "") -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        content = np.load(path, allow_pickle=False)
        return content if isinstance(content, np.ndarray) else content[name]
    except Exception:  # NumPy raises all kinds, and would advise to load what must not be loaded
        what = f" with an array {name}" if name else ""
        raise InputError(f"{path} is not a readable NumPy file{what}, or is cut short") from None


def _column(path: Path) -> Any:
    import polars as pl

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    scan = pl.scan_csv if path.suffix.lower() == ".csv" else pl.scan_parquet
    try:
        table = scan(path, glob=False)  # a star in a name is a star
        column = table.select("label").collect()["label"]
    except (pl.exceptions.PolarsError, OSError):
        raise InputError(f"{path} is not a readable table with a column label") from None
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise InputError(f"{path}: label of row {row} is missing")
    return column.to_numpy()


def _narrow(path: Path, array: Any) -> Any:
    """Logits as float32 at most; those of float16 stay as they are."""
    if array.dtype == np.float16:
        return np.asarray(array)
    with np.errstate(over="ignore"):
        narrow = np.asarray(array, np.float32)
    if not np.isfinite(narrow).all():
        raise InputError(f"{path} holds a logit beyond what float32 can hold")
    return narrow


def _digest(path: Path) -> str:
    """The first 16 digits of a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
