"""Whoever can write the ledger and its folder, at any time, and not the marks, gets nothing by it.

Here that is somebody who knows how a ledger is made, keeps old copies, and has SQLite. What they write
is refused, or makes no difference.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privcal import InputError, Ledger, Policy, Refused, Scores, Source, open_sources
from privcal.trusted import accounts, chain
from privcal.trusted import book as ledger_module
from privcal.trusted import marks as marks_module
from privcal.trusted.approvals import Proposal
from privcal.trusted.epsilon import NANO
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.support.builders import a_file, a_ledger, edit, editing, named, outcome, random_scores

FIELDS = (
    "seq", "kind", "asker", "campaign", "round", "place", "what", "digest", "epsilon", "spent",
    "time", "previous",
)  # fmt: skip
ROWS = random_scores(30)
PEOPLE = random_scores(4, person=["ann", "ann", "bob", "cid"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path)


def ask(path: Path, name: str, epsilon: float = 0.1, rows: Scores = ROWS) -> str:
    return outcome(lambda: Source(rows, ledger=path).answer(named(name, Gap(), epsilon)))


def hash_of(values: Any) -> str:
    return hashlib.sha256(json.dumps(tuple(values)).encode()).hexdigest()


def rehash(path: Path, whole: bool = False) -> None:
    """Give each entry its hash again; `whole`: each its place in the chain too, as a forger would."""
    with editing(path) as db:
        seq, spent, previous = 0, 0, ""
        for row in db.execute("SELECT rowid, epsilon FROM entry ORDER BY seq").fetchall():
            seq, spent = seq + 1, spent + row[1]
            if whole:
                link = "UPDATE entry SET seq = ?, spent = ?, previous = ? WHERE seq = ?"
                db.execute(link, (seq, spent, previous, row[0]))
            where = seq if whole else row[0]
            entry = db.execute(
                f"SELECT {', '.join(FIELDS)}, answer FROM entry WHERE seq = ?", (where,)
            ).fetchone()
            previous = hash_of(entry[:-1])
            seal = None if entry[-1] is None else hash_of((previous, entry[-1]))
            db.execute(
                "UPDATE entry SET hash = ?, sealed = ? WHERE seq = ?", (previous, seal, where)
            )
        *facts, _ = db.execute("SELECT * FROM ledger").fetchone()
        db.execute("UPDATE ledger SET hash = ?", (hash_of(facts),))


def append(path: Path, kind: str, what: str, epsilon: int = 0) -> None:
    """An entry at the end of the chain, in good order."""
    with editing(path) as db:
        last = db.execute("SELECT seq, spent, time, hash FROM entry ORDER BY seq DESC").fetchone()
        entry = (last[0] + 1, kind, None, None, None, None, what, "", epsilon, last[1] + epsilon)
        entry = (*entry, *last[2:])
        db.execute(
            f"INSERT INTO entry ({', '.join(FIELDS)}, hash) VALUES ({', '.join('?' * 13)})",
            (*entry, hash_of(entry)),
        )


def as_text(policy: Policy) -> str:
    return json.dumps(policy.to_dict(), sort_keys=True)


WIDE = as_text(Policy(epsilon=100.0))
REFUSED = {"ledger_rolled_back", "unavailable"}


# --- entries ---------------------------------------------------------------------------------------


def test_a_policy_appended_with_its_hash_is_refused(path: Path) -> None:
    ask(path, "a", 0.9)
    append(path, "policy", WIDE)
    assert ask(path, "b", 50.0) == "ledger_rolled_back"
    assert not Ledger(path).in_step


def test_a_policy_that_was_widened_is_refused_whichever_hashes_are_right(path: Path) -> None:
    before = path.read_bytes()
    for whole in (None, False, True):
        path.write_bytes(before)
        ask(path, "a", 0.1)
        edit(path, "UPDATE entry SET what = ? WHERE kind = 'policy'", WIDE)
        if whole is not None:
            rehash(path, whole)
        assert ask(path, "b", 50.0) in REFUSED


@pytest.mark.parametrize("how", ["DELETE FROM entry", "UPDATE entry SET kind = 'note'"])
@pytest.mark.parametrize("whole", [None, False, True])
def test_a_policy_that_is_no_longer_there_is_missed(
    path: Path, how: str, whole: bool | None
) -> None:
    Ledger(path).set_policy(Policy(epsilon=0.3))
    ask(path, "a", 0.2)
    edit(path, f"{how} WHERE seq = 2")
    if whole is not None:
        rehash(path, whole)
    assert ask(path, "b", 0.6) in REFUSED


def test_a_charge_that_is_no_longer_there_does_not_give_an_asker_more(path: Path) -> None:
    Ledger(path).set_policy(Policy(epsilon=1.0, epsilon_by_asker={"local": 0.3}))
    ask(path, "a", 0.3)
    Source(ROWS, ledger=path).answer(named("b", Gap(), 0.1), "another")
    edit(path, "DELETE FROM entry WHERE campaign = 'a'")
    assert ask(path, "c", 0.3) in REFUSED


def test_an_approval_is_the_owners_word_alone(path: Path) -> None:
    Ledger(path).set_policy(Policy(epsilon=1.0, approve=True))
    assert ask(path, "a", 0.3) == "awaiting_approval"
    [(proposal, _)] = Ledger(path).waiting()
    before = path.read_bytes()
    append(path, "approved", proposal.text())
    assert ask(path, "a", 0.3) in REFUSED
    path.write_bytes(before)
    Ledger(path).approve(proposal)
    Ledger(path).set_policy(Policy(epsilon=0.9, approve=True))
    edit(path, "UPDATE entry SET what = ? WHERE kind = 'approved'", other(proposal).text())
    rehash(path)
    assert ask(path, "b", 0.3) in REFUSED


def other(proposal: Proposal) -> Proposal:
    return replace(proposal, campaign="b")


def test_what_a_secure_sum_cost_alone_is_not_forgotten(tmp_path: Path) -> None:
    policy = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10))
    ledger = Ledger.create(tmp_path / "s.db", policy, unit="row")
    asked = Question.of(Gap(), 0.1, "c")
    ledger.charge_share(asked, "ann", policy, "t" * 64, NANO)
    ledger.set_policy(policy := replace(policy, epsilon=0.9))
    edit(tmp_path / "s.db", "UPDATE entry SET kind = 'note' WHERE kind = 'share'")
    with pytest.raises(Refused):
        Ledger(tmp_path / "s.db").charge_share(
            replace(asked, campaign="d"), "ann", policy, "t" * 64, NANO * 8 // 10
        )


@pytest.mark.parametrize(
    "how", ["DELETE FROM entry", "UPDATE entry SET kind = 'note'", "UPDATE entry SET what = 'x'"]
)
def test_of_a_secure_sum_no_second_set_is_opened(path: Path, how: str) -> None:
    asked = Question.of(Gap(), 0.1, "c")
    Ledger(path).open_once(asked, "ann", "a" * 64, lambda: [1])
    ask(path, "later")
    edit(path, f"{how} WHERE kind = 'opening'")
    with pytest.raises(Refused):
        Ledger(path).open_once(asked, "ann", "b" * 64, lambda: [2])


# --- copies ----------------------------------------------------------------------------------------


def test_an_old_copy_that_names_its_own_marks_is_held_against_ours(
    path: Path, tmp_path: Path
) -> None:
    old = path.read_bytes()
    ask(path, "a", 0.9)
    path.write_bytes(old)
    theirs = own_marks(path, tmp_path / "theirs.db")
    edit(path, "UPDATE ledger SET marks = ?", str(theirs))
    rehash(path)
    assert ask(path, "b", 0.9) == "ledger_rolled_back"
    assert not Ledger(path).in_step
    Ledger(path).reconcile()
    assert Ledger(path).nano_spent == 9 * NANO // 10
    assert Path(Ledger(path).facts.marks or "") != theirs


def own_marks(path: Path, marks: Path) -> Path:
    """Marks that know this ledger just as it is."""
    with editing(path) as db:
        facts = db.execute("SELECT id, unit FROM ledger").fetchone()
        head = db.execute("SELECT seq, hash, spent FROM entry ORDER BY seq DESC").fetchone()
    with marks_module.locked(marks) as _:
        pass
    with editing(marks) as db:
        db.execute("INSERT INTO head VALUES (?, ?, ?, ?, ?)", (*facts, *head))
        db.execute("INSERT INTO place VALUES (?, ?)", (facts[0], str(path)))
    return marks


def test_ahead_of_its_mark_is_only_what_privcal_wrote(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between ledger and mark heals by itself; nothing else may be there."""
    with monkeypatch.context() as crash:
        crash.setattr("privcal.trusted.marks.Marks.raise_to", lambda *_: None)
        ask(path, "a", 0.9)
    ahead = path.read_bytes()
    assert ask(path, "b", 0.2) == "over_budget"
    path.write_bytes(ahead)
    append(path, "policy", WIDE)
    assert ask(path, "b", 0.2) == "ledger_rolled_back"


