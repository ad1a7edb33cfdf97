"""One command makes the ledgers of many files: all are checked before any is made, and said in a line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data import opening
from tests.support.builders import NEW, a_clinic

PER_ROW = ("ledger", "create", "--per-row")


@pytest.fixture
def clinics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [a_clinic(Path(f"{name}.npz"), seed=ord(name)).name for name in "abcde"]


def made() -> list[str]:
    return sorted(path.name for path in Path().glob("*.ledger"))


def test_each_file_has_a_ledger_of_its_own(run: Any, clinics: list[str]) -> None:
    code, stdout, stderr = run(*PER_ROW, *clinics, "--epsilon", 2)
    assert (code, stderr) == (0, "")
    assert stdout.count("created ") == 5
    assert made() == [f"{clinic}.ledger" for clinic in clinics]
    assert {privcal.Ledger(path).policy.epsilon for path in made()} == {2.0}
    assert {privcal.Ledger(path).facts.name for path in made()} == set("abcde")


def test_from_python_too(clinics: list[str]) -> None:
    ledgers = privcal.create_ledgers(clinics, per_row=True)
    assert [ledger.facts.name for ledger in ledgers] == list("abcde")
    with pytest.raises(privcal.InputError, match="there are no data"):
        privcal.create_ledgers([], per_row=True)


@pytest.mark.parametrize(
    ("what", "more", "says"),
    [
        ("one that has a ledger", (), "d.npz already has the ledger"),
        ("one that is no scores", (), "d.npz"),
        ("one that is not there", (), "there is no file"),
        ("one twice", ("a.npz",), "is given twice"),
        ("a name for all", ("--name", "Anna"), "a name is for one source"),
        ("no such ids", ("--person", "pid"), "pid"),
    ],
)
def test_whatever_is_wrong_with_one_is_said_before_any_is_made(
    run: Any, clinics: list[str], what: str, more: tuple[str, ...], says: str
) -> None:
    command = PER_ROW
    if what == "one that has a ledger":
        run(*PER_ROW, "d.npz")
    elif what == "one that is no scores":
        Path("d.npz").write_text("hello")
    elif what == "one that is not there":
        Path("d.npz").unlink()
    elif what == "no such ids":
        command = ("ledger", "create")
    before = made()
    stderr = run.fails(*command, *clinics, *more)
    assert says in stderr
    assert stderr.count("\n") == 1
    assert made() == before


def test_where_it_fails_in_the_middle_it_says_which_were_made(
    run: Any, clinics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create, calls = opening.create, iter(range(9))

    def full(*args: Any, **more: Any) -> Any:
        if next(calls) == 2:
            raise OSError(28, "No space left on device", "c.npz.ledger")
        return create(*args, **more)

    monkeypatch.setattr(opening, "create", full)
    stderr = run.fails(*PER_ROW, *clinics, code=1)
    told, error = stderr.splitlines()
    assert told == f"created before it failed: {', '.join(str(Path(p).resolve()) for p in made())}"
    assert made() == ["a.npz.ledger", "b.npz.ledger"]
    assert error.endswith("No space left on device")
    monkeypatch.undo()


@pytest.mark.parametrize("command", [PER_ROW, ("calibrate", *NEW, "--out", "m.json")])
def test_what_is_said_of_many_files_is_one_line(
    run: Any, clinics: list[str], command: tuple[str, ...]
) -> None:
    """Copies of files that have ledgers, and columns that look like ids."""
    run(*PER_ROW, *clinics)
    copies = [shutil.copy(clinic, f"copy-{clinic}") for clinic in clinics]
    _, stderr = run.ok(*command, *copies)
    told = [line for line in stderr.splitlines() if line.startswith("warning")]
    assert len(told) == 1
    assert told[0].startswith("warning: 5 sources have ledgers elsewhere, e.g. the same rows have")
    assert "a.npz.ledger" in told[0]
    rows = "\n".join(f"mrn-{i // 2},0.{i % 9},1" for i in range(60))
    for name in "xyz":
        Path(f"{name}.csv").write_text(f"patient_id,probability,label\n{name}{rows}\n")
    _, _, stderr = run(*PER_ROW, "x.csv", "y.csv", "z.csv")
    [told_of_ids] = [line for line in stderr.splitlines() if "looks like ids" in line]
    assert told_of_ids.startswith("warning: 3 columns are not used, and look like ids, e.g. column")
    shutil.copy("b.npz", "b-again.npz")
    with pytest.warns(opening.SameRows, match="the same rows have the ledger"):
        privcal.create_ledgers("b-again.npz", per_row=True)
