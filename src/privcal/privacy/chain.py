"""The tables of a ledger, and its entries: a chain in which each knows the hash of the one before.

Each entry holds a hash over itself, the running total and the hash before it, and a stored answer
one over itself and its entry. Whatever is read here has been held against them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from privcal.errors import Refused
from privcal.privacy import accounts, approvals, reservations
from privcal.privacy.epsilon import from_nano
from privcal.privacy.marks import Head
from privcal.privacy.policy import Policy
from privcal.question import Question

APPLICATION_ID = 0x70637631  # "pcv1": tells a ledger from any other SQLite file
VERSION = 2

Unit = Literal["row", "person"]
UNITS = ("row", "person")

CHARGE, PERSONS = "charge", "persons"
"""Kinds of entries that questions make: a cost, and the state of the persons' accounts after it."""

POLICY, DATA, WRITTEN_OFF, APPROVED = "policy", "data", "written off", "approved"
"""Kinds of entries that only the owner makes."""

ENTRY_TABLES = """
CREATE TABLE ledger (
    id TEXT, secret TEXT, name TEXT, unit TEXT, marks TEXT, created TEXT, hash TEXT
);
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL,
    asker TEXT, campaign TEXT, round INTEGER, place INTEGER,
    what TEXT NOT NULL, digest TEXT NOT NULL,
    epsilon INTEGER NOT NULL, spent INTEGER NOT NULL,
    time TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    answer TEXT, sealed TEXT,
    UNIQUE (asker, campaign, round, place)
);
CREATE INDEX by_kind ON entry (kind, seq);
"""


@dataclass(frozen=True)
class Key:
    """The name of a charged question: who asked it, and its place in a campaign."""

    asker: str
    campaign: str
    round: int = 0
    index: int = 0

    def __str__(self) -> str:
        return f"{self.campaign}/{self.round}/{self.index}"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger, for people; its key is None where the owner made it.

    `what` is the query, the policy or the data as JSON, or a few words.
    """

    kind: str
    key: Key | None
    what: str
    epsilon: float
    time: str
    answered: bool

    @classmethod
    def of(cls, row: sqlite3.Row) -> Entry:
        """The entry in a row of the table."""
        key = Key(row["asker"], row["campaign"], row["round"], row["place"])
        return cls(
            kind=row["kind"],
            key=None if row["asker"] is None else key,
            what=row["what"],
            epsilon=from_nano(row["epsilon"]),
            time=row["time"],
            answered=row["answer"] is not None,
        )


@dataclass(frozen=True)
class Facts:
    """What is fixed when a ledger is made; only the path of its marks may change."""

    id: str
    secret: str
    name: str
    unit: Unit
    marks: str | None
    created: str


ROOT = ""
"""The hash before the first entry."""

HASHED = (
    "seq", "kind", "asker", "campaign", "round", "place", "what", "digest", "epsilon", "spent",
    "time", "previous",
)  # fmt: skip


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction that excludes every other process from the first look to the commit."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def initialise(db: sqlite3.Connection, facts: Facts, policy: Policy, lost: int) -> None:
    """Make the tables of a new ledger; `lost` is what one that was lost at its path had spent."""
    db.row_factory = sqlite3.Row
    tables = (
        ENTRY_TABLES,
        accounts.ACCOUNT_TABLES,
        reservations.RESERVATION_TABLE,
        approvals.WAITING_TABLE,
    )
    for statement in "".join(tables).split(";"):
        db.execute(statement)
    values = tuple(vars(facts).values())
    db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, hash_of(values)))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    append(db, POLICY, json.dumps(policy.to_dict(), sort_keys=True))
    if lost:
        append(db, WRITTEN_OFF, "carried over from a lost ledger", lost)


def read_facts(db: sqlite3.Connection) -> Facts:
    """The facts that were fixed when the ledger was made."""
    *values, stamp = db.execute("SELECT * FROM ledger").fetchone()
    if stamp != hash_of(tuple(values)):
        raise sqlite3.DatabaseError("the ledger is damaged")
    return Facts(*values)


def set_marks(db: sqlite3.Connection, path: str) -> None:
    """Let the ledger's marks be in another file."""
    values = tuple({**vars(read_facts(db)), "marks": path}.values())
    db.execute("UPDATE ledger SET marks = ?, hash = ?", (path, hash_of(values)))


def hash_of(fields: tuple[object, ...]) -> str:
    """SHA-256 of these fields."""
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def intact(row: sqlite3.Row) -> bool:
    """Whether an entry and its answer are as they were written."""
    answered = row["answer"] is not None or row["sealed"] is not None
    sealed = not answered or row["sealed"] == hash_of((row["hash"], row["answer"]))
    return sealed and bool(row["hash"] == hash_of(tuple(row[name] for name in HASHED)))


