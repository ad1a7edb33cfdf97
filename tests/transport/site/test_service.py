"""What a site makes of a letter, end to end: who is heard, whose turn it is, when the reply leaves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privcal.data.place import Data
from privcal.secure.keys import SealingKey
from privcal.transport import keys, standing
from privcal.transport.content import Reply, Request
from privcal.transport.keys import Keys
from privcal.transport.letter import MAX_LETTER, Letter
from privcal.transport.site import child, health, log, outbox, service
from privcal.transport.site import settings as site
from privcal.transport.site.log import LOG, MOST, WITHIN
from privcal.transport.site.service import Service
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from tests.support.letters import (
    ANN,
    BOB,
    MODEL,
    Asker,
    Federation,
    InProcess,
    federation,
    make_party,
    nano,
    question,
    set_policy,
)

NAME = "site-1"
LENGTHS = {1: 2534, 128: 7274}
"""Bytes of a reply, whatever it says."""


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path / "fed", sites=1, rows=60, monkeypatch=monkeypatch)


@pytest.fixture
def ann(fed: Federation) -> Asker:
    return fed.asker(ANN)


@pytest.fixture
def bob(fed: Federation) -> Asker:
    return fed.asker(BOB)


def spent(fed: Federation) -> int:
    return fed.ledger(NAME).nano_spent


# --- who is heard ---------------------------------------------------------------------------


def silent(fed: Federation, content: bytes, why: str) -> bool:
    """Whether this gets no reply, is counted as that, and costs nothing."""
    at = fed.site(NAME)
    before = at.unheard[why]
    heard = at.take(content)
    return (heard, at.unheard[why], spent(fed)) == (None, before + 1, 0)


def test_a_letter_of_several_questions_gets_one_reply_and_the_same_bytes_again(
    fed: Federation, ann: Asker
) -> None:
    request = ann.request("ask", NAME, *(question(round=n, epsilon=0.1) for n in range(3)))
    letter = ann.write(NAME, request)
    first = fed.site(NAME).take(letter.content)
    assert first is not None
    reply = ann.open(first, request, letter)
    assert [len(one) for one in reply.answers] == [1, 1, 1]
    assert spent(fed) == nano(0.3)
    assert fed.site(NAME).take(letter.content) == first
    fed.stop()
    fed.start()
    assert fed.site(NAME).take(letter.content) == first, "also after a restart"
    assert ann.say(NAME, request) == reply, "another letter, the same answers"
    assert spent(fed) == nano(0.3)


def test_garbage_is_met_with_silence(fed: Federation, ann: Asker) -> None:
    letter = ann.write(NAME, ann.request("about", NAME))
    for content in (b"", b"\0", b"{}", b"[" * 10_000, b"x" * (MAX_LETTER + 1), letter.content[:-9]):
        assert silent(fed, content, "no letter")


def test_a_stranger_and_a_member_who_is_no_calibrator_hear_nothing(
    fed: Federation, ann: Asker, tmp_path: Path
) -> None:
    stranger = make_party(tmp_path / "eve", "eve", "calibrator")
    request = ann.request("ask", NAME, question())
    card = ann.roster.named(NAME)
    assert card is not None
    letter = Letter.write(request.text, stranger, card.id, card.sealing)
    assert silent(fed, letter.content, "stranger")
    two = federation(tmp_path / "two", sites=2)
    other = Keys.load(two.at("site-2"))
    card = two.roster.named(NAME)
    assert card is not None
    letter = Letter.write(two.asker().request("about", NAME).text, other, card.id, card.sealing)
    assert silent(two, letter.content, "stranger"), "a site does not ask a site"
    two.stop()


def test_a_letter_that_was_stripped_and_signed_anew_does_not_open(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    """Another calibrator passes a letter of hers off as his own."""
    letter = ann.write(NAME, ann.request("ask", NAME, question()))
    signed = f'["privcal letter 4","{bob.keys.id}","{letter.reader}","{letter.sealed}"]'
    stolen = Letter(bob.keys.id, letter.reader, letter.sealed, bob.keys.sign(signed))
    stolen.check(bob.keys.public)
    assert silent(fed, stolen.content, "bad_request")


def test_outer_names_that_were_changed_break_the_signature(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    letter = ann.write(NAME, ann.request("ask", NAME, question()))
    assert silent(fed, replace(letter, sender=bob.keys.id).content, "signature")
    assert silent(fed, replace(letter, reader=bob.keys.id).content, "addressee")


def test_names_inside_that_are_not_those_outside_are_dropped(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    request = ann.request("ask", NAME, question())
    assert silent(fed, ann.write(NAME, replace(request, sender=bob.keys.id)).content, "bad_request")
    other = replace(request, federation="0" * 32)
    assert silent(fed, ann.write(NAME, other).content, "bad_request")
    to = replace(request, reader=bob.keys.id)
    assert silent(fed, ann.write(NAME, to).content, "bad_request")


def test_a_reply_is_no_question(fed: Federation, ann: Asker) -> None:
    request = ann.request("about", NAME)
    reply = fed.site(NAME).take(ann.write(NAME, request).content)
    assert reply is not None
    inside = Letter.read(reply).open(ann.key)
    card = ann.roster.named(NAME)
    assert card is not None
    back = Letter.write(inside, ann.keys, card.id, card.sealing)
    assert silent(fed, back.content, "bad_request")


def test_a_letter_from_before_its_writer_was_removed_is_not_answered(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    """By a hint alone: `until` is in the future, and nobody did anything at the site."""
    letter = bob.write(NAME, bob.request("ask", NAME, question()))
    without = fed.without(BOB)
    assert fed.site(NAME).take(without.text.encode()) is None
    assert silent(fed, letter.content, "stranger")
    assert bob.keys.id not in fed.site(NAME).writers()
    fed.accept(without, ANN)
    assert ann.ask(NAME) is None


def test_a_blocked_calibrator_hears_nothing_from_that_moment_on(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    letter = bob.write(NAME, bob.request("ask", NAME, question()))
    Standing(fed.at(NAME)).block(BOB)
    assert silent(fed, letter.content, "blocked")
    assert bob.keys.id not in fed.site(NAME).writers()
    assert ann.ask(NAME) is None


def test_with_a_damaged_list_of_the_blocked_nobody_is_answered(fed: Federation, ann: Asker) -> None:
    (fed.at(NAME) / standing.BLOCKED).write_text("[")
    assert silent(fed, ann.write(NAME, ann.request("about", NAME)).content, "fault")


def test_a_letter_by_an_older_roster_is_refused_under_seal(fed: Federation, ann: Asker) -> None:
    old = ann.request("ask", NAME, question())
    newer = fed.without(BOB)
    fed.accept(newer, NAME)
    reply = ann.say(NAME, old)
    assert reply == Reply(refused="roster")
    number = replace(old, roster=(newer.number, old.roster[1]))
    assert ann.say(NAME, number) == Reply(refused="roster"), "its number alone does not do"
    fed.accept(newer, ANN)
    assert ann.ask(NAME) is None


def test_with_a_roster_that_ended_every_question_is_refused(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ann.roster.until
    request = ann.request("ask", NAME, question(), issued=end - 60, until=end + 3600)
    letter = ann.write(NAME, request)
    with monkeypatch.context() as later:
        later.setattr(service.time, "time", lambda: end + 1.0)
        content = fed.site(NAME).take(letter.content)
    assert content is not None
    assert ann.open(content, request, letter) == Reply(refused="roster")


@pytest.mark.parametrize(
    ("after", "code"),
    [(-86400, "expired"), (-61, "expired"), (0, None), (59, None), (60, "expired")],
)
def test_a_letter_holds_from_a_minute_before_its_date_until_its_end(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch, after: int, code: str | None
) -> None:
    now = int(time.time())
    request = ann.request("ask", NAME, question(), issued=now, until=now + 60)
    letter = ann.write(NAME, request)
    with monkeypatch.context() as then:
        then.setattr(service.time, "time", lambda: float(now + after))
        content = fed.site(NAME).take(letter.content)
    assert content is not None
    assert ann.open(content, request, letter).refused == code
    assert spent(fed) == (0 if code else nano(0.5))


def test_a_date_is_judged_again_when_the_site_answers(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letter came in time, and waited for others' turns."""
    now = int(time.time())
    request = ann.request(
        "ask", NAME, *(question(round=n, epsilon=0.1) for n in range(3)), issued=now, until=now + 60
    )
    letter = ann.write(NAME, request)
    clock = [float(now)]
    monkeypatch.setattr(service.time, "time", lambda: clock[0])
    real = InProcess.ask

    def ask(one: InProcess, asker: str, request: Request) -> Reply:
        clock[0] += 40
        return real(one, asker, request)

    monkeypatch.setattr(InProcess, "ask", ask)
    content = fed.site(NAME).take(letter.content)
    assert content is not None
    assert ann.open(content, request, letter) == Reply(refused="expired")
    assert spent(fed) == nano(0.2)


