"""`audit`: play every case, at every ε, on all cores; `audit_data`: the bound on real rows."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privcal.calibration.binomial import lower_limit, upper_tail
from privcal.data.scores import Scores
from privcal.lab.audit.pairs import Case, cases, play
from privcal.trusted.checks import known, whole
from privcal.trusted.epsilon import from_nano, to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.queries import FAMILY, GRID, Query
from privcal.trusted.scores import BoolArray, FloatArray, IntArray
from privcal.trusted.source import Source
from privcal.trusted.threads import default_threads

# --- The result of an audit of the noise ----------------------------------------------------------

CONFIDENCE = 0.99
"""The confidence of each lower bound by itself."""

ALARM = 1e-9
"""The p-value below which a promise counts as broken."""

MEANING = (
    "A lower bound is what was seen of ε: it can show that a promise is broken, never that it is "
    "kept. It stays below the claim for lack of draws."
)

NOT_REACHED = (
    "Not looked at: how files are read, letters and networks, what seals the pieces of a secure "
    "sum, how long an answer takes, and a second ledger for the same people."
)


@dataclass(frozen=True)
class Promise:
    """One promise, and how well two neighbouring data sets could be told apart in spite of it."""

    name: str
    """The kind of query, the method, or the harder pair that was audited."""
    what: str
    """What was asked, in words."""
    end_to_end: bool
    """Whether real sources were asked, over a ledger; if not, the mechanism alone was."""
    draws: int
    """The number of games; a rule is learnt from a quarter of them and scored on the rest."""
    epsilon: float
    """The ε that is claimed."""
    measured: float
    """The lower bound on ε that was seen, at `CONFIDENCE`."""
    guesses: int
    """The number of guesses in the games that were scored."""
    right: int
    """The number of them that were right."""
    p_value: float
    """The probability, at most, of so many right guesses if the promise holds."""

    @property
    def ratio(self) -> float:
        """The share of the claimed ε that was seen."""
        return self.measured / self.epsilon

    @property
    def exceeds(self) -> bool:
        """Whether the promise was seen broken."""
        return self.p_value < ALARM

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "exceeds": self.exceeds}


@dataclass(frozen=True)
class Audit:
    """All promises that were audited."""

    rows: tuple[Promise, ...]
    """One for each thing audited and each ε claimed of it."""
    draws: int
    """Games for each claim about the mechanism alone, and at most for the others."""

    @property
    def ok(self) -> bool:
        """Whether no promise was seen broken."""
        return not any(row.exceeds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "draws": self.draws,
            "confidence": CONFIDENCE,
            "alarm": ALARM,
            "meaning": MEANING,
            "not_reached": NOT_REACHED,
            "rows": [row.to_dict() for row in self.rows],
        }


# --- How many guesses were right, and what that says of ε -----------------------------------------
# The game. A fair coin chooses D or its neighbour D′; the mechanism answers about that one; a
# rule looks at the answer and says "D", "D′" or nothing. The rule is learnt from some games and
# scored on others.
#
# Proof of the bound. Let the mechanism M be ε-differentially private and S the set of answers at
# which the rule says "D". With the fair coin
#
#     P[D | M ∈ S] = P[M(D) ∈ S] / (P[M(D) ∈ S] + P[M(D′) ∈ S]) ≤ e^ε / (1 + e^ε),
#
# because P[M(D) ∈ S] ≤ e^ε·P[M(D′) ∈ S]; the converse inequality gives the same where it says
# "D′". So each guess is right with a probability of at most q(ε) = e^ε/(1 + e^ε). The games that
# are scored are independent of each other and of the rule, so of k guesses the number that are
# right is stochastically at most binomial (k, q(ε)). Two things follow:
#
# - Let c be the exact (Clopper and Pearson's) lower limit, at confidence 1 − α, of the
#   probability of success that gave r of k. Then log(c / (1 − c)) > ε, that is c > q(ε), has a
#   probability of at most α.
# - P[Binomial(k, q(ε)) ≥ r] is a p-value of the claim that M is ε-differentially private.
#
# Both directions of the definition are in it at once, and one rule is scored once, so there is
# nothing to correct for. A rule that guesses in one direction only is among those to choose from.
# With a poor rule, or few games, the bound is only smaller. ∎

_SHARES = 0.5 * 2.0 ** (-np.arange(23) / 2)
"""Shares of the games at either end in which a rule may guess: from a half to 1 in 4,096."""

_Z = 3.5
"""Rules are compared by a quick limit of so many deviations; only the scoring must be exact.

