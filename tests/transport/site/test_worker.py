"""What the process with the data replies: by the policy, the ledger, and the roster of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.secure.participant import Dealt, read_dealt
from privcal.secure.sharing import combine
from privcal.secure.terms import Terms, threshold
from privcal.transport import standing
from privcal.transport.content import Reply
from privcal.transport.site import service, setup
from privcal.transport.site import settings as site
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.queries import GRID, BinnedGap, Gap
from tests.support.letters import (
    ANN,
    BOB,
    MODEL,
    Asker,
    Federation,
    federation,
    nano,
    question,
    rules,
    set_policy,
    write_rows,
)
from tests.transport.site.test_service import said

NAME = "site-1"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path, sites=1, monkeypatch=monkeypatch)


@pytest.fixture
def ann(fed: Federation) -> Asker:
    return fed.asker(ANN)


@pytest.fixture
def bob(fed: Federation) -> Asker:
    return fed.asker(BOB)


def test_about_tells_of_its_rows_what_its_owner_wrote_and_nothing_else(
    fed: Federation, ann: Asker
) -> None:
    assert said(ann, "about") == Reply(accepted=True)
    set_policy(fed, NAME, Policy(1.0, model=MODEL, rows=300))
    assert said(ann, "about") == Reply(accepted=True, rows=300)
    assert said(ann, "about", question()) == Reply(accepted=True, rows=300), "with a plan, too"
    set_policy(fed, NAME, Policy(1.0, model=MODEL, rows=300, secure=rules()))
    reply = said(ann, "about")
    assert (reply.rows, reply.rows_per_person) == (300, 1)
    assert reply.rules == replace(rules(), roster=None, epsilon_alone=None)


def test_an_offer_costs_nothing_and_keeps_what_it_would_cost(
    fed: Federation, ann: Asker, bob: Asker
) -> None:
    set_policy(fed, NAME, Policy(1.0, model=MODEL))
    plan = [question("plan", n, epsilon=0.3) for n in range(3)]
    assert said(ann, "about", *plan).accepted
    assert fed.ledger(NAME).nano_spent == 0
    others = [question("other", n, epsilon=0.3) for n in range(2)]
    assert said(bob, "about", *others).refused == "reserved"
    assert bob.ask(NAME, "other", epsilon=0.3) == "reserved"
    dear = [question("dear", n, epsilon=0.6) for n in range(2)]
    assert said(bob, "about", *dear).refused == "over_budget"
    assert said(ann, "release", campaign="plan").accepted
    assert said(bob, "about", *others).accepted
    assert fed.ledger(NAME).nano_spent == 0


def test_nothing_is_answered_before_the_owner_approved_it(fed: Federation, ann: Asker) -> None:
    set_policy(fed, NAME, Policy(1.0, model=MODEL, approve=True))
    assert said(ann, "about", question("c")).refused == "awaiting_approval"
    assert ann.ask(NAME, "c") == "awaiting_approval"
    ledger = fed.ledger(NAME)
    [(waiting, _)] = ledger.waiting()
    assert (waiting.asker, waiting.campaign) == (ANN, "c")
    ledger.approve(waiting)
    assert ann.ask(NAME, "c") is None
    assert ann.ask(NAME, "d") == "awaiting_approval"


def test_a_question_is_answered_from_the_data_of_the_model_it_names(
    fed: Federation, ann: Asker
) -> None:
    at = fed.at(NAME)
    settings = at / site.SETTINGS
    settings.write_text(settings.read_text().replace(MODEL, "one"))
    set_policy(fed, NAME, Policy(1.0, model="one"))
    with pytest.raises(InputError, match="data for model 'one' already"):
        setup.add(at, write_rows(at.parent / "x.npz", 9), Policy(1.0), model="one")
    second = write_rows(at.parent / "second.npz", 30, seed=1)
    setup.add(at, second, Policy(2.0), model="two")
    one, two = site.Site.load(at).populations
    assert ann.ask(NAME, "a", model="one", epsilon=0.5) is None
    assert ann.ask(NAME, "b", model="two", epsilon=0.25) is None
    assert ann.ask(NAME, "c", model="three") == "model"
    assert ann.ask(NAME, "c", model=None) == "model"
    assert Ledger(one.ledger).nano_spent == nano(0.5)
    assert Ledger(two.ledger).nano_spent == nano(0.25)


# --- policy, and rows that are odd --------------------------------------------------------


def test_a_policy_rules_whatever_is_signed(fed: Federation, ann: Asker) -> None:
    rules = Policy(1.0, 0.6, queries=("gap",), askers=(ANN,), model=MODEL)
    set_policy(fed, NAME, rules)
    assert ann.ask(NAME, "q", query=BinnedGap(1.0, 15)) == "query"
    assert ann.ask(NAME, "m", model="another") == "model"
    assert ann.ask(NAME, "l", epsilon=0.600000001) == "over_request_limit"
    assert ann.ask(NAME, "s", epsilon=1e-9) == "under_minimum"
    assert ann.ask(NAME, "a", epsilon=0.6) is None
    assert ann.ask(NAME, "a", epsilon=0.6) is None
    assert ann.ask(NAME, "a", epsilon=0.5) == "id_conflict"
    assert ann.ask(NAME, "a", query=Gap(2.0), epsilon=0.6) == "id_conflict"
    assert ann.ask(NAME, "b", epsilon=0.400000001) == "over_budget"
    assert ann.ask(NAME, "b", epsilon=0.4) is None
    assert ann.ask(NAME, "c", epsilon=0.001) == "over_budget"
    fed.ledger(NAME).set_policy(replace(rules, askers=(BOB,)))
    assert ann.ask(NAME, "a", epsilon=0.6) == "asker"
    assert fed.ledger(NAME).nano_spent == 10**9


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


@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_no_refusal_tells_whether_a_malformed_row_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, kind: str
) -> None:
    """Neither to someone the policy does not admit, nor when the budget is used up, nor else."""
    lines = [[f"{(7 * i + j) % 5}.5" for j in range(10)] + [str(i % 10)] for i in range(20)]
    header = [f"logit_{j}" for j in range(10)] + ["label"]
    data = write_table(tmp_path / f"rows.{kind}", header, lines)
    rules = Policy(1.0, 0.6, askers=(ANN,), model=MODEL)
    monkeypatch.setattr(service, "hold", lambda *_: None)
    fed = federation(tmp_path / "fed", sites=1, rows=data, policy=rules, monkeypatch=monkeypatch)
    ann, bob = fed.asker(), fed.asker(BOB)

    def ask_all(name: str) -> list[str | None]:
        return [
            bob.ask(NAME, f"stranger-{name}"),
            ann.ask(NAME, f"model-{name}", model="another"),
            ann.ask(NAME, f"dear-{name}", epsilon=0.7),
            ann.ask(NAME, f"good-{name}", epsilon=0.25),
            ann.ask(NAME, f"over-{name}", epsilon=0.6),
        ]

    before = ask_all("before")
    assert before == ["asker", "model", "over_request_limit", None, None]
    row = list(lines[0])
    row[3] = ODD_ROWS[odd].get("logit", row[3])
    row[10] = ODD_ROWS[odd].get("label", row[10])
    write_table(data, header, [*lines[:10], row, *lines[10:]])
    with pytest.raises(InputError):
        privcal.read_scores(data)  # its owner is told
    ledger = fed.ledger(NAME)
    ledger.set_policy(replace(ledger.policy, epsilon=2.0))
    assert ask_all("after") == before
    ledger.set_policy(replace(ledger.policy, epsilon=1.0))
    assert ann.ask(NAME, "used-up", epsilon=0.1) == "over_budget"


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


# --- secure sums ----------------------------------------------------------------------------


EPSILON = 1e4
"""So much that hardly any noise is left, and a total can be told from another."""


class Sum:
    """One secure sum over all sites, letter by letter."""

    def __init__(self, fed: Federation, asker: Asker, campaign: str = "sum") -> None:
        self.fed, self.asker = fed, asker
        names = tuple(sorted(fed.sites))
        facts = (1, threshold(len(names), 1), 10, 1, asker.roster.digest)
        self.terms = Terms(question(campaign, epsilon=EPSILON), asker.name, names, *facts)

    def say(self, kind: str, to: str, **more: Any) -> Reply:
        campaign = self.terms.question.campaign
        request = self.asker.request(kind, to, campaign=campaign, terms=self.terms, **more)
        reply = self.asker.say(to, request)
        assert reply is not None
        return reply

    def share(self) -> dict[str, Dealt]:
        dealt = {}
        for name in self.terms.sites:
            text = self.say("share", name).dealt
            assert text is not None
            dealt[name] = read_dealt(text, self.terms)
        return dealt

    def boxes(self, dealt: dict[str, Dealt], to: str, dealers: Sequence[str] = ()) -> Any:
        return {dealer: dealt[dealer].boxes[to] for dealer in dealers or dealt}

    def open(self, dealt: dict[str, Dealt]) -> list[float]:
        sums = {}
        for name in self.terms.sites:
            boxes = self.boxes(dealt, name)
            assert self.say("check", name, boxes=boxes).bad == ()
            part = self.say("open", name, boxes=boxes).sums
            assert part is not None
            sums[self.terms.point(name)] = part
        total = combine(sums, self.terms.threshold)
        assert total is not None
        return [value / GRID for value in total.values]

    @property
    def exact(self) -> float:
        sources = (
            site.Site.load(self.fed.at(name)).populations[0].source(name)
            for name in self.terms.sites
        )
        return float(sum(source._exact(self.terms.question.query)[0] for source in sources)) / GRID


@pytest.fixture
def five(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    policy = Policy(1e6, model=MODEL, secure=rules(colluding=1, min_honest=2))
    return federation(tmp_path, sites=5, policy=policy, monkeypatch=monkeypatch)


def test_a_sum_is_that_of_the_rows_and_every_step_again_is_the_same(five: Federation) -> None:
    one = Sum(five, five.asker())
    for name in one.terms.sites:
        assert one.say("about", name, plan=(one.terms.question,)).accepted
    dealt = one.share()
    assert one.share() == dealt
    total = one.open(dealt)
    assert total[0] == pytest.approx(one.exact, abs=0.1)
    assert one.open(dealt) == total
    assert five.ledger(NAME).nano_spent == nano(EPSILON)


def test_check_and_open_go_by_the_roster_of_the_terms_and_share_by_the_present_one(
    five: Federation,
) -> None:
    """A calibrator and a site leave between SHARE and OPEN; the sum is finished all the same."""
    one = Sum(five, five.asker())
    dealt = one.share()
    newer = five.without(BOB)
    five.accept(newer)
    total = one.open(dealt)
    assert total[0] == pytest.approx(one.exact, abs=0.1)
    late = Sum(five, five.asker(), "late")
    late.terms = replace(late.terms, roster=one.terms.roster)
    assert late.say("share", NAME) == Reply(refused="roster")


def test_a_removed_calibrator_opens_nothing(five: Federation) -> None:
    one = Sum(five, five.asker(BOB))
    dealt = one.share()
    for name in five.sites:
        five.site(name).take(five.without(BOB).text.encode())
    boxes = one.boxes(dealt, NAME)
    request = one.asker.request("open", NAME, campaign="sum", terms=one.terms, boxes=boxes)
    assert one.asker.say(NAME, request) is None


def test_a_roster_older_than_ninety_days_ends_no_sum(
    five: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Sum(five, five.asker())
    dealt = one.share()
    five.accept(five.without(BOB))
    monkeypatch.setattr(standing, "KEPT", -1.0)
    boxes = one.boxes(dealt, NAME)
    assert one.say("open", NAME, boxes=boxes) == Reply(refused="roster")


def test_a_sum_is_finished_with_the_key_that_was_rotated_and_not_with_one_that_was_destroyed(
    five: Federation,
) -> None:
    one, two = Sum(five, five.asker()), Sum(five, five.asker(), "two")
    dealt, others = one.share(), two.share()
    five.accept(five.rekeyed(NAME))
    assert one.open(dealt)[0] == pytest.approx(one.exact, abs=0.1)
    five.accept(five.rekeyed(NAME, now=True))
    boxes = two.boxes(others, NAME)
    assert two.say("open", NAME, boxes=boxes) == Reply(refused="roster")


def test_one_set_is_opened_whoever_chooses_it(five: Federation) -> None:
    """A carrier that withheld a reply, or a calibrator's record that was copied."""
    one = Sum(five, five.asker())
    dealt = one.share()
    names = one.terms.sites
    all_of_them = one.boxes(dealt, NAME)
    without = one.boxes(dealt, NAME, [name for name in names if name != "site-4"])
    first = one.say("open", NAME, boxes=all_of_them)
    assert first.sums is not None
    assert one.say("open", NAME, boxes=without) == Reply(refused="opened")
    assert one.say("open", NAME, boxes=all_of_them) == first


@pytest.mark.parametrize("marks", ["elsewhere", "with it"])
def test_a_ledger_put_back_to_between_share_and_open_opens_no_second_set(
    five: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: str
) -> None:
    """The marks refuse it; where they were put back as well, the outbox does."""
    one, at = Sum(five, five.asker()), five.at(NAME)
    mark = Path(str(five.ledger(NAME).facts.marks))
    dealt = one.share()
    files = [at / site.LEDGER, *([mark] if marks == "with it" else [])]
    before = [file.read_bytes() for file in files]
    names = [name for name in one.terms.sites if name != "site-4"]
    assert one.say("open", NAME, boxes=one.boxes(dealt, NAME)).sums is not None
    for file, content in zip(files, before, strict=True):
        file.write_bytes(content)
    boxes = one.boxes(dealt, NAME, names)
    request = one.asker.request("open", NAME, campaign="sum", terms=one.terms, boxes=boxes)
    reply = one.asker.say(NAME, request)
    if marks == "elsewhere":
        assert reply is None or reply == Reply(refused="ledger_rolled_back")
    else:
        assert reply is None, "what it would have said never left"
        assert "fewer entries" in five.site(NAME).stopped
