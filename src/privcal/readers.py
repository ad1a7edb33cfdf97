"""Scores from files: npz, a pair of npy files (memory-mapped), Parquet and CSV."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from privcal.errors import InputError
from privcal.scores import Outputs, Scores

if TYPE_CHECKING:
    import polars as pl

KINDS = ("logits", "probabilities")
TABLES = (".parquet", ".csv")
ENDINGS = (".npz", ".npy", *TABLES)
T = TypeVar("T")


def read_scores(path: str | Path, *, model: str | None = None) -> Scores:
    """Labelled scores from a file, by its ending.

    .npz
        Arrays `logits` or `probabilities`, `labels`, optionally `person`.
    .npy
        A file whose name contains `logits` or `probabilities`; the labels (and persons) are in
        the file of the same name with `labels` (`person`) instead. Or the folder that holds
        `logits.npy` and `labels.npy`. Opened as memory maps: they may be larger than memory.
    .parquet, .csv
        Columns `label` and `logit_0`, `logit_1`, … or `probability_0`, … or one `probability`
        (of class 1); optionally `person`.
    """
    path = Path(path)
    return _named(path, lambda: Scores(**_read(path, labelled=True), model=model))


def read_outputs(path: str | Path) -> Outputs:
    """The same files, where labels may be missing and are not looked at."""
    path = Path(path)
    found = _read(path, labelled=False)
    return _named(path, lambda: Outputs(**{k: v for k, v in found.items() if k in KINDS}))


def read_sources(path: str | Path, column: str, *, model: str | None = None) -> dict[str, Scores]:
    """One Scores for each value of a column of a Parquet or CSV table, in order of appearance."""
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        raise InputError(f"{path} is no table; only Parquet and CSV have a column to split by")
    table = _table(path, column)
    if column not in table.columns:
        raise InputError(f"{path} has no column {column!r}; it has {', '.join(table.columns)}")
    if table[column].null_count():
        row = int(table[column].is_null().arg_max() or 0)
        raise InputError(f"{path}: {column} of row {row} is missing")
    arrays = _named(path, lambda: Scores(**_from_table(path, table, labelled=True), model=model))
    keys = [str(v) for v in table[column].to_list()]
    if "" in keys:
        raise InputError(f"{path}: {column} of row {keys.index('')} is empty")
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(keys):
        rows.setdefault(value, []).append(row)
    return {value: arrays.take(np.array(at)) for value, at in rows.items()}


def _read(path: Path, *, labelled: bool) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"there is no file {path}")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".npy":
        found = _read_npy(path, labelled)
    elif suffix == ".npz":
        found = _read_npz(path, labelled)
    elif suffix in TABLES:
        found = _from_table(path, _table(path), labelled)
    else:
        raise InputError(f"{path} has an unknown ending; use .npz, .npy, .parquet or .csv")
    return found


def _read_npz(path: Path, labelled: bool) -> dict[str, Any]:
    archive = _load(path, ".npz")
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is not a .npz file, whatever its name says")
    with archive:
        keys = list(archive.files)
        found = {
            k: _load(path, ".npz", archive, k) for k in (*KINDS, "labels", "person") if k in keys
        }
    kinds = [k for k in KINDS if k in found]
    if len(kinds) != 1:
        raise InputError(
            f"{path} must hold either logits or probabilities; it holds {', '.join(keys) or 'nothing'}"
        )
    if labelled and "labels" not in found:
        raise InputError(f"{path} holds no labels")
    return found


def _read_npy(path: Path, labelled: bool) -> dict[str, Any]:
    if path.is_dir():
        candidates = [path / f"{kind}.npy" for kind in KINDS if (path / f"{kind}.npy").exists()]
        if len(candidates) != 1:
            raise InputError(f"folder {path} must hold either logits.npy or probabilities.npy")
        path = candidates[0]
    kinds = [kind for kind in KINDS if kind in path.name]
    if len(kinds) != 1:
        raise InputError(
            f"the name of {path} must say what it holds: logits or probabilities "
            "(its labels are then in the file with labels in that place)"
        )
    found = {kinds[0]: _map_npy(path)}
    for key, needed in (("labels", labelled), ("person", False)):
        sibling = path.with_name(path.name.replace(kinds[0], key))
        if sibling.exists():
            found[key] = _map_npy(sibling)
        elif needed:
            raise InputError(f"there is no file {sibling} with the labels of {path}")
    return found


def _map_npy(path: Path) -> Any:
    array = _load(path, ".npy")
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is not a .npy file, whatever its name says")
    return array


def _load(path: Path, ending: str, archive: Any = None, key: str = "") -> Any:
    """NumPy's readers raise all kinds of errors on damaged files; here they become one."""
    try:
        if archive is not None:
            return archive[key]
        return np.load(path, mmap_mode="r" if ending == ".npy" else None, allow_pickle=False)
    except Exception as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{path} is not a readable {ending} file, or is cut short ({first})"
        ) from None


