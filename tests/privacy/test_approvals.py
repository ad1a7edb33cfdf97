"""Where the owner approves campaigns, nothing is answered or reserved before, and nothing beyond."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import privcal
from privcal.calibrate import SourceDropped
from privcal.privacy import approvals
from privcal.privacy.approvals import WAITING, WAITING_OF_ONE, Proposal
from privcal.privacy.epsilon import NANO
from privcal.queries import Gap, Nll, Query
from privcal.question import Question
from tests.conftest import random_scores
from tests.support.questions import forged, named

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    policy = privcal.Policy(epsilon=2.0, approve=True)
    privcal.Ledger.create(tmp_path / "source.db", policy, unit="row")
    return tmp_path / "source.db"


def source(path: Path) -> privcal.Source:
    return privcal.Source(random_scores(9), ledger=path)


def ask(
    path: Path, request: str, epsilon: float = 0.25, query: Query | None = None, **more: str
) -> str:
    """The code of a refusal, or "answered"."""
    try:
        asker = more.pop("asker", "local")
        source(path).answer(named(request, query or Gap(), epsilon, **more), asker)
    except privcal.Refused as refused:
        return refused.code
    return "answered"


def offer(path: Path, campaign: str = "spring", asker: str = "acme", count: int = 2) -> str | None:
    return source(path).offer(questions(campaign, count), asker)


def questions(campaign: str = "spring", count: int = 2) -> list[Question]:
    return [Question.of(Gap(1 + i / 10), 0.25, campaign, round=i, model="v1") for i in range(count)]


def approve(path: Path) -> None:
    ledger = privcal.Ledger(path)
    [(proposal, _)] = ledger.waiting()
    ledger.approve(proposal)


def test_nothing_is_answered_or_reserved_before_the_owner_approves(path: Path) -> None:
    assert offer(path) == "awaiting_approval"
    assert ask(path, "spring/0/0", asker="acme", model="v1") == "awaiting_approval"
    ledger = privcal.Ledger(path)
    assert (ledger.nano_spent, ledger.reserved(), len(ledger.entries())) == (0, [], 1)
    approve(path)
    assert offer(path) is None
    assert [one.nano for one in ledger.reserved()] == [NANO // 2]
    for i in range(2):
        request, query = f"spring/{i}/0", Gap(1 + i / 10)
        assert ask(path, request, query=query, asker="acme", model="v1") == "answered"
    assert ledger.waiting() == []


def test_the_owner_sees_who_asks_what_for_how_much(path: Path) -> None:
    offer(path)
    [(proposal, since)] = privcal.Ledger(path).waiting()
    asked = questions()
    digest = approvals.digest("acme", asked)
    assert proposal == Proposal("acme", "spring", "v1", ("gap",), 2, NANO // 2, digest)
    assert since.endswith("+00:00")
    assert approvals.digest("acme", [replace(asked[0], query=Gap(2.0)), asked[1]]) != digest
    assert approvals.digest("acme", asked[::-1]) == digest


@pytest.mark.parametrize(
    ("asked_under", "more"),
    [
        ("spring/2/0", {"query": Nll()}),
        ("spring/2/0", {"model": "v2"}),
        ("spring/2/0", {"epsilon": 0.51}),
        ("autumn/0/0", {}),
        ("spring/0/0", {"asker": "eve"}),
    ],
    ids=["another kind", "another model", "more", "another campaign", "another asker"],
)
def test_an_approval_covers_what_was_approved_and_no_more(
    path: Path, asked_under: str, more: dict[str, object]
) -> None:
    offer(path)
    approve(path)
    asked = {"asker": "acme", "model": "v1", **more}
    assert ask(path, asked_under, **asked) == "awaiting_approval"  # type: ignore[arg-type]
    assert privcal.Ledger(path).nano_spent == 0
    assert len(privcal.Ledger(path).waiting()) == 1  # and the owner can look at that too


def test_the_epsilon_that_was_approved_is_for_the_whole_campaign(path: Path) -> None:
    offer(path)  # 0.5 in all
    approve(path)
    said = [ask(path, f"spring/7/{i}", 0.2, asker="acme", model="v1") for i in range(3)]
    assert said == ["answered", "answered", "awaiting_approval"]
    [(proposal, _)] = privcal.Ledger(path).waiting()
    assert proposal.nano == 6 * NANO // 10  # what was charged, and what it asks for
    approve(path)
    assert ask(path, "spring/7/2", 0.2, asker="acme", model="v1") == "answered"


def test_stored_answers_come_back_whatever_is_approved(path: Path) -> None:
    ledger = privcal.Ledger(path)
    ledger.set_policy(replace(ledger.policy, approve=False))
    assert ask(path, "before") == "answered"
    ledger.set_policy(replace(ledger.policy, approve=True))
    assert ask(path, "before") == "answered"
    assert ask(path, "before/0/1") == "awaiting_approval"


def test_an_offer_that_changes_after_the_owner_looked_is_not_approved(path: Path) -> None:
    offer(path)
    ledger = privcal.Ledger(path)
    [(seen, _)] = ledger.waiting()
    offer(path, count=4)
    with pytest.raises(privcal.InputError, match="asks for something else by now"):
        ledger.approve(seen)
    [(now, _)] = ledger.waiting()
    assert now.nano == NANO
    ledger.approve(now)
    with pytest.raises(privcal.InputError, match="does not wait"):
        ledger.approve(now)


def test_a_question_does_not_hide_the_offer_that_waits(path: Path) -> None:
    offer(path)
    ask(path, "spring/0/0", asker="acme", model="v1")
    [(proposal, _)] = privcal.Ledger(path).waiting()
    assert proposal.requests == 2


def test_nobody_can_fill_the_disk_or_hide_others_by_waiting() -> None:
    ledger = privcal.Ledger.in_memory(privcal.Policy(approve=True))

    def wait(campaign: str, asker: str) -> None:
        asked = [Question.of(Gap(), 0.25, campaign)]
        assert ledger.reserve(asked, asker, ledger.policy) == "awaiting_approval"

    wait("mine", "acme")
    for n in range(3 * WAITING_OF_ONE):
        wait(f"c{n}", "eve")
    names = [(proposal.asker, proposal.campaign) for proposal, _ in ledger.waiting()]
    newest = range(2 * WAITING_OF_ONE, 3 * WAITING_OF_ONE)
    assert names == [("acme", "mine"), *(("eve", f"c{n}") for n in newest)]
    for n in range(WAITING):  # where anybody may ask, under any name
        wait("c", f"eve-{n}")
    assert len(ledger.waiting()) == WAITING


def test_whoever_may_not_ask_is_not_noted(path: Path) -> None:
    ledger = privcal.Ledger(path)
    ledger.set_policy(replace(ledger.policy, askers=("acme",)))
    assert offer(path, asker="eve") == "asker"
    assert ask(path, "spring", asker="eve") == "asker"
    assert source(path).offer([forged(questions()[0], model="\x1b[31m")], "acme") == "bad_request"
    assert ledger.waiting() == []


def test_an_approval_is_an_entry_of_the_chain(path: Path) -> None:
    offer(path)
    approve(path)
    entry = privcal.Ledger(path).entries()[-1]
    assert (entry.kind, entry.key, entry.epsilon) == ("approved", None, 0.0)
    said = json.loads(entry.what)
    assert (said["asker"], said["campaign"], said["model"]) == ("acme", "spring", "v1")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entry SET what = replace(what, 'spring', 'autumn')")
    assert ask(path, "autumn", asker="acme", model="v1") == "unavailable"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE waiting SET what = 'nothing'",
        "UPDATE waiting SET what = '{}'",
        "UPDATE waiting SET what = replace(what, '500000000', '\"much\"')",
        "DELETE FROM waiting",
        "DROP TABLE waiting",
    ],
)
def test_what_waits_and_is_damaged_is_noted_anew(path: Path, damage: str) -> None:
    offer(path)
    with sqlite3.connect(path) as db:
        db.execute(damage)
    assert privcal.Ledger(path).waiting() == []
    assert offer(path) == "awaiting_approval"
    approve(path)
    assert offer(path) is None


def test_a_forged_row_of_what_waits_approves_nothing(path: Path) -> None:
    """Only the owner's entry counts."""
    offer(path)
    approve(path)
    offer(path, "autumn")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE waiting SET campaign = 'spring', asker = 'eve'")
    assert offer(path, "autumn") == "awaiting_approval"


