"""The ledger for an audit system: every entry, verifiable, and nothing that must not leave."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data import ledger as ledger_module
from privcal.trusted.queries import CellHistogram, Gap
from privcal.trusted.question import Question
from tests.conftest import Run
from tests.support.builders import edit, named, random_scores

FIELDS = [
    "seq", "time", "kind", "asker", "campaign", "round", "index", "query", "what", "digest",
    "nano_epsilon", "nano_alone", "nano_spent", "answered", "previous", "hash",
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    privcal.Ledger.create(tmp_path / "source.db", privcal.Policy(3.0), unit="row")
    for i in range(5):
        ask(tmp_path / "source.db", f"spring/{i}/0")
    return tmp_path / "source.db"


def ask(path: Path, request: str) -> list[float]:
    one = privcal.Source(random_scores(9), ledger=path)
    return one.answer(named(request, CellHistogram(), 0.1), "acme").values.tolist()


def exported(run: Run, path: Path, *more: object) -> list[dict[str, Any]]:
    code, stdout, stderr = run("ledger", "export", path, *more)
    assert (code, stderr.startswith("warning: this ledger is behind")) == (0, bool(stderr))
    return [json.loads(line) for line in stdout.splitlines()]


def test_every_entry_is_a_line_of_json_with_fields_that_stay(path: Path, run: Run) -> None:
    *entries, head = exported(run, path)
    assert [list(entry) for entry in entries] == [FIELDS] * 6
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in FIELDS)
    assert [entry["seq"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    last = entries[-1]
    assert (last["asker"], last["campaign"], last["round"], last["index"]) == (
        "acme",
        "spring",
        4,
        0,
    )
    assert json.loads(last["query"])["kind"] == "cell-histogram"
    assert (last["nano_epsilon"], last["nano_spent"]) == (10**8, 5 * 10**8)
    assert (entries[0]["kind"], entries[0]["query"]) == ("policy", None)
    assert head == {"kind": "head", "seq": 6, "nano_spent": 5 * 10**8, "hash": last["hash"]}


def test_an_auditor_can_compute_the_hashes(path: Path, run: Run) -> None:
    """By the recipe in docs/privacy.md, with nothing of ours."""
    *entries, _ = exported(run, path)
    previous = ""
    for e in entries:
        what = e["what"] if e["query"] is None else e["query"]
        fields = [
            e["seq"], e["kind"], e["asker"], e["campaign"], e["round"], e["index"], what,
            e["digest"], e["nano_epsilon"], e["nano_spent"], e["time"], e["previous"],
        ]  # fmt: skip
        assert e["previous"] == previous
        previous = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
        assert e["hash"] == previous


def test_no_answer_and_no_secret_is_exported(path: Path, run: Run) -> None:
    ledger = privcal.Ledger(path)
    with sqlite3.connect(path) as db:
        answers = [a for (a,) in db.execute("SELECT answer FROM entry WHERE answer IS NOT NULL")]
    _, text, _ = run("ledger", "export", path)
    assert len(answers) == 5
    for answer in answers:
        assert not any(number in text for number in map(str, json.loads(answer)) if len(number) > 6)
    assert ledger.facts.secret not in text


def test_an_export_goes_on_where_the_last_one_ended(path: Path, run: Run) -> None:
    *first, head = exported(run, path, "--since", 0)
    assert exported(run, path, "--since", head["seq"]) == [head]
    ask(path, "autumn")
    *more, newer = exported(run, path, "--since", head["seq"])
    assert [entry["seq"] for entry in more] == [7]
    assert more[0]["previous"] == head["hash"]
    assert newer["hash"] == more[0]["hash"]
    assert [*first, *more, newer] == exported(run, path)
    assert "has no entry 99" in run.fails("ledger", "export", path, "--since", 99)


def test_an_export_can_be_written_to_a_file(path: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "ledger.jsonl"
    assert exported(run, path, "--out", out) == []
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == exported(run, path)
    before = path.read_bytes()
    assert "is an input" in run.fails("ledger", "export", path, "--out", path)
    assert path.read_bytes() == before


def test_a_ledger_may_be_asked_while_it_is_exported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in pages, so nobody waits; and what came meanwhile is in it."""
    monkeypatch.setattr(ledger_module, "_PAGE", 2)
    seen = []
    for n, entry in enumerate(privcal.Ledger(path).export()):
        if n < 3:
            ask(path, f"meanwhile/{n}/0")
        seen.append(entry)
    assert [entry["seq"] for entry in seen] == [*range(1, 10), 9]
    assert seen[-1]["hash"] == seen[-2]["hash"]


def test_a_damaged_chain_is_not_exported_as_whole(path: Path, run: Run) -> None:
    edit(path, "UPDATE entry SET epsilon = 1 WHERE seq = 4")
    code, stdout, stderr = run("ledger", "export", path)
    assert (code, "damaged at entry 4" in stderr) == (2, True)
    assert "head" not in stdout


def test_an_entry_cut_off_at_the_end_shows_in_the_head(path: Path, run: Run) -> None:
    whole = exported(run, path)
    privcal.Source(random_scores(9), ledger=path).answer(Question.of(Gap(), 0.1, "late"))
    edit(path, "DELETE FROM entry WHERE seq >= 6")
    code, stdout, stderr = run("ledger", "export", path)
    assert (code, "is behind its high-water mark" in stderr) == (0, True)
    cut = [json.loads(line) for line in stdout.splitlines()]
    assert cut[-1]["seq"] == 5
    assert cut[-1]["hash"] != whole[-1]["hash"]  # which the auditor has from last time
    assert "has no entry 6" in run.fails("ledger", "export", path, "--since", whole[-1]["seq"])
