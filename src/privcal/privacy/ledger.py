"""The ledger: the durable record of what left a source and what it cost.

A request's life, in this order and no other:

1. `charge` looks its key up. An answer already stored under the same key and digest comes back
   free. The same key with another digest is refused (`id_conflict`). A charge without a stored
   answer is refused (`lost`): its noise may have been seen, so it is never drawn again.
2. Otherwise the cost is checked against the cap and committed to disk, in one transaction that
   excludes every other process, inside another on the high-water marks (`privcal.privacy.marks`).
3. Only then are rows looked at. Where the budget is each person's own, `charge_persons` commits
   what each of them is charged, and says who counts (`privcal.privacy.accounts`).
4. Only then is noise drawn, and `store` commits the answer before it leaves.

So a crash anywhere can lose budget but never spend it twice, and concurrent askers can neither
overspend nor get two noises for one charge.

A campaign may reserve what its questions cost, and may have to wait for its owner's approval
(`privcal.privacy.reservations`, `privcal.privacy.approvals`): both only ever refuse, and come after
the key and before the charge, in its transaction.

What the owner decided is in the ledger too. Its name, and the unit of protection (row or person),
are fixed when it is made. The policy, the data it is for, campaigns approved and budget written
off are entries of the same chain as the charges.

The file is SQLite with a rollback journal and `synchronous=EXTRA` (FULL, and the directory is
synced too), so at rest a ledger is one file. Each operation opens it anew: a file removed,
replaced or restored meanwhile is noticed, and nothing is shared across a fork. Each entry holds
a hash over itself, the running total and the hash before it, and a stored answer one over itself
and its entry, so damage is noticed (an owner bent on forging could compute the hashes anew: they
guard against accidents).

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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from privcal.errors import InputError, Refused
from privcal.privacy import accounts, approvals, reservations
from privcal.privacy.approvals import Proposal
from privcal.privacy.epsilon import from_nano, to_nano
from privcal.privacy.marks import Head, Known, Marks, connect, default_marks, locked, reading
from privcal.privacy.policy import Policy
from privcal.privacy.reservations import Reservation
from privcal.question import Question, check_name

APPLICATION_ID = 0x70637631  # "pcv1": tells a ledger from any other SQLite file
VERSION = 2

Unit = Literal["row", "person"]
UNITS = ("row", "person")

CHARGE, PERSONS = "charge", "persons"
"""The kinds of entries: a request's cost, and the state of the persons' accounts after one."""

POLICY, DATA, WRITTEN_OFF, APPROVED = "policy", "data", "written off", "approved"
"""And what only the owner does."""

_PAGE = 500
"""Entries that are exported at a time: a ledger in use is never held up for long."""

_SCHEMA = """
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
    """One line of the ledger."""

    kind: str
    key: Key | None
    """None for what the owner did."""
    what: str
    """The query, the policy, the data: as JSON; or in words."""
    epsilon: float
    time: str
    answered: bool


@dataclass(frozen=True)
class Facts:
    """What is fixed when a ledger is made; only where its marks are may change."""

    id: str
    secret: str
    name: str
    unit: Unit
    marks: str | None
    created: str


