"""Whom a ledger protects is not weakened without a word: other ids, other spellings, copies."""

from __future__ import annotations

import json
import shutil
import sqlite3
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privcal
from privcal.data.ledger import Ledger
from privcal.data.opening import SameRows
from privcal.lab.audit.run import audit_data
from privcal.trusted.persons import folded
from privcal.trusted.queries import CellHistogram
from privcal.trusted.question import Question
from tests.conftest import Run
from tests.support.builders import a_source, random_scores

OLD = Path(__file__).parent.parent / "fixtures" / "da6e529" / "unit"


def visits(path: Path, header: str, rows: int = 100, row: str = "p{p},v{i}") -> Path:
    """A table of ten rows for each person, unless `row` says otherwise."""
    lines = [
        row.format(i=i, p=i % (rows // 10)) + f",{0.5 + i / 1000},{i % 2}" for i in range(rows)
    ]
    path.write_text("\n".join([f"{header},probability,label", *lines]) + "\n")
    return path


# --- attaching --------------------------------------------------------------------------------


def test_a_column_of_ids_is_not_dropped_where_rows_are_protected(run: Run, tmp_path: Path) -> None:
    first = visits(tmp_path / "week-1.csv", "pid,visit")
    second = visits(tmp_path / "week-2.csv", "pid,visit", 200)
    run.ok("ledger", "create", first, "--per-row")
    for said in (("--person", "pid"), ("--columns", "person=pid")):
        assert "protects each row" in run.fails("ledger", "attach", first, second, *said)
    with pytest.raises(privcal.InputError, match="protects each row"):
        privcal.attach_data(first, second, person="pid")
    _, err = run.ok("ledger", "attach", first, second)
    assert "column pid of" in err
    assert "looks like ids" in err


def test_other_ids_do_not_take_the_place_of_those_that_are_there(run: Run, tmp_path: Path) -> None:
    first = visits(tmp_path / "week-1.csv", "pid,visit")
    second = visits(tmp_path / "week-2.csv", "pid,visit", 200)
    run.ok("ledger", "create", first, "--person", "pid")
    assert "other persons" in run.fails("ledger", "attach", first, second, "--person", "visit")
    with pytest.raises(privcal.InputError, match="other persons"):
        privcal.attach_data(first, second, person="visit")
    run.ok("ledger", "attach", first, second)
    [source] = privcal.open_sources([second])
    assert len(source.counted_rows()) == 20


def test_ids_of_another_name_are_named_and_looked_at(run: Run, tmp_path: Path) -> None:
    first = visits(tmp_path / "week-1.csv", "pid,visit")
    run.ok("ledger", "create", first, "--person", "pid")
    renamed = visits(tmp_path / "week-2.csv", "patient,ward", 50, "p{p},a")
    assert run("ledger", "attach", first, renamed)[0] == 2
    assert run("ledger", "attach", first, renamed, "--person", "patient")[::2] == (0, "")
    later = visits(tmp_path / "later.csv", "patient,ward", 200, "q{i},a")
    assert run("ledger", "attach", first, later)[0] == 2  # it was named for the other file alone
    code, _, err = run("ledger", "attach", first, later, "--person", "patient")
    assert (code, "0 of 200 ids in patient" in err) == (0, True)
    wrong = visits(tmp_path / "week-3.csv", "patient,visit", 200)
    err = run.fails("ledger", "attach", first, wrong, "--person", "visit", "--json")
    assert "other persons" in err
    wrong = visits(tmp_path / "week-4.csv", "nhs_number,visit", 200)
    _, err = run.ok("ledger", "attach", first, wrong, "--person", "visit")
    assert "column nhs_number of" in err
    assert "0 of 200 ids in visit" in err
    assert "every row has an id of its own" in err


@pytest.mark.parametrize("split", [(), ("--source-column", "ward")], ids=["whole", "split"])
def test_ids_named_for_one_file_do_not_take_the_place_of_the_ledgers_own(
    run: Run, tmp_path: Path, split: tuple[str, ...]
) -> None:
    first = visits(tmp_path / "week-1.csv", "ward,pid,visit", row="a,p{p},v{i}")
    run.ok("ledger", "create", first, "--person", "pid", *split)
    renamed = visits(tmp_path / "week-2.csv", "ward,visit,day", 50, "a,p{p},{i}")
    run.ok("ledger", "attach", first, renamed, "--person", "visit", *split)
    third = visits(tmp_path / "week-3.csv", "ward,pid,visit", 200, "a,p{p},v{i}")
    code, _, err = run("ledger", "attach", first, third, "--person", "visit", *split)
    assert (code, "other persons" in err, "use --person pid" in err) == (2, True, True)
    run.ok("ledger", "attach", first, third, *split)
    [source] = privcal.open_sources([third], source_column=split[1] if split else None)
    assert len(source.counted_rows()) == 20


def test_from_python_ids_of_another_name_are_looked_at(tmp_path: Path) -> None:
    first = visits(tmp_path / "a.csv", "pid,ward", row="p{p},a")
    [ledger] = privcal.create_ledgers(first, person="pid")
    other = visits(tmp_path / "b.csv", "ward,visit", 300, "a,w{i}")
    with pytest.warns(UserWarning, match="0 of 300 ids in visit"):
        privcal.attach_data(ledger, other, person="visit")


# --- copies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["ledger create", "calibrate --new-ledger", "Python"])
def test_a_copy_that_is_split_is_told(run: Run, tmp_path: Path, make: str) -> None:
    first = visits(tmp_path / "h.csv", "pid,ward", row="p{p},{p}")
    by_ward = ("--person", "pid", "--source-column", "ward")
    run.ok("ledger", "create", first, "--person", "pid")
    copy = Path(shutil.copy(first, tmp_path / "h2.csv"))
    if make == "Python":
        with pytest.warns(SameRows, match="h.csv.ledger"):
            privcal.create_ledgers(copy, person="pid", source_column="ward")
        return
    args = ("ledger", "create", copy, *by_ward)
    if make != "ledger create":
        args = ("calibrate", copy, "--new-ledger", *by_ward, "--out", tmp_path / "map.json")
    _, err = run.ok(*args)
    assert err.count(f"the same rows have the ledger {first}.ledger") == 1


def test_a_copy_of_a_split_table_is_told(run: Run, tmp_path: Path) -> None:
    first = visits(tmp_path / "h.csv", "pid,ward", row="p{p},{p}")
    run.ok("ledger", "create", first, "--per-row", "--source-column", "ward")
    whole = Path(shutil.copy(first, tmp_path / "h2.csv"))
    assert "the same rows have the ledger" in run("ledger", "create", whole, "--per-row")[2]
    alone = visits(tmp_path / "new.csv", "pid,ward", 70, row="p{p},{p}")
    code, _, err = run("ledger", "create", alone, "--person", "pid", "--source-column", "ward")
    assert (code, err) == (0, "")


# --- one person in two spellings --------------------------------------------------------------

SPELLINGS = [
    ("José", unicodedata.normalize("NFD", "José")),
    ("ann", "ANN"),
    ("ann", "an\u200bn"),
    ("ann", "\ufeffann"),
    ("ann", "ann\0"),
    ("ann lee", "ann  lee"),
    ("ann lee", "ann\u00a0lee"),
    ("a7", "\uff41\uff17"),
    ("7", "７.0\u200e"),
    ("ΣΑΣ", "σας"),
    ("Straße", "STRASSE"),
    ("دل\u2067", "دل"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_one_person_in_two_spellings_is_one(one: str, other: str, tmp_path: Path) -> None:
    scores = random_scores(3, person=[one, other, "somebody else"])
    durable = privcal.Ledger.create(tmp_path / "s.ledger", unit="person")
    for ledger in (durable, None):
        source = privcal.Source(scores, ledger=ledger)
        assert len(source.counted_rows()) == 2
        assert source._exact(CellHistogram()).sum() <= 2 * CellHistogram().bound


def test_with_a_budget_for_each_person_both_spellings_have_one_account(tmp_path: Path) -> None:
    ids = [spelling for pair in SPELLINGS for spelling in pair]
    scores, policy = random_scores(len(ids), person=ids), privcal.Policy(2.0, budget="person")
    ledger = privcal.Ledger.create(tmp_path / "s.ledger", policy, unit="person")
    for round, row in enumerate((slice(None, None, 2), slice(1, None, 2))):
        one = privcal.Source(scores.take(np.arange(len(ids))[row]), ledger=ledger)
        one.answer(Question.of(CellHistogram(), 1.0, "spring", round=round))
    assert [spent for spent, _ in ledger.persons()] == [2 * 10**9]


def test_the_audit_removes_a_person_in_all_their_spellings() -> None:
    ids = ["Ann", "ann", "ANN", "Bob", "bob", "Cem"]
    result = audit_data(random_scores(6, person=ids), rows_per_person=2, only=["cell-histogram"])
    assert result.ok
    assert result.possible == 3


SPELLED = st.text(alphabet="aAbB é\u0301\u200b\0７7.0ßſK", max_size=5)


@given(st.lists(SPELLED, min_size=1, max_size=9), st.integers(1, 3), st.data())
def test_whoever_leaves_with_all_their_spellings_moves_nobody_elses_rows(
    ids: list[str], limit: int, draw: st.DataObject
) -> None:
    scores = random_scores(len(ids), person=ids, strict=False)
    source = a_source(scores, rows_per_person=limit)
    names = [folded(who) for who in scores.person]
    gone = draw.draw(st.sampled_from(sorted(set(names))))
    rest = np.array([row for row, who in enumerate(names) if who != gone], np.int64)
    less = privcal.Source(scores.take(rest), ledger=source.ledger)
    kept = source.counted_rows().tolist()
    assert rest[less.counted_rows()].tolist() == [row for row in kept if names[row] != gone]
    assert max(Counter(names[row] for row in kept).values()) <= limit


# --- a ledger from before ---------------------------------------------------------------------


def test_a_ledger_from_before_tells_persons_apart_as_it_did(run: Run, tmp_path: Path) -> None:
    for file in ("visits.csv", "visits.csv.ledger"):
        shutil.copy(OLD / file, tmp_path)
    table, expected = tmp_path / "visits.csv", json.loads((OLD / "expected.json").read_text())
    run.ok("ledger", "reconcile", f"{table}.ledger", "--write-off", 0)
    _, err = run.ok("ledger", "attach", f"{table}.ledger", table)
    assert "8 ids in pid" in err
    assert "would be 4 persons" in err
    assert "would be 4 persons" in run.ok("source", "check", table)[1]
    with pytest.warns(UserWarning, match="would be 4 persons"):
        [source] = privcal.open_sources([table])
    assert source.counted_rows().tolist() == expected["counted"]
    question = Question.of(CellHistogram(), 1.0, "spring")
    assert source.answer(question).values.tolist() == expected["answer"]
    source.answer(Question.of(CellHistogram(), 1.0, "summer"))
    assert [(spent, len(who)) for spent, who in Ledger.of(source.ledger).persons()] == [
        (2 * 10**9, 8)
    ]
    assert run.json("ledger", "show", table)["persons"] == {"left": 8, "all": 8}


def test_a_new_ledger_says_which_spellings_it_takes_for_one(run: Run, tmp_path: Path) -> None:
    table = Path(shutil.copy(OLD / "visits.csv", tmp_path / "visits.csv"))
    code, _, err = run("ledger", "create", table, "--person", "pid")
    assert (code, "8 ids in pid" in err, "count as 4 persons" in err) == (0, True, True)
    assert run.json("source", "check", table)["persons"] == 4


def test_software_from_before_refuses_a_new_ledger(tmp_path: Path) -> None:
    ledger = privcal.Ledger.create(tmp_path / "s.ledger", unit="person")
    with sqlite3.connect(ledger.path or "") as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] not in (2, 3)  # all it reads
