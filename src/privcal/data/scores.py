"""Scores as people have them: arrays, frames and tensors of outputs, labels by number or name, ids of persons.

Each is checked once. Strict scores raise an InputError at the first malformed row: right for whoever may
look at the rows. Scores that are not strict mark it, and it counts as zero in every answer.

A row's label and person depend on that row, and on the columns' types and the classes' names, alone.
Proof: `as_labels` and `_as_persons` choose how to read by the type and the names, and read row by row. ∎
"""

from __future__ import annotations

import copy
import hashlib
import numbers
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from privcal.data.columns import listed
from privcal.trusted import scores as trusted
from privcal.trusted.errors import InputError
from privcal.trusted.persons import person_id
from privcal.trusted.scores import BoolArray, FloatArray, IntArray, Kind

KINDS: tuple[Kind, ...] = ("logits", "probabilities", "confidence")
_EXACTLY = 1e-6
"""How far a softmax in single precision may be from a sum of 1."""


class Outputs(trusted.Outputs):
    """A model's outputs as somebody gives them: one of four, by name.

    `log_odds`, shape (n,), are those of class 1 of a binary problem, as a `decision_function` gives
    them: logits 0 and s. `confidence` has shape (n,). The first malformed row is an InputError if `strict`,
    which counts rows from `first_row`; else its `valid` is False.
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
        given = {"logits": logits, "probabilities": probabilities}
        given |= {"log_odds": log_odds, "confidence": confidence}
        if len([kind for kind, values in given.items() if values is not None]) != 1:
            raise InputError(
                "give either logits= or probabilities= (or log_odds= or confidence=), and only one "
                "of them"
            )
        if log_odds is not None:
            given["logits"] = _from_log_odds(log_odds)
        kind = next(kind for kind in KINDS if given[kind] is not None)
        super().__init__(kind, _as_float_table(kind, given[kind]))
        self.class_names = _as_names(class_names, self)
        if strict and not self.valid.all():
            from privcal.data import malformed

            raise InputError(malformed.row(self, int(np.argmin(self.valid)), first_row))

    @cached_property
    def looks_like_probabilities(self) -> bool:
        """Whether logits are numbers from 0 to 1 that sum to 1 in every row.

        For people who may look at the rows. No source decides anything by it.
        """
        if self.kind != "logits" or self.array.shape[1] < 2 or not self.rows:
            return False
        # To three decimals the logits of a single row may do so by chance, once in 30,000 rows.
        most = self.tolerance if self.rows > 1 else _EXACTLY
        with np.errstate(all="ignore"):  # of logits the first row tells, as a rule
            return all(
                bool((self.inside(block).all(axis=1) & self.sum_to_one(block, most)).all())
                for block in (self.array[rows] for rows in (slice(100), *self.blocks()))
            )

    def need_logits(self, otherwise: str) -> None:
        """Raise InputError for logits that look like probabilities; never where a source answers.

        `otherwise` is what to do where they are logits all the same.
        """
        if self.looks_like_probabilities:
            raise InputError(
                "these logits are numbers from 0 to 1 that sum to 1 in every row, as probabilities "
                "do: give them as probabilities= (in a table, as probability_0, probability_1, …); "
                f"if they are logits, {otherwise}"
            )


class Scores(trusted.Scores):
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
    privcal.trusted.errors.InputError: probabilities row 0 sums to 1.1, not 1 (to 0.001, ...
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
        self.outputs: Outputs
        outputs = Outputs(
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
                raise InputError(f"{outputs.kind} go with {wanted}=: give that, and no other")
        truth = labels if correct is None else correct
        numbers, valid = as_labels(wanted, truth, outputs, strict)
        persons = None
        if person is not None:
            persons, known = _as_persons(person, outputs, strict)
            valid &= known
        super().__init__(outputs, numbers, valid, persons, model)
        self.strict = strict

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


def content_digest(scores: trusted.Scores) -> str:
    """SHA-256 of the outputs in single precision and the labels, the same in any file format.

    It tells an owner that two files are copies of one another, and is never sent: it
    depends on every row, exactly. A malformed row counts as zeros; person ids do not count.
    """
    scores.outputs.check_intact()
    digest = hashlib.sha256(f"{scores.outputs.kind} {scores.outputs.array.shape[1]} ".encode())
    for rows in scores.outputs.blocks():
        with np.errstate(all="ignore"):  # a double beyond the largest single is infinite
            block = np.array(scores.outputs.array[rows], "<f4", order="C")
        block[~scores.valid[rows]] = 0
        digest.update(block.tobytes())
    digest.update(np.where(scores.valid, scores.labels, 0).astype("<i8").tobytes())
    return digest.hexdigest()


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
        raise InputError(
            f"the scores have {outputs.classes} classes, and {len(names)} are named: "
            f"{listed(names)}"
        )
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
        from privcal.data import malformed

        raise InputError(malformed.label(what, row, given[row], bool(whole[row]), outputs))
    return np.where(good, array, 0).astype(np.int64), np.asarray(good)


def _places(labels: npt.NDArray[Any], names: tuple[str, ...]) -> FloatArray:
    """The place of each label's class: where its name stands; or itself, being a number.

    Where all names are numbers, a label is a name and never a place: which of the two it is depends
    on the names alone, never on other labels. NaN for anything else.
    """
    by_name = {name: float(place) for place, name in enumerate(names)}
    by_number = {number_in(name): place for name, place in by_name.items()}
    numbered = len(by_number) == len(names) and all(map(np.isfinite, by_number))

    def place(value: Any) -> float:
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if isinstance(value, str) and not numbered and value.strip() in by_name:
            return by_name[value.strip()]
        number = number_in(value) if isinstance(value, str) else _real(value)
        return by_number.get(number, np.nan) if numbered else number

    return np.array([place(value) for value in labels.tolist()], np.float64)


def number_in(text: str) -> float:
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
        ids[row] = person_id(value)
        if strict and not ids[row]:
            from privcal.data import malformed

            raise InputError(malformed.person(row, value))
    return ids, np.asarray(ids != "", np.bool_)


def without_damage(texts: Any) -> Any:
    """Texts with "" for those that hold no characters, as arrays of a damaged file may."""
    if not isinstance(texts, np.ndarray) or texts.dtype.kind != "U" or not texts.size:
        return texts
    native = np.ascontiguousarray(texts.astype(texts.dtype.newbyteorder("=")))
    codes = native.view(np.uint32).reshape(*texts.shape, -1)
    return np.where((codes > 0x10FFFF).any(axis=-1), "", native)
