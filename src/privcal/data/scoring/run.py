"""Scores of a table: read in pieces, run row by row, written as a whole or not at all.

A malformed row (a cell that the model cannot take, a label that is no class, a run that fails, ends
its process or takes too much) has no scores and changes no other row. Strict scoring says which one
it is: for the owner's terminal.

Each cell is read by itself, and no cell by another. Types come from the schema. What is held at a time is
bounded, whatever the file is.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privcal.data.files import replacing
from privcal.data.readers import to_number
from privcal.data.scores import Scores, without_damage
from privcal.data.scoring.model import Input, Model, Setup
from privcal.data.tables import TABLES, NpzFile, ending, naming, open_table, with_lines
from privcal.trusted.errors import InputError
from privcal.trusted.scores import BoolArray, FloatArray

MODEL = "privcal.model"
CLASSES = "privcal.classes"
UNIT = "privcal.unit"
"""The names under which a Parquet file of scores says which model and classes they are of."""

LABEL, PERSON = "label", "person"
OUT = (".parquet", ".csv")

Progress = Callable[[int], None]
"""Called now and then with the number of rows done."""


def scored(
    model: Model,
    table: str | Path,
    setup: Setup,
    *,
    keep: Sequence[str] = (),
    strict: bool = True,
    remedy: bool = False,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """The table's scores with labels, person ids and the columns to keep, some rows at a time.

    Each row is run through the model alone. A malformed row is an InputError if `strict`, with the
    `remedy` of `privcal score` where that is wanted; else all its scores are NaN.
    """
    done = 0
    with with_lines(Path(table), strict):
        for piece in Features(table, model, setup, keep).pieces(strict):
            bad = piece.bad
            if strict and bad.any():
                raise InputError(f"{table}: {piece.complaint(int(np.argmax(bad)), remedy)}")
            outputs = _run(model, piece, str(table) if strict else None)
            _check(model, piece, outputs, setup, str(table) if strict else None)
            yield _frame(model, piece, outputs, setup)
            done += len(piece)
            if progress is not None:
                progress(done)


def score_table(
    model: Model,
    table: str | Path,
    out: str | Path,
    setup: Setup,
    *,
    keep: Sequence[str] = (),
    skip_malformed: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write a table's scores, Parquet or CSV by the ending of `out`; the numbers of rows written and
    left out.

    A Parquet file says in its metadata which model (`privcal.model`) and classes
    (`privcal.classes`) its scores are of, and whether a `person` or a `row` is to be protected
    (`privcal.unit`). With `skip_malformed` a malformed row is left out, and
    counts for nothing in whatever is made of the scores; else it is an InputError.
    """
    out = Path(out)
    if out.suffix.lower() not in OUT:
        raise InputError(f"{out} has an unknown ending; use .parquet or .csv")
    rows = left = 0

    def frames() -> Iterator[pl.DataFrame]:
        nonlocal rows, left
        for frame in scored(
            model,
            table,
            setup,
            keep=keep,
            strict=not skip_malformed,
            remedy=True,
            progress=progress,
        ):
            good = frame.filter(pl.col(score_columns(model)[0]).is_not_nan())
            rows, left = rows + len(good), left + len(frame) - len(good)
            yield good

    write_frames(model, frames(), out, {UNIT: "row" if setup.person is None else "person"})
    return rows, left


def write_frames(
    model: Model,
    frames: Iterator[pl.DataFrame],
    out: Path,
    more: Mapping[str, str] | None = None,
) -> None:
    """Write pieces of scores as one file, for its owner alone, holding one of them at a time; `more`:
    for its metadata."""
    with replacing(out, private=True) as part:
        if out.suffix.lower() == ".csv":
            with part.open("wb") as file:
                for number, frame in enumerate(frames):
                    frame.write_csv(file, include_header=number == 0)
            return
        # Parquet cannot be added to: pieces are put together from a folder of one's own.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".scores-") as folder:
            pieces = []
            for number, frame in enumerate(frames):
                pieces.append(Path(folder) / f"{number}.parquet")
                frame.write_parquet(pieces[-1])
            classes = json.dumps(model.classes, ensure_ascii=False)
            facts = {MODEL: model.name, CLASSES: classes, **(more or {})}
            pl.scan_parquet(pieces, glob=False).sink_parquet(part, metadata=facts)


