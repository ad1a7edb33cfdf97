"""Secure sums over letters: what sites agree to, what they open, what it costs, and kills between all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.calibration.campaign import Campaign
from privcal.secure.panel import Secure, SecurePanel
from privcal.transport.calibrator.secure import SecureSites
from privcal.transport.keys import Keys
from privcal.transport.site import setup
from privcal.transport.site.settings import LEDGER, SETTINGS
from privcal.trusted.errors import CalibrationError
from tests.support import asking
from tests.support import secure_sums as sums
from tests.support.asking import Hostile, Puppet, answering
from tests.support.letters import (
    ANN,
    MODEL,
    Federation,
    InProcess,
    federation,
    question,
    rules,
    write_rows,
)
from tests.support.secure_sums import agreed, boxes_of, codes, exact, opened, policy, shared, summed

NAMES = tuple(f"site-{n}" for n in range(1, 6))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        wanted = policy(rules())
        return federation(folder, 5, policy=wanted, start=False, monkeypatch=patch)


@pytest.fixture
def made(base: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """Five sites that answer; as they were set up, in the same place: a ledger knows where it is."""
    monkeypatch.setattr("privcal.transport.site.service.Child", InProcess)
    monkeypatch.setenv("PRIVCAL_MARKS", str(base.folder / "marks.db"))
    shutil.copytree(base.folder, tmp_path / "kept", symlinks=True)
    base.start()
    with answering(base):
        yield base
    base.stop()
    shutil.rmtree(base.folder)
    shutil.move(tmp_path / "kept", base.folder)


@pytest.fixture
def warned() -> list[str]:
    return []


def way_of(made: Federation, warned: list[str] | None = None, **more: Any) -> SecureSites:
    warn = (warned if warned is not None else []).append
    return SecureSites(asking.sites(made, warn=warn, **more))


@pytest.fixture
def way(made: Federation, warned: list[str]) -> SecureSites:
    return way_of(made, warned)


def spent(made: Federation) -> dict[str, tuple[int, int]]:
    return {n: (made.ledger(n).nano_spent, made.ledger(n).nano_alone) for n in NAMES}


def letters(made: Federation, name: str, kind: str) -> list[Any]:
    """The requests of one kind that went to a site."""
    site = Puppet(made, name)
    return [r for r in map(site.opened, site.letters()) if r.kind == kind]


# --- a whole sum ----------------------------------------------------------------------------


def test_the_total_is_the_sum_of_all_answers_and_each_is_charged_once(
    made: Federation, way: SecureSites
) -> None:
    assert list(way.names) == list(NAMES)
    terms = agreed(way, NAMES, "whole")
    assert way.offer(terms, [terms.question]) == {}
    assert set(spent(made).values()) == {(0, 0)}
    total = summed(way, terms)
    nano = terms.question.nano_epsilon
    assert set(spent(made).values()) == {(nano, 10 * nano)}
    assert total == pytest.approx(exact(made, NAMES, terms.question), abs=0.01)
    assert summed(way_of(made), terms) == total, "a run of its own: nothing is charged again"
    assert set(spent(made).values()) == {(nano, 10 * nano)}


def test_sites_that_are_gone_after_they_dealt_are_in_the_total_all_the_same(
    made: Federation, way: SecureSites
) -> None:
    terms = agreed(way, NAMES, "gone")
    dealt = shared(way, terms)
    made.stop("site-5")
    way._sites.exchange.wait = 5.0
    replies = codes(way.open(terms, boxes_of(dealt, NAMES)))
    assert replies.pop("site-5") == "late"
    assert opened(terms, replies) == pytest.approx(exact(made, NAMES, terms.question), abs=0.01)


def test_a_site_that_did_not_deal_opens_as_well_as_any(made: Federation, way: SecureSites) -> None:
    terms = agreed(way, NAMES, "late")
    dealt = shared(way, terms, NAMES[:4])
    total = opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES[1:]))))
    assert total == pytest.approx(exact(made, NAMES[:4], terms.question), abs=0.01)
    assert spent(made)["site-5"] == (0, 0)


def test_each_site_gets_its_own_boxes_and_nobody_elses(made: Federation, way: SecureSites) -> None:
    terms = agreed(way, NAMES, "own")
    dealt = shared(way, terms)
    boxes = boxes_of(dealt, NAMES)
    codes(way.check(terms, boxes))
    codes(way.open(terms, boxes))
    seals = set()
    for name in NAMES:
        [checked], [opening] = (letters(made, name, kind) for kind in ("check", "open"))
        for request in (checked, opening):
            assert dict(request.boxes) == {d: dealt[d].boxes[name] for d in NAMES}
            seals.add((request.kind, request.reply_key))
    assert len(seals) == len({key for _, key in seals}) == 2, "one key for the replies to each"


def test_a_whole_calibration_takes_five_trips(made: Federation, way: SecureSites) -> None:
    result = privcal.calibrate(
        SecurePanel(way), "histogram-binning", sums.EPSILON, campaign="c", model=MODEL
    )
    assert way._sites.exchange.trips == 5
    for name in NAMES:
        for kind in ("share", "check", "open", "release"):
            assert len(letters(made, name, kind)) == 1
        assert [bool(r.plan) for r in letters(made, name, "about")].count(True) == 1
    [total] = [asked.total for asked in result.rounds]
    assert total is not None
    assert total.sources == NAMES
    expected = exact(made, NAMES, total.question)
    assert total.average == pytest.approx([v / len(NAMES) for v in expected], abs=0.01)


# --- what owners tell, and who is asked -----------------------------------------------------


def test_what_the_owners_want_is_what_all_of_them_accept(
    made: Federation, warned: list[str]
) -> None:
    made.ledger("site-1").set_policy(policy(rules(colluding=2, epsilon_alone=5.0)))
    made.ledger("site-2").set_policy(policy(rules(min_honest=3)))
    made.ledger("site-3").set_policy(policy(rules(alone=7, required=True), rows=50))
    way = way_of(made, warned)
    assert way.rules == rules(colluding=2, min_honest=3, alone=7, required=True)
    assert way.rows_per_source == 50
    assert (way.rows_per_person, way.asker) == (1, ANN)
    colluding, alone = warned
    assert colluding.startswith("because of site-1 the noise of the whole sum is larger: 2 hosp")
    assert alone.startswith("because of site-3 the noise of the whole sum is larger: 7 times")


def test_the_rows_of_a_person_that_the_noise_covers_are_the_most_that_count_anywhere(
    made: Federation,
) -> None:
    for n, name in enumerate(NAMES[:2]):
        folder = made.at(name)
        made.stop(name)
        data = write_rows(made.folder / f"people {name}.npz", 30, n, person="p")
        (folder / SETTINGS).unlink()
        (folder / LEDGER).unlink()
        setup.init(folder, data, policy(rules(), rows_per_person=2 + n), person="person", delay=0.1)
    made.accept(made.rekeyed(*NAMES[:2]))  # those of the ledgers that were there are destroyed
    made.start(*NAMES[:2])
    way = way_of(made)
    assert way.rows_per_person == 3
    terms = agreed(way, NAMES, "people", rows_per_person=2)
    assert way.offer(terms, [terms.question]) == {"site-2": "terms"}
    summed(way, agreed(way, NAMES, "all people", rows_per_person=3))


def test_who_takes_no_part_is_said_once_for_each_reason_and_not_asked(
    made: Federation, warned: list[str]
) -> None:
    made.ledger("site-1").set_policy(policy(None))
    made.ledger("site-2").set_policy(policy(rules(), askers=("eve@lab.org",)))
    cards = [Keys.load(made.at(name)).card for name in ("ann", "bob", *NAMES)]
    newer = made.roster.next(cards, made.roster.issued, made.roster.until).signed(made.coordinator)
    made.accept(newer, "site-3")
    way = way_of(made, warned)
    assert list(way.names) == ["site-4", "site-5"]
    behind, silent, stranger, other = warned
    assert behind.startswith("site-3 goes by roster 2, and yours is roster 1")
    assert silent.startswith("not asked: site-1 (")
    assert "or not in yours: the owner's policy says nothing" in silent
    assert stranger == "not asked: site-2 (asker: the policy does not let this asker ask)"
    assert other.startswith("not asked: site-3 (it goes by roster 2, not by yours")
    assert "privcal roster accept" in other


def test_a_site_that_is_not_there_is_absent_and_nobody_waits_for_it(
    made: Federation, way: SecureSites
) -> None:
    terms = agreed(way, NAMES, "absent")
    dealt = shared(way, terms)
    way._part = NAMES[:4]
    trips = way._sites.exchange.trips
    assert codes(way.share(terms, ["site-5"])) == {"site-5": "absent"}
    assert codes(way.check(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "absent"}
    assert codes(way.open(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "absent"}
    assert way.offer(terms, [terms.question]) == {"site-5": "absent"}
    assert way._sites.exchange.trips <= trips + 4


def test_a_site_without_rules_for_secure_sums_refuses_them_whoever_asks(
    made: Federation, way: SecureSites
) -> None:
    terms = agreed(way, NAMES, "norules")
    dealt = shared(way, terms, NAMES[:4])
    made.ledger("site-5").set_policy(policy(None))
    assert way.offer(terms, [terms.question])["site-5"] == "terms"
    assert codes(way.share(terms, ["site-5"])) == {"site-5": "terms"}
    assert codes(way.check(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "terms"}
    assert codes(way.open(terms, boxes_of(dealt, ["site-5"]))) == {"site-5": "terms"}


def test_a_site_that_lets_nothing_leave_but_in_secure_sums_answers_no_question(
    made: Federation,
) -> None:
    made.ledger("site-1").set_policy(policy(rules(required=True)))
    panel = asking.sites(made, without=NAMES[1:])
    assert codes(panel.ask(["site-1"], question("plain", epsilon=1.0))) == {"site-1": "not_secure"}
    assert panel.refusals([question("plain", epsilon=1.0)]) == {"site-1": "not_secure"}
    assert spent(made)["site-1"] == (0, 0)


def test_a_budget_that_is_full_refuses_the_offer_and_the_share(
    made: Federation, way: SecureSites
) -> None:
    made.ledger("site-1").set_policy(policy(rules(epsilon_alone=sums.EPSILON * 15)))
    first, second = (agreed(way, NAMES, c) for c in ("first", "second"))
    summed(way, first)
    assert way.offer(second, [second.question]) == {"site-1": "over_budget"}
    assert codes(way.share(second, ["site-1"])) == {"site-1": "over_budget"}
    nano = first.question.nano_epsilon
    assert spent(made)["site-1"] == (nano, 10 * nano)


# --- rosters that change on the way -----------------------------------------------------------


def test_a_roster_that_changed_between_share_and_open_ends_no_sum(
    made: Federation, way: SecureSites
) -> None:
    """It goes by the roster of its terms; a site whose own key is another opens nothing more."""
    terms = agreed(way, NAMES, "changed")
    dealt = shared(way, terms)
    made.accept(made.without("bob"))
    total = opened(terms, codes(way.open(terms, boxes_of(dealt, NAMES))))
    assert total == pytest.approx(exact(made, NAMES, terms.question), abs=0.01)


# --- mailboxes that choose, and runs that are killed -------------------------------------------


def test_a_mailbox_that_shows_shares_of_others_to_another_run_opens_no_second_set(
    made: Federation,
) -> None:
    """Attacks 2 and 12: a copied record, and a mailbox that hides one dealer from it."""
    first = way_of(made)
    terms = agreed(first, NAMES, "views")
    dealt = shared(first, terms)
    assert opened(terms, codes(first.open(terms, boxes_of(dealt, NAMES))))
    box = Hostile(made.box)
    hidden = made.id("site-5")
    box.hides = lambda writer, name: writer == hidden
    second = way_of(made, box=box, wait=4.0)
    again = shared(second, terms, NAMES[:4])
    assert codes(second.open(terms, boxes_of(again, NAMES[:4]))) == dict.fromkeys(
        NAMES[:4], "opened"
    )


class Killed(BaseException):
    """In place of SIGKILL: nothing that a run would do afterwards is done."""


STEPS = [("share", 0), ("check", 0), ("chooses", 0), ("open", 0), ("keeps", 0)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("what", ["share", "check", "chooses", "open", "keeps"])
def test_a_run_killed_at_any_step_goes_on_with_the_same_letters_and_pays_once(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, after: bool
) -> None:
    """Attack 13, for the calibrator: what was chosen stays chosen, and each site is charged once."""
    folder = tmp_path / "m.campaign"
    owner: Any = Campaign if what in ("chooses", "keeps") else SecureSites
    act = getattr(owner, what)

    def killed(*given: Any) -> Any:
        if after:
            done = act(*given)
            list(done or ())
        raise Killed

    def run(campaign: Campaign, begun: bool) -> privcal.Result:
        way = way_of(made, record=folder, begun=begun)
        panel = SecurePanel(way, Secure(), campaign)
        return privcal.calibrate(panel, "histogram-binning", 1.0, campaign="k", model=MODEL)

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, killed)
        with pytest.raises(Killed):
            run(Campaign.start(folder, {}), begun=False)
    before = {name: letters_of(content) for name, content in asking.written(folder).items()}
    chosen = [x for x in (folder / "answers.jsonl").read_text().splitlines() if '"chosen"' in x]
    result = run(Campaign.resume(folder), begun=True)
    assert result.answered == 5
    assert set(spent(made).values()) == {(10**9, 10 * 10**9)}
    now = {name: letters_of(content) for name, content in asking.written(folder).items()}
    assert {name: now[name] for name in before} == before, "the very same bytes"
    lines = (folder / "answers.jsonl").read_text().splitlines()
    assert [x for x in lines if '"chosen"' in x][: len(chosen)] == chosen
    assert sum('"chosen"' in x for x in lines) == 1
    for name in NAMES:
        assert len(letters(made, name, "open")) == 1, "one set, one letter"


def letters_of(content: bytes) -> Any:
    return json.loads(content)[3]


def test_the_chosen_set_is_on_disk_before_the_first_letter_that_opens_it(
    made: Federation, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "m.campaign", []
    campaign, box = Campaign.start(folder, {}), Hostile(made.box)

    def before(name: str, content: bytes) -> None:
        opens = any(name.startswith("open-") for name in asking.written(folder))
        text = (folder / "answers.jsonl").read_text() if opens else ""
        seen.append((opens, '"chosen"' in text))

    box.before_put = before
    way = way_of(made, box=box, record=folder)
    privcal.calibrate(
        SecurePanel(way, Secure(), campaign), "histogram-binning", 1.0, campaign="k", model=MODEL
    )
    assert {chosen for opens, chosen in seen if opens} == {True}
    assert sum(opens for opens, _ in seen) >= len(NAMES)


def test_a_campaign_that_a_removed_dealer_ends_says_what_it_cost(
    made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between SHARE and OPEN a hospital makes new keys at once, and all owners accept the roster."""
    check = SecureSites.check

    def meanwhile(way: SecureSites, *given: Any) -> Any:
        made.accept(made.rekeyed(*NAMES, now=True))
        return check(way, *given)

    monkeypatch.setattr(SecureSites, "check", meanwhile)
    way = way_of(made, wait=6.0)
    with pytest.raises(CalibrationError) as ended:
        privcal.calibrate(SecurePanel(way), "histogram-binning", 2.0, campaign="c", model=MODEL)
    assert "nothing was opened" in str(ended.value)
    assert ended.value.spent == (2.0,) * len(NAMES)
    assert set(spent(made).values()) == {(2 * 10**9, 20 * 10**9)}


def test_a_ledger_that_was_reconciled_destroys_the_key_and_nothing_opens(
    made: Federation, way: SecureSites
) -> None:
    terms = agreed(way, NAMES, "lost")
    dealt = shared(way, terms)
    made.ledger("site-5").reconcile()
    boxes = boxes_of(dealt, ["site-5"], NAMES[:4])
    assert codes(way.check(terms, boxes)) == {"site-5": "roster"}
    way._sites.exchange.wait = 2.0  # no letter can be opened any more, so there is no reply
    assert codes(way.open(terms, boxes)) == {"site-5": "late"}
    assert Keys.load(made.at("site-5")).lost
