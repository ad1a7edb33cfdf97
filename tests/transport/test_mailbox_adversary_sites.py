"""Kills at every durable step (13), ledgers put back (14), and a site that runs twice (15).

What a process did before it died is on disk, and the same letter gets the same bytes. Where a site's
folder is older than what left it, or it is there twice, it answers nothing more.
"""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from privcal.data.ledger import Ledger
from privcal.secure.panel import Secure
from privcal.secure.summing import Unfinished
from privcal.transport import carry
from privcal.transport.site.outbox import Outbox
from privcal.transport.site.service import Service
from privcal.trusted.errors import CalibrationError
from tests.support.campaigns import (
    QUESTIONS,
    calibrated,
    charges,
    check_all,
    check_ledgers,
    check_record,
    looking,
    openings,
    quiet,
)
from tests.support.letters import question
from tests.transport.conftest import World
from tests.transport.test_mailbox_adversary import BOTH, SUM, ever, told_at

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped"),
]
SITE = "site-1"


class Killed(BaseException):
    """The end of a process."""


# --- 13: kills --------------------------------------------------------------------------------


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], int]:
    """Let this process write so many files to disk, and then nothing more; returns how many it wrote."""
    count = [0]

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                count[0] += 1
                if count[0] > after:
                    raise Killed
            return act(*args, **more)

        return write

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    return lambda: count[0]


