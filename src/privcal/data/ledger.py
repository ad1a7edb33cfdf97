"""The owner's desk: where a ledger is made, given its rules, read, exported and reconciled.

What a source does with it is `privcal.trusted.book`; nothing here is on the way of an answer.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from privcal.data.html import fragment
from privcal.trusted import accounts, approvals, chain, reservations
from privcal.trusted.approvals import Proposal
from privcal.trusted.book import Book
from privcal.trusted.chain import Chain, Unit
from privcal.trusted.epsilon import Cost, from_nano, to_nano
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.making import check_policy_fits, initialise, new_facts
from privcal.trusted.marks import (
    Known,
    Marks,
    check_writable,
    connect,
    locked,
    reading,
)
from privcal.trusted.policy import Policy
from privcal.trusted.reservations import Reservation

ROSTER = "roster"
"""The kind of entry that says by which roster the site of this ledger goes."""
_ROSTER = re.compile("roster ([0-9]{1,10}) of federation ([0-9a-f]{32}): ([0-9a-f ]{59})")

_PAGE = 500
"""Entries that are exported at a time: a ledger in use is never held up for long."""


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
        return self.kind in (chain.CHARGE, chain.SHARE)

    @property
    def query(self) -> dict[str, Any]:
        """The query of a question that was charged, by its parts."""
        facts: dict[str, Any] = json.loads(self.what)
        return facts["query"] if self.kind == chain.SHARE else facts

    @property
    def about(self) -> Key | None:
        """The key of the question that was charged, or that an opening is about; None for the owner's."""
        return Key(*json.loads(self.what)) if self.kind == chain.OPENING else self.key

    @classmethod
    def of(cls, row: sqlite3.Row) -> Entry:
        """The entry in a row of the table."""
        key = Key(row["asker"], row["campaign"], row["round"], row["place"])
        return cls(
            kind=row["kind"],
            key=None if row["asker"] is None else key,
            what=row["what"],
            epsilon=from_nano(row["epsilon"]),
            alone=from_nano(chain.cost(row).alone),
            time=row["time"],
            answered=row["answer"] is not None,
        )


def exported(row: sqlite3.Row) -> dict[str, Any]:
    """An entry for an audit system: whatever its hash is over, and the hash."""
    charge = row["kind"] == chain.CHARGE
    asked = row["kind"] in (chain.CHARGE, chain.SHARE, chain.OPENING)
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
        "nano_alone": chain.cost(row).alone,
        "nano_spent": row["spent"],
        "answered": row["answer"] is not None if asked else None,
        "previous": row["previous"],
        "hash": row["hash"],
    }


def intact(row: sqlite3.Row) -> bool:
    """Whether an entry and its answer are as they were written."""
    answered = row["answer"] is not None or row["sealed"] is not None
    sealed = not answered or row["sealed"] == chain.hash_of((row["hash"], row["answer"]))
    return sealed and chain.untouched(row)


