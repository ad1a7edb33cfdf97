"""Turns by asker, when a reply may leave, and the process that has the data."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from privcal.data.place import Data
from privcal.transport.content import Reply
from privcal.transport.site import child
from privcal.trusted.errors import Refused
from tests.support.letters import ANN, Asker, Federation, federation, question
from tests.transport.site.test_service import Clock, at_once, said, until

NAME = "site-1"


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    return federation(tmp_path, sites=1, rows=60)


@pytest.fixture
def ann(fed: Federation) -> Asker:
    return fed.asker(ANN)


def test_a_good_question_is_answered_by_a_child_and_asking_again_is_free(
    fed: Federation, ann: Asker
) -> None:
    try:
        first = said(ann, "ask", question("answered"))
        assert len(first.answers[0]) == 1
        assert said(ann, "ask", question("answered")) == first
        assert fed.ledger(NAME).nano_spent == question().nano_epsilon
    finally:
        fed.site(NAME).close()


class Deadly:
    """What a child is asked by: it is stopped at once, and killed when the question has come."""

    def __init__(self, child: Any) -> None:
        self.child, self.pipe = child, child.stdin
        os.kill(child.pid, signal.SIGSTOP)

    def write(self, line: str) -> None:
        self.pipe.write(line)

    def flush(self) -> None:
        self.pipe.flush()
        self.child.kill()


def test_a_child_that_dies_costs_a_question_and_the_next_is_answered(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fed.site(NAME)._child
    try:
        assert ann.ask(NAME, "a") is None
        assert own._process is not None
        os.kill(own._process.pid, signal.SIGKILL)
        own._process.wait()
        assert ann.ask(NAME, "b") is None, "one that is found dead is started anew"
        monkeypatch.setattr(own._process, "stdin", Deadly(own._process))
        assert ann.ask(NAME, "c") == "unavailable", "one that dies over a question"
        assert ann.ask(NAME, "d") is None
    finally:
        fed.site(NAME).close()


def test_the_child_has_no_network_and_the_parent_no_data(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    monkeypatch.setattr(Data, "read", lambda self, **_: reads.append(self.path))
    try:
        assert ann.ask(NAME, "a") is None
        process = fed.site(NAME)._child._process
        assert process is not None
        fds = Path(f"/proc/{process.pid}/fd")
        kinds = {os.readlink(fd).split(":")[0] for fd in fds.iterdir() if os.path.lexists(fd)}
        assert "socket" not in kinds
        assert "-P" in process.args
        assert reads == [], "the answer came, and not from here"
    finally:
        fed.site(NAME).close()


def test_of_one_question_asked_many_times_at_once_there_is_one_answer(
    fed: Federation, ann: Asker
) -> None:
    got: list[Reply] = []
    try:
        threads = [
            threading.Thread(target=lambda: got.append(said(ann, "ask", question("once"))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        fed.site(NAME).close()
    assert len({reply.answers for reply in got}) == 1
    assert fed.ledger(NAME).nano_spent == question().nano_epsilon


def test_turns_go_round_by_asker_however_many_each_has_waiting() -> None:
    turns, served = child.Turns(), list[str]()

    def take(asker: str) -> None:
        with turns.room(asker) as place, turns.turn(asker, place):
            served.append(asker)

    with turns.turn("x", 0):
        threads = []
        for number, asker in enumerate("aaaabbc", start=1):
            threads += at_once(lambda asker=asker: take(asker))  # type: ignore[misc]
            assert until(lambda number=number: len(turns.waiting) == number)  # type: ignore[misc]
    for thread in threads:
        thread.join(30)
    assert "".join(served) == "abcabaa"


def test_turns_go_by_who_came_first_and_not_by_whose_look_at_the_ledger_was_over_first() -> None:
    """A charge may have locked the ledger, for as long as there are persons to be charged."""
    turns, served = child.Turns(), list[str]()

    def take(asker: str, place: int) -> None:
        with turns.turn(asker, place):
            served.append(asker)

    with turns.turn("x", 0), turns.room("early") as first, turns.room("late") as second:
        threads = at_once(lambda: take("late", second))
        assert until(lambda: len(turns.waiting) == 1)
        threads += at_once(lambda: take("early", first))
        assert until(lambda: len(turns.waiting) == 2)
    for thread in threads:
        thread.join(30)
    assert served == ["early", "late"]


def test_six_who_take_all_the_room_they_can_leave_some_for_a_seventh() -> None:
    turns = child.Turns()
    with contextlib.ExitStack() as taken:
        for number in range(6):
            with contextlib.suppress(Refused):
                for _ in range(child.MAX_REQUESTS):
                    taken.enter_context(turns.room(f"rogue-{number}"))
            assert turns.taken < child.MAX_REQUESTS
        taken.enter_context(turns.room("ann"))
    assert turns.taken == 0


@pytest.mark.parametrize("delay", [0.1, 0.7, 2.0, 600.0])
@pytest.mark.parametrize("took", [0.0, 1e-9, 0.05, 0.1, 0.3, 1.9999, 2.0, 2.0001, 5.6, 61.3])
def test_a_reply_leaves_at_a_multiple_of_the_delay(
    monkeypatch: pytest.MonkeyPatch, delay: float, took: float
) -> None:
    clock = Clock(monkeypatch)
    arrived = clock.now
    clock.now += took
    child.hold(arrived, delay)
    held = (clock.now - arrived) / delay
    assert held == pytest.approx(round(held), abs=1e-6)
    assert held > 0.999999
    assert took - 1e-9 <= clock.now - arrived <= took + delay + 1e-9
