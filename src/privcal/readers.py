"""Scores from files and data frames: npz, npy files (memory-mapped), Parquet, Arrow and CSV.

Strict reading raises an InputError that names the first malformed row: for the owner's own
terminal. Reading that is not strict marks it, and nothing that a row contains can make the reading
fail: for answering. The number of classes and all types come from the schema: a CSV's header, the
names and types of a table's columns or of arrays, and what is said of them (`privcal.columns`).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from privcal import tables
from privcal.columns import PERSON, Layout, Roles, find_roles
from privcal.errors import InputError
from privcal.scores import Outputs, Scores
from privcal.tables import Table, ending, is_table, open_table, polars_errors

if TYPE_CHECKING:
    import polars as pl

KINDS = ("logits", "probabilities")
ARRAYS = (*KINDS, "log_odds", "confidence")
"""What the outputs are called in an .npz file: as `Scores` does."""
ENDINGS = (".npz", ".npy", *tables.ENDINGS)

T = TypeVar("T")


def read_scores(
    path: Any,
    *,
    model: str | None = None,
    person: str | None = PERSON,
    columns: Mapping[str, str] | Layout | None = None,
    class_names: Sequence[str] | None = None,
    strict: bool = True,
) -> Scores:
    """Labelled scores from a file or a data frame.

    Parameters
    ----------
    path
        A file of one of these kinds, told by its ending:

        .npz
            Arrays `logits` or `probabilities`, `labels`, optionally `person`. Or `confidence` and
            `correct`; or `log_odds` of class 1. `class_names` may be there.
        .npy
            A file whose name contains `logits` or `probabilities`; the labels (and persons) are
            in the file of the same name with `labels` (`person`) instead. Or the folder that
            holds `logits.npy` and `labels.npy`. The outputs are opened as a memory map: they may
            be larger than memory.
        .parquet, .feather, .arrow, .csv, .tsv, .csv.gz, .tsv.gz
            Columns `label` and `logit_0`, `logit_1`, … or `probability_0`, … or one `probability`
            or `logit` (the log-odds) of class 1; or `confidence` and `correct`; optionally `person`.
            Classes may have names: `logit_cat`, `logit_dog`. OHDSI's `value`, `outcomeCount` and
            `subjectId` are known too. Each line of a CSV is one row; commas, semicolons or tabs
            separate fields.

        Or a data frame with such columns: of Polars, pandas, or anything that gives Arrow data.
    model
        The name of the model that the outputs came from; by default what the file says, as one
        written by `privcal score` does.
    person
        The name of the person ids. Ids called "person" may be absent; any other name must be
        there. None ignores them.
    columns
        Which column is what, where they have other names: `{"label": "died", "probability": "risk"}`.
    class_names
        What the classes are called, in order; labels may then be names.
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
    >>> import polars as pl
    >>> table = pl.DataFrame({"sure": [0.9, 0.4], "right": [True, False]})
    >>> privcal.read_scores(table, columns={"confidence": "sure", "correct": "right"})
    Scores(2 rows of confidence)
    """
    layout, person = _layout(columns, class_names).without_person(person)
    given = _given(path)
    arguments = _read(given, layout, labelled=True, person=person, strict=strict)
    model = model or model_of(given)
    return _naming(given, lambda: Scores(**arguments, model=model, strict=strict))


def model_of(given: Any) -> str | None:
    """The model that a Parquet file's metadata name, as `privcal score` writes them."""
    return _recorded(given, "privcal.model")


def unit_of(given: Any) -> str | None:
    """Whom a Parquet file's metadata say to protect, `person` or `row`, as `privcal score` writes them."""
    return _recorded(given, "privcal.unit")


def _recorded(given: Any, fact: str) -> str | None:
    import polars as pl

    if not isinstance(given, Path) or given.suffix.lower() != ".parquet" or not given.is_file():
        return None
    with polars_errors(str(given)):
        return pl.read_parquet_metadata(given).get(fact)