def test_a_change_that_a_crash_undid_does_not_come_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()
    with monkeypatch.context() as crash:
        crash.setattr("privcal.trusted.marks.Marks.raise_to", lambda *_: None)
        Ledger(path).set_policy(Policy(epsilon=5.0))
    undone = path.read_bytes()
    path.write_bytes(before)
    ask(path, "a", 0.9)
    path.write_bytes(undone)
    assert ask(path, "b", 3.0) == "ledger_rolled_back"
    with editing(path) as db:  # not even one entry of it beside those of the other
        row = db.execute("SELECT * FROM entry WHERE seq = 2").fetchone()
    path.write_bytes(before)
    Ledger(path).reconcile()
    edit(path, "DELETE FROM entry WHERE seq = 2")
    edit(path, f"INSERT INTO entry VALUES ({', '.join('?' * len(row))})", *row)
    assert ask(path, "b", 3.0) in REFUSED


def test_another_ledger_of_the_same_owner_does_not_take_its_place(
    path: Path, tmp_path: Path
) -> None:
    """Neither as a copy nor by a link, and whether anything was spent before or not."""
    wide = tmp_path / "wide.db"
    Ledger.create(wide, Policy(epsilon=9.0), unit="row")
    for spent in (False, True):
        for link in (False, True):
            kept = path.rename(tmp_path / "kept.db")
            path.symlink_to(wide) if link else shutil.copy(wide, path)
            assert ask(path, "b", 5.0) == "ledger_rolled_back", (spent, link)
            path.unlink()
            kept.rename(path)
        assert ask(path, "a", 0.4) == "answered"
    assert ask(wide, "a", 5.0) == "answered"


