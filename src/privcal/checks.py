"""Checks of single values, with one wording for each kind of mistake.

Each returns the value as the plain Python type, so that a check and its assignment are one line.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from privcal.errors import InputError


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int from `low` to `high`, both included; True and 1.0 are no whole numbers.

    >>> whole("bins", 15, 1, 1000)
    15
    >>> whole("bins", 0, 1)
    Traceback (most recent call last):
    ...
    privcal.errors.InputError: bins must be a whole number of at least 1, not 0
    """
    # The plain type first: asking an abstract class takes several times as long.
    fits = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    if not fits or (low is not None and value < low) or (high is not None and value > high):
        raise InputError(f"{name} must be a whole number{_range(low, high)}, not {_short(value)}")
    return int(value)


def number(name: str, value: Any, low: float | None = None, high: float | None = None) -> float:
    """`value` as a finite float from `low` to `high`, both included; True is no number.

    >>> number("delay", 2, 0)
    2.0
    """
    try:
        real = isinstance(value, float) or (isinstance(value, Real) and not isinstance(value, bool))
        fits = real and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        fits = False
    if not fits or (low is not None and value < low) or (high is not None and value > high):
        raise InputError(f"{name} must be a number{_range(low, high)}, not {_short(value)}")
    return float(value)


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """`value` itself, if it is one of the allowed words.

    >>> one_of("search", "golden", ("golden", "grid"))
    'golden'
    """
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, not {_short(value)}")
    return value


def known(kind: str, name: str, names: Collection[str]) -> str:
    """`name` itself, if something of this kind is called so.

    >>> known("shift", "fog", ("fog", "snow"))
    'fog'
    """
    if name not in names:
        raise InputError(f"there is no {kind} {name!r}; there are {', '.join(names)}")
    return name


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    least, most = (f"{limit:,}".removesuffix(".0") for limit in (low or 0, high or 0))
    if high is None:
        return f" of at least {least}"
    return f" of at most {most}" if low is None else f" from {least} to {most}"


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "one so large"
    return text if len(text) <= 80 else text[:77] + "..."
