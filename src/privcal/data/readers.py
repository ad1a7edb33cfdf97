"""Scores from files and data frames: npz, npy files (memory-mapped), Parquet, Arrow and CSV.

Strict reading raises an InputError that names the first malformed row: for the owner's own
terminal. Reading that is not strict marks it, and nothing that a row contains can make the reading
fail: for answering. The number of classes and all types come from the schema: a CSV's header, the
names and types of a table's columns or of arrays, and what is said of them (`privcal.data.columns`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privcal.data.columns import (
    AS_NAMED,
    PERSON,
    Layout,
    Roles,
    find_arrays,
    find_roles,
)
from privcal.data.scores import Outputs, Scores
from privcal.data.tables import (
    TABLES,
    ArrayTable,
    NpyFiles,
    Table,
    ending,
    naming,
    open_table,
    polars_errors,
    with_lines,
)
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import polars as pl


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
    layout, person = Layout.of(columns, class_names).without_person(person)
    given = _given(path)
    model = model or model_of(given)
    with with_lines(given, strict):
        arguments = _read(given, layout, labelled=True, person=person, strict=strict)
        with naming(given):
            return Scores(**arguments, model=model, strict=strict)


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
    layout, _ = Layout.of(columns, class_names).without_person(None)
    given = _given(path)
    unread = ("labels", "correct", "person")
    with with_lines(given):
        arguments = _read(given, layout, labelled=False, person=None, strict=True)
        wanted = {k: v for k, v in arguments.items() if k not in unread}
        with naming(given):
            return Outputs(**wanted)


def class_names_of(path: Path, layout: Layout = AS_NAMED) -> tuple[str, ...] | None:
    """What the classes of a file are called, by its names and what is declared; no row is read."""
    table = open_table(path)
    if not isinstance(table, ArrayTable):
        return find_roles(str(path), table.names, layout, None, labelled=False).class_names
    kind = next(iter(find_arrays(str(path), table.names, layout, labelled=False)))
    return names_in(table, layout, kind)


def names_in(arrays: ArrayTable, layout: Layout, kind: str) -> tuple[str, ...] | None:
    """What the classes are called in a file of arrays that holds outputs of this kind."""
    if kind == "confidence":
        return None
    if layout.class_names or "class_names" not in arrays.names:
        return layout.class_names or None
    return tuple(str(name) for name in arrays.read("class_names").ravel())


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
    layout, person = Layout.of(columns).without_person(person)
    path = Path(path)
    if ending(path) not in TABLES:
        raise InputError(
            f"{path} is no table; only Parquet, Arrow and CSV have a column to split by"
        )
    if names is not None and (len(set(names)) != len(names) or "" in names):
        raise InputError(f"the names of sources must differ and not be empty: {', '.join(names)}")
    table = open_table(path)
    if column not in table.schema:
        raise InputError(f"{path} has no column {column!r}; it has {', '.join(table.schema)}")
    model = model or model_of(path)
    with with_lines(path, strict):
        arguments, values = _read_table(
            table, layout, labelled=True, person=person, strict=strict, column=column
        )
        keys = ["" if value is None else str(value) for value in values]
        if strict and "" in keys:
            raise InputError(f"{path}: {column} of row {keys.index('')} is missing")
        with naming(path):
            scores = Scores(**arguments, model=model, strict=strict)
    rows: dict[str, list[int]] = {name: [] for name in names or ()}
    for row, key in enumerate(keys):
        if key in rows or (key and names is None):
            rows.setdefault(key, []).append(row)
    if strict and names is None and not rows:
        raise InputError(f"{path} has no rows, so nothing says which sources there are: list them")
    return {key: scores.take(np.array(indices, np.int64)) for key, indices in rows.items()}


def _given(path: Any) -> Any:
    return Path(path) if isinstance(path, (str, Path)) else path


def _read(
    given: Any, layout: Layout, *, labelled: bool, person: str | None, strict: bool
) -> dict[str, Any]:
    """The arguments of Scores: outputs, labels and person ids."""
    table = open_table(given)
    if isinstance(table, ArrayTable):
        return _read_arrays(table, layout, labelled, person)
    return _read_table(table, layout, labelled=labelled, person=person, strict=strict)[0]


def _read_arrays(
    arrays: ArrayTable, layout: Layout, labelled: bool, person: str | None
) -> dict[str, Any]:
    path, names = arrays.path, arrays.names
    if isinstance(arrays, NpyFiles):
        needed = {"labels": "labels"} if labelled else {}
        needed |= {} if person in (None, *names, PERSON) else {str(person): "person ids"}
        for name, what in needed.items():
            if not (file := arrays.member(name)).exists():
                raise InputError(f"there is no file {file} with the {what} of {path}")
        names = list({**dict.fromkeys(names), **needed})
    wanted = find_arrays(str(path), names, layout, labelled=labelled)
    kind = next(iter(wanted))
    if person in wanted.values():
        raise InputError(f"{path}: {person} holds labels or scores, not person ids")
    if person not in (None, PERSON, *names):
        raise InputError(arrays.missing(str(person)))
    if person is not None and person in names:
        wanted["person"] = person
    read = {what: arrays.read(name) for what, name in wanted.items()}
    return {**read, "class_names": names_in(arrays, layout, kind)}


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
