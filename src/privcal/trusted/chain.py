"""The tables of a ledger, and its entries: a chain in which each knows the hash of the one before.

Each entry holds a hash over itself, the running total and the hash before it. So whoever knows the
hash of one entry knows all entries up to it: another text with the same hash cannot be found. A hash
alone keeps nobody from writing a chain of their own, so the end of the chain and the facts carry a
code (HMAC-SHA256) whose key is with the marks (`privcal.trusted.book` says what follows).

A `Chain` reads every entry once, in order, and holds it against the one before; from then on it reads
what was added. Whatever a source decides, it decides by what a `Chain` has read: no index, view or
order of the file plays a part, and an entry that was taken out or given another kind leaves a gap.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Literal

from privcal.trusted import accounts, approvals, records, reservations
from privcal.trusted.epsilon import Cost
from privcal.trusted.errors import Refused
from privcal.trusted.marks import Head
from privcal.trusted.persons import folded
from privcal.trusted.policy import Policy
from privcal.trusted.question import Question

APPLICATION_ID = 0x70637631  # "pcv1": tells a ledger from any other SQLite file
VERSION = 4
READABLE = (2, 3, 4)
"""The version that is written, and those that are read. Up to 3 a ledger had no code over its head;
its first change gives it one, and makes it a ledger of version 4, which older software refuses."""

FOLDED, AS_SPELLED = "folded", ""
_SPELLINGS: dict[str, Callable[[str], str]] = {FOLDED: folded, AS_SPELLED: str}
Unit = Literal["row", "person"]
UNITS = ("row", "person")

CHARGE, SHARE, PERSONS = "charge", "share", "persons"
"""Kinds of entries that questions make: a cost, that of an answer which goes into a secure sum, and
the state of the persons' accounts after it."""

OPENING = "opening"
"""The kind of entry that the opening of a secure sum makes: free of charge, once for each question."""

POLICY, DATA, WRITTEN_OFF, APPROVED = "policy", "data", "written off", "approved"
"""Kinds of entries that only the owner makes."""

CLOCK = "clock"
"""The kind of entry that is made where the newest one is dated after now: no later than this was it made."""

ENTRY_TABLES = """
CREATE TABLE IF NOT EXISTS ledger (
    id TEXT, secret TEXT, name TEXT, unit TEXT, marks TEXT, created TEXT, ids TEXT, hash TEXT
);
CREATE TABLE IF NOT EXISTS entry (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL,
    asker TEXT, campaign TEXT, round INTEGER, place INTEGER,
    what TEXT NOT NULL, digest TEXT NOT NULL,
    epsilon INTEGER NOT NULL, spent INTEGER NOT NULL,
    time TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    answer TEXT, sealed TEXT,
    UNIQUE (asker, campaign, round, place)
);
CREATE INDEX IF NOT EXISTS by_kind ON entry (kind, seq);
CREATE UNIQUE INDEX IF NOT EXISTS one_opening ON entry (what) WHERE kind = 'opening';
CREATE TABLE IF NOT EXISTS seal (mac TEXT NOT NULL);
"""

OLD_TABLES = """
CREATE TABLE ledger (
    id TEXT, secret TEXT, name TEXT, unit TEXT, marks TEXT, created TEXT, hash TEXT
);
CREATE TABLE reservation (
    asker TEXT NOT NULL, campaign TEXT NOT NULL, nano INTEGER NOT NULL, requests INTEGER NOT NULL,
    since INTEGER NOT NULL, seen REAL NOT NULL, PRIMARY KEY (asker, campaign)
);
"""
OLD_TABLES += reservations.TABLE.replace("held", "reserved").replace(", lasts REAL NOT NULL", "")
"""Tables of older ledgers: without `Facts.ids`, and two that nothing reads any more."""

CLOCK_SLACK = 60
"""Seconds by which the newest entry may be dated after now before that is put on record."""


@dataclass(frozen=True)
class Facts:
    """What is fixed when a ledger is made; only the path of its marks may change."""

    id: str
    secret: str
    name: str
    unit: Unit
    marks: str | None
    created: str
    ids: str = AS_SPELLED
    """How persons are told apart by their ids: `FOLDED`, or in an older ledger `AS_SPELLED`."""

    def person(self, id: str) -> str:
        """Whom an id means: all ids with one result are one person's."""
        return _SPELLINGS[self.ids](id)


ROOT = ""
"""The hash before the first entry."""