def test_a_letter_that_was_answered_hears_nothing_more_long_after_its_end(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = ann.write(NAME, ann.request("ask", NAME, question()))
    first = fed.site(NAME).take(letter.content)
    later = time.time() + 3600 + outbox.KEPT + 2
    assert fed.site(NAME).expired() == []
    monkeypatch.setattr(service.time, "time", lambda: later)
    assert first is not None
    assert fed.site(NAME).expired() == [Letter.read(first).name]
    assert ann.say(NAME, ann.request("about", NAME)) is not None, "old bytes go at the next reply"
    assert fed.site(NAME).take(letter.content) is None


# --- refusals -------------------------------------------------------------------------------


def test_a_refusal_is_looked_at_again_after_a_while_and_is_a_new_file_only_where_it_is_another(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_policy(fed, NAME, Policy(1.0, model=MODEL, approve=True))
    at = fed.site(NAME)
    request = ann.request("ask", NAME, question())
    letter = ann.write(NAME, request)
    waits = at.take(letter.content)
    assert waits is not None
    assert ann.open(waits, request, letter).refused == "awaiting_approval"
    ledger = fed.ledger(NAME)
    monkeypatch.setattr(service, "AGAIN", 0.0)
    assert at.take(letter.content) == waits, "looked at, and the same bytes"
    monkeypatch.setattr(service, "AGAIN", 600.0)
    [(proposal, _)] = ledger.waiting()
    ledger.approve(proposal)
    assert at.take(letter.content) == waits, "not looked at"
    monkeypatch.setattr(service, "AGAIN", 0.0)
    answer = at.take(letter.content)
    assert answer is not None
    assert ann.open(answer, request, letter).answers
    assert len(answer) == len(waits), "and as long as the refusal was"
    set_policy(fed, NAME, Policy(1.0, model=MODEL, askers=(BOB,)))
    assert at.take(letter.content) == answer, "an answer stays one"


def test_another_plan_for_a_campaign_that_was_charged_is_refused(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    plan = [question("c", n, epsilon=0.2) for n in range(3)]
    first = ann.request("ask", NAME, plan[0], plan=tuple(plan))
    assert ann.say(NAME, first).refused is None  # type: ignore[union-attr]
    shorter = ann.request("ask", NAME, plan[1], plan=tuple(plan[:2]))
    assert ann.say(NAME, shorter) == Reply(refused="id_conflict")
    fed.stop()
    fed.start()
    assert ann.say(NAME, shorter) == Reply(refused="id_conflict"), "also after a restart"
    assert spent(fed) == nano(0.2)
    second = ann.request("ask", NAME, plan[1], plan=tuple(plan))
    assert ann.say(NAME, second).refused is None  # type: ignore[union-attr]
    his = bob.request("ask", NAME, plan[1], plan=tuple(plan[:2]))
    assert bob.say(NAME, his).refused is None  # type: ignore[union-attr]


def test_a_plan_of_which_nothing_was_charged_may_be_another(fed: Federation, ann: Asker) -> None:
    set_policy(fed, NAME, Policy(1.0, model=MODEL))
    dear = [question("c", n, epsilon=0.6) for n in range(2)]
    assert ann.say(NAME, ann.request("ask", NAME, *dear)) == Reply(refused="over_budget")
    assert ann.say(NAME, ann.request("ask", NAME, dear[0])).refused is None  # type: ignore[union-attr]


# --- the own outbox is a witness --------------------------------------------------------------


def test_two_copies_of_a_site_both_stop(fed: Federation, ann: Asker, tmp_path: Path) -> None:
    """Each sees in the mailbox what the other one wrote with the keys of both."""
    copy = Path(shutil.copytree(fed.at(NAME), tmp_path / "copy"))
    one, other = fed.site(NAME), Service(copy)
    mine = one.take(ann.write(NAME, ann.request("about", NAME)).content)
    theirs = other.take(ann.write(NAME, ann.request("about", NAME)).content)
    assert mine is not None
    assert theirs is not None
    assert one.take(mine) is None
    assert not one.stopped, "it knows its own"
    for at, strange in ((one, theirs), (other, mine)):
        assert at.take(strange) is None
        assert "signed and does not know" in at.stopped
        assert at.take(ann.write(NAME, ann.request("about", NAME)).content) is None
        assert at.unheard["stopped"] == 1
    other.close()
    fed.stop()
    fed.start()
    assert fed.site(NAME).stopped, "for good"
    assert ann.say(NAME, ann.request("about", NAME)) is None
    assert "it runs twice" in outbox.stopped(fed.at(NAME), fed.id(NAME))


def test_a_folder_put_back_to_an_older_state_stops_where_the_mailbox_shows_it(
    fed: Federation, ann: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger, marks and outbox together, as from one backup: nothing else would notice."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(fed.at(NAME) / "marks.db"))
    shutil.copy(Path(fed.ledger(NAME).facts.marks or ""), fed.at(NAME) / "marks.db")
    fed.stop()
    backup = Path(shutil.copytree(fed.at(NAME), tmp_path / "backup"))
    fed.start()
    request = ann.request("ask", NAME, question())
    letter = ann.put(NAME, request)
    fed.round()
    assert len(ann.replies(NAME, request, letter)) == 1
    fed.stop()
    shutil.rmtree(fed.at(NAME))
    shutil.copytree(backup, fed.at(NAME))
    assert spent(fed) == 0
    fed.start()
    fed.round()
    assert fed.site(NAME).stopped
    assert spent(fed) == 0
    assert len(ann.replies(NAME, request, letter)) == 1, "the same question is not answered anew"


def test_a_ledger_with_fewer_entries_than_it_had_stops_the_site(
    fed: Federation, ann: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put back together with its marks, and the outbox was not."""
    marks = fed.at(NAME) / "marks.db"
    shutil.copy(Path(fed.ledger(NAME).facts.marks or ""), marks)
    monkeypatch.setenv("PRIVCAL_MARKS", str(marks))
    ledger = fed.at(NAME) / site.LEDGER
    before = ledger.read_bytes(), marks.read_bytes()
    assert ann.ask(NAME, "a") is None
    ledger.write_bytes(before[0])
    marks.write_bytes(before[1])
    assert ann.say(NAME, ann.request("about", NAME)) is None
    assert "fewer entries" in fed.site(NAME).stopped


def test_files_that_others_plant_in_its_folder_stop_no_site(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    at = fed.site(NAME)
    theirs = bob.write(NAME, bob.request("about", NAME))
    forged = replace(theirs, sender=at.id, reader=ann.keys.id)
    assert silent(fed, forged.content, "signature")
    assert not at.stopped


def test_new_signing_keys_begin_anew(fed: Federation, ann: Asker) -> None:
    fed.site(NAME)._outbox.stop("it was put back")
    fed.stop()
    fed.accept(fed.rekeyed(NAME, signing=True))
    fed.start()
    assert not fed.site(NAME).stopped
    assert ann.ask(NAME) is None


# --- keys and sums ----------------------------------------------------------------------------


def test_a_letter_sealed_for_the_rotated_key_opens_and_one_for_a_destroyed_key_does_not(
    fed: Federation, ann: Asker
) -> None:
    letters = [ann.write(NAME, ann.request("about", NAME, campaign=f"c{n}")) for n in range(2)]
    keys.rotate(fed.at(NAME))
    assert fed.site(NAME).take(letters[0].content) is not None
    keys.rotate(fed.at(NAME), now=True)
    assert silent(fed, letters[1].content, "bad_request")
    keys.destroy(fed.at(NAME))
    assert silent(fed, letters[1].content, "fault")


def test_what_is_sealed_says_nothing_to_others(fed: Federation, ann: Asker, bob: Asker) -> None:
    content = fed.site(NAME).take(ann.write(NAME, ann.request("ask", NAME, question())).content)
    assert content is not None
    for key in (SealingKey.make(), ann.keys.sealing, bob.keys.sealing):
        with pytest.raises(ValueError, match="sealed for another key"):
            Letter.read(content).open(key)


def test_the_process_with_the_letters_imports_neither_a_mailbox_library_nor_an_engine() -> None:
    for module in ("service", "worker", "running"):
        code = f"import sys, privcal.transport.site.{module}; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert not {"fsspec", "nvflare", "paramiko", "asyncio"} & set(done.stdout.split()), module


def said(by: Asker, kind: str, *questions: Any, **more: Any) -> Reply:
    """What the site says to a request of a calibrator."""
    if kind == "release":
        more = {"campaign": "c", **more}
    reply = by.say(NAME, by.request(kind, NAME, *questions, **more))
    assert reply is not None
    return reply


def slow_site(fed: Federation, folder: Path, rows: int, policy: Policy) -> Federation:
    """Another federation, whose site has a delay of 20 seconds."""
    fed.stop()
    with warnings.catch_warnings(action="ignore"):  # the same rows have a ledger in `fed`
        return federation(folder / "slow", sites=1, rows=rows, policy=policy, delay=20.0)


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


@pytest.mark.parametrize("kind", ["ask", "about"])
def test_a_stranger_to_the_policy_takes_no_turn_from_those_it_admits(
    fed: Federation, ann: Asker, bob: Asker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Eight questions of somebody who is not admitted took eight delays of the one turn."""
    set_policy(fed, NAME, Policy(1.0, askers=(ANN,), model=MODEL))
    reached: list[str] = []
    real = InProcess.ask

    def ask(child: InProcess, asker: str, request: Request) -> Reply:
        reached.append(asker)
        return real(child, asker, request)

    monkeypatch.setattr(InProcess, "ask", ask)
    mine = threading.local()
    held = Held(monkeypatch, but=lambda: getattr(mine, "free", False))
    codes: list[str | None] = []
    strangers = at_once(
        *(
            lambda n=n: codes.append(said(bob, kind, question(f"b{n}")).refused)  # type: ignore[misc]
            for n in range(child.MAX_REQUESTS_OF_ONE)
        )
    )
    assert until(lambda: held.number >= 1)
    got: list[str | None] = []

    def hers() -> None:
        mine.free = True
        got.extend(ann.ask(NAME, f"a{n}", epsilon=0.1) for n in range(3))

    [waiting] = at_once(hers)
    waiting.join(10)
    told_while_held = list(got)
    held.go.set()
    for thread in (waiting, *strangers):
        thread.join(60)
    assert told_while_held == [None] * 3, "answered while all of the stranger's replies are held"
    assert codes == ["asker"] * child.MAX_REQUESTS_OF_ONE
    assert set(reached) == {ANN}, "who is not admitted does not even get to the child"


def test_more_messages_at_once_than_there_is_room_for_are_told_so(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MAX_REQUESTS", 4)  # of which one asker leaves half to others
    leave = threading.Event()
    monkeypatch.setattr(service, "hold", lambda *_: leave.wait(60))
    got: list[str | None] = []
    threads = [
        threading.Thread(target=lambda n=n: got.append(ann.ask(NAME, f"c{n}")))  # type: ignore[misc]
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
    assert ann.ask(NAME, "later") is None


def test_one_asker_does_not_take_all_the_room(
    fed: Federation, ann: Asker, bob: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused, or was answered before, costs nothing: it could be sent for ever."""
    held = Held(monkeypatch, but=lambda: threading.current_thread() is threading.main_thread())
    codes: list[str | None] = []
    threads = at_once(
        *(
            lambda n=n: codes.append(said(ann, "about", question(f"a{n}", model="x")).refused)  # type: ignore[misc]
            for n in range(child.MAX_REQUESTS_OF_ONE)
        )
    )
    assert until(lambda: held.number == child.MAX_REQUESTS_OF_ONE)
    assert ann.ask(NAME, "one more") == "busy"
    assert bob.ask(NAME, "his") is None
    held.go.set()
    for thread in threads:
        thread.join(60)
    assert codes == ["model"] * child.MAX_REQUESTS_OF_ONE


@pytest.mark.parametrize("admitted", [True, False])
def test_four_askers_do_not_take_all_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    """Four who each sent all that one may made everybody else `busy`."""
    names = [f"rogue-{n}" for n in range(4)]
    rules = Policy(1.0, askers=(ANN, *names) if admitted else (ANN,), model=MODEL)
    fed = federation(
        tmp_path, sites=1, calibrators=(ANN, *names), policy=rules, monkeypatch=monkeypatch
    )
    held = Held(monkeypatch, but=lambda: False)
    codes: list[str | None] = []
    each = 2 * child.MAX_REQUESTS_OF_ONE
    rogues = [fed.asker(name) for name in names]
    threads = at_once(
        *(
            lambda by=by, n=n: codes.append(by.ask(NAME, f"c{n}", epsilon=0.01))  # type: ignore[misc]
            for n in range(each)
            for by in rogues
        )
    )
    until(lambda: len(codes) + fed.site(NAME)._turns.taken >= each * len(names))
    assert set(codes) == {"busy"}
    [hers] = at_once(lambda: codes.append(fed.asker().ask(NAME, "hers", epsilon=0.01)))
    hers.join(1)
    busy = not hers.is_alive()
    held.go.set()
    for thread in (hers, *threads):
        thread.join(60)
    assert not busy, "there is room for her"
    assert None in codes


# --- when a reply leaves ------------------------------------------------------------------


class Clock:
    """A clock of ours, by which nothing really waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (service, child):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def strftime(self, form: str) -> str:
        return time.strftime(form)


@pytest.mark.parametrize("rows", [1, 60, 9000])
@pytest.mark.parametrize("what", ["answer", "refusal", "failure", "about", "stranger"])
@pytest.mark.parametrize("questions", [1, 128])
def test_when_a_reply_leaves_and_how_long_it_is_do_not_depend_on_the_rows(
    fed: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    what: str,
    questions: int,
) -> None:
    """Reading takes a second for every 1,000 rows, by a clock of ours; a delay of 20 covers it.

    Were 128 questions of a letter read in one turn, it would leave later by two minutes a thousand.
    """
    if questions > 1 and (what, rows) not in (("answer", 1), ("answer", 9000)):
        pytest.skip("the others are not asked one by one")
    admitted = (BOB,) if what == "stranger" else None
    slow = slow_site(fed, tmp_path, rows, Policy(10.0, model=MODEL, askers=admitted))
    ann, clock = slow.asker(), Clock(monkeypatch)
    real = Data.read

    def slowly(data: Data) -> Any:
        clock.now += rows / 1000
        if what == "failure":
            raise InputError("the row of John Smith is odd")
        return real(data)

    monkeypatch.setattr(Data, "read", slowly)
    model = "another" if what == "refusal" else MODEL
    asked = [question("t", n, epsilon=0.01, model=model) for n in range(questions)]
    request = ann.request("about" if what == "about" else "ask", NAME, *asked)
    letter = ann.write(NAME, request)
    content = slow.site(NAME).take(letter.content)
    assert clock.now == pytest.approx(1000.0 + 20.0 * questions)
    assert content is not None
    reply = ann.open(content, request, letter)
    refused = {"refusal": "model", "failure": "unavailable", "stranger": "asker"}
    assert reply.refused == refused.get(what)
    if what != "about":
        assert len(content) == LENGTHS[questions]
    assert b"Smith" not in content
    noted = slow.at(NAME) / LOG
    assert ("John Smith" in noted.read_text()) if what == "failure" else True
    assert not noted.exists() or noted.stat().st_mode & 0o077 == 0


def test_a_letter_that_fails_in_its_first_question_leaves_when_it_would_have_been_answered(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = slow_site(fed, tmp_path, 30, Policy(10.0, model=MODEL))
    ann, clock = slow.asker(), Clock(monkeypatch)
    monkeypatch.setattr(Data, "read", lambda *_, **__: 1 / 0)
    asked = [question("t", n, epsilon=0.1) for n in range(5)]
    assert said(ann, "ask", *asked).refused == "unavailable"
    assert clock.now == pytest.approx(1100.0)
    assert slow.ledger(NAME).nano_spent == nano(0.1), "and asks no more of its questions"


@pytest.mark.parametrize("rows", [1, 60, 9000])
def test_whoever_is_turned_away_does_not_see_how_long_anothers_rows_take(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Bob, whom the policy does not admit, asks while Ann's rows are read; eight times at once."""
    slow = slow_site(fed, tmp_path, rows, Policy(10.0, model=MODEL, askers=(ANN,)))
    ann, bob = slow.asker(), slow.asker(BOB)
    told: list[tuple[float, str | None]] = []

    class Both(Clock):
        """Ann's replies move the clock; of Bob's it is noted when they leave."""

        def sleep(self, seconds: float) -> None:
            if threading.current_thread() in his:
                told.append((self.now + seconds, None))
            else:
                super().sleep(seconds)

    his: list[threading.Thread] = []
    clock = Both(monkeypatch)
    real = Data.read

    def slowly(data: Data) -> Any:
        clock.now += rows / 2000
        his.extend(
            threading.Thread(target=lambda n=n: bob.ask(NAME, f"b{n}"), daemon=True)  # type: ignore[misc]
            for n in range(child.MAX_REQUESTS_OF_ONE)
        )
        for thread in his:
            thread.start()
        for thread in his:
            thread.join(10)
        clock.now += rows / 2000
        return real(data)

    monkeypatch.setattr(Data, "read", slowly)
    assert ann.ask(NAME, "hers") is None
    assert clock.now == pytest.approx(1020.0)
    left = [when for when, _ in told]
    assert left == pytest.approx([1020.0 + rows / 2000] * child.MAX_REQUESTS_OF_ONE)


@pytest.mark.parametrize("locked", [0.0, 0.3, 19.0])
@pytest.mark.parametrize("kind", ["ask", "about", "release"])
@pytest.mark.parametrize("why", ["asker", "expired"])
def test_whoever_is_turned_away_does_not_see_how_long_a_charge_locks_the_ledger(
    fed: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
    kind: str,
    locked: float,
) -> None:
    """Where each person has a budget of their own, that depends on how many there are."""
    slow = slow_site(fed, tmp_path, 30, Policy(10.0, model=MODEL))
    ann, clock = slow.asker(), Clock(monkeypatch)

    def admits(*_: Any) -> bool:
        clock.now += locked
        return why != "asker"

    monkeypatch.setattr(site.Site, "admits", admits)
    now = int(time.time()) - 7000 * (why == "expired")
    asked = () if kind == "release" else (question(),)
    assert said(ann, kind, *asked, issued=now, until=now + 3600).refused == why
    assert clock.now == pytest.approx(1020.0)


def test_where_there_is_no_room_the_ledger_is_not_looked_at(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`busy` is said at once, so it must not wait for who has the ledger locked."""
    monkeypatch.setattr(child, "MAX_REQUESTS_OF_ONE", 0)
    monkeypatch.setattr(site.Site, "admits", lambda *_: pytest.fail("it was looked at"))
    assert ann.ask(NAME, "a") == "busy"


def test_the_log_says_why_an_offer_was_refused(fed: Federation, ann: Asker, bob: Asker) -> None:
    set_policy(fed, NAME, Policy(1.0, model=MODEL, askers=(ANN,)))
    dear = [question("dear", n, epsilon=0.6) for n in range(2)]
    assert said(ann, "about", *dear).refused == "over_budget"
    assert said(bob, "about", question("b")).refused == "asker"
    data = site.Site.load(fed.at(NAME)).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert said(ann, "about", question("c")).refused == "unavailable"
    over, stranger, gone = (fed.at(NAME) / LOG).read_text().splitlines()
    assert "ann was refused: over_budget: not enough of the budget is left" in over
    assert "bob was refused: asker: the policy does not let this asker ask" in stranger
    assert "ann was refused: unavailable: the source cannot answer (" in gone
    assert str(data) in gone, "the cause, in words"


def test_no_asker_fills_the_log_and_all_refusals_are_counted(
    fed: Federation, ann: Asker, bob: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "hold", lambda *_: None)
    set_policy(fed, NAME, Policy(1.0, model=MODEL, askers=(ANN,)))
    for n in range(60):
        assert bob.ask(NAME, f"b{n}") == "asker"
        assert fed.site(NAME).take(b"{}") is None
    assert ann.ask(NAME, "hers", model="another") == "model"
    lines = (fed.at(NAME) / LOG).read_text().splitlines()
    assert len(lines) == MOST + 1
    assert "ann was refused: model" in lines[-1], "others' are still written"
    assert "not written for an hour" in lines[-2]
    clock = Clock(monkeypatch)
    clock.now = time.monotonic() + WITHIN
    monkeypatch.setattr(log, "time", clock)
    assert bob.ask(NAME, "later") == "asker"
    assert len((fed.at(NAME) / LOG).read_text().splitlines()) == MOST + 2
    fed.site(NAME).write_status()
    status = health.last_status(fed.at(NAME))
    assert status["refused"] == {"asker": 61, "model": 1}
    assert status["unheard"] == {"no letter": 60}
    assert status["failing_since"] is None


def test_since_when_nothing_is_answered_is_kept_until_something_is(
    fed: Federation, ann: Asker
) -> None:
    data = site.Site.load(fed.at(NAME)).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert ann.ask(NAME, "a", model="another") == "model"
    assert fed.site(NAME).failing_since is None, "this was the asker's doing"
    assert ann.ask(NAME, "b") == "unavailable"
    since = fed.site(NAME).failing_since
    assert since is not None
    assert said(ann, "about", question("c")).refused == "unavailable"
    assert fed.site(NAME).failing_since == since
    data.with_suffix(".gone").rename(data)
    assert ann.ask(NAME, "d") is None
    assert fed.site(NAME).failing_since is None


def test_what_letters_say_of_the_askers_clocks_is_kept_for_the_owner(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    """Also of one that is refused for it; not of somebody who may not ask at all."""
    set_policy(fed, NAME, Policy(1.0, model=MODEL, askers=(ANN,)))

    def send(by: Asker, ahead: int) -> str | None:
        now = int(time.time()) + ahead
        return said(by, "about", issued=now, until=now + 3600).refused

    def clocks() -> dict[str, float]:
        return {asker: round(ahead, -1) for asker, (_, ahead) in fed.site(NAME).clocks.items()}

    assert (send(ann, 50), clocks()) == (None, {ANN: 50})
    assert (send(ann, -100), clocks()) == (None, {ANN: 50}), "it may have been long on its way"
    assert (send(ann, 86400), clocks()) == ("expired", {ANN: 86400})
    assert (send(bob, 50), clocks()) == ("asker", {ANN: 86400})
    fed.site(NAME).write_status()
    assert round(health.last_status(fed.at(NAME))["clocks"][ANN], -1) == 86400


def test_the_owners_log_has_a_line_for_a_refusal_and_a_traceback_for_a_fault(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = fed.at(NAME) / LOG
    assert ann.ask(NAME, "a", model="another") == "model"
    data = site.Site.load(fed.at(NAME)).populations[0].data
    data.rename(data.with_suffix(".gone"))
    assert ann.ask(NAME, "b") == "unavailable"
    other = replace(ann.request("about", NAME), reader="0" * 32)
    assert fed.site(NAME).take(ann.write(NAME, other).content) is None
    lines = written.read_text().splitlines()
    assert len(lines) == 3
    assert "ann was refused: model: the scores come from another model" in lines[0]
    assert "ann was refused: unavailable: the source cannot answer (" in lines[1]
    assert str(data) in lines[1], "the cause, in words"
    assert "ann was refused: a letter cannot be read: it names others inside" in lines[2]
    written.unlink()
    data.with_suffix(".gone").rename(data)
    monkeypatch.setattr(Data, "read", lambda *_, **__: 1 / 0)
    assert ann.ask(NAME, "c") == "unavailable"
    assert "Traceback" in written.read_text()
    assert "ZeroDivisionError" in written.read_text()


@pytest.mark.parametrize("kind", ["ask", "about"])
def test_what_waits_behind_a_question_does_not_see_how_long_its_rows_took(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The next is looked at when the first one's delay is over, not when its rows are read.

    31 questions of ε .001 at once told 16,000 rows from 8,000: together they took two delays.
    """
    reached: list[str] = []
    real = InProcess.ask

    def ask(child: InProcess, asker: str, request: Request) -> Reply:
        reached.append(request.campaign)
        return real(child, asker, request)

    following = threading.Thread(target=lambda: said(ann, kind, question("second")), daemon=True)
    while_held: list[str] = []

    def hold(since: float, delay: float) -> None:
        if not while_held:
            following.start()
            following.join(0.5)
            while_held.extend(reached)

    monkeypatch.setattr(InProcess, "ask", ask)
    monkeypatch.setattr(service, "hold", hold)
    assert ann.ask(NAME, "first") is None
    following.join()
    assert while_held == ["first"]
    assert reached == ["first", "second"]
