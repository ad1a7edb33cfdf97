"""A budget for each person: what a request costs where there are very many of them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks import report
from benchmarks.data import synthetic
from privcal import Ledger, Policy, Scores, Source
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question

PERSONS = (10_000, 100_000, 1_000_000)
CLASSES = 2


def run() -> None:
    rows = []
    for persons in PERSONS:
        logits, labels = synthetic(persons, CLASSES)
        scores = Scores(logits=logits, labels=labels, person=[f"mrn-{i}" for i in range(persons)])
        with tempfile.TemporaryDirectory() as name:
            times = {
                budget: _times(scores, Path(name), budget) for budget in ("population", "person")
            }
            size = (Path(name) / "person.db").stat().st_size
        (_, whole), (first, later) = times["population"], times["person"]
        rows.append(
            (
                f"{persons:,}",
                report.duration(first),
                report.duration(later),
                f"{later / whole:.1f} x",
                f"{size / persons:.0f} bytes",
            )
        )
    report.table(
        "persons: a gap query, one row a person, budget = person",
        ("persons", "first request", "later ones", "of budget = population", "ledger, each"),
        rows,
    )
    report.note("first: every id is hashed, and rows are chosen, once; later: median of five")


def _times(scores: Scores, folder: Path, budget: str) -> tuple[float, float]:
    policy = Policy(epsilon=1000.0, budget=budget)
    ledger = Ledger.create(folder / f"{budget}.db", policy, unit="person", marks=folder / "marks")
    source = Source(scores, ledger=ledger)
    seconds = []
    for request in range(6):
        start = time.perf_counter()
        source.answer(Question.of(Gap(), 0.1, "benchmark", index=request))
        seconds.append(time.perf_counter() - start)
    return seconds[0], sorted(seconds[1:])[2]
