"""The same people get no second budget because a command was typed differently."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.data import opening
from privcal.data.opening import SameRows
from privcal.data.place import Data
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.conftest import Run
from tests.support.builders import NEW, a_clinic, a_file, random_scores


@pytest.fixture
def spent(run: Run, tmp_path: Path) -> Path:
    """Data whose whole budget of 1 is used up, in a folder of their own."""
    (tmp_path / "north").mkdir()
    data = a_clinic(tmp_path / "north" / "h.npz")
    run.ok("ledger", "create", data, "--per-row")
    run.ok("calibrate", data, "--out", tmp_path / "first.json")
    return data


def ask(run: Run, tmp_path: Path, *args: object) -> tuple[int, str]:
    code, _, stderr = run("calibrate", *args, "--again", "--out", tmp_path / "again.json")
    return code, stderr


def test_the_same_file_in_any_spelling_has_the_same_ledger(
    run: Run, spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.npz").symlink_to(spent)
    (tmp_path / "folder").symlink_to(spent.parent)
    monkeypatch.chdir(spent.parent)
    for spelling in (
        "h.npz",
        tmp_path / "link.npz",
        tmp_path / "folder" / "h.npz",
        "../north/h.npz",
    ):
        for more in ((), NEW):
            code, stderr = ask(run, tmp_path, spelling, *more)
            assert (code, "over_budget" in stderr) == (1, True), (spelling, more)


def test_a_hard_link_is_the_same_file(run: Run, spent: Path, tmp_path: Path) -> None:
    os.link(spent, tmp_path / "hard.npz")
    code, stderr = ask(run, tmp_path, tmp_path / "hard.npz", *NEW)
    assert (code, "over_budget" in stderr) == (1, True)
    code, stderr = ask(run, tmp_path, tmp_path / "hard.npz", spent, *NEW)
    assert (code, "are one file" in stderr) == (2, True)


def test_a_folder_and_the_file_in_it_are_one_source(run: Run, tmp_path: Path) -> None:
    scores = random_scores(30)
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "logits.npy", scores.outputs.array)
    np.save(tmp_path / "npy" / "labels.npy", scores.labels)
    assert ask(run, tmp_path, tmp_path / "npy", *NEW)[0] == 0
    code, stderr = ask(run, tmp_path, tmp_path / "npy" / "logits.npy", *NEW)
    assert (code, "over_budget" in stderr) == (1, True)
    code, stderr = ask(run, tmp_path, tmp_path / "npy", tmp_path / "npy" / "logits.npy", *NEW)
    assert (code, "given twice" in stderr) == (2, True)


def test_a_renamed_file_keeps_its_ledger(run: Run, spent: Path, tmp_path: Path) -> None:
    moved = spent.rename(tmp_path / "h-old.npz")
    code, stderr = ask(run, tmp_path, moved, *NEW)
    assert (code, "over_budget" in stderr) == (1, True)


def test_a_folder_moved_with_data_and_ledger_goes_on(run: Run, spent: Path, tmp_path: Path) -> None:
    spent.parent.rename(tmp_path / "south")
    code, stderr = ask(run, tmp_path, tmp_path / "south" / "h.npz", *NEW)
    assert (code, "over_budget" in stderr) == (1, True)


def test_another_file_with_the_number_of_an_old_inode_is_another_file(tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    privcal.create_ledgers(data, per_row=True)
    with open(data.rename(tmp_path / "other.npz"), "r+b") as file:  # the same inode, other rows
        file.truncate()
        rows = random_scores(7, seed=9)
        np.savez(file, logits=rows.outputs.array, labels=rows.labels)
    with pytest.raises(privcal.InputError, match="under a new name"):  # or it was edited
        opening.find(Data.at(tmp_path / "other.npz"))
    shutil.copy(tmp_path / "other.npz", tmp_path / "copy.npz")
    assert opening.find(Data.at(tmp_path / "copy.npz")) is None
    privcal.attach_data(f"{data}.ledger", tmp_path / "other.npz")
    found = opening.find(Data.at(tmp_path / "other.npz"))
    assert found is not None
    assert found.id == privcal.Ledger(f"{data}.ledger").id


@pytest.mark.parametrize("how", ["another home", "other marks", "no marks"])
def test_a_ledger_beside_the_data_is_seen_whoever_asks(
    run: Run, spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "another home":
        monkeypatch.delenv("PRIVCAL_MARKS")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    elif how == "other marks":
        monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "other" / "marks.db"))
    else:
        shutil.rmtree(tmp_path / "elsewhere")
    code, stderr = ask(run, tmp_path, spent, *NEW, "--ledger-dir", tmp_path / "books")
    assert (code, "already has the ledger" in stderr) == (2, True)
    assert not (tmp_path / "books").exists()
    code, stderr = ask(run, tmp_path, spent, *NEW)
    assert (code, "ledger_rolled_back" in stderr) == (1, True)  # its own marks are not these


def test_a_ledger_elsewhere_is_found_by_the_note_of_its_data(run: Run, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    books = ("--ledger-dir", tmp_path / "books")
    assert ask(run, tmp_path, data, *NEW, *books)[0] == 0
    code, stderr = ask(run, tmp_path, data, *NEW)
    assert (code, "over_budget" in stderr) == (1, True)
    code, stderr = ask(run, tmp_path, data, *NEW, "--ledger-dir", tmp_path / "other")
    assert (code, "already has the ledger" in stderr) == (2, True)


def test_a_ledger_serves_no_other_file_of_the_same_name(
    run: Run, spent: Path, tmp_path: Path
) -> None:
    (tmp_path / "south").mkdir()
    south = a_clinic(tmp_path / "south" / "h.npz", seed=5)
    books = ("--ledger-dir", tmp_path / "books")
    assert ask(run, tmp_path, south, *NEW, *books, "--campaign", "spring")[0] == 0
    before = privcal.Ledger(tmp_path / "books" / "h.npz.ledger").nano_spent
    north = a_clinic(tmp_path / "h.npz", seed=6)
    for more in (NEW, ()):  # neither with a new ledger nor from the other's
        code, stderr = ask(run, tmp_path, north, *more, *books, "--campaign", "spring")
        assert (code, f"is the ledger of {south}" in stderr) == (2, True)
    code, stderr = ask(run, tmp_path, spent, *books, "--campaign", "spring")
    assert code == 2
    assert privcal.Ledger(tmp_path / "books" / "h.npz.ledger").nano_spent == before


def test_a_lost_ledger_is_told_and_made_anew_only_where_it_was(
    run: Run, spent: Path, tmp_path: Path
) -> None:
    Path(f"{spent}.ledger").unlink()
    code, stderr = ask(run, tmp_path, spent)
    assert (code, "is gone" in stderr) == (2, True)
    code, stderr = ask(run, tmp_path, spent, *NEW, "--ledger-dir", tmp_path / "books")
    assert (code, "and is gone" in stderr) == (2, True)
    code, stderr = ask(run, tmp_path, spent, *NEW)
    assert (code, "is gone" in stderr) == (2, True)  # it had one: that is not new
    assert "is gone" in run.fails("ledger", "show", spent)
    code, stdout, stderr = run("ledger", "create", spent, "--per-row")
    assert (code, stderr, "epsilon 1 carried over" in stdout) == (0, "", True)
    code, stderr = ask(run, tmp_path, spent)
    assert (code, "over_budget" in stderr) == (1, True)  # with what the old one had spent


def test_data_and_ledger_carried_to_another_machine_go_on_by_their_owners_word(
    run: Run, spent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "another-machine" / "marks.db"))
    new = tmp_path / "new"
    new.mkdir()
    for name in ("h.npz", "h.npz.ledger"):
        shutil.copy(spent.parent / name, new / name)
    shutil.rmtree(spent.parent)
    shutil.rmtree(tmp_path / "elsewhere")
    for more in ((), NEW):
        code, stderr = ask(run, tmp_path, new / "h.npz", *more)
        assert (code, "privcal ledger attach" in stderr) == (2, True)
    code, _, stderr = run("ledger", "attach", new / "h.npz.ledger", new / "h.npz")
    assert (code, "ledger_rolled_back" in stderr) == (1, True)
    run.ok("ledger", "reconcile", new / "h.npz.ledger", "--write-off", 0)
    run.ok("ledger", "attach", new / "h.npz.ledger", new / "h.npz")
    code, stderr = ask(run, tmp_path, new / "h.npz")
    assert (code, "over_budget" in stderr) == (1, True)


@pytest.mark.parametrize("how", ["a copy", "as Parquet", "as CSV"])
def test_the_same_rows_under_another_name_are_told(
    run: Run, tmp_path: Path, spent: Path, how: str
) -> None:
    scores = privcal.read_scores(spent)
    copy = tmp_path / {"a copy": "copy.npz", "as Parquet": "h.parquet", "as CSV": "h.csv"}[how]
    columns = {f"logit_{j}": scores.outputs.array[:, j] for j in range(scores.classes)}
    frame = pl.DataFrame({**columns, "label": scores.labels})
    if how == "a copy":
        shutil.copy(spent, copy)
    else:
        frame.write_parquet(copy) if how == "as Parquet" else frame.write_csv(copy)
    _, stderr = run.ok("ledger", "create", copy, "--per-row")
    assert f"the same rows have the ledger {spent}.ledger" in stderr
    again = Path(shutil.copy(copy, tmp_path / f"again{copy.suffix}"))
    with pytest.warns(SameRows):
        privcal.create_ledgers(again, per_row=True)
    code, _, stderr = run("ledger", "create", a_clinic(tmp_path / "new.npz", seed=77), "--per-row")
    assert (code, stderr) == (0, "")


def test_a_new_week_is_attached_and_all_charges_add_up(
    run: Run, tmp_path: Path, spent: Path
) -> None:
    week = a_clinic(tmp_path / "week-2.npz", seed=3)
    code, stderr = ask(run, tmp_path, week)
    assert (code, "has no ledger" in stderr) == (2, True)
    run.ok("ledger", "attach", f"{spent}.ledger", week)
    code, stderr = ask(run, tmp_path, week)
    assert (code, "over_budget" in stderr) == (1, True)
    other = a_clinic(tmp_path / "other.npz", seed=4)
    run("ledger", "create", other, "--per-row")
    assert "already has the ledger" in run.fails("ledger", "attach", f"{spent}.ledger", other)


def test_a_table_is_split_in_one_way_only(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "icu.csv"
    table.write_text("hospital,ward,probability,label\n" + "A,1,0.5,1\nB,2,0.25,0\n" * 5)
    run("ledger", "create", table, "--source-column", "hospital", "--per-row")
    for marks in ("known", "lost"):
        for args in ((), ("--source-column", "ward")):
            code, stderr = ask(run, tmp_path, table, *NEW, *args)
            assert (code, "already has ledgers" in stderr) == (2, True), (marks, args)
        if marks == "known":
            shutil.rmtree(tmp_path / "elsewhere")


def test_a_split_table_is_spoken_of_by_its_parts(run: Run, tmp_path: Path) -> None:
    text = "hospital,pid,probability,label\n" + "A,p,0.5,1\nB,q,0.25,0\n" * 5
    table = a_file(tmp_path / "icu.csv", text)
    split = ("--source-column", "hospital")
    code, stderr = ask(run, tmp_path, table, *split)
    assert (code, f"ledger create {table} --source-column hospital" in stderr) == (2, True)
    run("ledger", "create", table, *split, "--person", "pid")
    assert "name one, such as" in run.fails("ledger", "policy", table)
    code, stdout, _ = run("ledger", "show", table, "--json")
    assert (code, [one["name"] for one in json.loads(stdout)["ledgers"]]) == (0, ["A", "B"])
    stdout, _ = run.ok("source", "check", table)
    assert "Split by its column hospital into sources" in " ".join(stdout.split())
    one = tmp_path / "icu.csv.ledgers" / "A.ledger"
    assert f"{table} (hospital A)" in run.json("ledger", "show", one)["data"]
    week = a_file(tmp_path / "icu-2.csv", text.replace("0.5", "0.75"))
    run.ok("ledger", "attach", table, week, *split)
    assert ask(run, tmp_path, table, *split)[0] == 0
    code, stderr = ask(run, tmp_path, week, *split)
    assert (code, "over_budget" in stderr) == (1, True)
    week.write_text(text + "C,r,0.5,1\n")
    assert "no ledger for hospital C" in run.fails("ledger", "attach", table, week, *split)


def test_a_public_list_says_which_sources_there_are(run: Run, tmp_path: Path) -> None:
    """One row more adds no source to the map, the sketch or the ledgers."""
    heard = []
    (tmp_path / "hospitals.txt").write_text("A\nB\nC\n")
    for more in ("", "rare disease unit,0.5,1\n"):
        folder = tmp_path / f"with{len(more)}"
        folder.mkdir()
        table = folder / "icu.csv"
        table.write_text("hospital,probability,label\n" + "A,0.5,1\nB,0.25,0\n" * 5 + more)
        listed = ("--source-column", "hospital", "--source-list", tmp_path / "hospitals.txt")
        out = ("--out", folder / "m.json", "--sketch", folder / "s.json", "--method", "sketch")
        said = run.json("calibrate", table, *NEW, *listed, *out)
        ledgers = sorted(p.name for p in (folder / "icu.csv.ledgers").iterdir())
        named = [e.source for e in privcal.Sketch.load(folder / "s.json").answers]
        heard.append((ledgers, named, list(said["spent"])))
    assert heard[0] == heard[1]
    assert heard[0][1] == ["A", "B", "C"]


def test_the_unit_of_protection_never_weakens(run: Run, tmp_path: Path) -> None:
    """A new export calls the column otherwise: sixty rows of one person would all count."""
    rows = [f"p{i % 6},0.5,1" for i in range(60)]
    table = a_file(tmp_path / "visits.csv", ["person,probability,label", *rows])
    run("ledger", "create", table, "--person", "person")
    ledger = privcal.Ledger(f"{table}.ledger")
    table.write_text("\n".join(["person_id,probability,label", *rows]))
    code, stderr = ask(run, tmp_path, table)
    assert (code, "no person ids" in stderr) == (2, True)
    assert run("ledger", "attach", f"{table}.ledger", table)[0] == 2
    with pytest.raises(privcal.Refused) as refused:  # as a site would answer
        privcal.Source(Data.at(table, person="person"), ledger=ledger).answer(
            Question.of(Gap(), 0.1, "r")
        )
    assert refused.value.code == "unavailable"
    with pytest.raises(privcal.InputError, match="protects persons"):
        privcal.Source(privcal.read_scores(table), ledger=ledger)
    run.ok("ledger", "attach", f"{table}.ledger", table, "--person", "person_id")


def test_an_askers_flag_never_changes_whose_rows_count(run: Run, tmp_path: Path) -> None:
    """One patient has 60 of 100 rows, each of another visit."""
    rows = [f"{'p' if i < 60 else i},v{i},H{i % 2},0.5,1" for i in range(100)]
    header = "patient,visit,hospital,probability,label"
    table = a_file(tmp_path / "visits.csv", [header, *rows])
    run("ledger", "create", table, "--person", "patient")
    for more in (("--person", "visit"), ("--per-row",)):
        code, stderr = ask(run, tmp_path, table, "--new-ledger", *more)
        assert code == (2 if "--person" in more else 0), stderr
    assert len(privcal.open_sources([table])[0].counted_rows()) == 41
    code, _, stderr = run("ledger", "attach", f"{table}.ledger", table, "--person", "visit")
    assert (code, "other persons" in stderr) == (2, True)
    split = a_file(tmp_path / "split.csv", [header, *rows])
    (tmp_path / "one.txt").write_text("H1\n")
    by = ("--source-column", "hospital")
    run(
        "ledger", "create", split, *by, "--source-list", tmp_path / "one.txt", "--person", "patient"
    )
    assert "leave --person out" in run.fails("ledger", "create", split, *by, "--person", "visit")


def test_calling_the_person_ids_something_else_does_not_count_other_persons(
    tmp_path: Path, run: Any
) -> None:
    rows = [f"v{row},{row % 10},0.{row + 1},{row % 2}" for row in range(60)]
    table = a_file(tmp_path / "visits.csv", ["visit,patient,probability,label", *rows])
    run.ok("ledger", "create", table, "--person", "patient")
    other = ("--person", "visit", "--columns", "logit=patient")
    assert "other persons" in run.fails("ledger", "attach", table, table, *other)
    assert len(privcal.open_sources([table])[0].counted_rows()) == 10


def test_a_file_renamed_beside_its_successor_keeps_its_ledger(run: Run, tmp_path: Path) -> None:
    current = a_clinic(tmp_path / "current.npz")
    assert ask(run, tmp_path, current, *NEW)[0] == 0
    week = current.rename(tmp_path / "week-45.npz")
    a_clinic(current, seed=8)  # the new export has the old name, and with it the ledger
    for file in (week, current):
        code, stderr = ask(run, tmp_path, file, *NEW)
        assert (code, "over_budget" in stderr) == (1, True)


def test_a_file_edited_and_then_renamed_is_not_taken_for_new(run: Run, tmp_path: Path) -> None:
    table = a_file(tmp_path / "h.csv", "probability,label\n" + "0.5,1\n" * 20)
    assert ask(run, tmp_path, table, *NEW)[0] == 0
    with open(table, "a") as file:
        file.write("0.25,0\n")
    moved = table.rename(tmp_path / "renamed.csv")
    code, stderr = ask(run, tmp_path, moved, *NEW)
    assert (code, "under a new name" in stderr) == (2, True)
    run.ok("ledger", "attach", f"{table}.ledger", moved)
    code, stderr = ask(run, tmp_path, moved)
    assert (code, "over_budget" in stderr) == (1, True)


def test_a_ledger_kept_elsewhere_is_found_from_another_account(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_clinic(tmp_path / "h.npz")
    assert ask(run, tmp_path, data, *NEW, "--ledger-dir", tmp_path / "books")[0] == 0
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "another" / "marks.db"))
    code, stderr = ask(run, tmp_path, data, *NEW)
    assert (code, "ledger_rolled_back" in stderr) == (1, True)
    code, stderr = ask(run, tmp_path, data, *NEW, "--ledger-dir", tmp_path / "more")
    assert (code, "already has the ledger" in stderr) == (2, True)


def test_private_rows_are_not_taken_for_public_ones(run: Run, tmp_path: Path) -> None:
    data, other = (
        a_clinic(tmp_path / f"{n}.npz", rows=100, seed=s) for n, s in (("a", 1), ("b", 2))
    )
    for file in (data, other):
        run("ledger", "create", file, "--per-row", "--epsilon", 5)
    os.link(data, tmp_path / "link.npz")
    shutil.copy(data, tmp_path / "copy.npz")
    for public in (data, other, tmp_path / "link.npz", tmp_path / "copy.npz"):
        code, stderr = ask(run, tmp_path, data, "--method", "sketch", "--public", public)
        assert (code, "no privacy" in stderr) == (2, True), public
    assert privcal.Ledger(f"{data}.ledger").nano_spent == 0


def test_another_week_of_one_ledger_does_not_go_on_with_its_campaign(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (a_clinic(tmp_path / f"week-{i}.npz", seed=i) for i in (1, 2))
    run("ledger", "create", one, "--per-row", "--epsilon", 2)
    run("ledger", "attach", one, two)
    with monkeypatch.context() as disk:
        disk.setattr(privcal.maps.Map, "save", lambda self, path: 1 / 0)
        ask(run, tmp_path, one)
    code, _, stderr = run("calibrate", two, "--out", tmp_path / "again.json")
    assert (code, "was begun with other files" in stderr) == (2, True)


def test_ids_that_are_not_used_are_told_before_anything_is_spent(run: Run, tmp_path: Path) -> None:
    rows = [f"mrn-{i // 2},0.5,1" for i in range(60)]
    table = a_file(tmp_path / "visits.csv", ["patient_id,probability,label", *rows])
    stdout, stderr = run.ok("source", "check", table)
    assert "each row counts as one person" in stdout
    assert "is not used, and looks like ids: 30 different values in 60 rows" in stderr
    assert "--person patient_id" in stderr
    code, stdout, stderr = run("source", "check", table, "--person", "patient_id")
    assert (code, stderr) == (0, "")
    assert "60 rows of 30 persons" in stdout
    assert "--person COLUMN" in run.fails("ledger", "create", table)
    assert "not both" in run.fails("source", "check", table, "--person", "patient_id", "--per-row")
    code, _, stderr = run("ledger", "create", table, "--per-row")  # for ever: told here too
    assert (code, "looks like ids" in stderr) == (0, True)
    run.ok("source", "check", table, "--per-row")
    assert "protects a row" in run.fails("source", "check", table, "--person", "patient_id")


@pytest.mark.parametrize("command", ["create", "calibrate"])
def test_a_column_of_ids_that_is_not_there_makes_no_ledger(
    run: Run, tmp_path: Path, command: str
) -> None:
    data = a_clinic(tmp_path / "h.npz")
    args = ("ledger", "create", data) if command == "create" else (
        "calibrate", data, "--new-ledger", "--out", tmp_path / "m.json")  # fmt: skip
    for column in ("person", "patient"):
        assert column in run.fails(*args, "--person", column)
    assert not list(tmp_path.glob("*.ledger"))


def test_a_ledger_in_the_place_of_a_lost_one_protects_no_less(run: Run, tmp_path: Path) -> None:
    table = a_file(tmp_path / "visits.csv", "pid,probability,label\n" + "a,0.5,1\nb,0.25,0\n" * 5)
    run("ledger", "create", table, "--person", "pid")
    Path(f"{table}.ledger").unlink()
    assert "must protect persons too" in run.fails("ledger", "create", table, "--per-row")
    assert not Path(f"{table}.ledger").exists()
    run.ok("ledger", "create", table, "--person", "pid")


def test_the_owners_policy_holds_whatever_the_asker_types(run: Run, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    (tmp_path / "owner.toml").write_text(
        'epsilon = 1\nepsilon_per_request = 0.5\naskers = ["acme"]\nqueries = ["gap"]\n'
    )
    run("ledger", "create", data, "--per-row", "--policy", tmp_path / "owner.toml")
    (tmp_path / "wide.toml").write_text(
        'epsilon = 100\nepsilon_per_request = 100\naskers = ["acme", "mallory"]\n'
        'queries = ["gap", "hats"]\n'
    )
    wide, acc_t = ("--policy", tmp_path / "wide.toml"), ("--method", "acc-t")
    for more in ((), wide):
        for args, code in (
            (("--asker", "mallory"), "asker"),
            (("--asker", "acme", "--method", "sketch"), "query"),
            (("--asker", "acme", *acc_t, "--epsilon", 100), "over_request_limit"),
            (("--asker", "acme", *acc_t, "--epsilon", 2), "over_budget"),
        ):
            exit_code, stderr = ask(run, tmp_path, data, *args, *more)
            assert (exit_code, code in stderr) == (1, True), (args, stderr)
    assert privcal.Ledger(f"{data}.ledger").nano_spent == 0
    (tmp_path / "narrow.toml").write_text('askers = ["someone else"]\n')
    policy = ("--policy", tmp_path / "narrow.toml")
    exit_code, stderr = ask(run, tmp_path, data, "--asker", "acme", *policy)
    assert (exit_code, "asker" in stderr) == (1, True)
    assert ask(run, tmp_path, data, "--asker", "acme", *acc_t, "--epsilon", 1)[0] == 0


def test_every_change_of_the_policy_is_recorded(run: Run, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    run("ledger", "create", data, "--per-row", "--epsilon", 1)
    run("ledger", "policy", data, "--epsilon", 3)
    said = run.json("ledger", "show", data)
    assert said["policy"]["epsilon"] == 3
    rules = [json.loads(e["what"])["epsilon"] for e in said["entries"] if e["kind"] == "policy"]
    assert rules == [1.0, 3.0]


def test_the_owner_changes_one_rule_at_a_time_by_command(run: Run, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    run("ledger", "create", data, "--per-row", "--epsilon", 2)
    ledger = privcal.Ledger(f"{data}.ledger")
    for option, value, changed in (
        ("--minimum-epsilon", "0.01", {"minimum_epsilon": 0.01}),
        ("--requests-per-hour", "60", {"requests_per_hour": 60}),
        ("--epsilon-by-asker", "acme=0.5", {"epsilon_by_asker": {"acme": 0.5}}),
        ("--epsilon-by-asker", "a=b=1", {"epsilon_by_asker": {"acme": 0.5, "a=b": 1.0}}),
        ("--approve", None, {"approve": True}),
        ("--no-approve", None, {"approve": False}),
        ("--rows", "40", {"rows": 40}),
    ):
        before = ledger.policy.to_dict()
        said = (option,) if value is None else (option, value)
        code, stdout, stderr = run("ledger", "policy", data, *said)
        assert (code, stderr) == (0, "")
        assert ledger.policy.to_dict() == {**before, **changed}
    shown = "\n".join(line for line in stdout.splitlines() if " = " in line)
    (tmp_path / "shown.toml").write_text(shown)  # what is shown is a policy file
    assert privcal.Policy.load(tmp_path / "shown.toml") == ledger.policy
    for wrong in ("acme", "=1", "acme=much", "acme=0"):
        code, _, stderr = run("ledger", "policy", data, "--epsilon-by-asker", wrong)
        assert (code, "epsilon" in stderr, stderr.count("\n")) == (2, True, 1), wrong
    assert len(ledger.entries()) == 9  # the data, the first policy, and seven changes
    assert "about 40 rows, as you wrote" in " ".join(run("source", "check", data)[1].split())


def test_the_owner_sees_what_the_rules_are_and_what_is_reserved(run: Run, tmp_path: Path) -> None:
    data = a_clinic(tmp_path / "h.npz")
    run("ledger", "create", data, "--per-row", "--epsilon", 2)
    rules = ("--epsilon-by-asker", "acme=0.5", "--requests-per-hour", "60", "--approve")
    run("ledger", "policy", data, *rules)
    stdout = " ".join(run("source", "check", data)[1].split())
    for sentence in (
        "one request may cost from 0.001 to 2.",
        "Of that, acme may spend at most 0.5.",
        "How often: at most 60 requests an hour.",
        "Nothing is answered before you approve the campaign.",
    ):
        assert sentence in stdout
    run("ledger", "policy", data, "--no-approve")
    ledger = privcal.Ledger(f"{data}.ledger")
    asked = [Question.of(Gap(), 0.4, "spring")]
    assert ledger.reserve(asked, "acme", ledger.policy) is None
    assert "reserved now: epsilon 0.4 for campaign spring of acme" in run("ledger", "show", data)[1]
    said = run.json("ledger", "show", data)
    assert said["reserved"] == [
        {"asker": "acme", "campaign": "spring", "epsilon": 0.4, "alone": 0.4}
    ]
    assert said["waiting"] == 0


def test_the_owner_names_a_source_and_no_path_leaves(run: Run, tmp_path: Path) -> None:
    sketches = []
    for place, name in (("a", "St. Anna"), ("b", None), ("c", None)):
        (tmp_path / place).mkdir()
        data = a_clinic(tmp_path / place / "data.npz", seed=ord(place))
        named = () if name is None else ("--name", name)
        run("ledger", "create", data, "--per-row", *named)
        sketches.append(tmp_path / place / "s.json")
        out = ("--out", tmp_path / place / "m.json", "--sketch", sketches[-1])
        run.ok("calibrate", data, "--method", "sketch", "--campaign", "spring", *out)
        assert str(tmp_path) not in sketches[-1].read_text()
    # Three hospitals, two of them with a file of the same name.
    spent = run.json("sketch", "merge", *sketches, "--out", tmp_path / "all")["spent"]
    assert len(spent) == 3
    assert set(spent.values()) == {1.0}
    assert "St. Anna" in spent


def test_one_ledger_is_one_source_in_a_merged_sketch_whatever_it_is_called(
    run: Run, tmp_path: Path
) -> None:
    data = a_clinic(tmp_path / "h.npz")
    run("ledger", "create", data, "--per-row", "--epsilon", 2)
    for campaign in ("one", "two"):
        out = ("--again", "--out", tmp_path / "m.json", "--sketch", tmp_path / f"{campaign}.json")
        run("calibrate", data, "--method", "sketch", "--campaign", campaign, *out)
    two = json.loads((tmp_path / "two.json").read_text())
    two["answers"][0]["source"] = "another name"
    (tmp_path / "two.json").write_text(json.dumps(two))
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    said = run.json("sketch", "merge", *files, "--out", tmp_path / "all.json")
    assert list(said["spent"].values()) == [2.0]
    merged = privcal.Sketch.load(tmp_path / "all.json")
    assert merged.epsilon == privcal.Ledger(f"{data}.ledger").nano_spent / 1e9
    assert merged.independent_answers == 1
    run("sketch", "fit", tmp_path / "all.json", "--out", tmp_path / "all-map.json")
    facts: Any = privcal.load_map(tmp_path / "all-map.json").provenance
    assert (facts["sources"], facts["epsilon_per_source"]) == (1, 2.0)


# --- a Python caller meets the same rules ---------------------------------------------------


def test_from_python_nobodys_private_rows_are_taken_as_public_ones(tmp_path: Path) -> None:
    asked, other = (a_clinic(tmp_path / f"{name}.npz", rows=80, seed=ord(name)) for name in "ab")
    privcal.create_ledgers(asked, per_row=True)
    privcal.create_ledgers(other, per_row=True)
    for private in (asked, other):  # one of those asked, and one that is not asked at all
        copy = Path(shutil.copy(private, tmp_path / "clean.npz"))
        with pytest.raises(privcal.InputError, match="would get no privacy"):
            privcal.open_sources([asked], public=privcal.read_scores(copy))
    new = a_clinic(tmp_path / "new.npz", rows=80, seed=2)  # no ledger knows it yet
    with pytest.raises(privcal.InputError, match="would get no privacy"):
        privcal.open_sources([new], new_ledgers=True, per_row=True, public=privcal.read_scores(new))
    assert not Path(f"{new}.ledger").exists()
    clean = a_clinic(tmp_path / "public.npz", rows=80, seed=1)
    [source] = privcal.open_sources([asked], public=privcal.read_scores(clean))
    with pytest.raises(privcal.InputError, match="would get no privacy"):
        privcal.calibrate([source], "sketch", public=privcal.read_scores(asked))
    assert source.ledger.nano_spent == 0


def test_a_table_without_rows_has_sources_only_where_they_are_listed(tmp_path: Path) -> None:
    table = a_file(tmp_path / "icu.csv", "hospital,probability,label\n")
    how: dict[str, Any] = {"source_column": "hospital", "per_row": True}
    with pytest.raises(privcal.InputError, match=r"icu\.csv has no rows"):
        privcal.open_sources([table], new_ledgers=True, **how)
    with pytest.raises(privcal.InputError, match=r"icu\.csv has no rows"):
        privcal.create_ledgers(table, privcal.Policy(1.0), **how)
    listed = privcal.open_sources([table], new_ledgers=True, source_names=["A"], **how)
    assert [source.name for source in listed] == ["A"]


def test_from_python_no_sources_are_an_error(tmp_path: Path) -> None:
    table = a_file(tmp_path / "icu.csv", "hospital,probability,label\n" + "A,0.5,1\nB,0.25,0\n" * 5)
    with pytest.raises(privcal.InputError, match="there are no sources"):
        privcal.open_sources([])
    for names in ([], ["A", "A"], ["A", ""]):
        with pytest.raises(privcal.InputError, match="names of sources"):
            privcal.open_sources(
                [table],
                source_column="hospital",
                source_names=names,
                new_ledgers=True,
                per_row=True,
            )
    assert not (tmp_path / "icu.csv.ledgers").exists()


def test_from_python_a_single_text_is_no_list(tmp_path: Path) -> None:
    table = a_file(tmp_path / "icu.csv", "ward,probability,label\nA,0.9,1\nB,0.4,0\n")
    for alone in (table, str(table)):
        with pytest.raises(privcal.InputError, match="paths must be a list of files"):
            privcal.open_sources(alone, new_ledgers=True, per_row=True)
    split = {"per_row": True, "source_column": "ward"}
    with pytest.raises(privcal.InputError, match="must be a list, not 'AB' alone"):
        privcal.create_ledgers(table, source_names="AB", **split)
    assert os.listdir(tmp_path) == ["icu.csv"]


def test_from_python_one_name_is_not_given_to_many_sources(tmp_path: Path) -> None:
    table = a_file(tmp_path / "icu.csv", "hospital,probability,label\n" + "A,0.5,1\nB,0.25,0\n" * 5)
    with pytest.raises(privcal.InputError, match="name is for one source"):
        privcal.create_ledgers(table, per_row=True, name="St. Anna", source_column="hospital")
    assert not (tmp_path / "icu.csv.ledgers").exists()


def test_from_python_columns_that_look_like_ids_are_told(tmp_path: Path) -> None:
    ids = "".join(f"p{i // 2},0.5,1\n" for i in range(40))
    table = a_file(tmp_path / "h.csv", "patient,probability,label\n" + ids)
    with pytest.warns(UserWarning, match="column patient of .* looks like ids"):
        privcal.create_ledgers(table, per_row=True)


def test_from_python_data_are_attached_to_a_ledger_or_to_its_data(tmp_path: Path) -> None:
    data, *weeks = (a_clinic(tmp_path / f"week-{i}.npz", seed=i) for i in range(4))
    [ledger] = privcal.create_ledgers(data, per_row=True)
    for known, week in zip((ledger, ledger.path, data), weeks, strict=True):
        assert known is not None
        [(attached, _)] = privcal.attach_data(known, week)
        assert attached.id == ledger.id
    with pytest.raises(privcal.InputError, match="has no ledger"):
        privcal.attach_data(
            a_clinic(tmp_path / "none.npz", seed=8), a_clinic(tmp_path / "new.npz", seed=9)
        )
    with pytest.raises(privcal.InputError, match="table that source_column splits"):
        privcal.attach_data(ledger, data, source_column="hospital")


def test_a_file_may_have_a_number_larger_than_a_database_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows gives files and disks such numbers, and so do some file systems of Linux."""
    real = Path.stat

    def large(path: Path, **more: Any) -> os.stat_result:
        mode, inode, device, *rest = real(path, **more)
        return os.stat_result((mode, inode + 2**64 - 2**40, device + 2**63, *rest))

    data = a_clinic(tmp_path / "h.npz")
    monkeypatch.setattr(Path, "stat", large)
    [ledger] = privcal.create_ledgers(data, per_row=True)
    moved = data.rename(tmp_path / "moved.npz")
    found = opening.find(Data.at(moved))
    assert found is not None
    assert found.id == ledger.id
