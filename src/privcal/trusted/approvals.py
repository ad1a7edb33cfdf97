"""Campaigns that wait for an owner's approval, and what the owner approved.

With `approve` in the policy nothing is answered to a campaign, and nothing reserved for it, before
its owner has said yes to what it asks: who, which model, and each of its questions with its ε. The
owner is shown a digest of that (`digest`), the same one that the asker and every page show. Later an
answer is given to these questions and to no others; only where a search looks next, which the answers
decide, is left open (`privcal.queries.Query.fixed`).

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

from privcal.trusted import records
from privcal.trusted.policy import Kind
from privcal.trusted.question import UNSIGNED, Name, Question

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

    `nano` is its ε over the whole campaign, what it was charged before included; `digest` is the one
    that asker and owner compare, and `asked` a hash of each of its questions. In secure sums each
    question costs `alone` times its ε against everybody else together; None for a campaign outside
    of secure sums.
    """

    asker: Name
    campaign: Name
    model: Name | None
    kinds: tuple[Kind, ...]
    requests: int
    nano: int
    digest: str
    alone: int | None = None
    asked: tuple[str, ...] = ()
    """Not in what an older privcal noted: that covers nothing, and is asked for again."""

    def cover(self, other: Proposal) -> bool:
        """Whether an owner who approved this approved the other proposal too."""
        more = set(other.asked) - set(self.asked) or set(other.kinds) - set(self.kinds)
        return self.whose == other.whose and not more

    @property
    def whose(self) -> tuple[object, ...]:
        """The campaign that it is of."""
        return self.asker, self.campaign, self.model, self.alone

    @property
    def digest_holds(self) -> bool:
        """Whether its digest, by which an owner knows it, is that of what it asks.

        The digest may be that of the questions before they were told which model they are about.
        """
        return self.digest in (
            _digest(self.asker, self.campaign, model, self.asked, self.alone)
            for model in (self.model, None)
        )

    def text(self) -> str:
        """The proposal as JSON; `alone` is only in that of a campaign in secure sums."""
        facts = {name: value for name, value in vars(self).items() if (name, value) != _ORDINARY}
        return json.dumps(facts, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> Proposal:
        """The proposal in a text of ours; ValueError where it is none."""
        return records.read(cls, json.loads(text), "the proposal of a campaign")


def asked(questions: Sequence[Question]) -> tuple[str, ...]:
    """A hash of each question, with its place in the campaign and its ε, in one order."""
    fixed = ([q.round, q.index, q.nano_epsilon, q.query.fixed()] for q in questions)
    return tuple(sorted(_hash(question) for question in fixed))


def digest(asker: str, questions: Sequence[Question], alone: int | None = None) -> str:
    """The digest of what a campaign asks, in groups of four to be read out.

    It is the same from the description to the owner's approval, signed or not, whatever the order of the
    questions and whatever was answered so far. `alone` is that of secure sums: the same
    questions outside of them have another.
    """
    return _digest(asker, questions[0].campaign, questions[0].model, asked(questions), alone)


def _digest(
    asker: str, campaign: str, model: str | None, asked: tuple[str, ...], alone: int | None
) -> str:
    who = asker.removesuffix(UNSIGNED)
    whole = _hash(["privcal campaign 2", who, campaign, model, asked, alone])
    return " ".join(whole[i : i + 4] for i in range(0, len(whole), 4))


def _hash(what: list[Any]) -> str:
    return hashlib.sha256(json.dumps(what, separators=(",", ":")).encode()).hexdigest()


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
    """The proposals that wait, and since when, the oldest first; one that is damaged, or was changed, is left out."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'waiting'").fetchone():
        return []
    proposals = []
    for what, time in db.execute("SELECT what, time FROM waiting ORDER BY number"):
        try:
            proposal = Proposal.of(what)
        except ValueError:
            continue  # the campaign asks again, and is noted anew
        # Without hashes of its questions nothing is approved; a time is shown to the owner as it stands.
        if (proposal.digest_holds or not proposal.asked) and str(time).isprintable():
            proposals.append((proposal, str(time)))
    return proposals


def forget(db: sqlite3.Connection, proposal: Proposal) -> None:
    """Let a proposal wait no longer."""
    db.execute(
        "DELETE FROM waiting WHERE asker = ? AND campaign = ?", (proposal.asker, proposal.campaign)
    )
