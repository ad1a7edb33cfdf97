"""Logits that come with the package, and archives of logits that were computed elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.data.files import replacing
from privcal.data.readers import as_numbers, read_outputs, read_scores
from privcal.data.scores import Outputs, Scores
from privcal.data.tables import ending, is_table, naming, open_table, read_array
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError
from privcal.version import __version__

__all__ = ["CIFAR10C", "NOT_SHIFTS", "cifar10c", "shifts"]

CIFAR10C = "cifar10c_wrn28x10_severity5.npz"
"""Logits of one Wide ResNet-28-10 on the CIFAR-10 test images, clean and under 15 corruptions at
severity 5: `labels`, one (10000, 10) float16 array for each shift, and in `meta` how it was made
(by `privcal data`, from the images on)."""
NOT_SHIFTS = ("labels", "meta")


def shifts() -> list[str]:
    """Names of the shifts in the bundled archive; `clean` is the unperturbed one.

    >>> len(shifts()), shifts()[0]
    (16, 'clean')
    """
    with as_file(files(__package__) / CIFAR10C) as path, np.load(path) as archive:
        return [key for key in archive.files if key not in NOT_SHIFTS]


def cifar10c(shift: str) -> Scores:
    """The bundled CIFAR-10-C scores under one shift.

    Parameters
    ----------
    shift : str
        One of `shifts()`.

    Returns
    -------
    Scores
        Logits (10000, 10) of a Wide ResNet-28-10, with labels.

    >>> cifar10c("fog").outputs.rows
    10000
    """
    known("shift", shift, shifts())
    with as_file(files(__package__) / CIFAR10C) as path, np.load(path) as archive:
        return Scores(logits=archive[shift], labels=archive["labels"], model="wrn-28-10")


# --- archives of one's own ---------------------------------------------------------------------

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
    contents: dict[str, str] = {}
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
        with naming(path):
            scored = Scores(logits=entries[shift], labels=truth)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        contents[shift] = f"{path.name}, SHA-256 {digest}"
        accuracy[shift] = round(float((scored.outputs.predicted == scored.labels).mean()), 4)
    meta = {
        "dataset": dataset,
        "severity": severity,
        "rows": len(truth) if truth is not None else 0,
        "network": network,
        "logits": GIVEN,
        "corrupted": "not known: the logits were given",
        "files": contents,
        "versions": {"privcal": __version__, "numpy": np.__version__},
        "accuracy": accuracy,
    }
    text = np.array(json.dumps(meta))
    with replacing(out) as part:
        np.savez_compressed(part, meta=text, labels=np.asarray(truth, np.int64), **entries)
    return meta


def _outputs(path: Path) -> Outputs:
    if ending(path) != ".npy" or "probabilities" in path.name:
        return read_outputs(path)
    with naming(path):
        return Outputs(logits=read_array(path))


def _labels(path: Path) -> NDArray[np.int64]:
    """Labels from a .npy file, the array `labels` of a .npz file, or the column `label` of a table."""
    import polars as pl

    if is_table(path):
        table = open_table(path)
        if "label" not in table.names:
            raise InputError(f"{path} has no column label; it has {', '.join(table.names)}")
        whole_column = pl.concat(table.pieces(["label"], strict=True))
        values = as_numbers(str(path), whole_column, ["label"], 0, strict=True)["label"].to_numpy()
    else:
        values = read_array(path, "labels")
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not (values == np.floor(values)).all():
        raise InputError(f"{path} must hold one whole number for each row: its label")
    return np.asarray(values, np.int64)


def _narrow(path: Path, array: Any) -> Any:
    """Logits as float32 at most; those of float16 stay as they are."""
    if array.dtype == np.float16:
        return np.asarray(array)
    with np.errstate(over="ignore"):
        narrow = np.asarray(array, np.float32)
    if not np.isfinite(narrow).all():
        raise InputError(f"{path} holds a logit beyond what float32 can hold")
    return narrow
