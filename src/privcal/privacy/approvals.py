"""Campaigns that wait for an owner's approval, and what the owner approved.

With `approve` in the policy nothing is answered to a campaign, and nothing reserved for it, before
its owner has said yes to what it asks: who, which model, which kinds of query, how much ε in all.
An approval is an entry of the ledger's chain. A campaign that waits is not: it is free of charge,
and anybody who may ask can cause one, so their number is bounded and the oldest makes way.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privcal.question import Question

WAITING, WAITING_OF_ONE = 100, 10
"""The most campaigns that are remembered as waiting: in all, and of one asker."""

WAITING_TABLE = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY, asker TEXT NOT NULL, campaign TEXT NOT NULL, what TEXT NOT NULL,
    time TEXT NOT NULL, UNIQUE (asker, campaign)
);
"""

_ORDINARY = ("alone", None)


@dataclass(frozen=True)
class Proposal:
    """What a campaign asks, as the owner sees it and approves it.

    `nano` is its ε over the whole campaign, what it was charged before included; `digest` is that
    of its questions, which asker and owner can compare. In secure sums each question costs `alone`
    times its ε against everybody else together; None for a campaign outside of secure sums.
    """

    asker: str
    campaign: str
    model: str | None
    kinds: tuple[str, ...]
    requests: int
    nano: int
    digest: str
    alone: int | None = None

    def cover(self, other: Proposal) -> bool:
        """Whether whoever approved this approved the other proposal too."""
        return (
            (self.asker, self.campaign, self.model) == (other.asker, other.campaign, other.model)
            and set(other.kinds) <= set(self.kinds)
            and other.nano <= self.nano
            and other.alone == self.alone
        )

    def text(self) -> str:
        """The proposal as JSON; `alone` is only in that of a campaign in secure sums."""
        facts = {name: value for name, value in vars(self).items() if (name, value) != _ORDINARY}
        return json.dumps(facts, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> Proposal:
        """The proposal in a text of ours; ValueError, TypeError or KeyError where it is none."""
        facts: dict[str, Any] = json.loads(text)
        proposal = cls(**{**facts, "kinds": tuple(facts["kinds"])})
        numbers = (proposal.nano, proposal.requests, proposal.alone or 0)
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError(f"this is not the proposal of a campaign: {text}")
        return proposal


def digest(asker: str, questions: Sequence[Question], alone: int | None = None) -> str:
    """A hash that identifies what a campaign asks, whatever the order of its questions.

    `alone` is that of secure sums: the same questions outside of them have another hash.
    """
    asked = sorted((q.round, q.index, q.nano_epsilon, q.query.canonical()) for q in questions)
    what = [asker, questions[0].campaign, asked, *([] if alone is None else [alone])]
    text = json.dumps(what, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def note(db: sqlite3.Connection, proposal: Proposal, time: str, *, first: bool) -> None:
    """Remember that a proposal waits. With `first`, only if none of its campaign does already."""
    db.execute(WAITING_TABLE)
    known = db.execute(
        "SELECT what FROM waiting WHERE asker = ? AND campaign = ?",
        (proposal.asker, proposal.campaign),
    ).fetchone()
    if known is not None and (first or known[0] == proposal.text()):
        return
    db.execute(
        "INSERT OR REPLACE INTO waiting (asker, campaign, what, time) VALUES (?, ?, ?, ?)",
        (proposal.asker, proposal.campaign, proposal.text(), time),
    )
    for whose, most in (("asker = ?", WAITING_OF_ONE), ("? != ''", WAITING)):
        db.execute(
            "DELETE FROM waiting WHERE number IN (SELECT number FROM waiting WHERE "
            f"{whose} ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (proposal.asker, most),
        )


def waiting(db: sqlite3.Connection) -> list[tuple[Proposal, str]]:
    """The proposals that wait, and since when, the oldest first; a damaged one is left out."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'waiting'").fetchone():
        return []
    proposals = []
    for what, time in db.execute("SELECT what, time FROM waiting ORDER BY number"):
        try:
            proposals.append((Proposal.of(what), str(time)))
        except (ValueError, TypeError, KeyError):
            continue  # the campaign asks again, and is noted anew
    return proposals


def forget(db: sqlite3.Connection, proposal: Proposal) -> None:
    """Let a proposal wait no longer."""
    db.execute(
        "DELETE FROM waiting WHERE asker = ? AND campaign = ?", (proposal.asker, proposal.campaign)
    )