@pytest.mark.parametrize("way", ["folder", "file", "relative", "two"])
def test_another_ledger_does_not_take_its_place_behind_the_owners_own_links(
    tmp_path: Path, way: str
) -> None:
    """The owner names it by links of their own; who writes its folder replaces it by a link there."""
    room = tmp_path / "room"
    room.mkdir()
    for name in ("a.db", "b.db"):
        Ledger.create(room / name, Policy(epsilon=1.0), unit="row")
    link = tmp_path / "link"
    link.symlink_to({"relative": "../" + f"{tmp_path.name}/room", "two": "other"}.get(way, room))
    (tmp_path / "other").symlink_to(room)
    if way == "file":
        link = tmp_path / "ward.db"
        link.symlink_to(room / "a.db")
    named = link if way == "file" else link / "a.db"
    assert ask(named, "a", 1.0) == "answered"
    (room / "a.db").rename(room / "old")
    (room / "a.db").symlink_to("b.db")
    assert ask(named, "b", 1.0) == "ledger_rolled_back"
    (room / "a.db").unlink()
    (room / "old").rename(room / "a.db")
    assert ask(named, "b", 1.0) == "over_budget"
    assert ask(room / "b.db", "b", 1.0) == "answered"


def test_links_in_a_circle_are_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "a.db").symlink_to("b.db")
    (tmp_path / "b.db").symlink_to("a.db")
    assert ask(tmp_path / "a.db", "a") == "ledger_missing"


def test_a_copy_under_another_id_is_nobodys(path: Path) -> None:
    edit(path, "UPDATE ledger SET id = 'another'")
    rehash(path)
    assert ask(path, "a") == "ledger_rolled_back"


# --- facts and accounts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fact", ["secret = 'ab'", "unit = 'row'", "name = 'x'", "created = 'x'", "marks = NULL"]
)
def test_facts_that_were_changed_are_refused(tmp_path: Path, fact: str) -> None:
    """Under another secret, say, everybody would be somebody new, with the whole budget."""
    path = tmp_path / "people.db"
    Ledger.create(path, Policy(epsilon=1.0, budget="person"), unit="person")
    ask(path, "a", 0.9, PEOPLE)
    edit(path, f"UPDATE ledger SET {fact}")
    rehash(path)
    assert ask(path, "b", 0.9, ROWS if "row" in fact else PEOPLE) == "ledger_rolled_back"
    assert not Ledger(path).in_step


