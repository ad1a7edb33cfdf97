"""Storage that does anything at any moment, while processes die: nothing is lost but answers."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.secure.panel import Secure
from privcal.secure.summing import Unfinished
from privcal.trusted.errors import CalibrationError, InputError
from tests.support.campaigns import (
    QUESTIONS,
    calibrated,
    charges,
    check_all,
    looking,
    policy,
    quiet,
)
from tests.support.carrier import Dice, Storage
from tests.support.letters import Federation, federation

pytestmark = pytest.mark.slow
SITES = 5
TRIES = 4
"""Runs of the same command while storage plays its tricks and processes are killed."""


FIRST = int(os.environ.get("PRIVCAL_SEED", "0"))
"""The first seed: a test's name has its own, so what fails can be run again."""


class Killed(BaseException):
    """The end of the calibrator's process."""


class Mortal:
    """The calibrator's process: after so many durable steps it does nothing more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        for name in ("fsync", "replace"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self.left -= 1
                if self.left <= 0:
                    raise Killed
            return act(*args, **more)

        return counted

    @contextmanager
    def until(self, steps: int) -> Iterator[None]:
        """Die after so many steps from here."""
        self.left = steps
        try:
            with suppress(Killed):
                yield
            gc.collect()  # what it had open, while it can still do nothing
        finally:
            self.left = 10**9


@contextmanager
def dying(fed: Federation, storage: Storage, dice: random.Random) -> Iterator[None]:
    """Meanwhile sites are killed, and started again, at random moments."""
    stopped = threading.Event()

    def kill() -> None:
        while not stopped.wait(dice.uniform(0.05, 0.6)):
            name = dice.choice(fed.sites)
            fed.stop(name)
            fed.start(name, box=storage.way(name))

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)


def run(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, secure: Secure | None
) -> tuple[Federation, privcal.Result]:
    """A campaign under tricks and kills, and then to its end without them."""
    fed = federation(folder, SITES, policy=policy(), start=False, monkeypatch=monkeypatch)
    storage, chance, process = Storage(fed.box), random.Random(seed), Mortal(monkeypatch)
    monkeypatch.setattr("privcal.transport.site.service.AGAIN", 0.3)
    monkeypatch.setattr("privcal.transport.carry.AGAIN", 0.3)
    dice = Dice(storage, seed)
    for name in fed.sites:
        fed.start(name, box=storage.way(name))
    record, ann = folder / "record", storage.way("ann")
    with looking(fed):
        with dying(fed, storage, random.Random(seed + 1)):
            for _ in range(TRIES):
                with (
                    suppress(CalibrationError, Unfinished, InputError),  # too few replied
                    process.until(chance.randrange(2, 60)),
                ):
                    calibrated(fed, ann, record, secure=secure, wait=chance.uniform(0.2, 1.0))
        dice.stop()
        made = calibrated(fed, ann, record, secure=secure, wait=20.0)
    quiet(fed)
    check_all(fed, record)
    return fed, made


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 2))
def test_whatever_storage_does_a_campaign_ends_and_costs_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, made = run(tmp_path, seed, monkeypatch, None)
    assert len(made.rounds) == QUESTIONS
    for round in made.rounds:
        assert round.answers
        for name in round.answers:
            assert len(charges(fed, name)) >= 1


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 2))
def test_whatever_storage_does_a_secure_sum_is_opened_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = run(tmp_path, seed, monkeypatch, Secure(colluding=1, needed=4))
    assert len(made.rounds) == QUESTIONS
