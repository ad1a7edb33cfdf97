"""The ledger: the durable record of what left a source and what it cost.

A request's life, in this order and no other:

1. `charge` looks its key up. An answer already stored under the same key and digest comes back
   free. The same key with another digest is refused (`id_conflict`). A charge without a stored
   answer is refused (`lost`): its noise may have been seen, so it is never drawn again.
2. Otherwise the cost is checked against the cap and committed to disk, in one transaction that
   excludes every other process, and then the high-water mark is raised.
3. Only then may noise be drawn, and `store` commits the answer before it leaves.

So a crash anywhere can lose budget but never spend it twice, and concurrent askers can neither
overspend nor get two noises for one charge.

The file is SQLite with a rollback journal and `synchronous=EXTRA` (FULL, and the directory is
synced too), so at rest a ledger is one file. Each operation opens it anew: a file removed,
replaced or restored meanwhile is noticed, and nothing is shared across a fork. Each entry holds
a hash over itself, the running total and the hash before it, so damage is noticed (an owner bent
on forging could compute the hashes anew: they guard against accidents).

**The high-water mark.** A second database, elsewhere (`marks.db` in the user's state folder, or
where `PRIVCAL_MARKS` or the ledger's maker said), remembers how far each ledger had got. A ledger restored from an
old copy is behind its mark and is refused until the owner reconciles it; so is one that took the
place of another. A ledger whose file is gone is known to be gone, and a new one at its place
starts with what the old one had spent. Places are remembered for ever, links resolved.

One ledger covers one population. That the same people's data could be opened under a second
ledger elsewhere cannot be prevented here: not doing so is the owner's duty.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privcal.errors import InputError, Refused
from privcal.privacy.epsilon import from_nano, to_nano

APPLICATION_ID = 0x70637631  # "pcv1": tells a ledger from any other SQLite file
VERSION = 1
BUSY_SECONDS = 60.0

_SCHEMA = """
CREATE TABLE ledger (id TEXT, secret TEXT, total INTEGER, marks TEXT, created TEXT, hash TEXT);
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY,
    asker TEXT, campaign TEXT, round INTEGER, place INTEGER,
    query TEXT NOT NULL, digest TEXT NOT NULL,
    epsilon INTEGER NOT NULL, spent INTEGER NOT NULL,
    time TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    answer TEXT,
    UNIQUE (asker, campaign, round, place)
);
"""
_MARKS_SCHEMA = """
CREATE TABLE IF NOT EXISTS mark (
    id TEXT NOT NULL, path TEXT NOT NULL, spent INTEGER NOT NULL, data TEXT,
    PRIMARY KEY (id, path)
);
"""


@dataclass(frozen=True)
class Key:
    """What names a request: who asks, in which campaign, in which round, the how-manieth."""

    asker: str
    campaign: str
    round: int = 0
    index: int = 0

    @classmethod
    def parse(cls, asker: str, request_id: str) -> Key:
        """From the readable form: "campaign/round/index", or "campaign" for the first of all."""
        if not isinstance(asker, str) or not isinstance(request_id, str):
            raise InputError("asker and request id must be text")
        campaign, *numbers = request_id.split("/")
        try:
            whole = [int(n) for n in numbers if n.isascii() and n.isdigit()]
            if (
                len(whole) != len(numbers)
                or len(whole) not in (0, 2)
                or max(whole, default=0) >= 2**31
            ):
                raise ValueError
        except ValueError:
            raise InputError(
                f"request id must look like campaign or campaign/round/index, not {request_id!r}"
            ) from None
        for what, name in (("asker", asker), ("campaign", campaign)):
            if not name or len(name) > 200 or not name.isprintable():
                raise InputError(f"{what} must be 1 to 200 printable characters, not {name!r}")
        return cls(asker, campaign, *whole)

    def __str__(self) -> str:
        return f"{self.campaign}/{self.round}/{self.index}"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    key: Key | None
    """None for budget written off by the owner."""
    query: str
    epsilon: float
    time: str
    answered: bool


def default_marks() -> Path:
    """Where high-water marks are kept: away from the ledgers, so that one restored from a
    backup does not bring its old mark along."""
    if said := os.environ.get("PRIVCAL_MARKS"):
        return Path(said).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "privcal" / "marks.db"


class Ledger:
    """The ledger in file `path`; `Ledger.create` makes one, `Ledger.in_memory` a fleeting one.

    Making the object touches nothing: every operation looks at the file as it then is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path | None = Path(path).resolve()
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        epsilon: float | None = None,
        *,
        marks: str | Path | None = None,
        data: str | None = None,
    ) -> Ledger:
        """Make a new ledger, never over an existing file.

        `epsilon` is a cap kept in the ledger itself, beside the policy's; the smaller rules.
        `marks` is another place for its high-water mark than the usual one; `data` notes there
        what data it is for. Where the marks know of a ledger at this very path that is gone,
        what it had spent is carried over.
        """
        ledger = cls(path)
        marks = None if marks is None else Path(marks).absolute()
        assert ledger.path is not None
        total = None if epsilon is None else to_nano(epsilon)
        ledger.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # O_EXCL: two creators cannot both succeed.
            os.close(os.open(ledger.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise InputError(f"{path} exists; a ledger is never overwritten") from None
        try:
            with _open_marks(marks, write=True) as marked:
                lost = _spent_at(marked, None, ledger.path) or 0
            with closing(_connect(ledger.path)) as db:
                _initialise(db, total, marks, lost)
                ledger._raise_mark(db, data)
        except BaseException as error:
            ledger.path.unlink()
            if isinstance(error, sqlite3.Error):
                raise InputError(f"cannot create the ledger {path}: {error}") from None
            raise
        return ledger

    @classmethod
    def in_memory(cls) -> Ledger:
        """For experiments: forgotten when the process ends, and so no protection at all."""
        ledger = cls.__new__(cls)
        ledger.path = None
        ledger._lock = threading.Lock()
        ledger._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        _initialise(ledger._memory, None, None, 0)
        return ledger

    @property
    def durable(self) -> bool:
        return self.path is not None

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})" if self.durable else "Ledger(in memory: not durable)"

    def known(self) -> bool:
        """Whether the usual marks know of a ledger at this path, there or not."""
        with _open_marks(None) as marks:
            return _spent_at(marks, None, self.path) is not None

    # --- what a source does -------------------------------------------------------------

    def charge(self, key: Key, query: str, digest: str, nano: int, cap: int) -> list[int] | None:
        """Charge a request durably, or return the answer it already has, or raise Refused.

        None means: charged, and the caller must now draw the answer and `store` it.
        """
        with self._open() as db:
            with _transaction(db):
                self._check_mark(db)
                spent = _head(db)[2]
                found = db.execute(
                    "SELECT digest, answer FROM entry"
                    " WHERE asker = ? AND campaign = ? AND round = ? AND place = ?",
                    (key.asker, key.campaign, key.round, key.index),
                ).fetchone()
                if found is not None:
                    if found[0] != digest:
                        raise Refused("id_conflict")
                    if found[1] is None:
                        raise Refused("lost")
                    return [int(v) for v in json.loads(found[1])]
                total = db.execute("SELECT total FROM ledger").fetchone()[0]
                if spent + nano > (cap if total is None else min(cap, total)):
                    raise Refused("over_budget")
                _append(db, key, query, digest, nano)
            self._raise_mark(db)
        return None

    def store(self, key: Key, answer: list[int]) -> None:
        """Commit the answer of a charged request. Only after this may it leave."""
        with self._open() as db:
            changed = db.execute(
                "UPDATE entry SET answer = ? WHERE answer IS NULL"
                " AND asker = ? AND campaign = ? AND round = ? AND place = ?",
                (json.dumps(answer), key.asker, key.campaign, key.round, key.index),
            ).rowcount
        if changed != 1:
            raise Refused("lost")

    @property
    def secret(self) -> bytes:
        """The key of the hash that chooses which rows of a person count."""
        with self._open() as db:
            return bytes.fromhex(db.execute("SELECT secret FROM ledger").fetchone()[0])

    # --- what its owner does ------------------------------------------------------------

    @property
    def nano_spent(self) -> int:
        with self._open() as db:
            return _head(db)[2]

    @property
    def nano_total(self) -> int | None:
        """The cap kept in the ledger, if it has one."""
        with self._open() as db:
            total: int | None = db.execute("SELECT total FROM ledger").fetchone()[0]
            return total

    def set_total(self, epsilon: float) -> None:
        """Change the cap kept in the ledger: the owner's decision, never an asker's."""
        with self._open() as db:
            name, secret, _, marks, created, _ = db.execute("SELECT * FROM ledger").fetchone()
            facts = (name, secret, to_nano(epsilon), marks, created)
            db.execute("UPDATE ledger SET total = ?, hash = ?", (facts[2], _hash(facts)))

    def entries(self) -> list[Entry]:
        """Everything that left, oldest first, each link of the chain verified."""
        with self._open() as db:
            rows = db.execute(f"SELECT {_COLUMNS}, answer FROM entry ORDER BY seq").fetchall()
        previous, spent = _ROOT, 0
        for seq, row in enumerate(rows, 1):
            spent += row[7]
            if (
                row[0] != seq
                or row[8] != spent
                or row[10] != previous
                or row[11] != _hash(row[:11])
            ):
                raise InputError(f"ledger {self.path} is damaged at entry {seq}")
            previous = row[11]
        return [
            Entry(
                None if row[1] is None else Key(*row[1:5]),
                row[5],
                from_nano(row[7]),
                row[9],
                row[12] is not None,
            )
            for row in rows
        ]

    def nano_behind(self) -> int | None:
        """By how many nano-ε the file is behind its mark; None where no mark is known."""
        with self._open() as db:
            mark = self._mark(db)
            return None if mark is None else max(0, mark - _head(db)[2])

    def reconcile(self, write_off: float | None = None) -> int:
        """After a restore: write off what the file does not know was spent; returns nano-ε.

        Where the mark is known, that is the difference to it. Where it is not (another
        machine, say), only the owner can know, so `write_off` must be given; 0 is allowed.
        """
        with self._open() as db:
            with _transaction(db):
                mark = self._mark(db)
                if mark is None and write_off is None:
                    raise InputError(
                        "no high-water mark is known for this ledger; say with write_off= how "
                        "much epsilon left that it does not show (0 if it is the newest copy)"
                    )
                nano = max(0, (mark or 0) - _head(db)[2])
                if write_off:
                    nano = max(nano, to_nano(write_off, "write-off"))
                if nano:
                    _append(db, None, "written off", "", nano)
            self._raise_mark(db)
        return nano

    # --- the file and its mark ----------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A checked connection. Whatever is wrong with the file becomes a refusal."""
        if self._memory is not None:
            with self._lock:
                yield self._memory
            return
        assert self.path is not None
        if not self.path.is_file():
            raise Refused("ledger_missing")
        try:
            with closing(_connect(self.path)) as db:
                if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                    raise sqlite3.DatabaseError(f"{self.path} is not a privcal ledger")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version != VERSION:
                    raise sqlite3.DatabaseError(
                        f"{self.path} was made by another version of privcal ({version})"
                    )
                *facts, stamp = db.execute("SELECT * FROM ledger").fetchone()
                if stamp != _hash(tuple(facts)):
                    raise sqlite3.DatabaseError(f"{self.path} is damaged")
                yield db
        except InputError:
            raise
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            # The last two: an entry that does not parse, a row that is not there.
            raise Refused("unavailable") from error

    def _mark(self, db: sqlite3.Connection) -> int | None:
        """How much this ledger is known to have spent; None if this machine never saw it."""
        name, place = db.execute("SELECT id, marks FROM ledger").fetchone()
        with _open_marks(place) as marks:
            return _spent_at(marks, name, self.path)

    def _check_mark(self, db: sqlite3.Connection) -> None:
        """Inside the ledger's transaction, so that nobody can charge between the two looks."""
        if self._memory is None:
            mark = self._mark(db)
            if mark is None or mark > _head(db)[2]:
                raise Refused("ledger_rolled_back")

    def _raise_mark(self, db: sqlite3.Connection, data: str | None = None) -> None:
        """After the commit: a mark ahead of its ledger would look like a rollback."""
        if self._memory is None:
            name, place = db.execute("SELECT id, marks FROM ledger").fetchone()
            with _open_marks(place, write=True) as marks:
                marks.execute(
                    "INSERT INTO mark VALUES (?, ?, ?, ?) ON CONFLICT (id, path) DO UPDATE SET"
                    " spent = MAX(spent, excluded.spent)",
                    (name, str(self.path), _head(db)[2], data),
                )


