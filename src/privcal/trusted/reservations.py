"""Reservations of a budget by running campaigns, so that none begins what it cannot finish.

Two campaigns that each look at the budget and find enough would together use it up, and neither
would have its map. So a campaign reserves before its first question what all its questions cost,
in the transaction that looks whether it is there; each charge lowers what is still reserved.

A reservation only ever refuses. Whatever these rows say, a charge is first held against the cap
itself, so nothing can be spent through them, and one that is lost (dropped, damaged, restored from
an older copy) costs nobody more than a refusal that should have come earlier. That is why they are
not entries of the chain: they come and go free of charge, and a chain of them would let anybody
fill the disk.

They end by the wall clock, because a process that was killed gives nothing back. A clock set back
by less than `RESERVED_FOR` makes one last so much longer; set back by more, or forward, it ends it
early. Neither touches what may be spent.

Where each person has a budget of their own
-------------------------------------------
Who can still pay depends on rows, so no refusal may tell it. What can be told is what somebody
would have to pay who was new when the oldest of the running campaigns reserved: everything charged
since (by whomever), and all that is still reserved. No charge is made, and nothing reserved, that
would take that beyond the total. So whoever was new when a campaign reserved counts in every answer
that it gets while its reservation lasts: their account is at most what was charged since, and what
the campaign has still to ask fits beside it. (Unless the owner lowers the total or writes budget
off meanwhile.) The amounts are those of requests alone; accounts are not looked at. ∎

With one budget for everybody the same holds with "since the beginning" in place of "since".
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from privcal.trusted.epsilon import Cost

RESERVED_FOR = 150.0
"""Seconds after a campaign's last charge, or after it was made: longer than the two minutes that a
slow site has for a reply, and not long for whoever waits for one that died.

Not after an offer that repeats it: whoever offers again and again, and asks nothing, would hold a
source for ever."""

RESERVATIONS_OF_ONE = 4
"""Reservations that one asker may have; the one idle for longest makes way for a fifth, so nobody is
locked out by runs of their own that died. It does not keep an asker from holding what is left by
offering four quarters of it in turn; `epsilon_by_asker` does."""

RESERVATION_TABLE = """
CREATE TABLE IF NOT EXISTS reserved (
    asker TEXT NOT NULL, campaign TEXT NOT NULL, nano INTEGER NOT NULL, alone INTEGER NOT NULL,
    requests INTEGER NOT NULL, since INTEGER NOT NULL, seen REAL NOT NULL,
    PRIMARY KEY (asker, campaign)
);
"""
# Older ledgers have a table `reservation`, without `alone`. What stood in it has long ended.


@dataclass(frozen=True)
class Reservation:
    """What a campaign has still to ask, in nano-ε and questions.

    `alone` is what it costs against everybody else together: as much, or in secure sums more.
    `since` is what had been charged, over all questions, when it was made; `seen` is when the
    campaign was last charged, or when this was made.
    """

    asker: str
    campaign: str
    nano: int
    alone: int
    requests: int
    since: int
    seen: float

    @property
    def cost(self) -> Cost:
        """What is still to be charged."""
        return Cost(self.nano, self.alone)

    @property
    def sound(self) -> bool:
        """Whether its numbers and names are such as are written here."""
        whole = (self.nano, self.alone, self.requests, self.since)
        numbers = all(isinstance(n, int) and n >= 0 for n in whole)
        names = f"{self.asker}{self.campaign}"
        return numbers and isinstance(self.seen, float) and names.isprintable()


def live(db: sqlite3.Connection, now: float) -> dict[tuple[str, str], Reservation]:
    """The reservations that hold, by asker and campaign; a damaged one holds nothing."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'reserved'").fetchone():
        return {}
    rows = (Reservation(*row) for row in db.execute("SELECT * FROM reserved"))
    return {
        (row.asker, row.campaign): row
        for row in rows
        if row.sound and abs(now - row.seen) < RESERVED_FOR
    }


def too_many(live: list[Reservation], asker: str) -> list[Reservation]:
    """The reservations of an asker that must make way for a new one, the longest idle first."""
    own = sorted((held for held in live if held.asker == asker), key=lambda held: held.seen)
    return own[: max(0, len(own) - RESERVATIONS_OF_ONE + 1)]


def keep(db: sqlite3.Connection, reservation: Reservation, now: float) -> None:
    """Write a reservation as it now is; those that have ended are removed."""
    db.execute(RESERVATION_TABLE)
    db.execute("DELETE FROM reserved WHERE ABS(seen - ?) >= ?", (now, RESERVED_FOR))
    if reservation.nano == 0:  # all that was to be asked is asked
        drop(db, reservation.asker, reservation.campaign)
    else:
        row = tuple(vars(reservation).values())
        db.execute("INSERT OR REPLACE INTO reserved VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def drop(db: sqlite3.Connection, asker: str, campaign: str) -> None:
    """Remove the reservation of a campaign, if it has one."""
    db.execute(RESERVATION_TABLE)
    db.execute("DELETE FROM reserved WHERE asker = ? AND campaign = ?", (asker, campaign))
