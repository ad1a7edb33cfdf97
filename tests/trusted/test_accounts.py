"""New people, new budget: each person's account decides, and nobody else's."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.trusted import accounts
from privcal.trusted.accounts import person_hash
from privcal.trusted.book import Book
from privcal.trusted.epsilon import to_nano
from privcal.trusted.queries import CellHistogram, Gap
from privcal.trusted.question import Question
from tests.support.builders import a_file, a_ledger, edit, outcome, random_scores

POLICY = privcal.Policy(epsilon=1.0, budget="person")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path, "person", epsilon=1.0, budget="person")


def source(people: Sequence[str], ledger: Any) -> privcal.Source:
    return privcal.Source(random_scores(len(people), person=list(people)), ledger=ledger)


def count(people: Sequence[str], ledger: Any, request: str, epsilon: float = 0.5) -> float:
    """How many rows count in a request."""
    return float(
        source(people, ledger).answer(Question.of(CellHistogram(), epsilon, request)).values.sum()
    )


def slow_charge(spent: dict[str, int], present: set[str], nano: int, cap: int) -> set[str]:
    """The individual filter, written out: everybody by themselves."""
    may = set()
    for who in present:
        if spent.get(who, 0) + nano <= cap:
            spent[who] = spent.get(who, 0) + nano
            may.add(who)
    return may


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcdefgh")), st.integers(1, 12)), min_size=1, max_size=12
    ),
    st.integers(1, 30),
)
@settings(deadline=None, max_examples=150)
def test_the_accounts_are_those_of_everybody_by_themselves(
    requests: list[tuple[set[str], int]], cap: int
) -> None:
    with sqlite3.connect(":memory:", isolation_level=None) as db:
        db.executescript(accounts.ACCOUNT_TABLES)
        spent: dict[str, int] = {}
        for present, nano in requests:
            hashes = {person_hash(who, b"k"): who for who in present}
            may = accounts.charge(db, set(hashes), nano, cap)
            assert {hashes[one] for one in may} == slow_charge(spent, present, nano, cap)
        stored = {one: a.spent for a in accounts.read(db) for one in a.persons}
        assert stored == {person_hash(who, b"k"): amount for who, amount in spent.items()}
        assert len({a.spent for a in accounts.read(db)}) == len(accounts.read(db))


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcdefgh")), st.integers(1, 12)), min_size=1, max_size=12
    ),
    st.integers(1, 30),
    st.sampled_from("abcdefgh"),
)
@settings(deadline=None, max_examples=150)
def test_a_person_more_or_less_changes_nobody_elses_share(
    requests: list[tuple[set[str], int]], cap: int, who: str
) -> None:
    def told(without: set[str]) -> list[set[bytes]]:
        with sqlite3.connect(":memory:", isolation_level=None) as db:
            db.executescript(accounts.ACCOUNT_TABLES)
            return [
                accounts.charge(db, {person_hash(p, b"k") for p in present - without}, nano, cap)
                for present, nano in requests
            ]

    whole, rest = told(set()), told({who})
    assert [may - {person_hash(who, b"k")} for may in whole] == rest
    # And that person counted in no more than the total.
    own = sum(
        nano
        for (_, nano), may in zip(requests, whole, strict=True)
        if person_hash(who, b"k") in may
    )
    assert own <= cap


@pytest.mark.usefixtures("no_noise")
def test_whoever_comes_later_has_the_whole_budget(path: Path) -> None:
    old, new = ["ann", "bob", "cid"], ["dan", "eve"]
    assert count(old, path, "january") == 3
    assert count(old, path, "february") == 3
    assert count(old, path, "march") == 0  # all have spent 1: noise alone, and no refusal
    assert count([*old, *new], path, "april") == 2
    assert count([*old, *new], path, "may", 0.25) == 2
    assert count(new, path, "june") == 0  # 0.75 spent: another 0.5 is too much for them
    assert count(new, path, "july", 0.25) == 2


@pytest.mark.usefixtures("no_noise")
def test_a_person_is_known_in_other_data_of_the_same_ledger(path: Path) -> None:
    assert count(["ann", "bob"], path, "one", 1.0) == 2
    other = privcal.Source(
        random_scores(4, seed=9, person=["bob", "cid", "dan", "bob"]), ledger=path
    )
    assert other.answer(Question.of(CellHistogram(), 1.0, "two")).values.sum() == 2  # cid and dan


def test_where_everybodys_budget_is_used_up_an_answer_is_noise_and_no_refusal(path: Path) -> None:
    for request in range(12):
        answer = source(["ann"], path).answer(Question.of(Gap(), 0.5, f"r{request}"))
        assert answer.values.shape == (1,)
        assert answer.epsilon == 0.5
    codes = set()
    for people in (["ann"], ["new"], []):  # whoever is there, what is refused is the same
        with pytest.raises(privcal.Refused) as refused:
            source(people, path).answer(Question.of(Gap(), 1.5, "dear"))
        codes.add(refused.value.code)
    assert codes == {"over_request_limit"}


@pytest.mark.usefixtures("no_noise")
def test_a_repeated_request_is_free_and_charges_nobody(path: Path) -> None:
    assert count(["ann"], path, "r", 0.75) == 1
    assert count(["ann", "bob"], path, "r", 0.75) == 1  # the stored answer
    assert privcal.Ledger(path).persons() == [
        (750_000_000, {person_hash("ann", privcal.Ledger(path).secret)})
    ]


@pytest.mark.usefixtures("no_noise")
def test_a_crash_never_refunds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as crash:
        crash.setattr("privcal.trusted.source.add_noise", lambda *_: 1 / 0)
        with pytest.raises(privcal.Refused, match="unavailable"):
            source(["ann"], path).answer(Question.of(Gap(), 0.75, "r"))
    assert [spent for spent, _ in privcal.Ledger(path).persons()] == [to_nano(0.75)]
    assert outcome(lambda: source(["ann"], path).answer(Question.of(Gap(), 0.75, "r"))) == "lost"
    assert count(["ann"], path, "s", 0.5) == 0
    assert count(["ann"], path, "t", 0.25) == 1


@pytest.mark.usefixtures("no_noise")
def test_what_is_written_off_counts_against_everybody_and_newcomers_too(
    path: Path, tmp_path: Path
) -> None:
    copy = path.read_bytes()
    assert count(["ann"], path, "r", 0.75) == 1
    path.write_bytes(copy)  # which knows nothing of ann
    privcal.Ledger(path).reconcile()
    with pytest.raises(privcal.Refused, match="over_budget"):  # nobody could pay, whoever is there
        count(["ann", "bob"], path, "s", 0.5)
    assert count(["ann", "bob"], path, "t", 0.25) == 2
    assert count(["ann", "bob", "cid"], path, "u", 0.25) == 1


@pytest.mark.usefixtures("no_noise")
def test_rows_of_a_person_are_chosen_as_ever(path: Path) -> None:
    ledger = privcal.Ledger(path)
    ledger.set_policy(privcal.Policy(budget="person", rows_per_person=2))
    assert count(["ann"] * 5 + ["bob"], path, "r") == 3


def test_a_budget_for_persons_needs_ids_and_cannot_change_after_a_charge(
    path: Path, tmp_path: Path
) -> None:
    with pytest.raises(privcal.InputError, match="needs person ids"):
        privcal.Ledger.create(tmp_path / "rows.db", POLICY, unit="row")
    assert not (tmp_path / "rows.db").exists()
    with pytest.raises(privcal.InputError, match="population, person"):
        privcal.Policy(budget="household")
    ledger = privcal.Ledger(path)
    ledger.set_policy(privcal.Policy())
    ledger.set_policy(POLICY)  # nothing was charged yet
    source(["ann"], path).answer(Question.of(Gap(), 0.1, "r"))
    with pytest.raises(privcal.InputError, match="cannot change"):
        ledger.set_policy(privcal.Policy())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE account SET spent = 0",
        "DELETE FROM account WHERE number = (SELECT MAX(number) FROM account)",
        "UPDATE member SET persons = zeroblob(16)",
        "DELETE FROM member",
        "DELETE FROM account",
    ],
)
def test_damage_to_the_accounts_is_noticed(path: Path, damage: str) -> None:
    source(["ann", "bob"], path).answer(Question.of(Gap(), 0.5, "r"))
    source(["bob", "cid"], path).answer(Question.of(Gap(), 0.25, "s"))
    edit(path, damage)
    with pytest.raises(privcal.Refused, match="unavailable"):
        source(["ann"], path).answer(Question.of(Gap(), 0.1, "t"))


def test_the_owner_sees_how_many_can_still_be_asked_about(run: Any, tmp_path: Path) -> None:
    rows = [f"p{i},0.5,1" for i in range(20)]
    table = a_file(tmp_path / "visits.csv", ["pid,probability,label", *rows])
    (tmp_path / "p.toml").write_text('budget = "person"\nepsilon = 1\n')
    run("ledger", "create", table, "--person", "pid", "--policy", tmp_path / "p.toml")
    for name in ("one", "two"):
        out = ("--out", tmp_path / f"{name}.json", "--method", "one-hot-binning")
        run.ok("calibrate", table, "--epsilon", 1, *out)
    table.write_text(
        "\n".join(["pid,probability,label", *rows[10:], *(r + "1" for r in ("q1,0.5,", "q2,0.5,"))])
    )
    stdout, _ = run.ok("ledger", "show", table)
    assert "2 of 22 persons can still be asked about" in stdout
    assert "one person, with all their rows. Budget: epsilon 1, each person's own" in stdout
    said = run.json("ledger", "show", table)
    assert said["persons"] == {"left": 2, "all": 22}
    assert said["remains"] is None


@pytest.mark.slow
def test_a_campaign_every_month_keeps_the_noise_of_the_whole_budget(path: Path) -> None:
    """Statistical: over 400 months of new people the noise is that of ε = 1, not of 1/400."""
    totals = []
    for month in range(400):
        who = [f"{month}-{i}" for i in range(5)]
        answer = source(who, path).answer(Question.of(CellHistogram(1), 1.0, f"m{month}"))
        totals.append(answer.values.sum())
    # Two numbers, each with noise of variance 2 (very nearly): the sum has a deviation of 2.
    assert abs(np.mean(totals) - 5) < 5 * 2 / np.sqrt(400)
    assert np.std(totals) == pytest.approx(2.0, rel=0.25)


def test_sixteen_requests_at_once_charge_a_person_once_each(path: Path) -> None:
    def ask(number: int) -> int:
        question, ledger = Question.of(Gap(), 0.1, f"c{number}"), privcal.Ledger(path)
        ledger.charge(question, "a", POLICY)
        return len(ledger.charge_persons(question, "a", {b"0" * 16}, POLICY))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(ask, range(16))) == 10


@pytest.mark.usefixtures("no_noise")
def test_a_backup_from_between_the_two_charges_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of the request, and not yet of the persons: they would count again and again."""
    real = Book.charge_persons
    copies: list[bytes] = []

    def copied(self: Book, *args: Any) -> Any:
        copies.append(path.read_bytes())
        return real(self, *args)

    monkeypatch.setattr(Book, "charge_persons", copied)
    assert count(["ann"], path, "r", 1.0) == 1
    path.write_bytes(copies[0])
    with pytest.raises(privcal.Refused, match="ledger_rolled_back"):
        source(["ann"], path).answer(Question.of(Gap(), 1.0, "s"))


@pytest.mark.usefixtures("no_noise")
def test_the_same_people_spelt_otherwise_are_the_same_people(path: Path) -> None:
    assert count(["7", "8"], path, "r", 1.0) == 2
    assert count(["7.0", " 8 "], path, "s", 1.0) == 0


@pytest.mark.usefixtures("no_noise")
def test_a_source_that_outlives_its_ledger_uses_the_new_ones_secret(path: Path) -> None:
    alive = source(["ann", "bob"], path)
    alive.answer(Question.of(CellHistogram(), 0.5, "r"))
    path.unlink()
    privcal.Ledger.create(path, POLICY, unit="person")  # 0.5 is carried over, for everybody
    assert alive.answer(Question.of(CellHistogram(), 0.5, "s")).values.sum() == 2
    assert (
        source(["ann", "bob"], path).answer(Question.of(CellHistogram(), 0.5, "t")).values.sum()
        == 0
    )
    assert sum(len(persons) for _, persons in privcal.Ledger(path).persons()) == 2
