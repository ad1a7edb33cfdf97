"""Tables in pieces: what one holds at a time is bounded, whatever the file is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privcal import tables
from privcal.errors import InputError
from privcal.scores import BoolArray, without_damage
from privcal.scoring.cells import Column, labels, numbers, texts
from privcal.scoring.model import Input, Model
from privcal.scoring.setup import Setup

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

    def complaint(self, row: int) -> str:
        """What is wrong with a row: its first cell that cannot be used."""
        name, column = next((n, c) for n, c in self.columns.items() if c.bad[row])
        return f"{name} of row {self.first + row} is {column.complaint(row)}"


class Table:
    """A file of rows, and what of it a model takes."""

    def __init__(
        self, path: str | Path, model: Model, setup: Setup, keep: Sequence[str] = ()
    ) -> None:
        self.path, self.model, self.setup = Path(path), model, setup
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        ending = tables.ending(self.path)
        if ending not in (*tables.ENDINGS, ".npz"):
            raise InputError(f"{self.path} has an unknown ending; use .parquet, .csv or .npz")
        self._arrays = _arrays(self.path) if ending == ".npz" else None
        self._table = None if ending == ".npz" else tables.open_table(self.path)
        self.names = list(self._arrays or (self._table and self._table.schema) or ())
        self.kept = [*([setup.person] if setup.person else []), *keep]
        self._by_input = self._inputs()
        for name in (setup.label, *self.kept):
            self._check(name)
        taken = [name for columns in self._by_input.values() for name in columns]
        if setup.person is not None and setup.person in (setup.label, *taken):
            raise InputError(
                f"{self.path}: {setup.person} holds person ids, so it cannot be the label or a feature too"
            )

    def pieces(self, strict: bool) -> Iterator[Piece]:
        """The rows in order, some at a time; lines of a CSV that are no rows are errors if `strict`."""
        try:
            if self._arrays is not None:
                yield from self._array_pieces(self._arrays)
                return
            assert self._table is not None
            first = 0
            wanted = [n for names in self._by_input.values() for n in names]
            wanted += [self.setup.label, *self.kept]
            for frame in self._table.pieces(wanted, strict=strict, rows=PIECE):
                yield self._piece(frame, first)
                first += len(frame)
        except InputError as error:
            text = str(error)
            raise InputError(text if str(self.path) in text else f"{self.path}: {text}") from None

    # --- which columns -------------------------------------------------------------------

    def _inputs(self) -> dict[str, tuple[str, ...]]:
        """The columns that each input of the model takes."""
        inputs, features = self.model.inputs, self.setup.features or self.model.features
        if self._arrays is not None:
            name = ARRAY if ARRAY in self.names and len(inputs) == 1 else None
            return {i.name: self._exists((name or i.name,)) for i in inputs}
        if features is not None:
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
            return {only.name: self._exists(features)}
        wide = next((i for i in inputs if i.width != 1), None)
        if wide is not None:
            raise InputError(
                f"model {self.model.path} takes {wide.width or 'some'} numbers as {wide.name}: name "
                "their columns in order with --features"
            )
        return {i.name: self._exists((i.name,)) for i in inputs}

    def _exists(self, names: Sequence[str]) -> tuple[str, ...]:
        for name in names:
            self._check(name)
        return tuple(names)

    def _check(self, name: str) -> None:
        if name not in self.names:
            what = "column" if self._arrays is None else "array"
            raise InputError(f"{self.path} has no {what} {name}; it has {', '.join(self.names)}")

    # --- pieces --------------------------------------------------------------------------

    def _piece(self, frame: pl.DataFrame, first: int) -> Piece:
        columns: dict[str, Column] = {}
        feed = {}
        for given in self.model.inputs:
            mine = [self._column(frame[name], given) for name in self._by_input[given.name]]
            columns |= dict(zip(self._by_input[given.name], mine, strict=True))
            block = np.stack([column.values for column in mine], axis=1)
            feed[given.name] = block if given.shape else block[:, 0]
        label = labels(frame[self.setup.label], self.model.classes)
        columns[self.setup.label] = label
        return Piece(first, feed, columns, label.values, frame.select(self.kept))

    def _column(self, cells: pl.Series, given: Input) -> Column:
        if given.dtype == np.object_:
            return texts(cells, self.setup.missing)
        return numbers(cells, given.dtype, self.setup.missing)

    def _array_pieces(self, arrays: dict[str, npt.NDArray[Any]]) -> Iterator[Piece]:
        rows = len(arrays[self.setup.label])
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != rows:
                raise InputError(f"{self.path}: {name} has not one entry for each of {rows} rows")
        for first in range(0, rows, PIECE) or [0]:
            part = slice(first, first + PIECE)
            feed, columns = {}, {}
            for given in self.model.inputs:
                [name] = self._by_input[given.name]
                columns[name] = _block(name, arrays[name][part], given, self.setup.missing)
                feed[given.name] = columns[name].values
            label = labels(
                _series(self.setup.label, arrays[self.setup.label][part]), self.model.classes
            )
            columns[self.setup.label] = label
            kept = pl.DataFrame([_series(name, arrays[name][part]) for name in self.kept])
            yield Piece(first, feed, columns, label.values, kept)


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz; never those of Python objects."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception:  # NumPy's own words would advise to load what must not be loaded
        raise InputError(f"{path} is not a readable .npz file, or is cut short") from None


def _series(name: str, array: npt.NDArray[Any]) -> pl.Series:
    """An array as a column whose type is the array's, whatever is in it."""
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