def _run(model: Model, piece: Piece, where: str | None) -> npt.NDArray[Any]:
    """The scores of each row, run alone; NaN where it is malformed, or a run fails.

    A run that fails is an InputError if it is said `where` the rows are from.
    """
    said = np.full((len(piece), model.raw_columns), np.nan, model.dtype)
    good = np.flatnonzero(~piece.bad)
    if len(good):
        feed = {name: block[good] for name, block in piece.feed.items()}
        said[good], failed = model.run_all(feed, len(good), stop=where is not None)
        for row, why in failed.items() if where is not None else ():
            raise InputError(
                f"{where}: the model cannot score row {piece.first + good[row]} ({why[:200]})"
            )
    return model.as_scores(said)


def _scores(
    model: Model, outputs: npt.NDArray[Any], labels: Any, person: Any, *, strict: bool
) -> Scores:
    return Scores(**{model.kind: outputs}, labels=labels, person=person, strict=strict)  # type: ignore[arg-type]


def _check(
    model: Model, piece: Piece, outputs: npt.NDArray[Any], setup: Setup, where: str | None
) -> None:
    """Take the scores of malformed rows away; an InputError for the first, if it is said `where` it is."""
    person = None if setup.person is None else piece.kept[setup.person].to_list()
    valid = _scores(model, outputs, piece.labels, person, strict=False).valid
    if where is not None and not valid.all():
        row = int(np.argmin(valid))
        own = slice(row, row + 1)
        try:
            _scores(model, outputs[own], piece.labels[own], person and person[own], strict=True)
        except InputError as error:
            text = str(error).replace("row 0", f"row {piece.first + row}", 1)
            raise InputError(f"{where}: {text}") from None
    outputs[~valid] = np.nan


def _frame(model: Model, piece: Piece, outputs: npt.NDArray[Any], setup: Setup) -> pl.DataFrame:
    kept = piece.kept
    if setup.person is not None:
        kept = kept.rename({setup.person: PERSON})
    names = score_columns(model)
    for name in kept.columns:
        if name in (LABEL, *names):
            raise InputError(f"column {name} cannot be kept: the scores have one of that name")
    label = pl.Series(LABEL, piece.labels, nan_to_null=True).cast(pl.Int64)
    if named(model):
        places = dict(enumerate(model.classes))
        label = label.replace_strict(places, default=None, return_dtype=pl.String)
    scores = pl.DataFrame(np.asarray(outputs), schema=names, orient="row")
    return pl.DataFrame([*scores, label, *kept])


def named(model: Model) -> bool:
    """Whether columns and labels are called after the classes: by names that are no numbers."""
    return model.columns > 1 and not any(name.isdecimal() for name in model.classes)


def score_columns(model: Model) -> list[str]:
    """The names of the columns of scores."""
    word = "logit" if model.kind == "logits" else "probability"
    if model.columns == 1:
        return [word]
    return [f"{word}_{n}" for n in (model.classes if named(model) else range(model.columns))]


# --- rows as a model takes them -------------------------------------------------------------

PIECE = 1 << 14
"""Rows of a Parquet file or of arrays that are held at once."""

ARRAY = "x"
"""The array of an npz that a model's only input takes."""


@dataclass(frozen=True)
class Piece:
    """Some consecutive rows: what the model takes, the labels, and which rows are malformed."""

    first: int
    feed: dict[str, npt.NDArray[Any]]
    columns: dict[str, Column]
    labels: npt.NDArray[np.float64]
    kept: pl.DataFrame

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bad(self) -> BoolArray:
        """Whether each row has a cell that cannot be used."""
        bad = np.zeros(len(self), np.bool_)
        for column in self.columns.values():
            bad |= column.bad
        return bad

    def complaint(self, row: int, remedy: bool = False) -> str:
        """What is wrong with a row: its first cell that cannot be used; with the `remedy` of `score`."""
        name, column = next((n, c) for n, c in self.columns.items() if c.bad[row])
        problem = f"{name} of row {self.first + row} is {column.complaint(row)}"
        if not remedy:
            return problem
        label = name == list(self.columns)[-1]
        gaps = column.blank[row] and column.values.dtype.kind in ("f", "O") and not label
        allow = "--allow-missing gives blank cells to the model, " if gaps else ""
        return f"{problem}; {allow}--skip-malformed leaves such rows out"


