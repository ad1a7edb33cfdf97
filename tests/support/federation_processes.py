"""A running federation for tests: real processes, real TLS, this machine only."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data.ledger import Ledger

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.authority.kits import load
from privcal.transport.federation.one_machine import demo, processes
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site import setup
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, MODEL, SERVER

NAMES = ("site-1", "site-2", "site-3", "site-4")
ROWS, EPSILON, DELAY = 60, 1000.0, 0.2
MAIN = "from privcal.cli.app import main; main()"
CANARY = "canary-7f3a9c"  # in names of files, in person ids, in texts of errors


class Federation:
    """The running processes, and what tests do to them."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES) -> None:
        self.kits = folder / "kits"
        self.marks = folder / "marks.db"
        self.names = names

    def site(self, name: str) -> Path:
        return self.kits / name

    def ledger(self, name: str) -> Ledger:
        return Ledger(self.site(name) / "local" / site.LEDGER)

    def spent(self) -> dict[str, int]:
        return {name: self.ledger(name).nano_spent for name in self.names}

    def up(self, *sites: str, path: Sequence[Path] = ()) -> None:
        """Start what does not run; `path`: code that a site's owner put before ours."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PRIVCAL_MARKS", str(self.marks))
            places = [*map(str, path), str(Path(privcal.__file__).parents[1])]
            patch.setenv("PYTHONPATH", os.pathsep.join(places))
            processes.up(self.kits, sites=list(sites) or None, server=not sites)

    def kill(self, name: str) -> None:
        """Everything of a participant, at once and without warning."""
        for pid, _ in processes._processes([self.kits.resolve() / name]):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not processes._processes([self.kits.resolve() / name]), "its end")

    @contextlib.contextmanager
    def settings(self, name: str, **lines: str) -> Iterator[None]:
        """With other settings at a site: `old="new"`, words of its file."""
        path = self.site(name) / "local" / site.SETTINGS
        before = path.read_text()
        text = before
        for setting, value in lines.items():
            text, changed = re.subn(rf"(?m)^{setting} = .*$", f"{setting} = {value}", text)
            assert changed == 1, setting
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    @contextlib.contextmanager
    def policy(self, name: str, **rules: Any) -> Iterator[None]:
        """With other rules in a site's ledger."""
        ledger = self.ledger(name)
        before = ledger.policy
        ledger.set_policy(replace(before, **rules))
        try:
            yield
        finally:
            ledger.set_policy(before)

    def calibrate(self, out: Path, *more: object, epsilon: float = 1.0) -> subprocess.Popen[str]:
        """The command, as a calibrator runs it."""
        command = [sys.executable, "-c", MAIN, "calibrate", "--federation", self.kits / ANN]
        command += ["--model", MODEL, "--epsilon", epsilon, "--out", out, *more]
        if "--method" not in more:
            command += ["--method", "acc-t"]  # which asks in several rounds
        places = {"PYTHONPATH": str(Path(privcal.__file__).parents[1]), "COLUMNS": "200"}
        return subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **places},
        )


def until(holds: Callable[[], Any], what: str, timeout: float = 240.0) -> None:
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, f"waited {timeout:g} seconds for {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def running(
    folder: Path,
    path: Sequence[Path] = (),
    names: Sequence[str] = NAMES,
    policy: privcal.Policy | None = None,
) -> Iterator[Federation]:
    """Four sites, a server, two calibrators; `path`: code that owners put before ours."""
    made = Federation(folder, names)
    parts.make_kits(made.kits, len(names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(made.marks))
        for seed, name in enumerate(names):
            data = made.site(name) / "data" / (f"{CANARY}.npz" if name == "site-1" else "rows.npz")
            person = f"{CANARY}-person" if name == "site-1" else None
            parts.write_rows(data, ROWS, seed, person)
            setup.init(
                made.site(name),
                data,
                policy or privcal.Policy(EPSILON, model=MODEL),
                person=None if person is None else "person",
                delay=DELAY,
            )
        demo.exchange_keys(made.kits, load(made.kits))
    try:
        made.up(path=path)
        yield made
    finally:
        processes.down(made.kits)
        folders = [made.kits.resolve() / name for name in (SERVER, *names)]
        assert processes._processes(folders) == []