def read_outputs(
    path: Any,
    *,
    columns: Mapping[str, str] | Layout | None = None,
    class_names: Sequence[str] | None = None,
) -> Outputs:
    """Outputs without labels, from the same files and frames; labels are not looked at."""
    layout, _ = _layout(columns, class_names).without_person(None)
    given = _given(path)
    arguments = _read(given, layout, labelled=False, person=None, strict=True)
    unread = ("labels", "correct", "person")
    return _naming(
        given, lambda: Outputs(**{k: v for k, v in arguments.items() if k not in unread})
    )


def read_sources(
    path: str | Path,
    column: str,
    *,
    names: Sequence[str] | None = None,
    model: str | None = None,
    person: str | None = PERSON,
    columns: Mapping[str, str] | Layout | None = None,
    strict: bool = True,
) -> dict[str, Scores]:
    """One Scores for each value of a column of a table.

    With `names`, a public list, exactly these in that order: those without rows are empty, and
    rows of any other value are left out. Else all values in order of appearance; which they are
    then depends on the rows. A row without a value is an InputError if `strict`, else left out.
    """
    layout, person = _layout(columns, None).without_person(person)
    path = Path(path)
    if ending(path) not in tables.ENDINGS:
        raise InputError(
            f"{path} is no table; only Parquet, Arrow and CSV have a column to split by"
        )
    if names is not None and (len(set(names)) != len(names) or "" in names):
        raise InputError(f"the names of sources must differ and not be empty: {', '.join(names)}")
    table = open_table(path)
    if column not in table.schema:
        raise InputError(f"{path} has no column {column!r}; it has {', '.join(table.schema)}")
    arguments, values = _read_table(
        table, layout, labelled=True, person=person, strict=strict, column=column
    )
    keys = ["" if value is None else str(value) for value in values]
    if strict and "" in keys:
        raise InputError(f"{path}: {column} of row {keys.index('')} is missing")
    model = model or model_of(path)
    scores = _naming(path, lambda: Scores(**arguments, model=model, strict=strict))
    rows: dict[str, list[int]] = {name: [] for name in names or ()}
    for row, key in enumerate(keys):
        if key in rows or (key and names is None):
            rows.setdefault(key, []).append(row)
    if strict and names is None and not rows:
        raise InputError(f"{path} has no rows, so nothing says which sources there are: list them")
    return {key: scores.take(np.array(indices, np.int64)) for key, indices in rows.items()}


def _layout(
    columns: Mapping[str, str] | Layout | None, class_names: Sequence[str] | None
) -> Layout:
    return columns if isinstance(columns, Layout) else Layout.of(columns, class_names)


def _given(path: Any) -> Any:
    return Path(path) if isinstance(path, (str, Path)) else path


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


def unused_columns(
    path: str | Path,
    *,
    person: str | None = PERSON,
    columns: Mapping[str, str] | Layout | None = None,
) -> list[Unused]:
    """The columns of a table, or arrays of an npz, that nothing reads; only for the owner.

    A file whose person ids have another name than expected is read as if it had none, and every
    row then counts as a person of its own.
    """
    import polars as pl

    path = Path(path)
    layout, person = _layout(columns, None).without_person(person)
    _check_exists(path)
    if ending(path) in tables.ENDINGS:
        table = open_table(path)
        names = list(table.schema)
        used = set(find_roles(str(path), names, layout, person, labelled=False).used)
        if left := [name for name in names if name not in used]:
            return [_unused(column) for column in pl.concat(table.pieces(left, strict=False))]
        return []
    if path.suffix.lower() != ".npz":
        return []
    unused = []
    used = {layout.array(name) for name in (*ARRAYS, "labels", "correct", "class_names")}
    with _npz(path) as archive:
        for name in archive.files:
            if name in used or name == person:
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
        number = to_number(values)
        decimals = bool(number.is_not_null().all() and (number != number.floor()).any())
    return Unused(column.name, values.n_unique(), len(column), decimals)


