"""Scores: a model's outputs for n samples and the true labels, checked once when they are made.

Strict scores raise an InputError at the first malformed row: right for whoever may look at the
rows. Scores that are not strict mark it in `valid`, and it counts as zero in every answer: right
for answering, because a refusal that depends on one row tells something about that row.

A row's validity is a function of that row and the schema (the arrays' types, their number of
columns) alone. Proof: its numbers are compared with fixed limits one by one; their sum is taken
in an order that the number of columns fixes (`row_sums`); its label and its person id are looked
at one by one. ∎
"""

from __future__ import annotations

import copy
import hashlib
import numbers
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from privcal.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Kind = Literal["logits", "probabilities"]

BLOCK = 1 << 17
"""Numbers in one block of rows: 512 KB of float32, so a block and its scratch stay in cache."""

MAX_ROWS = 1 << 31
SUM_TOLERANCE = 1e-3
LEAST = 2.0**-53
"""The least probability that counts: 1 less it is the last double below 1. A smaller one, 0 included,
counts as this much. A model that says 1.0 says "nearer to 1 than I can write", not "whatever you
divide my logits by"; else no temperature could make it less certain, and one wrong row of it would
make every log-likelihood infinite."""
RUN = 1 << 12
"""Numbers of a row summed in one go: fewer than NumPy's buffer holds."""


