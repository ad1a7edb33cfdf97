"""A site's part in secure sums: whose time it takes, and when it takes none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privcal.transport import keys
from privcal.transport.content import Reply
from privcal.transport.site import service
from privcal.trusted.policy import Policy
from tests.support.letters import ANN, MODEL, Federation, InProcess, federation, rules
from tests.transport.site.test_worker import Sum

NAME = "site-1"


@pytest.fixture
def five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    policy = Policy(1e6, model=MODEL, secure=rules(colluding=1, min_honest=2))
    return federation(tmp_path, sites=5, policy=policy, monkeypatch=monkeypatch)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays for which something was held back, which here passes at once."""
    held: list[float] = []
    monkeypatch.setattr(service, "hold", lambda arrived, delay: held.append(delay))
    return held


def test_who_shares_is_held_back_and_who_checks_or_opens_is_not(
    five: Federation, held: list[float]
) -> None:
    one = Sum(five, five.asker())
    assert one.say("about", NAME, plan=(one.terms.question,)).accepted
    assert len(held) == 1
    held.clear()
    dealt = one.share()
    assert len(held) == len(five.sites)
    held.clear()
    one.open(dealt)
    assert held == []
    assert one.share() == dealt
    assert len(held) == len(five.sites), "also where it is all stored"


def test_who_shares_has_the_process_with_the_rows_to_itself_and_its_time_is_watched(
    five: Federation, held: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held while it has the turn: whoever waits behind it is looked at after that."""
    one, at, in_turn = Sum(five, five.asker()), five.site(NAME), list[bool]()
    monkeypatch.setattr(service, "hold", lambda *_: in_turn.append(at._turns._busy))
    share: Any = one.say("share", NAME)
    assert share.dealt
    assert in_turn == [True]
    assert at.slowest > 0
    at.slowest = 0.0
    dealt = one.share()
    at.slowest = 0.0
    one.open(dealt)
    assert at.slowest == 0


def test_a_site_whose_key_was_destroyed_with_a_restored_ledger_takes_part_in_no_sum(
    five: Federation,
) -> None:
    """Also where that came about after its letter was opened: nothing is charged for it."""
    one, at = Sum(five, five.asker()), five.at(NAME)
    assert one.say("share", "site-2").dealt
    request = one.asker.request("share", NAME, campaign="sum", terms=one.terms)
    keys.bind(at, ["a ledger that is gone"])
    five.site(NAME)._child.ask(ANN, request)  # which binds the key to the one that is there
    assert keys.Keys.load(at).lost
    assert InProcess(at).ask(ANN, request) == Reply(refused="roster")
    assert one.asker.say(NAME, request) is None, "nor can a letter be opened"
    assert five.ledger(NAME).nano_spent == 0