HASHED = (
    "seq", "kind", "asker", "campaign", "round", "place", "what", "digest", "epsilon", "spent",
    "time", "previous",
)  # fmt: skip


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """One transaction that excludes every other process from the first look to the commit."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def make_tables(db: sqlite3.Connection) -> None:
    """Make the tables of a ledger that are not there yet."""
    tables = (
        ENTRY_TABLES,
        accounts.ACCOUNT_TABLES,
        reservations.TABLE,
        approvals.WAITING_TABLE,
    )
    for statement in "".join(tables).split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


@cache
def _known_tables() -> frozenset[tuple[str, ...]]:
    known: set[tuple[str, ...]] = set()
    for older in ("", OLD_TABLES):  # where one is there, it is not made anew
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(older)
            make_tables(db)
            known.update(db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
    return frozenset(known)


def check_file(db: sqlite3.Connection) -> None:
    """An error unless the file is a ledger, and nothing in it would act on what is read or written.

    A trigger, a view in the place of a table or a computed column would: so whatever the file defines
    must be, to the letter, what `make_tables` defines.
    """
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise sqlite3.DatabaseError("this is not a privcal ledger")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in READABLE:
        raise sqlite3.DatabaseError(f"it was made by another version of privcal ({version})")
    for definition in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        if tuple(definition) not in _known_tables():
            raise sqlite3.DatabaseError(
                f"its {definition[0]} {definition[1]} is not what privcal makes"
            )


def read_facts(db: sqlite3.Connection) -> Facts:
    """The facts that were fixed when the ledger was made."""
    [(*values, stamp)] = db.execute("SELECT * FROM ledger")
    if stamp != hash_of(tuple(values)):
        raise sqlite3.DatabaseError("the ledger is damaged")
    return Facts(*values)


def hash_of(fields: tuple[object, ...]) -> str:
    """SHA-256 of these fields."""
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def untouched(row: sqlite3.Row) -> bool:
    return bool(row["hash"] == hash_of(tuple(row[name] for name in HASHED)))


def _damaged(row: sqlite3.Row) -> Exception:
    return sqlite3.DatabaseError(f"entry {row['seq']} of the ledger is damaged")


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


def share_text(question: Question, alone: int) -> str:
    """What a share's entry tells of its question."""
    return records.text({"alone": alone, "query": question.query.to_dict()})


def _opening_key(question: Question, asker: str) -> str:
    return records.text([asker, question.campaign, question.round, question.index])


def numbers_in(answer: str) -> list[int]:
    """The numbers of a stored answer."""
    return [int(v) for v in json.loads(answer)]


