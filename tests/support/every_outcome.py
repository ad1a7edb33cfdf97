"""All that a program with random choices can do, with the exact probability of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

Result = TypeVar("Result")


class _NewChoice(Exception):
    def __init__(self, weights: Sequence[Fraction]) -> None:
        self.weights = weights


class Choices:
    """What a program asks instead of chance: it goes one way, then every other one."""

    def __init__(self) -> None:
        self.script: tuple[int, ...] = ()
        self._place = 0

    def start(self, script: tuple[int, ...]) -> None:
        self.script, self._place = script, 0

    def pick(self, weights: Sequence[Fraction]) -> int:
        """One of the ways, which have these probabilities."""
        if self._place == len(self.script):
            raise _NewChoice(weights)
        self._place += 1
        return self.script[self._place - 1]

    def below(self, n: int) -> int:
        return self.pick([Fraction(1, n)] * n)

    def bits(self, count: int) -> int:
        return self.below(2**count)

    def coin(self, p: int, q: int) -> bool:
        assert p >= 0, "a probability"
        return p >= q or self.pick([Fraction(q - p, q), Fraction(p, q)]) == 1

    def heads(self, most: int) -> int:
        """Heads before a tail; `most` stands for that many or more."""
        return self.pick([*(Fraction(1, 2 << n) for n in range(most)), Fraction(1, 1 << most)])


def every_outcome(
    program: Callable[[], Result], choices: Choices, left: float = 0.0
) -> dict[Result, Fraction]:
    """The probability of each result, the likeliest ways first, until less than `left` is left.

    So a result's true probability is what is said here, or more by at most `left`.
    """
    found: dict[Result, Fraction] = {}
    ways: list[tuple[Fraction, tuple[int, ...]]] = [(Fraction(-1), ())]
    remaining = 1.0
    while ways and remaining > left:
        mass, script = heapq.heappop(ways)
        choices.start(script)
        try:
            result = program()
        except _NewChoice as new:
            for way, weight in enumerate(new.weights):
                if weight:
                    heapq.heappush(ways, (mass * weight, (*script, way)))
            assert len(ways) < 100_000, "too many ways"
        else:
            found[result] = found.get(result, Fraction(0)) - mass
            remaining += float(mass)
    return found