class Ledger(Book):
    """The ledger in file `path`; `Ledger.create` makes one, `Ledger.in_memory` a fleeting one.

    Making the object touches nothing: every operation looks at the file as it then is, and refuses
    (`privcal.Refused`) where it is missing, damaged, or older than its high-water mark.

    Parameters
    ----------
    path
        The ledger's file.

    Examples
    --------
    >>> from privcal import Policy
    >>> ledger = Ledger.in_memory(Policy(epsilon=2.0))
    >>> ledger.nano_spent, ledger.policy.epsilon
    (0, 2.0)
    >>> [entry.kind for entry in ledger.entries()]
    ['policy']
    """

    @classmethod
    def of(cls, book: Book) -> Self:
        """The desk of a book that is open, such as a source's: the same file, or the same memory."""
        ledger = cls.__new__(cls)
        ledger.__dict__ = book.__dict__
        return ledger

    @classmethod
    def create(
        cls,
        path: str | Path,
        policy: Policy | None = None,
        *,
        unit: Unit,
        name: str | None = None,
        marks: str | Path | None = None,
    ) -> Self:
        """Make a new ledger, never over an existing file.

        Parameters
        ----------
        path
            The file to make.
        policy
            The owner's rules, kept in the ledger; `set_policy` changes them.
        unit
            Whom privacy protects: each "row", or each "person" with all their rows. For ever.
        name
            What the source is called in what leaves it; by default the file's name without its
            ending.
        marks
            The file of its high-water mark, by default the usual one. Whoever opens the ledger later must name
            another one in `PRIVCAL_MARKS`: what a ledger says of its marks is not believed. Where the marks
            know of a ledger at this very path that is gone, what it had spent is carried over.

        Examples
        --------
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> Ledger.create(folder / "ward.db", unit="row", marks=folder / "marks.db").exists
        True
        """
        ledger = cls(path)
        assert ledger.path is not None
        ledger._own_marks = None if marks is None else Path(marks).absolute()
        policy = policy or Policy()
        facts = new_facts(
            name or ledger.path.name.partition(".")[0], unit, str(ledger.marks), policy
        )
        ledger.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # O_EXCL: two creators cannot both succeed.
            os.close(os.open(ledger.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise InputError(f"{path} exists; a ledger is never overwritten") from None
        try:
            with locked(ledger.marks) as marked, closing(connect(ledger.path)) as db:
                if unit == "row" and "person" in (whom for _, whom in marked.at(ledger.path)):
                    raise InputError(
                        f"a ledger at {path} protected persons and is gone: the one in its place "
                        "must protect persons too"
                    )
                # In the place of a lost one it is about the same people, and so is the same source.
                facts = replace(facts, id=_lost_at(marked, ledger.path) or facts.id)
                with chain.transaction(db):
                    lost = marked.spent_at(ledger.path) or Cost()
                    chain.make_tables(db)
                    book = chain.Chain()
                    initialise(book, db, facts, policy, lost)
                    book.seal(marked.key)
                marked.raise_to(facts.id, facts.unit, ledger.path, book.head, book.fixed)
        except BaseException as error:
            ledger.path.unlink()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise InputError(f"cannot create the ledger {path}: {error}") from None
            raise
        return ledger

    def _repr_html_(self) -> str:
        where = self.path.name if self.path else "in memory: forgotten when the process ends"
        try:
            facts, policy = self.facts, self.policy
            spent, left = self.spent, policy.cap - self.spent
            entries, in_step = len(self.entries()), self.in_step
        except Refused as refusal:
            return fragment("Ledger", {"file": where, "state": str(refusal)})
        common = policy.budget == "population"
        known = {
            "of": facts.name,
            "file": where,
            "protects": f"each {facts.unit}",
            "ε in all": f"{policy.epsilon:g}" + ("" if common else " on each person"),
            "ε spent": from_nano(spent.nano) if common else None,
            "ε that remains": from_nano(left.nano) if common else None,
            "against everybody else together": f"{from_nano(spent.alone):g} spent, "
            f"{from_nano(left.alone):g} remains"
            if common and (policy.secure or spent.alone != spent.nano)
            else None,
            "entries": entries,
        }
        warning = "It is not what its high-water mark says: run privcal ledger reconcile."
        return fragment("Ledger", known, None if in_step else warning)

    @property
    def nano_alone(self) -> int:
        """Nano-ε spent over all questions against everybody else together, whoever colludes.

        As much as `nano_spent`, and for each answer in a secure sum what that costs more.
        """
        return self.spent.alone

    @property
    def nano_written_off(self) -> int:
        """Nano-ε that the owner wrote off or a lost ledger had spent: it counts for everybody."""
        with self._open() as book:
            return book.written_off.nano

    def set_policy(self, policy: Policy) -> None:
        """Change the rules: the owner's decision, never an asker's. It is recorded."""
        with self._changing() as book:
            old = book.policy
            if policy.budget != old.budget and book.spent != Cost():
                raise InputError(
                    f"budget is {old.budget!r} since the first charge and cannot change: what was "
                    "spent cannot be told apart by persons any more"
                )
            check_policy_fits(policy, book.facts.unit)
            if policy != old:
                book.append(chain.POLICY, json.dumps(policy.to_dict(), sort_keys=True))

    def waiting(self) -> list[tuple[Proposal, str]]:
        """The campaigns that wait for the owner's approval, and since when, the oldest first."""
        with self._open() as book:
            return approvals.waiting(book.db)

    def approve(self, proposal: Proposal) -> None:
        """Let a waiting campaign ask what its `proposal` says and no more. It is recorded.

        Where it asks for something else by now, that is an InputError: the owner has not seen it.
        """
        if not proposal.asked:
            raise InputError(
                f"an older privcal noted campaign {proposal.campaign!r} without its questions: let "
                f"{proposal.asker!r} ask once more, and approve what waits then"
            )
        with self._changing() as book:
            if proposal not in (waiting for waiting, _ in approvals.waiting(book.db)):
                raise InputError(
                    f"campaign {proposal.campaign!r} of {proposal.asker!r} does not wait for approval, or "
                    "asks for something else by now; look again with: privcal ledger waiting"
                )
            book.append(chain.APPROVED, proposal.text())
            approvals.forget(book.db, proposal)

    def reserved(self) -> list[Reservation]:
        """What running campaigns have reserved."""
        with self._open() as book:
            return list(reservations.live(book.db, chain.now().timestamp()).values())

    def attach(self, note: dict[str, Any], known: Known | None = None) -> None:
        """Record in a `note` which data this ledger is for: the same people. `known` is for the marks."""
        with self._changing(known) as book:
            what = json.dumps(note, sort_keys=True)
            if what not in [row["what"] for row in book.of_kind(chain.DATA)[-1:]]:
                book.append(chain.DATA, what)

    def note_roster(self, federation: str, number: int, digest: str) -> None:
        """Record by which roster the site of this ledger goes, so that an older one is noticed.

        `number` and `digest` are those of a roster of this `federation`. The entry is under the ledger's
        mark: it vanishes with a ledger that is refused.
        """
        with self._changing() as book:
            book.append(ROSTER, f"roster {number} of federation {federation}: {digest}")

    def noted_roster(self, federation: str) -> tuple[int, str] | None:
        """The number and digest of the newest roster of a federation that was recorded here."""
        with self._open() as book:
            found = (_ROSTER.fullmatch(row["what"]) for row in book.of_kind(ROSTER))
            noted = [(int(m[1]), m[3]) for m in found if m is not None and m[2] == federation]
        return max(noted, default=None)

    def persons(self) -> list[tuple[int, set[bytes]]]:
        """Persons by the nano-ε each has spent, what was written off included."""
        with self._open() as book:
            book.check_accounts()
            off = book.written_off.nano
            return [(account.spent + off, account.persons) for account in accounts.read(book.db)]

    def entries(self) -> list[Entry]:
        """Everything that happened, oldest first, each link of the chain verified."""
        return [Entry.of(row) for row in self._chain()]

    @property
    def height(self) -> int:
        """How many entries it has."""
        with self._open() as book:
            return book.head.seq

    def export(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """Every entry after number `since`, as plain facts, each link of the chain verified.

        Last comes the head: the number and hash of the newest entry. No answer and no secret is
        in it. The ledger may be in use: it is read a page at a time, up to what is then its end.
        """
        head: dict[str, Any] = {"seq": 0, "nano_spent": 0, "hash": chain.ROOT}
        if since:
            with self._file() as db:
                row = db.execute("SELECT * FROM entry WHERE seq = ?", (since,)).fetchone()
            if row is None:
                raise InputError(f"ledger {self.path} has no entry {since}")
            head = {name: exported(row)[name] for name in head}
        for row in self._chain(since, head["hash"], head["nano_spent"]):
            entry = exported(row)
            head = {name: entry[name] for name in head}
            yield entry
        yield {"kind": "head", **head}

    def _chain(self, since: int = 0, previous: str = "", spent: int = 0) -> Iterator[sqlite3.Row]:
        """The entries after number `since`, oldest first, each link of the chain verified."""
        seq, more = since, True
        while more:
            with self._file() as db:
                rows = db.execute(
                    "SELECT * FROM entry WHERE seq > ? ORDER BY seq LIMIT ?", (seq, _PAGE)
                ).fetchall()
            for row in rows:
                seq, spent = seq + 1, spent + row["epsilon"]
                chained = (row["seq"], row["spent"], row["previous"]) == (seq, spent, previous)
                if not chained or not intact(row):
                    raise InputError(f"ledger {self.path} is damaged at entry {seq}")
                previous = row["hash"]
                yield row
            more = len(rows) == _PAGE

    def nano_behind(self) -> int | None:
        """By how many nano-ε the file is behind its mark; None where no mark is known."""
        with self._open() as book, reading(self.marks) as marked:
            behind = self._behind(book, marked)
            return None if behind is None else behind.nano

    def _behind(self, book: Chain, marked: Marks | None) -> Cost | None:
        """What is known to have left and is not in this file; None where no mark is known.

        A copy that went its own way shares the chain up to some entry: all that the mark counts
        after that is missing here, however much this copy spent itself. So is what any other
        ledger spent in this one's place, unless it was carried over or written off.
        """
        id = book.facts.id
        mark = None if marked is None else marked.head(id)
        if marked is None or mark is None or self.path is None:
            return None
        others = self._others(id, marked) - book.written_off
        return mark.spent - marked.shared(id, book.hash_at) + others.at_least(Cost())

    @property
    def in_step(self) -> bool:
        """Whether this file is what its mark says: no older, no other copy, and written by no one else."""
        try:
            with self._open(check=True):
                return True
        except Refused as refused:
            if refused.code != "ledger_rolled_back":
                raise
            return False

    @property
    def trouble(self) -> str:
        """Why a source with this ledger refuses, for its owner; empty where the ledger is in step."""
        if self.in_step:
            return ""
        remedy = f"run privcal ledger reconcile {self.path}"
        behind = self.nano_behind()
        if behind is None:
            return (
                f"the marks in {self.marks} do not know this ledger, so its source refuses; if you "
                f"keep its marks elsewhere, set PRIVCAL_MARKS to that file, or else {remedy}"
            )
        state = "is not the copy that its high-water mark knows, or somebody changed it"
        if behind:
            state = (
                f"is behind its high-water mark by epsilon {from_nano(behind):g}: it was restored "
                "from an old copy"
            )
        return f"this ledger {state}; its source refuses until you {remedy}"

    def check_writable(self) -> None:
        """Refused where a charge could not be written now, in the ledger or its mark."""
        with self._open():
            if self.path is not None:
                check_writable(self.path)
                check_writable(self.marks)

    def reconcile(self, write_off: float | None = None) -> int:
        """After a restore: write off what the file does not know was spent; returns nano-ε.

        Where the mark is known, that is the difference to it. Where it is not (another machine, say),
        or the file was not written with these marks, only the owner can know whether it is theirs and
        what is missing, so `write_off` must be given; 0 is allowed. From then on the marks of this
        machine and account are the ledger's, and what stands in it holds.

        It counts in both totals. What a mark knows of the second is written off; of what the owner
        tells, so many times as much as the ledger ever allowed or charged for an answer in a secure sum.
        """
        known = self.nano_behind() is not None
        if not known and write_off is None:
            raise InputError(
                "no high-water mark is known for this ledger; give write_off= (--write-off), the "
                "epsilon that left and that it does not show (0 if it is the newest copy)"
            )
        told = to_nano(write_off, "write-off") if write_off else 0
        with (
            self._changing(check=False) as book,
            reading(self.marks) as marked,
        ):
            assert marked is not None
            if known and write_off is None and not self._ours(book, marked):
                raise InputError(
                    f"{self.path} was not written with these marks: it was changed, or used on another "
                    "machine; put an unchanged copy in its place, or look at it with privcal ledger show "
                    "and, if all of it is right, give write_off= (--write-off), the epsilon that left and "
                    "that it does not show"
                )
            # Looked at again with the marks locked: another copy may be asked meanwhile.
            lost = self._behind(book, marked) or Cost()
            lost = lost.at_least(Cost.of(told, _highest_ratio(book)))
            lost = lost.at_least(Cost(0, lost.nano))
            book.append_write_off("written off", lost)
        return lost.nano


def _highest_ratio(book: Chain) -> int:
    """The most times its ε that a share cost against everybody else, or that any policy would have let be."""
    policies = (json.loads(row["what"]) for row in book.of_kind(chain.POLICY))
    rules = (Policy.of(policy, "of the ledger").secure for policy in policies)
    return max(book.highest_ratio, *(rule.alone for rule in rules if rule is not None), 1)


def _lost_at(marked: Marks, path: Path) -> str | None:
    """The ledger that was last at this path, if there is no trace of it at any of its places."""
    id = next((id for id, _ in reversed(marked.at(path))), None)
    if id is None or any(place.exists() for place in marked.places(id) if place != path):
        return None
    return id
