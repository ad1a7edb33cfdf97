"""One gap query against the least any query must do: a bare blocked exp-and-sum pass."""

from __future__ import annotations

import statistics
import threading

import numpy as np

from benchmarks import report
from benchmarks.data import Logits, synthetic
from benchmarks.paired import ratio, take_turns
from privcal import Scores
from privcal.queries import Gap
from privcal.scores import FloatArray, IntArray
from privcal.threads import default_threads

ROWS, CLASSES, ROUNDS = 50_000, 1000, 21


def run() -> None:
    logits, labels = synthetic(ROWS, CLASSES)
    scores = Scores(logits=logits, labels=labels)
    query = Gap(temperature=1.7)

    def ask() -> IntArray:
        return query.contributions(scores).sum(query.length)

    ask()  # finds and keeps the predicted classes, as in a source that was asked before
    threads = default_threads()
    height = next(scores.outputs.blocks()).stop
    seconds = take_turns(
        {"gap query": ask, "bare pass": lambda: _bare(logits, height, threads)}, ROUNDS
    )
    times = ratio(seconds["gap query"], seconds["bare pass"])
    report.table(
        f"gap: one query over {ROWS:,} x {CLASSES:,} float32 logits, {threads} threads, "
        f"blocks of {height} rows, {ROUNDS} rounds",
        ("what", "median time", "time / bare pass"),
        (
            ("gap query", report.duration(statistics.median(seconds["gap query"])), f"{times:.2f}"),
            ("bare pass", report.duration(statistics.median(seconds["bare pass"])), "1.00"),
        ),
    )
    report.at_most("time over the bare pass", times, 1.5, "x")


def _bare(logits: Logits, height: int, threads: int) -> FloatArray:
    """exp and sum, block by block: no shift, no temperature, no checks."""
    starts = iter(range(0, len(logits), height))  # the GIL lets each thread take its own next one
    sums = np.empty(len(logits))

    def work() -> None:
        scratch = np.empty((height, logits.shape[1]), logits.dtype)
        for lo in starts:
            block = logits[lo : lo + height]
            out = scratch[: len(block)]
            np.exp(block, out=out)
            sums[lo : lo + height] = out.sum(axis=1)

    helpers = [threading.Thread(target=work) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    return sums
