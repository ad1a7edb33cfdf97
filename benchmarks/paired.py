"""Paired timing: contestants take turns, so that a noisy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

Seconds = list[float]


def take_turns(
    contestants: dict[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Seconds]:
    """Seconds of every call, in the order A B A B …"""
    seconds: dict[str, Seconds] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def ratio(a: Seconds, b: Seconds) -> float:
    """The median over rounds of a/b: each pair ran under nearly the same load."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))
