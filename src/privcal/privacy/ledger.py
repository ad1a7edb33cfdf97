"""The ledger: the durable record of what left a source and what it cost.

A question's life, in this order and no other:

1. `charge` looks its name up. An answer already stored under the same name and digest comes back
   free. The same name with another digest is refused (`id_conflict`). A charge without a stored
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
the name and before the charge, in its transaction (`privcal.privacy.charging`).

In a secure sum (`privcal.secure`) a question is charged the same way, by `charge_share`, under the
same names. The ledger keeps two totals for it: ε, and what everybody else together could learn if they
all colluded, which in a secure sum is `alone` times as much. Each has its cap, and every charge is held
to both. What a site shows of a sum is on disk before it leaves (`open_once`), once for each question:
that only one set is ever opened is what the promise of ε rests on, so an opening moves the mark as a
charge does.

What the owner decided is in the ledger too. Its name, and the unit of protection (row or person),
are fixed when it is made. The policy, the data it is for, campaigns approved and budget written
off are entries of the same chain as the charges.

The file is SQLite with a rollback journal and `synchronous=EXTRA` (FULL, and the directory is
synced too), so at rest a ledger is one file. Each operation opens it anew: a file removed,
replaced or restored meanwhile is noticed, and nothing is shared across a fork. The entries are a
chain of hashes (`privcal.privacy.chain`), so damage is noticed. (An owner bent on forging could
compute the hashes anew: they guard against accidents.)

One ledger covers one population. That the same people's data could be opened under a second
ledger elsewhere cannot be prevented here: not doing so is the owner's duty.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from privcal.checks import one_of
from privcal.errors import InputError, Refused
from privcal.privacy import accounts, approvals, chain, charging, reservations
from privcal.privacy.approvals import Proposal
from privcal.privacy.chain import Entry, Facts, Unit
from privcal.privacy.epsilon import Cost, from_nano, to_nano
from privcal.privacy.marks import Known, Marks, connect, default_marks, locked, reading
from privcal.privacy.policy import Policy
from privcal.privacy.reservations import Reservation
from privcal.question import Question, check_name

_PAGE = 500
"""Entries that are exported at a time: a ledger in use is never held up for long."""


class Ledger:
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
            The file of its high-water mark, by default the usual one. Where the marks know of a
            ledger at this very path that is gone, what it had spent is carried over.

        Examples
        --------
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> Ledger.create(folder / "ward.db", unit="row", marks=folder / "marks.db").exists
        True
        """
        ledger = cls(path)
        assert ledger.path is not None
        marks = default_marks() if marks is None else Path(marks).absolute()
        policy = policy or Policy()
        facts = _new_facts(name or ledger.path.name.partition(".")[0], unit, str(marks), policy)
        ledger.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # O_EXCL: two creators cannot both succeed.
            os.close(os.open(ledger.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            raise InputError(f"{path} exists; a ledger is never overwritten") from None
        try:
            with locked(marks) as marked, closing(connect(ledger.path)) as db:
                if unit == "row" and "person" in marked.units_at(ledger.path):
                    raise InputError(
                        f"a ledger at {path} protected persons and is gone: the one in its place "
                        "must protect persons too"
                    )
                # In the place of a lost one it is about the same people, and so is the same source.
                facts = replace(facts, id=marked.lost_at(ledger.path) or facts.id)
                with chain.transaction(db):
                    chain.initialise(db, facts, policy, marked.spent_at(ledger.path) or Cost())
                marked.raise_to(facts.id, facts.unit, ledger.path, chain.head(db))
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
        """A ledger for experiments: forgotten when the process ends, and so no protection at all.

        `policy`, `unit` and `name` are as in `create`.
        """
        ledger = cls.__new__(cls)
        ledger.path = None
        ledger._process = os.getpid()
        ledger._lock = threading.Lock()
        ledger._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        policy = policy or Policy()
        with chain.transaction(ledger._memory):
            chain.initialise(
                ledger._memory, _new_facts(name or "unnamed", unit, None, policy), policy, Cost()
            )
        return ledger

    @property
    def durable(self) -> bool:
        """Whether it outlives this process."""
        return self.path is not None

    @property
    def exists(self) -> bool:
        """Whether its file is there."""
        return self.path is None or self.path.is_file()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})" if self.durable else "Ledger(in memory: not durable)"

    def _repr_html_(self) -> str:
        from privcal.notebook import fragment

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

    # --- what a source does -------------------------------------------------------------

    def charge(self, question: Question, asker: str, policy: Policy) -> list[int] | None:
        """Charge a question of `asker` durably, or return the answer it has already, or raise Refused.

        None means: charged, and the caller must now draw the answer and `store` it. A stored
        answer is never given for another model than the question's.
        """
        stored = self._charge(question, asker, policy, question.digest(), None)
        return None if stored is None else chain.numbers_in(stored)

    def charge_share(
        self, question: Question, asker: str, policy: Policy, digest: str, nano_alone: int
    ) -> str | None:
        """Charge a question of `asker` that is answered in a secure sum, as `charge` does: both totals.

        `digest` is that of the sum's terms, and `nano_alone` what the answer costs against everybody
        else together: a whole number of times its ε. Returns the reply that was stored, or None
        where it is charged now, and the caller must make the reply and `store_share` it.
        """
        alone, rest = divmod(nano_alone, question.nano_epsilon)
        if rest or alone < 1:
            raise Refused("bad_request")
        return self._charge(question, asker, policy, digest, alone)

    def _charge(
        self, question: Question, asker: str, policy: Policy, digest: str, alone: int | None
    ) -> str | None:
        """Charge a question, in a secure sum where it is asked for `alone`; the stored answer or None."""
        cost = Cost.of(question.nano_epsilon, alone)
        with self._changing() as db:
            row = chain.find(db, question, asker)
            if row is not None:
                kind = chain.CHARGE if alone is None else chain.SHARE
                if (row["kind"], row["digest"]) != (kind, digest):
                    raise Refused("id_conflict")
                return chain.stored_answer(row)
            if chain.read_policy(db).budget != policy.budget:
                raise Refused("unavailable")  # the owner changed it since the policy was looked at
            refused = charging.disapproval(
                db, policy, [question], asker, cost.nano, alone, offered=False
            )
            if refused is None:
                now = chain.now().timestamp()
                held = reservations.live(db, now)
                own = held.pop((asker, question.campaign), None)
                charging.check_payable(db, policy, asker, cost, 1, list(held.values()), own)
                if alone is None:
                    chain.append_charge(db, question, asker)
                else:
                    chain.append_share(db, question, asker, digest, alone)
                if own is not None:  # whatever it did not foresee comes out of it too
                    left = (own.cost - cost).at_least(Cost())
                    requests = max(0, own.requests - 1)
                    used = replace(own, **vars(left), requests=requests, seen=now)
                    reservations.keep(db, used, now)
        if refused is not None:
            raise Refused(refused)
        return None

    def charge_persons(
        self, question: Question, asker: str, persons: set[bytes], policy: Policy
    ) -> set[bytes]:
        """Charge each of `persons` (by `person_hash`) for a charged question of `asker`.

        Returns those whose rows may count: whoever has less left of what `policy` allows than the
        question costs is not charged.
        """
        with self._changing() as db:  # with the mark: a copy from before this must not pass
            _find_unanswered(db, question, asker)
            chain.check_accounts(db)
            room = charging.person_room(db, policy)
            may = accounts.charge(db, persons, question.nano_epsilon, room.nano)
            chain.append(db, chain.PERSONS, accounts.digest(db))
            return may

    def store(self, question: Question, asker: str, answer: list[int]) -> None:
        """Commit the answer to a charged question of `asker`. Only after this may it leave."""
        self._store(question, asker, json.dumps(answer), chain.CHARGE)

    def store_share(self, question: Question, asker: str, text: str) -> None:
        """Commit the sealed reply `text` to a question of `asker` in a secure sum, before it leaves."""
        self._store(question, asker, text, chain.SHARE)

    def _store(self, question: Question, asker: str, text: str, kind: str) -> None:
        with self._open() as db, chain.transaction(db):
            row = _find_unanswered(db, question, asker)
            if row["kind"] != kind:
                raise Refused("id_conflict")
            chain.write_answer(db, row, text)

    def open_once(
        self, question: Question, asker: str, digest: str, numbers: Callable[[], list[int]]
    ) -> list[int]:
        """What this site shows of a secure sum about a question of `asker`: of one set, for ever.

        `digest` is that of the terms and the set. Where the same was opened before, what was shown
        then comes back; where another was, that is Refused (`opened`). Otherwise `numbers` computes
        it, and it is on disk, with the mark moved, before it is returned: a copy from before this is
        noticed like one from before a charge. An opening costs nothing and needs no share of this
        site's; as it takes the sealed shares of several others, who were charged, nobody can fill
        the disk with them.
        """
        shown = self._opened(question, asker, digest)
        if shown is None:
            # Nothing is held up while boxes are unsealed. Whoever else opens meanwhile is seen below.
            shown = self._opened(question, asker, digest, numbers())
        return shown

    def opening(self, question: Question, asker: str) -> str | None:
        """The digest with which a secure sum about a question of `asker` was opened; None: it was not."""
        with self._changing() as db:  # with its mark: a copy from before it must not say no
            row = chain.find_opening(db, question, asker)
            return None if row is None else str(row["digest"])

    @overload
    def _opened(self, question: Question, asker: str, digest: str) -> list[int] | None: ...
    @overload
    def _opened(
        self, question: Question, asker: str, digest: str, numbers: list[int]
    ) -> list[int]: ...
    def _opened(
        self, question: Question, asker: str, digest: str, numbers: list[int] | None = None
    ) -> list[int] | None:
        """What was shown of a sum; where that is nothing yet, it is `numbers` from now on."""
        with self._changing() as db:
            row = chain.find_opening(db, question, asker)
            if row is None:
                if numbers is not None:
                    chain.append_opening(db, question, asker, digest, numbers)
                return numbers
            if row["digest"] != digest:
                raise Refused("opened")
            return chain.numbers_in(chain.stored_answer(row))

    def reserve(
        self, questions: Sequence[Question], asker: str, policy: Policy, alone: int | None = None
    ) -> str | None:
        """Keep what these questions of `asker` cost, or say why they could not all be paid.

        In secure sums each costs `alone` times its ε against everybody else together.

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
                row = chain.find(db, question, asker)
                if row is None:
                    new.append(question)
                # Where a later question looks depends on the answers: only the first are known.
                elif question.round == 0 and not _same(row, question, alone):
                    return "id_conflict"
                # One that was lost costs nothing more. Its source leaves at that question: left
                # out from the start, it would change the questions that others have answered.
            if not new:
                return None
            need = sum(question.nano_epsilon for question in new)
            cost = Cost.of(need, alone)
            if waits := charging.disapproval(
                db, policy, questions, asker, need, alone, offered=True
            ):
                return waits
            now = chain.now().timestamp()
            held = reservations.live(db, now)
            own = held.pop((asker, campaign), None)
            old = reservations.too_many(list(held.values()), asker)
            others = [reservation for reservation in held.values() if reservation not in old]
            charged = (chain.spent(db) - chain.written_off(db)).nano
            mine = own or Reservation(asker, campaign, 0, 0, 0, charged, now)
            mine = replace(mine, **vars(Cost()), requests=0)  # it makes way for the new one
            try:
                charging.check_payable(db, policy, asker, cost, len(new), others, mine)
            except Refused as refused:
                return refused.code
            for gone in old:
                reservations.drop(db, gone.asker, gone.campaign)
            reservations.keep(db, replace(mine, **vars(cost), requests=len(new)), now)
        return None

    def release(self, campaign: str, asker: str) -> None:
        """Give back what a campaign of `asker` has reserved and not used."""
        with self._open() as db, chain.transaction(db):
            reservations.drop(db, asker, campaign)

    def reserved(self) -> list[Reservation]:
        """What running campaigns have reserved."""
        with self._open() as db:
            return list(reservations.live(db, chain.now().timestamp()).values())

    @property
    def facts(self) -> Facts:
        """What was fixed when it was made."""
        return self.terms()[0]

    def terms(self) -> tuple[Facts, Policy]:
        """The facts that are fixed, and the owner's rules as last set: one look for both."""
        with self._open() as db:
            return chain.read_facts(db), chain.read_policy(db)

    @property
    def id(self) -> str:
        """A random name, made with the ledger: tells its source from any other of the same name."""
        return self.facts.id

    @property
    def unit(self) -> Unit:
        """Whom privacy protects here: each row, or each person."""
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
        """Nano-ε spent over all questions; where each person has their own budget, nobody more."""
        return self.spent.nano

    @property
    def nano_alone(self) -> int:
        """Nano-ε spent over all questions against everybody else together, whoever colludes.

        As much as `nano_spent`, and for each answer in a secure sum what that costs more.
        """
        return self.spent.alone

    @property
    def spent(self) -> Cost:
        """Both totals: `nano_spent` and `nano_alone`."""
        with self._open() as db:
            return chain.spent(db)

    @property
    def nano_written_off(self) -> int:
        """Nano-ε that the owner wrote off or a lost ledger had spent: it counts for everybody."""
        with self._open() as db:
            return chain.written_off(db).nano

    @property
    def generation(self) -> str:
        """A hash that everybody may see, and that is another after whatever may have lost an opening.

        That is a restore (`reconcile`), and a new ledger in the place of a lost one. What was sealed
        for the site before must not be opened then: it may have been, for another set.
        """
        with self._open() as db:
            return chain.generation(db)

    def set_policy(self, policy: Policy) -> None:
        """Change the rules: the owner's decision, never an asker's. It is recorded."""
        with self._changing() as db:
            old = chain.read_policy(db)
            if policy.budget != old.budget and chain.spent(db) != Cost():
                raise InputError(
                    f"budget is {old.budget!r} since the first charge and cannot change: what was "
                    "spent cannot be told apart by persons any more"
                )
            _check_fits(policy, chain.read_facts(db).unit)
            if policy != old:
                chain.append(db, chain.POLICY, json.dumps(policy.to_dict(), sort_keys=True))

    def waiting(self) -> list[tuple[Proposal, str]]:
        """The campaigns that wait for the owner's approval, and since when, the oldest first."""
        with self._open() as db:
            return approvals.waiting(db)

    def approve(self, proposal: Proposal) -> None:
        """Let a waiting campaign ask what its `proposal` says and no more. It is recorded.

        Where it asks for something else by now, that is an InputError: the owner has not seen it.
        """
        with self._changing() as db:
            if proposal not in (waiting for waiting, _ in approvals.waiting(db)):
                raise InputError(
                    f"campaign {proposal.campaign!r} of {proposal.asker!r} does not wait for approval, or "
                    "asks for something else by now; look again with: privcal ledger waiting"
                )
            chain.append(db, chain.APPROVED, proposal.text())
            approvals.forget(db, proposal)

    def attach(self, note: dict[str, Any], known: Known | None = None) -> None:
        """Record in a `note` which data this ledger is for: the same people. `known` is for the marks."""
        with self._changing(known) as db:
            what = json.dumps(note, sort_keys=True)
            newest = chain.newest(db, chain.DATA)
            if newest is None or newest["what"] != what:
                chain.append(db, chain.DATA, what)

    def notes(self) -> list[dict[str, Any]]:
        """The data this ledger is for, as they were attached."""
        with self._open() as db:
            rows = db.execute("SELECT what FROM entry WHERE kind = ? ORDER BY seq", (chain.DATA,))
            return [json.loads(what) for (what,) in rows]

    def persons(self) -> list[tuple[int, set[bytes]]]:
        """Persons by the nano-ε each has spent, what was written off included."""
        with self._open() as db:
            chain.check_accounts(db)
            off = chain.written_off(db).nano
            return [(account.spent + off, account.persons) for account in accounts.read(db)]

    def entries(self) -> list[Entry]:
        """Everything that happened, oldest first, each link of the chain verified."""
        return [Entry.of(row) for row in self._chain()]

    def export(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """Every entry after number `since`, as plain facts, each link of the chain verified.

        Last comes the head: the number and hash of the newest entry. No answer and no secret is
        in it. The ledger may be in use: it is read a page at a time, up to what is then its end.
        """
        head: dict[str, Any] = {"seq": 0, "nano_spent": 0, "hash": chain.ROOT}
        if since:
            with self._open() as db:
                row = db.execute("SELECT * FROM entry WHERE seq = ?", (since,)).fetchone()
            if row is None:
                raise InputError(f"ledger {self.path} has no entry {since}")
            head = {name: chain.exported(row)[name] for name in head}
        for row in self._chain(since, head["hash"], head["nano_spent"]):
            entry = chain.exported(row)
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
                if not chained or not chain.intact(row):
                    raise InputError(f"ledger {self.path} is damaged at entry {seq}")
                previous = row["hash"]
                yield row
            more = len(rows) == _PAGE

    def nano_behind(self) -> int | None:
        """By how many nano-ε the file is behind its mark; None where no mark is known."""
        with self._open() as db, self._reading_marks(db) as marked:
            behind = self._behind(db, marked)
            return None if behind is None else behind.nano

    @property
    def in_step(self) -> bool:
        """Whether this file is what its mark says: no older, and no other copy."""
        try:
            with self._open() as db:
                if self.durable:
                    with self._reading_marks(db) as marked:
                        self._check_against(db, marked)
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

        It counts in both totals. What a mark knows of the second is written off; of what the owner
        tells, so many times as much as the ledger ever allowed or charged for an answer in a secure sum.
        """
        if self.nano_behind() is None:
            if write_off is None:
                raise InputError(
                    "no high-water mark is known for this ledger; say with write_off= (--write-off) "
                    "how much epsilon left that it does not show (0 if it is the newest copy)"
                )
            with self._open() as db:
                chain.set_marks(db, str(default_marks()))
        told = to_nano(write_off, "write-off") if write_off else 0
        with self._changing(check=False) as db, self._reading_marks(db) as marked:
            # Looked at again with the marks locked: another copy may be asked meanwhile.
            lost = self._behind(db, marked) or Cost()
            lost = lost.at_least(Cost.of(told, chain.highest_ratio_allowed(db)))
            lost = lost.at_least(Cost(0, lost.nano))
            chain.append_write_off(db, "written off", lost)
        return lost.nano

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
                if db.execute("PRAGMA application_id").fetchone()[0] != chain.APPLICATION_ID:
                    raise sqlite3.DatabaseError(f"{self.path} is not a privcal ledger")
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if version not in (chain.VERSION, chain.SECURE_VERSION):
                    raise sqlite3.DatabaseError(
                        f"{self.path} was made by another version of privcal ({version})"
                    )
                db.row_factory = sqlite3.Row
                chain.read_facts(db)
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
                with chain.transaction(db):
                    yield db
                return
            facts = chain.read_facts(db)
            marks = Path(facts.marks or default_marks())
            if check and not marks.exists():
                raise Refused("ledger_rolled_back")
            with locked(marks) as marked, chain.transaction(db):
                if check:
                    self._check_against(db, marked)
                yield db
                marked.raise_to(facts.id, facts.unit, self.path, chain.head(db))
                if known is not None:
                    marked.note(known)

    @contextmanager
    def _reading_marks(self, db: sqlite3.Connection) -> Iterator[Marks | None]:
        with reading(Path(chain.read_facts(db).marks or default_marks())) as marked:
            yield marked

    def _behind(self, db: sqlite3.Connection, marked: Marks | None) -> Cost | None:
        """What is known to have left and is not in this file; None where no mark is known.

        A copy that went its own way shares the chain up to some entry: all that the mark counts
        after that is missing here, however much this copy spent itself. So is what any other
        ledger spent in this one's place, unless it was carried over or written off.
        """
        id = chain.read_facts(db).id
        mark = None if marked is None else marked.head(id)
        if marked is None or mark is None or self.path is None:
            return None
        hashes = {row["seq"]: row["hash"] for row in db.execute("SELECT seq, hash FROM entry")}
        others = (marked.spent_at(self.path, besides=id) or Cost()) - chain.written_off(db)
        return mark.spent - marked.shared(id, hashes) + others.at_least(Cost())

    def _check_against(self, db: sqlite3.Connection, marked: Marks | None) -> None:
        """Refused unless the mark's entry is in this file, and nothing else was spent at its path."""
        assert self.path is not None
        mark = None if marked is None else marked.head(chain.read_facts(db).id)
        if marked is None or mark is None:
            raise Refused("ledger_rolled_back")
        row = db.execute("SELECT hash FROM entry WHERE seq = ?", (mark.seq,)).fetchone()
        others = marked.spent_at(self.path, besides=chain.read_facts(db).id) or Cost()
        known = row is not None and row["hash"] == mark.hash
        if not known or not others.within(chain.written_off(db)):
            raise Refused("ledger_rolled_back")


def _find_unanswered(db: sqlite3.Connection, question: Question, asker: str) -> sqlite3.Row:
    """The entry of a charged question that has no answer yet."""
    row = chain.find(db, question, asker)
    if row is None or row["answer"] is not None:
        raise Refused("lost")
    return row


def _same(row: sqlite3.Row, question: Question, alone: int | None) -> bool:
    """Whether an entry charged this very question, in a secure sum where it is asked for `alone`."""
    if alone is None:
        return bool((row["kind"], row["digest"]) == (chain.CHARGE, question.digest()))
    charged = (row["kind"], row["what"], row["epsilon"])
    return charged == (chain.SHARE, chain.share_text(question, alone), question.nano_epsilon)


def _new_facts(name: str, unit: Unit, marks: str | None, policy: Policy) -> Facts:
    one_of("the unit of protection", unit, chain.UNITS)
    check_name("a source's name", name)
    _check_fits(policy, unit)
    created = chain.stamp(chain.now())
    return Facts(secrets.token_hex(16), secrets.token_hex(32), name, unit, marks, created)


def _check_fits(policy: Policy, unit: Unit) -> None:
    """An InputError where such a policy makes no sense for such a ledger."""
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
