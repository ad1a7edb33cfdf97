"""The tables of a ledger, and its entries: a chain in which each knows the hash of the one before.

Each entry holds a hash over itself, the running total and the hash before it, and a stored answer
one over itself and its entry. Whatever is read here has been held against them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from privcal.crypto import canonical
from privcal.errors import Refused
from privcal.privacy import accounts, approvals, reservations
from privcal.privacy.epsilon import Cost, from_nano
from privcal.privacy.marks import Head
from privcal.privacy.policy import Policy
from privcal.question import Question

APPLICATION_ID = 0x70637631  # "pcv1": tells a ledger from any other SQLite file
VERSION = 2
SECURE_VERSION = 3
"""A ledger's version, and that from its first part in a secure sum on: older software, which knows
nothing of openings and of the second total, then refuses it."""

Unit = Literal["row", "person"]
UNITS = ("row", "person")

CHARGE, SHARE, PERSONS = "charge", "share", "persons"
"""Kinds of entries that questions make: a cost, that of an answer which goes into a secure sum, and
the state of the persons' accounts after it."""

OPENING = "opening"
"""The kind of entry that the opening of a secure sum makes: free of charge, once for each question."""

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

SECURE_INDEX = "CREATE UNIQUE INDEX one_opening ON entry (what) WHERE kind = 'opening'"


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
    """One line of the ledger, for people; its key is None where it charged nobody's question.

    `what` is the query, the policy or the data as JSON, or a few words; of a share the query and
    `alone`, of an opening the key of its question. `alone` is the cost against everybody else together.
    """

    kind: str
    key: Key | None
    what: str
    epsilon: float
    alone: float
    time: str
    answered: bool

    @property
    def asked(self) -> bool:
        """Whether it is a question that was charged, in a secure sum or outside."""
        return self.kind in (CHARGE, SHARE)

    @property
    def query(self) -> dict[str, Any]:
        """The query of a question that was charged, by its parts."""
        facts: dict[str, Any] = json.loads(self.what)
        return facts["query"] if self.kind == SHARE else facts

    @property
    def about(self) -> Key | None:
        """The key of the question that was charged, or that an opening is about; None for the owner's."""
        return Key(*json.loads(self.what)) if self.kind == OPENING else self.key

    @classmethod
    def of(cls, row: sqlite3.Row) -> Entry:
        """The entry in a row of the table."""
        key = Key(row["asker"], row["campaign"], row["round"], row["place"])
        return cls(
            kind=row["kind"],
            key=None if row["asker"] is None else key,
            what=row["what"],
            epsilon=from_nano(row["epsilon"]),
            alone=from_nano(cost(row).alone),
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


def initialise(db: sqlite3.Connection, facts: Facts, policy: Policy, lost: Cost) -> None:
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
    if lost.alone:
        append_write_off(db, "carried over from a lost ledger", lost)


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
    return sealed and _untouched(row)


def _untouched(row: sqlite3.Row) -> bool:
    return bool(row["hash"] == hash_of(tuple(row[name] for name in HASHED)))


def checked(row: sqlite3.Row) -> sqlite3.Row:
    """The same entry, if it is intact."""
    if not intact(row):
        raise _damaged(row)
    return row


def _damaged(row: sqlite3.Row) -> Exception:
    return sqlite3.DatabaseError(f"entry {row['seq']} of the ledger is damaged")


def head(db: sqlite3.Connection) -> Head:
    """The end of the chain."""
    seq, hash, nano = _last(db)
    beyond = sum(cost(row).alone - row["epsilon"] for row in _of_kinds(db, SHARE, WRITTEN_OFF))
    return Head(seq, hash, Cost(nano, nano + beyond))


def spent(db: sqlite3.Connection) -> Cost:
    """Everything that was charged or written off."""
    return head(db).spent


def _last(db: sqlite3.Connection) -> tuple[int, str, int]:
    """Number, hash and running total of the newest entry."""
    row = next(_entries(db, "seq = (SELECT MAX(seq) FROM entry)"), None)
    return (0, ROOT, 0) if row is None else (row["seq"], row["hash"], row["spent"])


def _of_kinds(db: sqlite3.Connection, *kinds: str) -> Iterator[sqlite3.Row]:
    """The entries of some kinds, oldest first."""
    return _entries(db, f"kind IN ({', '.join('?' * len(kinds))}) ORDER BY seq", kinds)


def _entries(
    db: sqlite3.Connection, which: str, values: Sequence[str] = ()
) -> Iterator[sqlite3.Row]:
    """Entries without their answers: what is dealt in a secure sum may be a megabyte."""
    rows = db.execute(f"SELECT {', '.join(HASHED)}, hash FROM entry WHERE {which}", values)
    for row in rows:
        if not _untouched(row):
            raise _damaged(row)
        yield row


def cost(row: sqlite3.Row) -> Cost:
    """What an entry cost.

    A share says how many times its ε it cost against everybody else together, and budget that was
    written off how much of that, where it is more than its ε.
    """
    nano, kind, what = row["epsilon"], row["kind"], row["what"]
    if kind == SHARE:
        return Cost.of(nano, json.loads(what)["alone"])
    if kind == WRITTEN_OFF and what.startswith("{"):
        return Cost(nano, json.loads(what)["nano_alone"])
    return Cost(nano, nano)


def highest_ratio(db: sqlite3.Connection) -> int:
    """The most times its ε that any share cost against everybody else; 1 where there is none."""
    return max((json.loads(row["what"])["alone"] for row in _of_kinds(db, SHARE)), default=1)


def highest_ratio_allowed(db: sqlite3.Connection) -> int:
    """The same, of shares that were charged and of those that any policy would have let be."""
    policies = (json.loads(row["what"]) for row in _of_kinds(db, POLICY))
    rules = (Policy.of(policy, "of the ledger").secure for policy in policies)
    return max(highest_ratio(db), *(rule.alone for rule in rules if rule is not None), 1)


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


def stored_answer(row: sqlite3.Row) -> str:
    """The answer to a charged question as it was stored; Refused where it was lost."""
    if row["answer"] is None:
        raise Refused("lost")
    return str(row["answer"])


def numbers_in(answer: str) -> list[int]:
    """The numbers of a stored answer."""
    return [int(v) for v in json.loads(answer)]


def check_accounts(db: sqlite3.Connection) -> None:
    """An error unless the persons' accounts are those that the chain tells of."""
    row = newest(db, PERSONS)
    if accounts.digest(db) != ("" if row is None else row["what"]):
        raise sqlite3.DatabaseError("the accounts of persons are damaged")


def written_off(db: sqlite3.Connection) -> Cost:
    """What the owner wrote off, or a lost ledger had spent."""
    return sum(map(cost, _of_kinds(db, WRITTEN_OFF)), Cost())


def generation(db: sqlite3.Connection) -> str:
    """A hash that is another after every restore: over what was fixed, and all that was written off."""
    facts = read_facts(db)
    off = [row["hash"] for row in _of_kinds(db, WRITTEN_OFF)]
    return hash_of(("privcal generation", facts.id, facts.secret, facts.created, *off))


def spent_by(db: sqlite3.Connection, asker: str, campaign: str | None = None) -> Cost:
    """What this asker was charged, in one campaign or all."""
    rows = _entries(db, "asker = ?", (asker,))
    return sum((cost(row) for row in rows if campaign in (None, row["campaign"])), Cost())


def recent_charges(db: sqlite3.Connection, most: int) -> int:
    """How many questions were charged within the last hour; counted no further than `most`."""
    ago = stamp(now() - timedelta(hours=1))
    rows = db.execute(
        "SELECT time FROM entry WHERE kind IN (?, ?) ORDER BY seq DESC LIMIT ?",
        (CHARGE, SHARE, most),
    )
    return sum(time > ago for (time,) in rows)


def exported(row: sqlite3.Row) -> dict[str, Any]:
    """An entry for an audit system: whatever its hash is over, and the hash."""
    charge = row["kind"] == CHARGE
    asked = row["kind"] in (CHARGE, SHARE, OPENING)
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
        "nano_alone": cost(row).alone,
        "nano_spent": row["spent"],
        "answered": row["answer"] is not None if asked else None,
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
    seq, previous, before = _last(db)
    fields = (seq + 1, kind, *key, what, digest, nano, before + nano, stamp(now()), previous)
    db.execute(
        f"INSERT INTO entry ({', '.join(HASHED)}, hash) VALUES ({', '.join('?' * 13)})",
        (*fields, hash_of(fields)),
    )


def append_charge(db: sqlite3.Connection, question: Question, asker: str) -> None:
    """Add the cost of a question to the end of the chain."""
    key = (asker, question.campaign, question.round, question.index)
    text, digest = question.query.canonical(), question.digest()
    append(db, CHARGE, text, question.nano_epsilon, key, digest)


def append_share(
    db: sqlite3.Connection, question: Question, asker: str, digest: str, alone: int
) -> None:
    """Add the cost of a question that is answered in a secure sum to the end of the chain."""
    _use_secure_version(db)
    key = (asker, question.campaign, question.round, question.index)
    append(db, SHARE, share_text(question, alone), question.nano_epsilon, key, digest)


def share_text(question: Question, alone: int) -> str:
    """What a share's entry tells of its question."""
    return canonical.write({"alone": alone, "query": question.query.to_dict()})


def append_write_off(db: sqlite3.Connection, why: str, lost: Cost) -> None:
    """Add to the end of the chain what counts as spent, though the ledger does not know on what.

    Its digest is random, so that no two look alike: each makes another `generation`.
    """
    if lost.alone != lost.nano:
        _use_secure_version(db)
        why = canonical.write({"nano_alone": lost.alone, "why": why})
    append(db, WRITTEN_OFF, why, lost.nano, digest=secrets.token_hex(16))


def append_opening(
    db: sqlite3.Connection, question: Question, asker: str, digest: str, numbers: list[int]
) -> None:
    """Add to the end of the chain that a secure sum was opened, and what this site showed."""
    _use_secure_version(db)
    append(db, OPENING, _opening_key(question, asker), digest=digest)
    row = find_opening(db, question, asker)
    assert row is not None
    write_answer(db, row, json.dumps(numbers))


def find_opening(db: sqlite3.Connection, question: Question, asker: str) -> sqlite3.Row | None:
    """The entry with which the secure sum about this asker's question was opened, or None."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM entry WHERE kind = ? AND what = ?", (OPENING, _opening_key(question, asker))
    ).fetchone()
    return None if row is None else checked(row)


def _opening_key(question: Question, asker: str) -> str:
    return canonical.write([asker, question.campaign, question.round, question.index])


def write_answer(db: sqlite3.Connection, row: sqlite3.Row, text: str) -> None:
    """Put the answer beside an entry that has none."""
    db.execute(
        "UPDATE entry SET answer = ?, sealed = ? WHERE seq = ?",
        (text, hash_of((row["hash"], text)), row["seq"]),
    )


def _use_secure_version(db: sqlite3.Connection) -> None:
    """From now on the ledger holds what older software does not understand."""
    if db.execute("PRAGMA user_version").fetchone()[0] < SECURE_VERSION:
        db.execute(SECURE_INDEX)
        db.execute(f"PRAGMA user_version = {SECURE_VERSION}")


def now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def stamp(time: datetime) -> str:
    """A time as entries have it."""
    return time.isoformat(timespec="seconds")