def test_a_second_row_of_facts_is_refused(path: Path) -> None:
    edit(path, "INSERT INTO ledger SELECT * FROM ledger")
    assert ask(path, "a") == "unavailable"


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM account",
        "DELETE FROM member",
        "UPDATE account SET spent = 0",
        "UPDATE member SET persons = x''",
    ],
)
def test_accounts_that_were_changed_count_nobody(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "people.db"
    Ledger.create(path, Policy(epsilon=1.0, budget="person"), unit="person")
    ask(path, "a", 0.9, PEOPLE)
    edit(path, damage)
    with editing(path) as db:  # each account with its own hash
        for number, spent in db.execute("SELECT number, spent FROM account").fetchall():
            members = db.execute("SELECT persons FROM member WHERE number = ?", (number,))
            text = f"{number}:{spent}:".encode() + b"".join(m for (m,) in members)
            stamp = hashlib.sha256(text).hexdigest()
            db.execute("UPDATE account SET hash = ? WHERE number = ?", (stamp, number))
    assert ask(path, "b", 0.9, PEOPLE) == "unavailable"


# --- the file itself -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN SELECT 1; END",
        "CREATE TRIGGER held_t AFTER INSERT ON held BEGIN DELETE FROM entry; END",
        "CREATE VIEW reservation AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON entry (what)",
        "ALTER TABLE entry ADD COLUMN more TEXT AS (what)",
        "ALTER TABLE entry ADD COLUMN more TEXT",
        "ALTER TABLE ledger RENAME COLUMN unit TO other",
    ],
)
def test_a_file_with_anything_planted_in_it_is_no_ledger(path: Path, planted: str) -> None:
    edit(path, planted)
    assert ask(path, "a") == "unavailable"


def test_a_view_in_the_place_of_a_table_is_no_ledger(path: Path) -> None:
    with editing(path) as db:
        db.execute("ALTER TABLE entry RENAME TO kept")
        db.execute("CREATE VIEW entry AS SELECT * FROM kept")
    assert ask(path, "a") == "unavailable"


