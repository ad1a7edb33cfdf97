"""Scores: a model's outputs for n samples and the true labels, in memory.

A malformed row is marked in `valid`, and counts as zero in every answer: a refusal that depends on
one row would tell something about that row. (`privcal.Scores`, which reads what people have, can
complain about it to whoever may look at the rows.)

A row's validity is a function of that row and the schema (the arrays' types, their number of
columns) alone. Proof: its numbers are compared with fixed limits one by one; their sum is taken
in an order that the number of columns fixes (`row_sums`); its label and its person id were looked
at one by one (`privcal.data.scores`). ∎
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from privcal.trusted.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Kind = Literal["logits", "probabilities", "confidence"]

BLOCK = 1 << 17
"""Numbers in one block of rows: 512 KB of float32, so a block and its scratch stay in cache."""

MAX_ROWS = 1 << 31
ROUNDING = 5e-4
"""What rounding to three decimals may take from a probability, or add to it."""
MOST_ROUNDING = 0.05
"""What it may take from a whole row, however many classes there are."""
LEAST = 2.0**-53
"""The least probability that counts: 1 less it is the last double below 1. A smaller one, 0 included,
counts as this much. A model that says 1.0 says "nearer to 1 than I can write", not "whatever you
divide my logits by"; else no temperature could make it less certain, and one wrong row of it would
make every log-likelihood infinite."""
RUN = 1 << 12
"""Numbers of a row summed in one go: fewer than NumPy's buffer holds."""


class Outputs:
    """A model's outputs without labels: an (n, m) `array` of logits or of probabilities, by its `kind`.

    The array is kept as given (also a memory map) and only ever read in blocks of rows.
    One column of probabilities means the probability of class 1 of a binary problem.

    One column of confidence is all that is known where a model answers without classes: how probable
    it holds its answer to be right. That is the case with two classes, wrong and right, of which 1 is
    always the predicted one, however low its probability.

    A row is well-formed if its numbers are finite and, being probabilities, in [0, 1] with a
    sum of 1, to what rounding to three decimals can take from it: 0.0005 for each class, 0.05 at
    most. A row that does not sum to 1 counts as divided by its sum. A probability below 2⁻⁵³, 0
    included, counts as 2⁻⁵³: one of 1.0 is as certain as a number can say, and a temperature can
    still make it less so.
    """

    class_names: tuple[str, ...] | None = None
    """What the classes are called, where they have names."""

    def __init__(self, kind: Kind, array: npt.NDArray[Any]) -> None:
        self.kind: Kind = kind
        self.array = array
        self.binary_column = kind == "probabilities" and array.shape[1] == 1
        self.rows: int = array.shape[0]
        one_of_two = self.binary_column or kind == "confidence"
        self.classes: int = 2 if one_of_two else array.shape[1]
        """The number of classes; 2 (wrong, right) where only a confidence is known."""
        # float16 and float32 logits are worked in float32; the logarithm of a probability
        # needs float64 to give the probability back.
        narrow = kind == "logits" and array.dtype.itemsize <= 4
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if narrow else np.float64)
        if self.rows > MAX_ROWS:
            raise InputError(f"{kind} have {self.rows:,} rows; at most {MAX_ROWS:,} are allowed")
        self.remembered: dict[float, FloatArray] | None = None
        """Row sums by temperature, where they are kept."""
        self.valid = self._check()
        """Whether each row is well-formed: a function of that row alone."""

    def need_all_classes(self, what: str) -> None:
        """Raise InputError where only a confidence is known: `what` cannot be had from that."""
        if self.kind == "confidence":
            raise InputError(
                f"{what} needs the outputs of all classes, and these data hold only the confidence in "
                "each answer; the sketch, binning and curves do with that"
            )

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
        self.need_all_classes("a logit")
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
        if self.kind == "confidence":
            return np.ones(self.rows, np.int64)
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

    def _check(self) -> BoolArray:
        valid = np.empty(self.rows, np.bool_)
        with np.errstate(all="ignore"):  # a malformed row is marked, not warned of
            for rows in self.blocks():
                valid[rows] = self._well_formed(self.array[rows])
        return valid

    def _well_formed(self, block: npt.NDArray[Any]) -> BoolArray:
        logits = self.kind == "logits"
        good = np.isfinite(block) if logits else self.inside(block)
        rows = np.ones(len(block), np.bool_) if good.all() else good.all(axis=1)
        if self.kind == "probabilities" and not self.binary_column:
            rows &= self.sum_to_one(block, self.tolerance)
        return np.asarray(rows)

    @staticmethod
    def inside(block: npt.NDArray[Any]) -> BoolArray:
        return np.asarray((block >= 0) & (block <= 1))

    @staticmethod
    def sum_to_one(block: npt.NDArray[Any], most: float) -> BoolArray:
        return np.asarray(np.abs(sums(block) - 1) <= most)

    @property
    def tolerance(self) -> float:
        """How far a row of probabilities may be from a sum of 1; a little more, for the sum itself."""
        return min(MOST_ROUNDING, ROUNDING * max(self.classes, 2)) + 1e-9


class Scores:
    """A model's `outputs` for n samples, with the true label of each.

    Parameters
    ----------
    outputs
        What the model gave.
    labels
        Shape (n,): the true class of each row, 0 … m − 1; of a confidence 1 (right) or 0. It
        counts as 0 where the row is not valid.
    valid
        Which rows are well-formed beyond their outputs: their label and, with ids, their person.
    person
        Shape (n,): whom each row is about, as text, where one person may have several rows.
    model
        The name of the model that the outputs came from.
    """

    def __init__(
        self,
        outputs: Outputs,
        labels: IntArray,
        valid: BoolArray,
        person: npt.NDArray[np.object_] | None = None,
        model: str | None = None,
    ) -> None:
        self.outputs, self.person, self.model = outputs, person, model
        self.valid: BoolArray = outputs.valid & valid
        """Whether each row is well-formed: its outputs, its label and, with ids, its person."""
        self.labels: IntArray = np.where(self.valid, labels, 0)

    def __len__(self) -> int:
        return self.outputs.rows

    def __repr__(self) -> str:
        people = "" if self.person is None else ", with person ids"
        classes = "" if self.outputs.kind == "confidence" else f", {self.classes} classes"
        return f"Scores({len(self)} rows of {self.outputs.kind}{classes}{people})"

    @property
    def classes(self) -> int:
        """The number of classes; 2 for a single column of probabilities, and for confidences."""
        return self.outputs.classes

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, where they have names."""
        return self.outputs.class_names

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


def sums(block: npt.NDArray[Any]) -> FloatArray:
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
