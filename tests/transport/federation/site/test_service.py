"""What a site makes of a message, end to end: policy, ledger, data, and when the reply leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import Policy
from privcal.trusted.queries import BinnedGap, Gap

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.secure.keys import SealingKey
from privcal.transport.federation.shared import messages, revocations
from privcal.transport.federation.shared.messages import Opened, Signer, open_reply
from privcal.transport.federation.shared.requests import Reply, Request
from privcal.transport.federation.shared.roster import Card
from privcal.transport.federation.site import health, keys, log, service, setup, worker
from privcal.transport.federation.site import settings as site
from privcal.transport.federation.site.log import LOG, MOST, WITHIN, line, write
from privcal.transport.federation.site.roster import own_card
from privcal.transport.federation.site.service import Service
from tests.support import federation_parts as parts
from tests.support.federation_parts import ANN, BOB, MODEL, message, question, signer

NAME = "site-1"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.make_kits(tmp_path_factory.mktemp("federation") / "kits", sites=1)


@pytest.fixture(scope="module")
def ann(kits: Path) -> Signer:
    return signer(kits)


@pytest.fixture(scope="module")
def bob(kits: Path) -> Signer:
    return signer(kits, BOB)


class InProcess:
    """Instead of the child: what it does, without its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, opened: Opened) -> Reply:
        return worker.safely(self.folder, opened.asker, opened.request)

    def wake(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def place(kits: Path, tmp_path: Path) -> Path:
    """A site's folder with its kit, not set up."""
    folder = tmp_path / NAME
    (folder / "local").mkdir(parents=True)
    (folder / "startup").symlink_to(kits / NAME / "startup")
    return folder


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Child", InProcess)


class Asked:
    """A site, and what it says to requests of a calibrator."""

    def __init__(self, folder: Path) -> None:
        self.service = Service(folder)
        self.card = own_card(folder)

    def request(self, by: Signer, *questions: Any, kind: str = "question", **more: Any) -> Reply:
        campaign = more.pop("campaign", None) or questions[0].campaign
        request, key = Request.make(kind, campaign, questions, [NAME])
        sent = by.sign(request)
        return self.open(self.service.answer("ask", sent.encode()), sent, key, request)

    def ask(self, by: Signer, *args: Any, **more: Any) -> str | None:
        """The code of a refusal; None for an answer."""
        return self.request(by, question(*args, **more)).refused

    def open(self, reply: bytes, sent: str, key: SealingKey, request: Request) -> Reply:
        return open_reply(reply.decode(), sent, self.card, key, request)


def set_up(folder: Path, rows: int = 60, policy: Policy | None = None, **more: Any) -> Asked:
    data = parts.write_rows(folder.parent / "rows.npz", rows)
    setup.init(folder, data, policy or Policy(10.0, model=MODEL), **{"delay": 0.1, **more})
    return Asked(folder)


def ledger_of(folder: Path) -> Ledger:
    return Ledger(folder / "local" / site.LEDGER)


# --- through the child --------------------------------------------------------------------


def test_a_good_question_is_answered_by_a_child_and_asking_again_is_free(
    place: Path, ann: Signer
) -> None:
    asked = set_up(place)
    try:
        first = asked.request(ann, question("answered"))
        assert len(first.values) == 1
        assert asked.request(ann, question("answered")) == first
        assert ledger_of(place).nano_spent == question().nano_epsilon
    finally:
        asked.service.close()


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
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set_up(place)
    child = asked.service._child
    try:
        assert asked.ask(ann, "a") is None
        assert child._process is not None
        os.kill(child._process.pid, signal.SIGKILL)
        child._process.wait()
        assert asked.ask(ann, "b") is None, "one that is found dead is started anew"
        monkeypatch.setattr(child._process, "stdin", Deadly(child._process))
        assert asked.ask(ann, "c") == "unavailable", "one that dies over a question"
        assert asked.ask(ann, "d") is None
    finally:
        asked.service.close()


def test_the_child_has_no_network_and_the_parent_no_data(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set_up(place)
    reads: list[Path] = []
    monkeypatch.setattr(Data, "read", lambda self, **_: reads.append(self.path))
    try:
        assert asked.ask(ann, "a") is None
        child = asked.service._child._process
        assert child is not None
        fds = Path(f"/proc/{child.pid}/fd")
        kinds = {os.readlink(fd).split(":")[0] for fd in fds.iterdir() if os.path.lexists(fd)}
        assert "socket" not in kinds
        assert "-P" in child.args
        assert reads == [], "the answer came, and not from here"
    finally:
        asked.service.close()


def test_of_one_question_asked_many_times_at_once_there_is_one_answer(
    place: Path, ann: Signer
) -> None:
    asked = set_up(place)
    got: list[Reply] = []
    try:
        threads = [
            threading.Thread(target=lambda: got.append(asked.request(ann, question("once"))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        asked.service.close()
    assert len({reply.values for reply in got}) == 1
    assert ledger_of(place).nano_spent == question().nano_epsilon


# --- what is asked ------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_what_cannot_be_opened_never_reaches_the_data(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set_up(place)
    monkeypatch.setattr(InProcess, "ask", lambda *_: pytest.fail("it was asked"))
    for sent in (message(ann, "{}"), "", "\0", "[" * 10_000):
        reply = json.loads(asked.service.answer("ask", sent.encode()))
        assert reply["refused"] == "bad_request"
    assert ledger_of(place).nano_spent == 0


@pytest.mark.usefixtures("in_process")
def test_an_offer_costs_nothing_and_keeps_what_it_would_cost(
    place: Path, ann: Signer, bob: Signer
) -> None:
    asked = set_up(place, policy=Policy(1.0, model=MODEL))
    plan = [question("plan", n, epsilon=0.3) for n in range(3)]
    assert asked.request(ann, *plan, kind="offer").accepted
    assert ledger_of(place).nano_spent == 0
    others = [question("other", n, epsilon=0.3) for n in range(2)]
    assert asked.request(bob, *others, kind="offer").refused == "reserved"
    assert asked.ask(bob, "other", epsilon=0.3) == "reserved"
    dear = [question("dear", n, epsilon=0.6) for n in range(2)]
    assert asked.request(bob, *dear, kind="offer").refused == "over_budget"
    assert asked.request(ann, kind="release", campaign="plan").accepted
    assert asked.request(bob, *others, kind="offer").accepted
    assert ledger_of(place).nano_spent == 0


@pytest.mark.usefixtures("in_process")
def test_nothing_is_answered_before_the_owner_approved_it(place: Path, ann: Signer) -> None:
    asked = set_up(place, policy=Policy(1.0, model=MODEL, approve=True))
    assert asked.request(ann, question("c"), kind="offer").refused == "awaiting_approval"
    assert asked.ask(ann, "c") == "awaiting_approval"
    ledger = ledger_of(place)
    [(waiting, _)] = ledger.waiting()
    assert (waiting.asker, waiting.campaign) == (ANN, "c")
    ledger.approve(waiting)
    assert asked.ask(ann, "c") is None
    assert asked.ask(ann, "d") == "awaiting_approval"


@pytest.mark.usefixtures("in_process")
def test_whoever_is_revoked_is_refused_and_with_a_damaged_list_everybody(
    place: Path, kits: Path, ann: Signer, bob: Signer
) -> None:
    asked = set_up(place)
    from privcal.transport.federation.authority.kits import revoke

    revocations.install(place, revoke(kits, BOB))
    assert asked.ask(bob, "a") == "revoked"
    assert asked.ask(ann, "b") is None
    path = place / "local" / revocations.REVOKED
    path.write_text(path.read_text()[:-20])
    assert asked.ask(ann, "c") == "unavailable"
    assert asked.ask(bob, "c") == "unavailable"


@pytest.mark.usefixtures("in_process")
def test_a_question_is_answered_from_the_data_of_the_model_it_names(
    place: Path, ann: Signer
) -> None:
    asked = set_up(place, policy=Policy(1.0, model="one"))
    with pytest.raises(InputError, match="data for model 'one' already"):
        setup.add(place, parts.write_rows(place.parent / "x.npz", 9), Policy(1.0), model="one")
    second = parts.write_rows(place.parent / "second.npz", 30, seed=1)
    setup.add(place, second, Policy(2.0), model="two")
    one, two = site.Site.load(place).populations
    assert asked.ask(ann, "a", model="one", epsilon=0.5) is None
    assert asked.ask(ann, "b", model="two", epsilon=0.25) is None
    assert asked.ask(ann, "c", model="three") == "model"
    assert asked.ask(ann, "c", model=None) == "model"
    assert Ledger(one.ledger).nano_spent == parts.round_nano(0.5)
    assert Ledger(two.ledger).nano_spent == parts.round_nano(0.25)


@pytest.mark.usefixtures("in_process")
def test_new_keys_hold_from_the_next_message(place: Path, ann: Signer) -> None:
    asked = set_up(place)
    assert Card.read(asked.service.answer("card", b"").decode()).keys == asked.card.keys
    keys.rotate(place)
    with pytest.raises(ValueError, match="signature is not right"):
        asked.ask(ann, "a")
    asked.card = Card.read(asked.service.answer("card", b"").decode())
    assert asked.ask(ann, "a") is None
    keys.destroy(place)
    assert asked.service.answer("card", b"") == b""
    assert asked.service.answer("ask", b"{}") == b""


@pytest.mark.usefixtures("in_process")
def test_more_messages_at_once_than_there_is_room_for_are_told_so(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_REQUESTS", 4)  # of which one asker leaves half to others
    leave = threading.Event()
    monkeypatch.setattr(service, "hold", lambda *_: leave.wait(60))
    asked = set_up(place)
    got: list[str | None] = []
    threads = [
        threading.Thread(target=lambda n=n: got.append(asked.ask(ann, f"c{n}")))  # type: ignore[misc]
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while len(got) < 4 and time.monotonic() < end:  # two have room, and are held
        time.sleep(0.01)
    assert got == ["busy"] * 4
    leave.set()
    for thread in threads:
        thread.join()
    assert got.count(None) == 2
    assert asked.ask(ann, "later") is None


@pytest.mark.usefixtures("in_process")
def test_one_asker_does_not_take_all_the_room(
    place: Path, ann: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused, or was answered before, costs nothing: it could be sent for ever."""
    asked = set_up(place)
    full, go_on = threading.Barrier(service.MAX_REQUESTS_OF_ONE + 1), threading.Event()
    got: list[str | None] = []

    def reply(self: Service, opened: Opened, *_: Any) -> Reply:
        if opened.asker == ANN:
            full.wait(10.0)
            go_on.wait(10.0)
        return Reply(refused="model")

    monkeypatch.setattr(Service, "_reply", reply)
    threads = [
        threading.Thread(target=lambda: got.append(asked.ask(ann, "again")))
        for _ in range(service.MAX_REQUESTS_OF_ONE)
    ]
    for thread in threads:
        thread.start()
    full.wait(10.0)
    assert asked.ask(ann, "one more") == "busy"
    assert asked.ask(bob, "his") == "model"
    go_on.set()
    for thread in threads:
        thread.join()
    assert got == ["model"] * service.MAX_REQUESTS_OF_ONE
    assert asked.service._turns.taken == 0


# --- whose turn it is ---------------------------------------------------------------------


def at_once(*jobs: Callable[[], Any]) -> list[threading.Thread]:
    """Threads that do these, started; daemons, so that what is stuck fails a test and no more."""
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def until(met: Callable[[], bool]) -> bool:
    """Whether something comes about, within half a minute."""
    end = time.monotonic() + 30
    while not met() and time.monotonic() < end:
        time.sleep(0.005)
    return met()


class Held:
    """Instead of waiting for the delay: replies are held until they are let go, all at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, but: Callable[[], bool]) -> None:
        self.go, self.number, self._but = threading.Event(), 0, but
        monkeypatch.setattr(service, "hold", self)

    def __call__(self, *_: Any) -> None:
        if not self._but():
            self.number += 1
            assert self.go.wait(60)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", ["question", "offer"])
def test_a_stranger_to_the_policy_takes_no_turn_from_those_it_admits(
    place: Path, ann: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Eight questions of somebody who is not admitted took eight delays of the one turn."""
    asked = set_up(place, policy=Policy(1.0, askers=(ANN,), model=MODEL))
    reached: list[str] = []
    real = InProcess.ask

    def ask(child: InProcess, opened: Opened) -> Reply:
        reached.append(opened.asker)
        return real(child, opened)

    monkeypatch.setattr(InProcess, "ask", ask)
    mine = threading.local()
    held = Held(monkeypatch, but=lambda: getattr(mine, "free", False))
    codes: list[str | None] = []
    strangers = at_once(
        *(
            lambda n=n: codes.append(asked.request(bob, question(f"b{n}"), kind=kind).refused)  # type: ignore[misc]
            for n in range(service.MAX_REQUESTS_OF_ONE)
        )
    )
    assert until(lambda: held.number >= 1)
    got: list[str | None] = []

    def hers() -> None:
        mine.free = True
        got.extend(asked.ask(ann, f"a{n}", epsilon=0.1) for n in range(3))

    [waiting] = at_once(hers)
    waiting.join(10)
    told_while_held = list(got)
    held.go.set()
    for thread in (waiting, *strangers):
        thread.join(60)
    assert told_while_held == [None] * 3, "answered while all of the stranger's replies are held"
    assert codes == ["asker"] * service.MAX_REQUESTS_OF_ONE
    assert set(reached) == {ANN}, "who is not admitted does not even get to the child"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("admitted", [True, False])
def test_four_askers_do_not_take_all_the_room(
    place: Path, kits: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    """Four who each sent all that one may made everybody else `busy`."""
    names = [f"rogue-{n}@lab.org" for n in range(4)]
    asked = set_up(
        place, policy=Policy(1.0, askers=(ANN, *names) if admitted else (ANN,), model=MODEL)
    )
    authority = json.loads((kits / "ca" / "cert.json").read_text())
    rogues = [Signer(name, *parts.certificate(name, authority=authority)) for name in names]
    held = Held(monkeypatch, but=lambda: False)
    codes: list[str | None] = []
    each = 2 * service.MAX_REQUESTS_OF_ONE
    threads = at_once(
        *(
            lambda by=by, n=n: codes.append(asked.ask(by, f"c{n}", epsilon=0.01))  # type: ignore[misc]
            for n in range(each)
            for by in rogues
        )
    )
    until(lambda: len(codes) + asked.service._turns.taken >= each * len(rogues))
    assert set(codes) == {"busy"}
    [hers] = at_once(lambda: codes.append(asked.ask(ann, "hers", epsilon=0.01)))
    hers.join(1)
    busy = not hers.is_alive()
    held.go.set()
    for thread in (hers, *threads):
        thread.join(60)
    assert not busy, "there is room for her"
    assert None in codes


def test_turns_go_round_by_asker_however_many_each_has_waiting() -> None:
    turns, served = service.Turns(), list[str]()

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
    turns, served = service.Turns(), list[str]()

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
    turns = service.Turns()
    with contextlib.ExitStack() as taken:
        for number in range(6):
            with contextlib.suppress(Refused):
                for _ in range(service.MAX_REQUESTS):
                    taken.enter_context(turns.room(f"rogue-{number}"))
            assert turns.taken < service.MAX_REQUESTS
        taken.enter_context(turns.room("ann"))
    assert turns.taken == 0


# --- when a reply leaves ------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def strftime(self, form: str) -> str:
        return time.strftime(form)


@pytest.mark.parametrize("delay", [0.1, 0.7, 2.0, 600.0])
@pytest.mark.parametrize("took", [0.0, 1e-9, 0.05, 0.1, 0.3, 1.9999, 2.0, 2.0001, 5.6, 61.3])
def test_a_reply_leaves_at_a_multiple_of_the_delay(
    monkeypatch: pytest.MonkeyPatch, delay: float, took: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    arrived = clock.now
    clock.now += took
    service.hold(arrived, delay)
    held = (clock.now - arrived) / delay
    assert held == pytest.approx(round(held), abs=1e-6)
    assert held > 0.999999
    assert took - 1e-9 <= clock.now - arrived <= took + delay + 1e-9


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("rows", [1, 60, 9000])
@pytest.mark.parametrize("what", ["answer", "refusal", "failure", "offer", "stranger"])
def test_when_a_reply_leaves_and_how_long_it_is_do_not_depend_on_the_rows(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch, rows: int, what: str
) -> None:
    """Reading takes a second for every 1,000 rows, by a clock of ours; a delay of 20 covers it."""
    admitted = (BOB,) if what == "stranger" else None
    asked = set_up(place, rows, Policy(10.0, model=MODEL, askers=admitted), delay=20.0)
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)
    real = Data.read

    def slowly(data: Data) -> Any:
        clock.now += rows / 1000
        if what == "failure":
            raise InputError("the row of John Smith is odd")
        return real(data)

    monkeypatch.setattr(Data, "read", slowly)
    one = question("timing", model="another" if what == "refusal" else MODEL)
    kind = "offer" if what == "offer" else "question"
    request, key = Request.make(kind, one.campaign, [one], [NAME])
    sent = ann.sign(request)
    reply = asked.service.answer("ask", sent.encode())
    assert clock.now == pytest.approx(1020.0)
    read = asked.open(reply, sent, key, request)
    refused = {"refusal": "model", "failure": "unavailable", "stranger": "asker"}
    assert read.refused == refused.get(what)
    again = asked.service.answer("ask", sent.encode())
    assert len(again) == len(reply)
    assert b"Smith" not in reply
    noted = place / "local" / LOG
    assert ("John Smith" in noted.read_text()) if what == "failure" else True
    assert not noted.exists() or noted.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("rows", [1, 60, 9000])
def test_whoever_is_turned_away_does_not_see_how_long_anothers_rows_take(
    place: Path, ann: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Bob, whom the policy does not admit, asks while Ann's rows are read; eight times at once."""
    asked = set_up(place, rows, Policy(10.0, model=MODEL, askers=(ANN,)), delay=20.0)
    told: list[tuple[float, str | None]] = []

    class Both(Clock):
        """Ann's replies move the clock; of Bob's it is noted when they leave."""

        def sleep(self, seconds: float) -> None:
            if threading.current_thread() in his:
                told.append((self.now + seconds, None))
            else:
                super().sleep(seconds)

    clock, his = Both(), list[threading.Thread]()
    monkeypatch.setattr(service, "time", clock)
    real = Data.read

    def slowly(data: Data) -> Any:
        clock.now += rows / 2000
        his.extend(
            threading.Thread(target=lambda n=n: asked.ask(bob, f"b{n}"), daemon=True)  # type: ignore[misc]
            for n in range(service.MAX_REQUESTS_OF_ONE)
        )
        for thread in his:
            thread.start()
        for thread in his:
            thread.join(10)
        clock.now += rows / 2000
        return real(data)

    monkeypatch.setattr(Data, "read", slowly)
    assert asked.ask(ann, "hers") is None
    assert clock.now == pytest.approx(1020.0)
    left = [when for when, _ in told]
    assert left == pytest.approx([1020.0 + rows / 2000] * service.MAX_REQUESTS_OF_ONE)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("locked", [0.0, 0.3, 19.0])
@pytest.mark.parametrize("kind", ["question", "offer", "about", "check", "open"])
@pytest.mark.parametrize("why", ["asker", "expired"])
def test_whoever_is_turned_away_does_not_see_how_long_a_charge_locks_the_ledger(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch, why: str, kind: str, locked: float
) -> None:
    """Where each person has a budget of their own, that depends on how many there are."""
    asked = set_up(place, delay=20.0)
    clock = Clock()
    monkeypatch.setattr(service, "time", clock)

    def admits(*_: Any) -> bool:
        clock.now += locked
        return why != "asker"

    monkeypatch.setattr(site.Site, "admits", admits)
    request = parts.request(kind="about", issued=int(time.time()) - 7000 * (why == "expired"))
    real = service.open_message

    def open_message(*args: Any, **more: Any) -> Opened:
        opened = real(*args, **more)
        object.__setattr__(opened.request, "kind", kind)
        return opened

    monkeypatch.setattr(service, "open_message", open_message)
    monkeypatch.setattr(Request, "room", 300)
    asked.service.answer("ask", ann.sign(request).encode())
    assert clock.now == pytest.approx(1020.0)
    assert asked.service.refused == {why: 1}


@pytest.mark.usefixtures("in_process")
def test_where_there_is_no_room_the_ledger_is_not_looked_at(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`busy` is said at once, so it must not wait for who has the ledger locked."""
    asked = set_up(place)
    monkeypatch.setattr(service, "MAX_REQUESTS_OF_ONE", 0)
    monkeypatch.setattr(site.Site, "admits", lambda *_: pytest.fail("it was looked at"))
    assert asked.ask(ann, "a") == "busy"


@pytest.mark.usefixtures("in_process")
def test_the_log_says_why_an_offer_was_refused(place: Path, ann: Signer, bob: Signer) -> None:
    asked = set_up(place, policy=Policy(1.0, model=MODEL, askers=(ANN,)))
    dear = [question("dear", n, epsilon=0.6) for n in range(2)]
    assert asked.request(ann, *dear, kind="offer").refused == "over_budget"
    assert asked.request(bob, question("b"), kind="offer").refused == "asker"
    data = site.Site.load(place).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert asked.request(ann, question("c"), kind="offer").refused == "unavailable"
    over, stranger, gone = (place / "local" / LOG).read_text().splitlines()
    assert "ann@lab.org was refused: over_budget: not enough of the budget is left" in over
    assert "bob@lab.org was refused: asker: the policy does not let this asker ask" in stranger
    assert "ann@lab.org was refused: unavailable: the source cannot answer (" in gone
    assert str(data) in gone, "the cause, in words"


@pytest.mark.usefixtures("in_process")
def test_no_asker_fills_the_log_and_all_refusals_are_counted(
    place: Path, ann: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "hold", lambda *_: None)
    asked = set_up(place, policy=Policy(1.0, model=MODEL, askers=(ANN,)))
    for n in range(60):
        assert asked.ask(bob, f"b{n}") == "asker"
        asked.service.answer("ask", b"{}")
    assert asked.ask(ann, "hers", model="another") == "model"
    lines = (place / "local" / LOG).read_text().splitlines()
    assert len(lines) == 2 * MOST + 1
    assert "ann@lab.org was refused: model" in lines[-1], "others' are still written"
    assert "not written for an hour" in lines[-2]
    clock = Clock()
    clock.now = time.monotonic() + WITHIN
    monkeypatch.setattr(log, "time", clock)
    assert asked.ask(bob, "later") == "asker"
    assert len((place / "local" / LOG).read_text().splitlines()) == 2 * MOST + 2
    service._write_status(asked.service, None)
    status = health.last_status(place)
    assert status["refused"] == {"asker": 61, "bad_request": 60, "model": 1}
    assert status["failing_since"] is None


@pytest.mark.usefixtures("in_process")
def test_since_when_nothing_is_answered_is_kept_until_something_is(
    place: Path, ann: Signer
) -> None:
    asked = set_up(place)
    data = site.Site.load(place).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert asked.ask(ann, "a", model="another") == "model"
    assert asked.service.failing_since is None, "this was the asker's doing"
    assert asked.ask(ann, "b") == "unavailable"
    since = asked.service.failing_since
    assert since is not None
    assert asked.request(ann, question("c"), kind="offer").refused == "unavailable"
    assert asked.service.failing_since == since
    data.with_suffix(".gone").rename(data)
    assert asked.ask(ann, "d") is None
    assert asked.service.failing_since is None


@pytest.mark.usefixtures("in_process")
def test_what_requests_say_of_the_askers_clocks_is_kept_for_the_owner(
    place: Path, ann: Signer, bob: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that is refused for it; not of somebody who may not ask at all."""
    asked = set_up(place, policy=Policy(1.0, model=MODEL, askers=(ANN,)))
    now = float(int(time.time()))  # dates are whole seconds

    def send(by: Signer, ahead: float, held: float = 0.0) -> str | None:
        """A request by a clock that is ahead; the message is on its way for a while."""
        monkeypatch.setattr(messages.time, "time", lambda: now + ahead)
        request, key = Request.make("about", "about", [], [NAME])
        sent = by.sign(request)
        monkeypatch.setattr(messages.time, "time", lambda: now + held)
        reply = asked.service.answer("ask", sent.encode())
        return asked.open(reply, sent, key, request).refused

    def clocks() -> dict[str, float]:
        return {asker: round(ahead) for asker, (_, ahead) in asked.service.clocks.items()}

    assert (send(ann, 45), clocks()) == (None, {ANN: 45})
    assert (send(ann, -2), clocks()) == (None, {ANN: -2})
    assert (send(ann, -2, held=200), clocks()) == (None, {ANN: -2}), "the same, sent once more"
    assert (send(ann, 86400), clocks()) == ("expired", {ANN: 86400})
    assert (send(ann, -86400), clocks()) == ("expired", {ANN: -86400})
    assert (send(bob, 50), clocks()) == ("asker", {ANN: -86400})
    monkeypatch.undo()
    service._write_status(asked.service, None)
    assert health.last_status(place)["clocks"] == {ANN: -86400.0}


@pytest.mark.usefixtures("in_process")
def test_the_owners_log_has_a_line_for_a_refusal_and_a_traceback_for_a_fault(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set_up(place)
    written = place / "local" / LOG
    assert asked.ask(ann, "a", model="another") == "model"
    data = site.Site.load(place).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert asked.ask(ann, "b") == "unavailable"
    asked.service.answer("ask", b'{"privcal":3}')
    lines = written.read_text().splitlines()
    assert len(lines) == 3
    assert "ann@lab.org was refused: model: the scores come from another model" in lines[0]
    assert "ann@lab.org was refused: unavailable: the source cannot answer (" in lines[1]
    assert str(data) in lines[1], "the cause, in words"
    assert "a message was refused: bad_request: " in lines[2]
    assert "a message has other parts" in lines[2]
    written.unlink()
    data.with_suffix(".gone").rename(data)
    monkeypatch.setattr(Data, "read", lambda *_, **__: 1 / 0)
    assert asked.ask(ann, "c") == "unavailable"
    assert "Traceback" in written.read_text()
    assert "ZeroDivisionError" in written.read_text()


def test_a_line_of_the_log_is_one_line_whatever_a_sender_wrote(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    write(tmp_path, line(InputError("no name:\n2026-01-01 all is well\x1b[2J" + "x" * 10_000)))
    [written] = (tmp_path / "local" / LOG).read_text().splitlines()
    assert "no name: 2026-01-01 all is well [2J" in written
    assert len(written) < 1100


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", ["question", "offer"])
def test_what_waits_behind_a_question_does_not_see_how_long_its_rows_took(
    place: Path, ann: Signer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The next is looked at when the first one's delay is over, not when its rows are read.

    31 questions of ε .001 at once told 16,000 rows from 8,000: together they took two delays.
    """
    asked = set_up(place)
    reached: list[str] = []
    real = InProcess.ask

    def ask(child: InProcess, opened: Opened) -> Reply:
        reached.append(opened.request.campaign)
        return real(child, opened)

    following = threading.Thread(
        target=lambda: asked.request(ann, question("second"), kind=kind), daemon=True
    )
    while_held: list[str] = []

    def hold(since: float, delay: float) -> None:
        if not while_held:
            following.start()
            following.join(0.5)
            while_held.extend(reached)

    monkeypatch.setattr(InProcess, "ask", ask)
    monkeypatch.setattr(service, "hold", hold)
    assert asked.ask(ann, "first") is None
    following.join()
    assert while_held == ["first"]
    assert reached == ["first", "second"]


# --- policy, and rows that are odd --------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_a_policy_rules_whatever_is_signed(place: Path, ann: Signer) -> None:
    rules = Policy(1.0, 0.6, queries=("gap",), askers=(ANN,), model=MODEL)
    asked = set_up(place, 20, rules)
    assert asked.ask(ann, "q", query=BinnedGap(1.0, 15)) == "query"
    assert asked.ask(ann, "m", model="another") == "model"
    assert asked.ask(ann, "l", epsilon=0.600000001) == "over_request_limit"
    assert asked.ask(ann, "s", epsilon=1e-9) == "under_minimum"
    assert asked.ask(ann, "a", epsilon=0.6) is None
    assert asked.ask(ann, "a", epsilon=0.6) is None
    assert asked.ask(ann, "a", epsilon=0.5) == "id_conflict"
    assert asked.ask(ann, "a", query=Gap(2.0), epsilon=0.6) == "id_conflict"
    assert asked.ask(ann, "b", epsilon=0.400000001) == "over_budget"
    assert asked.ask(ann, "b", epsilon=0.4) is None
    assert asked.ask(ann, "c", epsilon=0.001) == "over_budget"
    ledger_of(place).set_policy(replace(rules, askers=(BOB,)))
    assert asked.ask(ann, "a", epsilon=0.6) == "asker"
    assert ledger_of(place).nano_spent == 10**9


ODD_ROWS: dict[str, dict[str, Any]] = {
    "a logit that is not a number": {"logit": float("nan")},
    "an infinite logit": {"logit": float("inf")},
    "a label out of range": {"label": 10},
    "a label that is no whole number": {"label": 0.5},
    "a typo": {"logit": "0.5.1"},
    "an empty cell": {"logit": None},
    "text for a label": {"label": "malignant"},
    "a label beyond 64 bits": {"label": "99999999999999999999"},
    "a stray quotation mark": {"logit": '"0.5'},
    "a comma too many": {"logit": "0,5"},
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_refusal_tells_whether_a_malformed_row_is_there(
    place: Path, tmp_path: Path, ann: Signer, bob: Signer, odd: str, kind: str
) -> None:
    """Neither to someone the policy does not admit, nor when the budget is used up, nor else."""
    lines = [[f"{(7 * i + j) % 5}.5" for j in range(10)] + [str(i % 10)] for i in range(20)]
    header = [f"logit_{j}" for j in range(10)] + ["label"]
    data = write_table(tmp_path / f"rows.{kind}", header, lines)
    rules = Policy(1.0, 0.6, askers=(ANN,), model=MODEL)
    setup.init(place, data, rules, delay=0.1, warn=lambda text: None)
    asked = Asked(place)

    def ask_all(name: str) -> list[str | None]:
        return [
            asked.ask(bob, f"stranger-{name}"),
            asked.ask(ann, f"model-{name}", model="another"),
            asked.ask(ann, f"dear-{name}", epsilon=0.7),
            asked.ask(ann, f"good-{name}", epsilon=0.25),
            asked.ask(ann, f"over-{name}", epsilon=0.6),
        ]

    before = ask_all("before")
    assert before == ["asker", "model", "over_request_limit", None, None]
    row = list(lines[0])
    row[3] = ODD_ROWS[odd].get("logit", row[3])
    row[10] = ODD_ROWS[odd].get("label", row[10])
    write_table(data, header, [*lines[:10], row, *lines[10:]])
    with pytest.raises(InputError):
        privcal.read_scores(data)  # its owner is told
    ledger = ledger_of(place)
    ledger.set_policy(replace(ledger.policy, epsilon=2.0))
    assert ask_all("after") == before
    ledger.set_policy(replace(ledger.policy, epsilon=1.0))
    assert asked.ask(ann, "used-up", epsilon=0.1) == "over_budget"


def write_table(path: Path, header: list[str], lines: list[list[Any]]) -> Path:
    """As CSV, or as Parquet of text."""
    if path.suffix == ".csv":
        text = [",".join("" if cell is None else str(cell) for cell in line) for line in lines]
        path.write_text("\n".join([",".join(header), *text]) + "\n")
    else:
        columns = zip(
            *([None if c is None else str(c) for c in line] for line in lines), strict=True
        )
        pl.DataFrame(dict(zip(header, map(list, columns), strict=True))).write_parquet(path)
    return path
