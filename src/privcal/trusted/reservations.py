"""Reservations of a budget by running campaigns, so that none begins what it cannot finish.

Two campaigns that each look at the budget and find enough would together use it up, and neither
would have its map. So a campaign reserves before its first question what all its questions cost,
in the transaction that looks whether it is there; each charge lowers what is still reserved.

A reservation only ever refuses. Whatever these rows say, a charge is first held against the cap
itself, so nothing can be spent through them, and one that is lost (dropped, damaged, restored from
an older copy) costs nobody more than a refusal that should have come earlier. That is why they are
not entries of the chain: they come and go free of charge, and a chain of them would let anybody
fill the disk.

They end by the wall clock, because a process that was killed gives nothing back: two and a half
minutes after a campaign's last charge, or as long after it as the asker's letters hold, at most a
week. A clock set back by less than that makes one last so much longer; set back by more, or forward,
it ends it early. Neither touches what may be spent.

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

RESERVED_FOR, LONGEST = 150.0, 7 * 24 * 3600.0
"""Seconds after a campaign's last charge, or after it was made: where nothing is said, longer than the
two minutes that a slow source has for a reply, and not long for the next asker where one died; and
the most that letters may ask for, whose rounds take days.

Not after an offer that repeats it: whoever offers again and again, and asks nothing, would hold a
source for ever."""

RESERVATIONS_OF_ONE = 4
"""Reservations that one asker may have; the one idle for longest makes way for a fifth, so nobody is
locked out by runs of their own that died. It does not keep an asker from holding what is left by
offering four quarters of it in turn; `epsilon_by_asker` does."""

TABLE = """
CREATE TABLE IF NOT EXISTS held (
    asker TEXT NOT NULL, campaign TEXT NOT NULL, nano INTEGER NOT NULL, alone INTEGER NOT NULL,
    requests INTEGER NOT NULL, since INTEGER NOT NULL, seen REAL NOT NULL, lasts REAL NOT NULL,
    PRIMARY KEY (asker, campaign)
);
"""
# Older ledgers have tables `reservation` and `reserved`. What stood in them has long ended.


@dataclass(frozen=True)
class Reservation:
    """What a campaign has still to ask, in nano-ε and questions.

    `alone` is what it costs against everybody else together: as much, or in secure sums more.
    `since` is what had been charged, over all questions, when it was made; `seen` is when the
    campaign was last charged, or when this was made, and `lasts` how many seconds it holds after that.
    """

    asker: str
    campaign: str
    nano: int
    alone: int
    requests: int
    since: int
    seen: float
    lasts: float = RESERVED_FOR

    @property
    def cost(self) -> Cost:
        """What is still to be charged."""
        return Cost(self.nano, self.alone)

    @property
    def sound(self) -> bool:
        """Whether its numbers and names are such as are written here."""
        numbers = (self.nano, self.alone, self.requests, self.since)
        whole = all(isinstance(n, int) and n >= 0 for n in numbers)
        times = all(isinstance(n, float) for n in (self.seen, self.lasts)) and self.lasts <= LONGEST
        return whole and times and f"{self.asker}{self.campaign}".isprintable()


def live(db: sqlite3.Connection, now: float) -> dict[tuple[str, str], Reservation]:
    """The reservations that hold, by asker and campaign; a damaged one holds nothing."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'held'").fetchone():
        return {}
    rows = (Reservation(*row) for row in db.execute("SELECT * FROM held"))
    held = [row for row in rows if row.sound and abs(now - row.seen) < row.lasts]
    return {(row.asker, row.campaign): row for row in held}


def too_many(live: list[Reservation], asker: str) -> list[Reservation]:
    """The reservations of an asker that must make way for a new one, the longest idle first."""
    own = sorted((held for held in live if held.asker == asker), key=lambda held: held.seen)
    return own[: max(0, len(own) - RESERVATIONS_OF_ONE + 1)]


def keep(db: sqlite3.Connection, reservation: Reservation, now: float) -> None:
    """Write a reservation as it now is; those that have ended are removed."""
    db.execute(TABLE)
    db.execute("DELETE FROM held WHERE ABS(seen - ?) >= lasts", (now,))
    if reservation.nano == 0:  # all that was to be asked is asked
        drop(db, reservation.asker, reservation.campaign)
    else:
        row = tuple(vars(reservation).values())
        db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def drop(db: sqlite3.Connection, asker: str, campaign: str) -> None:
    """Remove the reservation of a campaign, if it has one."""
    db.execute(TABLE)
    db.execute("DELETE FROM held WHERE asker = ? AND campaign = ?", (asker, campaign))
