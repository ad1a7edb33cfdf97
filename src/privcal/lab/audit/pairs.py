"""Neighbours that are as easy to tell apart as the promise allows.

D has one row (or one person) more than D′, and that row moves the exact sums by the whole bound.
Both are real sources. *End to end* they are asked, as any asker would ask them: by `Source.answer`,
or `Source.share`, over a ledger, every game under a key of its own. That costs half a millisecond for
each answer, so beside it stands the mechanism alone: exact sums of the same sources, and the noise
that their answers get, by the million.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from privcal.calibration import methods
from privcal.calibration.methods.base import Ask, Batch, History, Rounds, drive
from privcal.data.ledger import Ledger
from privcal.data.scores import Scores
from privcal.secure.participant import share_noisy_sums
from privcal.secure.terms import Terms
from privcal.trusted.epsilon import MAX_EPSILON, NANO
from privcal.trusted.kernel import bin_index
from privcal.trusted.policy import Policy, SecureRules
from privcal.trusted.queries import FAMILY, GRID, Gap, Hats, Query
from privcal.trusted.question import Question
from privcal.trusted.scores import BoolArray, FloatArray, IntArray
from privcal.trusted.source import Source

PERSON_ROWS, ROWS_COUNTED = 7, 3
"""The number of rows of the audited person, and of those that count."""

PERSON = f"a person of {PERSON_ROWS} rows, of which {ROWS_COUNTED} count"

EDGE_CLASSES = 10_000
"""Classes of the pair at a bin's edge: more than the 8,192 numbers that NumPy sums in one go."""

_BINS = 15


ANSWERS, FEWER_ANSWERS = 2_000, 1_000
"""Games end to end for each claim: of a single answer, and of what takes longer."""

_ENOUGH = Policy(epsilon=MAX_EPSILON, minimum_epsilon=1e-9)
"""The policy of an audited source, which has to answer thousands of questions."""

_SITES = ("a", "b", "c")
"""Who takes part in the secure sum: too few to be of use, and enough to be one."""

_SECURE = SecureRules(colluding=0)


@dataclass(frozen=True)
class Pair:
    """The same source with and without one row or person, over one ledger."""

    whole: Source
    less: Source
    others: tuple[Source, ...] = ()
    """In a secure sum, the other sources: they have no rows."""

    @classmethod
    def of(
        cls,
        whole: Scores,
        gone: BoolArray,
        policy: Policy = _ENOUGH,
        ledger: Ledger | None = None,
        others: int = 0,
        max_rows: int | None = None,
    ) -> Pair:
        source = Source(whole, policy, ledger=ledger, max_rows=max_rows)
        # One ledger, so one secret: both keep the same rows of everybody else.
        without = Source(whole.take(~gone), policy, ledger=source.ledger, max_rows=max_rows)
        nobody = whole.take(np.zeros(len(whole), bool))
        return cls(
            source, without, tuple(Source(nobody, policy, ledger=None) for _ in range(others))
        )

    def sums(self, query: Query) -> tuple[IntArray, IntArray]:
        """The exact sums of both, in grid points."""
        return self.whole._exact(query), self.less._exact(query)

    def answer(self, whole: bool, query: Query, nano_epsilon: int) -> FloatArray:
        """What leaves one of the two for a question that nobody asked yet, in grid points."""
        question = Question(secrets.token_hex(16), 0, 0, nano_epsilon, query)
        source = self.whole if whole else self.less
        if not self.others:
            return np.array(source.answer(question).points, np.float64)
        shares = [_shared(one, question) for one in (source, *self.others)]
        return np.asarray(np.sum(shares, axis=0), np.float64)


def _shared(source: Source, question: Question) -> list[int]:
    """What one source puts into a secure sum, before it is cut to pieces and sealed."""
    needed, seen = len(_SITES), []

    def deal(numbers: list[int]) -> str:
        seen.append(numbers)
        return "sealed"

    terms = Terms(question, "local", _SITES, 0, needed, _SECURE.alone, 1, "nobody's")
    share_noisy_sums(source, terms, "local", deal, _SECURE)
    return seen[0]


