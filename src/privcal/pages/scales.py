"""From values to pixels, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)
_LOG_TICKS = ((1, 2, 5), (1, 3), (1,))
"""Within a power of ten, from many to few."""


@dataclass(frozen=True)
class Scale:
    """A line from `low` at pixel `start` to `high` at pixel `end`, or a logarithmic one."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]
    inset: float = 0.0

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            # What a logarithm cannot show lies below the edge, not nowhere.
            value = math.log10(max(value, low / 10))
            low, high = math.log10(low), math.log10(high)
        inset = math.copysign(self.inset, self.end - self.start)
        start, end = self.start + inset, self.end - inset
        return start + (value - low) / (high - low) * (end - start)

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        low: float | None = None,
        high: float | None = None,
        names: Sequence[str] | None = None,
        most: int = 8,
        round_ends: bool = False,
        inset: float = 0.0,
    ) -> Scale:
        """A scale that holds the values, with at most about `most` ticks.

        With `round_ends` it goes on to the next tick, or a little further.
        """
        if names is not None:
            ticks = tuple((float(i), name) for i, name in enumerate(names))
            return cls(-0.5, max(len(names), 1) - 0.5, start, end, False, ticks, inset)
        held = [v for v in values if v > 0] if log else list(values)
        bottom = low if low is not None else min(held, default=0.1 if log else 0.0)
        top = high if high is not None else max(held, default=1.0)
        if not bottom < top:
            bottom, top = (bottom / 2, bottom * 2) if log else (bottom - 0.5, bottom + 0.5)
        if log:
            room = (top / bottom) ** 0.04 if round_ends else 1.0
            bottom = bottom if low is not None else bottom / room
            top = top if high is not None else top * room
            made = log_ticks(bottom, top, most)
            return cls(bottom, top, start, end, True, made, inset)
        step = step_of(bottom, top, most)
        if round_ends:
            bottom = bottom if low is not None else math.floor(bottom / step + 1e-9) * step
            top = top if high is not None else math.ceil(top / step - 1e-9) * step
        return cls(bottom, top, start, end, False, linear_ticks(bottom, top, step), inset)


def step_of(low: float, high: float, most: int) -> float:
    """The least round step that makes at most `most` ticks."""
    scale = 10.0 ** math.floor(math.log10((high - low) / most))
    return next(s * scale for s in (*_STEPS, 20) if (high - low) / (s * scale) <= most)


def linear_ticks(low: float, high: float, step: float) -> tuple[tuple[float, str], ...]:
    # As many digits as the step has, so that neighbours are told apart and none has more.
    digits = 0
    while (
        digits < 12 and abs(step * 10**digits - round(step * 10**digits)) > 1e-6 * step * 10**digits
    ):
        digits += 1
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple((i * step, f"{i * step:,.{digits}f}") for i in range(first, last + 1))


def log_ticks(low: float, high: float, most: int) -> tuple[tuple[float, str], ...]:
    """1, 2, 5 of each power of ten, or fewer where those are too many."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    found: list[float] = []
    for tens in _LOG_TICKS:
        every = [t * 10.0**power for power in range(first, last + 1) for t in tens]
        fewer = [v for v in every if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        found = fewer if len(fewer) > 1 else found
        if len(found) <= most:
            break
    if not found:  # less than from one of these to the next: as on a line, at least two
        tried = (linear_ticks(low, high, step_of(low, high, most * k)) for k in (1, 2, 3))
        return next((ticks for ticks in tried if len(ticks) > 1), ())
    return tuple((v, shown(v, None)) for v in found)


def shown(value: float | None, digits: int | None) -> str:
    """A figure as people read it: with so many digits after the point, or four in all."""
    if value is None or value != value:
        return ""
    if math.isinf(value):
        return "∞"
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    after = max(0, 3 - math.floor(math.log10(abs(value))))
    said = f"{value:,.{after}f}"
    return said.rstrip("0").rstrip(".") if "." in said else said
