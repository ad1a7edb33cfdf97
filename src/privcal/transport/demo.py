"""A federation to try things with: bundled data, one machine, a folder as mailbox, real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from privcal.data.datasets import cifar10c
from privcal.secure.terms import usual_colluding
from privcal.transport.keys import Keys
from privcal.transport.roster import Roster
from privcal.transport.site import setup
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy, SecureRules

SITES = tuple(f"hospital-{n}" for n in range(1, 5))
CALIBRATOR, MAILBOX = "calibrator", "mailbox"
ROWS = 60
EPSILON = 10.0
SHIFT = "motion_blur"
MODEL = "cifar10-wrn28x10"
EVERY = 0.2
"""Seconds between a site's looks."""
_DAYS = 30
_STARTED = 30.0
"""Seconds in which a site must look into the mailbox."""


def make(folder: Path, seed: int = 0, sites: Sequence[str] = SITES) -> None:
    """Sites with rows of their own, a calibrator, and a roster that all of them accepted."""
    try:
        (folder / MAILBOX).mkdir(parents=True)
        (folder / CALIBRATOR).mkdir(mode=0o700)
        asker = Keys.make(folder / CALIBRATOR, CALIBRATOR, "calibrator")
        scores = cifar10c(SHIFT)
        order = np.random.default_rng(seed).permutation(len(scores))[: len(sites) * ROWS]
        for name, rows in zip(sites, np.split(order, len(sites)), strict=True):
            (folder / name).mkdir(mode=0o700)
            data, mine = folder / name / "scores.npz", scores.take(rows)
            np.savez_compressed(data, labels=mine.labels, logits=mine.outputs.array)
            data.chmod(0o600)
            rules = Policy(
                EPSILON, model=MODEL, secure=SecureRules(colluding=usual_colluding(len(sites)))
            )
            setup.init(folder / name, data, rules, warn=lambda text: None)  # bundled rows
        # As if the owners had read their IDs and the digest to each other.
        cards = [asker.card, *(Keys.load(folder / name).card for name in sites)]
        now = int(time.time())
        roster = Roster.first(cards, [asker.public], now, now + _DAYS * 24 * 3600).signed(asker)
        for name in (CALIBRATOR, *sites):
            Standing(folder / name).accept(roster, roster.digest)
    except BaseException:
        shutil.rmtree(folder)  # half a federation would look like a whole one
        raise


@contextmanager
def running(folder: Path) -> Iterator[dict[str, int]]:
    """Meanwhile its sites run, as processes of their own; their numbers."""
    command = [sys.executable, "-P", "-m", "privcal", "site", "run"]
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in SITES:
            where = [str(folder / name), "--folder", str(folder / MAILBOX), "--every", str(EVERY)]
            with (folder / name / "output.txt").open("ab") as output:
                started[name] = subprocess.Popen(
                    [*command, *where],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C ends them below, and not in the middle of an answer
                    umask=0o077,
                )
        _wait(folder, started)
        yield {name: process.pid for name, process in started.items()}
    finally:
        _end(started)


def _wait(folder: Path, started: dict[str, subprocess.Popen[bytes]]) -> None:
    """Return when every site says that it looks into the mailbox."""
    end = time.monotonic() + _STARTED
    for name, process in started.items():
        output = folder / name / "output.txt"
        while b"looks into" not in output.read_bytes():
            if process.poll() is not None or time.monotonic() > end:
                raise InputError(f"{name} did not start; see {output}")
            time.sleep(0.05)


def _end(started: dict[str, subprocess.Popen[bytes]]) -> None:
    """End the sites, and what they started: ask first, then kill."""
    for process in started.values():
        process.terminate()
    for process in started.values():
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    for process in started.values():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
