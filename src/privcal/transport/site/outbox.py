"""A site's outbox: what it replied to which letter, on disk before the reply leaves.

The same letter gets the same bytes again: sealed anew, they would be another file. The name of each
file that ever left is kept for ever, 64 digits, as a witness: a file that this site signed and that
is not in here was written by another copy of the site, or by this one before its folder was put
back to an older state. Openings and charges may be forgotten then, and the site answers nothing
more with these keys (`stop`). So is the highest number of entries that each ledger was seen with.

A site that stopped needs another signing key, which makes it another party: privcal keys rotate
--signing.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTBOX = "outbox.sqlite"
KEPT = 7 * 24 * 3600
"""Seconds after a letter's end for which its reply's file is left in a mailbox."""

_TABLES = """
CREATE TABLE IF NOT EXISTS letter (
    digest TEXT PRIMARY KEY, code TEXT, until INTEGER NOT NULL, looked REAL NOT NULL, reply BLOB
);
CREATE TABLE IF NOT EXISTS sent (name TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS plan (
    asker TEXT, campaign TEXT, digest TEXT NOT NULL, PRIMARY KEY (asker, campaign)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (id TEXT, ledger TEXT, most INTEGER NOT NULL,
    PRIMARY KEY (id, ledger)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stopped (id TEXT PRIMARY KEY, why TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Stored:
    """What was replied to a letter: a refusal's code, or None for an answer, and the bytes."""

    code: str | None
    looked: float
    """When it was last looked at, in Unix seconds."""
    reply: bytes | None
    """None once the letter has ended."""


class Outbox:
    """The outbox in the folder of the site with this ID."""

    def __init__(self, folder: Path, id: str) -> None:
        self._id, self._lock = id, threading.Lock()
        self._db = sqlite3.connect(
            folder / OUTBOX, timeout=30, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_TABLES)
        (folder / OUTBOX).chmod(0o600)

    def find(self, letter: str) -> Stored | None:
        """What was replied to the letter with this digest."""
        row = self._one("SELECT code, looked, reply FROM letter WHERE digest = ?", letter)
        return None if row is None else Stored(*row)

    def store(
        self, letter: str, code: str | None, until: int, now: float, name: str, reply: bytes
    ) -> bytes:
        """Keep a reply to a letter; returns the bytes that are to leave.

        These are the ones that are here already where an answer is, or a refusal with this code.
        """
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            find = "SELECT code, reply FROM letter WHERE digest = ?"
            before = self._db.execute(find, (letter,)).fetchone()
            if before is not None and before[1] is not None and before[0] in (None, code):
                self._db.execute("UPDATE letter SET looked = ? WHERE digest = ?", (now, letter))
                return bytes(before[1])
            row = letter, code, until, now, reply
            self._db.execute("INSERT OR REPLACE INTO letter VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute("INSERT OR IGNORE INTO sent VALUES (?, ?)", (name, until))
            self._db.execute("UPDATE letter SET reply = NULL WHERE until + ? < ?", (KEPT, now))
            return reply

    def sent(self, name: str) -> bool:
        """Whether the file with this name ever left."""
        return self._one("SELECT 1 FROM sent WHERE name = ?", name) is not None

    def expired(self, now: float) -> list[str]:
        """The names of files that a mailbox need not keep any more, of the last months."""
        span = now - KEPT - 100 * 24 * 3600, now - KEPT
        with self._lock:
            rows = self._db.execute("SELECT name FROM sent WHERE until > ? AND until < ?", span)
            return [name for (name,) in rows]

    def pin(self, asker: str, campaign: str, plan: str) -> bool | None:
        """Keep a campaign's plan by its digest. True where it is new, None where there is another."""
        with self._lock:
            add = "INSERT OR IGNORE INTO plan VALUES (?, ?, ?)"
            if self._db.execute(add, (asker, campaign, plan)).rowcount:
                return True
            find = "SELECT digest FROM plan WHERE asker = ? AND campaign = ?"
            same = self._db.execute(find, (asker, campaign)).fetchone() == (plan,)
            return False if same else None

    def unpin(self, asker: str, campaign: str) -> None:
        """Forget a plan of which nothing was charged."""
        with self._lock:
            drop = "DELETE FROM plan WHERE asker = ? AND campaign = ?"
            self._db.execute(drop, (asker, campaign))

    def fewer(self, ledger: str, entries: int) -> bool:
        """Whether a ledger has fewer entries than it was seen with; their number is kept."""
        row = self._one("SELECT most FROM entries WHERE id = ? AND ledger = ?", self._id, ledger)
        if row is not None and entries <= row[0]:
            return bool(entries < row[0])
        with self._lock:
            add = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)"
            self._db.execute(add, (self._id, ledger, entries))
        return False

    def stop(self, why: str) -> None:
        """Keep for ever why nothing more is answered with these keys."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO stopped VALUES (?, ?)", (self._id, why))

    @property
    def stopped(self) -> str:
        """Why nothing more is answered with these keys; empty where it is."""
        row = self._one("SELECT why FROM stopped WHERE id = ?", self._id)
        return "" if row is None else str(row[0])

    def close(self) -> None:
        with self._lock:  # SQLite crashes where a thread still uses what is closed
            self._db.close()

    def _one(self, query: str, *values: object) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()


def stopped(folder: Path, id: str) -> str:
    """Why a site answers nothing more with these keys, for its owner; empty where it does."""
    if not (folder / OUTBOX).exists():
        return ""
    with closing(Outbox(folder, id)) as outbox:
        return outbox.stopped
