"""What is wrong with a row, in a sentence: for whoever may look at it.

A source that answers does not even load this: a refusal that depends on a row would tell something about it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privcal.data.columns import listed
from privcal.trusted.persons import MISSING
from privcal.trusted.scores import Outputs, sums


def row(outputs: Outputs, index: int, first_row: int) -> str:
    """What is wrong with the outputs of a row, which are counted from `first_row`."""
    values = outputs.array[index]
    number = first_row + index
    finite, inside = np.isfinite(values), (values >= 0) & (values <= 1)
    if not finite.all():
        column = int(np.argmin(finite))
        hint = ""
        if outputs.kind == "logits" and values[column] == -np.inf:
            hint = "; give an impossible class a finite number far below the others, such as -1e4"
        return f"{outputs.kind} row {number}, column {column} is {values[column]}{hint}"
    if not inside.all():
        column = int(np.argmin(inside))
        return f"{outputs.kind} row {number}, column {column} is {values[column]}, outside [0, 1]"
    return (
        f"probabilities row {number} sums to {sums(values[None])[0]:.6g}, not 1 (to "
        f"{outputs.tolerance:.4g}, as rounding to three decimals leaves it); if these are logits, "
        "give them as logits= (in a table, as logit_0, logit_1, …)"
    )


def label(what: str, row: int, value: Any, whole: bool, outputs: Outputs) -> str:
    """Why a label is malformed."""
    problem = f"{what.removesuffix('s')} of row {row} is {_text(value)}"
    if what == "correct":
        return f"{problem}, neither 0 (wrong) nor 1 (right)"
    if outputs.class_names is not None:
        problem = f"{what.removesuffix('s')} of row {row} is missing" if value is None else problem
        return f"{problem}, none of the classes {listed(outputs.class_names)}"
    if not whole:
        named = "; give class_names= (--classes)"
        return f"{problem}, not a whole number" + (named if isinstance(value, str) else "")
    if outputs.classes == 1:
        return (
            f"{problem}, and there is 1 class alone; of a binary model give two columns, "
            "probabilities, or the log-odds of class 1"
        )
    return f"{problem}; with {outputs.classes} classes labels go from 0 to {outputs.classes - 1}"


def person(row: int, value: Any) -> str:
    """What is wrong with the id of a row's person."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    if text.strip().lower() in MISSING:
        return f"person id of row {row} is missing; every row needs one"
    return f"person id of row {row} is {_text(value)}; use whole numbers or strings"


def _text(value: Any) -> str:
    """A value as an error sentence shows it: on one line, at most 60 characters."""
    if isinstance(value, (float, np.floating)) and abs(float(value)) < 1e16:
        value = int(value) if float(value).is_integer() else value
    text = repr(value) if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"
