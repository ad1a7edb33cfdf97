"""What an owner and an auditor see of secure sums in a ledger."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privcal import Ledger, Policy
from privcal.report.owner_pages import ledger_page
from privcal.trusted.epsilon import NANO
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import Gap, Histogram
from privcal.trusted.question import Question
from tests.conftest import Run

POLICY = Policy(epsilon=2.0, secure=SecureRules(colluding=7, alone=10, epsilon_alone=15.0))
SHARED, PLAIN = Question.of(Gap(), 0.2, "spring"), Question.of(Histogram(), 0.3, "summer")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A share of ε 0.2 (2 alone), its opening, and an ordinary question of ε 0.3."""
    ledger = Ledger.create(tmp_path / "ward.ledger", POLICY, unit="row")
    ledger.charge_share(SHARED, "ann", POLICY, "terms", 2 * NANO)
    ledger.store_share(SHARED, "ann", "sealed")
    ledger.open_once(SHARED, "ann", "a set", lambda: [5, 6])
    ledger.charge(PLAIN, "bob", POLICY)
    ledger.store(PLAIN, "bob", [1] * 30)
    return ledger


def shown(run: Run, *more: object) -> Any:
    return run.json("ledger", *more)


def test_the_owner_sees_both_totals_and_both_caps(ledger: Ledger, run: Run) -> None:
    told, _ = run.ok("ledger", "show", ledger.path)
    told = " ".join(told.split())
    assert "epsilon spent: 0.5; 1.5 remains of 2" in told
    assert "however many collude: epsilon 2.3 spent; 12.7 remains of 15" in told
    assert "the carrier and up to 7 other hospitals together" in told
    assert "in a secure sum (2 alone)" in told
    assert "a secure sum was opened" in told
    assert "lost" not in told


def test_both_totals_are_in_the_document_and_each_entry_has_its_cost(
    ledger: Ledger, run: Run
) -> None:
    facts = shown(run, "show", ledger.path)
    assert (facts["spent"], facts["remains"], facts["total"]) == (0.5, 1.5, 2.0)
    assert facts["alone"] == {"total": 15.0, "spent": 2.3, "remains": 12.7}
    costs = [
        (e["kind"], e["asker"], e["request_id"], e["epsilon"], e["alone"]) for e in facts["entries"]
    ]
    assert costs == [
        ("policy", None, None, 0.0, 0.0),
        ("share", "ann", "spring/0/0", 0.2, 2.0),
        ("opening", "ann", "spring/0/0", 0.0, 0.0),
        ("charge", "bob", "summer/0/0", 0.3, 0.3),
    ]


def test_without_secure_sums_there_is_one_total(tmp_path: Path, run: Run) -> None:
    plain = Ledger.create(tmp_path / "plain.ledger", Policy(), unit="row")
    plain.charge(PLAIN, "bob", Policy())
    assert shown(run, "show", plain.path)["alone"] is None
    told = run("ledger", "show", plain.path)[1] + ledger_page(plain) + plain._repr_html_()
    assert "everybody else" not in told
    assert "secure sum" not in told


def test_the_second_total_stays_in_sight_when_the_rules_are_gone(ledger: Ledger, run: Run) -> None:
    ledger.set_policy(replace(POLICY, secure=None))
    alone = shown(run, "show", ledger.path)["alone"]
    assert (alone["spent"], alone["total"]) == (2.3, 2.0)
    told = " ".join(run("ledger", "show", ledger.path)[1].split())
    assert "the total is 2, less than that: nothing more is answered" in told


def test_many_ledgers_at_once_show_who_is_used_up_alone(ledger: Ledger, run: Run) -> None:
    assert ledger.path is not None
    rules = SecureRules(colluding=7, alone=10, epsilon_alone=2.3)
    ledger.set_policy(replace(POLICY, secure=rules))
    [one] = shown(run, "show", ledger.path.parent)["ledgers"]
    assert (one["requests"], one["state"], one["alone"]["remains"]) == (2, "used up", 0.0)


