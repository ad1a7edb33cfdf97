"""Columns of a table as a model takes them: each cell is read by itself, and no cell by another.

Types come from the schema. A cell that cannot be used makes its own row malformed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privcal.errors import InputError
from privcal.readers import to_number
from privcal.scores import BoolArray, FloatArray

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
