"""A method and its options as one value; text only where people read, or a file is written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privcal.calibration import methods
from privcal.calibration.loop import AGGREGATIONS
from privcal.calibration.methods.options import written
from privcal.secure.panel import USUAL_ALONE, Secure, expected
from privcal.secure.round import NoiseLaw
from privcal.secure.terms import FEWEST
from privcal.trusted.checks import known, whole
from privcal.trusted.errors import InputError

EACH, SECURE = AGGREGATIONS
BOTH = "both"
"""Each source by itself, and secure sums beside it."""

ASSUMED = (
    "a secure sum under the usual terms: a fifth of the sources may work with whoever asks, a tenth "
    f"may fail, and each source's own noise is that of {USUAL_ALONE} times the ε"
)


def aggregations(text: str) -> tuple[str, ...]:
    """What is simulated where `each`, `secure` or `both` is asked for.

    >>> aggregations("both")
    ('each', 'secure')
    """
    return AGGREGATIONS if known("aggregation", text, (*AGGREGATIONS, BOTH)) == BOTH else (text,)


def noise_law(aggregation: str, sources: int) -> NoiseLaw:
    """The law of the noise in the average of so many sources that all answer.

    >>> noise_law("secure", 50)
    NoiseLaw(rows_per_person=1, honest=35, alone=10, groups=1)
    """
    if known("aggregation", aggregation, AGGREGATIONS) == EACH:
        return NoiseLaw()
    if sources < FEWEST:
        raise InputError(
            f"a secure sum is of at least {FEWEST} sources, not of {sources}: ask each by itself"
        )
    return expected(Secure(), sources, rows_per_person=1)[1]


def epsilon_share(sources: int) -> float:
    """The ε of a secure sum, for noise as large as that of ε = 1 at each of so many sources.

    >>> [round(epsilon_share(n), 2) for n in (3, 8, 20, 50, 300)]
    [0.71, 0.46, 0.29, 0.2, 0.12]
    """
    return math.sqrt(noise_law(SECURE, sources).laplaces)


PAYS = 0.5
"""Secure sums pay where they take less than this share of the ε."""


def pays_from() -> int:
    """The number of sources from which on secure sums pay.

    >>> pays_from()
    8
    """
    counts = range(FEWEST, 100)  # beyond, the share only falls
    return 1 + max(n for n in counts if epsilon_share(n) >= PAYS)


# --- A method and its options as one value; text only where people read, or a file is written -----

UNCALIBRATED = "uncalibrated"
ONE_SOURCE = "one-source"
ONE_SOURCE_ECE = "one-source-ece"
"""The paper's "one source", as far as its figures tell (see `privcal.lab.study.exact`)."""
PUBLIC = "public"
"""The option through which a method is given public rows."""
AGGREGATION = "aggregation"
"""What a variant's name calls its aggregation, as if that were an option."""


@dataclass(frozen=True)
class Variant:
    """A method with its options; `str` of it is its name in tables, figures and files.

    `aggregation` says how its sources' answers are put together (`privcal.planning.simulate.variants`).

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
