"""What a site looks at first: what others wrote costs it as little as can be, and nobody a question."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from privcal.secure.keys import SealingKey
from privcal.transport import letter as letters
from privcal.transport.content import Reply, Request
from privcal.transport.letter import Letter
from privcal.transport.site import service
from privcal.transport.site.settings import LEDGER, Site
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
    question,
    set_policy,
)

NAME = "site-1"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path / "fed", sites=1, monkeypatch=monkeypatch)


@pytest.fixture
def ann(fed: Federation) -> Asker:
    return fed.asker(ANN)


def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a letter that is opened ends the test."""
    monkeypatch.setattr(SealingKey, "open", lambda *_: pytest.fail("it was opened"))


def test_what_somebody_else_wrote_costs_one_signature_check_and_is_not_opened(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger, another calibrator and a site, each in Ann's name."""
    letter = ann.write(NAME, ann.request("ask", NAME, question()))
    forged = [replace(letter, signature=fed.asker(by).keys.sign("x")) for by in (BOB, NAME)]
    checked: list[str] = []
    real = letters.check_signature

    def check(*parts: str) -> None:
        checked.append(parts[0])
        real(*parts)

    monkeypatch.setattr(letters, "check_signature", check)
    unopened(monkeypatch)
    for number, one in enumerate(forged, 1):
        assert fed.site(NAME).take(one.content) is None
        assert checked == [ann.keys.public] * number
    assert fed.site(NAME).unheard == {"signature": 2}


def test_a_letter_of_a_stranger_costs_no_signature_check(
    fed: Federation, ann: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = make_party(tmp_path / "eve", "eve", "calibrator")
    card = ann.roster.named(NAME)
    assert card is not None
    letter = Letter.write(ann.request("about", NAME).text, eve, card.id, card.sealing)
    elsewhere = Letter.write("x", ann.keys, eve.id, eve.sealing.public)
    unopened(monkeypatch)
    monkeypatch.setattr(letters, "check_signature", lambda *_: pytest.fail("it was checked"))
    for content in (letter.content, elsewhere.content):
        assert fed.site(NAME).take(content) is None
    assert fed.site(NAME).unheard == {"stranger": 1, "addressee": 1}


def test_what_is_no_letter_has_at_most_a_tenth_of_the_time(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a roster, of which others look at every card: a flood of them leaves time for letters."""
    slept: list[float] = []
    monkeypatch.setattr(service.time, "sleep", slept.append)
    at = fed.site(NAME)
    real = at._standing.hint

    def hint(content: bytes) -> bool:
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return real(content)

    monkeypatch.setattr(at._standing, "hint", hint)
    assert at.take(b"{}") is None
    [rest] = slept
    assert rest >= 9 * 0.02


def test_a_site_that_stopped_asks_neither_its_ledger_nor_its_rows(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = fed.site(NAME)
    at._outbox.stop("it runs twice")
    unopened(monkeypatch)
    monkeypatch.setattr(InProcess, "ask", lambda *_: pytest.fail("it was asked"))
    assert at.take(ann.write(NAME, ann.request("ask", NAME, question())).content) is None
    assert fed.ledger(NAME).nano_spent == 0


def test_what_was_said_while_the_ledger_was_put_back_does_not_leave(
    fed: Federation, ann: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at its entries: what the child says then may be said a second time."""
    marks, ledger = fed.at(NAME) / "marks.db", fed.at(NAME) / LEDGER
    shutil.copy(Path(fed.ledger(NAME).facts.marks or ""), marks)
    monkeypatch.setenv("PRIVCAL_MARKS", str(marks))
    before = ledger.read_bytes(), marks.read_bytes()
    assert ann.ask(NAME, "a") is None
    real = InProcess.ask

    def put_back_meanwhile(child: InProcess, asker: str, request: Request) -> Reply:
        reply = real(child, asker, request)
        ledger.write_bytes(before[0])
        marks.write_bytes(before[1])
        return reply

    monkeypatch.setattr(InProcess, "ask", put_back_meanwhile)
    letter = ann.write(NAME, ann.request("ask", NAME, question("b")))
    assert fed.site(NAME).take(letter.content) is None
    assert "fewer entries" in fed.site(NAME).stopped


def test_the_policy_is_asked_before_the_date_and_the_date_before_the_roster(
    fed: Federation, ann: Asker
) -> None:
    """The refusal is of the first that is wrong: who may not ask learns of nothing else."""
    now = int(time.time())
    old, other = {"issued": now - 7000, "until": now - 10}, {"roster": (9, ann.roster.digest)}

    def said(**more: object) -> str | None:
        reply = ann.say(NAME, ann.request("ask", NAME, question(model="another"), **more))
        assert reply is not None
        return reply.refused

    assert said(**old, **other) == "expired"
    assert said(**other) == "roster"
    assert said() == "model"
    set_policy(fed, NAME, Policy(1.0, model=MODEL, askers=(BOB,)))
    assert said(**old, **other) == "asker"


def test_a_plan_stays_though_a_later_letter_of_it_is_refused(fed: Federation, ann: Asker) -> None:
    """Else a calibrator could have a plan forgotten that was charged, and come with another."""
    plan = tuple(question("c", n, epsilon=0.2) for n in range(2))
    first = ann.request("ask", NAME, plan[0], plan=plan)
    assert ann.say(NAME, first).refused is None  # type: ignore[union-attr]
    data = Site.load(fed.at(NAME)).populations[0].data
    data.rename(data.with_suffix(".gone"))
    second = ann.request("ask", NAME, plan[1], plan=plan)
    assert ann.say(NAME, second) == Reply(refused="unavailable")
    data.with_suffix(".gone").rename(data)
    other = (plan[0], question("c", 1, epsilon=0.3))
    assert ann.say(NAME, ann.request("ask", NAME, other[1], plan=other)) == Reply(
        refused="id_conflict"
    )


def test_of_a_plan_whose_first_question_failed_after_its_charge_no_other_is_taken(
    fed: Federation, ann: Asker
) -> None:
    data = Site.load(fed.at(NAME)).populations[0].data
    data.rename(data.with_suffix(".gone"))
    plan = (question("c", epsilon=0.2),)
    assert ann.ask(NAME, "c", epsilon=0.2) == "unavailable"
    data.with_suffix(".gone").rename(data)
    other = (*plan, question("c", 1, epsilon=0.3))
    request: Request = ann.request("ask", NAME, other[1], plan=other)
    assert ann.say(NAME, request) == Reply(refused="id_conflict")
