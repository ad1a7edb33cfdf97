"""Processes killed at random moments over a mailbox in a folder; the same commands go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import privcal
from tests.support.campaigns import QUESTIONS, check_ledgers, check_record, policy
from tests.support.letters import MODEL, Federation, federation

pytestmark = pytest.mark.slow
MAIN = "from privcal.cli.app import main; main()"
SECONDS = 25.0
"""For which there are kills; then the campaign must end."""
HANG = 120.0


class Processes:
    """The sites' processes and the calibrator's, each in a group of its own."""

    def __init__(self, fed: Federation, options: Sequence[str]) -> None:
        self.fed, self.options, self.kills = fed, options, 0
        self.sites = {name: self.site(name) for name in fed.sites}

    def start(self, *args: object) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, [str(Path(privcal.__file__).parents[1])]))
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, args)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=(self.fed.folder / "errors.txt").open("ab"),
            start_new_session=True,
        )

    def site(self, name: str) -> subprocess.Popen[bytes]:
        folder = ("--folder", self.fed.mailbox, "--every", 0.1)
        return self.start("site", "run", self.fed.at(name), *folder)

    def calibrator(self) -> subprocess.Popen[bytes]:
        return self.start(
            *("federation", "calibrate", "--as", self.fed.at("ann")),
            *("--mailbox", self.fed.mailbox, "--model", MODEL, "--method", "acc-t"),
            *("--option", "iterations=2", "--campaign", "c", "--every", 0.1, "--wait", 20),
            *("--out", self.fed.folder / "map.json", *self.options),
        )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """All of it at once: the site's child, too."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            process.wait()
        self.kills += 1

    def kill_a_site(self, name: str) -> None:
        self.kill(self.sites[name])
        self.sites[name] = self.site(name)

    def end(self) -> None:
        for process in self.sites.values():
            self.kill(process)


@pytest.fixture(params=["each", "secure,colluding=1,needed=4"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    fed = federation(tmp_path, 5, policy=policy(), start=False)
    made = Processes(fed, ["--aggregation", request.param, "--min-sources", "1"])
    yield made
    made.end()


def test_kills_at_random_moments_charge_nobody_twice_and_lose_no_campaign(
    running: Processes,
) -> None:
    seed = int(os.environ.get("PRIVCAL_SEED", time.time_ns() % 10**6))
    dice, end, fed = random.Random(seed), time.monotonic() + SECONDS, running.fed
    out = fed.folder / "map.json"
    while time.monotonic() < end and not out.exists():
        asking = running.calibrator()
        life = time.monotonic() + dice.uniform(0.5, 6.0)
        while time.monotonic() < min(life, end) and asking.poll() is None:
            time.sleep(dice.uniform(0.05, 1.0))
            if dice.random() < 0.5:
                running.kill_a_site(dice.choice(fed.sites))
        running.kill(asking)
    for _ in range(5):  # where too few replied in time, the same command is given again
        if running.calibrator().wait(HANG) == 0:
            break
    said = (fed.folder / "errors.txt").read_text()
    assert out.exists(), f"the campaign was lost (seed {seed}): {said[-2000:]}"
    assert json.loads(out.read_text())["provenance"]["campaign"] == "c"
    assert running.kills > 3
    check_ledgers(fed)
    check_record(fed, fed.folder / "map.json.campaign")
    rounds = {line for line in said.splitlines() if "Traceback" in line}
    assert not rounds, f"seed {seed}: {said[-4000:]}"
    assert QUESTIONS == 3


def test_of_two_copies_of_a_site_the_one_that_sees_the_others_reply_stops(tmp_path: Path) -> None:
    """Both do where both replied; one that stops before it ever replied leaves nothing to be seen."""
    import shutil

    fed = federation(tmp_path, 1, policy=policy(), start=False)
    (tmp_path / "twin").mkdir(mode=0o700)
    shutil.copytree(fed.at("site-1"), tmp_path / "twin", dirs_exist_ok=True)
    from tests.support.letters import question

    made = Processes(fed, [])
    twin = made.start("site", "run", tmp_path / "twin", "--folder", fed.mailbox, "--every", 0.1)
    both = [made.sites["site-1"], twin]
    try:
        ann, end = fed.asker("ann"), time.monotonic() + HANG
        for n in range(1000):
            ann.put("site-1", ann.request("ask", "site-1", question(f"c{n % 3}")))
            time.sleep(0.3)
            if any(process.poll() is not None for process in both) or time.monotonic() > end:
                break
        assert 1 in [process.poll() for process in both]
    finally:
        made.kill(twin)
        made.end()
