"""Ledgers and marks that privcal wrote before ledgers carried a code (commit da6e529) go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privcal import InputError, Ledger, Policy, Source
from privcal.trusted import chain
from privcal.trusted.epsilon import NANO, Cost
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.support.builders import edit, editing, outcome, random_scores

WRITTEN = Path(__file__).parent / "da6e529"
PEOPLE = random_scores(4, person=["ann", "ann", "bob", "cid"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("plain", "secure", "marks"):
        with editing(tmp_path / f"{name}.db") as db:
            db.executescript((WRITTEN / f"{name}.sql").read_text("utf-8"))
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    return tmp_path


def version(path: Path) -> int:
    [(found,)] = edit(path, "PRAGMA user_version")
    return int(found)


def ask(path: Path, campaign: str, epsilon: float = 0.1) -> None:
    Source(random_scores(30), ledger=path).answer(Question.of(Gap(), epsilon, campaign))


def test_one_goes_on_with_what_was_spent_asked_and_decided(folder: Path) -> None:
    path = folder / "plain.db"
    ledger = Ledger(path)
    assert (version(path), ledger.in_step, ledger.nano_spent) == (2, True, NANO // 2)
    assert ledger.policy == Policy(epsilon=1.0)
    ask(path, "spring", 0.25)  # what was answered then
    assert (version(path), ledger.nano_spent) == (4, NANO // 2)
    assert outcome(lambda: ask(path, "more", 0.6)) == "over_budget"
    ask(path, "more", 0.5)
    assert [entry.kind for entry in ledger.entries()] == [
        "policy",
        "charge",
        "charge",
        "policy",
        "charge",
    ]


def test_one_with_persons_and_secure_sums_does_too(folder: Path) -> None:
    path = folder / "secure.db"
    ledger = Ledger(path)
    assert (version(path), ledger.in_step) == (3, True)
    assert ledger.spent == Cost(150_000_000, 600_000_000)
    [(spent, people)] = ledger.persons()
    assert (spent, len(people)) == (100_000_000, 3)
    asked = Question.of(Gap(), 0.05, "sum")
    assert outcome(ledger.open_once, asked, "ann", "p" * 64, lambda: [1]) == "opened"
    assert ledger.open_once(asked, "ann", "o" * 64, lambda: [1]) == [7]
    Source(PEOPLE, ledger=path).answer(Question.of(Gap(), 0.1, "autumn"))
    assert [spent for spent, _ in ledger.persons()] == [200_000_000]
    assert edit(path, "PRAGMA user_version") == [(4,)]


def test_from_its_first_change_on_it_is_not_taken_without_its_code(folder: Path) -> None:
    path = folder / "plain.db"
    before = path.read_bytes()
    ask(path, "more")
    path.write_bytes(before)
    assert outcome(lambda: ask(path, "again")) == "ledger_rolled_back"
    edit(path, "UPDATE ledger SET secret = 'x'")
    with editing(path) as db:
        facts = db.execute("SELECT id, secret, name, unit, marks, created FROM ledger").fetchone()
        db.execute("UPDATE ledger SET hash = ?", (chain.hash_of(facts),))
    with pytest.raises(InputError, match="was not written with these marks"):
        Ledger(path).reconcile()
    path.write_bytes(before)
    assert Ledger(path).reconcile() == NANO // 10  # an old copy, and known as one
    ask(path, "again")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET kind = 'x' WHERE seq = 1",
        "DELETE FROM entry WHERE seq = 1",
        "UPDATE entry SET what = '{}' WHERE seq = 2",
        "UPDATE entry SET asker = 'x' WHERE seq = 2",
    ],
)
def test_its_first_change_verifies_all_of_it(folder: Path, statement: str) -> None:
    edit(folder / "plain.db", statement)
    assert outcome(lambda: ask(folder / "plain.db", "more")) == "unavailable"
    assert edit(folder / "plain.db", "PRAGMA user_version") == [(2,)]


def test_ahead_of_its_mark_without_a_code_the_owner_must_say_what_holds(folder: Path) -> None:
    """As after a crash of older software, which nobody can tell from a forgery."""
    path = folder / "plain.db"
    edit(
        folder / "marks.db",
        "UPDATE head SET seq = 3, hash = (SELECT hash FROM history WHERE seq = 3)",
    )
    assert outcome(lambda: ask(path, "more")) == "ledger_rolled_back"
    Ledger(path).reconcile()
    ask(path, "more")


def test_killed_between_ledger_and_mark_its_first_change_is_no_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "plain.db"
    with monkeypatch.context() as crash:
        crash.setattr("privcal.trusted.marks.Marks.raise_to", lambda *_: None)
        ask(path, "more")
    assert (version(path), Ledger(path).in_step) == (4, True)
    ask(path, "and more")
    assert Ledger(path).nano_spent == 7 * NANO // 10


def test_marks_that_do_not_know_it_need_its_owners_word(folder: Path) -> None:
    (folder / "marks.db").unlink()
    assert outcome(lambda: ask(folder / "plain.db", "more")) == "ledger_rolled_back"
    with pytest.raises(InputError, match="write-off"):
        Ledger(folder / "plain.db").reconcile()
    Ledger(folder / "plain.db").reconcile(write_off=0.1)
    ask(folder / "plain.db", "more")
    ledger = Ledger(folder / "plain.db")
    ledger.set_policy(replace(ledger.policy, epsilon=2.0))
    assert ledger.nano_spent == 7 * NANO // 10
