"""The bound on real rows: take each row, or person, away and add everything up again.

Nothing here is private. The sums before and after, and how many rows there are, are exact: they
are for the owner of the rows alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from privcal.checks import known, whole
from privcal.errors import InputError
from privcal.privacy.policy import Policy
from privcal.queries import FAMILY, GRID, Query
from privcal.scores import IntArray, Scores
from privcal.source import Source

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
    units = _units(scores)
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


def _units(scores: Scores) -> list[IntArray]:
    """The rows of each person, or each row by itself."""
    if scores.person is None:
        return list(np.arange(len(scores))[:, None])
    rows_of: dict[str, list[int]] = {}
    for row, person in enumerate(scores.person):
        rows_of.setdefault(person, []).append(row)
    return [np.array(rows) for rows in rows_of.values()]
