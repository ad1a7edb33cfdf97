"""ECE against the plain NumPy lines anyone would write."""

from __future__ import annotations

import statistics

import numpy as np

import privcal
from benchmarks import report
from benchmarks.paired import ratio, take_turns
from privcal.trusted.scores import BoolArray, FloatArray

ROWS, BINS, ROUNDS = 50_000, 15, 501


def run() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, ROWS)
    correct = rng.random(ROWS) < confidence**2

    seconds = take_turns(
        {
            "privcal.ece": lambda: privcal.ece(confidence, correct, BINS),
            "plain NumPy": lambda: _plain(confidence, correct),
        },
        ROUNDS,
    )
    times = ratio(seconds["privcal.ece"], seconds["plain NumPy"])
    apart = abs(privcal.ece(confidence, correct, BINS) - _plain(confidence, correct))
    report.table(
        f"ece: {ROWS:,} confidences, {BINS} bins, {ROUNDS} rounds",
        ("what", "median time", "time / plain NumPy"),
        (
            (name, report.duration(statistics.median(taken)), f"{share:.2f}")
            for (name, taken), share in zip(seconds.items(), (times, 1.0), strict=True)
        ),
    )
    report.note(f"values apart by {apart:.1e}")
    report.at_most("time over plain NumPy, with privcal's checks", times, 1, "x")


def _plain(confidence: FloatArray, correct: BoolArray) -> float:
    where = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.maximum(np.bincount(where, minlength=BINS), 1)
    accuracy = np.bincount(where, correct, BINS) / count
    mean = np.bincount(where, confidence, BINS) / count
    return float((count / len(confidence) * np.abs(accuracy - mean)).sum())
