"""Scores: what a model said about n samples, and what was true. Checked once, at the door."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from privcal.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Kind = Literal["logits", "probabilities"]

BLOCK = 1 << 17
"""Numbers in one block of rows: 512 KB of float32, so a block and its scratch stay in cache."""

MAX_ROWS = 1 << 31
SUM_TOLERANCE = 1e-3


class Outputs:
    """The model's side alone: an (n, m) array of logits or of probabilities.

    The array is kept as given (also a memory map) and only ever read in blocks of rows.
    One column of probabilities means the probability of class 1 of a binary problem.
    """

    def __init__(self, *, logits: Any = None, probabilities: Any = None) -> None:
        if (logits is None) == (probabilities is None):
            raise InputError("give either logits= or probabilities=, and only one of them")
        self.kind: Kind = "logits" if probabilities is None else "probabilities"
        self.array = _as_float_table(self.kind, logits if probabilities is None else probabilities)
        self.binary_column = self.kind == "probabilities" and self.array.shape[1] == 1
        self.rows: int = self.array.shape[0]
        self.classes: int = 2 if self.binary_column else self.array.shape[1]
        # float16 and float32 logits are worked in float32; the logarithm of a probability
        # needs float64 to give the probability back.
        narrow = self.kind == "logits" and self.array.dtype.itemsize <= 4
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if narrow else np.float64)
        if self.rows > MAX_ROWS:
            raise InputError(
                f"{self.kind} have {self.rows:,} rows; at most {MAX_ROWS:,} are allowed"
            )
        self.remembered: dict[float, FloatArray] | None = None
        """Row sums by temperature, where whoever asks for many of the same wants them kept."""
        self._check()

    def blocks(self) -> Iterator[slice]:
        """Consecutive slices of rows, each small enough for the cache."""
        step = max(1, BLOCK // max(1, self.classes))
        return (slice(lo, min(lo + step, self.rows)) for lo in range(0, self.rows, step))

    def shifted(self, rows: slice, out: npt.NDArray[Any]) -> None:
        """Write each row's logits minus its top logit into `out`, in the precision of `out`.

        The caller silences NumPy's warnings: log 0 = -inf is right, as such a class has no
        share at any temperature, and so is the -inf of a difference beyond the largest float.
        """
        block = self.array[rows]
        top = self.top[rows, None].astype(out.dtype)
        if self.kind == "logits" and block.dtype == out.dtype:
            np.subtract(block, top, out=out)
            return
        if self.kind == "logits":
            np.copyto(out, block, casting="same_kind")
        elif self.binary_column:
            p = block[:, 0].astype(np.float64)
            np.log1p(-p, out=out[:, 0])
            np.log(p, out=out[:, 1])
        else:
            np.log(block, out=out, dtype=np.float64)
        out -= top

    def at(self, classes: IntArray) -> FloatArray:
        """One logit of each row, as float64."""
        rows = np.arange(self.rows)
        if self.kind == "logits":
            return self.array[rows, classes].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.binary_column:
                p = self.array[:, 0].astype(np.float64)
                return np.asarray(np.where(classes == 1, np.log(p), np.log1p(-p)))
            return np.asarray(np.log(self.array[rows, classes].astype(np.float64)))

    def check_intact(self) -> None:
        """Reading a memory map beyond the end of a file cut short would kill the process."""
        if isinstance(self.array, np.memmap) and self.array.filename is not None:
            needed = self.array.offset + self.array.nbytes
            if os.path.getsize(self.array.filename) < needed:
                raise InputError(f"{self.array.filename} was cut short after it was opened")

    @cached_property
    def predicted(self) -> IntArray:
        """The most likely class of each row; of equal ones the first."""
        if self.binary_column:
            p = self.array[:, 0].astype(np.float64)
            return (p > 1 - p).astype(np.int64)
        predicted = np.empty(self.rows, np.int64)
        for rows in self.blocks():
            np.argmax(self.array[rows], axis=1, out=predicted[rows])
        return predicted

    @cached_property
    def top(self) -> FloatArray:
        """The predicted class's logit."""
        return self.at(self.predicted)

    def _check(self) -> None:
        for rows in self.blocks():
            block = self.array[rows]
            finite = np.isfinite(block)
            if not finite.all():
                row, column = (int(i[0]) for i in np.nonzero(~finite))
                self._reject(rows.start + row, column, f"is {block[row, column]}")
            if self.kind == "probabilities":
                outside = (block < 0) | (block > 1)
                if outside.any():
                    row, column = (int(i[0]) for i in np.nonzero(outside))
                    self._reject(
                        rows.start + row, column, f"is {block[row, column]}, outside [0, 1]"
                    )
                if not self.binary_column:
                    sums = block.sum(axis=1, dtype=np.float64)
                    off = np.abs(sums - 1) > SUM_TOLERANCE
                    if off.any():
                        row = int(np.argmax(off))
                        raise InputError(
                            f"probabilities row {rows.start + row} sums to {sums[row]:.6g}, not 1; "
                            "if these are logits, give them as logits="
                        )

    def _reject(self, row: int, column: int, problem: str) -> None:
        raise InputError(f"{self.kind} row {row}, column {column} {problem}")