class Ledger:
    """The ledger in file `path`; `Ledger.create` makes one, `Ledger.in_memory` a fleeting one.

    Making the object touches nothing: every operation looks at the file as it then is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path | None = Path(path).resolve()
        self._memory: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        policy: Policy | None = None,
        *,
        unit: Unit,
        name: str | None = None,
        marks: str | Path | None = None,
    ) -> Ledger:
        """Make a new ledger, never over an existing file.

        Parameters
        ----------
        policy
            The owner's rules, kept in the ledger; `set_policy` changes them.
        unit
            Whom privacy protects: each "row", or each "person" with all their rows. For ever.
        name
            What the source is called in what leaves it; by default the file's name without its
            ending.
        marks
            Another place for its high-water mark than the usual one. Where the marks know of a
            ledger at this very path that is gone, what it had spent is carried over.
        """
        ledger = cls(path)
        assert ledger.path is not None
        place = default_marks() if marks is None else Path(marks).absolute()
        policy = policy or Policy()
        facts = _new_facts(name or ledger.path.name.partition(".")[0], unit, str(place), policy)
        ledger.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # O_EXCL: two creators cannot both succeed.
            os.close(os.open(ledger.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise InputError(f"{path} exists; a ledger is never overwritten") from None
        try:
            with locked(place) as marked, closing(connect(ledger.path)) as db:
                if unit == "row" and "person" in marked.units_at(ledger.path):
                    raise InputError(
                        f"a ledger at {path} protected persons and is gone: the one in its place "
                        "must protect persons too"
                    )
                # In the place of a lost one it is about the same people, and so is the same source.
                facts = replace(facts, id=marked.lost_at(ledger.path) or facts.id)
                with _transaction(db):
                    _initialise(db, facts, policy, marked.spent_at(ledger.path) or 0)
                marked.raise_to(facts.id, facts.unit, ledger.path, _head(db))
        except BaseException as error:
            ledger.path.unlink()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise InputError(f"cannot create the ledger {path}: {error}") from None
            raise
        return ledger

    @classmethod
    def in_memory(
        cls, policy: Policy | None = None, *, unit: Unit = "row", name: str | None = None
    ) -> Ledger:
        """For experiments: forgotten when the process ends, and so no protection at all."""
        ledger = cls.__new__(cls)
        ledger.path = None
        ledger._process = os.getpid()
        ledger._lock = threading.Lock()
        ledger._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        policy = policy or Policy()
        with _transaction(ledger._memory):
            _initialise(
                ledger._memory, _new_facts(name or "unnamed", unit, None, policy), policy, 0
            )
        return ledger

    @property
    def durable(self) -> bool:
        return self.path is not None

    @property
    def exists(self) -> bool:
        return self.path is None or self.path.is_file()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})" if self.durable else "Ledger(in memory: not durable)"

    # --- what a source does -------------------------------------------------------------

    def charge(self, question: Question, asker: str, policy: Policy) -> list[int] | None:
        """Charge a question durably, or return the answer it already has, or raise Refused.

        None means: charged, and the caller must now draw the answer and `store` it. A stored
        answer is never given for another model than the question's.
        """
        nano = question.nano_epsilon
        with self._changing() as db:
            row = _find(db, question, asker)
            if row is not None:
                if row["digest"] != question.digest():
                    raise Refused("id_conflict")
                return _stored(row)
            if _policy(db).budget != policy.budget:
                raise Refused("unavailable")  # the owner changed it since the policy was looked at
            refused = _disapproval(db, policy, [question], asker, nano, offered=False)
            if refused is None:
                now = _now().timestamp()
                held = reservations.live(db, now)
                own = held.pop((asker, question.campaign), None)
                _check_payable(db, policy, asker, nano, 1, list(held.values()), own)
                key = Key(asker, question.campaign, question.round, question.index)
                _append(db, CHARGE, question.query.canonical(), nano, key, question.digest())
                if own is not None:  # whatever it did not foresee comes out of it too
                    left, requests = max(0, own.nano - nano), max(0, own.requests - 1)
                    used = replace(own, nano=left, requests=requests, seen=now)
                    reservations.keep(db, used, now)
        if refused is not None:
            raise Refused(refused)
        return None

    def charge_persons(
        self, question: Question, asker: str, persons: set[bytes], cap: int
    ) -> set[bytes]:
        """Charge each person (by `person_hash`) for a charged question; who may count in it."""
        with self._changing() as db:  # with the mark: a copy from before this must not pass
            row = _find(db, question, asker)
            if row is None or row["answer"] is not None:
                raise Refused("lost")
            _check_accounts(db)
            may = accounts.charge(db, persons, question.nano_epsilon, cap - _written_off(db))
            _append(db, PERSONS, accounts.digest(db))
            return may

    def store(self, question: Question, asker: str, answer: list[int]) -> None:
        """Commit the answer to a charged question. Only after this may it leave."""
        with self._open() as db, _transaction(db):
            row = _find(db, question, asker)
            if row is None or row["answer"] is not None:
                raise Refused("lost")
            text = json.dumps(answer)
            db.execute(
                "UPDATE entry SET answer = ?, sealed = ? WHERE seq = ?",
                (text, _hash((row["hash"], text)), row["seq"]),
            )

    def reserve(self, questions: Sequence[Question], asker: str, policy: Policy) -> str | None:
        """Keep what these questions cost for their campaign, or say why they could not all be paid.

        Nothing is charged. What was answered before costs nothing again, and what the campaign
        had reserved makes way. Until `release`, or `RESERVED_FOR` after the campaign's last charge,
        no other campaign is charged what this one needs; to offer again makes it no longer.
        """
        places = {(question.round, question.index) for question in questions}
        names = {(question.campaign, question.model) for question in questions}
        if len(names) != 1 or len(places) < len(questions):
            return "bad_request"
        campaign = questions[0].campaign
        with self._changing() as db:
            new = []
            for question in questions:
                row = _find(db, question, asker)
                if row is None:
                    new.append(question)
                # Where a later question looks depends on the answers: only the first are known.
                elif question.round == 0 and row["digest"] != question.digest():
                    return "id_conflict"
                # One that was lost costs nothing more. Its source leaves at that question: left
                # out from the start, it would change the questions that others have answered.
            if not new:
                return None
            need = sum(question.nano_epsilon for question in new)
            if waits := _disapproval(db, policy, questions, asker, need, offered=True):
                return waits
            now = _now().timestamp()
            held = reservations.live(db, now)
            own = held.pop((asker, campaign), None)
            old = reservations.too_many(list(held.values()), asker)
            others = [one for one in held.values() if one not in old]
            charged = _head(db).spent - _written_off(db)
            mine = own or Reservation(asker, campaign, 0, 0, charged, now)
            mine = replace(mine, nano=0, requests=0)  # it makes way for the new one
            try:
                _check_payable(db, policy, asker, need, len(new), others, mine)
            except Refused as refused:
                return refused.code
            for gone in old:
                reservations.drop(db, gone.asker, gone.campaign)
            reservations.keep(db, replace(mine, nano=need, requests=len(new)), now)
        return None

    def release(self, campaign: str, asker: str) -> None:
        """Give back what a campaign has reserved and not used."""
        with self._open() as db, _transaction(db):
            reservations.drop(db, asker, campaign)

    def reserved(self) -> list[Reservation]:
        """What running campaigns have reserved."""
        with self._open() as db:
            return list(reservations.live(db, _now().timestamp()).values())

    @property
    def facts(self) -> Facts:
        return self.terms()[0]

    def terms(self) -> tuple[Facts, Policy]:
        """What is fixed, and the owner's rules as last set: one look for both."""
        with self._open() as db:
            return _facts(db), _policy(db)

    @property
    def id(self) -> str:
        """Random, made with the ledger: tells its source from any other of the same name."""
        return self.facts.id

    @property
    def unit(self) -> Unit:
        return self.facts.unit

    @property
    def secret(self) -> bytes:
        """The key of the hashes that choose which rows of a person count, and know persons."""
        return bytes.fromhex(self.facts.secret)

    @property
    def policy(self) -> Policy:
        """The owner's rules, as last set."""
        return self.terms()[1]

    # --- what its owner does ------------------------------------------------------------

    @property
    def nano_spent(self) -> int:
        """Over all requests; where each person has a budget of their own, nobody spent more."""
        with self._open() as db:
            return _head(db).spent

    @property
    def nano_written_off(self) -> int:
        """What the owner wrote off or a lost ledger had spent: it counts against everybody."""
        with self._open() as db:
            return _written_off(db)

    def set_policy(self, policy: Policy) -> None:
        """Change the rules: the owner's decision, never an asker's. It is recorded."""
        with self._changing() as db:
            old = _policy(db)
            if policy.budget != old.budget and _head(db).spent:
                raise InputError(
                    f"budget is {old.budget!r} since the first charge and cannot change: what was "
                    "spent cannot be told apart by persons any more"
                )
            _check_fits(policy, _facts(db).unit)
            if policy != old:
                _append(db, POLICY, json.dumps(policy.to_dict(), sort_keys=True))

    def waiting(self) -> list[tuple[Proposal, str]]:
        """The campaigns that wait for the owner's approval, and since when, the oldest first."""
        with self._open() as db:
            return approvals.waiting(db)

    def approve(self, proposal: Proposal) -> None:
        """Let a waiting campaign ask what it proposes and no more. It is recorded.

        Where it asks for something else by now, that is an InputError: the owner has not seen it.
        """
        with self._changing() as db:
            if proposal not in (waiting for waiting, _ in approvals.waiting(db)):
                raise InputError(
                    f"campaign {proposal.campaign!r} of {proposal.asker!r} does not wait for approval, or "
                    "asks for something else by now; look again with: privcal ledger waiting"
                )
            _append(db, APPROVED, proposal.text())
            approvals.forget(db, proposal)

    def attach(self, note: dict[str, Any], known: Known | None = None) -> None:
        """Record data that this ledger is for: the same people. `known` is for the marks."""
        with self._changing(known) as db:
            what = json.dumps(note, sort_keys=True)
            newest = _newest(db, DATA)
            if newest is None or newest["what"] != what:
                _append(db, DATA, what)

    def notes(self) -> list[dict[str, Any]]:
        """The data this ledger is for, as they were attached."""
        with self._open() as db:
            rows = db.execute("SELECT what FROM entry WHERE kind = ? ORDER BY seq", (DATA,))
            return [json.loads(what) for (what,) in rows]

    def persons(self) -> list[tuple[int, set[bytes]]]:
        """Persons by the nano-ε each has spent, what was written off included."""
        with self._open() as db:
            _check_accounts(db)
            off = _written_off(db)
            return [(account.spent + off, account.persons) for account in accounts.read(db)]

    def entries(self) -> list[Entry]:
        """Everything that happened, oldest first, each link of the chain verified."""
        return [
            Entry(
                row["kind"],
                None
                if row["asker"] is None
                else Key(row["asker"], row["campaign"], row["round"], row["place"]),
                row["what"],
                from_nano(row["epsilon"]),
                row["time"],
                row["answer"] is not None,
            )
            for row in self._chain()
        ]

    def export(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """Every entry after number `since`, as plain facts, each link of the chain verified.

        Last comes the head: the number and hash of the newest entry. No answer and no secret is
        in it. The ledger may be in use: it is read a page at a time, up to what is then its end.
        """
        head: dict[str, Any] = {"seq": 0, "nano_spent": 0, "hash": _ROOT}
        if since:
            with self._open() as db:
                row = db.execute("SELECT * FROM entry WHERE seq = ?", (since,)).fetchone()
            if row is None:
                raise InputError(f"ledger {self.path} has no entry {since}")
            head = {name: _exported(row)[name] for name in head}
        for row in self._chain(since, head["hash"], head["nano_spent"]):
            entry = _exported(row)
            head = {name: entry[name] for name in head}
            yield entry
        yield {"kind": "head", **head}

    def _chain(self, since: int = 0, previous: str = "", spent: int = 0) -> Iterator[sqlite3.Row]:
        """The entries after number `since`, oldest first, each link of the chain verified."""
        seq, more = since, True
        while more:
            with self._open() as db:
                rows = db.execute(
                    "SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", (seq, _PAGE)
                ).fetchall()
            for row in rows:
                seq, spent = seq + 1, spent + row["epsilon"]
                chained = (row["seq"], row["spent"], row["previous"]) == (seq, spent, previous)
                if not chained or not _whole(row):
                    raise InputError(f"ledger {self.path} is damaged at entry {seq}")
                previous = row["hash"]
                yield row
            more = len(rows) == _PAGE

    def nano_behind(self) -> int | None:
        """By how many nano-ε the file is behind its mark; None where no mark is known."""
        with self._open() as db, self._reading_marks(db) as marked:
            return self._behind(db, marked)

    @property
    def in_step(self) -> bool:
        """Whether this file is what its mark says: no older, and no other copy."""
        try:
            with self._open() as db:
                self._check_mark(db)
        except Refused as refused:
            if refused.code != "ledger_rolled_back":
                raise
            return False
        return True

    def reconcile(self, write_off: float | None = None) -> int:
        """After a restore: write off what the file does not know was spent; returns nano-ε.

        Where the mark is known, that is the difference to it. Where it is not (another
        machine, say), only the owner can know, so `write_off` must be given; 0 is allowed.
        From then on the marks of this machine and account are the ledger's.
        """
        if self.nano_behind() is None:
            if write_off is None:
                raise InputError(
                    "no high-water mark is known for this ledger; say with write_off= (--write-off) "
                    "how much epsilon left that it does not show (0 if it is the newest copy)"
                )
            with self._open() as db:
                _set_marks(db, str(default_marks()))
        said = to_nano(write_off, "write-off") if write_off else 0
        with self._changing(check=False) as db, self._reading_marks(db) as marked:
            # Looked at again with the marks locked: another copy may be asked meanwhile.
            nano = max(self._behind(db, marked) or 0, said)
            _append(db, WRITTEN_OFF, "written off", nano)
        return nano

    # --- the file and its mark ----------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A checked connection. Whatever is wrong with the file becomes a refusal."""
        if self._memory is not None:
            if os.getpid() != self._process:  # each copy would answer from the whole budget
                raise Refused("unavailable") from InputError(
                    "a ledger in memory belongs to the process that made it"
                )
            with self._lock:
                self._memory.row_factory = sqlite3.Row
                yield self._memory
            return
        assert self.path is not None
        if not self.path.is_file():
            raise Refused("ledger_missing")
        try:
            with closing(connect(self.path)) as db:
                if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                    raise sqlite3.DatabaseError(f"{self.path} is not a privcal ledger")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version != VERSION:
                    raise sqlite3.DatabaseError(
                        f"{self.path} was made by another version of privcal ({version})"
                    )
                db.row_factory = sqlite3.Row
                _facts(db)
                yield db
        except InputError:
            raise
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
            # The last three: an entry that does not parse, a row that is not there.
            raise Refused("unavailable") from error

    @contextmanager
    def _changing(
        self, known: Known | None = None, check: bool = True
    ) -> Iterator[sqlite3.Connection]:
        """One change of the ledger, and of its mark around it.

        The marks are locked first, so a mark that could not be written stops the change, and two
        copies of a ledger cannot both pass the check. The ledger is committed before the mark: a
        crash in between leaves a ledger that is ahead of its mark, which holds the mark's entry
        and so is not taken for a copy, with a charge that nobody got an answer for.
        """
        with self._open() as db:
            if self.path is None:
                with _transaction(db):
                    yield db
                return
            facts = _facts(db)
            place = Path(facts.marks or default_marks())
            if check and not place.exists():
                raise Refused("ledger_rolled_back")
            with locked(place) as marked, _transaction(db):
                if check:
                    self._check_against(db, marked)
                yield db
                marked.raise_to(facts.id, facts.unit, self.path, _head(db))
                if known is not None:
                    marked.note(known)

    @contextmanager
    def _reading_marks(self, db: sqlite3.Connection) -> Iterator[Marks | None]:
        with reading(Path(_facts(db).marks or default_marks())) as marked:
            yield marked

    def _behind(self, db: sqlite3.Connection, marked: Marks | None) -> int | None:
        """What is known to have left and is not in this file; None where no mark is known.

        A copy that went its own way shares the chain up to some entry: all that the mark counts
        after that is missing here, however much this copy spent itself. So is what any other
        ledger spent in this one's place, unless it was carried over or written off.
        """
        id = _facts(db).id
        mark = None if marked is None else marked.head(id)
        if marked is None or mark is None or self.path is None:
            return None
        hashes = {row["seq"]: row["hash"] for row in db.execute("SELECT seq, hash FROM entry")}
        others = (marked.spent_at(self.path, besides=id) or 0) - _written_off(db)
        return mark.spent - marked.shared(id, hashes) + max(0, others)

    def _check_mark(self, db: sqlite3.Connection) -> None:
        if self.path is not None:
            with self._reading_marks(db) as marked:
                self._check_against(db, marked)

    def _check_against(self, db: sqlite3.Connection, marked: Marks | None) -> None:
        """The entry that the mark names must be in this file, and nothing spent at its place."""
        assert self.path is not None
        mark = None if marked is None else marked.head(_facts(db).id)
        if marked is None or mark is None:
            raise Refused("ledger_rolled_back")
        row = db.execute("SELECT hash FROM entry WHERE seq = ?", (mark.seq,)).fetchone()
        others = marked.spent_at(self.path, besides=_facts(db).id) or 0
        if row is None or row["hash"] != mark.hash or others > _written_off(db):
            raise Refused("ledger_rolled_back")


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


def _new_facts(name: str, unit: Unit, place: str | None, policy: Policy) -> Facts:
    if unit not in UNITS:
        raise InputError(f"the unit of protection must be row or person, not {unit!r}")
    check_name("a source's name", name)
    _check_fits(policy, unit)
    return Facts(secrets.token_hex(16), secrets.token_hex(32), name, unit, place, _stamp(_now()))


def _check_fits(policy: Policy, unit: Unit) -> None:
    if policy.nano_minimum > policy.nano_per_request:
        raise InputError(
            f"the policy's minimum_epsilon {policy.minimum_epsilon:g} is more than one request may "
            f"cost ({from_nano(policy.nano_per_request):g}): nothing could be asked"
        )
    if unit == "row":
        if policy.budget == "person":
            raise InputError("a budget for each person needs person ids: the unit must be person")
        if policy.rows_per_person > 1:
            raise InputError(
                f"the policy lets {policy.rows_per_person} rows of one person count, but the unit "
                "of protection is the row: there are no person ids"
            )


def _initialise(db: sqlite3.Connection, facts: Facts, policy: Policy, lost: int) -> None:
    db.row_factory = sqlite3.Row
    tables = (_SCHEMA, accounts.SCHEMA, reservations.SCHEMA, approvals.SCHEMA)
    for statement in "".join(tables).split(";"):
        db.execute(statement)
    values = tuple(vars(facts).values())
    db.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, _hash(values)))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")
    _append(db, POLICY, json.dumps(policy.to_dict(), sort_keys=True))
    if lost:
        _append(db, WRITTEN_OFF, "carried over from a lost ledger", lost)


