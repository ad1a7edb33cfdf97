"""Options of a method as text: `name=value`, read by the types of the method's fields.

What a value may be is checked by the method itself (`__post_init__`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from privcal.errors import InputError

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def parse(method: str, cls: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """The options in `texts`, each of the type of its field.

    A tuple is written with commas, as `bounds=0.5,6`, and None as `none`.

    >>> from privcal.methods.ece_t import EceT
    >>> parse("ece-t", EceT, ["bins=30", "bounds=0.5,6", "search=grid"])
    {'bins': 30, 'bounds': (0.5, 6.0), 'search': 'grid'}
    """
    types_of = _types(method, cls)
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(
                f"an option is written name=value, not {text!r}; {_listed(method, cls)}"
            )
        check_known(method, cls, [name])
        if name in options:
            raise InputError(f"option {name} of method {method} is given twice")
        kind = types_of[name]
        if not _writable(kind):
            raise InputError(f"option {name} of method {method} cannot be written as text")
        try:
            options[name] = _read(kind, value)
        except ValueError:
            raise InputError(
                f"option {name} of method {method} must be {_in_words(kind)}, not {value!r}"
            ) from None
    return options


def check_known(method: str, cls: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise InputError where a method has no option of one of these names."""
    known = [field.name for field in _fields(cls)]
    for name in names:
        if name not in known:
            raise InputError(f"method {method} has no option {name!r}; {_listed(method, cls)}")


def _listed(method: str, cls: Callable[..., Any]) -> str:
    """The options that can be written, with their defaults, as the end of a sentence."""
    types_of = _types(method, cls)
    texts = [_with_default(field) for field in _fields(cls) if _writable(types_of[field.name])]
    return f"its options are {' '.join(texts)}" if texts else "it has no options"


def _fields(cls: Any) -> list[Field[Any]]:
    return [field for field in fields(cls) if field.init]


def _types(method: str, cls: Any) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except NameError as error:  # imported for type checkers alone
        raise InputError(
            f"the options of method {method} cannot be read from text: {error}"
        ) from None


def _with_default(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return f"{field.name} (required)"
    factory = field.default_factory
    return f"{field.name}={_written(field.default if factory is MISSING else factory())}"


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_written, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have: several for a union, otherwise the one."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _writable(kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return all(_writable(part) for part in get_args(kind) if part is not Ellipsis)
    plain = [part for part in _choices(kind) if part is not types.NoneType]
    if len(plain) > 1 or plain[0] is not kind:
        return all(map(_writable, plain))
    return kind in _WORDS or get_origin(kind) is Literal


def _read(kind: Any, text: str) -> Any:
    """`text` as a value of this type; ValueError where it is none."""
    *others, last = sorted(_choices(kind), key=lambda part: part is str)  # text takes anything
    for part in others:
        try:
            return _read(part, text)
        except ValueError:
            continue
    if last is types.NoneType or last is bool:
        named = {"none": None} if last is types.NoneType else {"true": True, "false": False}
        if text.lower() not in named:
            raise ValueError(text)
        return named[text.lower()]
    if get_origin(last) is tuple:
        parts, texts = get_args(last), text.split(",")
        if parts[1:] == (Ellipsis,):
            parts = parts[:1] * len(texts)
        return tuple(_read(part, item.strip()) for part, item in zip(parts, texts, strict=True))
    return text if last is str or get_origin(last) is Literal else last(text)


def _in_words(kind: Any) -> str:
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return f"{'' if Ellipsis in parts else f'{len(parts)} '}values with commas between"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return " or ".join(
        "none" if part is types.NoneType else _WORDS[part] if part in _WORDS else _in_words(part)
        for part in _choices(kind)
    )