A limit as wide as this one prefers rules that guess often: the best of many rules is too often
one that was lucky in the few games it guessed in.
"""


@dataclass(frozen=True)
class Rule:
    """Which statistic to look at, and from where on to say "D" (`above`) or "D′" (`below`)."""

    statistic: int
    above: float
    below: float

    def score(self, statistics: FloatArray, coin: BoolArray) -> tuple[int, int]:
        """How many guesses there are in these games, and how many of them are right."""
        value = statistics[:, self.statistic]
        above, below = value >= self.above, value <= self.below
        right = int((above & coin).sum() + (below & ~coin).sum())
        return int(above.sum() + below.sum()), right


def learn(statistics: FloatArray, coin: BoolArray) -> Rule:
    """The rule that does best in these games: statistics (games, kinds), coin (games)."""
    best, rule = -1.0, Rule(0, math.inf, -math.inf)
    for kind in range(statistics.shape[1]):
        value = statistics[:, kind]
        order = np.argsort(value)
        ranked = value[order]
        ours = np.append(0, np.cumsum(coin[order]))  # of the lowest i games, those of D
        games = len(ranked)
        counts = np.unique(np.floor(_SHARES * games).astype(int).clip(1))
        above = np.append(ranked[games - counts], math.inf)
        below = np.append(ranked[counts - 1], -math.inf)
        # All games of equal value are on one side of a limit.
        up = np.searchsorted(ranked, above, side="left")
        down = np.searchsorted(ranked, below, side="right")
        right = (ours[-1] - ours[up])[:, None] + (down - ours[down])[None, :]
        guesses = (games - up)[:, None] + down[None, :]
        limit = np.where(above[:, None] > below[None, :], _quick_limit(guesses, right), -1.0)
        i, j = np.unravel_index(np.argmax(limit), limit.shape)
        if limit[i, j] > best:
            best, rule = float(limit[i, j]), Rule(kind, float(above[i]), float(below[j]))
    return rule


def _quick_limit(guesses: IntArray, right: IntArray) -> FloatArray:
    """Wilson's lower limit of the probability of success."""
    k = np.maximum(guesses, 1)
    p, z2 = right / k, _Z**2 / k
    limit = (p + z2 / 2 - _Z * np.sqrt(p * (1 - p) / k + z2 / (4 * k))) / (1 + z2)
    return np.asarray(np.where(guesses > 0, limit, 0.0))


def epsilon_bound(guesses: int, right: int, alpha: float) -> float:
    """The ε that so many right guesses show, at confidence 1 − alpha; never below 0."""
    c = lower_limit(guesses, right, alpha)
    return max(0.0, math.log(c) - math.log1p(-c)) if c > 0 else 0.0


def p_value(guesses: int, right: int, epsilon: float) -> float:
    """How likely so many right guesses are, at most, where ε-differential privacy holds."""
    return upper_tail(guesses, right, 1 / (1 + math.exp(-epsilon)))


# --- Every case, at every ε -----------------------------------------------------------------------

EPSILONS = (0.1, 1.0, 4.0)
"""Claims to test of the mechanism for each kind of query; all else is audited at 1."""

MOST = 100.0
"""The largest claim: an audited source has to answer thousands of questions within its budget."""

DRAWS = 20_000
MIN_DRAWS = 100
_LEARN = 4
"""One game in so many is to learn from; the rest are to score."""

_CHUNK, _CHUNK_ANSWERS = 2_000, 100
"""Games in one piece of work, the second end to end: an interruption waits for no more than one."""

Played = tuple[FloatArray, BoolArray]
"""Some games: what was looked at in each, and on which side the coin fell."""


