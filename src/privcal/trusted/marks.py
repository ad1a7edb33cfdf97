"""High-water marks: a second file that remembers how far each ledger had got, and for what data.

A ledger restored from an old copy does not hold the entry that its mark names, and so is refused
until its owner reconciles it; so is one that took the place of another. The marks live away from
the ledgers (`marks.db` in the user's state folder, or the file that `PRIVCAL_MARKS` or the ledger's
maker named), so that a backup of the one does not bring back the other.

With the marks is a key, made with them. A ledger's facts and head carry a code made with it, and its mark
remembers that they do, so who can write a ledger's folder, and not the marks, cannot forge a ledger.

The marks are locked before a ledger is, and until both are on disk. So two copies of a ledger that
are asked at the same moment wait for one another, and the second finds that it is a copy.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from privcal.trusted.epsilon import Cost

BUSY_SECONDS = 60.0

_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""What a journal of SQLite begins with, and also ends with where it names another file."""

_TABLES = """
CREATE TABLE IF NOT EXISTS head (
    id TEXT PRIMARY KEY, unit TEXT, seq INTEGER, hash TEXT, spent INTEGER
);
CREATE TABLE IF NOT EXISTS history (
    id TEXT, seq INTEGER, hash TEXT, spent INTEGER, PRIMARY KEY (id, seq, hash)
);
CREATE TABLE IF NOT EXISTS alone (
    id TEXT, seq INTEGER, hash TEXT, alone INTEGER, PRIMARY KEY (id, seq, hash)
);
CREATE TABLE IF NOT EXISTS place (id TEXT, path TEXT, PRIMARY KEY (id, path));
CREATE TABLE IF NOT EXISTS data (
    id TEXT, path TEXT, device INTEGER, inode INTEGER, split TEXT, value TEXT, digest TEXT,
    PRIMARY KEY (id, path, split, value)
);
CREATE TABLE IF NOT EXISTS key (number INTEGER PRIMARY KEY, key BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sealed (id TEXT PRIMARY KEY, facts TEXT NOT NULL);
"""
# In `alone` stands what was spent up to an entry against everybody else together, where that is
# more than `spent`. A table of its own, so that an older privcal can go on with marks that a newer
# one has used: what it writes is about ledgers without secure sums, where the two are the same.
# `key` has one row. In `sealed` stand the ledgers that carry a code, each with a hash over its facts.

_ALONE = "COALESCE(alone, spent)"


@dataclass(frozen=True)
class Head:
    """The newest entry of a ledger: its number, its hash, and what was spent up to it."""

    seq: int
    hash: str
    spent: Cost


@dataclass(frozen=True)
class Known:
    """Data that a ledger was made for: `split` and `value` are "" where it is a whole file."""

    id: str
    path: Path
    device: int
    inode: int
    split: str
    value: str
    digest: str


def default_marks() -> Path:
    """The file of the marks, unless another is named."""
    if path := os.environ.get("PRIVCAL_MARKS"):
        return Path(path).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state).absolute() / "privcal" / "marks.db"