class Features:
    """A file of rows, and what of it a model takes."""

    def __init__(
        self, path: str | Path, model: Model, setup: Setup, keep: Sequence[str] = ()
    ) -> None:
        self.path, self.model, self.setup = Path(path), model, setup
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        if ending(self.path) not in (*TABLES, ".npz"):
            raise InputError(f"{self.path} has an unknown ending; use .parquet, .csv or .npz")
        self._table = open_table(self.path)
        self._arrays = isinstance(self._table, NpzFile)
        self._by_input = self._inputs()
        self.kept = [*([setup.person] if setup.person else []), *keep]
        taken = [*chain.from_iterable(self._by_input.values()), setup.label]
        self._wanted = [*taken, *self.kept]
        for name in self._wanted:
            if name not in self._table.names:
                what = "array" if self._arrays else "column"
                names = ", ".join(self._table.names)
                raise InputError(f"{self.path} has no {what} {name}; it has {names}")
        if setup.person in taken:
            raise InputError(
                f"{self.path}: {setup.person} holds person ids, so it cannot be the label or a feature too"
            )

    def pieces(self, strict: bool) -> Iterator[Piece]:
        """The rows in order, some at a time; lines of a CSV that are no rows are errors if `strict`."""
        first = 0
        with naming(self.path):
            for part in self._table.pieces(self._wanted, strict=strict, rows=PIECE):
                piece = self._piece(part, first)
                yield piece
                first += len(piece)

    def _inputs(self) -> dict[str, tuple[str, ...]]:
        """The columns that each input of the model takes."""
        inputs, features = self.model.inputs, self.setup.features or self.model.features
        if self._arrays:
            alone = ARRAY in self._table.names and len(inputs) == 1
            return {i.name: (ARRAY if alone else i.name,) for i in inputs}
        if features is None:
            if wide := next((i for i in inputs if i.width != 1), None):
                raise InputError(
                    f"model {self.model.path} takes {wide.width or 'some'} numbers as {wide.name}: name "
                    "their columns in order with --features"
                )
            return {i.name: (i.name,) for i in inputs}
        if len(inputs) != 1:
            raise InputError(
                f"model {self.model.path} takes each column by itself "
                f"({', '.join(i.name for i in inputs)}): leave --features out"
            )
        [only] = inputs
        if len(set(features)) < len(features):
            raise InputError("--features names a column twice")
        if len(only.shape) > 1 or only.width not in (None, len(features)):
            raise InputError(
                f"model {self.model.path} takes {only.width} numbers in shape {only.shape}; "
                f"--features names {len(features)} columns"
            )
        return {only.name: tuple(features)}

    def _piece(self, part: Any, first: int) -> Piece:
        columns: dict[str, Column] = {}
        feed = {}
        for given in self.model.inputs:
            names, missing = self._by_input[given.name], self.setup.missing
            if self._arrays:
                mine = [_block(names[0], part[names[0]], given, missing)]
                feed[given.name] = mine[0].values
            else:
                mine = [_column(part[name], given, missing) for name in names]
                block = np.stack([column.values for column in mine], axis=1)
                feed[given.name] = block if given.shape else block[:, 0]
            columns |= dict(zip(names, mine, strict=True))
        label = labels(_series(self.setup.label, part), self.model.classes)
        columns[self.setup.label] = label
        kept = pl.DataFrame([_series(name, part) for name in self.kept])
        return Piece(first, feed, columns, label.values, kept)


def _column(cells: pl.Series, given: Input, missing: bool) -> Column:
    return (
        texts(cells, missing) if given.dtype == np.object_ else numbers(cells, given.dtype, missing)
    )


def _series(name: str, part: Any) -> pl.Series:
    """A column; an array becomes one of the array's type, whatever is in it."""
    array = part[name]
    if isinstance(array, pl.Series):
        return array
    if array.ndim != 1 or array.dtype.kind not in "iubfUS":
        raise InputError(
            f"array {name} must have one dimension of numbers or text, not {array.dtype} in shape "
            f"{array.shape}"
        )
    if array.dtype.kind == "S":
        return pl.Series(name, [text.decode("utf-8", "replace") for text in array], pl.String)
    if array.dtype.kind == "U":
        return pl.Series(name, without_damage(array).tolist(), pl.String)
    if array.dtype.kind == "f":
        return pl.Series(name, array.astype(np.float64))
    return pl.Series(name, array.astype(array.dtype.newbyteorder("=")))