@dataclass(frozen=True)
class Case:
    """One promise to look at: what is asked of which pair."""

    name: str
    """The name under which it is audited."""
    what: str
    """What is asked, in words."""
    run: Callable[[Batch], Rounds]
    make: Callable[[Path], Pair]
    """The pair; what has to be on disk for it comes into that folder."""
    answers: int = 0
    """The most games that are played end to end; 0 where the mechanism alone is."""


def cases() -> Iterator[Case]:
    """End to end every kind of query, other ways to ask, every method; then the mechanism alone."""
    alone = list(_alone())
    kinds = [case for case in alone if case.name in FAMILY]
    for case in kinds:
        yield replace(case, what="one answer", answers=ANSWERS)
    yield from _other_ways()
    for case in alone:
        if case.name in methods.names():
            yield replace(case, answers=FEWER_ANSWERS)
    yield from alone


def _other_ways() -> Iterator[Case]:
    gap = Gap()
    row = _worst_row(gap)

    def on_disk(folder: Path) -> Pair:
        ledger = Ledger.create(folder / "ledger.db", _ENOUGH, unit="row", marks=folder / "marks.db")
        return _beside(row, ledger=ledger, max_rows=100)

    ways = [
        ("gap-person", PERSON, lambda _: _person()),
        ("gap-budgets", f"{PERSON}, each with a budget", lambda _: _person(budget="person")),
        ("gap-on-disk", "one answer over a ledger on disk, max_rows declared", on_disk),
        (
            "gap-secure-sum",
            f"the total of the numbers that {len(_SITES)} sources put into a secure sum",
            lambda _: _beside(row, others=len(_SITES) - 1),
        ),
    ]
    for name, what, make in ways:
        yield Case(name, what, once(gap), make, FEWER_ANSWERS)