def _read(
    given: Any, layout: Layout, *, labelled: bool, person: str | None, strict: bool
) -> dict[str, Any]:
    """The arguments of Scores: outputs, labels and person ids."""
    if is_table(given):
        table = open_table(given)
        return _read_table(table, layout, labelled=labelled, person=person, strict=strict)[0]
    _check_exists(given)
    if given.is_dir() or ending(given) == ".npy":
        return _read_npy(given, layout, labelled, person)
    if ending(given) == ".npz":
        return _read_npz(given, layout, labelled, person)
    raise InputError(f"{given} has an unknown ending; use {', '.join(ENDINGS)}")


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise InputError(f"there is no file {path}")


def is_scores(path: Path) -> bool:
    """Whether a name is one of data: a folder of .npy files, or a file with such an ending."""
    return path.is_dir() or ending(path) in ENDINGS


# --- arrays ------------------------------------------------------------------------------


def _read_npz(path: Path, layout: Layout, labelled: bool, person: str | None) -> dict[str, Any]:
    with _npz(path) as archive:
        keys = list(archive.files)
        wanted = _array_names(path, keys, layout, labelled=labelled)
        if person in wanted.values():
            raise InputError(f"{path}: {person} holds labels or scores, not person ids")
        if person not in (None, PERSON, *keys):
            raise InputError(f"{path} has no array {person}; it has {', '.join(keys)}")
        if person is not None and person in keys:
            wanted["person"] = person
        arrays = {k: _load(path, ".npz", archive, name) for k, name in wanted.items()}
        [kind] = [kind for kind in ARRAYS if kind in arrays]
        arrays["class_names"] = _class_names(path, archive, layout, kind)
    return arrays


def _array_names(
    path: Path, keys: Sequence[str], layout: Layout, *, labelled: bool
) -> dict[str, str]:
    """What the outputs and the labels are called in an .npz file."""
    for name, called in layout.columns:
        if name not in (*ARRAYS, "labels", "correct") or called not in keys:
            raise InputError(
                f"{path} has no array {called} ({name}); it has {', '.join(keys) or 'none'}"
            )
    said = [name for name, _ in layout.columns if name in ARRAYS]
    known = (*(said or ARRAYS), "labels", "correct")
    wanted = {name: layout.array(name) for name in known if layout.array(name) in keys}
    if set(KINDS) & set(wanted):
        wanted.pop("confidence", None)  # beside the outputs of all classes it is one more array
    wanted.pop("labels" if "confidence" in wanted else "correct", None)
    if len([name for name in ARRAYS if name in wanted]) != 1:
        raise InputError(
            f"{path} must hold either logits or probabilities, or confidence and correct; it holds "
            f"{', '.join(keys) or 'nothing'}"
        )
    truth = "correct" if "confidence" in wanted else "labels"
    if labelled and truth not in wanted:
        raise InputError(f"{path} holds no {truth}")
    return wanted


def _class_names(path: Path, archive: Any, layout: Layout, kind: str) -> tuple[str, ...] | None:
    if layout.class_names or kind == "confidence" or "class_names" not in archive.files:
        return layout.class_names or None
    names = _load(path, ".npz", archive, "class_names")
    return tuple(str(name) for name in names.ravel())


@dataclass(frozen=True)
class Arrays:
    """A file of arrays: its outputs, which are read in batches, and what else each row has."""

    path: Path
    kind: str
    name: str
    """What the outputs are called in an .npz file."""
    class_names: tuple[str, ...] | None
    others: dict[str, Any]


def array_roles(path: Path, layout: Layout) -> Arrays:
    """What a file of arrays holds, with all but the outputs read."""
    _check_exists(path)
    if path.is_dir() or ending(path) == ".npy":
        arrays = _read_npy(path, layout, False, PERSON)
        [kind] = [kind for kind in KINDS if kind in arrays]
        others: dict[str, Any] = {n: arrays[n] for n in ("labels", "person") if n in arrays}
        return Arrays(outputs_file(path), kind, kind, layout.class_names or None, others)
    if ending(path) != ".npz":
        raise InputError(f"{path} has an unknown ending; use {', '.join(ENDINGS)}")
    with _npz(path) as archive:
        wanted = _array_names(path, archive.files, layout, labelled=False)
        [kind] = [kind for kind in ARRAYS if kind in wanted]
        rows = _npz_header(path, wanted[kind])[0][:1]
        others = {}
        for name in archive.files:
            if name in (wanted[kind], "class_names") or _npz_header(path, name)[0] != rows:
                continue
            others["labels" if name == wanted.get("labels") else name] = _load(
                path, ".npz", archive, name
            )
        names = _class_names(path, archive, layout, kind)
    return Arrays(path, kind, wanted[kind], names, others)


