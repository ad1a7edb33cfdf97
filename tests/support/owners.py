"""Owners who take part by mail: each with data, a ledger and marks in a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal.privacy.ledger import Ledger
from privcal.privacy.opening import ledger_of
from tests.conftest import random_scores

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Owner:
    """One owner; `run` is the command line with this owner's marks."""

    folder: Path
    run: Run

    @property
    def data(self) -> Path:
        return self.folder / "data.npz"

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.data)

    @property
    def spent(self) -> float:
        return self.ledger.nano_spent / 10**9

    def answer(self, question: Path, out: Path, *more: object) -> tuple[int, str, str]:
        return self.run("source", "answer", self.data, question, "--out", out, "--yes", *more)


def make_owners(
    folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    count: int = 6,
    rows: int = 40,
    *rules: object,
) -> list[Owner]:
    """Owners in folders of their own, all with a file of the same name."""
    owners = []
    for number in range(count):
        mine = folder / f"hospital-{number}"
        mine.mkdir()

        def own(*args: object, mine: Path = mine) -> tuple[int, str, str]:
            monkeypatch.setenv("PRIVCAL_MARKS", str(mine / "marks.db"))
            return run(*args)

        scores = random_scores(rows, seed=number)
        np.savez(mine / "data.npz", logits=scores.outputs.array, labels=scores.labels)
        limits = rules or ("--epsilon", 3)
        assert own("ledger", "create", mine / "data.npz", "--per-row", *limits)[0] == 0
        owners.append(Owner(mine, own))
    return owners


def document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


def changed(path: Path, out: Path, **parts: Any) -> Path:
    """A copy of a JSON file with other parts."""
    out.write_text(json.dumps({**document(path), **parts}), "utf-8")
    return out
