"""Parties with keys of their own, and what they send each other: cards, rosters, letters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from privcal.data.datasets import cifar10c
from privcal.secure.keys import SealingKey
from privcal.secure.terms import Terms
from privcal.transport.content import Request
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter
from privcal.transport.roster import Roster
from privcal.transport.standing import Standing
from privcal.trusted.queries import Gap, Hats, Query
from privcal.trusted.question import Question

ANN, BOB, SITES = "ann@lab.org", "bob@lab.org", ("site-1", "site-2", "site-3")
MODEL = "resnet50-v3"
DAY = 24 * 3600
SEAL = SealingKey.make()
"""A calibrator's key for replies; a real one is made for each round."""
FOUR = Hats(1.0, (-2.0, 4.0))
"""A query of four numbers."""
BOX = ("c2VhbGVk", "c2lnbmF0dXJl")


class Parties:
    """Two calibrators, of whom Ann coordinates, and three sites, each in a folder of `where`."""

    def __init__(self, where: Path) -> None:
        self.where = where
        where.mkdir(exist_ok=True)
        for name in (ANN, BOB, *SITES):
            Keys.make(where / name, name, "site" if name in SITES else "calibrator")
        self.roster = self.first()

    def __iter__(self) -> Iterator[str]:
        return iter((ANN, BOB, *SITES))

    def keys(self, name: str) -> Keys:
        return Keys.load(self.where / name)

    def standing(self, name: str) -> Standing:
        return Standing(self.where / name)

    def first(self, days: float = 100) -> Roster:
        """The first roster of a new federation of all of them."""
        now = int(time.time())
        cards, until = [self.keys(name).card for name in self], now + int(days * DAY)
        first = Roster.first(cards, [self.keys(ANN).public], now, until)
        return first.signed(self.keys(ANN))

    def next(self, before: Roster, *names: str, **more: Any) -> Roster:
        """The roster after another, of these parties with their present keys."""
        cards = [self.keys(name).card for name in names]
        after = before.next(cards, int(time.time()), more.pop("until", before.until), **more)
        return after.signed(self.keys(ANN))

    def all_but(self, *names: str) -> list[str]:
        return [name for name in self if name not in names]

    def accept(self, *names: str, roster: Roster | None = None) -> None:
        for name in names:
            given = roster or self.roster
            self.standing(name).accept(given, given.digest)

    def request(self, kind: str = "ask", by: str = ANN, to: str = "site-1", **more: Any) -> Request:
        """A request of now; `more` replaces its parts."""
        now = int(time.time())
        facts: dict[str, Any] = {
            "kind": kind,
            "federation": self.roster.federation,
            "roster": self.roster.stamp,
            "sender": self.keys(by).id,
            "reader": self.keys(to).id,
            "campaign": "c",
            "issued": now,
            "until": now + DAY,
            "reply_key": SEAL.public,
        }
        if kind == "ask":
            facts |= {"plan": (question(),), "questions": (question(),)}
        if kind in ("share", "check", "open"):
            facts |= {"terms": terms(self.roster.digest)}
        if kind in ("check", "open"):
            facts |= {"boxes": {"site-2": BOX, "site-3": BOX}}
        return Request(**{**facts, **more})

    def letter(self, text: str, by: str = ANN, to: str = "site-1") -> Letter:
        keys = self.keys(to)
        return Letter.write(text, self.keys(by), keys.id, keys.sealing_public)


def question(
    campaign: str = "c", round: int = 0, query: Query | None = None, **more: Any
) -> Question:
    facts = {"index": 0, "model": MODEL, "nano_epsilon": 5 * 10**8, **more}
    return Question(campaign, round, query=query or Gap(1.5), **facts)


def terms(roster: str, sites: tuple[str, ...] = SITES, query: Query = FOUR, **more: Any) -> Terms:
    facts = {"colluding": 1, "needed": len(sites), "alone": 10, "rows_per_person": 1, **more}
    return Terms(question(query=query), ANN, sites, roster=roster, **facts)


def write_rows(path: Path, rows: int, seed: int = 0, person: str | None = None) -> Path:
    """Rows of real scores, as a site has them."""
    scores = cifar10c("motion_blur")
    mine = scores.take(np.random.default_rng(seed).permutation(len(scores))[:rows])
    people = {} if person is None else {"person": [f"{person}-{n}" for n in range(rows)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, labels=mine.labels, logits=mine.outputs.array, **people)
    return path


def spelt(facts: Any) -> str:
    """The spelling of everything that travels."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))
