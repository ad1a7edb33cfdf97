"""Scores from files: npz, a pair of npy files (memory-mapped), Parquet and CSV.

Strict reading raises an InputError that names the first malformed row: for the owner's own
terminal. Reading that is not strict marks it, and nothing that a row contains can make the reading
fail: for answering. The number of classes and all types come from the schema: a CSV's header, the
types of a Parquet file's columns or of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from privcal import lines
from privcal.errors import InputError
from privcal.scores import Outputs, Scores

if TYPE_CHECKING:
    import polars as pl

KINDS = ("logits", "probabilities")
TABLES = (".parquet", ".csv")
ENDINGS = (".npz", ".npy", *TABLES)
PERSON = "person"
"""The usual name of the person ids; the only one that may be absent."""

T = TypeVar("T")


def read_scores(
    path: str | Path,
    *,
    model: str | None = None,
    person: str | None = PERSON,
    strict: bool = True,
) -> Scores:
    """Labelled scores from a file.

    Parameters
    ----------
    path
        A file of one of these kinds, told by its ending:

        .npz
            Arrays `logits` or `probabilities`, `labels`, optionally `person`.
        .npy
            A file whose name contains `logits` or `probabilities`; the labels (and persons) are
            in the file of the same name with `labels` (`person`) instead. Or the folder that
            holds `logits.npy` and `labels.npy`. The outputs are opened as a memory map: they may
            be larger than memory.
        .parquet, .csv
            Columns `label` and `logit_0`, `logit_1`, … or `probability_0`, … or one `probability`
            (of class 1); optionally `person`. Each line of a CSV is one row.
    model
        The name of the model that the outputs came from; by default what the file says, as one
        written by `privcal score` does.
    person
        The name of the person ids. Ids called "person" may be absent; any other name must be
        there. None ignores them.
    strict
        Whether the first malformed row is an InputError, as for `Scores`.

    Returns
    -------
    Scores
        In the order of the file. A table without rows gives scores without rows.

    Examples
    --------
    >>> with open("clinic.csv", "w") as file:
    ...     _ = file.write("label,probability,patient\\n1,0.75,a\\n0,0.25,b\\n1,0.5,a\\n")
    >>> privcal.read_scores("clinic.csv", person="patient")
    Scores(3 rows of probabilities, 2 classes, with person ids)
    """
    path = Path(path)
    columns = _read(path, labelled=True, person=person, strict=strict)
    model = model or model_of(path)
    return _naming(path, lambda: Scores(**columns, model=model, strict=strict))


def model_of(path: Path) -> str | None:
    """The model that a Parquet file's metadata name, as `privcal score` writes them."""
    import polars as pl

    if path.suffix.lower() != ".parquet":
        return None
    with _polars_errors(path):
        return pl.read_parquet_metadata(path).get("privcal.model")


def read_outputs(path: str | Path) -> Outputs:
    """Outputs without labels, from the same kinds of files; labels are not looked at."""
    path = Path(path)
    columns = _read(path, labelled=False, person=None, strict=True)
    return _naming(path, lambda: Outputs(**{k: v for k, v in columns.items() if k in KINDS}))


