"""`privcal source check`, and many ledgers at a glance: what an owner wants to know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal.cli.source_queries import asked_by
from privcal.trusted.queries import FAMILY
from tests.support.builders import random_scores

PRIVACY = Path(__file__).parent.parent.parent / "docs" / "privacy.md"


@pytest.fixture
def icu(tmp_path: Path) -> Path:
    """A table of three wards with 20, 20 and 10 rows of two patients each."""
    wards = ["A"] * 20 + ["B"] * 20 + ["C"] * 10
    rows = [f"{w},{w}{i % 2},0.{i % 9},{i % 2}" for i, w in enumerate(wards)]
    (tmp_path / "icu.csv").write_text("\n".join(["ward,patient,probability,label", *rows]))
    return tmp_path / "icu.csv"


def test_every_kind_of_query_is_asked_by_some_method_and_the_page_says_by_which() -> None:
    methods = {kind: names for kind, (names, _) in asked_by().items()}
    assert set(methods) == set(FAMILY)
    page = re.findall(r"^\| `([\w-]+)` \|.*\| `([\w-]+)`[^|]*\|$", PRIVACY.read_text("utf-8"), re.M)
    assert {kind: name for kind, name in page if kind in FAMILY} == {
        kind: re.split(r"[, ]", names)[0] for kind, names in methods.items()
    }


def test_a_check_tells_programs_the_counts_as_numbers(run: Any, icu: Path) -> None:
    said = run.json("source", "check", icu, "--person", "patient")
    facts = [said[name] for name in ("rows", "persons", "rows_that_count", "classes")]
    assert facts == [50, 6, 6, 2]
    assert "" not in said["summary"]
    [hats] = [query for query in said["queries"] if query["kind"] == "hats"]
    assert hats["methods"] == "sketch"
    assert hats["length"] > 4  # as many as leave, not as few as could


def test_a_check_counts_the_sources_of_a_table(run: Any, icu: Path) -> None:
    split = ("--source-column", "ward", "--person", "patient")
    said = run.json("source", "check", icu, *split)
    assert [tuple(part.values()) for part in said["sources"]] == [
        ("A", 20, 2),
        ("B", 20, 2),
        ("C", 10, 2),
    ]
    assert "The sources" in run("source", "check", icu, *split)[1]


def test_a_folder_of_ledgers_is_shown_with_a_line_for_each(run: Any, icu: Path) -> None:
    run.ok("ledger", "create", icu, "--source-column", "ward", "--per-row")
    asked = ("--source-column", "ward", "--epsilon", 0.25, "--out", icu.with_name("m.json"))
    run.ok("calibrate", icu, *asked)
    folder = icu.with_name("icu.csv.ledgers")
    for where in (folder, icu):
        said = run.json("ledger", "show", where)["ledgers"]
        assert [(one["name"], one["spent"], one["requests"]) for one in said] == [
            ("A", 0.25, 1),
            ("B", 0.25, 1),
            ("C", 0.25, 1),
        ]
    run("ledger", "policy", folder / "B.ledger", "--epsilon", 0.25)
    code, stdout, _ = run("ledger", "show", folder)
    assert (code, "3 ledgers;" in stdout, "1 would not answer" in stdout) == (0, True, True)
    assert [line.split()[-1] for line in stdout.splitlines() if " B " in line] == ["up"]  # used up


def test_a_folder_of_one_sources_arrays_is_no_folder_of_ledgers(
    run: Any, tmp_path: Path, icu: Path
) -> None:
    scores = random_scores(20)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "logits.npy", scores.outputs.array)
    np.save(tmp_path / "arrays" / "labels.npy", scores.labels)
    run.ok("ledger", "create", tmp_path / "arrays", "--per-row")
    code, stdout, _ = run("ledger", "show", tmp_path / "arrays", "--json")
    assert (code, "entries" in json.loads(stdout)) == (0, True)
