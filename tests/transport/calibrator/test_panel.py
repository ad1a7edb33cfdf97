"""The sites of a federation as a panel: who is asked, what they say, and how often letters travel."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.calibration.campaign import Campaign, Recorded
from privcal.data.panels import Unusable
from privcal.data.plausible import MAX_SITE_ROWS
from privcal.transport.calibrator.exchange import last_heard
from privcal.transport.calibrator.panel import Sites
from privcal.transport.content import Reply
from privcal.transport.letter import digest
from privcal.transport.roster import Roster
from privcal.transport.standing import Standing
from privcal.trusted.errors import CalibrationError, InputError, Refused
from privcal.trusted.policy import Policy
from privcal.trusted.queries import GRID, Gap
from privcal.trusted.source import Answer
from tests.support import asking
from tests.support.asking import Hostile, Puppet, an_answer, answering, beside
from tests.support.letters import ANN, MODEL, Federation, InProcess, federation, question


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        policy = Policy(10.0, model=MODEL, rows=20)
        return federation(folder, 3, policy=policy, start=False, monkeypatch=patch)


@pytest.fixture
def made(base: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """Three sites that do not run yet; as they were set up, in the same place."""
    monkeypatch.setattr("privcal.transport.site.service.Child", InProcess)
    monkeypatch.setenv("PRIVCAL_MARKS", str(base.folder / "marks.db"))
    shutil.copytree(base.folder, tmp_path / "kept", symlinks=True)
    yield base
    base.stop()
    shutil.rmtree(base.folder)
    shutil.move(tmp_path / "kept", base.folder)


@pytest.fixture
def running(made: Federation) -> Iterator[Federation]:
    """The same, answering."""
    made.start()
    with answering(made):
        yield made


def calibrate(panel: Any, campaign: str = "c", **more: Any) -> privcal.Result:
    return privcal.calibrate(panel, "sketch", 1.0, campaign=campaign, model=MODEL, **more)


def kinds(made: Federation, name: str = "site-1") -> list[str]:
    """The kinds of all letters to a site, as they were sent."""
    site = Puppet(made, name)
    return [r.kind for r in sorted(map(site.opened, site.letters()), key=_when)]


def _when(request: Any) -> tuple[int, int]:
    order = ("about", "ask", "release")
    return request.issued, order.index(request.kind)


# --- a whole campaign ---------------------------------------------------------------------------


def test_a_campaign_of_one_question_takes_three_trips(running: Federation) -> None:
    panel = asking.sites(running)
    result = calibrate(panel)
    assert result.answered == 3
    assert panel.exchange.trips == 3
    assert {running.ledger(name).nano_spent for name in running.sites} == {10**9}
    assert sorted(kinds(running)) == ["about", "about", "ask", "release"]


def test_the_same_campaign_again_gets_the_same_answers_and_costs_nothing(
    running: Federation, tmp_path: Path
) -> None:
    first = calibrate(asking.sites(running))
    again = calibrate(asking.sites(running))
    assert again.rounds[0].answers == first.rounds[0].answers
    assert {running.ledger(name).nano_spent for name in running.sites} == {10**9}


def test_a_campaign_that_goes_on_asks_nobody_what_owners_tell(
    running: Federation, tmp_path: Path
) -> None:
    """What was decided when it began stands; who is there, the offer tells."""
    campaign = Campaign.start(tmp_path / "m.campaign", {})
    calibrate(Recorded(asking.sites(running, record=campaign.folder), campaign))
    campaign = Campaign.resume(tmp_path / "m.campaign")
    panel = asking.sites(running, record=campaign.folder, begun=True)
    calibrate(Recorded(panel, campaign))
    assert panel.exchange.trips == 1


def test_a_finished_campaign_is_read_again_without_a_letter(
    running: Federation, tmp_path: Path
) -> None:
    campaign = Campaign.start(tmp_path / "m.campaign", {})
    first = calibrate(Recorded(asking.sites(running, record=campaign.folder), campaign))
    campaign.finish()
    before = len(kinds(running))
    panel = asking.sites(running, record=campaign.folder, silent=True)
    again = calibrate(Recorded(panel, Campaign.resume(campaign.folder)))
    assert again.rounds == first.rounds
    assert (panel.exchange.trips, len(kinds(running))) == (0, before)


# --- who is there -------------------------------------------------------------------------------


def test_who_does_not_reply_is_named_once_and_not_asked_again(made: Federation) -> None:
    """The first letter is the canary: only that one waits for a site that is dead."""
    warned: list[str] = []
    made.start("site-1", "site-3")
    with answering(made):
        panel = asking.sites(made, wait=3.0, warn=warned.append)
        assert panel.names == ["site-1", "site-3"]
        began = time.monotonic()
        result = calibrate(panel, min_sources=2)
    assert result.answered == 2
    assert panel.away == 1
    assert time.monotonic() - began < 3.0
    assert warned == ["site-2 does not reply, and is not asked (no letter of it came yet)"]
    assert kinds(made, "site-2") == ["about"]


def test_when_a_site_was_last_heard_of_is_said(made: Federation) -> None:
    made.start()
    with answering(made):
        assert len(asking.sites(made).names) == 3
    assert set(last_heard(made.at(ANN))) == set(made.sites)
    made.stop("site-2")
    warned: list[str] = []
    with answering(made):
        assert len(asking.sites(made, wait=2.0, warn=warned.append).names) == 2
    assert "site-2 does not reply, and is not asked (the last came " in warned[0]
    assert "ago)" in warned[0]


def test_whoever_is_to_be_left_out_gets_no_letter(running: Federation) -> None:
    panel = asking.sites(running, without=["site-2"])
    assert (panel.names, panel.away) == (["site-1", "site-3"], 0)
    assert kinds(running, "site-2") == []
    for name in ("site-9", "bob"):
        with pytest.raises(InputError, match=f"{name} is not a site of the roster"):
            asking.sites(running, without=[name])


def test_a_site_that_is_blocked_here_gets_no_letter_and_that_is_said(running: Federation) -> None:
    warned: list[str] = []
    Standing(running.at(ANN)).block("site-2")
    panel = asking.sites(running, warn=warned.append)
    assert panel.names == ["site-1", "site-3"]
    assert warned == ["site-2 is blocked here, and is not asked"]
    assert kinds(running, "site-2") == []


def test_without_any_site_there_is_no_campaign(made: Federation) -> None:
    panel = asking.sites(made, wait=0.3)
    with pytest.raises(CalibrationError, match="no site of the roster replied"):
        _ = panel.names


def test_nobody_is_asked_without_a_roster(made: Federation) -> None:
    """Whose keys a reply is signed with is known before anything is paid for it."""
    shutil.rmtree(made.at(ANN) / "rosters")
    with pytest.raises(InputError, match="has no roster yet"):
        asking.sites(made)


def test_a_site_that_was_removed_is_not_asked_once_the_mailbox_shows_it(
    made: Federation, tmp_path: Path
) -> None:
    smaller = made.without("site-3")
    made.box.put("", f"roster-{smaller.number}", smaller.text.encode())
    campaign = Campaign.start(tmp_path / "m.campaign", {})
    panel = Sites.of(made.at(ANN), str(made.mailbox), campaign, wait=20.0, every=0.02)
    made.start("site-1", "site-2")
    with answering(made):
        assert panel.names == ["site-1", "site-2"]


def test_withheld_replies_choose_who_is_in_the_map_and_it_says_so(running: Federation) -> None:
    """Attack 3: the mailbox's keeper decides who is late, and nothing else."""
    box = Hostile(running.box)
    hidden = running.id("site-2")
    box.hides = lambda writer, name: writer == hidden
    warned: list[str] = []
    panel = asking.sites(running, box=box, wait=4.0, warn=warned.append)
    result = calibrate(panel, min_sources=2)
    assert set(result.rounds[0].answers) == {"site-1", "site-3"}
    assert "site-2 does not reply" in warned[0]
    with pytest.raises(CalibrationError):
        calibrate(asking.sites(running, box=box, wait=2.0), campaign="d", min_sources=3)
    assert running.ledger("site-1").nano_spent == 10**9