def read_sources(
    path: str | Path,
    column: str,
    *,
    names: Sequence[str] | None = None,
    model: str | None = None,
    person: str | None = PERSON,
    strict: bool = True,
) -> dict[str, Scores]:
    """One Scores for each value of a column of a Parquet or CSV table.

    With `names`, a public list, exactly these in that order: those without rows are empty, and
    rows of any other value are left out. Else all values in order of appearance; which they are
    then depends on the rows. A row without a value is an InputError if `strict`, else left out.
    """
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        raise InputError(f"{path} is no table; only Parquet and CSV have a column to split by")
    if names is not None and (len(set(names)) != len(names) or "" in names):
        raise InputError(f"the names of sources must differ and not be empty: {', '.join(names)}")
    _check_exists(path)
    existing = list(_schema(path))
    if column not in existing:
        raise InputError(f"{path} has no column {column!r}; it has {', '.join(existing)}")
    columns, values = _read_table(path, labelled=True, person=person, strict=strict, column=column)
    keys = ["" if value is None else str(value) for value in values]
    if strict and "" in keys:
        raise InputError(f"{path}: {column} of row {keys.index('')} is missing")
    model = model or model_of(path)
    scores = _naming(path, lambda: Scores(**columns, model=model, strict=strict))
    rows: dict[str, list[int]] = {name: [] for name in names or ()}
    for row, key in enumerate(keys):
        if key in rows or (key and names is None):
            rows.setdefault(key, []).append(row)
    if strict and names is None and not rows:
        raise InputError(f"{path} has no rows, so nothing says which sources there are: list them")
    return {key: scores.take(np.array(indices, np.int64)) for key, indices in rows.items()}


@dataclass(frozen=True)
class Unused:
    """A column that nothing reads: neither label, scores nor person ids."""

    name: str
    different: int
    """The number of different values."""
    rows: int
    decimals: bool
    """Whether the values are numbers of which some are not whole: measured, not given out."""

    @property
    def looks_like_ids(self) -> bool:
        """Whether an owner should be asked if these are person ids.

        Yes where a word of the name says so, or where there are at least twenty different
        values, one for at most ten rows, that are not decimals.
        """
        words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower())
        many = self.different >= 20 and 10 * self.different >= self.rows
        return any(_ID_WORD.fullmatch(word) for word in words) or (many and not self.decimals)


_ID_WORD = re.compile(
    r"p?ids?|[ug]uid|mrn|mpi|ssn|nhs|patients?|subjects?|persons?|people|participants?|cases?"
    r"|(patient|subject|person|participant|case|stay|study|record|unique|user)\w*id"
)


def unused_columns(path: str | Path, *, person: str | None = PERSON) -> list[Unused]:
    """The columns of a table, or arrays of an npz, that nothing reads; only for the owner.

    A file whose person ids have another name than expected is read as if it had none, and every
    row then counts as a person of its own.
    """
    import polars as pl

    path = Path(path)
    _check_exists(path)
    suffix = path.suffix.lower()
    if suffix in TABLES:
        names = list(_schema(path))
        used = {"label", person, *_score_columns(path, names)[1]}
        if left := [name for name in names if name not in used]:
            return [_unused(column) for column in pl.concat(_pieces(path, left, strict=False))]
        return []
    if suffix != ".npz":
        return []
    unused = []
    with _npz(path) as archive:
        for name in archive.files:
            if name in (*KINDS, "labels", person):
                continue
            try:
                array = archive[name]
            except Exception:  # an array of Python objects: its name still says something
                array = np.empty(0)
            if array.ndim == 1:
                unused.append(_unused(pl.Series(name, array.tolist(), strict=False)))
    return unused


def _unused(column: pl.Series) -> Unused:
    import polars as pl

    values = column.drop_nulls()
    decimals = False
    if column.dtype == pl.String or column.dtype.is_float():
        number = _number(values)
        decimals = bool(number.is_not_null().all() and (number != number.floor()).any())
    return Unused(column.name, values.n_unique(), len(column), decimals)


def _read(path: Path, *, labelled: bool, person: str | None, strict: bool) -> dict[str, Any]:
    """The arguments of Scores: outputs, labels and person ids."""
    _check_exists(path)
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".npy":
        return _read_npy(path, labelled, person)
    if suffix == ".npz":
        return _read_npz(path, labelled, person)
    if suffix in TABLES:
        return _read_table(path, labelled=labelled, person=person, strict=strict)[0]
    raise InputError(f"{path} has an unknown ending; use .npz, .npy, .parquet or .csv")


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise InputError(f"there is no file {path}")


