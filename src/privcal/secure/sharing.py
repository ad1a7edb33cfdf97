"""Cutting whole numbers into shares, so that any `threshold` of them give the number back (Shamir).

Everything is modulo the prime P = 2¹²⁷ − 1. A number v becomes f(1), f(2), …, for a polynomial f of
degree below T with f(0) = v, whose other T − 1 coefficients are uniform and independent. Whoever is
asked holds the value at one point, and adding up shares of several numbers gives shares of their sum.

*T − 1 shares say nothing.* Fix T − 1 points, none of them 0. For every value v there is exactly one
polynomial of degree below T that is v at 0 and takes given values at these points, so the map from
the T − 1 coefficients to the T − 1 shares is one to one. Uniform coefficients make uniform shares,
whatever v is. ∎

*Any T give the number.* Two polynomials of degree below T that agree at T points are equal, since
their difference has more zeros than its degree; Lagrange's formula reads off the value at 0. ∎

*Wrong shares are found.* Of k points, all numbers of some may be wrong. Let v_j = 1/Π(x_j − x_l)
over the other points l. For a polynomial g of degree below k − 1, Σ v_j g(x_j) = 0: it is the
coefficient at x^(k−1) of the polynomial through all k points, which is g. So the k − T *checks*

    s_i = Σ_j v_j x_j^i y_j,    i < k − T,

are zero where all y are shares, and otherwise hold the errors alone: s_i = Σ over wrong j of
e_j·x_j^i with all e_j ≠ 0. A sum of e such powers is determined by its first 2e terms, and the
shortest recurrence that produces them (Berlekamp and Massey) has exactly the wrong x_j for roots. So
up to (k − T)/2 wrong points are found. A second solution with as few would give a difference of at
most k − T powers whose first k − T terms are zero, which Vandermonde's determinant forbids. ∎

All numbers of a point come from one site, so they are looked at together: in one combination with
random coefficients, drawn after the shares have arrived. A wrong point hides in it with probability
1/P. What is left once the wrong points are gone is checked with fresh coefficients, so shares that
are still wrong pass with probability 1/P too, however many sites lie.

*Speed.* Points are small and the modulus is 2¹²⁷ − 1, so all numbers are worked on at once: they lie
side by side in the lanes of one long integer, a lane twice as wide as a number. A product with a
point makes each lane a few bits longer; before it is full, its upper part is added to its lower one,
which changes nothing modulo 2¹²⁷ − 1.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

BITS = 127
PRIME = (1 << BITS) - 1
"""What shares are counted modulo: far above any sum of answers, so that sums never wrap round."""
WIDTH = 16
"""The bytes of one share."""


@dataclass(frozen=True)
class Combined:
    """What was put together again.

    values
        The numbers.
    wrong
        The points whose shares did not fit the others'.
    """

    values: list[int]
    wrong: tuple[int, ...]


def split(values: Sequence[int], threshold: int, points: int) -> list[list[int]]:
    """Shares of numbers at the points 1 to `points`; any `threshold` of them give the numbers.

    Row j has the shares at the point j + 1, one of each number. Numbers may be negative, and must
    be closer to zero than half the prime.

    >>> rows = split([-3, 10**20], threshold=2, points=3)
    >>> combine({1: rows[0], 3: rows[2]}, threshold=2)
    Combined(values=[-3, 100000000000000000000], wrong=())
    """
    if not 1 <= threshold <= points < 1 << (BITS - 1):
        raise ValueError(f"cannot cut numbers into {points} shares of which {threshold} are enough")
    lanes = _Lanes(len(values))
    # From the highest coefficient down to the numbers themselves.
    secret = lanes.packed([value % PRIME for value in values])
    coefficients = [*(lanes.uniform() for _ in range(threshold - 1)), secret]
    # A lane of b bits has at most b + bits(x) of them after `· x + coefficient`, if b ≥ BITS: from
    # the BITS + 1 of a folded one, so many steps fit into its 2·BITS.
    steps = (BITS - 1) // points.bit_length()
    rows = []
    for x in range(1, points + 1):
        total = 0
        for place, coefficient in enumerate(coefficients):
            if place % steps == 0:
                total = lanes.folded(total)
            total = total * x + coefficient
        rows.append([value % PRIME for value in lanes.unpacked(total)])
    return rows


def combine(shares: Mapping[int, Sequence[int]], threshold: int) -> Combined | None:
    """The numbers again, from shares by point; None where too many are wrong or too few are there.

    With k points, up to (k − threshold)/2 wrong ones are corrected, and named. All rows must have
    the same length.

    >>> rows = split([7], threshold=2, points=4)
    >>> combine({1: rows[0], 2: [12345], 3: rows[2], 4: rows[3]}, threshold=2)
    Combined(values=[7], wrong=(2,))
    """
    if len(shares) < threshold:
        return None
    wrong: tuple[int, ...] = ()
    right = dict(shares)
    if any(checks := _checks(right, threshold)):
        recurrence = _shortest_recurrence(checks)
        wrong = tuple(x for x in sorted(shares) if _value(recurrence, x) == 0)
        right = {x: row for x, row in shares.items() if x not in wrong}
        if len(wrong) > len(checks) // 2 or any(_checks(right, threshold)):
            return None
    some = dict(sorted(right.items())[:threshold])
    return Combined([_signed(value) for value in _at_zero(some)], wrong)


class _Lanes:
    """Many numbers side by side in one integer, from its lower end on."""

    def __init__(self, count: int) -> None:
        self._places = range(0, 2 * BITS * count, 2 * BITS)
        self._ones = sum(1 << place for place in self._places)
        self._lower = self._ones * PRIME

    def packed(self, numbers: Sequence[int]) -> int:
        return sum(n << place for n, place in zip(numbers, self._places, strict=True))

    def unpacked(self, lanes: int) -> Iterator[int]:
        whole = (1 << 2 * BITS) - 1
        return ((lanes >> place) & whole for place in self._places)

    def uniform(self) -> int:
        """Numbers below the prime, uniform and independent."""
        while True:
            lanes = secrets.randbits(2 * BITS * len(self._places)) & self._lower
            # A lane of ones alone is the prime itself: adding 1 carries out of it.
            if not (lanes + self._ones) & ~self._lower:
                return lanes

    def folded(self, lanes: int) -> int:
        """The same modulo the prime, each lane below 2^(BITS + 1): 2^BITS counts as 1."""
        return (lanes & self._lower) + ((lanes >> BITS) & self._lower)


def _signed(value: int) -> int:
    return value - PRIME if value > PRIME // 2 else value


def _at_zero(shares: Mapping[int, Sequence[int]]) -> list[int]:
    """The value at 0 of the polynomials through all shares: Lagrange's formula."""
    points = list(shares)
    above = math.prod(points)
    below = [x * math.prod(k - x for k in points if k != x) for x in points]
    weights = [above * pow(b, -1, PRIME) % PRIME for b in below]
    columns = zip(*shares.values(), strict=True)
    return [sum(w * y for w, y in zip(weights, column, strict=True)) % PRIME for column in columns]