def audit(
    *,
    only: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    draws: int = DRAWS,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Try to break every promise of privacy: of each kind of query, of each method.

    First end to end, with questions to real sources over a ledger; then the mechanism alone, which
    can be drawn more often.

    Parameters
    ----------
    only
        Some of `names()`; by default all of them.
    epsilons
        The claims to test; by default 1, and 0.1, 1 and 4 of the mechanism for each kind of query.
    draws
        Games for each claim. More bring the lower bound nearer to what is true. End to end there
        are at most 2,000.
    progress
        Called with how many games of how many are done.

    Returns
    -------
    Audit
        The lower bound on ε that was seen of each claim. `ok` is False if one was seen broken;
        that none was proves nothing.

    Examples
    --------
    >>> result = audit(only=["gap"], epsilons=[1.0], draws=1000)
    >>> [(row.name, row.end_to_end) for row in result.rows], result.ok
    ([('gap', True), ('gap', False)], True)
    """
    draws = whole("draws", draws, MIN_DRAWS)
    tasks = [(case, nano) for case in _chosen(only) for nano in _claims(case, epsilons)]
    total = sum(_games(case, draws) for case, _ in tasks)
    stop = threading.Event()
    pool = ThreadPoolExecutor(default_threads())  # OpenDP draws without Python's lock
    rows, done = [], 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            waiting: deque[tuple[Case, int, list[Future[Played]]]] = deque()
            for number, (case, nano) in enumerate(tasks):
                own = Path(folder) / str(number)
                own.mkdir()
                pair = case.make(own)
                parts = _parts(case, draws)
                ahead = [pool.submit(play, case, pair, nano, n, stop.is_set) for n in parts]
                waiting.append((case, nano, ahead))
            while waiting:  # in order, and forgotten when counted: a million games fill memory
                case, nano, ahead = waiting.popleft()
                played = []
                for part in ahead:
                    played.append(part.result())
                    done += len(played[-1][1])
                    if progress:
                        progress(done, total)
                rows.append(_row(case, nano, *map(np.concatenate, zip(*played, strict=True))))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return Audit(tuple(rows), draws)


def _games(case: Case, draws: int) -> int:
    return min(draws, case.answers or draws)


def _parts(case: Case, draws: int) -> list[int]:
    """The games for one claim, piece by piece."""
    games, size = _games(case, draws), _CHUNK_ANSWERS if case.answers else _CHUNK
    return [len(part) for part in np.array_split(np.empty(games), -(-games // size))]


def names() -> list[str]:
    """The names of everything that can be audited: kinds of query, harder pairs, methods."""
    return list(dict.fromkeys(case.name for case in cases()))


def _row(case: Case, nano: int, statistics: FloatArray, coin: BoolArray) -> Promise:
    first, epsilon = len(coin) // _LEARN, from_nano(nano)
    rule = learn(statistics[:first], coin[:first])
    guesses, right = rule.score(statistics[first:], coin[first:])
    return Promise(
        name=case.name,
        what=case.what,
        end_to_end=case.answers > 0,
        draws=len(coin),
        epsilon=epsilon,
        measured=epsilon_bound(guesses, right, 1 - CONFIDENCE),
        guesses=guesses,
        right=right,
        p_value=p_value(guesses, right, epsilon),
    )


def _chosen(only: Sequence[str] | None) -> list[Case]:
    every = list(cases())
    known = names()
    for name in only or ():
        if name not in known:
            raise InputError(
                f"there is nothing called {name!r} to audit; there are {', '.join(known)}"
            )
    if only is not None and not only:
        raise InputError("nothing is named to audit; leave it out for everything")
    return [case for case in every if only is None or case.name in only]


def _claims(case: Case, epsilons: Sequence[float] | None) -> list[int]:
    if epsilons is None:
        epsilons = EPSILONS if case.name in FAMILY and not case.answers else (1.0,)
    if not epsilons:
        raise InputError("no epsilon is named; leave it out for the usual ones")
    if max(epsilons) > MOST:
        raise InputError(f"epsilon to audit must be at most {MOST:g}, not {max(epsilons):g}")
    return [to_nano(epsilon) for epsilon in epsilons]


# --- The bound on real rows: take each row, or person, away and add everything up again -----------
# Nothing here is private. The sums before and after, and how many rows there are, are exact: they
# are for the owner of the rows alone.

SECONDS = 45.0
"""Time limit where no number of removals is given."""

NOTE = (
    "Exact figures of these rows, and how many there are: for their owner's own terminal, never "
    "to be passed on."
)


@dataclass(frozen=True)
class Change:
    """The most that one removal moved the exact sums of one kind of query, in L1."""

    name: str
    """The kind of query."""
    largest: float
    """The largest change that a removal made."""
    bound: float
    """The change that the noise is made for."""
    others: float
    """The part of `largest` that came from rows that stayed: the proof says 0."""

    @property
    def share(self) -> float:
        """The share of the bound that was reached."""
        return self.largest / self.bound

    @property
    def exceeds(self) -> bool:
        """Whether the bound, or the proof that rows do not depend on each other, fails."""
        return self.largest > self.bound or self.others > 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "exceeds": self.exceeds}


@dataclass(frozen=True)
class Removals:
    """The largest change of each kind of query, over the removals that were tried."""

    rows: tuple[Change, ...]
    """One for each kind of query."""
    unit: Literal["row", "person"]
    """What was removed, one at a time."""
    rows_per_person: int
    """The number of rows of a person that count."""
    tried: int
    """The number of removals: all there are, or a random sample of them."""
    possible: int
    """The number of rows or persons that could be removed."""

    @property
    def ok(self) -> bool:
        """Whether no removal that was tried moved more than it may."""
        return not any(row.exceeds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "note": NOTE,
            "unit": self.unit,
            "rows_per_person": self.rows_per_person,
            "removals": self.tried,
            "possible": self.possible,
            "rows": [row.to_dict() for row in self.rows],
        }


def audit_data(
    scores: Scores,
    *,
    rows_per_person: int = 1,
    only: Sequence[str] | None = None,
    removals: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Removals:
    """The largest change of each kind of query's exact sums when a row or person is removed.

    Everything is computed anew on the rows that are left, so a row whose value depended on its
    place, or on how many there are, would be noticed. For the owner of the rows alone: nothing
    of this is private.

    Parameters
    ----------
    scores
        The rows; with person ids, whole persons are removed.
    rows_per_person
        How many rows of a person count.
    only
        Some kinds of `privcal.queries.FAMILY`; by default all, with their usual parameters,
        that such scores can answer.
    removals
        How many, chosen at random; by default as many as three quarters of a minute allow.
    progress
        Called with how many removals of how many are done.

    Returns
    -------
    Removals
        The largest change of each kind of query beside its bound. `ok` is False if one exceeds it.

    Examples
    --------
    >>> scores = Scores(logits=[[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], labels=[0, 0, 1])
    >>> result = audit_data(scores, only=["cell-histogram"])
    >>> result.tried, result.rows[0].largest, result.rows[0].bound, result.ok
    (3, 1.0, 1.0, True)
    """
    queries = _queries(only)
    if only is None and scores.outputs.kind == "confidence":
        queries = [query for query in queries if not query.all_classes]
    source = Source(scores, Policy(rows_per_person=rows_per_person), ledger=None)
    units = _units(source)
    if not units:
        raise InputError("there are no rows, so none can be removed")
    if removals is not None:
        removals = whole("removals", removals, 1)
    wanted = min(removals or len(units), len(units))
    before = [source._exact(query) for query in queries]
    largest, others = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    counted = np.zeros(len(scores), bool)
    counted[source.counted_rows()] = True
    own = [query.contributions(scores) for query in queries]
    start, tried = time.monotonic(), 0
    for unit in np.random.default_rng().permutation(len(units))[:wanted]:
        gone = units[unit]
        keep = np.ones(len(scores), bool)
        keep[gone] = False
        # One ledger, so one secret: the same rows of everybody else count.
        less = Source(scores.take(keep), source.policy, ledger=source.ledger)
        for i, query in enumerate(queries):
            moved = before[i] - less._exact(query)
            theirs = own[i].take(gone[counted[gone]]).sum(query.length)
            largest[i] = max(largest[i], np.abs(moved).sum())
            others[i] = max(others[i], np.abs(moved - theirs).sum())
        tried += 1
        spent = time.monotonic() - start
        if progress:
            pace = SECONDS / max(spent, 1e-9) * tried
            progress(tried, wanted if removals else max(tried, min(wanted, int(pace))))
        if removals is None and spent > SECONDS:
            break
    return Removals(
        tuple(
            Change(query.kind, int(most) / GRID, source.sensitivity(query) / GRID, int(rest) / GRID)
            for query, most, rest in zip(queries, largest, others, strict=True)
        ),
        unit="row" if scores.person is None else "person",
        rows_per_person=source.rows_per_person,
        tried=tried,
        possible=len(units),
    )


def _queries(only: Sequence[str] | None) -> list[Query]:
    for name in only or ():
        known("query", name, FAMILY)
    if only is not None and not only:
        raise InputError("nothing is named to audit; leave it out for everything")
    return [FAMILY[kind]() for kind in FAMILY if only is None or kind in only]


def _units(source: Source) -> list[IntArray]:
    """The rows of each person, or each row by itself."""
    persons = source.persons
    if persons is None:
        return list(np.arange(len(source.scores))[:, None])
    rows_of: dict[str, list[int]] = {}
    for row, person in enumerate(persons):
        rows_of.setdefault(person, []).append(row)
    return [np.array(rows) for rows in rows_of.values()]
