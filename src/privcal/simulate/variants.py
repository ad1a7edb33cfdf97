"""A method and its options as one value; text only where people read, or a file is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privcal import methods
from privcal.errors import InputError

UNCALIBRATED = "uncalibrated"
ONE_SOURCE = "one-source"
ONE_SOURCE_ECE = "one-source-ece"
"""The paper's "one source", as far as its figures tell (see `privcal.simulate.first_source`)."""
PUBLIC = "public"
"""The option through which a method is given public rows."""


@dataclass(frozen=True)
class Variant:
    """A method with its options; `str` of it is its name in tables, figures and files.

    >>> str(Variant("ece-t", (("bins", 30),)))
    'ece-t(bins=30)'
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(f"{name}={_text(value)}" for name, value in self.options)
        return f"{self.method}({inner})" if inner else self.method

    @property
    def names(self) -> list[str]:
        """The names of its options."""
        return [name for name, _ in self.options]

    def value(self, option: str) -> Any:
        return dict(self.options)[option]

    def text(self, option: str) -> str:
        """An option's value as tables and figures say it."""
        return _text(self.value(option))

    @property
    def public_rows(self) -> int | None:
        """The number of public rows that the method is given; None where it has none."""
        rows: int | None = dict(self.options).get(PUBLIC)
        return rows

    @property
    def is_default(self) -> bool:
        """Whether the options are those that the method has anyway."""
        if not self.options:
            return True
        try:
            usual = methods.make(self.method)
        except InputError:
            return False
        return all(getattr(usual, name, None) == value for name, value in self.options)


def with_public(method: str, rows: int) -> Variant:
    """The method with so many public rows."""
    return Variant(method, ((PUBLIC, rows),))


def takes_public(method: str) -> bool:
    """Whether a registered method has a use for public rows."""
    return methods.find(method).takes_public


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
