"""The study: the paper's whole benchmark, an ImageNet-sized shift, and runs a second against real
sources.

`PRIVCAL_TINY_IMAGENET` may name the parts of a many-class archive, separated by colons.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.data import synthetic
from benchmarks.paired import take_turns
from privcal import Policy, Source, calibrate
from privcal.calibration import methods
from privcal.data.datasets import cifar10c
from privcal.lab import study
from privcal.lab.study.grids import Setting
from privcal.planning.simulate import answers
from privcal.planning.simulate.measure import measure
from privcal.planning.simulate.splits import Splits

PAPER = ["uncalibrated", "one-source", "histogram-binning", "ece-t", "nll-t", "acc-t"]


def run() -> None:
    rows = [
        ("CIFAR-10-C, bundled, all methods", *_apart(_whole, (), None), 60.0),
        ("CIFAR-10-C, bundled, the paper's six", *_apart(_whole, (), PAPER), 20.0),
    ]
    if parts := os.environ.get("PRIVCAL_TINY_IMAGENET"):
        paths = tuple(parts.split(":"))
        rows.append(("Tiny-ImageNet-C, the paper's six", *_apart(_whole, paths, PAPER), 45.0))
    else:
        report.note("Tiny-ImageNet-C is skipped: PRIVCAL_TINY_IMAGENET names no archive")
    rows.append(
        ("one shift of 50,000 x 1000, imagenet grid, all methods", *_apart(_imagenet), 45.0)
    )
    report.table(
        "study: 500 trials",
        ("what", "time", "runs", "runs/s", "peak memory"),
        (
            (name, report.duration(s), f"{n:,}", f"{n / s:,.0f}", f"{mb:,.0f} MB")
            for name, s, n, mb, _ in rows
        ),
    )
    for name, seconds, _, megabytes, target in rows:
        report.at_most(f"{name}: time", seconds, target, " s")
        report.at_most(f"{name}: memory", megabytes, 1500, " MB")
    _against_real_sources()


def _whole(archive: tuple[str, ...], methods: list[str] | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = study.run(archive, methods=methods, out=Path(folder) / "study")
    return 500 * len(found)


def _imagenet() -> int:
    logits, labels = synthetic(50_000, 1000)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "synthetic.npz", labels=labels, shift=logits.astype(np.float16))
        found = study.run([Path(folder) / "synthetic.npz"], grid="imagenet")
    return 500 * len(found)


def _apart(work: Callable[..., int], *args: Any) -> tuple[float, int, float]:
    """Seconds, runs and peak memory of `work` in processes of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_measured, args=(theirs, work, args))
    child.start()
    found: tuple[float, int, float] = ours.recv()
    child.join()
    return found


def _measured(pipe: Any, work: Callable[..., int], args: tuple[Any, ...]) -> None:
    start = time.perf_counter()
    runs = work(*args)
    seconds = time.perf_counter() - start
    # Kilobytes on Linux. The largest child stands for every one of them: an upper bound.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pipe.send((seconds, runs, (own + largest * (os.cpu_count() or 1)) / 1024))


def _acc_t(scores: Any, settings: list[Setting], trials: int) -> int:
    prefixes = [setting.private_rows for setting in settings]
    splits = Splits.alike(scores, prefixes, trials, np.random.SeedSequence(0))
    for setting in settings:
        split, rng = splits.at(setting.private_rows), np.random.default_rng(1)
        maps = answers.run(methods.make("acc-t"), split, setting.sources, setting.epsilon, rng)
        measure(maps, split)
    return trials * len(settings)


def _against_real_sources() -> None:
    scores = cifar10c("motion_blur")
    settings = [Setting("sources", d, 10, 1.0) for d in range(10, 260, 10)]
    setting = settings[9]
    rows = np.random.default_rng(0).permutation(len(scores))[: setting.private_rows]

    def real() -> int:
        sources = [
            Source(scores.take(part), Policy(epsilon=1.0), ledger=None)
            for part in np.split(rows, setting.sources)
        ]
        calibrate(sources, "acc-t", 1.0)
        return 1

    real()  # imports the noise
    runs = {"simulated": _acc_t(scores, settings, 500), "real": real()}
    seconds = take_turns({"simulated": lambda: _acc_t(scores, settings, 500), "real": real}, 5)
    speed = {name: runs[name] / statistics.median(seconds[name]) for name in runs}
    report.table(
        f"study: Acc-T runs a second, {setting.sources} sources of {setting.samples} rows",
        ("what", "runs/s"),
        (
            (name, f"{value:,.0f}" if value > 100 else f"{value:.2f}")
            for name, value in speed.items()
        ),
    )
    report.at_least("simulated over real sources", speed["simulated"] / speed["real"], 1000, "x")
