"""High-water marks: a second file that remembers how far each ledger had got, and for what data.

A ledger restored from an old copy does not hold the entry that its mark names, and so is refused
until its owner reconciles it; so is one that took the place of another. The marks live away from
the ledgers (`marks.db` in the user's state folder, or the file that `PRIVCAL_MARKS` or the ledger's
maker named), so that a backup of the one does not bring back the other.

The marks are locked before a ledger is, and until both are on disk. So two copies of a ledger that
are asked at the same moment wait for one another, and the second finds that it is a copy.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from privcal.privacy.epsilon import Cost

BUSY_SECONDS = 60.0

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
"""
# In `alone` stands what was spent up to an entry against everybody else together, where that is
# more than `spent`. A table of its own, so that an older privcal can go on with marks that a newer
# one has used: what it writes is about ledgers without secure sums, where the two are the same.

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

    def shared(self, id: str, hashes: Mapping[int, str]) -> Cost:
        """What was spent up to the newest entry that this ledger once had and this copy still has."""
        rows = self._db.execute(
            f"SELECT seq, hash, spent, {_ALONE} FROM history LEFT JOIN alone USING (id, seq, hash)"
            " WHERE id = ? ORDER BY seq DESC",
            (id,),
        )
        return next((Cost(*spent) for seq, hash, *spent in rows if hashes.get(seq) == hash), Cost())

    def spent_at(self, path: Path, besides: str = "") -> Cost | None:
        """The most that any (other) ledger had spent that was ever at this path; None if none was."""
        spent: tuple[int, int] | tuple[None, None] = self._db.execute(
            f"SELECT MAX(spent), MAX({_ALONE}) FROM head JOIN place USING (id)"
            " LEFT JOIN alone USING (id, seq, hash) WHERE path = ? AND id != ?",
            (str(path), besides),
        ).fetchone()
        return None if spent[0] is None else Cost(*spent)

    def lost_at(self, path: Path) -> str | None:
        """The ledger that was last at this path, if there is no trace of it at any of its places."""
        rows = self._db.execute("SELECT id FROM place WHERE path = ? ORDER BY rowid", (str(path),))
        ids: list[str] = [id for (id,) in rows]
        if not ids or any(place.exists() for place in self.places(ids[-1]) if place != path):
            return None
        return ids[-1]

    def units_at(self, path: Path) -> set[str]:
        """Whom the ledgers protected that were ever at this path: rows, persons."""
        rows = self._db.execute(
            "SELECT unit FROM head JOIN place USING (id) WHERE path = ?", (str(path),)
        )
        return {unit for (unit,) in rows}

    def raise_to(self, id: str, unit: str, path: Path, head: Head) -> None:
        """Only what changes is written: looking something up costs no disk."""
        if self.head(id) != head:
            row = (id, unit, head.seq, head.hash, head.spent.nano)
            self._db.execute("INSERT OR REPLACE INTO head VALUES (?, ?, ?, ?, ?)", row)
            entry = (id, head.seq, head.hash, head.spent.nano)
            self._db.execute("INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?)", entry)
            if head.spent.alone != head.spent.nano:
                entry = (id, head.seq, head.hash, head.spent.alone)
                self._db.execute("INSERT OR REPLACE INTO alone VALUES (?, ?, ?, ?)", entry)
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
    if not path.is_file():
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
        if db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'alone'").fetchone()[0] == 0:
            db.executescript(_TABLES)
    except (sqlite3.Error, OSError) as error:
        raise sqlite3.OperationalError(
            f"cannot open the high-water marks {path}: {error}"
        ) from error
    return db


def connect(path: Path) -> sqlite3.Connection:
    """A database that is there, every commit synced to the disk, and its folder too."""
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
    )
    db.execute("PRAGMA synchronous = EXTRA")
    return db
