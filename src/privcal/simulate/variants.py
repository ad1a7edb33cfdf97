"""A method and its options as one value; text only where people read, or a file is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privcal import methods
from privcal.calibrate import AGGREGATIONS
from privcal.checks import known, whole
from privcal.methods.options import written
from privcal.simulate.aggregation import EACH

UNCALIBRATED = "uncalibrated"
ONE_SOURCE = "one-source"
ONE_SOURCE_ECE = "one-source-ece"
"""The paper's "one source", as far as its figures tell (see `privcal.simulate.first_source`)."""
PUBLIC = "public"
"""The option through which a method is given public rows."""
AGGREGATION = "aggregation"
"""What a variant's name calls its aggregation, as if that were an option."""


@dataclass(frozen=True)
class Variant:
    """A method with its options; `str` of it is its name in tables, figures and files.

    `aggregation` says how its sources' answers are put together (`privcal.simulate.aggregation`).

    >>> str(Variant("acc-t", (("bounds", (0.5, 6.0)), ("iterations", 4))))
    'acc-t(bounds=0.5,6, iterations=4)'
    >>> str(Variant("sketch", aggregation="secure"))
    'sketch(aggregation=secure)'
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    aggregation: str = EACH

    def __str__(self) -> str:
        said = [f"{name}={written(value)}" for name, value in self.options]
        if self.aggregation != EACH:
            said.append(f"{AGGREGATION}={self.aggregation}")
        return f"{self.method}({', '.join(said)})" if said else self.method

    @classmethod
    def read(cls, text: str) -> Variant:
        """The variant of that name: a method, with options as `--option` takes them in brackets.

        >>> Variant.read("acc-t(bounds=0.5,6, iterations=4)")
        Variant(method='acc-t', options=(('bounds', (0.5, 6.0)), ('iterations', 4)), aggregation='each')

        Public rows are told by their number: `sketch(public=2000)`.
        """
        method, bracket, inner = text.partition("(")
        if not bracket or not inner.endswith(")"):
            return cls(text)
        options: list[str] = []
        for part in inner[:-1].split(","):
            if options and "=" not in part:
                options[-1] += f",{part}"  # a comma within a value
            else:
                options.append(part)
        public = [option for option in options if _name(option) == PUBLIC]
        summed = [option for option in options if _name(option) == AGGREGATION]
        given = methods.parse_options(method, [o for o in options if o not in public + summed])
        if public and takes_public(method):  # of rows, a text can say only how many
            given[PUBLIC] = whole("public", _number(_text(public[-1])), 1)
        elif public:
            methods.parse_options(method, public)  # says what is wrong
        aggregation = known("aggregation", _text(summed[-1]), AGGREGATIONS) if summed else EACH
        return cls(method, tuple(given.items()), aggregation)

    @property
    def names(self) -> list[str]:
        """The names of its options."""
        return [name for name, _ in self.options]

    def value(self, option: str) -> Any:
        return dict(self.options)[option]

    def text(self, option: str) -> str:
        """An option's value as tables and figures say it."""
        return written(self.value(option))

    @property
    def public_rows(self) -> int | None:
        """The number of public rows that the method is given; None where it has none."""
        rows: int | None = dict(self.options).get(PUBLIC)
        return rows


def with_public(method: str, rows: int) -> Variant:
    """The method with so many public rows."""
    return Variant(method, ((PUBLIC, rows),))


def takes_public(method: str) -> bool:
    """Whether a registered method has a use for public rows."""
    return methods.find(method).takes_public


def _name(option: str) -> str:
    return option.partition("=")[0].strip()


def _text(option: str) -> str:
    return option.partition("=")[2].strip()


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
