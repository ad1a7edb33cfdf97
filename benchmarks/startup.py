"""How long the command line takes to be there: CPU seconds of a process of its own.

Beside a bare Python, and one that imports NumPy: nothing that computes can be faster than that.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from functools import partial

from benchmarks import report
from benchmarks.paired import ratio, take_turns

ROUNDS = 9
BARE, NUMPY = "python -c pass", "python -c 'import numpy'"
STARTED = {
    BARE: ["-c", "pass"],
    NUMPY: ["-c", "import numpy"],
    "import privcal": ["-c", "import privcal"],
    "privcal --version": ["-m", "privcal", "--version"],
    "privcal --help": ["-m", "privcal", "--help"],
    "privcal calibrate --help": ["-m", "privcal", "calibrate", "--help"],
}
TARGETS = {"privcal --version": 0.15, "privcal --help": 0.4}
"""CPU seconds."""


def run() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in STARTED}

    def call(name: str) -> None:
        before = _children()
        command = [sys.executable, *STARTED[name]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds[name].append(_children() - before)

    take_turns({name: partial(call, name) for name in STARTED}, ROUNDS)
    report.table(
        f"start-up: CPU seconds of a process ({ROUNDS} rounds)",
        ("command", "median", f"/ {BARE}", f"/ {NUMPY}"),
        (
            (
                name,
                f"{statistics.median(taken):.3f} s",
                f"{ratio(taken, seconds[BARE]):.1f}",
                f"{ratio(taken, seconds[NUMPY]):.2f}",
            )
            for name, taken in seconds.items()
        ),
    )
    for name, target in TARGETS.items():
        report.at_most(name, statistics.median(seconds[name]), target, "s of CPU")


def _children() -> float:
    """The CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
