"""One private answer end to end, where its time goes, and the floor the disk sets."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.data import synthetic
from benchmarks.kernels import NAMES, by_kernel, kernels
from benchmarks.paired import Seconds, ratio, take_turns
from privcal import Ledger, Policy, Scores, Source
from privcal.calibration.kernel import FAST
from privcal.trusted.epsilon import to_nano
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question

CLASSES = 10
ROUNDS = {30: 301, 1_000_000: 15}
"""How often each number of rows is asked: a source of the paper, and one of millions of rows."""

EPSILON = 0.1
POLICY = Policy(epsilon=1000.0)
QUERY = Gap(temperature=1.7)
COMMITS = 3
"""The charge, the mark, the stored answer: each must be on disk before the next step."""


def run() -> None:
    for rows, rounds in ROUNDS.items():
        _answers(rows, rounds)


def _answers(rows: int, rounds: int) -> None:
    logits, labels = synthetic(rows, CLASSES)
    scores = Scores(logits=logits, labels=labels)
    with tempfile.TemporaryDirectory() as name, closing(_bare_database(Path(name))) as bare:
        folder = Path(name)
        contestants: dict[str, Callable[[], Any]] = {
            "answer, ledger on disk": _asker(
                Source(scores, POLICY, ledger=_ledger(folder, "whole"))
            ),
            "answer, ledger in memory": _asker(Source(scores, POLICY, ledger=None)),
            "of it: ledger on disk": _charger(_ledger(folder, "alone")),
            "of it: noise": _drawer(),
            **{
                f"of it: exact sum, {NAMES[kernel]}": by_kernel(
                    kernel, lambda: QUERY.contributions(scores, FAST).sum(QUERY.length)
                )
                for kernel in kernels()
            },
            "floor: one bare commit": lambda: bare.execute("INSERT INTO t VALUES (1)"),
        }
        for call in contestants.values():
            call()  # imports OpenDP and certifies the scale, which a source does once
        seconds = take_turns(contestants, rounds)
    whole, floor = seconds["answer, ledger on disk"], seconds["floor: one bare commit"]
    report.table(
        f"answer: a gap query over {rows:,} rows x {CLASSES} classes, {rounds} rounds",
        ("what", "median time", "per second", "share of an answer"),
        (
            (name, report.duration(t := statistics.median(s)), f"{1 / t:,.0f}", _share(s, whole))
            for name, s in seconds.items()
        ),
    )
    report.note("a bare commit: one INSERT on an open SQLite connection, synchronous=FULL")
    report.note(
        f"an answer takes as long as {ratio(whole, floor):.1f} bare commits; "
        f"its ledger must make {COMMITS}, each safe before the next step"
    )


def _share(part: Seconds, whole: Seconds) -> str:
    return f"{ratio(part, whole):.1%}"


def _ledger(folder: Path, name: str) -> Ledger:
    return Ledger.create(
        folder / f"{name}.db", POLICY, marks=folder / f"{name}-marks.db", unit="row"
    )


def _asker(source: Source) -> Callable[[], Any]:
    numbers = count()
    return lambda: source.answer(Question.of(QUERY, EPSILON, "benchmark", index=next(numbers)))


def _charger(ledger: Ledger) -> Callable[[], Any]:
    numbers = count()

    def call() -> None:
        question = Question.of(QUERY, EPSILON, "alone", index=next(numbers))
        ledger.charge(question, "benchmark", POLICY)
        ledger.store(question, "benchmark", [0])

    return call


def _drawer() -> Callable[[], Any]:
    total, nano = np.zeros(1, np.int64), to_nano(EPSILON)
    return lambda: add_noise(total, QUERY.bound, nano)


def _bare_database(folder: Path) -> sqlite3.Connection:
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE t (x INTEGER)")
    return db
