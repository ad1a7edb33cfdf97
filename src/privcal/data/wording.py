"""What things are called in sentences: classes, questions, counts.

Classes are called by the names of columns and what was declared of them, never by labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from privcal.data.columns import listed
from privcal.data.scores import number_in
from privcal.trusted.errors import InputError
from privcal.trusted.queries import (
    HATS_SHARE,
    BinnedGap,
    CellHistogram,
    ClassHats,
    EventHats,
    Gap,
    Hats,
    Histogram,
    Nll,
    OffsetHats,
    Query,
)
from privcal.trusted.scores import Scores


def plural(count: int, noun: str, ending: str = "s") -> str:
    """`count` of a noun: "1 answer", "1,200 answers", "2 processes" (ending "es")."""
    return f"{count:,} {noun}{ending if count != 1 else ''}"


_RIGHT_OR_WRONG = "how many were wrong, how many were right"


def asks(query: Query, class_names: Sequence[str] | None = None) -> str:
    """What a query asks, in plain words, for the data owner; with the names of classes, if known.

    >>> asks(EventHats(knots=(-1.0, 1.0), event=1), ["well", "ill"])[-25:]
    'how many are of class ill'
    """
    named = re.compile(r"\bclass (\d+)")
    return named.sub(lambda at: f"class {name_of(int(at[1]), class_names)}", _asks(query))


def _asks(query: Query) -> str:
    match query:
        case Gap(temperature=t):
            return f"how many were right, minus the summed confidence, at temperature {t:g}"
        case Nll(temperature=t, clip=clip):
            return f"the summed log loss at temperature {t:g}, each row counted as at most {clip:g}"
        case BinnedGap(temperature=t, bins=bins):
            return (
                f"for each of {bins} ranges of confidence: how many were right, minus the "
                f"summed confidence, at temperature {t:g}"
            )
        case Histogram(bins=bins):
            return (
                f"for each of {bins} ranges of confidence: how many were right, how many there are"
            )
        case CellHistogram(bins=bins):
            return f"for each of {bins} ranges of confidence: {_RIGHT_OR_WRONG}"
        case EventHats(temperature=t, knots=knots, event=event):
            return (
                f"for each of {len(knots)} overlapping ranges of the predicted probability of class "
                f"{event} at temperature {t:g}: how many are of another class, how many are of class "
                f"{event}"
            )
        case Hats(temperature=t, knots=knots):
            return (
                f"for each of {len(knots)} overlapping ranges of confidence at temperature {t:g}: "
                f"{_RIGHT_OR_WRONG}"
            )
        case ClassHats(temperature=t, knots=knots, classes=classes):
            return (
                f"for each of {len(knots)} overlapping ranges of confidence at temperature {t:g}, and "
                f"for each of {classes} predicted classes: {_RIGHT_OR_WRONG}; a row counts "
                f"{HATS_SHARE:g} in its ranges and {1 - HATS_SHARE:g} in its class"
            )
        case OffsetHats(knots=knots, offsets=offsets):
            return (
                f"for each of {len(knots)} overlapping ranges of a confidence that was corrected for "
                f"each of {len(offsets)} predicted classes: {_RIGHT_OR_WRONG}"
            )
    raise TypeError(f"{query!r} is not one of privcal.queries")


def schema_of(tables: Sequence[Scores]) -> dict[str, Any]:
    """What a map tells of the scores it was made from: their kind, the number and names of classes.

    By types and names of columns, and what was declared of them; rows play no part. What is not
    known, or not the same of all, is None or left out.

    >>> schema_of([privcal.Scores(probabilities=[0.2], labels=[1], class_names=["well", "ill"])])
    {'made_from': 'probabilities', 'classes': 2, 'class_names': ['well', 'ill']}
    """
    kinds = {scores.outputs.kind for scores in tables}
    known = [scores for scores in tables if scores.outputs.kind != "confidence"]
    names = next((scores.class_names for scores in known if scores.class_names), None)
    return {
        "made_from": kinds.pop() if len(kinds) == 1 else None,
        "classes": known[0].classes if known else None,
        "class_names": None if names is None else list(names),
    }


def name_of(event: int, names: Sequence[str] | None) -> str:
    """What a class is called: its number, where classes have no names."""
    return str(event) if names is None or event >= len(names) else names[event]


def place_of(event: int | str | None, names: Sequence[str] | None) -> int | None:
    """The class that is called so, counted from 0; or itself, being a number.

    Where all names are numbers, a text is a name and never a place, as it is among labels.

    >>> place_of("ill", ["well", "ill"]), place_of("1", ["well", "ill"]), place_of("1", None)
    (1, 1, 1)
    """
    if not isinstance(event, str):
        return event
    if names and event in names:
        return list(names).index(event)
    numbered = names is not None and all(np.isfinite(number_in(name)) for name in names)
    number = re.fullmatch(r"-?[0-9]+", event) is not None and not numbered
    if number and (not names or int(event) < len(names)):
        return int(event)
    raise InputError(
        f"there is no class {event!r}; the classes are {listed(names)}"
        if names
        else f"class {event!r} is not known by name: name the classes in order (--classes A,B,…), or "
        "give the number of the class, counted from 0"
    )


def other_classes(
    first: str, names: Sequence[str], second: str, others: Sequence[str]
) -> InputError:
    """What is wrong where two have classes of other names, or in another order, and what to do."""
    alike = sorted(names) == sorted(others)
    order = ",".join(names) if len(names) <= 10 else "A,B,…"
    what = "{} has the classes {}, and {} has {}: "
    return InputError(
        what.format(first, listed(names), second, listed(others))
        + (
            f"put the columns in one order (in a table, --classes {order} does)"
            if alike
            else "they are not of one model, or need the same names"
        )
    )


def as_odds(epsilon: float) -> str:
    """What ε does to somebody's belief, from even odds, as a sentence.

    By ε-differential privacy whatever is seen changes the odds that someone is in the data by a
    factor of at most exp(ε): from 1 : 1 to exp(ε) : 1, a probability of 1/(1 + exp(−ε)).
    """
    most = round(100 / (1 + math.exp(-epsilon)))
    share = f"at most {most} of 100" if most < 100 else "more than 99 of 100: it promises nothing"
    return (
        "someone who believed with 50 of 100 that you are in the data may come to believe it "
        f"with {share}"
    )
