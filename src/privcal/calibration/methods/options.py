"""Options of a method as text: `name=value`, read by the types of the method's fields.

What a value may be is checked by the method itself (`__post_init__`).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from privcal.trusted.errors import InputError

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def parse(method: str, cls: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """The options in `texts`, each of the type of its field.

    A tuple is written with commas, as `bounds=0.5,6`, and None as `none`.

    >>> from privcal.calibration.methods.ece_t import EceT
    >>> parse("ece-t", EceT, ["bins=30", "bounds=0.5,6", "search=grid"])
    {'bins': 30, 'bounds': (0.5, 6.0), 'search': 'grid'}
    """
    types_of = _types(cls)
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"an option is written name=value, not {text!r}; {_listed(cls)}")
        check_known(method, cls, [name])
        if name in options:
            raise InputError(f"option {name} of method {method} is given twice")
        if name not in types_of:
            raise InputError(
                f"the options of method {method} cannot be read from text: a type of theirs is "
                "imported for type checkers alone"
            )
        kind = types_of[name]
        if not _writable(kind):
            raise InputError(f"option {name} of method {method} cannot be written as text")
        try:
            options[name] = _read(kind, value)
        except ValueError:
            what = _WORDS.get(kind, f"of type {kind}")
            raise InputError(
                f"option {name} of method {method} must be {what}, not {value!r}"
            ) from None
    return options


def check_known(method: str, cls: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise InputError where a method has no option of one of these names."""
    known = [field.name for field in _fields(cls)]
    for name in names:
        if name not in known:
            raise InputError(f"method {method} has no option {name!r}; {_listed(cls)}")


def listed(cls: Callable[..., Any]) -> str:
    """The options that can be written as text, with their defaults."""
    types_of = _types(cls)
    return " ".join(_with_default(f) for f in _fields(cls) if _writable(types_of.get(f.name)))


def _listed(cls: Callable[..., Any]) -> str:
    """The same as the end of a sentence."""
    texts = listed(cls)
    return f"its options are {texts}" if texts else "it has no options"


def _fields(cls: Any) -> list[Field[Any]]:
    return [field for field in fields(cls) if field.init]


def _types(cls: Any) -> dict[str, Any]:
    """The types of all fields; none where one of them is imported for type checkers alone."""
    try:
        return get_type_hints(cls)
    except NameError:
        return {}


def _with_default(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return f"{field.name} (required)"
    factory = field.default_factory
    return f"{field.name}={written(field.default if factory is MISSING else factory())}"


def written(value: Any) -> str:
    """A value as `parse` reads it.

    >>> written((0.5, 6.0))
    '0.5,6'
    """
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _writable(kind: Any) -> bool:
    if kind in (*_WORDS, types.NoneType, Ellipsis) or get_origin(kind) is Literal:
        return True
    return get_origin(kind) in (tuple, Union, types.UnionType) and all(
        map(_writable, get_args(kind))
    )


def _read(kind: Any, text: str) -> Any:
    """`text` as a value of this type; ValueError where it is none."""
    if get_origin(kind) in (Union, types.UnionType):
        *others, last = sorted(get_args(kind), key=lambda part: part is str)  # that takes anything
        for part in others:
            with contextlib.suppress(ValueError):
                return _read(part, text)
        return _read(last, text)
    if get_origin(kind) is tuple:
        parts, texts = get_args(kind), text.split(",")
        if parts[1:] == (Ellipsis,):
            parts = parts[:1] * len(texts)
        return tuple(_read(part, item.strip()) for part, item in zip(parts, texts, strict=True))
    if kind is bool or kind is types.NoneType:
        values = {"true": True, "false": False} if kind is bool else {"none": None}
        if text.lower() not in values:
            raise ValueError(text)
        return values[text.lower()]
    if get_origin(kind) is Literal:
        return next((value for value in get_args(kind) if str(value) == text), text)
    return kind(text)