def _alone() -> Iterator[Case]:
    """Every kind of query, some harder pairs, every method that asks."""
    for kind in FAMILY:
        query = FAMILY[kind]()
        yield Case(kind, "one answer", once(query), _worst(query))
    split = Hats(knots=(-2.0, 0.0, 2.0, 4.0))
    between = [([1.0, 0.0], 0)]  # log-odds 1, half-way from 0 to 2
    yield Case("hats-split", "a row split over two cells", once(split), lambda _: _beside(between))
    yield Case("gap-person", PERSON, once(Gap()), lambda _: _person())
    for kind in ("cell-histogram", "histogram"):
        yield Case(
            f"{kind}-edge",
            f"{EDGE_CLASSES:,} classes, and a row that stays lies on the very edge of a bin",
            once(FAMILY[kind]()),
            lambda _: edge_pair(),
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


def _worst(query: Query) -> Callable[[Path], Pair]:
    return lambda _: _beside(_worst_row(query))


def _worst_row(query: Query) -> list[tuple[list[float], int]]:
    """Certain and right, or certain and wrong: whichever moves the sums more."""
    certain = [99.0, -99.0]

    def moves(label: int) -> int:
        row = Scores(logits=[certain], labels=[label])
        return int(np.abs(query.contributions(row).values).sum())

    return [(certain, max((0, 1), key=moves))]


_OTHERS = [([2.0, 0.0], 0), ([0.5, 0.0], 1), ([0.0, 1.0], 1), ([0.0, 3.0], 1)]


def _beside(rows: list[tuple[list[float], int]], policy: Policy = _ENOUGH, **more: Any) -> Pair:
    """With and without `rows`, which are one person's where there are several."""
    logits, labels = zip(*rows, *_OTHERS, strict=True)
    person = None
    if len(rows) > 1:
        person = ["audited"] * len(rows) + [f"other {i}" for i in range(len(_OTHERS))]
    whole = Scores(logits=logits, labels=labels, person=person)
    return Pair.of(whole, np.arange(len(whole)) < len(rows), policy, **more)


def _person(**rules: Any) -> Pair:
    policy = replace(_ENOUGH, rows_per_person=ROWS_COUNTED, **rules)
    return _beside(_worst_row(Gap()) * PERSON_ROWS, policy)


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


# --- Playing the game of `privcal.lab.audit.run`: a coin, an answer with real noise, what it tells ---
# End to end, the source on which the coin fell is asked in every game. Where the mechanism alone is
# played, the sums of many games are one long vector: it adds independent noise to each number.

AnyArray = npt.NDArray[Any]


class _Spent(Exception):
    """All of ε is used: a run asks for no more, and its map is of no interest here."""


def play(
    case: Case,
    pair: Pair,
    nano_epsilon: int,
    games: int,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[FloatArray, BoolArray]:
    """Statistics (games, 2) of so many games, and on which side the coin fell (True: D).

    The first statistic is the logarithm of the likelihood ratio of all answers: for Laplace
    noise of scale s, Σ (|x − f(D′)| − |x − f(D)|)/s over cells and questions, which no other
    statistic beats if the noise is what it should be. The second is the same of differences to
    a cell in which D and D′ agree: it says nothing more, unless cells share their noise.
    """
    rng = np.random.default_rng()  # for coins; no noise comes from here
    coin = rng.random(games) < 0.5
    statistics = np.zeros((games, 2))
    averages: list[FloatArray] = []
    spent = 0

    def answer(asks: Sequence[Ask]) -> History:
        nonlocal spent
        spent += sum(ask.nano_epsilon for ask in asks)
        last = spent >= nano_epsilon
        for ask in asks:
            if stopped():
                raise _Spent
            noisy, ratios = _ask(pair, ask, coin, last, case.answers > 0)
            averages.append(noisy / GRID)
            statistics[:] += ratios
        if last:
            raise _Spent
        return History(averages, sources=1)

    with suppress(_Spent):
        drive(case.run(Batch(games, nano_epsilon, rng)), answer)
    return statistics, coin


def _ask(
    pair: Pair, ask: Ask, coin: BoolArray, last: bool, end_to_end: bool
) -> tuple[FloatArray, FloatArray]:
    """One question in all games: the noisy sums, and what they add to the statistics."""
    whole, less = _exact(pair, ask, len(coin))
    sensitivity = pair.whole.sensitivity(ask.query)
    changed = (whole != less).any(axis=0)
    same = np.flatnonzero(~changed)[:1]
    if end_to_end:
        cells, nano = np.arange(len(changed)), ask.nano_epsilon
        answers = [pair.answer(side, ask.for_run(i), nano) for i, side in enumerate(coin)]
        noisy = np.array(answers, np.float64)
    else:
        # Where D and D′ agree, independent noise says nothing of which it was. Such cells are drawn
        # only where the next question may depend on them, and one to compare the others with.
        cells = np.append(np.flatnonzero(changed), same) if last else np.arange(len(changed))
        whole, less = whole[:, cells], less[:, cells]
        exact = np.where(coin[:, None], whole, less)
        drawn = pair.whole._noisy(exact.ravel(), ask.query, ask.nano_epsilon)
        noisy = np.array(drawn, np.float64).reshape(exact.shape)
    sides = [noisy, whole, less], [_less(x, cells, same) for x in (noisy, whole, less)]
    unit = ask.nano_epsilon / NANO / sensitivity
    ratios = [unit * (np.abs(x - b) - np.abs(x - a)).sum(axis=1) for x, a, b in sides]
    return noisy, np.stack(ratios, axis=1)


def _less(values: AnyArray, cells: IntArray, same: IntArray) -> AnyArray:
    """The differences to one of the cells; the values themselves where there is none."""
    return values - values[:, np.isin(cells, same)] if len(same) else values


def _exact(pair: Pair, ask: Ask, games: int) -> tuple[IntArray, IntArray]:
    """The exact sums of D and of D′ in every game, each (games, length)."""
    if ask.temperatures is None:
        asked, where = [ask.query], np.zeros(games, np.int64)
    else:
        temperatures, where = np.unique(ask.temperatures, return_inverse=True)
        asked = [ask.query.at(t) for t in temperatures]
    sums = [pair.sums(query) for query in asked]
    whole, less = (np.stack(side)[where] for side in zip(*sums, strict=True))
    return whole, less