def _checks(shares: Mapping[int, Sequence[int]], threshold: int) -> list[int]:
    """Numbers that are all zero where the shares lie on polynomials of degree below the threshold."""
    length = len(next(iter(shares.values())))
    random = [secrets.randbelow(PRIME) for _ in range(length)]
    terms = []
    for x, row in shares.items():
        below = math.prod(x - k for k in shares if k != x)
        terms.append(sum(r * y for r, y in zip(random, row, strict=True)) * pow(below, -1, PRIME))
    found = []
    for _ in range(len(shares) - threshold):
        found.append(sum(terms) % PRIME)
        terms = [term * x % PRIME for term, x in zip(terms, shares, strict=True)]
    return found


def _shortest_recurrence(sequence: Sequence[int]) -> list[int]:
    """c with c₀ = 1 and Σ c_i·s_(n−i) = 0 for all n from its length − 1 on, the shortest there is.

    Berlekamp and Massey: it is kept for ever longer beginnings. Where it fails at the next number, a
    multiple of an earlier one, that failed too, repairs it.
    """
    now, length = [1], 0
    earlier, failed, since = [1], 1, 1
    for place in range(len(sequence)):
        off = sum(c * sequence[place - i] for i, c in enumerate(now)) % PRIME
        if not off:
            since += 1
            continue
        factor = off * pow(failed, -1, PRIME)
        repair = [0] * since + [factor * c for c in earlier]
        width = max(len(now), len(repair))
        padded = (part + [0] * (width - len(part)) for part in (now, repair))
        repaired = [(a - b) % PRIME for a, b in zip(*padded, strict=True)]
        if 2 * length <= place:
            earlier, failed, since = now, off, 1
            length = place + 1 - length
        else:
            since += 1
        now = repaired
    return (now + [0] * (length + 1))[: length + 1]


def _value(recurrence: Sequence[int], x: int) -> int:
    """Zero where the powers of x obey the recurrence."""
    total = 0
    for coefficient in recurrence:
        total = (total * x + coefficient) % PRIME
    return total