def _table(path: Path, column: str | None = None) -> pl.DataFrame:
    import polars as pl

    if not path.exists():
        raise InputError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path, glob=False)
        # Types from the whole column, not from its first rows; ids stay text, or 007 would
        # become 7 and two persons one.
        text = {name: pl.String for name in ("person", column) if name}
        table = pl.read_csv(path, infer_schema_length=None, glob=False, schema_overrides=text)
    except (pl.exceptions.PolarsError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {path}: {first}") from None
    for name in table.columns:
        if re.fullmatch(r".*_duplicated_\d+", name):  # polars renames the second of its name
            raise InputError(f"{path} has two columns {name.rpartition('_duplicated_')[0]}")
    return table


def _from_table(path: Path, table: pl.DataFrame, labelled: bool) -> dict[str, Any]:
    columns = table.columns
    groups = {
        kind: sorted(
            (c for c in columns if re.fullmatch(rf"{prefix}_\d+", c)),
            key=lambda c: int(c.split("_")[1]),
        )
        for kind, prefix in (("logits", "logit"), ("probabilities", "probability"))
    }
    if "probability" in columns:
        groups["probabilities"] = ["probability", *groups["probabilities"]]
    present = {kind: names for kind, names in groups.items() if names}
    if len(present) != 1 or (
        "probability" in columns and len(present.get("probabilities", ())) > 1
    ):
        raise InputError(
            f"{path} must have either columns logit_0, logit_1, … or probability_0, … or one "
            f"probability; it has {', '.join(columns)}"
        )
    [(kind, names)] = present.items()
    numbered = [n for n in names if n != "probability"]
    if len(numbered) == 1:
        raise InputError(
            f"{path} has only {numbered[0]}; a single column must be called probability"
        )
    for place, name in enumerate(numbered):
        if int(name.split("_")[1]) != place:
            raise InputError(f"{path} has {name} but no {name.split('_')[0]}_{place}")
    for name in [*names, *(["label"] if labelled and "label" in columns else [])]:
        column = table[name]
        if column.null_count():
            raise InputError(
                f"{path}: {name} of row {int(column.is_null().arg_max() or 0)} is missing"
            )
        if not (column.dtype.is_numeric() or str(column.dtype) == "Boolean") and len(column):
            raise InputError(f"{path}: column {name} must hold numbers, not {column.dtype}")
    found: dict[str, Any] = {kind: table.select(names).cast(_float(table, names)).to_numpy()}
    if "label" in columns:
        found["labels"] = table["label"].to_numpy()
    elif labelled:
        raise InputError(f"{path} has no column label")
    if "person" in columns:
        found["person"] = table["person"].to_list()
    return found


def _float(table: pl.DataFrame, names: list[str]) -> Any:
    import polars as pl

    narrow = all(table[name].dtype == pl.Float32 for name in names)
    return pl.Float32 if narrow else pl.Float64


def _named(path: Path, make: Callable[[], T]) -> T:
    """Errors about rows, with the file they are in."""
    try:
        return make()
    except InputError as error:
        text = str(error)
        raise InputError(text if str(path) in text else f"{path}: {text}") from None