def checked(row: sqlite3.Row) -> sqlite3.Row:
    """The same entry, if it is intact."""
    if not intact(row):
        raise sqlite3.DatabaseError(f"entry {row['seq']} of the ledger is damaged")
    return row


def head(db: sqlite3.Connection) -> Head:
    """The end of the chain."""
    row = db.execute("SELECT * FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        return Head(0, ROOT, 0)
    return Head(row["seq"], checked(row)["hash"], row["spent"])


def find(db: sqlite3.Connection, question: Question, asker: str) -> sqlite3.Row | None:
    """The entry that charged this asker for a question of the same name, or None."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM entry WHERE asker = ? AND campaign = ? AND round = ? AND place = ?",
        (asker, question.campaign, question.round, question.index),
    ).fetchone()
    return None if row is None else checked(row)


def newest(db: sqlite3.Connection, kind: str) -> sqlite3.Row | None:
    """The newest entry of a kind, or None."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind,)
    ).fetchone()
    return None if row is None else checked(row)


def read_policy(db: sqlite3.Connection) -> Policy:
    """The owner's rules, as last set."""
    row = newest(db, POLICY)
    if row is None:
        raise sqlite3.DatabaseError("the ledger has no policy")
    return Policy.of(json.loads(row["what"]), "of the ledger")


def stored_answer(row: sqlite3.Row) -> list[int]:
    """The answer to a charged question; Refused where it was lost."""
    if row["answer"] is None:
        raise Refused("lost")
    return [int(v) for v in json.loads(row["answer"])]


def check_accounts(db: sqlite3.Connection) -> None:
    """An error unless the persons' accounts are those that the chain tells of."""
    row = newest(db, PERSONS)
    if accounts.digest(db) != ("" if row is None else row["what"]):
        raise sqlite3.DatabaseError("the accounts of persons are damaged")


def written_off(db: sqlite3.Connection) -> int:
    """Nano-ε that the owner wrote off, or that a lost ledger had spent."""
    total: int = db.execute(
        "SELECT COALESCE(SUM(epsilon), 0) FROM entry WHERE kind = ?", (WRITTEN_OFF,)
    ).fetchone()[0]
    return total


def spent_by(db: sqlite3.Connection, asker: str, campaign: str | None = None) -> int:
    """Nano-ε that this asker was charged, in one campaign or all."""
    rows = db.execute("SELECT * FROM entry WHERE asker = ?", (asker,))
    return sum(checked(row)["epsilon"] for row in rows if campaign in (None, row["campaign"]))


def recent_charges(db: sqlite3.Connection, most: int) -> int:
    """How many questions were charged within the last hour; counted no further than `most`."""
    ago = stamp(now() - timedelta(hours=1))
    rows = db.execute(
        "SELECT time FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT ?", (CHARGE, most)
    )
    return sum(time > ago for (time,) in rows)


def exported(row: sqlite3.Row) -> dict[str, Any]:
    """An entry for an audit system: whatever its hash is over, and the hash."""
    charge = row["kind"] == CHARGE
    return {
        "seq": row["seq"],
        "time": row["time"],
        "kind": row["kind"],
        "asker": row["asker"],
        "campaign": row["campaign"],
        "round": row["round"],
        "index": row["place"],
        "query": row["what"] if charge else None,
        "what": None if charge else row["what"],
        "digest": row["digest"],
        "nano_epsilon": row["epsilon"],
        "nano_spent": row["spent"],
        "answered": row["answer"] is not None if charge else None,
        "previous": row["previous"],
        "hash": row["hash"],
    }


def append(
    db: sqlite3.Connection,
    kind: str,
    what: str,
    nano: int = 0,
    key: Sequence[str | int | None] = (None,) * 4,
    digest: str = "",
) -> None:
    """Add an entry to the end of the chain."""
    last = head(db)
    spent = last.spent + nano
    fields = (last.seq + 1, kind, *key, what, digest, nano, spent, stamp(now()), last.hash)
    db.execute(
        f"INSERT INTO entry ({', '.join(HASHED)}, hash) VALUES ({', '.join('?' * 13)})",
        (*fields, hash_of(fields)),
    )


def append_charge(db: sqlite3.Connection, question: Question, asker: str) -> None:
    """Add the cost of a question to the end of the chain."""
    key = (asker, question.campaign, question.round, question.index)
    text, digest = question.query.canonical(), question.digest()
    append(db, CHARGE, text, question.nano_epsilon, key, digest)


def now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def stamp(time: datetime) -> str:
    """A time as entries have it."""
    return time.isoformat(timespec="seconds")