class Marks:
    """An open database of marks."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def head(self, id: str) -> Head | None:
        """How far this ledger is known to have got; None if it was never seen here."""
        row = self._db.execute(
            f"SELECT seq, hash, spent, {_ALONE} FROM head LEFT JOIN alone USING (id, seq, hash)"
            " WHERE id = ?",
            (id,),
        ).fetchone()
        return None if row is None else Head(row[0], row[1], Cost(*row[2:]))

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is written to them meanwhile, so that all that is read is of one moment."""
        self._db.execute("BEGIN")
        self._db.execute("SELECT 1 FROM head").fetchone()
        yield
        self._db.execute("COMMIT")

    @property
    def key(self) -> bytes:
        """The key of the codes that ledgers carry."""
        [(key,)] = self._db.execute("SELECT key FROM key")
        return bytes(key)

    def sealed(self, id: str) -> str | None:
        """The hash over the facts of a ledger that carries a code; None for one that never did."""
        row = self._db.execute("SELECT facts FROM sealed WHERE id = ?", (id,)).fetchone()
        return None if row is None else str(row[0])

    def had(self, id: str, unit: str, head: Head) -> bool:
        """Whether this was ever the head of this ledger, which protects such a unit."""
        return bool(
            self._db.execute(
                "SELECT 1 FROM head JOIN (SELECT id, seq, hash FROM head UNION"
                " SELECT id, seq, hash FROM history) AS was USING (id)"
                " WHERE id = ? AND unit = ? AND was.seq = ? AND was.hash = ?",
                (id, unit, head.seq, head.hash),
            ).fetchone()
        )

    def shared(self, id: str, hash_at: Callable[[int], str | None]) -> Cost:
        """What was spent up to the newest entry that this ledger once had and this copy still has."""
        rows = self._db.execute(
            f"SELECT seq, hash, spent, {_ALONE} FROM history LEFT JOIN alone USING (id, seq, hash)"
            " WHERE id = ? ORDER BY seq DESC",
            (id,),
        )
        return next((Cost(*spent) for seq, hash, *spent in rows if hash_at(seq) == hash), Cost())

    def spent_at(self, path: Path, besides: str = "") -> Cost | None:
        """The most that any (other) ledger had spent that was ever at this path; None if none was."""
        spent: tuple[int, int] | tuple[None, None] = self._db.execute(
            f"SELECT MAX(spent), MAX({_ALONE}) FROM head JOIN place USING (id)"
            " LEFT JOIN alone USING (id, seq, hash) WHERE path = ? AND id != ?",
            (str(path), besides),
        ).fetchone()
        return None if spent[0] is None else Cost(*spent)

    def at(self, path: Path) -> list[tuple[str, str]]:
        """The ledgers that were ever at this path, the newest last, and whom each protected: rows, persons."""
        return self._db.execute(
            "SELECT id, unit FROM place JOIN head USING (id) WHERE path = ? ORDER BY place.rowid",
            (str(path),),
        ).fetchall()

    def raise_to(self, id: str, unit: str, path: Path, head: Head, facts: str) -> None:
        """Only what changes is written: looking something up costs no disk.

        `facts` is the hash over those of a ledger that now carries its code.
        """
        if self.sealed(id) != facts:
            self._db.execute("INSERT OR REPLACE INTO sealed VALUES (?, ?)", (id, facts))
        if self.head(id) != head:
            row = (id, unit, head.seq, head.hash, head.spent.nano)
            self._db.execute("INSERT OR REPLACE INTO head VALUES (?, ?, ?, ?, ?)", row)
            entry = (id, head.seq, head.hash, head.spent.nano)
            self._db.execute("INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?)", entry)
            if head.spent.alone != head.spent.nano:
                entry = (id, head.seq, head.hash, head.spent.alone)
                self._db.execute("INSERT OR REPLACE INTO alone VALUES (?, ?, ?, ?)", entry)
        self.note_place(id, path)

    def note_place(self, id: str, path: Path) -> None:
        if path not in self.places(id):
            self._db.execute("INSERT INTO place VALUES (?, ?)", (id, str(path)))

    def places(self, id: str) -> list[Path]:
        """Where this ledger has been, the newest last."""
        rows = self._db.execute("SELECT path FROM place WHERE id = ? ORDER BY rowid", (id,))
        return [Path(path) for (path,) in rows]

    def note(self, known: Known) -> None:
        row = (known.id, str(known.path), known.device, known.inode, known.split, known.value)
        self._db.execute(
            "INSERT OR REPLACE INTO data VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, known.digest)
        )

    def data(self) -> list[Known]:
        rows = self._db.execute("SELECT * FROM data ORDER BY rowid")
        return [Known(id, Path(path), *rest) for id, path, *rest in rows]


@contextmanager
def reading(path: Path) -> Iterator[Marks | None]:
    """The marks as they are; None where there are none. No file is made."""
    if not os.path.exists(path):  # or this account may not look
        yield None
        return
    with closing(_connect(path)) as db:
        yield Marks(db)


@contextmanager
def locked(path: Path) -> Iterator[Marks]:
    """The marks, all others shut out until the end, when what changed is committed.

    They are made where there are none; whoever only uses a ledger looks first.
    """
    with closing(_connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield Marks(db)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def _connect(path: Path) -> sqlite3.Connection:
    try:
        if not path.exists():  # paths of data stand in it: for its owner alone
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = connect(path)
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not {"alone", "sealed"} <= there or not db.execute("SELECT 1 FROM key").fetchone():
            db.executescript(_TABLES)
            key = secrets.token_bytes(32)
            db.execute("INSERT OR IGNORE INTO key VALUES (1, ?)", (key,))
    except (sqlite3.Error, OSError) as error:
        raise sqlite3.OperationalError(
            f"cannot open the high-water marks {path}: {error}"
        ) from error
    return db


def check_writable(path: Path) -> None:
    """An sqlite3.Error where nothing can be written to a database. It stays as it is.

    Locking it does not tell: on a read-only file `BEGIN IMMEDIATE` begins to read, and succeeds. So
    what is there is written once more, for which there must be room, and rolled back.
    """
    try:
        with closing(connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            [version] = db.execute("PRAGMA user_version").fetchone()
            db.execute(f"PRAGMA user_version = {version}")
            db.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise sqlite3.OperationalError(f"{path} cannot be written: {error}") from error


def connect(path: Path) -> sqlite3.Connection:
    """A database that is there, every commit synced to the disk, and its folder too."""
    _check_journal(path.resolve())
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
    )
    db.execute("PRAGMA synchronous = EXTRA")
    return db


def _check_journal(path: Path) -> None:
    """An sqlite3.Error where the journal beside a database names another file.

    After a crash SQLite undoes what a journal tells of, and then deletes the file that it names, which
    would be that of a change of several databases. There is none here, so who can write the folder
    would have any file deleted that this account may delete: the marks, too. Whoever is quick can plant one
    between this look and SQLite's own. Then the marks are lost, and without marks nothing is answered.
    """
    journal = path.with_name(f"{path.name}-journal")
    with (
        suppress(FileNotFoundError),
        journal.open("rb") as file,
    ):  # another process may end its own now
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(_JOURNAL)))
        if file.read() == _JOURNAL:
            raise sqlite3.DatabaseError(f"{journal} is no journal of privcal's")