class Scores:
    """What a model said about n labelled samples.

    Parameters
    ----------
    logits, probabilities
        (n, m) array of either; which one is always said, never guessed. A single column of
        probabilities is the probability of class 1 of a binary problem. float16, float32 and
        float64 are kept without a copy.
    labels
        The true class of each row, 0 … m − 1.
    person
        Whom each row is about (whole numbers or strings), where one person may have several
        rows. Privacy then covers all rows of a person.
    model
        The name of the model the scores came from.
    """

    def __init__(
        self,
        *,
        labels: Any,
        logits: Any = None,
        probabilities: Any = None,
        person: Any = None,
        model: str | None = None,
    ) -> None:
        self.outputs = Outputs(logits=logits, probabilities=probabilities)
        self.labels = _as_labels(labels, self.outputs)
        self.person = None if person is None else _as_persons(person, self.outputs)
        self.model = model

    def __len__(self) -> int:
        return self.outputs.rows

    def __repr__(self) -> str:
        people = "" if self.person is None else ", with person ids"
        return f"Scores({len(self)} rows of {self.outputs.kind}, {self.classes} classes{people})"

    @property
    def classes(self) -> int:
        return self.outputs.classes

    @cached_property
    def correct(self) -> BoolArray:
        """Whether the predicted class is the true one."""
        return np.asarray(self.outputs.predicted == self.labels)

    @cached_property
    def label_margin(self) -> FloatArray:
        """The true class's logit minus the predicted class's: at most 0, and finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            margin = self.outputs.at(self.labels) - self.outputs.top
        return np.clip(margin, -1e300, 0)

    def take(self, rows: Any) -> Scores:
        """The scores of some rows (indices, a slice or a mask), in that order."""
        return Scores(
            **{self.outputs.kind: self.outputs.array[rows]},
            labels=self.labels[rows],
            person=None if self.person is None else self.person[rows],
            model=self.model,
        )


def _as_float_table(kind: Kind, values: Any) -> npt.NDArray[Any]:
    array = _as_array(kind, values)
    if array.dtype.kind in "iub" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        with np.errstate(over="ignore"):  # what is infinite then is rejected below
            array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise InputError(f"{kind} must be numbers, not {array.dtype}")
    if kind == "probabilities" and array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InputError(
            f"{kind} must have two dimensions (rows, classes), not shape {array.shape}"
        )
    if array.shape[1] == 0:
        raise InputError(f"{kind} have no columns")
    return array


def _as_array(what: str, values: Any) -> npt.NDArray[Any]:
    if isinstance(values, np.memmap):
        return values
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what} are masked; fill the masked values or leave their rows out")
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be a table of numbers with rows of one length") from None


def _as_labels(labels: Any, outputs: Outputs) -> IntArray:
    array = _as_array("labels", labels)
    if array.ndim != 1:
        raise InputError(f"labels must have one dimension, not shape {array.shape}")
    if len(array) != outputs.rows:
        raise InputError(f"there are {len(array)} labels for {outputs.rows} rows of {outputs.kind}")
    if array.dtype.kind not in "iubf" and len(array):
        raise InputError(f"labels must be whole numbers, not {array.dtype}")
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array))
        if not whole.all():
            row = int(np.argmin(whole))
            raise InputError(f"label of row {row} is {array[row]}, not a whole number")
    outside = (array < 0) | (array >= outputs.classes) if len(array) else np.zeros(0, bool)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"label of row {row} is {array[row]}; with {outputs.classes} classes "
            f"labels go from 0 to {outputs.classes - 1}"
        )
    return array.astype(np.int64, copy=False)


def _as_persons(person: Any, outputs: Outputs) -> npt.NDArray[np.object_]:
    array = np.asarray(person, dtype=object)
    if array.ndim != 1 or len(array) != outputs.rows:
        raise InputError(
            f"person ids have shape {array.shape} for {outputs.rows} rows of {outputs.kind}"
        )
    ids = np.empty(len(array), object)
    for row, value in enumerate(array):
        ids[row] = _person_id(row, value)
    return ids


_MISSING = {"", "nan", "na", "n/a", "none", "null", "<na>", "nat"}


def _person_id(row: int, value: Any) -> str:
    """Ids are compared as text, exactly; a whole number is its decimal digits."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if number.is_integer() and abs(number) < 2**53:  # beyond, two ids may be one number
            value = int(number)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if value is None or value != value or str(value).strip().lower() in _MISSING:
        raise InputError(f"person id of row {row} is missing; every row needs one")
    if not isinstance(value, str):
        raise InputError(f"person id of row {row} is {value!r}; use whole numbers or strings")
    return str(value)
