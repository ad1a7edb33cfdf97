"""Where the owner approves campaigns, nothing is answered or reserved before, and nothing beyond."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import privcal
from privcal.calibration.loop import SourceDropped
from privcal.data.ledger import Ledger
from privcal.trusted import approvals
from privcal.trusted.approvals import WAITING, WAITING_OF_ONE, Proposal
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import (
    BinnedGap,
    EventHats,
    Gap,
    Hats,
    Histogram,
    Nll,
    OffsetHats,
    Query,
)
from privcal.trusted.question import Question
from privcal.trusted.reservations import TABLE
from tests.conftest import Run
from tests.support.builders import a_ledger, edit, forged, named, outcome, random_scores


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_ledger(tmp_path, epsilon=2.0, approve=True)


def source(path: Path) -> privcal.Source:
    return privcal.Source(random_scores(9), ledger=path)


def ask(
    path: Path, request: str, epsilon: float = 0.25, query: Query | None = None, **more: str
) -> str:
    asker = more.pop("asker", "local")
    question = named(request, query or Gap(), epsilon, **more)
    return outcome(lambda: source(path).answer(question, asker))


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
    known = "acme", "spring", "v1", ("gap",), 2, NANO // 2, digest
    assert proposal == Proposal(*known, asked=approvals.asked(asked))
    assert since.endswith("+00:00")


CHANGES: dict[str, Callable[[Question], Question]] = {
    "campaign": lambda q: replace(q, campaign="autumn"),
    "model": lambda q: replace(q, model="v2"),
    "no model": lambda q: replace(q, model=None),
    "kind": lambda q: replace(q, query=Nll()),
    "parameter": lambda q: replace(q, query=BinnedGap(bins=20)),
    "epsilon": lambda q: replace(q, nano_epsilon=q.nano_epsilon + 1),
    "round": lambda q: replace(q, round=q.round + 1),
    "index": lambda q: replace(q, index=1),
}


def test_the_digest_is_of_all_that_is_fixed_beforehand() -> None:
    asked = [replace(one, query=BinnedGap(bins=10)) for one in questions()]
    digests = {name: [change(one) for one in asked] for name, change in CHANGES.items()}
    digests |= {"fewer": asked[:1], "the other way": [*questions()]}
    found = {name: approvals.digest("acme", changed) for name, changed in digests.items()}
    own = approvals.digest("acme", asked)
    found |= {
        "asker": approvals.digest("eve", asked),
        "secure": approvals.digest("acme", asked, 10),
    }
    assert len({own, *found.values()}) == 1 + len(found)
    assert re.fullmatch("([0-9a-f]{4} ){15}[0-9a-f]{4}", own)


def test_the_digest_is_not_of_what_nobody_knows_yet() -> None:
    asked = questions()
    own = approvals.digest("acme", asked)
    assert approvals.digest("acme", [replace(asked[0], query=Gap(2.0)), asked[1]]) == own
    assert approvals.digest("acme", asked[::-1]) == own
    assert approvals.digest("acme (unsigned)", asked) == own  # how it came is said beside it
    offsets = [OffsetHats(offsets=(0.0, x, -x)) for x in (0.0, 0.5)]
    assert len({one.fixed() for one in offsets}) == 1
    assert OffsetHats(offsets=(0.0, 0.0)).fixed() != offsets[0].fixed()
    assert OffsetHats(knots=(0.0, 1.0)).fixed() != OffsetHats().fixed()


def test_a_letter_that_names_no_model_has_one_digest_at_asker_and_owner(path: Path) -> None:
    asked = [replace(one, model=None) for one in questions()]
    scores = random_scores(9, model="v7")
    one = privcal.Source(scores, ledger=path)
    assert one.offer(asked, "acme") == "awaiting_approval"
    [(proposal, _)] = Ledger.of(one.ledger).waiting()
    assert (proposal.model, proposal.digest) == ("v7", approvals.digest("acme", asked))
    Ledger.of(one.ledger).approve(proposal)
    assert one.answer(asked[0], "acme")
    with pytest.raises(privcal.Refused, match="awaiting_approval"):  # the scores of another
        privcal.Source(random_scores(9, model="v8"), ledger=path).answer(asked[1], "acme")


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


def test_what_a_campaign_asks_beyond_its_approval_waits_for_another(path: Path, run: Run) -> None:
    offer(path)  # 0.5 in all
    assert "approved this campaign before" not in run("ledger", "waiting", path)[1]
    approve(path)
    asked = {"asker": "acme", "model": "v1"}
    said = [ask(path, name, **asked) for name in ("spring/0/0", "spring/7/0")]  # type: ignore[arg-type]
    assert said == ["answered", "awaiting_approval"]
    assert "You approved this campaign before, but not" in run("ledger", "waiting", path)[1]
    [(proposal, _)] = privcal.Ledger(path).waiting()
    assert proposal.nano == NANO // 2  # what was charged, and what it asks for
    approve(path)
    for name, query in {"spring/7/0": Gap(), "spring/1/0": Gap(1.1)}.items():
        assert ask(path, name, query=query, **asked) == "answered"  # type: ignore[arg-type]


def test_an_approval_holds_for_no_more_than_its_owner_was_shown(path: Path) -> None:
    """Who can write the ledger has a campaign of .5 shown as one of .01: the digest is still its own."""
    offer(path)
    with sqlite3.connect(path) as db:
        [(what,)] = db.execute("SELECT what FROM waiting")
        facts = {**json.loads(what), "nano": NANO // 100}
        db.execute("UPDATE waiting SET what = ?", (json.dumps(facts, sort_keys=True),))
    [(proposal, _)] = privcal.Ledger(path).waiting()
    assert (proposal.nano, proposal.digest_holds) == (NANO // 100, True)
    approve(path)
    asked = {"asker": "acme", "model": "v1"}
    assert ask(path, "spring/0/0", **asked) == "awaiting_approval"  # type: ignore[arg-type]
    assert privcal.Ledger(path).nano_spent == 0


@pytest.mark.parametrize(
    "word",
    [
        {"kinds": ["gap", "x) about m,\nfor epsilon 0.01 in all."]},
        {"kinds": ["gap", "\x1b[8m"]},
        {"campaign": "spring\nfor epsilon 0.01 in all."},
        {"asker": "acme\x1b[8m"},
        {"model": "v1\nfor epsilon 0.01 in all."},
    ],
)
def test_a_forged_word_cannot_hide_the_epsilon_of_what_waits(
    path: Path, run: Run, word: dict[str, object]
) -> None:
    """What waits is outside of the chain, so that who writes the ledger can put any text there."""
    offer(path)
    with sqlite3.connect(path) as db:
        [(what,)] = db.execute("SELECT what FROM waiting")
        facts = {**json.loads(what), **word}
        facts["digest"] = approvals._digest(
            *(facts[name] for name in ("asker", "campaign", "model")), tuple(facts["asked"]), None
        )
        db.execute("UPDATE waiting SET what = ?", (json.dumps(facts, sort_keys=True),))
    assert privcal.Ledger(path).waiting() == []
    assert "no campaign waits for approval" in run("ledger", "waiting", path)[1]
    offer(path)  # the campaign asks again, and is noted anew
    assert len(privcal.Ledger(path).waiting()) == 1


def test_a_forged_time_or_reservation_shows_no_lines_of_its_own(path: Path, run: Run) -> None:
    offer(path)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE waiting SET time = ?", ("now\nfor epsilon 0.01 in all.",))
        db.execute(TABLE)
        row = ("ann\nnothing was ever spent", "c", 1, 1, 1, 0, time.time(), 150.0)
        db.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    assert privcal.Ledger(path).waiting() == []
    assert "nothing was ever spent" not in run("ledger", "show", path)[1]


APPROVED = (Histogram(10), Hats(knots=(0.0, 2.0)), EventHats(event=1))
"""What a campaign was approved for, each once, for 0.25."""


@pytest.mark.parametrize(
    ("place", "query", "nano"),
    [
        (0, Histogram(1000), NANO // 4),
        (1, Hats(knots=(0.0, 0.01, 0.02)), NANO // 4),
        (2, EventHats(event=0), NANO // 4),
        (0, Hats(knots=(0.0, 2.0)), NANO // 4),
        (0, Histogram(10), NANO // 4 - 1),
        (0, Histogram(10), NANO // 4 + 1),
        (0, Histogram(10), NANO // 1000),
        (3, Histogram(10), NANO // 4),
    ],
    ids=[
        *("other bins", "other knots", "another class", "in another's place"),
        *("a little less", "a little more", "a thousandth", "one question more"),
    ],
)
def test_an_approval_is_of_the_questions_that_were_shown(
    path: Path, place: int, query: Query, nano: int
) -> None:
    shown = [Question("spring", 0, n, NANO // 4, one, "v1") for n, one in enumerate(APPROVED)]
    assert source(path).offer(shown, "acme") == "awaiting_approval"
    approve(path)
    other = Question("spring", 0, place, nano, query, "v1")
    assert outcome(lambda: source(path).answer(other, "acme")) == "awaiting_approval"
    changed = {question.index: question for question in (*shown, other)}
    assert source(path).offer([*changed.values()], "acme") == "awaiting_approval"
    assert privcal.Ledger(path).nano_spent == 0
    for question in shown:
        source(path).answer(question, "acme")


def test_a_thousand_questions_are_not_asked_on_an_approval_of_one(path: Path) -> None:
    one = Question.of(Gap(), 1.0, "spring", model="v1")
    assert source(path).offer([one], "acme") == "awaiting_approval"
    approve(path)
    said = []
    for index in range(1000):
        question = Question("spring", 1, index, NANO // 1000, Gap(1 + index / 1000), "v1")
        try:
            source(path).answer(question, "acme")
            said.append("answered")
        except privcal.Refused as refused:
            said.append(refused.code)
        if index == 3 and set(said) == {"awaiting_approval"}:
            break  # all the others go the same way
    assert set(said) == {"awaiting_approval"}
    source(path).answer(one, "acme")


@pytest.mark.parametrize("method", ["acc-t", "nll-t", "ece-t", "sketch"])
def test_one_approval_is_for_all_rounds_of_a_search(path: Path, method: str) -> None:
    """Where a later question looks depends on answers that nobody has yet."""
    policy = privcal.Policy(epsilon=20.0, approve=True)
    privcal.Ledger(path).set_policy(policy)
    one = privcal.Source(random_scores(200, 3), name="ward", ledger=path)
    more = {"public": random_scores(200, 3, seed=1), "class_offsets": True}
    options = more if method == "sketch" else {"iterations": 8}

    def run() -> privcal.Result:
        asked = {"campaign": "spring", "asker": "acme"}
        return privcal.calibrate([one], method, 20.0, **asked, **options)

    with pytest.warns(SourceDropped), pytest.raises(privcal.CalibrationError):
        run()
    approve(path)
    assert len(run().rounds) > 1
    assert one.spent == 20.0


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
    edit(path, "UPDATE entry SET what = replace(what, 'spring', 'autumn')")
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
    edit(path, damage)
    assert privcal.Ledger(path).waiting() == []
    assert offer(path) == "awaiting_approval"
    approve(path)
    assert offer(path) is None


def test_a_forged_row_of_what_waits_approves_nothing(path: Path) -> None:
    """Only the owner's entry counts."""
    offer(path)
    approve(path)
    offer(path, "autumn")
    edit(path, "UPDATE waiting SET campaign = 'spring', asker = 'eve'")
    assert offer(path, "autumn") == "awaiting_approval"


