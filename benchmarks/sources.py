"""What 10,000 sources in one process cost: to make them, to calibrate on them, and the memory of both.

Each run is a process of its own, and seconds are the processor's. Name the `src` of another
version in PRIVCAL_BESIDE, and the two take turns: the ratios are this version's to that one's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import privcal

SOURCES, ROWS, CLASSES, ROUNDS = 10_000, 30, 10, 3
TARGET = 0.25
"""The most that each may cost, as a part of what it cost in the version that the target was set for."""

ROOT = Path(__file__).parent.parent
COLUMNS = {"make": "s", "calibrate": "s", "memory": "MB"}


def run() -> None:
    from benchmarks import report  # not above: another version has no modules of ours

    other = os.environ.get("PRIVCAL_BESIDE")
    trees = {"this version": ROOT / "src"} | ({"the other": Path(other)} if other else {})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(ROUNDS):
        for name, tree in trees.items():
            found[name].append(_in_a_process(tree))
    report.table(
        f"{SOURCES:,} sources of {ROWS} rows, sketch: medians of {ROUNDS} rounds",
        ("version", *COLUMNS),
        (
            (name, *(f"{_median(runs, what):.3g} {unit}" for what, unit in COLUMNS.items()))
            for name, runs in found.items()
        ),
    )
    for what in COLUMNS if other else ():
        mine, theirs = found["this version"], found["the other"]
        pairs = [a[what] / b[what] for a, b in zip(mine, theirs, strict=True)]
        report.at_most(f"{what}, / the other", statistics.median(pairs), TARGET, "")


def _median(runs: list[dict[str, float]], what: str) -> float:
    return statistics.median(run[what] for run in runs)


def _in_a_process(tree: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sources"],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(sources: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((sources, ROWS, CLASSES), np.float32)
    labels = rng.integers(CLASSES, size=(sources, ROWS))
    policy = privcal.Policy(epsilon=10.0)

    def make(number: int) -> privcal.Source:
        scores = privcal.Scores(logits=logits[number], labels=labels[number])
        return privcal.Source(scores, policy, ledger=None, name=f"source {number}")

    privcal.calibrate([make(number) for number in range(3)], "sketch")  # whatever is done once
    before = _peak()
    made, sources_ = _timed(lambda: [make(number) for number in range(sources)])
    calibrated, result = _timed(lambda: privcal.calibrate(sources_, "sketch"))
    assert result.answered == sources
    return {"make": made, "calibrate": calibrated, "memory": _peak() - before}


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def _peak() -> float:
    """The peak resident memory so far, in MB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(s.split()[1]) for s in lines if s.startswith("VmHWM")) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(_measure(SOURCES)))
