"""One way from JSON to a value and back: types and bounds are declared once, on a dataclass's fields.

A field is a number, text, true or false, one of a `Literal`'s words, a record, or a list (`tuple[T, ...]`,
`tuple[T, T]`) or an object (`dict[str, T]`) of these; `| None` lets it be absent. `Annotated[T, rule]` adds
what a type cannot express: `Between` bounds a number, or how many values a list has; a function of the
field's name and the value returns the value to keep or raises InputError; `By` one reads in the type's place.

Whatever is read becomes a value that keeps all rules, or gets one sentence: an InputError that names the
place. Names that a record does not have are refused.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from privcal.trusted.checks import number, one_of, short, whole
from privcal.trusted.errors import InputError

LARGEST = sys.float_info.max
Reader = Callable[[str, Any], Any]
_Record = TypeVar("_Record")


class Between(NamedTuple):
    """The least and the most that a number may be, or that a list may have values."""

    low: Any = None
    high: Any = None


_ANY = Between()


class By(NamedTuple):
    """What reads a field in place of its type: a function of the field's name and the value."""

    reader: Reader


def read(cls: type[_Record], facts: Any, what: str, *, complete: bool = False) -> _Record:
    """The record that a JSON object describes; `what` it is begins the sentence of an error.

    Fields that have a default may be absent, unless the object must be `complete`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Bins:
    ...     number: Annotated[int, Between(1, 1000)] = 15
    >>> read(Bins, {"number": 10}, "bins of here")
    Bins(number=10)
    >>> read(Bins, {"number": True}, "bins of here")
    Traceback (most recent call last):
    ...
    privcal.trusted.errors.InputError: bins of here: number must be a whole number from 1 to 1,000, not True
    """
    known = readers(cls)  # type: ignore[arg-type]
    if not isinstance(facts, dict):
        raise InputError(f"{what} must be an object, not {short(facts)}")
    for name in facts:
        if name not in known:
            raise InputError(f"{what} has no {short(name)}; there are {', '.join(sorted(known))}")
    for field in fields(cls):  # type: ignore[arg-type]
        defaults = (field.default, field.default_factory)
        if field.name not in facts and (complete or defaults == (MISSING, MISSING)):
            raise InputError(f"{what}: {field.name} is missing")
    try:
        return cls(**{name: known[name](name, value) for name, value in facts.items()})
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def write(value: Any) -> Any:
    """What a field holds, as JSON has it; a class may have a `to_dict` of its own."""
    if type(value) in (float, int, str, bool, NoneType):  # nearly always
        return value
    if is_dataclass(value):
        own = getattr(value, "to_dict", None)
        return facts(value) if own is None else own()
    if isinstance(value, dict):
        return {name: write(each) for name, each in value.items()}
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    return [write(each) for each in value] if isinstance(value, (tuple, list)) else value


def text(facts: Any) -> str:
    """The one spelling of a JSON value: in ASCII, with sorted names and without spaces."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def facts(record: Any, *, given: bool = False) -> dict[str, Any]:
    """A record's fields by their names, as `read` reads them; with `given` only those that are not None."""
    every = {field.name: write(getattr(record, field.name)) for field in fields(record)}
    return {name: value for name, value in every.items() if value is not None or not given}


def check(record: Any) -> None:
    """Hold a record that is made in Python to the rules of its fields: a `__post_init__`, or its first line."""
    for name, reader in readers(type(record)).items():  # type: ignore[arg-type]
        object.__setattr__(record, name, reader(name, getattr(record, name)))


@cache
def readers(cls: Any) -> dict[str, Reader]:
    """What reads each field of a class; an InputError for a type that JSON cannot hold."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: reader(f"{cls.__name__}.{f.name}", hints[f.name]) for f in fields(cls)}


def reader(place: str, hint: Any, size: Between = _ANY) -> Reader:
    """What reads a value of this type."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return _annotated(place, *parts)
    if kind in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        given = reader(place, parts[parts[0] is NoneType])
        return lambda name, value: None if value is None else given(name, value)
    if kind is tuple and parts and len({*parts} - {...}) == 1:
        each = reader(place, parts[0])
        size = size if parts[-1] is ... else Between(len(parts), len(parts))
        return lambda name, value: tuple([each(name, v) for v in _list(name, value, size)])
    if kind is dict:
        return _object(reader(place, parts[1]) if parts else _anything)
    if kind is Literal:
        return lambda name, value: one_of(name, value, parts)
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda name, value: value if isinstance(value, kind) else read(kind, value, name)
    if kind is int:
        return lambda name, value: whole(name, value, *size)
    if kind is float:
        return _number(*size)
    if kind not in _PLAIN:
        raise InputError(
            f"{place} is a {hint}, which JSON cannot hold: numbers, strings, booleans and tuples of them "
            "can be; for others write to_dict and from_dict"
        )
    return _PLAIN[kind]


def _number(low: float | None, high: float | None) -> Reader:
    least, most = (-LARGEST if low is None else low), (LARGEST if high is None else high)

    def read(name: str, value: Any) -> float:
        if type(value) is float and least <= value <= most:  # nearly always: a study makes millions
            return value
        return number(name, value, low, high)

    return read


def _annotated(place: str, hint: Any, *rules: Any) -> Reader:
    """What reads a value of a type, and then holds it to rules."""
    size = next((rule for rule in rules if isinstance(rule, Between)), _ANY)
    own = [rule.reader for rule in rules if isinstance(rule, By)]
    steps = own or [reader(place, hint, size)]
    steps += [rule for rule in rules if not isinstance(rule, (Between, By))]
    if len(steps) == 1:
        return steps[0]

    def read(name: str, value: Any) -> Any:
        for step in steps:
            value = step(name, value)
        return value

    return read


def _object(each: Reader) -> Reader:
    def read(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise InputError(f"{name} must be an object, not {short(value)}")
        return {key: each(f"{name} {short(key)}", v) for key, v in value.items()}

    return read


def _list(name: str, value: Any, size: Between) -> list[Any] | tuple[Any, ...]:
    low, high = size
    if not isinstance(value, (list, tuple)) or not (low or 0) <= len(value) <= (high or math.inf):
        least = "" if low == high else f"{low or 0:,} to "
        raise InputError(f"{name} must be a list" + (f" of {least}{high:,} values" if high else ""))
    return value


def _anything(name: str, value: Any) -> Any:
    return value


def _of(kind: type, what: str) -> Reader:
    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InputError(f"{name} must be {what}, not {short(value)}")
        return value

    return read


_PLAIN: dict[Any, Reader] = {
    str: _of(str, "text"),
    bool: _of(bool, "true or false"),
    Any: _anything,
}