def _has_person(
    path: Path, person: str | None, what: str, taken: Sequence[str], names: Sequence[str]
) -> bool:
    """Whether there are person ids; only the usual name for them may be absent."""
    if person in taken:
        raise InputError(f"{path}: {person} holds labels or scores, not person ids")
    if person not in (None, PERSON, *names):
        raise InputError(f"{path} has no {what} {person}; it has {', '.join(names)}")
    return person in names


# --- arrays ------------------------------------------------------------------------------


def _read_npz(path: Path, labelled: bool, person: str | None) -> dict[str, Any]:
    with _npz(path) as archive:
        keys = list(archive.files)
        wanted = {k: k for k in (*KINDS, "labels") if k in keys}
        if _has_person(path, person, "array", (*KINDS, "labels"), keys):
            wanted["person"] = str(person)
        arrays = {k: _load(path, ".npz", archive, name) for k, name in wanted.items()}
    if len([k for k in KINDS if k in arrays]) != 1:
        raise InputError(
            f"{path} must hold either logits or probabilities; it holds {', '.join(keys) or 'nothing'}"
        )
    if labelled and "labels" not in arrays:
        raise InputError(f"{path} holds no labels")
    return arrays


def _npz(path: Path) -> Any:
    archive = _load(path, ".npz")
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"{path} is not a .npz file, whatever its name says")
    return archive


def outputs_file(path: str | Path) -> Path:
    """The file that holds the outputs: `path` itself, or the one .npy file of that kind in a folder."""
    path = Path(path)
    if not path.is_dir():
        return path
    files = [path / f"{kind}.npy" for kind in KINDS if (path / f"{kind}.npy").exists()]
    if len(files) != 1:
        raise InputError(f"folder {path} must hold either logits.npy or probabilities.npy")
    return files[0]


def _read_npy(path: Path, labelled: bool, person: str | None) -> dict[str, Any]:
    path = outputs_file(path)
    kinds = [kind for kind in KINDS if kind in path.name]
    if len(kinds) != 1:
        raise InputError(
            f"the name of {path} must say what it holds: logits or probabilities "
            "(its labels are then in the file with labels in that place)"
        )
    arrays = {kinds[0]: _npy(path, mapped=True)}
    if person in (*KINDS, "labels"):
        raise InputError(f"{path}: {person} holds labels or scores, not person ids")
    for key, name, needed in (
        ("labels", "labels", labelled),
        ("person", person, person != PERSON),
    ):
        if name is None:
            continue
        sibling = path.parent / path.name.replace(kinds[0], name)
        if sibling.exists():
            arrays[key] = _npy(sibling)
        elif needed:
            what = key if key == "labels" else "person ids"
            raise InputError(f"there is no file {sibling} with the {what} of {path}")
    return arrays


def _npy(path: Path, mapped: bool = False) -> Any:
    array = _load(path, ".npy", mapped=mapped)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is not a .npy file, whatever its name says")
    return array


def _load(path: Path, ending: str, archive: Any = None, key: str = "", mapped: bool = False) -> Any:
    """What NumPy reads; all the kinds of errors it raises on damaged files become one."""
    try:
        if archive is not None:
            return archive[key]
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except Exception as error:
        # NumPy's own words would advise to load what must not be loaded.
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InputError(f"{path} is not a readable {ending} file, or is cut short{why}") from None


# --- tables ------------------------------------------------------------------------------