def _facts(db: sqlite3.Connection) -> Facts:
    *values, stamp = db.execute("SELECT * FROM ledger").fetchone()
    if stamp != _hash(tuple(values)):
        raise sqlite3.DatabaseError("the ledger is damaged")
    return Facts(*values)


def _set_marks(db: sqlite3.Connection, place: str) -> None:
    values = tuple({**vars(_facts(db)), "marks": place}.values())
    db.execute("UPDATE ledger SET marks = ?, hash = ?", (place, _hash(values)))


_ROOT = ""
_HASHED = (
    "seq", "kind", "asker", "campaign", "round", "place", "what", "digest", "epsilon", "spent",
    "time", "previous",
)  # fmt: skip


def _hash(fields: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _whole(row: sqlite3.Row) -> bool:
    """Whether an entry and its answer are as they were written."""
    answered = row["answer"] is not None or row["sealed"] is not None
    sealed = not answered or row["sealed"] == _hash((row["hash"], row["answer"]))
    return sealed and bool(row["hash"] == _hash(tuple(row[name] for name in _HASHED)))


def _checked(row: sqlite3.Row) -> sqlite3.Row:
    if not _whole(row):
        raise sqlite3.DatabaseError(f"entry {row['seq']} of the ledger is damaged")
    return row


def _head(db: sqlite3.Connection) -> Head:
    row = db.execute("SELECT * FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
    if row is None:
        return Head(0, _ROOT, 0)
    return Head(row["seq"], _checked(row)["hash"], row["spent"])


def _find(db: sqlite3.Connection, question: Question, asker: str) -> sqlite3.Row | None:
    """The entry that charged the question with this name, or None."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM entry WHERE asker = ? AND campaign = ? AND round = ? AND place = ?",
        (asker, question.campaign, question.round, question.index),
    ).fetchone()
    return None if row is None else _checked(row)


def _newest(db: sqlite3.Connection, kind: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind,)
    ).fetchone()
    return None if row is None else _checked(row)


def _policy(db: sqlite3.Connection) -> Policy:
    row = _newest(db, POLICY)
    if row is None:
        raise sqlite3.DatabaseError("the ledger has no policy")
    return Policy.of(json.loads(row["what"]), "of the ledger")


def _stored(row: sqlite3.Row) -> list[int]:
    if row["answer"] is None:
        raise Refused("lost")
    return [int(v) for v in json.loads(row["answer"])]


def _check_accounts(db: sqlite3.Connection) -> None:
    """The persons' accounts must be those that the chain tells of."""
    row = _newest(db, PERSONS)
    if accounts.digest(db) != ("" if row is None else row["what"]):
        raise sqlite3.DatabaseError("the accounts of persons are damaged")


def _written_off(db: sqlite3.Connection) -> int:
    total: int = db.execute(
        "SELECT COALESCE(SUM(epsilon), 0) FROM entry WHERE kind = ?", (WRITTEN_OFF,)
    ).fetchone()[0]
    return total


def _check_payable(
    db: sqlite3.Connection,
    policy: Policy,
    asker: str,
    nano: int,
    requests: int,
    others: list[Reservation],
    own: Reservation | None,
) -> None:
    """Refused unless so much more can be paid, beside what others have reserved.

    What the campaign has reserved itself is there for it; the caps hold all the same.
    """
    spent, off = _head(db).spent, _written_off(db)
    each = policy.budget == "person"
    paid = off if each else spent
    of_one = policy.nano_of(asker)
    by_asker = 0 if of_one is None else _spent_by(db, asker)
    if paid + nano > policy.nano_total or (of_one is not None and by_asker + nano > of_one):
        raise Refused("over_budget")
    if own is None or nano > own.nano:
        if each:  # by whoever was new when the oldest of them reserved
            running = [one.since for one in (*others, *([own] if own else []))]
            paid += max(0, spent - off - min(running, default=spent - off))
        held = sum(one.nano for one in others)
        held_by_asker = sum(one.nano for one in others if one.asker == asker)
        if paid + nano + held > policy.nano_total or (
            of_one is not None and by_asker + nano + held_by_asker > of_one
        ):
            raise Refused("reserved")
    rate = policy.requests_per_hour
    if rate is not None:
        beside = [] if own is not None and requests <= own.requests else others
        if _recent(db, rate) + requests + sum(one.requests for one in beside) > rate:
            raise Refused("too_often")


def _spent_by(db: sqlite3.Connection, asker: str, campaign: str | None = None) -> int:
    """What this asker was charged, in one campaign or all."""
    rows = db.execute("SELECT * FROM entry WHERE asker = ?", (asker,))
    return sum(_checked(row)["epsilon"] for row in rows if campaign in (None, row["campaign"]))


def _recent(db: sqlite3.Connection, most: int) -> int:
    """Charges within the last hour; no more than `most` are looked for."""
    ago = _stamp(_now() - timedelta(hours=1))
    rows = db.execute(
        "SELECT time FROM entry WHERE kind = ? ORDER BY seq DESC LIMIT ?", (CHARGE, most)
    )
    return sum(time > ago for (time,) in rows)


def _disapproval(
    db: sqlite3.Connection,
    policy: Policy,
    questions: Sequence[Question],
    asker: str,
    nano: int,
    offered: bool,
) -> str | None:
    """A code, and the campaign is noted as waiting, unless its owner approved these questions.

    `nano` is what they cost: some of them may be answered already.
    """
    if not policy.approve:
        return None
    campaign = questions[0].campaign
    wanted = Proposal(
        asker,
        campaign,
        questions[0].model,
        tuple(sorted({question.query.kind for question in questions})),
        len(questions),
        nano + _spent_by(db, asker, campaign),
        approvals.digest(asker, questions),
    )
    rows = db.execute("SELECT * FROM entry WHERE kind = ? ORDER BY seq DESC", (APPROVED,))
    if any(Proposal.of(_checked(row)["what"]).cover(wanted) for row in rows):
        return None
    approvals.note(db, wanted, _stamp(_now()), first=not offered)
    return "awaiting_approval"


def _exported(row: sqlite3.Row) -> dict[str, Any]:
    """An entry for an audit system: whatever its hash is over, and the hash."""
    asked = row["kind"] == CHARGE
    return {
        "seq": row["seq"],
        "time": row["time"],
        "kind": row["kind"],
        "asker": row["asker"],
        "campaign": row["campaign"],
        "round": row["round"],
        "index": row["place"],
        "query": row["what"] if asked else None,
        "what": None if asked else row["what"],
        "digest": row["digest"],
        "nano_epsilon": row["epsilon"],
        "nano_spent": row["spent"],
        "answered": row["answer"] is not None if asked else None,
        "previous": row["previous"],
        "hash": row["hash"],
    }


def _append(
    db: sqlite3.Connection,
    kind: str,
    what: str,
    nano: int = 0,
    key: Key | None = None,
    digest: str = "",
) -> None:
    head = _head(db)
    who = (None,) * 4 if key is None else (key.asker, key.campaign, key.round, key.index)
    spent = head.spent + nano
    fields = (head.seq + 1, kind, *who, what, digest, nano, spent, _stamp(_now()), head.hash)
    db.execute(
        f"INSERT INTO entry ({', '.join(_HASHED)}, hash) VALUES ({', '.join('?' * 13)})",
        (*fields, _hash(fields)),
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
