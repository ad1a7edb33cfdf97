"""Real processes over a folder: a calibrator and sites that are killed, and nobody pays twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")

from privcal.data.ledger import Ledger
from privcal.transport import demo as example
from privcal.transport.site import setup
from privcal.transport.site.settings import LEDGER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four hospitals that run, and hold their answers for a fifth of a second."""
    folder = tmp_path_factory.mktemp("processes") / "demo"
    init = setup.init
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder.parent / "marks.db"))
        patch.setattr(setup, "init", lambda *given, **more: init(*given, **more, delay=0.2))
        example.make(folder)
        with example.running(folder):
            yield folder


@pytest.fixture(autouse=True)
def _marks(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVCAL_MARKS", str(made.parent / "marks.db"))


def spent(made: Path) -> list[int]:
    return [Ledger(made / name / LEDGER).nano_spent for name in example.SITES]


def calibrate(made: Path, out: Path, *more: object) -> subprocess.Popen[str]:
    who = ("--as", made / example.CALIBRATOR, "--mailbox", made / example.MAILBOX)
    what = ("--model", example.MODEL, "--out", out, "--every", 0.05, "--wait", 60, "--json")
    command = ("federation", "calibrate", *who, *what, *more)
    return subprocess.Popen(
        [sys.executable, "-m", "privcal", *map(str, command)],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return dict(json.loads(stdout))


KILLS = int(os.environ.get("PRIVCAL_KILLS", "3"))
"""Kills for each kind of campaign; more of them are a matter of patience."""


@pytest.mark.parametrize(
    "how", [("--method", "acc-t", "--option", "iterations=2"), ("--aggregation", "secure")]
)
def test_a_calibrator_killed_at_random_moments_goes_on_and_nobody_pays_twice(
    made: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    before, out, draw = spent(made), tmp_path / "map.json", random.Random(7)
    command = (*how, "--epsilon", 0.5)
    began = time.monotonic()
    finished(calibrate(made, tmp_path / "whole.json", *command))
    whole = time.monotonic() - began
    for _ in range(KILLS):
        process = calibrate(made, out, *command)
        time.sleep(draw.uniform(0.3, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    said = finished(calibrate(made, out, *command))
    assert len(said["spent"]) == len(example.SITES)
    assert [now - then for then, now in zip(before, spent(made), strict=True)] == [10**9] * 4, (
        "once for the whole run, and once for the one that was killed"
    )


def test_a_site_that_was_killed_answers_when_it_runs_again(made: Path, tmp_path: Path) -> None:
    """The run waits: the site's new process finds the letter, and its child charges once."""
    [number] = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if {str(made / "hospital-4"), "run"} <= {*_words(path)}
    ]
    before = spent(made)
    os.kill(number, signal.SIGKILL)
    process = calibrate(made, tmp_path / "map.json", "--epsilon", 0.5, "--min-sites", 4)
    time.sleep(1.0)
    command = [sys.executable, "-P", "-m", "privcal", "site", "run", str(made / "hospital-4")]
    again = subprocess.Popen([*command, "--folder", str(made / example.MAILBOX), "--every", "0.2"])
    try:
        assert len(finished(process)["spent"]) == 4
    finally:
        again.terminate()
        again.wait(20)
    assert [now - then for then, now in zip(before, spent(made), strict=True)] == [5 * 10**8] * 4


def _words(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