# --- what they say ------------------------------------------------------------------------------


def test_sites_are_asked_once_what_their_owners_tell_and_one_that_lies_changes_little(
    made: Federation,
) -> None:
    told = {"site-1": 12, "site-2": 2**31 - 1, "site-3": 20}

    def tell() -> None:
        for name, rows in told.items():
            Puppet(made, name).replies(Reply(accepted=True, rows=rows))

    panel = asking.sites(made)
    assert kinds(made) == [], "not before somebody wants to know"
    with beside(tell):
        assert (panel.rows_per_source, panel.sources, panel.rows_per_source) == (20.0, 3, 20.0)
    assert kinds(made) == ["about"]


def test_an_offer_goes_to_every_site_before_a_question_and_tells_who_would_refuse(
    running: Federation,
) -> None:
    running.ledger("site-2").set_policy(Policy(1.0, model=MODEL))
    panel = asking.sites(running)
    assert panel.refusals([]) == {}
    assert kinds(running) == []
    plan = [question("plan", n) for n in range(3)]
    assert panel.refusals(plan) == {"site-2": "over_budget"}
    assert kinds(running) == ["about", "about"]
    assert {running.ledger(name).nano_spent for name in running.sites} == {0}


def test_an_approval_by_hand_comes_into_a_campaign_that_waits(made: Federation) -> None:
    """The owner approves while the letter waits: the answer beats the refusal that came before."""
    site = Puppet(made, "site-1")

    def owner() -> None:
        letter = site.awaits()
        site.puts(site.says(letter, Reply(refused="awaiting_approval")))
        time.sleep(0.3)
        site.puts(site.says(letter, Reply(accepted=True)))

    panel = asking.sites(made, begun=True, without=["site-2", "site-3"])
    with beside(owner):
        assert panel.refusals([question()]) == {}


