"""What sources answered and charged before the house was rearranged, to the last integer.

`python -m tests.test_recorded` records anew: only when a change of numbers is meant.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.secure import participant
from privcal.secure.participant import share_noisy_sums
from privcal.secure.terms import Terms
from privcal.trusted import queries, source
from privcal.trusted.epsilon import to_nano
from privcal.trusted.question import Question

RECORD = Path(__file__).parent / "fixtures" / "recorded.json"
QUERIES = [
    queries.Gap(1.5),
    queries.Nll(0.7, clip=6.0),
    queries.BinnedGap(2.0, bins=7),
    queries.Histogram(bins=6),
    queries.CellHistogram(bins=5),
    queries.Hats(1.25, knots=(-2.0, -0.5, 0.25, 3.0)),
    queries.EventHats(1.25, knots=(-2.0, -0.5, 0.25, 3.0), event=2),
    queries.ClassHats(0.9, knots=(-1.0, 1.0, 4.0), classes=3),
    queries.OffsetHats(1.1, (-2.0, 4.0), (-1.5, 3.5), (0.25, -0.5, 0.0), (-1.0, 2.0)),
]
POLICIES = {
    "rows": {},
    "persons": {"rows_per_person": 2},
    "accounts": {"rows_per_person": 2, "budget": "person"},
}
COUNTED = ("seq", "kind", "asker", "campaign", "round", "index", "query", "what", "digest",
           "nano_epsilon", "nano_alone", "nano_spent", "answered")  # fmt: skip


def rows(persons: bool) -> privcal.Scores:
    """137 rows of whole-number arithmetic, some of them strange; persons have one row to four."""
    i, j = np.arange(137)[:, None], np.arange(3)[None, :]
    logits = ((i * 7919 + j * 104729 + i * j * 31) % 1009) / 101.0 - 5.0
    logits[5], logits[6], logits[7] = (1e30, -1e30, 0.0), (2.0, 2.0, 2.0), (np.nan, 1.0, 2.0)
    labels = (np.arange(137) * 13 + 5) % 3
    person = [f"p{(k * k) % 61}" for k in range(137)] if persons else None
    return privcal.Scores(logits=logits, labels=labels, person=person, strict=False)


def noise(total: Any, *how: object) -> list[int]:
    """In the place of noise: what it was called with, as numbers that anybody can compute."""
    digest = hashlib.sha256(repr(tuple(map(str, how))).encode()).digest()
    return [int(v) + digest[k % 32] for k, v in enumerate(np.asarray(total, np.int64))]


def fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chance in what is recorded: ids and secrets are counted, and noise is `noise`."""
    numbers = count(1)
    monkeypatch.setattr(secrets, "token_hex", lambda size=32: f"{next(numbers):0{2 * size}x}")
    monkeypatch.setattr(source, "add_noise", noise)
    monkeypatch.setattr(participant, "add_noise_share", noise)


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    fix(monkeypatch)


def answered(kind: str, aggregation: str, folder: Path) -> dict[str, Any]:
    """All questions to one source, and its ledger afterwards."""
    policy = privcal.Policy(
        epsilon=100.0,
        secure=privcal.SecureRules(colluding=1, min_honest=1, alone=10),
        **POLICIES[kind],
    )
    unit = "row" if kind == "rows" else "person"
    ledger = privcal.Ledger.create(folder / "ward.db", policy, unit=unit)
    asked = privcal.Source(rows(unit == "person"), ledger=ledger)
    given: list[Any] = []
    for index, query in enumerate(QUERIES):
        question = Question.of(query, to_nano(0.5 + index / 8) / 10**9, "spring", 0, index)
        if aggregation == "each":
            values = asked.answer(question, "ann").values * queries.GRID
            given.append([int(v) for v in values])
        else:
            sites = ("east", "north", "west")
            most = policy.rows_per_person if unit == "person" else 1
            terms = Terms(question, "ann", sites, 1, 3, 4, most, "0" * 64)
            given.append(json.loads(share_noisy_sums(asked, terms, "ann", json.dumps)))
    entries = list(Ledger.of(asked.ledger).export())[:-1]
    return {"answers": given, "entries": [{k: row[k] for k in COUNTED} for row in entries]}


CASES = [(kind, aggregation) for kind in POLICIES for aggregation in ("each", "secure")]


@pytest.mark.parametrize(("kind", "aggregation"), CASES)
def test_every_integer_charge_and_ledger_row_is_what_it_was(
    kind: str, aggregation: str, tmp_path: Path
) -> None:
    recorded = json.loads(RECORD.read_text("utf-8"))[f"{kind}, {aggregation}"]
    assert answered(kind, aggregation, tmp_path) == recorded


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        made = {}
        for kind, aggregation in CASES:
            fix(patch)
            with TemporaryDirectory() as folder:
                patch.setenv("PRIVCAL_MARKS", str(Path(folder) / "marks.db"))
                made[f"{kind}, {aggregation}"] = answered(kind, aggregation, Path(folder))
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(what)}" for case, what in made.items())
    RECORD.write_text(f"{{\n{lines}\n}}\n", "utf-8")
