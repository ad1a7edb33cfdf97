"""The ledger: the durable record of what left a source and what it cost.

A question's life, in this order and no other:

1. `charge` looks its name up. An answer already stored under the same name and digest comes back
   free. The same name with another digest is refused (`id_conflict`). A charge without a stored
   answer is refused (`lost`): its noise may have been seen, so it is never drawn again.
2. Otherwise the cost is checked against the cap and committed to disk, in one transaction that
   excludes every other process, inside another on the high-water marks (`privcal.trusted.marks`).
3. Only then are rows looked at. Where the budget is each person's own, `charge_persons` commits
   what each of them is charged, and says who counts (`privcal.trusted.accounts`).
4. Only then is noise drawn, and `store` commits the answer before it leaves.

So a crash anywhere can lose budget but never spend it twice, and concurrent askers can neither
overspend nor get two noises for one charge.

A campaign may reserve what its questions cost, and may have to wait for its owner's approval
(`privcal.trusted.reservations`, `privcal.trusted.approvals`): both only ever refuse, and come after
the name and before the charge, in its transaction (`privcal.trusted.charging`).

In a secure sum (`privcal.secure`) a question is charged the same way, by `charge_share`, under the
same names. The ledger keeps two totals for it: ε, and what everybody else together could learn if they
all colluded, which in a secure sum is `alone` times as much. Each has its cap, and every charge is held
to both. What a site shows of a sum is on disk before it leaves (`open_once`), once for each question:
that only one set is ever opened is what the promise of ε rests on, so an opening moves the mark as a
charge does.

What the owner decided is in the ledger too (`privcal.data.ledger` is how). Its name, and the unit of protection (row or person),
are fixed when it is made. The policy, the data it is for, campaigns approved and budget written
off are entries of the same chain as the charges.

The file is SQLite with a rollback journal and `synchronous=EXTRA` (FULL, and the directory is
synced too), so at rest a ledger is one file. Each operation opens it anew: a file removed,
replaced or restored meanwhile is noticed, and nothing is shared across a fork.

Who can write a ledger and not its marks
----------------------------------------
Somebody who reads and writes the ledger and its folder at any time, knows old copies, and can neither
read nor write the marks, gets no answer that they would not have got otherwise.

Proof. A ledger decides by what a `Chain` has read, and only after `_check_against`: that the facts and
the head carry the code which is made with the key of the marks, and that the mark's entry is in the
chain. The code is made in one place, at the end of `_changing`, over a ledger that passed the same check
before (or that its owner made or reconciled). Nobody else can make it. As a hash stands for one
chain only, facts and entries are therefore together just as privcal once left them. Of the states that
it left, those before the mark do not hold the mark's entry; nor do those of another branch, which a
crash or a restore cut off, as the branches parted before it. So it is the state at the mark, or one that
was committed on top of it when a crash kept the mark from following. What that one holds more was
asked for by whoever asks through privcal, and never had an effect: an answer is drawn only after the mark
has moved. Being taken for made it costs budget, or a change of the owner's that they saw fail; it frees
none. So no answer is drawn that the ledger as it truly is would not have allowed. ∎

Which marks are asked is not the ledger's to say, and no other ledger takes a place where the marks have
known one. What data are read by is compared with the checked
chain when it is charged (`rely_on`). A ledger from before there were codes is taken where it is exactly
what its mark says, until its first change. Reservations and what waits for approval are outside of
all this: the one only refuses, the other is shown to the owner, whose approval holds for no more than was shown. So are
stored answers, which
leave again as they are: their hash guards against accidents.

One ledger covers one population. That the same people's data could be opened under a second
ledger elsewhere cannot be prevented here: not doing so is the owner's duty.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from privcal.trusted import accounts, chain, charging, reservations
from privcal.trusted.chain import Chain, Facts, Unit
from privcal.trusted.epsilon import Cost
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.marks import (
    Known,
    Marks,
    connect,
    default_marks,
    locked,
    reading,
)
from privcal.trusted.policy import Policy
from privcal.trusted.question import Question
from privcal.trusted.reservations import Reservation

if TYPE_CHECKING:
    from privcal.trusted.making import Memory


class Book:
    """The book in file `path`, as a source uses it: charge, store, open once, reserve.

    `privcal.Ledger` (`data/ledger.py`) is the same file at its owner's desk, where it is made, read and ruled.
    Making the object touches nothing: every operation looks at the file as it then is, and refuses
    (`privcal.Refused`) where it is missing, damaged, or older than its high-water mark.

    Parameters
    ----------
    path
        The ledger's file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path | None = Path(os.path.realpath(path))
        self._named = Path(os.path.abspath(path))
        self._memory: Memory | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._book = Chain()
        self._noted: str | None = None
        self._own_marks: Path | None = None

    @property
    def marks(self) -> Path:
        """The file of its marks: the usual one, or where it was made in this process, the one named then.

        What a ledger says of its marks is not believed.
        """
        return self._own_marks or default_marks()

    @classmethod
    def in_memory(
        cls, policy: Policy | None = None, *, unit: Unit = "row", name: str | None = None
    ) -> Self:
        """A ledger for experiments: forgotten when the process ends, and so no protection at all.

        `policy`, `unit` and `name` are as in `Ledger.create`.
        """
        from privcal.trusted.making import Memory, new_facts

        ledger, policy = cls(""), policy or Policy()
        ledger.path, ledger._memory = None, Memory()
        ledger._book = ledger._memory
        ledger._memory.fill(new_facts(name or "unnamed", unit, None, policy), policy)
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
        name = type(self).__name__
        return f"{name}({str(self.path)!r})" if self.durable else f"{name}(in memory: not durable)"

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
        with self._changing() as book:
            self._check_note(book)
            row = book.find(question, asker)
            if row is not None:
                kind = chain.CHARGE if alone is None else chain.SHARE
                if (row["kind"], row["digest"]) != (kind, digest):
                    raise Refused("id_conflict")
                return book.stored_answer(row)
            now_allowed = _still(policy, book)
            if now_allowed != policy:
                now_allowed.check(question, asker, secure=alone is not None)
            policy = now_allowed
            refused = charging.disapproval(
                book, policy, [question], asker, cost.nano, alone, offered=None
            )
            now = chain.now().timestamp()
            held = reservations.live(book.db, now)
            own = held.pop((asker, question.campaign), None)
            bill = charging.Bill(book, policy, asker, cost, 1, list(held.values()), own)
            refused = refused or bill.refusal()
            if refused is None:
                if alone is None:
                    book.append_charge(question, asker)
                else:
                    book.append_share(question, asker, digest, alone)
                if own is not None:  # whatever it did not foresee comes out of it too
                    left = (own.cost - cost).at_least(Cost())
                    requests = max(0, own.requests - 1)
                    used = replace(own, **vars(left), requests=requests, seen=now)
                    reservations.keep(book.db, used, now)
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
        with self._changing() as book:  # with the mark: a copy from before this must not pass
            _find_unanswered(book, question, asker)
            book.check_accounts()
            room = charging.person_room(book, _still(policy, book))
            may = accounts.charge(book.db, persons, question.nano_epsilon, room.nano)
            book.append(chain.PERSONS, accounts.digest(book.db))
            return may

    def store(self, question: Question, asker: str, answer: list[int]) -> None:
        """Commit the answer to a charged question of `asker`. Only after this may it leave."""
        self._store(question, asker, json.dumps(answer), chain.CHARGE)

    def store_share(self, question: Question, asker: str, text: str) -> None:
        """Commit the sealed reply `text` to a question of `asker` in a secure sum, before it leaves."""
        self._store(question, asker, text, chain.SHARE)

    def _store(self, question: Question, asker: str, text: str, kind: str) -> None:
        with self._open() as book, chain.transaction(book.db):
            row = _find_unanswered(book, question, asker)
            if row["kind"] != kind:
                raise Refused("id_conflict")
            book.write_answer(row, text)

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
        # Nothing is held up while boxes are unsealed. Whoever else opens meanwhile is seen the second time.
        return shown or self._opened(question, asker, digest, numbers()) or []

    def opening(self, question: Question, asker: str) -> str | None:
        """The digest with which a secure sum about a question of `asker` was opened; None: it was not."""
        with self._changing() as book:  # with its mark: a copy from before it must not say no
            row = book.find_opening(question, asker)
            return None if row is None else str(row["digest"])

    def _opened(
        self, question: Question, asker: str, digest: str, numbers: list[int] | None = None
    ) -> list[int] | None:
        """What was shown of a sum; where that is nothing yet, it is `numbers` from now on."""
        with self._changing() as book:
            row = book.find_opening(question, asker)
            if row is None:
                if numbers is not None:
                    book.append_opening(question, asker, digest, numbers)
                return numbers
            if row["digest"] != digest:
                raise Refused("opened")
            return chain.numbers_in(book.stored_answer(row))

    def reserve(
        self,
        questions: Sequence[Question],
        asker: str,
        policy: Policy,
        alone: int | None = None,
        offered: Sequence[Question] | None = None,
        lasts: float = 0.0,
    ) -> str | None:
        """Keep what these questions of `asker` cost, or say why they could not all be paid.

        In secure sums each costs `alone` times its ε against everybody else together. `offered` are the
        same questions as they came, perhaps without the model's name: their digest is what people compare.

        Nothing is charged. What was answered before costs nothing again, and what the campaign
        had reserved makes way. Until `release`, or `lasts` seconds (two and a half minutes at least, a
        week at most) after the campaign's last charge, no other campaign is charged what this one
        needs; to offer again makes it no longer.
        """
        places = {(question.round, question.index) for question in questions}
        names = {(question.campaign, question.model) for question in questions}
        if len(names) != 1 or len(places) < len(questions):
            return "bad_request"
        campaign = questions[0].campaign
        with self._changing() as book:
            new = []
            for question in questions:
                row = book.find(question, asker)
                if row is None:
                    new.append(question)
                # Where a later question looks depends on the answers: only the first are known.
                elif question.round == 0 and not _same(row, question, alone):
                    return "id_conflict"
                # One that was lost costs nothing more. Its source leaves at that question: left
                # out from the start, it would change the questions that others have answered.
            if not new:
                return None
            policy = _still(policy, book)
            need = sum(question.nano_epsilon for question in new)
            cost = Cost.of(need, alone)
            offered = offered or questions
            if waits := charging.disapproval(book, policy, questions, asker, need, alone, offered):
                return waits
            now = chain.now().timestamp()
            held = reservations.live(book.db, now)
            own = held.pop((asker, campaign), None)
            old = reservations.too_many(list(held.values()), asker)
            others = [reservation for reservation in held.values() if reservation not in old]
            charged = (book.spent - book.written_off).nano
            lasts = min(max(lasts, reservations.RESERVED_FOR), reservations.LONGEST)
            mine = own or Reservation(asker, campaign, 0, 0, 0, charged, now, lasts)
            mine = replace(mine, **vars(Cost()), requests=0)  # it makes way for the new one
            bill = charging.Bill(book, policy, asker, cost, len(new), others, mine)
            if refused := bill.refusal():
                return refused
            for gone in old:
                reservations.drop(book.db, gone.asker, gone.campaign)
            reservations.keep(book.db, replace(mine, **vars(cost), requests=len(new)), now)
        return None

    def has_answer(self, question: Question, asker: str) -> bool:
        """Whether an answer is stored under the name of this question of `asker`."""
        with self._open() as book:
            row = book.find(question, asker)
            return row is not None and book.answer(row) is not None

    def release(self, campaign: str, asker: str) -> None:
        """Give back what a campaign of `asker` has reserved and not used."""
        with self._open() as book, chain.transaction(book.db):
            reservations.drop(book.db, asker, campaign)

    @property
    def facts(self) -> Facts:
        """What was fixed when it was made."""
        if self._memory is not None and self._memory.known:
            return self._memory.facts
        with self._file() as db:
            return chain.read_facts(db)

    def terms(self) -> tuple[Facts, Policy]:
        """The facts that are fixed, and the owner's rules as last set, for a source to answer by.

        One look for both; Refused where the ledger is not what its mark says.
        """
        if self._memory is not None and self._memory.known:
            return self._memory.facts, self._memory.policy
        with self._open(check=True) as book:
            return book.facts, book.policy

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
        """The owner's rules, as last set; for show, as are all figures here."""
        with self._open() as book:
            return book.policy

    @property
    def nano_spent(self) -> int:
        """Nano-ε spent over all questions; where each person has their own budget, nobody more."""
        return self.spent.nano

    @property
    def spent(self) -> Cost:
        """Both totals: `nano_spent` and `nano_alone`."""
        with self._open() as book:
            return book.spent

    @property
    def generation(self) -> str:
        """A hash that everybody may see, and that is another after whatever may have lost an opening.

        That is a restore (`reconcile`), and a new ledger in the place of a lost one. What was sealed
        for the site before must not be opened then: it may have been, for another set. Refused where
        the ledger is not what its mark says.
        """
        with self._open(check=True) as book:
            return book.generation

    def notes(self) -> list[dict[str, Any]]:
        """The data this ledger is for, as they were attached."""
        with self._open() as book:
            return [json.loads(row["what"]) for row in book.of_kind(chain.DATA)]

    def rely_on(self, note: dict[str, Any]) -> None:
        """Charge nothing unless it has this `note` of the data, by which they are read."""
        self._noted = json.dumps(note, sort_keys=True)

    # --- the file and its mark ----------------------------------------------------------

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """The file, if it is a ledger. Whatever is wrong with it becomes a refusal."""
        if self._memory is not None:
            if os.getpid() != self._process:  # each copy would answer from the whole budget
                raise Refused("unavailable") from InputError(
                    "a ledger in memory belongs to the process that made it"
                )
            with self._lock, self._memory.opened() as db:
                yield db
            return
        assert self.path is not None
        if os.getpid() != self._process:  # another thread may have held the lock at the fork
            self._process, self._lock, self._book = os.getpid(), threading.RLock(), Chain()
        if not self.path.is_file():
            raise Refused("ledger_missing")
        try:
            with self._lock, closing(connect(self.path)) as db:
                chain.check_file(db)
                db.row_factory = sqlite3.Row
                yield db
        except InputError:
            raise
        except (sqlite3.Error, OSError, ValueError, TypeError, LookupError) as error:
            # The last three: an entry that does not parse, a row or column that is not there.
            raise Refused("unavailable") from error

    @contextmanager
    def _open(self, check: bool = False) -> Iterator[Chain]:
        """The ledger as it is; with `check`, Refused unless that is what its mark says.

        The marks stand still meanwhile: a charge just then may leave the ledger ahead of what they say,
        and never behind.
        """
        with self._file() as db:
            if check and self.durable:
                with reading(self.marks) as marked:
                    if marked is None:
                        raise Refused("ledger_rolled_back")
                    with marked.still():
                        self._read(db)
                        self._check_against(self._book, marked)
            else:
                self._read(db)
            yield self._book

    def _read(self, db: sqlite3.Connection) -> None:
        with chain.transaction(db, "DEFERRED"):  # so that all of it is of one moment
            self._book.read(db)

    @contextmanager
    def _changing(self, known: Known | None = None, check: bool = True) -> Iterator[Chain]:
        """One change of the ledger, and of its mark around it.

        The marks are locked first, so a mark that could not be written stops the change, and two
        copies of a ledger cannot both pass the check. The ledger is committed before the mark: a
        crash in between leaves a ledger that is ahead of its mark, which holds the mark's entry
        and carries its code, with a charge that nobody got an answer for. With `anew` its marks are
        from now on the usual ones.
        """
        with self._file() as db:
            if self.path is None:
                with chain.transaction(db):
                    self._book.read(db)
                    yield self._book
                return
            if check and not os.path.exists(self.marks):
                raise Refused("ledger_rolled_back")
            with locked(self.marks) as marked, chain.transaction(db):
                book = self._book
                book.read(db)
                if check:
                    self._check_against(book, marked)
                yield book
                facts = book.facts
                if not check:  # whatever it says of itself, these are its marks and its places
                    book.write_facts(replace(facts, marks=str(self.marks)))
                    marked.note_place(facts.id, self._named)
                book.seal(marked.key)
                marked.raise_to(facts.id, facts.unit, self.path, book.head, book.fixed)
                if known is not None:
                    marked.note(known)

    @property
    def _places(self) -> set[Path]:
        """Where it is, as its path was named, and as each link on the way there makes of that.

        So a ledger that was replaced by a link to another one is noticed under the path that was its
        own, through whatever links its owner names it.
        """
        ways = [self._named]
        for _ in range(40):  # as many as the system follows
            steps = (*reversed(ways[-1].parents), ways[-1])
            if (link := next((p for p in steps if p.is_symlink()), None)) is None:
                break
            target = link.parent / os.readlink(link) / ways[-1].relative_to(link)
            ways.append(Path(os.path.abspath(target)))
        return {*ways, self.path or self._named}

    def _others(self, id: str, marked: Marks) -> Cost:
        """The most that any other ledger had spent that was ever in this one's place."""
        spent = (marked.spent_at(path, besides=id) or Cost() for path in self._places)
        return reduce(Cost.at_least, spent)

    def _ours(self, book: Chain, marked: Marks) -> bool:
        """Whether privcal wrote this ledger with these marks, be it the newest copy or an old one."""
        facts = book.facts
        if book.sealed_by(marked.key):
            return True
        same = marked.sealed(facts.id) in (None, book.fixed)
        return same and marked.had(facts.id, facts.unit, book.head)

    def _check_against(self, book: Chain, marked: Marks) -> None:
        """Refused unless this is the ledger that the mark is of, in its place, and no older."""
        facts = book.facts
        mark = marked.head(facts.id)
        if mark is None:
            raise Refused("ledger_rolled_back") from InputError(
                f"{self.marks} does not know it; if its marks are elsewhere, set PRIVCAL_MARKS to that file"
            )
        # From before there were codes: then it is exactly what the mark says. Never again after.
        uncoded = marked.sealed(facts.id) is None and book.head == mark
        moved_over = any(
            marked.at(path) and path not in marked.places(facts.id) for path in self._places
        )
        if (
            book.hash_at(mark.seq) != mark.hash
            or not (book.sealed_by(marked.key) or (uncoded and self._ours(book, marked)))
            or moved_over
            or not self._others(facts.id, marked).within(book.written_off)
        ):
            raise Refused("ledger_rolled_back")

    def _check_note(self, book: Chain) -> None:
        """Refused unless the data are noted as whoever read them was told."""
        notes = [row["what"] for row in book.of_kind(chain.DATA)]
        if self._noted is not None and self._noted not in notes:
            raise Refused("ledger_rolled_back")


def _find_unanswered(book: Chain, question: Question, asker: str) -> sqlite3.Row:
    """The entry of a charged question that has no answer yet."""
    row = book.find(question, asker)
    if row is None or book.answer(row) is not None:
        raise Refused("lost")
    return row


def _still(policy: Policy, book: Chain) -> Policy:
    """The rules that a source looked at, narrowed by those that the ledger has by the time of the charge."""
    owners = book.policy
    try:
        if policy.budget == owners.budget:
            return policy if policy == owners else policy.narrowed(owners)
    except InputError:  # they are for another model, or another roster
        pass
    raise Refused("unavailable")


def _same(row: sqlite3.Row, question: Question, alone: int | None) -> bool:
    """Whether an entry charged this very question, in a secure sum where it is asked for `alone`."""
    if alone is None:
        return bool((row["kind"], row["digest"]) == (chain.CHARGE, question.digest()))
    charged = (row["kind"], row["what"], row["epsilon"])
    return charged == (chain.SHARE, chain.share_text(question, alone), question.nano_epsilon)
