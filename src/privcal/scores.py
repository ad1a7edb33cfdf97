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
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from privcal.errors import InputError

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
    """A model's outputs without labels: an (n, m) array of logits or of probabilities.

    The array is kept as given (also a memory map) and only ever read in blocks of rows.
    One column of probabilities means the probability of class 1 of a binary problem.

    `log_odds`, shape (n,), are those of class 1 of a binary problem, as a `decision_function` gives
    them: logits 0 and s. `confidence`, shape (n,), is all that is known where a model answers
    without classes: how probable it holds its answer to be right. That is the case with two classes,
    wrong and right, of which 1 is always the predicted one, however low its probability.

    A row is well-formed if its numbers are finite and, being probabilities, in [0, 1] with a
    sum of 1, to what rounding to three decimals can take from it: 0.0005 for each class, 0.05 at
    most. A row that does not sum to 1 counts as divided by its sum. A probability below 2⁻⁵³, 0
    included, counts as 2⁻⁵³: one of 1.0 is as certain as a number can say, and a temperature can
    still make it less so. The first malformed row is an InputError if `strict`; else its `valid`
    is False.
    """

    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        log_odds: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        first_row: int = 0,
        strict: bool = True,
    ) -> None:
        self._first_row = first_row  # what errors call it, where these are some rows of many
        given = {"logits": logits, "probabilities": probabilities}
        given |= {"log_odds": log_odds, "confidence": confidence}
        if len([kind for kind, values in given.items() if values is not None]) != 1:
            raise InputError(
                "give either logits= or probabilities= (or log_odds= or confidence=), and only one "
                "of them"
            )
        self.kind: Kind = "probabilities" if probabilities is not None else "logits"
        if confidence is not None:
            self.kind = "confidence"
        if log_odds is not None:
            logits = _from_log_odds(log_odds)
        values = next(v for v in (logits, probabilities, confidence) if v is not None)
        self.array = _as_float_table(self.kind, values)
        self.binary_column = self.kind == "probabilities" and self.array.shape[1] == 1
        self.rows: int = self.array.shape[0]
        one_of_two = self.binary_column or self.kind == "confidence"
        self.classes: int = 2 if one_of_two else self.array.shape[1]
        """The number of classes; 2 (wrong, right) where only a confidence is known."""
        self.class_names = _as_names(class_names, self)
        """What the classes are called, where they have names."""
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
        if self.kind == "probabilities" and not self.binary_column:
            rows &= np.abs(_sums(block) - 1) <= self._tolerance
        return np.asarray(rows)

    @property
    def _tolerance(self) -> float:
        """How far a row of probabilities may be from a sum of 1; a little more, for the sum itself."""
        return min(MOST_ROUNDING, ROUNDING * max(self.classes, 2)) + 1e-9

    @cached_property
    def looks_like_probabilities(self) -> bool:
        """Whether logits are numbers from 0 to 1 that sum to 1 in each of the first rows.

        For a remark to whoever may look at the rows; nothing is decided by it.
        """
        first = np.asarray(self.array[:100], np.float64)
        if self.kind != "logits" or self.array.shape[1] < 2 or not len(first):
            return False
        with np.errstate(all="ignore"):
            inside = ((first >= 0) & (first <= 1)).all()
            return bool(inside and (np.abs(_sums(first) - 1) <= self._tolerance).all())

    def _complain(self, index: int) -> None:
        values = self.array[index]
        row = self._first_row + index
        finite, inside = np.isfinite(values), (values >= 0) & (values <= 1)
        if not finite.all():
            column = int(np.argmin(finite))
            hint = ""
            if self.kind == "logits" and values[column] == -np.inf:
                hint = (
                    "; give an impossible class a finite number far below the others, such as -1e4"
                )
            raise InputError(f"{self.kind} row {row}, column {column} is {values[column]}{hint}")
        if not inside.all():
            column = int(np.argmin(inside))
            raise InputError(
                f"{self.kind} row {row}, column {column} is {values[column]}, outside [0, 1]"
            )
        raise InputError(
            f"probabilities row {row} sums to {_sums(values[None])[0]:.6g}, not 1 (to "
            f"{self._tolerance:.4g}, as rounding to three decimals leaves it); if these are logits, "
            "give them as logits= (in a table, as logit_0, logit_1, …)"
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
        1 less that, so that temperatures move them too. float16, float32 and float64 are kept without
        a copy; bfloat16 becomes float32.
    log_odds
        Instead of them, shape (n,): the log-odds of class 1 of a binary problem, as a
        `decision_function` gives them.
    confidence, correct
        Instead of all these and of labels, shape (n,) each: how probable a model holds its answer to
        be right, and whether it is (0 or 1). Whatever needs more than that says so.
    class_names
        What the classes are called, in the order of the columns: labels may then be names. A label
        that is a number is the place of a class, from 0 on, unless all names are numbers.
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
    privcal.errors.InputError: probabilities row 0 sums to 1.1, not 1 (to 0.001, ...
    >>> privcal.Scores(probabilities=[[0.5, 0.6]], labels=[0], strict=False).valid
    array([False])
    """

    def __init__(
        self,
        *,
        labels: ArrayLike | None = None,
        logits: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        log_odds: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        correct: ArrayLike | None = None,
        person: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        model: str | None = None,
        strict: bool = True,
    ) -> None:
        self.outputs = Outputs(
            logits=logits,
            probabilities=probabilities,
            log_odds=log_odds,
            confidence=confidence,
            class_names=class_names,
            strict=strict,
        )
        wanted = "labels" if confidence is None else "correct"
        for name, values in (("labels", labels), ("correct", correct)):
            if (values is None) == (name == wanted):
                raise InputError(f"{self.outputs.kind} go with {wanted}=: give that, and no other")
        truth = labels if correct is None else correct
        self.labels, labelled = as_labels(wanted, truth, self.outputs, strict)
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

    def take(self, rows: Any) -> Scores:
        """The scores of some `rows` (indices, a slice or a mask), in that order."""
        labels = "correct" if self.outputs.kind == "confidence" else "labels"
        values: dict[str, Any] = {
            self.outputs.kind: self.outputs.array[rows],
            labels: self.labels[rows],
        }
        taken = Scores(
            **values,
            person=None if self.person is None else self.person[rows],
            model=self.model,
            strict=self.strict,
        )
        taken.outputs.class_names = self.class_names  # labels are numbers by now
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


def _from_log_odds(values: Any) -> npt.NDArray[Any]:
    """Logits of two classes whose softmax has these log-odds."""
    array = as_array("log_odds", values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iubf":
        raise InputError(f"log_odds must be one number for each row, not shape {array.shape}")
    dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
    logits = np.zeros((len(array), 2), dtype)
    logits[:, 1] = array
    return logits


def _as_names(names: Sequence[str] | None, outputs: Outputs) -> tuple[str, ...] | None:
    if names is None:
        return None
    if outputs.kind == "confidence":
        raise InputError("a confidence is that of an answer: its classes have no names")
    if isinstance(names, str) or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError("class_names must be a list of names, none of them empty")
    names = tuple(name.strip() for name in names)
    if len(set(names)) < len(names):
        raise InputError(f"two classes are called alike in {', '.join(names)}")
    if len(names) != outputs.classes:
        raise InputError(f"there are {len(names)} names for {outputs.classes} classes")
    return names


def _as_float_table(kind: Kind, values: Any) -> npt.NDArray[Any]:
    array = as_array(kind, values)
    if array.dtype.kind in "iub" or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        with np.errstate(over="ignore"):  # what is infinite then is rejected below
            array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise InputError(f"{kind} must be numbers, not {array.dtype}")
    if kind != "logits" and array.ndim == 1:
        array = array[:, None]
    if kind == "confidence" and (array.ndim != 2 or array.shape[1] != 1):
        raise InputError(f"confidence must be one number for each row, not shape {array.shape}")
    if kind == "logits" and array.ndim == 1:
        raise InputError(
            f"logits must have two dimensions (rows, classes), not shape {array.shape}; log-odds of "
            "class 1 go to log_odds="
        )
    if array.ndim != 2:
        raise InputError(
            f"{kind} must have two dimensions (rows, classes), not shape {array.shape}"
        )
    if array.shape[1] == 0:
        raise InputError(f"{kind} have no columns")
    return array


def as_array(what: str, values: Any) -> npt.NDArray[Any]:
    """What was given as an array: a memory map stays one, a tensor gives up its gradients."""
    if isinstance(values, np.memmap):
        return values
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{what} are masked; fill the masked values or leave their rows out")
    if hasattr(values, "detach"):  # a tensor, perhaps one that needs gradients or is elsewhere
        values = values.detach().cpu()
        values = values.float() if "bfloat16" in str(values.dtype) else values
    try:
        array = np.asarray(values)
        # NumPy has no type of that name; packages that add it can turn it into single precision.
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    except ValueError:
        raise InputError(f"{what} must be a table of numbers with rows of one length") from None
    except Exception:  # such as Polars' for numbers of 128 bits
        return np.array(list(values), object)


def as_labels(what: str, labels: Any, outputs: Outputs, strict: bool) -> tuple[IntArray, BoolArray]:
    """The labels (or what is `correct`), 0 where they are malformed, and whether each is well-formed."""
    array = as_array(what, labels)
    if array.dtype.kind not in "iubfO" and not isinstance(labels, np.ndarray):
        array = np.asarray(labels, object)  # NumPy makes all of a list text because of one
    if array.ndim != 1:
        raise InputError(f"{what} must have one dimension, not shape {array.shape}")
    if len(array) != outputs.rows:
        raise InputError(f"there are {len(array)} {what} for {outputs.rows} rows of {outputs.kind}")
    given = array
    if outputs.class_names is not None:
        array = _places(array, outputs.class_names)
    elif array.dtype.kind not in "iubfO":
        raise InputError(
            f"{what} must be whole numbers, not {array.dtype}; for names say class_names="
        )
    elif array.dtype.kind == "O":
        array = np.array([_real(value) for value in array], np.float64)
    whole = np.ones(len(array), np.bool_)
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.floor(array))
    good = whole & (array >= 0) & (array < outputs.classes)
    if strict and not good.all():
        row = int(np.argmin(good))
        raise InputError(_label_problem(what, row, given[row], bool(whole[row]), outputs))
    return np.where(good, array, 0).astype(np.int64), np.asarray(good)


def _label_problem(what: str, row: int, value: Any, whole: bool, outputs: Outputs) -> str:
    """Why a label is malformed."""
    problem = f"{what.removesuffix('s')} of row {row} is {_text(value)}"
    if what == "correct":
        return f"{problem}, neither 0 (wrong) nor 1 (right)"
    if outputs.class_names is not None:
        classes = ", ".join(outputs.class_names[:10]) + ", …" * (outputs.classes > 10)
        problem = f"{what.removesuffix('s')} of row {row} is missing" if value is None else problem
        return f"{problem}, none of the classes {classes}"
    if not whole:
        named = "; name the classes with --classes"
        return f"{problem}, not a whole number" + (named if isinstance(value, str) else "")
    if outputs.classes == 1:
        return (
            f"{problem}, and there is 1 class alone; of a binary model give two columns, "
            "probabilities, or the log-odds of class 1"
        )
    return f"{problem}; with {outputs.classes} classes labels go from 0 to {outputs.classes - 1}"


def _places(labels: npt.NDArray[Any], names: tuple[str, ...]) -> FloatArray:
    """The place of each label's class: where its name stands; or itself, being a number.

    Where all names are numbers, a label is a name and never a place: which of the two it is depends
    on the names alone, never on other labels. NaN for anything else.
    """
    by_name = {name: float(place) for place, name in enumerate(names)}
    by_number = {_number(name): place for name, place in by_name.items()}
    numbered = len(by_number) == len(names) and all(map(np.isfinite, by_number))

    def place(value: Any) -> float:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, str) and not numbered and value.strip() in by_name:
            return by_name[value.strip()]
        number = _number(value) if isinstance(value, str) else _real(value)
        return by_number.get(number, np.nan) if numbered else number

    return np.array([place(value) for value in labels.tolist()], np.float64)


def _number(text: str) -> float:
    """The number that a text spells; NaN if it spells none."""
    try:
        return float(text) if "_" not in text else np.nan
    except ValueError:
        return np.nan


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
    array = np.asarray(without_damage(person), dtype=object)
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


def without_damage(texts: Any) -> Any:
    """Texts with "" for those that hold no characters, as arrays of a damaged file may."""
    if not isinstance(texts, np.ndarray) or texts.dtype.kind != "U" or not texts.size:
        return texts
    native = np.ascontiguousarray(texts.astype(texts.dtype.newbyteorder("=")))
    codes = native.view(np.uint32).reshape(*texts.shape, -1)
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