def _block(name: str, array: npt.NDArray[Any], given: Input, missing: bool) -> Column:
    """An input's part of an array; a row with a number that cannot be used is malformed."""
    shape = array.shape[1:]
    fits = len(shape) == len(given.shape) and all(
        want in (None, size) for want, size in zip(given.shape, shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"array {name} has shape {shape} in each row, and the model takes {given.shape}"
        )
    if array.dtype.kind not in "iubf" or given.dtype == np.object_:
        raise InputError(f"array {name} must hold numbers, not {array.dtype}")
    with np.errstate(all="ignore"):
        values = np.ascontiguousarray(array, given.dtype)
        same = values == array if given.dtype.kind in "iub" else np.isfinite(values)
        if missing and array.dtype.kind == "f":
            same |= np.isnan(array)
    bad = ~same.reshape(len(array), -1).all(axis=1)
    told = pl.Series(name, ["an array"] * len(array))
    return Column(values, bad, np.zeros_like(bad), told, "of numbers that the model can take")


# --- cells ----------------------------------------------------------------------------------

EXACT = 2**53
"""Beyond, two whole numbers may be one float."""


@dataclass(frozen=True)
class Column:
    """The cells of one column: what is made of them, and which cannot be used."""

    values: npt.NDArray[Any]
    bad: BoolArray
    blank: BoolArray
    cells: pl.Series
    wanted: str

    def complaint(self, row: int) -> str:
        """What is wrong with a cell, in a few words."""
        if self.blank[row]:
            return "missing"
        cell = self.cells[row]
        return f"{str(cell)[:60]!r}, not {self.wanted}"


def numbers(cells: pl.Series, dtype: np.dtype[Any], missing: bool) -> Column:
    """Cells as numbers of a model's type; if `missing`, blank ones are NaN and let pass."""
    read, blank = _floats(cells), _blank(cells, _MISSING)
    if dtype.kind in "iub":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        with np.errstate(invalid="ignore"):
            whole = (read == np.floor(read)) & (np.abs(read) <= EXACT)
            good = whole & (read >= low) & (read <= high)
        values = np.where(good, read, 0).astype(dtype)
        return Column(values, ~good, blank, cells, "a whole number that the model can take")
    with np.errstate(over="ignore"):
        values = read.astype(dtype)
    bad = ~np.isfinite(values)
    if missing:
        bad &= ~blank
    return Column(values, bad, blank, cells, "a number that the model can take")


def texts(cells: pl.Series, missing: bool) -> Column:
    """Cells as text; if `missing`, blank ones are empty texts and let pass."""
    if not (cells.dtype.is_integer() or cells.dtype in _TEXT):
        raise InputError(f"column {cells.name} must hold text, not {cells.dtype}")
    blank = _blank(cells)
    values = cells.cast(pl.String).fill_null("").to_numpy().astype(object)
    return Column(values, np.zeros_like(blank) if missing else blank, blank, cells, "text")


def labels(cells: pl.Series, classes: Sequence[str]) -> Column:
    """Each cell's place among the classes, NaN where it is none of them.

    Classes that are whole numbers are compared as numbers, so that 1, 1.0 and true are one class.
    """
    wanted = f"one of the classes {', '.join(classes[:10])}{', …' * (len(classes) > 10)}"
    if all(name.removeprefix("-").isdecimal() for name in classes):
        read = _floats(cells)
        places = {float(name): place for place, name in enumerate(classes)}
        found = [places.get(value, np.nan) for value in read.tolist()]
    else:
        if not (cells.dtype.is_integer() or cells.dtype in _TEXT):
            raise InputError(f"column {cells.name} must hold {wanted}, not {cells.dtype}")
        if cells.dtype == pl.Boolean:
            read_texts = [None if cell is None else str(cell) for cell in cells.to_list()]
        else:
            read_texts = cells.cast(pl.String).str.strip_chars().to_list()
        by_name: dict[str | None, float] = {name: place for place, name in enumerate(classes)}
        found = [by_name.get(text, np.nan) for text in read_texts]
    values = np.array(found, np.float64)
    return Column(values, np.isnan(values), _blank(cells), cells, wanted)


_MISSING = ("", "?", "-", ".", "na", "n/a", "<na>", "nan", "none", "null")
"""What is written for a number that is missing. In a column of text these may be values."""

_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)


def _floats(cells: pl.Series) -> FloatArray:
    """Each cell as a number, NaN where it is none."""
    if not (cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.String, pl.Null)):
        raise InputError(f"column {cells.name} must hold numbers, not {cells.dtype}")
    return to_number(cells).cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _blank(cells: pl.Series, words: Sequence[str] = ("",)) -> BoolArray:
    """Whether nothing is in a cell, or one of the words for that."""
    blank = cells.is_null()
    if cells.dtype == pl.String:
        blank |= cells.str.strip_chars().str.to_lowercase().is_in(list(words))
    elif cells.dtype.is_float():
        blank |= cells.is_nan()
    return np.asarray(blank.fill_null(True).to_numpy(), np.bool_)
