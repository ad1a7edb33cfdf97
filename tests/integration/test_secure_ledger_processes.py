"""The ledger's part in secure sums under real processes: killed at every step, and several at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from privcal import Ledger, Policy, Refused
from privcal.trusted.epsilon import NANO, Cost
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.integration.test_ledger_processes import cases, die_at, in_child

POLICY = Policy(epsilon=1.0, secure=SecureRules(colluding=2, alone=10))
ASKED = Question.of(Gap(), 0.1, "spring")
TERMS, ONE_SET, OTHER_SET = "terms", "one set", "other set"
PAID = Cost(NANO // 10, NANO)


def share(ledger: Ledger) -> str:
    """A whole SHARE; the reply names the process that made it, as one with new noise would differ."""
    reply = ledger.charge_share(ASKED, "ann", POLICY, TERMS, NANO)
    if reply is None:
        reply = f"made by {os.getpid()}"
        ledger.store_share(ASKED, "ann", reply)
    return reply


def outcome(ledger: Ledger, digest: str, numbers: list[int]) -> list[int] | str:
    try:
        return ledger.open_once(ASKED, "ann", digest, lambda: numbers)
    except Refused as refused:
        return refused.code


def test_killed_at_any_step_a_site_deals_once_and_opens_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a killed site has shown of one set, no other set is opened afterwards."""
    seen = set()
    for step, path in cases(tmp_path, monkeypatch):
        ledger = Ledger.create(path, POLICY, unit="row")

        def work(fd: int, step: int = step, path: Path = path) -> None:
            def both() -> None:
                os.write(fd, f"{share(Ledger(path))}\n".encode())
                shown = Ledger(path).open_once(ASKED, "ann", ONE_SET, lambda: [1])
                os.write(fd, f"{shown}\n".encode())

            die_at(step, path, both)

        code, said = in_child(work)
        assert code in (0, -signal.SIGKILL)
        reply, shown, *_ = [*said.decode().splitlines(), "", ""]
        spent = ledger.spent
        assert spent in (Cost(), PAID)
        assert ledger.in_step
        try:
            again = share(ledger)
        except Refused as refused:
            if (refused.code, reply, spent) != ("lost", "", PAID):
                raise
            seen.add("lost")
        else:
            assert reply in ("", again)
            seen.add("dealt anew" if spent == Cost() else "dealt before")
        assert ledger.spent == PAID
        other = outcome(ledger, OTHER_SET, [2])
        assert other == "opened" if shown else other in ("opened", [2])
        seen.add("opened" if other == "opened" else "not opened")
        assert outcome(ledger, ONE_SET, [1]) == ([1] if other == "opened" else "opened")
        if code == 0:
            assert shown == "[1]"
            break
    assert seen == {"lost", "dealt anew", "dealt before", "opened", "not opened"}


def open_at_once(path: Path, digest: str, barrier: Any, said: Any) -> None:
    def numbers() -> list[int]:
        barrier.wait(60)  # each has looked, and found that nothing was opened
        return [len(digest)]

    try:
        said.put(str(Ledger(path).open_once(ASKED, "ann", digest, numbers)))
    except Refused as refused:
        said.put(refused.code)


@pytest.mark.parametrize(
    ("sets", "wanted"), [(("a", "bb"), {"opened"}), (("a", "a"), {"[1]"})], ids=["two", "one"]
)
def test_two_processes_that_open_at_the_same_moment(
    sets: tuple[str, str], wanted: set[str], tmp_path: Path
) -> None:
    """Different sets: one answer and one refusal. The same set: the same answer twice."""
    fork = multiprocessing.get_context("fork")
    for attempt in range(5):
        path = tmp_path / f"{attempt}.db"
        Ledger.create(path, POLICY, unit="row")
        barrier, said = fork.Barrier(2), fork.SimpleQueue()
        runs = [fork.Process(target=open_at_once, args=(path, s, barrier, said)) for s in sets]
        for run in runs:
            run.start()
        heard = [said.get() for _ in runs]
        for run in runs:
            run.join()
        assert len(set(heard) - wanted) == (wanted == {"opened"}), heard
        assert sum(entry.kind == "opening" for entry in Ledger(path).entries()) == 1


def ask_often(task: tuple[Path, int]) -> Cost:
    """Ten questions of 0.02 each, every other one in a secure sum; what was charged for them."""
    path, worker = task
    ledger, charged = Ledger(path), Cost()
    for i in range(10):
        asked = Question.of(Gap(), 0.02, f"w{worker}", index=i)
        try:
            if i % 2:
                ledger.charge(asked, "ann", POLICY)
            else:
                ledger.charge_share(asked, "ann", POLICY, TERMS, 35 * asked.nano_epsilon)
            charged += Cost.of(asked.nano_epsilon, None if i % 2 else 35)
        except Refused as refused:
            if refused.code != "over_budget":
                raise
    return charged


def test_processes_asking_for_too_much_exceed_neither_total(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    Ledger.create(path, POLICY, unit="row")
    with multiprocessing.get_context("fork").Pool(6) as pool:
        charged = pool.map(ask_often, [(path, w) for w in range(6)], chunksize=1)
    spent = Ledger(path).spent
    assert spent == sum(charged, Cost())
    assert spent.within(POLICY.cap)
    assert spent.alone > POLICY.cap.alone - 35 * NANO // 50  # no share more would have fitted
