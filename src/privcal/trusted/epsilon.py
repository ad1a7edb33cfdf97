"""ε as whole numbers: everything inside counts in nano-ε."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache

from privcal.trusted.checks import short
from privcal.trusted.errors import InputError

NANO = 10**9
MAX_EPSILON = 10**6
MAX_ALONE = 1000
"""How many times its ε an answer in a secure sum may cost against everybody else together."""


@dataclass(frozen=True)
class Cost:
    """What something costs, or all of it together, in nano-ε.

    nano
        Against whoever asks, the carrier, and as many hospitals as a secure sum withstands.
    alone
        Against everybody else together. An answer outside of secure sums costs the same twice.

    >>> Cost(1, 10) + Cost(2, 2)
    Cost(nano=3, alone=12)
    """

    nano: int = 0
    alone: int = 0

    @classmethod
    def of(cls, nano: int, alone: int | None) -> Cost:
        """The cost of so much ε: in a secure sum `alone` times as much against everybody else."""
        return cls(nano, nano if alone is None else alone * nano)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.nano + other.nano, self.alone + other.alone)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.nano - other.nano, self.alone - other.alone)

    def within(self, cap: Cost) -> bool:
        """Whether neither part is above the cap's."""
        return self.nano <= cap.nano and self.alone <= cap.alone

    def at_least(self, least: Cost) -> Cost:
        """The larger of each part."""
        return Cost(max(self.nano, least.nano), max(self.alone, least.alone))


def to_nano(epsilon: float | int | str | Decimal | Fraction, what: str = "epsilon") -> int:
    """Whole nano-ε, rounded down so that no more is spent than was asked for.

    A float counts as the decimal a person would write for it.

    >>> to_nano(0.1)
    100000000
    """
    return (_nano_of if type(epsilon) is float else _nano_of.__wrapped__)(epsilon, what)


@lru_cache(maxsize=1024)
def _nano_of(epsilon: float | int | str | Decimal | Fraction, what: str) -> int:
    try:
        if isinstance(epsilon, bool):
            raise TypeError
        exact = epsilon if isinstance(epsilon, Fraction) else _decimal(epsilon)
    except (InvalidOperation, TypeError, ValueError, OverflowError):
        raise InputError(f"{what} must be a finite number, not {short(epsilon)}") from None
    if not 0 < exact <= MAX_EPSILON:
        raise InputError(
            f"{what} must be above 0 and at most {MAX_EPSILON:,}, not {short(epsilon)}"
        )
    nano = int(exact * NANO)
    if nano == 0:
        raise InputError(f"{what} must be at least 1e-9, not {short(epsilon)}")
    return nano


def _decimal(epsilon: object) -> Fraction:
    number = Decimal(str(epsilon))
    if number.is_finite() and abs(number.adjusted()) > 30:  # its digits alone could fill memory
        number = Decimal("1e30") if number.adjusted() > 0 else Decimal(0)
    return Fraction(number)


def from_nano(nano: int) -> float:
    """ε as a person writes it.

    >>> from_nano(250_000_000)
    0.25
    """
    return nano / NANO


def split(nano: int, parts: int) -> list[int]:
    """Shares that add up to `nano` exactly; the remainder goes to the first ones.

    >>> split(10, 3)
    [4, 3, 3]
    """
    share, rest = divmod(nano, parts)
    if share == 0:
        raise InputError(f"epsilon {from_nano(nano)} is too small to be split over {parts} queries")
    return [share + (i < rest) for i in range(parts)]
