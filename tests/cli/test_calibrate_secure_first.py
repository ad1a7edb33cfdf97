"""The first command with `--aggregation secure` that somebody types: it works, or says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal.privacy.ledger import Ledger
from tests.conftest import random_scores

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    paths = [tmp_path / f"clinic-{i}.npz" for i in range(6)]
    for seed, path in enumerate(paths):
        scores = random_scores(20, seed=seed)
        np.savez(path, logits=scores.outputs.array, labels=scores.labels)
    return paths


def rules(folder: Path, text: str) -> Path:
    (folder / "policy.toml").write_text(text)
    return folder / "policy.toml"


def test_new_ledgers_say_what_they_want_of_secure_sums(
    files: list[Path], run: Any, tmp_path: Path
) -> None:
    asked = ("calibrate", *files, "--method", "sketch", "--aggregation", "secure", "--epsilon", 0.5)
    asked = (*asked, "--new-ledger", "--per-row", "--out", tmp_path / "map.json")
    code, _, said = run(*asked)
    assert (code, "[secure]" in said) == (2, True)
    assert not list(tmp_path.glob("*.ledger"))
    code, _, said = run(*asked, "--policy", rules(tmp_path, "epsilon = 2"))
    assert (code, "[secure]" in said) == (2, True)
    code, out, _ = run(*asked, "--policy", rules(tmp_path, "epsilon = 2\n[secure]\ncolluding = 1"))
    assert (code, "from 6 of 6 sources" in out) == (0, True)
    ledger = Ledger(tmp_path / "clinic-0.npz.ledger")
    assert (ledger.nano_spent, ledger.nano_alone) == (5 * 10**8, 5 * 10**9)


def test_an_owner_who_says_nothing_of_secure_sums_loses_no_more_than_epsilon_to_anybody(
    files: list[Path], run: Any, tmp_path: Path
) -> None:
    """And whoever asks is told why, where ε seems to be left."""
    for file in files:
        assert run("ledger", "create", file, "--per-row", "--epsilon", 2)[0] == 0
    asked = ("calibrate", *files, "--method", "sketch", "--aggregation", "secure")
    code, _, said = run(*asked, "--epsilon", 1, "--out", tmp_path / "map.json")
    assert code == 1
    assert "nothing charged" in said
    assert "`alone` times epsilon" in said
    assert run(*asked, "--epsilon", 0.2, "--out", tmp_path / "map.json")[0] == 0
    ledger = Ledger(tmp_path / "clinic-0.npz.ledger")
    assert (ledger.nano_spent, ledger.nano_alone) == (2 * 10**8, 2 * 10**9)
    assert run(*asked, "--epsilon", 0.1, "--out", tmp_path / "other.json")[0] == 1
