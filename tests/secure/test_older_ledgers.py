"""Ledgers from before secure sums: what their owners once allowed is all that anybody gets."""

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
    assert "what all others together may learn" in said
    assert run(*asked, "--epsilon", 0.2, "--out", tmp_path / "map.json")[0] == 0
    ledger = Ledger(tmp_path / "clinic-0.npz.ledger")
    assert (ledger.nano_spent, ledger.nano_alone) == (2 * 10**8, 2 * 10**9)
    assert run(*asked, "--epsilon", 0.1, "--out", tmp_path / "other.json")[0] == 1
