"""Ctrl-C: one sentence, exit code 1, and nothing cut short that tidies up."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.builders import python

COMMANDS = """
import gc, signal, sys, time
from pathlib import Path
from privcal.cli.app import app, main
from privcal.cli.exits import LEFT

@app.command()
def tidy():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        time.sleep(1.6)
        Path("tidied").touch()

LEFT["working"] = "what was finished is on disk"

@app.command()
def working():
    signal.raise_signal(signal.SIGINT)

class Deaf:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

@app.command()
def deaf():
    Deaf()  # its destructor is interrupted, where nothing can be raised
    time.sleep(60)
    Path("survived").touch()

main()
"""


def interrupted(command: str, folder: Path, left: str = "nothing was charged") -> float:
    """Run a command that interrupts itself; the seconds it took."""
    began = time.monotonic()
    done = python(COMMANDS, command, folder=folder)
    assert done.returncode == 1
    assert done.stderr == f"error: interrupted; {left}\n"
    return time.monotonic() - began


def test_no_second_interrupt_cuts_a_cleanup_short(tmp_path: Path) -> None:
    interrupted("tidy", tmp_path)
    assert (tmp_path / "tidied").exists()


def test_only_of_a_command_that_leaves_something_it_is_said_what(tmp_path: Path) -> None:
    """What `calibrate` leaves it says itself, as it depends on how far it came."""
    interrupted("working", tmp_path, "what was finished is on disk")


def test_an_interrupt_that_a_destructor_swallows_still_ends_the_run(tmp_path: Path) -> None:
    assert interrupted("deaf", tmp_path) < 60
    assert not (tmp_path / "survived").exists()
