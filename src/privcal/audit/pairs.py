"""Neighbours that are as easy to tell apart as the promise allows.

D has one row (or one person) more than D′, and that row moves the exact sums by the whole bound.
Sums and sensitivities come from real sources, so whatever is wrong there is audited too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from privcal import methods
from privcal.methods.base import Ask, Batch, Rounds
from privcal.metrics import bin_index
from privcal.privacy.epsilon import NANO
from privcal.privacy.policy import Policy
from privcal.queries import FAMILY, Gap, Hats, Query
from privcal.scores import BoolArray, FloatArray, IntArray, Scores
from privcal.source import Source

PERSON_ROWS, ROWS_COUNTED = 7, 3
"""The number of rows of the audited person, and of those that count."""

EDGE_CLASSES = 10_000
"""Classes of the pair at a bin's edge: more than the 8,192 numbers that NumPy sums in one go."""

_BINS = 15


@dataclass(frozen=True)
class Pair:
    """The same source with and without one row or person."""

    whole: Source
    less: Source

    @classmethod
    def of(cls, whole: Scores, gone: BoolArray, rows_per_person: int = 1) -> Pair:
        policy = Policy(rows_per_person=rows_per_person)
        source = Source(whole, policy, ledger=None)
        # One ledger, so one secret: both keep the same rows of everybody else.
        return cls(source, Source(whole.take(~gone), policy, ledger=source.ledger))

    def sums(self, query: Query) -> tuple[IntArray, IntArray]:
        """The exact sums of both, in grid points."""
        return self.whole._exact(query), self.less._exact(query)


@dataclass(frozen=True)
class Case:
    """One promise to look at: what is asked of which pair."""

    name: str
    """The name under which it is audited."""
    what: str
    """What is asked, in words."""
    run: Callable[[Batch], Rounds]
    pair: Pair


def cases() -> Iterator[Case]:
    """Every kind of query, some harder pairs, every method that asks."""
    for kind in FAMILY:
        query = FAMILY[kind]()
        yield Case(kind, "one answer", once(query), _worst(query))
    split = Hats(knots=(-2.0, 0.0, 2.0, 4.0))
    between = [([1.0, 0.0], 0)]  # log-odds 1, half-way from 0 to 2
    yield Case("hats-split", "a row split over two cells", once(split), _beside(between))
    gap = Gap()
    yield Case(
        "gap-person",
        f"a person of {PERSON_ROWS} rows, of which {ROWS_COUNTED} count",
        once(gap),
        _beside(_worst_row(gap) * PERSON_ROWS, ROWS_COUNTED),
    )
    for kind in ("cell-histogram", "histogram"):
        yield Case(
            f"{kind}-edge",
            f"{EDGE_CLASSES:,} classes, and a row that stays lies on the very edge of a bin",
            once(FAMILY[kind]()),
            edge_pair(),
        )
    for name in methods.names():
        if name == "one-source":
            continue  # an owner's own fit: nothing leaves it
        method = methods.make(name)
        for _, _, first in methods.plan(method, NANO)[:1]:
            pair = _worst(first.for_run(0))
            yield Case(name, "all answers of one run together", method.run, pair)


def once(query: Query) -> Callable[[Batch], Rounds]:
    """A method that asks this alone."""

    def run(batch: Batch) -> Rounds:
        yield [Ask(query, batch.nano_epsilon)]
        return []

    return run


def _worst(query: Query) -> Pair:
    return _beside(_worst_row(query))


def _worst_row(query: Query) -> list[tuple[list[float], int]]:
    """Certain and right, or certain and wrong: whichever moves the sums more."""
    certain = [99.0, -99.0]

    def moves(label: int) -> int:
        row = Scores(logits=[certain], labels=[label])
        return int(np.abs(query.contributions(row).values).sum())

    return [(certain, max((0, 1), key=moves))]


_OTHERS = [([2.0, 0.0], 0), ([0.5, 0.0], 1), ([0.0, 1.0], 1), ([0.0, 3.0], 1)]


def _beside(rows: list[tuple[list[float], int]], rows_per_person: int | None = None) -> Pair:
    """With and without `rows`, which are one person's where `rows_per_person` is given."""
    logits, labels = zip(*rows, *_OTHERS, strict=True)
    person = None
    if rows_per_person is not None:
        person = ["audited"] * len(rows) + [f"other {i}" for i in range(len(_OTHERS))]
    whole = Scores(logits=logits, labels=labels, person=person)
    gone = np.arange(len(whole)) < len(rows)
    return Pair.of(whole, gone, rows_per_person or 1)


@lru_cache(maxsize=1)
def edge_pair() -> Pair:
    """Two rows, one of them so near a bin's edge that the order of a sum decides on its bin.

    Where a row's value depended on how many rows there are, removing the first row would carry
    the second into another bin, and the sums would move by three bounds instead of one.
    """
    certain = np.full(EDGE_CLASSES, -99.0, np.float32)
    certain[0] = 99.0
    logits = np.stack([certain, edge_row()])
    return Pair.of(Scores(logits=logits, labels=[0, 0]), np.array([True, False]))


def edge_row() -> npt.NDArray[np.float32]:
    """Logits whose confidence at T = 1 is on two sides of an edge, as one sums.

    NumPy's einsum adds up a row of more than 8,192 numbers in one order where it is alone and in
    another where there are more. The logit of class 1 is moved until one of the two sums passes
    the edge; for most random rows the other is then still, or already, on its other side.
    """
    edge = 6 / _BINS
    row = np.zeros(EDGE_CLASSES, np.float32)
    for seed in range(100):
        row[1:] = np.random.default_rng(seed).normal(0, 1, EDGE_CLASSES - 1)
        row[1:] += np.log(0.95 * (1 / edge - 1) / np.exp(row[1:]).sum())
        low, high = np.float32(-20.0), np.float32(0.0)
        while low < (middle := np.float32((low + high) / 2)) < high:
            row[1] = middle
            low, high = (low, middle) if both_sums(row)[0] > 1 / edge else (middle, high)
        for row[1] in (low, high):
            if len(set(bin_index(1 / both_sums(row), _BINS))) == 2:
                return row
    return row  # a machine that sums in one order only: there is nothing to be told apart


def both_sums(row: npt.NDArray[np.float32]) -> FloatArray:
    """Σ exp(logit − top) of a row alone, and of the same row beside another."""
    z = np.exp(row - row.max())
    alone, beside = np.einsum("ij->i", z[None]), np.einsum("ij->i", np.stack([z, z]))
    return np.array([alone[0], beside[1]], np.float64)
