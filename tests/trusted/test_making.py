"""A ledger in memory is a ledger like those on disk, in a tenth of the room of an open database."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from privcal import Ledger, Policy, Question, Refused, Scores, Source
from privcal.queries import Gap
from privcal.trusted import making

ROWS = Scores(probabilities=[[0.8, 0.2], [0.3, 0.7]], labels=[0, 1])


def question(campaign: str, epsilon: float = 0.1) -> Question:
    return Question.of(Gap(), epsilon, campaign)


@pytest.fixture(params=["bytes", "a connection of its own"])
def ledger(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    if request.param != "bytes":
        monkeypatch.setattr(making, "_empty", making._connection)
    return Ledger.in_memory(Policy(epsilon=1.0))


def test_what_was_charged_and_answered_stays(ledger: Ledger) -> None:
    source = Source(ROWS, ledger=ledger)
    first = source.answer(question("spring"))
    source.answer(question("summer"))
    assert source.answer(question("spring")) == first
    assert [entry.kind for entry in ledger.entries()] == ["policy", "charge", "charge"]
    assert ledger.nano_spent == 2 * 10**8


def test_what_failed_half_way_was_never_there(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(ROWS, ledger=ledger)
    source.answer(question("spring"))

    def stop(*_: object) -> None:
        raise sqlite3.OperationalError("the disk is full")

    source.offer([question("summer")])  # so that the charge has a reservation to lower
    with monkeypatch.context() as failing:
        failing.setattr("privcal.trusted.reservations.keep", stop)
        with pytest.raises(sqlite3.OperationalError):
            ledger.charge(question("summer"), "local", ledger.policy)
    assert ledger.nano_spent == 10**8
    assert len(ledger.entries()) == 2
    source.answer(question("summer"))
    assert ledger.nano_spent == 2 * 10**8


def test_threads_that_ask_many_ledgers_at_once_get_each_its_own() -> None:
    sources = [Source(ROWS, Policy(epsilon=10.0), ledger=None, name=str(n)) for n in range(8)]
    wrong: list[object] = []

    def ask(source: Source) -> None:
        try:
            for n in range(40):
                source.answer(question(f"{source.name}-{n}"))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for source in sources:
        entries = Ledger.of(source.ledger).entries()
        campaigns = [entry.key.campaign for entry in entries if entry.key is not None]
        assert campaigns == [f"{source.name}-{n}" for n in range(40)]


def test_a_thousand_ledgers_open_no_thousand_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0
    connect = sqlite3.connect

    def counted(*given: object, **more: object) -> sqlite3.Connection:
        nonlocal opened
        opened += 1
        return connect(*given, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", counted)
    for number in range(1000):
        Source(ROWS, ledger=None, name=str(number)).answer(question("spring"))
    assert opened <= 2


def test_limits_that_are_changed_in_place_change_no_ledgers() -> None:
    policy = Policy(epsilon=1.0, epsilon_by_asker={"ann": 0.1})
    one, other = Ledger.in_memory(policy), Ledger.in_memory(policy)
    limits = one.policy.epsilon_by_asker
    assert limits is not None
    limits["ann"] = 1.0
    for ledger in (one, other):
        assert ledger.policy.epsilon_by_asker == {"ann": 0.1}
        with pytest.raises(Refused, match="over_budget"):
            Source(ROWS, ledger=ledger).answer(question("spring", 0.2), "ann")
