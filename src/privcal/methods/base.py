"""What a method is, and the list of them.

A method is written once, over a batch of B runs: it yields rounds of questions, receives the
averages over sources, and returns one map for each run. A real calibration is a batch of one; a
study is a batch of hundreds that differ in their rows and noise. So decisions are made with
`np.where`, not `if`, and what is benchmarked is what ships.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from privcal.errors import InputError
from privcal.maps import Map
from privcal.methods.options import check_known, parse
from privcal.queries import Query
from privcal.scores import FloatArray


@dataclass(frozen=True)
class Batch:
    """What a method is given: how many runs, the nano-ε each may spend, its own randomness."""

    runs: int
    nano_epsilon: int
    rng: np.random.Generator


@dataclass(frozen=True)
class Ask:
    """One question to every source of every run, with its share of ε.

    `temperatures` has one entry for each run and replaces the query's own; None where the
    query has no temperature.
    """

    query: Query
    nano_epsilon: int
    temperatures: FloatArray | None = None

    def for_run(self, run: int) -> Query:
        return self.query if self.temperatures is None else self.query.at(self.temperatures[run])


class History(list[FloatArray]):
    """The averages over sources for every `Ask` made so far, oldest first, each (B, length).

    All of them come back in every round, because a source that drops out drops out of the
    earlier averages too: only averages over the same sources may be compared. `sources` says
    over how many.
    """

    def __init__(self, averages: Iterable[FloatArray] = (), *, sources: int) -> None:
        super().__init__(averages)
        self.sources = sources


Rounds = Generator[Sequence[Ask], History, Sequence[Map]]


def drive(rounds: Rounds, answer: Callable[[Sequence[Ask]], History]) -> Sequence[Map]:
    """Run a method to its end: `answer` turns each round's questions into the history so far."""
    try:
        asks = next(rounds)
        while True:
            asks = rounds.send(answer(asks))
    except StopIteration as stop:
        maps: Sequence[Map] = stop.value
        return maps


def plan(method: Method, nano_epsilon: int) -> list[tuple[int, int, Ask]]:
    """Every question that a run asks, with its round and its place there, and its share of ε.

    Found by answering with zeros. Where a question looks may depend on the answers before it; how
    many there are, of what kind and at what cost does not.
    """
    asked: list[tuple[int, int, Ask]] = []
    history = History(sources=1)
    rounds = 0

    def answer(asks: Sequence[Ask]) -> History:
        nonlocal rounds
        asked.extend((rounds, place, ask) for place, ask in enumerate(asks))
        history.extend(np.zeros((1, ask.query.length)) for ask in asks)
        rounds += 1
        return history

    with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.suppress(ArithmeticError):
        warnings.simplefilter("ignore")
        drive(method.run(Batch(1, nano_epsilon, np.random.default_rng(0))), answer)
    return asked


class Method(Protocol):
    """A frozen dataclass whose fields are the method's options, with a generator `run`."""

    def run(self, batch: Batch) -> Rounds: ...


_METHODS: dict[str, Callable[..., Method]] = {}
_Class = TypeVar("_Class", bound=Callable[..., Method])


def register(name: str) -> Callable[[_Class], _Class]:
    def add(cls: _Class) -> _Class:
        if name in _METHODS:
            raise InputError(f"a method called {name!r} is already registered")
        _METHODS[name] = cls
        return cls

    return add


def names() -> list[str]:
    """The registered methods, in the order of the paper's table, then others."""
    first = ["uncalibrated", "one-source", "histogram-binning", "ece-t", "nll-t", "acc-t"]
    return [n for n in first if n in _METHODS] + sorted(set(_METHODS) - set(first))


def find(name: str) -> Callable[..., Method]:
    """The class that is registered under a name; its fields are the method's options."""
    if name not in _METHODS:
        raise InputError(f"there is no method {name!r}; there are {', '.join(names())}")
    return _METHODS[name]


def make(name: str, **options: Any) -> Method:
    """The method of that name with these options; unknown names and options are errors."""
    cls = find(name)
    check_known(name, cls, options)
    return cls(**options)


def parse_options(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Options of that method, from texts like `bins=30`, for `make`."""
    return parse(name, find(name), texts)
