"""The first command with `--aggregation secure` that somebody types: it works, or says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privcal.data.ledger import Ledger
from tests.support.builders import a_file, some_clinics

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return some_clinics(tmp_path, 6, rows=20)


def rules(folder: Path, text: str) -> Path:
    return a_file(folder / "policy.toml", text)


def test_new_ledgers_say_what_they_want_of_secure_sums(
    files: list[Path], run: Any, tmp_path: Path
) -> None:
    asked = ("calibrate", *files, "--method", "sketch", "--aggregation", "secure", "--epsilon", 0.5)
    asked = (*asked, "--new-ledger", "--per-row", "--out", tmp_path / "map.json")
    assert "[secure]" in run.fails(*asked)
    assert not list(tmp_path.glob("*.ledger"))
    assert "[secure]" in run.fails(*asked, "--policy", rules(tmp_path, "epsilon = 2"))
    code, out, _ = run(*asked, "--policy", rules(tmp_path, "epsilon = 2\n[secure]\ncolluding = 1"))
    assert (code, "from 6 of 6 sources" in out) == (0, True)
    ledger = Ledger(tmp_path / "clinic-0.npz.ledger")
    assert (ledger.nano_spent, ledger.nano_alone) == (5 * 10**8, 5 * 10**9)


def test_an_owner_who_says_nothing_of_secure_sums_loses_no_more_than_epsilon_to_anybody(
    files: list[Path], run: Any, tmp_path: Path
) -> None:
    """And whoever asks is told why, where ε seems to be left."""
    for file in files:
        run.ok("ledger", "create", file, "--per-row", "--epsilon", 2)
    asked = ("calibrate", *files, "--method", "sketch", "--aggregation", "secure")
    said = run.fails(*asked, "--epsilon", 1, "--out", tmp_path / "map.json", code=1)
    assert "nothing charged" in said
    assert "`alone` times epsilon" in said
    run.ok(*asked, "--epsilon", 0.2, "--out", tmp_path / "map.json")
    ledger = Ledger(tmp_path / "clinic-0.npz.ledger")
    assert (ledger.nano_spent, ledger.nano_alone) == (2 * 10**8, 2 * 10**9)
    assert run(*asked, "--epsilon", 0.1, "--out", tmp_path / "other.json")[0] == 1