class Chain:
    """A ledger's facts and entries as they were read from `db`, each entry held against the one before.

    It may be kept from one reading to the next: `read` then takes what was added, or everything anew
    where the end is no longer where it was.
    """

    db: sqlite3.Connection
    facts: Facts

    def __init__(self) -> None:
        self._seals: list[str] = []
        self._old = False
        self._forget()

    def _forget(self) -> None:
        self._rows: list[sqlite3.Row] = []
        self._of_kind: dict[str, list[sqlite3.Row]] = defaultdict(list)
        self._charged: dict[tuple[object, ...], sqlite3.Row] = {}
        self._opened: dict[str, sqlite3.Row] = {}
        self._paid: dict[tuple[str, ...], Cost] = defaultdict(Cost)
        self.spent = Cost()
        """Everything that was charged or written off."""

    def read(self, db: sqlite3.Connection) -> None:
        """Read facts and entries; an error where an entry does not follow from the one before.

        It is a transaction: what the file defines cannot become something else before its end.
        """
        check_file(db)
        self.db, self.facts = db, read_facts(db)
        self._old = db.execute("PRAGMA user_version").fetchone()[0] < VERSION
        self._seals = [] if self._old else [mac for (mac,) in db.execute("SELECT mac FROM seal")]
        if self._rows[-1:] != [*self._entries("=")]:
            self._forget()
        for row in self._entries(">"):
            self._add(row)

    def _entries(self, which: str) -> sqlite3.Cursor:
        """Entries without their answers (what is dealt in a secure sum may be a megabyte), in order."""
        return self.db.execute(
            f"SELECT {', '.join(HASHED)}, hash FROM entry NOT INDEXED WHERE seq {which} ? ORDER BY seq",
            (len(self._rows),),
        )

    def _add(self, row: sqlite3.Row) -> None:
        head, kind, asker = self.head, row["kind"], row["asker"]
        follows = (head.seq + 1, head.spent.nano + row["epsilon"], head.hash)
        if (row["seq"], row["spent"], row["previous"]) != follows or not untouched(row):
            raise _damaged(row)
        paid = cost(row)
        self._rows.append(row)
        self._of_kind[kind].append(row)
        self.spent += paid
        if kind == OPENING:
            self._opened[row["what"]] = row
        if asker is not None:
            self._charged[asker, row["campaign"], row["round"], row["place"]] = row
            self._paid[(asker,)] += paid
            self._paid[asker, row["campaign"]] += paid

    @property
    def head(self) -> Head:
        """The end of the chain."""
        return Head(len(self._rows), self.hash_at(len(self._rows)) or ROOT, self.spent)

    def hash_at(self, seq: int) -> str | None:
        """The hash of the entry of this number; None where there is none."""
        return self._rows[seq - 1]["hash"] if 0 < seq <= len(self._rows) else None

    # --- the code over the head -------------------------------------------------------------

    @property
    def fixed(self) -> str:
        """A hash over the facts that never change."""
        return hash_of(tuple(vars(replace(self.facts, marks=None)).values()))

    def _mac(self, key: bytes) -> str:
        head = self.head
        text = records.text(["privcal ledger", *vars(self.facts).values(), head.seq, head.hash])
        return hmac.digest(key, text.encode("ascii"), "sha256").hex()

    def sealed_by(self, key: bytes) -> bool:
        """Whether the facts and the head carry the code that only this key makes."""
        mac = self._mac(key)
        return len(self._seals) == 1 and hmac.compare_digest(self._seals[0], mac)

    def seal(self, key: bytes) -> None:
        """Give the facts and the head their code, where they have not got it."""
        if not self.sealed_by(key):
            if self._old:
                make_tables(self.db)
            self._seals = [self._mac(key)]
            self.db.execute("DELETE FROM seal")
            self.db.execute("INSERT INTO seal VALUES (?)", self._seals)

    # --- what stands in it ------------------------------------------------------------------

    def of_kind(self, kind: str) -> list[sqlite3.Row]:
        """The entries of a kind, oldest first."""
        return self._of_kind[kind]

    @property
    def highest_ratio(self) -> int:
        """The most times its ε that any share cost against everybody else; 1 where there is none."""
        return max((json.loads(row["what"])["alone"] for row in self.of_kind(SHARE)), default=1)

    @property
    def policy(self) -> Policy:
        """The owner's rules, as last set."""
        if not self.of_kind(POLICY):
            raise sqlite3.DatabaseError("the ledger has no policy")
        found = _policy(self.of_kind(POLICY)[-1]["what"])
        return (
            found if found.epsilon_by_asker is None else replace(found)
        )  # a dictionary can be changed

    @property
    def written_off(self) -> Cost:
        """What the owner wrote off, or a lost ledger had spent."""
        return sum(map(cost, self.of_kind(WRITTEN_OFF)), Cost())

    @property
    def generation(self) -> str:
        """A hash that is another after every restore: over what was fixed, and all that was written off."""
        facts = self.facts
        off = [row["hash"] for row in self.of_kind(WRITTEN_OFF)]
        return hash_of(("privcal generation", facts.id, facts.secret, facts.created, *off))

    def find(self, question: Question, asker: str) -> sqlite3.Row | None:
        """The entry that charged this asker for a question of the same name, or None."""
        key = (asker, question.campaign, question.round, question.index)
        return self._charged.get(key)

    def find_opening(self, question: Question, asker: str) -> sqlite3.Row | None:
        """The entry with which the secure sum about this asker's question was opened, or None."""
        return self._opened.get(_opening_key(question, asker))

    def answer(self, row: sqlite3.Row) -> str | None:
        """The answer that is stored beside an entry, or None."""
        [(text, seal)] = self.db.execute(
            "SELECT answer, sealed FROM entry WHERE seq = ?", (row["seq"],)
        )
        if (text, seal) != (None, None) and seal != hash_of((row["hash"], text)):
            raise _damaged(row)
        return None if text is None else str(text)

    def stored_answer(self, row: sqlite3.Row) -> str:
        """The answer to a charged question as it was stored; Refused where it was lost."""
        if (text := self.answer(row)) is None:
            raise Refused("lost")
        return text

    def spent_by(self, asker: str, *campaign: str) -> Cost:
        """What this asker was charged, in one campaign or all."""
        return self._paid.get((asker, *campaign), Cost())

    def recent_charges(self, most: int) -> int:
        """How many questions were charged within the last hour; counted no further than `most`.

        An entry was made no later than now, and no later than whatever comes after it. So one that
        is dated in the future, by a clock that was ahead or was set back since, counts for one hour
        from the first entry with a date that is over (`note_clock` sees to it that there is one), and
        neither until its date nor not at all.
        """
        ago, count = stamp(now() - timedelta(hours=1)), 0
        for row in reversed(self._rows):
            if row["time"] <= ago or count == most:
                break
            count += row["kind"] in (CHARGE, SHARE)
        return count

    def check_accounts(self) -> None:
        """An error unless the persons' accounts are those that the chain tells of."""
        told = [row["what"] for row in self.of_kind(PERSONS)[-1:]] or [""]
        if [accounts.digest(self.db)] != told:
            raise sqlite3.DatabaseError("the accounts of persons are damaged")

    # --- what is added to it ----------------------------------------------------------------

    def append(
        self,
        kind: str,
        what: str,
        nano: int = 0,
        key: Sequence[str | int | None] = (None,) * 4,
        digest: str = "",
    ) -> None:
        """Add an entry to the end of the chain."""
        head = self.head
        after = head.spent.nano + nano
        fields = (head.seq + 1, kind, *key, what, digest, nano, after, stamp(now()), head.hash)
        self.db.execute(
            f"INSERT INTO entry ({', '.join(HASHED)}, hash) VALUES ({', '.join('?' * 13)})",
            (*fields, hash_of(fields)),
        )
        [row] = self._entries(">")  # it alone, or what is sealed next would be more, or less
        self._add(row)
        if self.head.hash != hash_of(fields):
            raise _damaged(row)

    def note_clock(self) -> None:
        """Put on record what time it is, where the newest entry is dated after that."""
        if self._rows[-1]["time"] > stamp(now() + timedelta(seconds=CLOCK_SLACK)):
            self.append(CLOCK, "the clock was ahead before, or was set back")

    def append_charge(self, question: Question, asker: str) -> None:
        """Add the cost of a question to the end of the chain."""
        key = (asker, question.campaign, question.round, question.index)
        text, digest = question.query.canonical(), question.digest()
        self.append(CHARGE, text, question.nano_epsilon, key, digest)

    def append_share(self, question: Question, asker: str, digest: str, alone: int) -> None:
        """Add the cost of a question that is answered in a secure sum to the end of the chain."""
        key = (asker, question.campaign, question.round, question.index)
        self.append(SHARE, share_text(question, alone), question.nano_epsilon, key, digest)

    def append_write_off(self, why: str, lost: Cost) -> None:
        """Add to the end of the chain what counts as spent, though the ledger does not know on what.

        Its digest is random, so that no two look alike: each makes another `generation`.
        """
        if lost.alone != lost.nano:
            why = records.text({"nano_alone": lost.alone, "why": why})
        self.append(WRITTEN_OFF, why, lost.nano, digest=secrets.token_hex(16))

    def append_opening(
        self, question: Question, asker: str, digest: str, numbers: list[int]
    ) -> None:
        """Add to the end of the chain that a secure sum was opened, and what this site showed."""
        self.append(OPENING, _opening_key(question, asker), digest=digest)
        self.write_answer(self._rows[-1], json.dumps(numbers))

    def write_answer(self, row: sqlite3.Row, text: str) -> None:
        """Put the answer beside an entry that has none."""
        written = self.db.execute(
            "UPDATE entry SET answer = ?, sealed = ? WHERE seq = ?",
            (text, hash_of((row["hash"], text)), row["seq"]),
        )
        if written.rowcount != 1:
            raise _damaged(row)

    def write_facts(self, facts: Facts) -> None:
        """Let these be the ledger's facts."""
        self.facts, values = facts, tuple(vars(facts).values())
        values = values if facts.ids else values[:-1]  # an older ledger has no such column
        self.db.execute("DELETE FROM ledger")
        self.db.execute(
            f"INSERT INTO ledger VALUES ({', '.join('?' * len(values))}, ?)",
            (*values, hash_of(values)),
        )


@lru_cache(maxsize=64)
def _policy(text: str) -> Policy:
    return Policy.of(json.loads(text), "of the ledger")


def now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def stamp(time: datetime) -> str:
    """A time as entries have it."""
    return time.isoformat(timespec="seconds")
