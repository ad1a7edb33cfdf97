"""A source: scores, a ledger and a policy. It answers queries with exact private noise."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from privcal import queries
from privcal.errors import InputError, Refused
from privcal.fit import Fit, Objective, fit_temperature
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.privacy.ledger import Key, Ledger
from privcal.privacy.mechanism import add_noise
from privcal.privacy.policy import Policy
from privcal.queries import GRID, Query
from privcal.scores import FloatArray, IntArray, Scores

LOCAL_BOUNDS = (0.5, 3.0)
"""The paper's range of temperatures, for the owner's own fit too."""


@dataclass(frozen=True)
class Answer:
    """What leaves a source: noisy values, the ε charged for them, the key they were asked under."""

    values: FloatArray
    nano_epsilon: int
    key: Key

    @property
    def epsilon(self) -> float:
        return from_nano(self.nano_epsilon)


class Source:
    """One data holder's side.

    Parameters
    ----------
    scores
        The private rows.
    policy
        What the owner allows.
    ledger
        A ledger file made with `Ledger.create` (or `privcal ledger create`), or None for one in
        memory: for experiments, because it is forgotten when the process ends.
    name
        What reports call this source.

    Neighbouring data differ by adding or removing one row, or all rows of one person where
    person ids are given. ε is per source: a person present at k sources is exposed to kε, and
    changing a record instead of removing it costs 2ε.
    """

    def __init__(
        self,
        scores: Scores,
        policy: Policy | None = None,
        ledger: Ledger | str | Path | None = None,
        name: str | None = None,
    ) -> None:
        self.scores = scores
        self.policy = policy or Policy()
        self.name = name
        if ledger is None:
            self.ledger = Ledger.in_memory()
        else:
            self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        if self.policy.rows_per_person > 1 and scores.person is None:
            raise InputError(
                f"the policy lets {self.policy.rows_per_person} rows of one person count, "
                "but the scores carry no person ids"
            )
        if self.policy.model and scores.model and self.policy.model != scores.model:
            raise InputError(
                f"the policy is for model {self.policy.model!r} but the scores come from {scores.model!r}"
            )

    def __repr__(self) -> str:
        return f"Source({self.name or 'unnamed'}, {self.ledger!r})"  # no row count: it is private

    def answer(
        self,
        query: Query,
        epsilon: float | Fraction,
        request_id: str,
        asker: str = "local",
        model: str | None = None,
    ) -> Answer:
        """The noisy answer to `query` for `epsilon`, or `Refused` with a fixed code.

        `request_id` is "campaign/round/index" (or just a campaign). The same asker asking the
        same under the same id gets the same answer again, free of charge.
        """
        nano = to_nano(epsilon)
        try:
            key = Key.parse(asker, request_id)
            query = queries.parse(query.to_dict())  # our own copy decides what it means
        except (InputError, AttributeError) as error:
            raise Refused("bad_request") from error
        self.policy.check(query, nano, asker, model)
        if model is not None and self.scores.model is not None and model != self.scores.model:
            raise Refused("model")
        values = self.ledger.charge(
            key, query.canonical(), query.digest(nano), nano, self.policy.nano_total
        )
        if values is None:
            try:
                values = add_noise(self._exact(query), self.sensitivity(query), nano)
            except Exception as error:  # whatever it is may tell of the rows
                raise Refused("unavailable") from error
            self.ledger.store(key, values)
        return Answer(np.asarray(values, np.float64) / GRID, nano, key)

    def sensitivity(self, query: Query) -> int:
        """The most that one person can change the exact sums, in L1 and grid points."""
        return self.rows_per_person * query.bound

    @property
    def rows_per_person(self) -> int:
        """How many rows of one person count; the noise grows with it. The policy's, not a secret."""
        return 1 if self.scores.person is None else self.policy.rows_per_person

    @property
    def spent(self) -> float:
        """ε spent so far, over all askers and campaigns."""
        return from_nano(self.ledger.nano_spent)

    def fit_local(self, objective: Objective = "accuracy") -> Fit:
        """The paper's "one source": the owner's exact fit on its own rows, for its own use.

        Not private: the temperature depends on every row. Nothing is charged because nothing
        may leave.
        """
        with warnings.catch_warnings():  # a bound is an ordinary result on a handful of rows
            warnings.simplefilter("ignore")
            return fit_temperature(self.scores, objective, LOCAL_BOUNDS)

    def counted_rows(self) -> IntArray:
        """The rows that count towards answers; for the owner's eyes only."""
        return np.arange(len(self.scores)) if self._kept is None else self._kept

    def _exact(self, query: Query) -> IntArray:
        self.scores.outputs.check_intact()
        contributions = query.contributions(self.scores)
        if self._kept is not None:
            contributions = contributions.take(self._kept)
        return contributions.sum(query.length)

    @cached_property
    def _kept(self) -> IntArray | None:
        """The rows that count; None for all of them."""
        if self.scores.person is None:
            return None
        return rows_kept(list(self.scores.person), self.policy.rows_per_person, self.ledger.secret)


def rows_kept(person: list[str], limit: int, secret: bytes) -> IntArray:
    """At most `limit` rows of each person, chosen by a keyed hash of person and place.

    Proof that removing a person changes nothing else: a row is kept depending on the hashes of
    its own person's rows only, each a function of the secret, that person's id and the row's
    place among that person's rows. No other person enters. The secret keeps the choice from
    being known, or steered, by whoever orders the rows. ∎
    """
    places: dict[str, list[int]] = {}
    for row, who in enumerate(person):
        places.setdefault(who, []).append(row)

    def order(who: str, place: int) -> bytes:
        text = f"{place}:{who}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=secret, digest_size=16).digest()

    kept: list[int] = []
    for who, rows in places.items():
        if len(rows) > limit:
            ranked = sorted(range(len(rows)), key=lambda place, who=who: order(who, place))  # type: ignore[misc]
            rows = [rows[place] for place in ranked[:limit]]
        kept.extend(rows)
    return np.array(sorted(kept), np.int64)