def test_a_release_is_sent_for_the_campaign_that_was_offered(running: Federation) -> None:
    panel = asking.sites(running)
    panel.release()
    assert kinds(running) == [], "nothing was reserved anywhere"
    panel.refusals([question("plan")])
    panel.release()
    site = Puppet(running, "site-2")
    [released] = [r for r in map(site.opened, site.letters()) if r.kind == "release"]
    assert (released.campaign, released.plan, released.questions) == ("plan", (), ())


def test_a_question_goes_with_the_whole_plan(running: Federation) -> None:
    plan = [question("plan", n) for n in range(2)]
    panel = asking.sites(running)
    panel.refusals(plan)
    list(panel.ask(["site-1"], plan[1]))
    site = Puppet(running, "site-1")
    [asked] = [r for r in map(site.opened, site.letters()) if r.kind == "ask"]
    assert (asked.plan, asked.questions) == (tuple(plan), (plan[1],))


def said(made: Federation, reply: Reply, **settings: Any) -> Any:
    """What the panel makes of a reply to one question."""
    asked = settings.pop("question", question())
    panel = asking.sites(made, begun=True, **settings)
    with beside(lambda: Puppet(made, "site-1").replies(reply)):
        [(_, got)] = panel.ask(["site-1"], asked)
    for path in (made.mailbox / made.roster.federation).glob("*/*"):
        path.unlink()
    return got


def test_a_reply_that_cannot_be_used_is_not_used_and_says_why(made: Federation) -> None:
    got = said(made, an_answer())
    assert isinstance(got, Answer)
    assert (got.values.tolist(), got.question) == ([1.0], question())
    refused = said(made, Reply(refused="over_budget"))
    assert isinstance(refused, Refused)
    odd = said(made, an_answer(GRID, rows_per_person=2))
    assert isinstance(odd, Unusable)
    assert odd.code == "counts 2 rows of a person"


def test_a_reply_is_judged_by_the_smaller_of_two_declared_numbers_of_rows(
    made: Federation,
) -> None:
    asked = question(query=Gap(1.0), epsilon=5.0)

    def judged(ours: int, theirs: int | None) -> Any:
        return said(made, an_answer(200 * GRID, max_rows=theirs), max_rows=ours, question=asked)

    assert judged(1000, None).values.tolist() == [200.0]
    assert isinstance(judged(1000, 2000), Answer)
    assert isinstance(judged(5 * MAX_SITE_ROWS, 1000), Answer)
    for ours, theirs in ((100, None), (MAX_SITE_ROWS, 100), (100, 1000), (1000, 100)):
        assert "beyond" in judged(ours, theirs).code


def test_where_nobody_declares_a_number_of_rows_there_is_one_that_no_hospital_exceeds(
    made: Federation,
) -> None:
    asked = question(query=Gap(1.0), epsilon=5.0)
    for rows, used in ((MAX_SITE_ROWS, True), (2 * MAX_SITE_ROWS, False)):
        assert isinstance(said(made, an_answer(rows * GRID), question=asked), Answer) is used


def test_what_travelled_is_counted_both_ways_and_replies_are_of_one_length(
    running: Federation,
) -> None:
    panel = asking.sites(running, begun=True)
    list(panel.ask(panel.names, question()))
    box, sites = running.box, [running.id(name) for name in running.sites]
    letters = [box.get(running.id(ANN), name) for name in box.list(running.id(ANN))]
    replies = [box.get(site, name) for site in sites for name in box.list(site)]
    assert len({len(reply or b"") for reply in replies}) == 1
    assert panel.exchange.travelled == sum(len(each or b"") for each in (*letters, *replies))
    assert len({digest(reply or b"") for reply in replies}) == 3


def test_a_copy_of_a_record_gets_the_same_answers(running: Federation, tmp_path: Path) -> None:
    """Attack 12. That two runs write no one record, the record's own tests show."""
    campaign = Campaign.start(tmp_path / "m.campaign", {})
    calibrate(Recorded(asking.sites(running, record=campaign.folder), campaign))
    shutil.copytree(campaign.folder, tmp_path / "copy")
    copied = Campaign.resume(tmp_path / "copy")
    again = calibrate(Recorded(asking.sites(running, record=copied.folder, begun=True), copied))
    assert again.answered == 3
    assert {running.ledger(name).nano_spent for name in running.sites} == {10**9}


def test_the_roster_of_a_run_is_that_of_its_beginning(made: Federation) -> None:
    panel = asking.sites(made)
    assert isinstance(panel.exchange.roster, Roster)
    assert panel.members.digest == made.roster.digest
    assert set(panel.members.by_name) == set(made.sites)