@BOTH
def test_a_calibrator_killed_at_any_durable_step_goes_on_and_pays_once(
    world: World, tmp_path: Path, secure: Secure | None
) -> None:
    step, most = 0, 1
    with looking(world.fed):
        while step < most:
            record = tmp_path / f"record-{step}"
            how: dict[str, Any] = {"secure": secure, "campaign": f"c{step}"}
            with pytest.MonkeyPatch.context() as patch:
                count = killing(patch, step or 10**9)
                with suppress(Killed):
                    calibrated(world.fed, world.ann, record, **how)
                gc.collect()  # what is left of it ends while it can write nothing
                most = most if step else count()
            made = calibrated(world.fed, world.ann, record, **how)
            assert len(made.rounds) == QUESTIONS, f"killed at step {step} of {most}"
            check_record_of(world, record, f"c{step}")
            step += 1 if step == 0 else max(1, most // 5)
    quiet(world.fed)
    check_ledgers(world.fed, 100.0)
    assert most > 10


def check_record_of(world: World, record: Path, campaign: str) -> None:
    """Each site charged this campaign's questions once, and all of them."""
    for name in world.fed.sites:
        mine = [key for key in charges(world.fed, name) if key[1] == campaign]
        assert len(mine) == QUESTIONS
    if campaign == "c":
        check_record(world.fed, record)


@BOTH
@pytest.mark.parametrize("when", ["before it is stored", "after it is stored", "before it is put"])
def test_a_site_killed_around_any_reply_sends_the_same_bytes_and_charges_once(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    secure: Secure | None,
    when: str,
) -> None:
    """Each reply of the first site is where its process dies, once; then it is started again."""
    monkeypatch.setattr(carry, "AGAIN", 0.2)
    store, died, lock = Outbox.store, set[str](), threading.Lock()
    dead: list[str] = []

    def once(what: str) -> bool:
        with lock:
            new = what not in died
            died.add(what)
            return new

    def stored(self: Outbox, letter: str, *rest: Any) -> bytes:
        own = self._id == world.fed.id(SITE)
        if own and when == "before it is stored" and once(letter):
            dead.append(letter)
            raise Killed
        reply = store(self, letter, *rest)
        if own and when == "after it is stored" and once(letter):
            dead.append(letter)
            raise Killed
        return reply

    def trouble(party: str, do: str, writer: str, name: str) -> None:
        if party == SITE and do == "put" and when == "before it is put" and once(name):
            dead.append(name)
            raise Killed

    monkeypatch.setattr(Outbox, "store", stored)
    world.storage.troubles.append(trouble)
    stopped = threading.Event()

    def start_again() -> None:
        while not stopped.wait(0.05):
            if dead:
                dead.clear()
                world.restart(SITE)

    watchdog = threading.Thread(target=start_again, daemon=True)
    watchdog.start()
    with looking(world.fed):
        made = calibrated(world.fed, world.ann, tmp_path / "record", secure=secure)
    stopped.set()
    watchdog.join(10)
    quiet(world.fed)
    assert len(died) >= QUESTIONS
    assert all(SITE in round.sources for round in made.rounds)
    check_all(world.fed, tmp_path / "record")


# --- 14: put back -----------------------------------------------------------------------------


def saved(world: World, at: Path, *, ledger_only: bool) -> None:
    """Back up a site's folder, or its ledger alone."""
    folder = world.fed.at(SITE)
    if not ledger_only:
        shutil.copytree(folder, at)
        return
    at.mkdir()
    source = sqlite3.connect(world.fed.ledger(SITE).path)
    with source, sqlite3.connect(at / "privcal.ledger") as copy:
        source.backup(copy)


def put_back(world: World, at: Path) -> None:
    """Put a backup in place, and start the site again."""
    world.fed.stop(SITE)
    for path in at.iterdir():
        to = world.fed.at(SITE) / path.name
        if path.is_dir():
            shutil.copytree(path, to, dirs_exist_ok=True)
        else:
            for part in world.fed.at(SITE).glob(f"{path.name}-*"):
                part.unlink()  # of SQLite's
            shutil.copy2(path, to)
    world.start(SITE)


@pytest.mark.parametrize("what", ["the ledger", "the folder", "the folder and the marks"])
def test_a_site_put_back_to_between_share_and_open_opens_no_second_set(
    world: World, tmp_path: Path, what: str
) -> None:
    marks = Path(os.environ["PRIVCAL_MARKS"])
    backup, copied = tmp_path / "backup", tmp_path / "copy"

    def back_up() -> None:
        saved(world, backup, ledger_only=what == "the ledger")
        shutil.copy2(marks, tmp_path / "marks")
        shutil.copytree(tmp_path / "record", copied)
        lines = (copied / "answers.jsonl").read_text().splitlines()
        left = [line for line in lines if '"chosen"' not in line]
        (copied / "answers.jsonl").write_text("".join(f"{line}\n" for line in left))

    with looking(world.fed):
        told = told_at("check", back_up)
        calibrated(world.fed, world.ann, tmp_path / "record", secure=SUM, tell=told)
    quiet(world.fed)
    opened = openings(world.fed, SITE)
    assert len(opened) == QUESTIONS
    put_back(world, backup)
    if what == "the folder and the marks":
        shutil.copy2(tmp_path / "marks", marks)
    assert openings(world.fed, SITE) == {}
    world.fed.round(SITE)
    world.storage.hide("ann", writer=world.fed.id("site-5"))  # so that the set is another one
    with looking(world.fed), suppress(CalibrationError, Unfinished):
        calibrated(world.fed, world.ann, copied, secure=SUM, wait=2.0)
    again = openings(world.fed, SITE)
    assert all(opened[key] == digest for key, digest in again.items()), "a second set was opened"
    assert again == {}, "it does not know what it opened, so it opens nothing"
    site = world.fed.site(SITE)
    if what != "the ledger" or site.stopped:
        assert "put back" in site.stopped


# --- 15: twice --------------------------------------------------------------------------------


def test_two_copies_of_a_site_that_answer_beside_each_other_both_stop(
    everywhere: World, tmp_path: Path
) -> None:
    world = everywhere
    quiet(world.fed)
    world.fed.stop(SITE)
    twin = tmp_path / "twin"
    shutil.copytree(world.fed.at(SITE), twin)
    world.start(SITE)
    other = Service(twin)
    beside = carry.Carrier(world.storage.way("twin"), other)
    ann = world.fed.asker("ann")
    for name in ("a", "b"):
        ann.put(SITE, ann.request("ask", SITE, question(name)))
        both = [threading.Thread(target=c.look) for c in (world.fed.running[SITE][1], beside)]
        for one in both:
            one.start()
        for one in both:
            one.join(30)
        world.fed.running[SITE][1].wait()
        beside.wait()
    world.fed.round(SITE)
    beside.look()
    beside.wait()
    assert world.fed.site(SITE).stopped
    assert other.stopped
    spent = world.fed.ledger(SITE).nano_spent
    ann.put(SITE, ann.request("ask", SITE, question("later")))
    world.fed.round(SITE)
    beside.look()
    beside.wait()
    assert world.fed.ledger(SITE).nano_spent == spent
    beside.close()
    other.close()


def test_a_copy_that_starts_later_stops_before_it_answers(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.fed.at(SITE), tmp_path / "twin")
    with looking(world.fed):
        calibrated(world.fed, world.ann, tmp_path / "record")
    quiet(world.fed)
    files = ever(world)
    twin = Service(tmp_path / "twin")
    beside = carry.Carrier(world.storage.way("twin"), twin)
    beside.look()
    beside.wait()
    assert "twice" in twin.stopped
    assert ever(world) == files, "nothing left the copy"
    beside.close()
    twin.close()


# --- threads that count beside each other -----------------------------------------------------


def test_two_replies_at_once_are_no_ledger_with_fewer_entries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads how many entries there are, and is held; another one charges meanwhile."""
    site, ann = world.fed.site(SITE), world.fed.asker("ann")
    read, go_on = threading.Event(), threading.Event()
    height = Ledger.height.fget  # type: ignore[attr-defined]
    first = threading.Lock()

    def slow(self: Ledger) -> int:
        found: int = height(self)
        if first.acquire(blocking=False):
            read.set()
            go_on.wait(1.0)
        return found

    monkeypatch.setattr(Ledger, "height", property(slow))
    about = ann.write(SITE, ann.request("about", SITE))
    thread = threading.Thread(target=site.take, args=(about.content,))
    thread.start()
    assert read.wait(10)
    ask = ann.write(SITE, ann.request("ask", SITE, question("c")))
    other = threading.Thread(target=site.take, args=(ask.content,))
    other.start()
    other.join(0.8)
    go_on.set()
    thread.join(10)
    other.join(10)
    assert len(charges(world.fed, SITE)) == 1
    assert site.stopped == ""