def test_a_calibration_waits_for_its_owner_and_then_goes_through(path: Path) -> None:
    one = privcal.Source(random_scores(9), name="ward", ledger=path)

    def run() -> privcal.Result:
        return privcal.calibrate([one], "acc-t", 1.0, campaign="spring", asker="acme")

    with (
        pytest.warns(SourceDropped, match="awaiting_approval"),
        pytest.raises(privcal.CalibrationError, match="nothing charged") as stopped,
    ):
        run()
    assert one.spent == 0
    [(proposal, _)] = privcal.Ledger(path).waiting()
    # The two can compare it, and the asker knows under which name to ask again.
    assert f"--campaign spring); the digest of its questions is {proposal.digest}" in str(
        stopped.value
    )
    approve(path)
    assert run().spent == (1.0,)


# --- commands ---------------------------------------------------------------------------------


def test_the_owner_looks_and_approves_by_command(path: Path, run: Run) -> None:
    assert run("ledger", "waiting", path)[1].startswith("no campaign waits")
    offer(path)
    code, stdout, _ = run("ledger", "waiting", path)
    assert code == 0
    assert "Campaign spring of acme" in stdout
    [said] = json.loads(run("ledger", "waiting", path, "--json")[1])["waiting"]
    assert (said["epsilon"], said["queries"], said["requests"]) == (0.5, ["gap"], 2)
    assert said["digest"] in stdout
    code, stdout, _ = run("ledger", "approve", path, "spring", "--yes")
    assert code == 0
    assert said["digest"] in stdout  # what was approved is shown before
    assert stdout.endswith("approved\n")
    assert offer(path) is None
    assert "approved: campaign spring of acme" in run("ledger", "show", path)[1]


def test_without_anybody_to_ask_an_approval_needs_a_yes(path: Path, run: Run) -> None:
    offer(path)
    code, _, stderr = run("ledger", "approve", path, "spring")
    assert (code, "say --yes" in stderr) == (2, True)
    assert offer(path) == "awaiting_approval"


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
def test_at_a_terminal_the_owner_is_asked(
    path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    offer(path)
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    exit_code, stdout, _ = run("ledger", "approve", path, "spring")
    assert exit_code == code
    assert "for epsilon 0.5 in all" in stdout
    assert offer(path) == (None if code == 0 else "awaiting_approval")


def test_a_name_that_two_askers_use_needs_the_asker(path: Path, run: Run) -> None:
    offer(path)
    offer(path, asker="eve")
    code, _, stderr = run("ledger", "approve", path, "spring", "--yes")
    assert (code, "--asker" in stderr) == (2, True)
    assert run("ledger", "approve", path, "spring", "--asker", "acme", "--yes")[0] == 0
    assert offer(path) is None
    assert offer(path, asker="eve") == "awaiting_approval"
    code, _, stderr = run("ledger", "approve", path, "winter", "--yes")
    assert (code, "no campaign 'winter' waits" in stderr) == (2, True)