def array_batches(arrays: Arrays, numbers: int) -> Iterator[Any]:
    """The outputs, about so many numbers at a time; at least one batch, perhaps without rows."""
    if ending(arrays.path) == ".npy":
        outputs = _npy(arrays.path, mapped=True)
        step = max(1, numbers // max(1, int(np.prod(outputs.shape[1:]))))
        for start in range(0, max(1, len(outputs)), step):
            yield outputs[start : start + step]
        return
    yield from _npz_batches(arrays.path, arrays.name, numbers)


def _npz_batches(path: Path, name: str, numbers: int) -> Iterator[Any]:
    """An array of an .npz file, unpacked some rows at a time where its order allows that."""
    shape, fortran, dtype = _npz_header(path, name)
    if fortran or not shape or dtype.hasobject:
        with _npz(path) as archive:
            yield _load(path, ".npz", archive, name)
        return
    width = int(np.prod(shape[1:]))
    step = max(1, numbers // max(1, width))
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        _header(member)
        for start in range(0, max(1, shape[0]), step):
            rows = min(step, shape[0] - start)
            try:
                data = member.read(rows * width * dtype.itemsize)
                array = np.frombuffer(data, dtype).reshape(rows, *shape[1:])
            except Exception:  # all kinds, on damaged files
                raise _damaged(path) from None
            yield array


def _npz_header(path: Path, name: str) -> Any:
    """Shape, order and type of an array of an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            return _header(member)
    except Exception:
        raise _damaged(path) from None


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is not a readable .npz file, or is cut short")


def _header(member: Any) -> Any:
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(member)]
    return read(member)


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


def read_with(path: Path) -> list[Path]:
    """The files that are read where this one is named: of .npy files, those with labels and persons too."""
    if not path.is_dir() and ending(path) != ".npy":
        return [path]
    file = outputs_file(path)
    kind = next((kind for kind in KINDS if kind in file.name), "")
    others = [file.with_name(file.name.replace(kind, name)) for name in ("labels", PERSON) if kind]
    return [file, *others]


def _read_npy(path: Path, layout: Layout, labelled: bool, person: str | None) -> dict[str, Any]:
    path = outputs_file(path)
    if layout.columns:
        raise InputError(f"{path} has no columns; the names of .npy files say what they hold")
    kinds = [kind for kind in KINDS if kind in path.name]
    if len(kinds) != 1:
        raise InputError(
            f"the name of {path} must say what it holds: logits or probabilities "
            "(its labels are then in the file with labels in that place)"
        )
    arrays: dict[str, Any] = {kinds[0]: _npy(path, mapped=True)}
    if layout.class_names:
        arrays["class_names"] = layout.class_names
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
    table: Table,
    layout: Layout,
    *,
    labelled: bool,
    person: str | None,
    strict: bool,
    column: str | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """The arguments of Scores, and the values of one more column."""
    import polars as pl

    schema = table.schema
    roles = find_roles(table.where, list(schema), layout, person, labelled=labelled)
    check_types(table, roles, labelled=labelled)
    labels = [roles.label] if labelled and roles.label is not None else []
    named = [] if roles.class_names is None else labels  # names of classes are no numbers
    numbers = [*roles.scores, *(label for label in labels if label not in named)]
    extra = [name for name in (roles.person, column) if name is not None]
    lists: dict[str, list[Any]] = {name: [] for name in (*named, *extra)}
    parts = []
    row = 0
    for piece in table.pieces([*numbers, *lists], strict=strict):
        parts.append(as_numbers(table.where, piece, numbers, row, strict))
        for name, values in lists.items():
            values += piece[name].to_list()
        row += len(piece)
    read = pl.concat(parts)
    arguments = outputs_of(roles, read, schema)
    for label in labels:
        given = _objects(lists[label]) if named else _events(read[label], roles).to_numpy()
        arguments[roles.truth] = given
    if roles.person is not None:
        arguments["person"] = lists[roles.person]
    return arguments, [] if column is None else lists[column]


def check_types(table: Table, roles: Roles, *, labelled: bool) -> None:
    """An InputError where a column has a type that its role cannot have: rows play no part."""
    import polars as pl

    text = (pl.String, pl.Categorical, pl.Enum, pl.Binary, pl.Null)
    label = roles.label if labelled else None
    for name in roles.used:
        dtype = table.schema[name]
        if name == roles.person:
            if not (dtype.is_integer() or dtype.is_float() or dtype in text):
                raise InputError(
                    f"{table.where}: column {name} must hold ids, text or numbers, not {dtype}"
                )
        elif name != label and name not in roles.scores:
            continue
        elif not (dtype.is_numeric() or dtype in (pl.Boolean, pl.String, pl.Null)):
            categories = name == label and dtype in (pl.Categorical, pl.Enum)
            if not (categories and roles.class_names is not None):
                hint = "; name the classes with --classes" if categories else ""
                raise InputError(
                    f"{table.where}: column {name} must hold numbers, not {dtype}{hint}"
                )


def outputs_of(roles: Roles, read: pl.DataFrame, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of Outputs, from columns of numbers."""
    import polars as pl

    narrow = all(schema[name] == pl.Float32 for name in roles.scores)
    outputs = read.select(roles.scores).cast(pl.Float32 if narrow else pl.Float64)
    arguments: dict[str, Any] = {roles.kind: outputs.to_numpy()}
    if roles.class_names is not None:
        arguments["class_names"] = roles.class_names
    return arguments


def labels_of(roles: Roles, piece: pl.DataFrame) -> Any:
    """The labels of some rows of a table, as `Scores` takes them if not strict; None without any."""
    if roles.label is None or roles.kind == "confidence":
        return None
    if roles.class_names is not None:
        return _objects(piece[roles.label].to_list())
    read = as_numbers("", piece, [roles.label], 0, strict=False)
    return _events(read[roles.label], roles).to_numpy()


def _objects(values: list[Any]) -> Any:
    """Each value by itself: an array of text would be as wide for every row as its longest one."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _events(labels: pl.Series, roles: Roles) -> pl.Series:
    """Labels; of counted events, one is enough."""
    if not roles.counts:
        return labels
    several = (labels > 1) & labels.is_finite() & (labels == labels.floor())
    return labels.set(several, 1.0)


def as_numbers(
    where: str, piece: pl.DataFrame, names: Sequence[str], first: int, strict: bool
) -> pl.DataFrame:
    """Columns of numbers, NaN where a cell holds none; that is an InputError if `strict`."""
    import polars as pl

    read = pl.DataFrame([to_number(piece[name]) for name in names])
    if strict and any(column.null_count() for column in read):
        row = int(read.select(pl.any_horizontal(pl.all().is_null())).to_series().arg_max() or 0)
        name = next(column.name for column in read if column[row] is None)
        raise InputError(f"{where}: {name} of row {first + row} is {_no_number(piece[name][row])}")
    return read.fill_null(float("nan"))


def _no_number(cell: Any) -> str:
    """What a cell is that should be a number."""
    text = "" if cell is None else str(cell).strip()
    if not text:
        return "missing"
    if re.fullmatch(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?", text):
        return f"{text[:60]!r}, with a decimal comma: write decimal points"
    hint = "; for names of classes say --classes" if re.fullmatch(r"[^\W\d]\w*", text) else ""
    return f"{text[:60]!r}, not a number{hint}"


def to_number(column: pl.Series) -> pl.Series:
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


def _naming(given: Any, make: Callable[[], T]) -> T:
    """What `make` returns; its errors about rows get the name of the file."""
    try:
        return make()
    except InputError as error:
        text = str(error)
        if not isinstance(given, Path) or str(given) in text:
            raise
        raise InputError(f"{given}: {text}") from None
