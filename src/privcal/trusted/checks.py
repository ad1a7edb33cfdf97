"""Checks of single values, with one wording for each kind of mistake.

Each returns the value as the plain Python type, so that a check and its assignment are one line.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from privcal.trusted.errors import InputError


def whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int from `low` to `high`, both included; True and 1.0 are no whole numbers.

    >>> whole("bins", 15, 1, 1000)
    15
    >>> whole("bins", 0, 1)
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: bins must be a whole number of at least 1, not 0
    """
    # The plain type first: asking an abstract class takes several times as long.
    fits = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    plain = (
        int(value) if fits else 0
    )  # before it is compared: a kind of int may have ways of its own
    if not fits or (low is not None and plain < low) or (high is not None and plain > high):
        raise InputError(f"{name} must be a whole number{_range(low, high)}, not {short(value)}")
    return plain


def number(name: str, value: Any, low: float | None = None, high: float | None = None) -> float:
    """`value` as a finite float from `low` to `high`, both included; True is no number.

    >>> number("delay", 2, 0)
    2.0
    """
    try:
        real = isinstance(value, float) or (isinstance(value, Real) and not isinstance(value, bool))
        plain = float(value) if real else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        plain = math.nan
    fits = (
        math.isfinite(plain) and (low is None or plain >= low) and (high is None or plain <= high)
    )
    if not fits:
        raise InputError(f"{name} must be a number{_range(low, high)}, not {short(value)}")
    return plain


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """`value` itself, if it is one of the allowed words.

    >>> one_of("search", "golden", ("golden", "grid"))
    'golden'
    """
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, not {short(value)}")
    return value


def known(kind: str, name: str, names: Collection[str]) -> str:
    """`name` itself, if something of this kind is called so.

    >>> known("shift", "fog", ("fog", "snow"))
    'fog'
    """
    if name not in names:
        raise InputError(f"there is no {kind} {short(name)}; there are {', '.join(names)}")
    return name


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    least, most = (f"{limit:,}".removesuffix(".0") for limit in (low or 0, high or 0))
    if high is None:
        return f" of at least {least}"
    return f" of at most {most}" if low is None else f" from {least} to {most}"


def short(value: Any) -> str:
    """A value as an error shows it: at most 80 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "one so large"
    return text if len(text) <= 80 else text[:77] + "..."