def test_an_index_that_lacks_the_newest_policy_hides_nothing(path: Path) -> None:
    """The file of an index is as easy to write as that of a table."""
    with editing(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        index = db.execute("SELECT * FROM sqlite_master WHERE name = 'by_kind'").fetchone()
        db.execute("DELETE FROM sqlite_master WHERE name = 'by_kind'")
    Ledger(path).set_policy(Policy(epsilon=0.3))
    ask(path, "a", 0.2)
    with editing(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    assert ask(path, "b", 0.6) in {"over_request_limit", *REFUSED}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_ledger_that_had_a_code_is_not_taken_without_one(path: Path, version: int) -> None:
    ask(path, "a", 0.1)
    with editing(path) as db:
        db.execute("DROP TABLE seal" if version < 4 else "DELETE FROM seal")
        db.execute(f"PRAGMA user_version = {version}")
    assert ask(path, "b", 0.1) == "ledger_rolled_back"
    assert Ledger(path).reconcile() == 0  # it is what the mark knows, and nothing is missing
    assert ask(path, "b", 0.1) == "answered"


# --- the owner's word ------------------------------------------------------------------------------


def test_lost_marks_mean_no_answers_until_the_owner_reconciles(path: Path) -> None:
    ask(path, "a", 0.1)
    Path(Ledger(path).facts.marks or "").unlink()
    assert ask(path, "b", 0.1) == "ledger_rolled_back"
    with pytest.raises(InputError, match="write-off"):
        Ledger(path).reconcile()
    Ledger(path).reconcile(write_off=0)
    assert ask(path, "b", 0.1) == "answered"
    append(path, "policy", WIDE)
    assert ask(path, "c", 50.0) == "ledger_rolled_back"


@pytest.mark.parametrize("command", ["ledger show", "ledger export", "source check"])
def test_the_owner_is_told_of_a_forgery_by_whatever_they_look_with(
    visits: Path, run: Any, command: str
) -> None:
    ledger = visits.with_name("visits.csv.ledger")
    append(ledger, "policy", WIDE)
    code, _, stderr = run(*command.split(), visits)
    assert "privcal ledger reconcile" in stderr
    assert code == (1 if command == "source check" else 0)


def test_reconciling_does_not_make_a_forgery_good(path: Path, tmp_path: Path) -> None:
    old = path.read_bytes()
    ask(path, "a", 0.9)
    path.write_bytes(old)
    edit(path, "UPDATE entry SET what = ? WHERE kind = 'policy'", WIDE)
    rehash(path, whole=True)
    with pytest.raises(InputError, match="was not written with these marks"):
        Ledger(path).reconcile()
    assert ask(path, "b", 50.0) == "ledger_rolled_back"
    path.write_bytes(old)
    Ledger(path).reconcile()
    assert ask(path, "b", 0.2) == "over_budget"


def test_no_key_is_made_for_a_ledger_that_hides_its_restores(path: Path) -> None:
    """What was sealed for it before a restore would open with it."""
    old = path.read_bytes()
    ask(path, "a", 0.1)
    path.write_bytes(old)
    Ledger(path).reconcile()
    after = Ledger(path).generation
    edit(path, "UPDATE entry SET kind = 'note' WHERE kind = 'written off'")
    rehash(path, whole=True)
    with pytest.raises(Refused, match="ledger_rolled_back"):
        assert Ledger(path).generation != after


# --- data ------------------------------------------------------------------------------------------


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Ten persons with ten visits each, and a ledger that protects persons."""
    rows = [f"p{i // 10},v{i},0.{1 + i % 9},{i % 2}" for i in range(100)]
    table = a_file(tmp_path / "visits.csv", ["pid,visit,probability,label", *rows])
    from privcal import create_ledgers

    create_ledgers(table, Policy(epsilon=9.0), person="pid", tell=lambda _: None)
    return table


@pytest.mark.parametrize("hashes", ["wrong", "its own", "the whole chain"])
@pytest.mark.parametrize("then", ["left so", "put back before the charge"])
def test_data_are_not_read_by_another_column_than_was_noted(
    visits: Path, hashes: str, then: str
) -> None:
    ledger = visits.with_name("visits.csv.ledger")
    open_sources([visits])[0].answer(named("before", Gap(), 0.5))
    before = ledger.read_bytes()
    edit(ledger, "UPDATE entry SET what = replace(what, 'pid', 'visit') WHERE kind = 'data'")
    if hashes != "wrong":
        rehash(ledger, hashes == "the whole chain")
    try:
        [source] = open_sources([visits])
        if then == "put back before the charge":
            ledger.write_bytes(before)
        source.answer(named("a", Gap(), 0.5))
    except (Refused, InputError) as refused:
        said = str(refused)
    else:
        said = f"answered, with {len(source.counted_rows())} rows of 10 persons"
    assert any(code in said for code in (*REFUSED, "was changed"))


def test_data_that_were_noted_are_read_as_ever(visits: Path) -> None:
    [source] = open_sources([visits])
    source.answer(named("a", Gap(), 0.5))
    assert len(source.counted_rows()) == 10


def test_a_policy_that_was_there_for_a_moment_decides_nothing(path: Path) -> None:
    """It is put there for the look at the rules, and gone again when the question is charged."""
    ask(path, "a", 0.9)
    before = path.read_bytes()
    source = Source(ROWS, ledger=path)
    charge = source.ledger.charge
    append(path, "policy", WIDE)

    def put_back(*args: Any) -> list[int] | None:
        path.write_bytes(before)
        return charge(*args)

    source.ledger.charge = put_back  # type: ignore[method-assign]
    assert outcome(source.answer, named("b", Gap(), 50.0)) == "ledger_rolled_back"


def test_a_trigger_that_was_there_for_a_moment_takes_back_no_charge(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the file was looked at, deletes the charge, and is gone when the answer is stored.
    The forger puts the charge back for just then, as all of it but the code can be computed."""
    question, real = named("a", Gap(), 1.0), ledger_module.locked

    @contextmanager
    def planting(marks: Path) -> Iterator[marks_module.Marks]:
        edit(path, TAKES_BACK)
        with real(marks) as marked:
            yield marked

    monkeypatch.setattr(ledger_module, "locked", planting)
    source = Source(ROWS, ledger=path)
    draw = source._draw

    def drawn(*args: Any) -> list[int]:
        with editing(path) as db:
            db.execute("DROP TRIGGER t")
        append(path, "charge", question.query.canonical(), question.nano_epsilon)
        key = "asker = 'local', campaign = ?, round = 0, place = 0, digest = ?"
        edit(
            path,
            f"UPDATE entry SET {key} WHERE kind = 'charge'",
            question.campaign,
            question.digest(),
        )
        rehash(path)
        return draw(*args)

    monkeypatch.setattr(source, "_draw", drawn)
    assert outcome(source.answer, question) == "unavailable"


TAKES_BACK = (
    "CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM entry WHERE seq = NEW.seq; END"
)


def test_an_entry_that_is_not_there_when_it_is_read_back_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where what the file defines went unseen."""
    edit(path, TAKES_BACK)
    monkeypatch.setattr(chain, "check_file", lambda db: None)
    with pytest.raises(Refused, match="unavailable"):
        Ledger(path).charge(named("a", Gap(), 0.5), "ann", Policy())


def test_a_trigger_that_comes_just_before_the_transaction_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that changes nothing that a charge reads back."""
    real = ledger_module.locked

    @contextmanager
    def planting(marks: Path) -> Iterator[marks_module.Marks]:
        edit(path, "CREATE TRIGGER t AFTER INSERT ON seal BEGIN SELECT 1; END")
        with real(marks) as marked:
            yield marked

    monkeypatch.setattr(ledger_module, "locked", planting)
    with pytest.raises(Refused, match="unavailable"):
        Ledger(path).charge(named("a", Gap(), 0.5), "ann", Policy())


def test_nobody_gets_out_of_the_accounts_while_they_are_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash is taken out of the file between reading the accounts and writing them."""
    path, many = tmp_path / "people.db", random_scores(60_000, person=[*map(str, range(60_000))])
    Ledger.create(path, Policy(epsilon=1.0, budget="person"), unit="person")
    ask(path, "a", 0.5, many)
    [(_, persons)] = Ledger(path).persons()
    at, read = path.read_bytes().index(sorted(persons)[30_000]), accounts.read

    def racing(db: sqlite3.Connection) -> list[accounts.Account]:
        found = read(db)
        db.execute("PRAGMA cache_size = 1")  # as with some hundred thousand persons
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes(16))
        return found

    with monkeypatch.context() as race:
        race.setattr(accounts, "read", racing)
        ask(path, "b", 0.5, many)
    assert ask(path, "c", 0.5, many) == "unavailable"


def test_an_account_that_is_read_and_not_found_by_its_number_is_damaged(tmp_path: Path) -> None:
    """The table's tree is rebuilt so that a scan sees each row, and a search for the old one goes wrong.

    What is read of the accounts, and so their hash, is as it was; an update would change nothing.
    """
    path, few = tmp_path / "people.db", [f"a{n}" for n in range(100)]
    Ledger.create(path, Policy(epsilon=1.0, budget="person"), unit="person")
    assert ask(path, "a", 0.8, random_scores(100, person=few)) == "answered"
    many = random_scores(102, person=[*few, "new 1", "new 2"])
    assert ask(path, "b", 0.1, many) == "answered"
    before = accounts_of(path)
    mislead(path, "account", next(n for n, spent in before if spent == 9 * NANO // 10))
    assert accounts_of(path) == before
    assert [ask(path, f"c{n}", 0.1, many) for n in range(3)] == [
        "unavailable",
        "unavailable",
        "unavailable",
    ]


def accounts_of(path: Path) -> list[tuple[int, int]]:
    with editing(path) as db:
        return db.execute("SELECT number, spent FROM account ORDER BY number").fetchall()


def mislead(path: Path, table: str, number: int) -> None:
    """Put an interior page above a table's one leaf, with a key that sends a search for `number` wrong."""
    with editing(path) as db:
        [root] = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        numbers = [n for (n,) in db.execute(f"SELECT number FROM {table} ORDER BY number")]
    raw = bytearray(path.read_bytes())
    size, pages = int.from_bytes(raw[16:18], "big"), len(raw) // int.from_bytes(raw[16:18], "big")
    start = (root - 1) * size
    leaf = raw[start : start + size]
    places = [int.from_bytes(leaf[8 + 2 * i : 10 + 2 * i], "big") for i in range(len(numbers))]
    ends = dict(zip(sorted(places), [*sorted(places)[1:], size], strict=True))
    cells = [bytes(leaf[place : ends[place]]) for place in places]
    first = numbers.index(number) == 0
    halves = [page_of(cells[:1], size), page_of(cells[1:], size)]
    key = b"\0" if first else b"\x7f"  # all that is above the key is sought on the right
    cell = (pages + 1).to_bytes(4, "big") + key
    top = bytearray(size)
    top[0], top[3:5], top[5:7] = 5, (1).to_bytes(2, "big"), (size - len(cell)).to_bytes(2, "big")
    top[8:12], top[12:14] = (pages + 2).to_bytes(4, "big"), top[5:7]
    top[size - len(cell) :] = cell
    raw[start : start + size] = top
    raw[28:32] = (pages + 2).to_bytes(4, "big")
    path.write_bytes(raw + b"".join(halves))


def page_of(cells: list[bytes], size: int) -> bytes:
    """A leaf of a table with these cells."""
    page, end = bytearray(size), size
    for place, cell in enumerate(cells):
        end -= len(cell)
        page[end : end + len(cell)] = cell
        page[8 + 2 * place : 10 + 2 * place] = end.to_bytes(2, "big")
    page[0], page[3:5], page[5:7] = 13, len(cells).to_bytes(2, "big"), end.to_bytes(2, "big")
    return bytes(page)


def test_what_a_ledger_says_of_its_marks_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made with marks of its own, which the usual ones know nothing of; another is put in its place."""
    path, own = tmp_path / "ward.db", tmp_path / "safe" / "ward.marks"
    Ledger.create(path, unit="row", marks=own)
    with monkeypatch.context() as owner:
        owner.setenv("PRIVCAL_MARKS", str(own))
        assert ask(path, "a", 0.9) == "answered"
    path.unlink()
    Ledger.create(path, Policy(epsilon=1000.0), unit="row", marks=tmp_path / "theirs.db")
    assert ask(path, "b", 900.0) == "ledger_rolled_back"
    monkeypatch.setenv("PRIVCAL_MARKS", str(own))
    assert ask(path, "b", 900.0) == "ledger_rolled_back"


def test_marks_that_a_planted_journal_deleted_leave_no_answers(path: Path, tmp_path: Path) -> None:
    """Planted in the moment after it was looked for, it has them deleted: that is loss, and nothing else."""
    assert ask(path, "a", 0.9) == "answered"
    marks_module.default_marks().unlink()
    assert ask(path, "b", 0.1) == "ledger_rolled_back"
    path.unlink()
    Ledger.create(path, Policy(epsilon=1000.0), unit="row", marks=tmp_path / "theirs.db")
    assert ask(path, "b", 900.0) == "ledger_rolled_back"


@pytest.mark.parametrize("which", ["the marks", "another file"])
def test_a_journal_beside_a_ledger_has_no_file_deleted(
    path: Path, tmp_path: Path, which: str
) -> None:
    """SQLite deletes the file that is named at the end of a journal, once it has undone what is in it."""
    other = a_file(tmp_path / "other", "of the same account")
    victim = marks_module.default_marks() if which == "the marks" else other
    raw, magic, name = path.read_bytes(), bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    page = int.from_bytes(raw[16:18], "big")
    numbers = (0, 0, len(raw) // page, 512, page)
    head = magic + b"".join(number.to_bytes(4, "big") for number in numbers)
    tail = (2**30 // page + 1).to_bytes(4, "big") + name
    tail += len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + magic
    path.with_name("source.db-journal").write_bytes(head.ljust(512, b"\0") + tail)
    assert ask(path, "a") == "unavailable"
    assert victim.exists()


def test_no_ledger_takes_the_place_of_one_that_is_gone_from_a_folder_of_parts(
    visits: Path, tmp_path: Path
) -> None:
    """It is noted for the same data, has marks of its own, and no ledger was ever at its place."""
    [source] = open_sources([visits])
    source.answer(named("a", Gap(), 9.0))
    [note] = Ledger(visits.with_name("visits.csv.ledger")).notes()
    visits.with_name("visits.csv.ledger").unlink()
    planted = visits.with_name("visits.csv.ledgers") / "x.ledger"
    theirs = Ledger.create(
        planted, Policy(epsilon=99.0), unit="person", marks=tmp_path / "theirs.db"
    )
    theirs.attach(note)
    with pytest.raises(InputError, match=r"ledger of .* is gone"):
        open_sources([visits])[0].answer(named("b", Gap(), 9.0))


# --- anything --------------------------------------------------------------------------------------


def full_ledger(folder: Path) -> Path:
    """A ledger with an entry of every kind, and something in every table."""
    path = folder / "full.db"
    secure = SecureRules(colluding=2, alone=3)
    policy = Policy(epsilon=2.0, budget="person", secure=secure)
    ledger = Ledger.create(path, policy, unit="person")
    source = Source(PEOPLE, ledger=ledger)
    ledger.attach({"path": "/data/a.csv", "split": None, "value": None, "person": "pid"})
    source.answer(named("a", Gap(), 0.2))
    source.answer(named("b", Gap(), 0.1), "acme")
    asked = Question.of(Gap(), 0.1, "sum")
    assert ledger.charge_share(asked, "acme", policy, "t" * 64, 3 * NANO // 10) is None
    ledger.store_share(asked, "acme", "sealed")
    ledger.open_once(asked, "acme", "o" * 64, lambda: [5])
    ledger.set_policy(replace(policy, approve=True))
    source.offer([named("w", Gap(), 0.1)])
    source.offer([named("v", Gap(), 0.1)])
    ledger.approve(ledger.waiting()[0][0])
    old = path.read_bytes()
    source.answer(named("w", Gap(), 0.1))
    path.write_bytes(old)
    ledger.reconcile()
    ledger.set_policy(replace(policy, epsilon=1.0, epsilon_by_asker={"acme": 0.4}))
    source.offer([named("r", Gap(), 0.1)])
    return path


ASKED: list[tuple[str, Callable[[Source], object]]] = [
    ("new", lambda source: source.answer(named("new", Gap(), 0.05))),
    ("acme's", lambda source: source.answer(named("more", Gap(), 0.25), "acme")),
    ("too much", lambda source: source.answer(named("big", Gap(), 0.95))),
    ("old", lambda source: source.answer(named("a", Gap(), 0.2))),
    ("second set", lambda source: source.ledger.open_once(
        Question.of(Gap(), 0.1, "sum"), "acme", "p" * 64, lambda: [6])),
]  # fmt: skip


def what_comes_of(path: Path) -> dict[str, object]:
    """What a source does on this ledger: its rules, and for each question how it ended and what is spent."""
    said: dict[str, object] = {}
    for name, work in ASKED:
        source = Source(lambda_rows(), ledger=Ledger(path))
        try:
            rules = source.ledger.terms()
            said[f"{name}: rules"] = (rules[0].id, rules[0].unit, rules[0].secret, rules[1])
            work(source)
            said[name] = "answered"
        except Refused as refused:
            said[name] = refused.code
        try:
            ledger = Ledger(path)
            said[f"{name}: spent"] = ledger.spent if ledger.in_step else "unavailable"
        except Refused:
            said[f"{name}: spent"] = "unavailable"
    return said


class lambda_rows:
    model = None

    def check_there(self) -> None:
        pass

    def read(self) -> Any:
        return PEOPLE


VALUES = [
    None,
    0,
    1,
    -1,
    10**9,
    2**62,
    0.5,
    "",
    "x",
    "policy",
    "charge",
    "share",
    "note",
    b"",
    b"x",
]


def random_edit(path: Path, rng: random.Random) -> str:
    """One change to one cell or row; the hashes around it right, half-right or wrong."""
    with editing(path) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        table = rng.choice([*tables, "entry", "entry", "entry"])
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        ids = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
        if not ids:
            return ""
        row, how = rng.choice(ids), rng.choice(["cell", "cell", "cell", "delete", "twice"])
        if how == "delete":
            db.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
        elif how == "twice":
            values = list(db.execute(f"SELECT * FROM {table} WHERE rowid = ?", (row,)).fetchone())
            if isinstance(values[0], int):
                values[0] = max(ids) + 1
            marks = ", ".join("?" * len(values))
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)
        else:
            column = rng.choice(columns)
            others = [v for (v,) in db.execute(f"SELECT {column} FROM {table}")]
            value = rng.choice([*VALUES, *others, *others])
            db.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE rowid = ?", (value, row))
            how = f"{column} = {value!r}"
    hashes = rng.choice([None, False, True])
    if hashes is not None:
        rehash(path, hashes)
    return f"{table} {row}: {how}, hashes {hashes}"


def test_whatever_is_written_into_a_ledger_is_refused_or_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = full_ledger(tmp_path)
    marks = Path(Ledger(path).facts.marks or "")
    files = {file: file.read_bytes() for file in (path, marks)}
    connect = marks_module.connect

    def unsynced(file: Path) -> sqlite3.Connection:
        db = connect(file)
        db.execute("PRAGMA synchronous = OFF")
        return db

    monkeypatch.setattr("privcal.trusted.marks.connect", unsynced)
    monkeypatch.setattr("privcal.trusted.book.connect", unsynced)
    untouched = what_comes_of(path)
    assert [untouched[name] for name, _ in ASKED] == [
        "answered", "over_budget", "over_budget", "answered", "opened",
    ]  # fmt: skip
    rng, tried = random.Random(7), 0
    while tried < 150:
        for file, content in files.items():
            file.write_bytes(content)
        try:
            edited = random_edit(path, rng)
        except (sqlite3.IntegrityError, sqlite3.OperationalError, TypeError):
            continue  # even SQLite refuses it
        tried += bool(edited)
        for what, then in what_comes_of(path).items():
            free = "held" in edited or "waiting" in edited  # they may refuse more, or less
            allowed = {str(untouched[what]), *REFUSED} | (
                {"reserved", "lost"} if free else {"lost"}
            )
            assert str(then) in allowed, (edited, what, then)