def test_whoever_reconciles_is_told_that_a_site_needs_new_keys(ledger: Ledger, run: Run) -> None:
    code, _, told = run("ledger", "reconcile", ledger.path, "--write-off", 0.1)
    assert (code, "privcal keys rotate" in told) == (0, True)


def test_a_page_shows_both_totals_and_what_was_opened(ledger: Ledger) -> None:
    page = ledger_page(ledger)
    for words in (
        "against everybody else together, ε in all",
        "2.3",
        "more hospitals work together than the rules reckon with, say, or keys are lost), from 50 of 100 to "
        "at most 91 of 100",
        "12.7",
        "(in a secure sum)",
        "Secure sums that were opened",
        "secure sums: hospitals that may work with whoever asks, at least",
        "ε in all that everybody else together may ever learn",
    ):
        assert words in page
    assert "everybody else together" in ledger._repr_html_()
    assert "2.3 spent, 12.7 remains" in ledger._repr_html_()


def test_budget_written_off_is_shown_with_what_it_cost_alone(ledger: Ledger, run: Run) -> None:
    path = ledger.path
    assert path is not None
    path.unlink()
    again = Ledger.create(path, POLICY, unit="row")
    told = " ".join(run("ledger", "show", path)[1].split())
    assert "carried over from a lost ledger (2.3 alone)" in told
    assert "carried over from a lost ledger (2.3 alone)" in ledger_page(again)


def test_an_export_can_be_verified_and_holds_no_reply(ledger: Ledger, run: Run) -> None:
    out, _ = run.ok("ledger", "export", ledger.path)
    *entries, head = map(json.loads, out.splitlines())
    names = ("seq", "kind", "asker", "campaign", "round", "index")
    for entry in entries:  # as docs/privacy.md says
        about = entry["query"] if entry["what"] is None else entry["what"]
        fields = [
            *(entry[name] for name in names), about,
            *(entry[n] for n in ("digest", "nano_epsilon", "nano_spent", "time", "previous")),
        ]  # fmt: skip
        assert hashlib.sha256(json.dumps(fields).encode()).hexdigest() == entry["hash"]
    assert head["hash"] == entries[-1]["hash"]
    assert [entry["nano_alone"] for entry in entries] == [0, 2 * NANO, 0, 3 * NANO // 10]
    assert [entry["answered"] for entry in entries] == [None, True, True, True]
    assert "sealed" not in out
    assert "[5, 6]" not in out


def test_an_owner_sees_that_a_campaign_wants_secure_sums(ledger: Ledger, run: Run) -> None:
    ledger.set_policy(replace(POLICY, approve=True))
    asked = Question.of(Gap(), 0.1, "autumn")
    ledger.reserve([asked], "ann", ledger.policy, alone=10)
    ledger.reserve([replace(asked, campaign="winter")], "ann", ledger.policy)
    secure, plain = shown(run, "waiting", ledger.path)["waiting"]
    assert (secure["secure"], secure["epsilon"], secure["alone"]) == (True, 0.1, 1.0)
    assert (plain["secure"], plain["epsilon"], plain["alone"]) == (False, 0.1, 0.1)
    told = " ".join(run("ledger", "waiting", ledger.path)[1].split())
    assert (
        "epsilon 0.1 in all, in secure sums: against everybody else together at most epsilon 1."
        in told
    )
    assert told.count("in secure sums") == 1
    told, _ = run.ok("ledger", "approve", ledger.path, "autumn", "--yes")
    assert "in secure sums" in told
    assert "in secure sums (10 times alone)" in " ".join(
        run("ledger", "show", ledger.path)[1].split()
    )


def test_a_page_says_in_words_where_the_second_total_promises_nothing(ledger: Ledger) -> None:
    ledger.charge_share(replace(SHARED, round=1), "ann", POLICY, "others", 10 * NANO)
    assert "keys are lost), from 50 of 100 to more than 99, which is no promise" in ledger_page(
        ledger
    )