def test_what_waits_has_the_digest_of_what_it_asks(path: Path) -> None:
    """Whoever writes the file cannot put other questions under the digest that the owner compares."""
    offer(path)
    [(shown, _)] = privcal.Ledger(path).waiting()
    other = replace(shown, asked=approvals.asked(questions(count=5)))
    edit(path, "UPDATE waiting SET what = ?", other.text())
    assert privcal.Ledger(path).waiting() == []
    with pytest.raises(privcal.InputError, match="does not wait for approval"):
        privcal.Ledger(path).approve(other)


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
    said = str(stopped.value)
    assert (
        f"--campaign spring); its digest, to compare with the owners, is {proposal.digest}" in said
    )
    approve(path)
    assert run().spent == (1.0,)


# --- commands ---------------------------------------------------------------------------------


def test_the_owner_looks_and_approves_by_command(path: Path, run: Run) -> None:
    assert run("ledger", "waiting", path)[1].startswith("no campaign waits")
    offer(path)
    stdout, _ = run.ok("ledger", "waiting", path)
    assert "Campaign spring of acme" in stdout
    [said] = run.json("ledger", "waiting", path)["waiting"]
    assert (said["epsilon"], said["queries"], said["requests"]) == (0.5, ["gap"], 2)
    assert said["digest"] in stdout
    stdout, _ = run.ok("ledger", "approve", path, "spring", "--yes")
    assert said["digest"] in stdout  # what was approved is shown before
    assert stdout.endswith("approved\n")
    assert offer(path) is None
    assert "approved: campaign spring of acme" in run("ledger", "show", path)[1]


def test_without_anybody_to_ask_an_approval_needs_a_yes(path: Path, run: Run) -> None:
    offer(path)
    code, _, stderr = run("ledger", "approve", path, "spring")  # it prints what waits
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
    assert "--asker" in run.fails("ledger", "approve", path, "spring", "--yes")
    run.ok("ledger", "approve", path, "spring", "--asker", "acme", "--yes")
    assert offer(path) is None
    assert offer(path, asker="eve") == "awaiting_approval"
    assert "no campaign 'winter' waits" in run.fails("ledger", "approve", path, "winter", "--yes")
