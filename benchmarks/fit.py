"""Temperature fits: time, memory and error against scikit-learn and, where installed, torch."""

from __future__ import annotations

import statistics
import time
from functools import partial

from benchmarks import report
from benchmarks.data import Labels, Logits, synthetic
from benchmarks.memory import resident_growth, traced_peak
from benchmarks.paired import ratio, take_turns
from benchmarks.peers import Fitter, fitters
from benchmarks.reference import reference_temperature

CASES = ((10_000, 10, 15, 6.0), (10_000, 100, 9, None), (50_000, 1000, 3, 25.0))
"""Rows, classes, rounds, and how many times faster than scikit-learn it should be."""

COLUMNS = (
    *("library", "median time", "CPU time", "scikit-learn's time / this"),
    *("|T − right T|", "traced", "resident"),
)


def run() -> None:
    for rows, classes, rounds, target in CASES:
        logits, labels = synthetic(rows, classes)
        _case(logits, labels, rounds, target)
    if "torch LBFGS" not in fitters():
        report.note("torch LBFGS is skipped: torch is not installed")


def _case(logits: Logits, labels: Labels, rounds: int, target: float | None) -> None:
    temperatures: dict[str, float] = {}
    cpu: dict[str, list[float]] = {}

    def call(name: str, fit: Fitter) -> None:
        start = time.process_time()
        temperatures[name] = fit(logits, labels)
        cpu.setdefault(name, []).append(time.process_time() - start)

    fits = fitters()
    seconds = take_turns({name: partial(call, name, fit) for name, fit in fits.items()}, rounds)
    right = reference_temperature(logits, labels)
    errors = {name: abs(temperatures[name] - right) for name in fits}
    # Apart from the timing, because tracing slows every allocation down.
    traced = {name: traced_peak(partial(fit, logits, labels)) for name, fit in fits.items()}
    resident = {name: resident_growth(name, logits, labels) for name in fits}
    report.table(
        f"fit: {len(logits):,} x {logits.shape[1]:,} float32 logits, "
        f"making the Scores included (right T {right:.7f}, {rounds} rounds)",
        COLUMNS,
        (
            (
                name,
                report.duration(statistics.median(seconds[name])),
                report.duration(statistics.median(cpu[name])),
                f"{ratio(seconds['scikit-learn'], seconds[name]):.1f}",
                f"{errors[name]:.1e}",
                f"{traced[name]:.2f} MB",
                "unknown" if (grown := resident[name]) is None else f"{grown:.2f} MB",
            )
            for name in fits
        ),
    )
    if target is not None:
        ours = next(iter(fits))  # with the kernel in use
        speed = ratio(seconds["scikit-learn"], seconds[ours])
        report.at_least("times faster than scikit-learn", speed, target, "x")
        report.at_most("extra peak memory, traced", traced[ours], 4, " MB")
        report.at_most("error of T", errors[ours], 1e-6, "")
