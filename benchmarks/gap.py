"""One gap query against the least any query must do: a bare exp-and-sum pass of the same kernel."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import numpy as np

from benchmarks import report
from benchmarks.data import Logits, synthetic
from benchmarks.kernels import NAMES, by_kernel, kernels
from benchmarks.paired import ratio, take_turns
from privcal import Scores
from privcal.calibration import compiled
from privcal.calibration.kernel import FAST
from privcal.trusted.queries import Gap
from privcal.trusted.scores import BLOCK, FloatArray, IntArray
from privcal.trusted.threads import default_threads

ROWS, CLASSES, ROUNDS = 50_000, 1000, 21


def run() -> None:
    logits, labels = synthetic(ROWS, CLASSES)
    scores = Scores(logits=logits, labels=labels)
    query = Gap(temperature=1.7)

    def ask() -> IntArray:
        return query.contributions(scores, FAST).sum(query.length)

    ask()  # finds and keeps the predicted classes, as in a source that was asked before
    bare: dict[str, Callable[[], FloatArray]] = {
        "c": lambda: _bare(logits, 4 * BLOCK // CLASSES, _exp_sums_c),
        "numpy": lambda: _bare(logits, BLOCK // CLASSES, _exp_sums_numpy),
    }
    seconds = take_turns(
        {f"gap query, {NAMES[k]}": by_kernel(k, ask) for k in kernels()}
        | {f"bare pass, {NAMES[k]}": bare[k] for k in kernels()},
        ROUNDS,
    )
    times = {
        f"{what}, {NAMES[k]}": ratio(
            seconds[f"{what}, {NAMES[k]}"], seconds[f"bare pass, {NAMES[k]}"]
        )
        for k in kernels()
        for what in ("gap query", "bare pass")
    }
    report.table(
        f"gap: one query over {ROWS:,} x {CLASSES:,} float32 logits, {default_threads()} threads, "
        f"{ROUNDS} rounds",
        ("what", "median time", "time / bare pass"),
        (
            (name, report.duration(statistics.median(seconds[name])), f"{times[name]:.2f}")
            for name in times
        ),
    )
    ours = next(iter(times))  # with the kernel in use
    report.at_most("time over the bare pass of the same kernel", times[ours], 1.2, "x")


def _bare(
    logits: Logits, height: int, exp_sums: Callable[[Logits, FloatArray], None]
) -> FloatArray:
    """exp and sum, block by block: no shift, no temperature, no checks."""
    starts = iter(range(0, len(logits), height))  # the GIL lets each thread take its own next one
    sums = np.empty(len(logits))

    def work() -> None:
        for lo in starts:
            exp_sums(logits[lo : lo + height], sums[lo : lo + height])

    helpers = [threading.Thread(target=work) for _ in range(default_threads() - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    return sums


def _exp_sums_c(block: Logits, sums: FloatArray) -> None:
    compiled.sums(block, block.dtype, 1.0, sums[None])


_local = threading.local()


def _exp_sums_numpy(block: Logits, sums: FloatArray) -> None:
    if getattr(_local, "scratch", np.empty(0)).size < block.size:
        _local.scratch = np.empty(block.shape, block.dtype)
    out = _local.scratch[: len(block)]
    np.exp(block, out=out)
    sums[:] = out.sum(axis=1)