def ledgers_of(file: str) -> dict[str, list[Path]]:
    """Where the usual marks know ledgers made for a file, by the note of their data: the file
    itself, or "<file> by <column>"."""
    found: dict[str, list[Path]] = {}
    with _open_marks(None) as marks:
        if marks is not None:
            for data, path in marks.execute("SELECT DISTINCT data, path FROM mark"):
                if data == file or (data or "").startswith(f"{file} by "):
                    found.setdefault(data, []).append(Path(path))
    return found


def _spent_at(marks: sqlite3.Connection | None, name: str | None, path: Path | None) -> int | None:
    """The most that is known spent by this ledger, or by any that was ever at this path."""
    if marks is None:
        return None
    found: int | None = marks.execute(
        "SELECT MAX(spent) FROM mark WHERE id = ?1 OR id IN (SELECT id FROM mark WHERE path = ?2)",
        (name, str(path)),
    ).fetchone()[0]
    known = name is None or marks.execute("SELECT 1 FROM mark WHERE id = ?", (name,)).fetchone()
    return found if known else None


def _connect(path: Path, create: bool = False) -> sqlite3.Connection:
    mode = "rwc" if create else "rw"
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
    )
    db.execute("PRAGMA synchronous = EXTRA")
    return db


@contextmanager
def _open_marks(
    place: str | Path | None, write: bool = False
) -> Iterator[sqlite3.Connection | Any]:
    """The marks; None where there are none yet and nothing is to be written."""
    path = default_marks() if place is None else Path(place)
    if not write and not path.exists():
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        marks = _connect(path, create=True)
        marks.executescript(_MARKS_SCHEMA)
    except (sqlite3.Error, OSError) as error:
        raise sqlite3.OperationalError(
            f"cannot open the high-water marks {path}: {error}"
        ) from error
    with closing(marks):
        yield marks


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Excludes every other process from the first look to the commit."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _initialise(db: sqlite3.Connection, total: int | None, marks: Path | None, lost: int) -> None:
    db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
    facts = (secrets.token_hex(16), secrets.token_hex(32), total, marks and str(marks), _now())
    db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?)", (*facts, _hash(facts)))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    if lost:
        _append(db, None, "carried over from a lost ledger", "", lost)
    db.execute("COMMIT")


_COLUMNS = "seq, asker, campaign, round, place, query, digest, epsilon, spent, time, previous, hash"
_ROOT = ""


def _hash(fields: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _head(db: sqlite3.Connection) -> tuple[int, str, int]:
    """Number and hash of the newest entry, and the total after it."""
    row = db.execute(f"SELECT {_COLUMNS} FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        return 0, _ROOT, 0
    if row[11] != _hash(row[:11]):
        raise sqlite3.DatabaseError("the newest entry of the ledger is damaged")
    return row[0], row[11], row[8]


def _append(db: sqlite3.Connection, key: Key | None, query: str, digest: str, nano: int) -> None:
    seq, previous, spent = _head(db)
    who = (None,) * 4 if key is None else (key.asker, key.campaign, key.round, key.index)
    fields = (seq + 1, *who, query, digest, nano, spent + nano, _now(), previous)
    db.execute(
        f"INSERT INTO entry ({_COLUMNS}) VALUES ({', '.join('?' * 12)})", (*fields, _hash(fields))
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
