"""Extra peak memory of a temperature fit, as Python's allocator and as the system see it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import Labels, Logits

MEGABYTE = 1e6


def traced_peak(call: Callable[[], Any]) -> float:
    """Peak MB during the call above what was held before it; NumPy reports its arrays."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MEGABYTE
    finally:
        tracemalloc.stop()


def resident_growth(fitter: str, logits: Logits, labels: Labels) -> float | None:
    """By how many MB a fit raises a fresh process's peak resident memory; None if unknown.

    Counts what tracemalloc cannot see, thread stacks and compiled libraries' own buffers.
    """
    if not Path("/proc/self/status").exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "logits.npy"), logits)
        np.save(Path(folder, "labels.npy"), labels)
        command = [sys.executable, "-m", "benchmarks.memory", fitter, folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def _peak_resident() -> float:
    # Not ru_maxrss: Linux lets a child inherit its parent's.
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(s.split()[1]) for s in lines if s.startswith("VmHWM")) * 1024 / MEGABYTE


def _child(fitter: str, folder: str) -> None:
    from benchmarks.peers import fitters

    fit = fitters()[fitter]
    logits, labels = (np.load(Path(folder, f"{name}.npy")) for name in ("logits", "labels"))
    rng = np.random.default_rng(0)
    fit(rng.standard_normal((1000, 5), np.float32), rng.integers(5, size=1000))  # lazy imports
    before = _peak_resident()
    fit(logits, labels)
    print(_peak_resident() - before)


if __name__ == "__main__":
    _child(*sys.argv[1:])