class Outputs:
    """A model's outputs without labels: an (n, m) array of logits or of probabilities.

    The array is kept as given (also a memory map) and only ever read in blocks of rows.
    One column of probabilities means the probability of class 1 of a binary problem.

    A row is well-formed if its numbers are finite and, being probabilities, in [0, 1] with a
    sum of 1 (to 0.001). A probability below 2⁻⁵³, 0 included, counts as 2⁻⁵³: one of 1.0 is as
    certain as a number can say, and a temperature can still make it less so. The first malformed row is an InputError if `strict`; else its `valid`
    is False.
    """

    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        strict: bool = True,
    ) -> None:
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
        """Row sums by temperature, where they are kept (see `Scores.remembering`)."""
        self.valid = self._check(strict)
        """Whether each row is well-formed: a function of that row alone."""

    def blocks(self) -> Iterator[slice]:
        """Consecutive slices of rows, each small enough for the cache."""
        step = max(1, BLOCK // max(1, self.classes))
        return (slice(lo, min(lo + step, self.rows)) for lo in range(0, self.rows, step))

    def shifted(self, rows: slice, out: npt.NDArray[Any]) -> None:
        """Write each row's logits minus its top logit into `out`, in the precision of `out`.

        Of a probability its logarithm, that of `LEAST` where it is smaller. The caller silences
        NumPy's warnings: the -inf of a difference of logits beyond the largest float is right.
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
            np.log1p(-np.minimum(p, 1 - LEAST), out=out[:, 0])
            np.log(np.maximum(p, LEAST), out=out[:, 1])
        else:
            np.copyto(out, block)
            np.maximum(out, LEAST, out=out)
            np.log(out, out=out)  # in place: of a strided array its last bits may differ
        out -= top

    def at(self, classes: IntArray) -> FloatArray:
        """The logit of one class of each row, as float64."""
        rows = np.arange(self.rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "logits":
                return self.array[rows, classes].astype(np.float64)
            if self.binary_column:
                p = self.array[:, 0].astype(np.float64)
                zero, one = np.log1p(-np.minimum(p, 1 - LEAST)), np.log(np.maximum(p, LEAST))
                return np.asarray(np.where(classes == 1, one, zero))
            p = self.array[rows, classes].astype(np.float64)
            return np.asarray(np.log(np.maximum(p, LEAST)))

    def check_intact(self) -> None:
        """Raise InputError if a memory-mapped file was cut short: reading it would crash."""
        if isinstance(self.array, np.memmap) and self.array.filename is not None:
            needed = self.array.offset + self.array.nbytes
            if os.path.getsize(self.array.filename) < needed:
                raise InputError(f"{self.array.filename} was cut short after it was opened")

    @cached_property
    def predicted(self) -> IntArray:
        """The most likely class of each row; of equal ones the first."""
        if self.binary_column:
            with np.errstate(invalid="ignore"):
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

    def _check(self, strict: bool) -> BoolArray:
        valid = np.empty(self.rows, np.bool_)
        with np.errstate(all="ignore"):  # a malformed row is marked, not warned of
            for rows in self.blocks():
                valid[rows] = self._well_formed(self.array[rows])
                if strict and not valid[rows].all():
                    self._complain(rows.start + int(np.argmin(valid[rows])))
        return valid

    def _well_formed(self, block: npt.NDArray[Any]) -> BoolArray:
        logits = self.kind == "logits"
        good = np.isfinite(block) if logits else (block >= 0) & (block <= 1)
        rows = np.ones(len(block), np.bool_) if good.all() else good.all(axis=1)
        if not logits and not self.binary_column:
            rows &= np.abs(_sums(block) - 1) <= SUM_TOLERANCE
        return np.asarray(rows)

    def _complain(self, row: int) -> None:
        values = self.array[row]
        finite, inside = np.isfinite(values), (values >= 0) & (values <= 1)
        if not finite.all():
            column = int(np.argmin(finite))
            raise InputError(f"{self.kind} row {row}, column {column} is {values[column]}")
        if not inside.all():
            column = int(np.argmin(inside))
            raise InputError(
                f"{self.kind} row {row}, column {column} is {values[column]}, outside [0, 1]"
            )
        raise InputError(
            f"probabilities row {row} sums to {_sums(values[None])[0]:.6g}, not 1; "
            "if these are logits, give them as logits="
        )


class Scores:
    """A model's outputs for n samples, with the true label of each.

    Labels and person ids are copied into memory; logits and probabilities stay where they are.
    Zero rows and one row are fine. The predicted class of a row is the first of its largest
    outputs.

    Parameters
    ----------
    labels
        Shape (n,): the true class of each row, 0 … m − 1.
    logits, probabilities
        Shape (n, m), one of the two: which one is always said, never guessed. A single column
        of probabilities, or shape (n,), is the probability of class 1 of a binary problem;
        exactly 0.5 predicts class 0. Probabilities of 0 and 1 are fine: they count as 2⁻⁵³ and as
        1 less that, so that temperatures move them too. float16, float32 and float64 are kept without a copy.
    person
        Shape (n,): whom each row is about (whole numbers or strings), where one person may
        have several rows. Privacy then covers all rows of a person.
    model
        The name of the model that the outputs came from.
    strict
        Whether the first malformed row is an InputError. If not, `valid` is False there and
        the row counts as zero in every answer; a malformed label becomes 0, a missing person
        "". A problem of whole columns (type, number, length) is an error either way.

    Examples
    --------
    >>> scores = privcal.Scores(logits=[[2.0, 0.0], [0.5, 1.0], [3.0, 3.0]], labels=[0, 0, 0])
    >>> scores
    Scores(3 rows of logits, 2 classes)
    >>> scores.correct
    array([ True, False,  True])
    >>> privcal.Scores(probabilities=[[0.5, 0.6]], labels=[0])
    Traceback (most recent call last):
    ...
    privcal.errors.InputError: probabilities row 0 sums to 1.1, not 1; if these are logits, ...
    >>> privcal.Scores(probabilities=[[0.5, 0.6]], labels=[0], strict=False).valid
    array([False])
    """

    def __init__(
        self,
        *,
        labels: ArrayLike,
        logits: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        person: ArrayLike | None = None,
        model: str | None = None,
        strict: bool = True,
    ) -> None:
        self.outputs = Outputs(logits=logits, probabilities=probabilities, strict=strict)
        self.labels, labelled = _as_labels(labels, self.outputs, strict)
        self.valid: BoolArray = self.outputs.valid & labelled
        """Whether each row is well-formed: its outputs, its label and, with ids, its person."""
        self.person: npt.NDArray[np.object_] | None = None
        if person is not None:
            self.person, known = _as_persons(person, self.outputs, strict)
            self.valid &= known
        self.model = model
        self.strict = strict

    def __len__(self) -> int:
        return self.outputs.rows

    def __repr__(self) -> str:
        people = "" if self.person is None else ", with person ids"
        return f"Scores({len(self)} rows of {self.outputs.kind}, {self.classes} classes{people})"

    @property
    def classes(self) -> int:
        """The number of classes; 2 for a single column of probabilities."""
        return self.outputs.classes

    @cached_property
    def correct(self) -> BoolArray:
        """Whether the predicted class is the true one."""
        return np.asarray(self.outputs.predicted == self.labels)

    @cached_property
    def label_margin(self) -> FloatArray:
        """The true class's logit minus the predicted class's: at most 0, and finite.

        0 for a malformed row.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            margin = self.outputs.at(self.labels) - self.outputs.top
            return np.where(self.valid, np.clip(margin, -1e300, 0), 0.0)

    def take(self, rows: Any) -> Scores:
        """The scores of some `rows` (indices, a slice or a mask), in that order."""
        taken = Scores(
            **{self.outputs.kind: self.outputs.array[rows]},
            labels=self.labels[rows],
            person=None if self.person is None else self.person[rows],
            model=self.model,
            strict=self.strict,
        )
        taken.valid &= self.valid[rows]  # a malformed label is 0 here, and no longer shows
        return taken

    def remembering(self) -> Scores:
        """The same rows, with sums along a row kept for each temperature they were asked at."""
        again = copy.copy(self)
        again.outputs = copy.copy(self.outputs)
        again.outputs.remembered = {}
        return again

    def content_digest(self) -> str:
        """SHA-256 of the outputs in single precision and the labels, the same in any file format.

        It tells an owner that two files are copies of one another, and is never sent: it
        depends on every row, exactly. A malformed row counts as zeros; person ids do not count.
        """
        self.outputs.check_intact()
        digest = hashlib.sha256(f"{self.outputs.kind} {self.outputs.array.shape[1]} ".encode())
        for rows in self.outputs.blocks():
            with np.errstate(all="ignore"):  # a double beyond the largest single is infinite
                block = np.array(self.outputs.array[rows], "<f4", order="C")
            block[~self.valid[rows]] = 0
            digest.update(block.tobytes())
        digest.update(np.where(self.valid, self.labels, 0).astype("<i8").tobytes())
        return digest.hexdigest()


def _sums(block: npt.NDArray[Any]) -> FloatArray:
    """Sums along each row, whatever the layout and type of the block."""
    return np.asarray(row_sums(np.ascontiguousarray(block, np.float64)))


def row_sums(*factors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Σ over each row of the product of the factors, in an order that the columns alone decide.

    The factors are C-contiguous. einsum is three times as fast as z.sum(axis=1); `privcal.kernel`
    says why a row is cut.
    """
    subscripts = ",".join(["...j"] * len(factors)) + "->..."
    rows, columns = factors[0].shape
    if columns <= RUN:
        return np.asarray(np.einsum(subscripts, *factors))
    whole = columns - columns % RUN
    runs = (f[:, :whole].reshape(rows, -1, RUN) for f in factors)
    sums = row_sums(np.einsum(subscripts, *runs))
    if whole < columns:
        sums += row_sums(*(f[:, whole:] for f in factors))
    return sums


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
    except Exception:  # such as Polars' for numbers of 128 bits
        return np.array(list(values), object)


def _as_labels(labels: Any, outputs: Outputs, strict: bool) -> tuple[IntArray, BoolArray]:
    """The labels, 0 where they are malformed, and whether each is well-formed."""
    array = _as_array("labels", labels)
    if array.dtype.kind not in "iubfO" and not isinstance(labels, np.ndarray):
        array = np.asarray(labels, object)  # NumPy makes all of a list text because of one
    if array.ndim != 1:
        raise InputError(f"labels must have one dimension, not shape {array.shape}")
    if len(array) != outputs.rows:
        raise InputError(f"there are {len(array)} labels for {outputs.rows} rows of {outputs.kind}")
    if array.dtype.kind not in "iubfO":
        raise InputError(f"labels must be whole numbers, not {array.dtype}")
    given = array
    if array.dtype.kind == "O":
        array = np.array([_real(value) for value in array], np.float64)
    whole = np.ones(len(array), np.bool_)
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array))
    good = whole & (array >= 0) & (array < outputs.classes)
    if strict and not good.all():
        row = int(np.argmin(good))
        problem = f"label of row {row} is {_text(given[row])}"
        if not whole[row]:
            raise InputError(f"{problem}, not a whole number")
        raise InputError(
            f"{problem}; with {outputs.classes} classes labels go from 0 to {outputs.classes - 1}"
        )
    return np.where(good, array, 0).astype(np.int64), np.asarray(good)


def _real(value: Any) -> float:
    """A number as the nearest float; NaN if it is none."""
    if not isinstance(value, (numbers.Real, np.bool_)):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _text(value: Any) -> str:
    """A value as an error sentence shows it: on one line, at most 60 characters."""
    if isinstance(value, (float, np.floating)) and abs(float(value)) < 1e16:
        value = int(value) if float(value).is_integer() else value
    text = repr(value) if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def _as_persons(
    person: Any, outputs: Outputs, strict: bool
) -> tuple[npt.NDArray[np.object_], BoolArray]:
    """The ids, "" where they are missing, and whether each is there."""
    array = np.asarray(_unicode(person), dtype=object)
    if array.ndim != 1 or len(array) != outputs.rows:
        raise InputError(
            f"person ids have shape {array.shape} for {outputs.rows} rows of {outputs.kind}"
        )
    ids = np.empty(len(array), object)
    for row, value in enumerate(array):
        ids[row] = _person_id(value)
        if strict and not ids[row]:
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            if text.strip().lower() in _MISSING:
                raise InputError(f"person id of row {row} is missing; every row needs one")
            raise InputError(
                f"person id of row {row} is {_text(value)}; use whole numbers or strings"
            )
    return ids, np.asarray(ids != "", np.bool_)


def _unicode(person: Any) -> Any:
    """Person ids with "" for those that hold no characters, as text arrays of a damaged file may."""
    if not isinstance(person, np.ndarray) or person.dtype.kind != "U" or not person.size:
        return person
    native = np.ascontiguousarray(person.astype(person.dtype.newbyteorder("=")))
    codes = native.view(np.uint32).reshape(*person.shape, -1)
    return np.where((codes > 0x10FFFF).any(axis=-1), "", native)


_MISSING = {"", "nan", "na", "n/a", "none", "null", "<na>", "nat"}


_WHOLE = re.compile(r"-?[0-9]+\.0+")


def _person_id(value: Any) -> str:
    """An id as text, a whole number as its decimal digits; "" if the value is no id.

    Blanks around an id, and the `.0` that programs write behind whole numbers once one of them is
    missing, do not make another person: two people taken for one is safe, one taken for two is not.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, (float, np.floating)):
        number = float(value)
        # Beyond, two ids may be one number.
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else ""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str) and value.strip().lower() not in _MISSING:
        text = value.strip()
        return text.partition(".")[0] if _WHOLE.fullmatch(text) else text
    return ""