def _read_table(
    path: Path, *, labelled: bool, person: str | None, strict: bool, column: str | None = None
) -> tuple[dict[str, Any], list[Any]]:
    """The arguments of Scores, and the values of one more column."""
    import polars as pl

    schema = _schema(path)
    kind, names = _score_columns(path, list(schema))
    if labelled and "label" not in schema:
        raise InputError(f"{path} has no column label")
    numbers = [*names, "label"] if labelled else names
    for name in numbers:
        if not (schema[name].is_numeric() or schema[name] in (pl.Boolean, pl.String, pl.Null)):
            raise InputError(f"{path}: column {name} must hold numbers, not {schema[name]}")
    if not _has_person(path, person, "column", [*names, "label"], list(schema)):
        person = None
    if person is not None:
        ids = schema[person]
        text = (pl.String, pl.Categorical, pl.Enum, pl.Binary, pl.Null)
        if not (ids.is_integer() or ids.is_float() or ids in text):
            raise InputError(f"{path}: column {person} must hold ids, text or numbers, not {ids}")
    parts, persons, keys = [], [], []
    row = 0
    extra = [name for name in (person, column) if name is not None]
    for piece in _pieces(path, [*numbers, *extra], strict=strict):
        parts.append(_numbers(path, piece, numbers, row, strict))
        persons += [] if person is None else piece[person].to_list()
        keys += [] if column is None else piece[column].to_list()
        row += len(piece)
    table = pl.concat(parts)
    narrow = all(schema[name] == pl.Float32 for name in names)
    outputs = table.select(names).cast(pl.Float32 if narrow else pl.Float64)
    columns: dict[str, Any] = {kind: outputs.to_numpy()}
    if labelled:
        columns["labels"] = table["label"].to_numpy()
    if person is not None:
        columns["person"] = persons
    return columns, keys


def _schema(path: Path) -> dict[str, Any]:
    """Names and types of the columns; all of a CSV's are text."""
    import polars as pl

    if path.suffix.lower() == ".csv":
        return dict.fromkeys(lines.header(path), pl.String)
    with _polars_errors(path):
        return dict(pl.scan_parquet(path, glob=False).collect_schema())


def _pieces(path: Path, wanted: Sequence[str], *, strict: bool) -> Iterator[pl.DataFrame]:
    """Some columns, one or more pieces of rows."""
    import polars as pl

    wanted = list(dict.fromkeys(wanted))
    if path.suffix.lower() == ".csv":
        yield from lines.cells(path, wanted, strict=strict)
        return
    with _polars_errors(path):
        table = pl.read_parquet(path, columns=wanted, glob=False)
    yield table


@contextmanager
def _polars_errors(path: Path) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {path}: {first}") from None


def _score_columns(path: Path, columns: list[str]) -> tuple[str, list[str]]:
    """Logits or probabilities, and their columns in the order of their numbers."""
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
    for index, name in enumerate(numbered):
        if int(name.split("_")[1]) != index:
            raise InputError(f"{path} has {name} but no {name.split('_')[0]}_{index}")
    return kind, names


def _numbers(
    path: Path, piece: pl.DataFrame, names: list[str], first: int, strict: bool
) -> pl.DataFrame:
    """Columns of numbers, NaN where a cell holds none; that is an InputError if `strict`."""
    import polars as pl

    read = pl.DataFrame([_number(piece[name]) for name in names])
    if strict and any(column.null_count() for column in read):
        row = int(read.select(pl.any_horizontal(pl.all().is_null())).to_series().arg_max() or 0)
        name = next(column.name for column in read if column[row] is None)
        cell = piece[name][row]
        blank = cell is None or not str(cell).strip()
        problem = "missing" if blank else f"{str(cell)[:60]!r}, not a number"
        raise InputError(f"{path}: {name} of row {first + row} is {problem}")
    return read.fill_null(float("nan"))


def _number(column: pl.Series) -> pl.Series:
    """Each cell as a number by itself, null where it is none."""
    import polars as pl

    if column.dtype != pl.String:
        return column if column.dtype == pl.Float32 else column.cast(pl.Float64, strict=False)
    number = column.cast(pl.Float64, strict=False)
    if not number.null_count():
        return number
    text = column.str.strip_chars()
    truth = text.str.to_lowercase().replace_strict(
        {"true": 1.0, "false": 0.0}, default=None, return_dtype=pl.Float64
    )
    return number.fill_null(text.cast(pl.Float64, strict=False)).fill_null(truth)


def _naming(path: Path, make: Callable[[], T]) -> T:
    """What `make` returns; its errors about rows get the name of the file."""
    try:
        return make()
    except InputError as error:
        text = str(error)
        raise InputError(text if str(path) in text else f"{path}: {text}") from None
