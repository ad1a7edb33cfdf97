"""Owners who take part by mail: each with data, a ledger and marks in a folder of their own."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privcal import Source, read_scores
from privcal.data.ledger import Ledger
from privcal.data.opening import ledger_of
from tests.support.builders import random_scores

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Owner:
    """One owner; `run` is the command line with the owners' marks, and `use_marks` sets those."""

    folder: Path
    run: Run
    use_marks: Callable[[], None]

    @property
    def data(self) -> Path:
        return self.folder / "data.npz"

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.data)

    @property
    def spent(self) -> float:
        return self.ledger.nano_spent / 10**9

    def source(self) -> Source:
        """The rows, to be asked in this process, which goes by the owners' marks from here on."""
        self.use_marks()
        return Source(read_scores(self.data), ledger=self.ledger.path)

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

    def use_marks() -> None:
        monkeypatch.setenv("PRIVCAL_MARKS", str(folder / "owners.db"))

    def own(*args: object) -> tuple[int, str, str]:
        use_marks()
        return run(*args)

    owners = []
    for number in range(count):
        mine = folder / f"hospital-{number}"
        mine.mkdir()

        scores = random_scores(rows, seed=number)
        np.savez(mine / "data.npz", logits=scores.outputs.array, labels=scores.labels)
        limits = rules or ("--epsilon", 3)
        assert own("ledger", "create", mine / "data.npz", "--per-row", *limits)[0] == 0
        owners.append(Owner(mine, own, use_marks))
    return owners


def document(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8")))


def changed(path: Path, out: Path, **parts: Any) -> Path:
    """A copy of a JSON file with other parts."""
    out.write_text(json.dumps({**document(path), **parts}), "utf-8")
    return out


DIGEST = re.compile(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}")


def on_page(page: Path) -> tuple[str, str]:
    """The digest and the policy of an approval page, as its reader copies them."""
    codes = [
        html.unescape(code)
        for code in re.findall("<code>(.*?)</code>", page.read_text("utf-8"), re.S)
    ]
    [digest] = [code for code in codes if DIGEST.fullmatch(code)]
    [policy] = [code for code in codes if code.startswith("epsilon = ")]
    return digest, policy
