"""What a calibrator believes of a mailbox: nothing but a site's own reply to the very letter it sent."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privcal.secure.keys import SealingKey
from privcal.transport.calibrator.exchange import Exchange, last_heard, take_hints
from privcal.transport.content import Reply
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter, _signed, file_name
from privcal.transport.mailbox import FolderBox
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError
from privcal.trusted.queries import GRID
from tests.support import asking
from tests.support.asking import Hostile, Puppet, an_answer, answering, beside
from tests.support.letters import BOB, Federation, federation, question

REFUSED = Reply(refused="over_budget")
ASKED = {"plan": (question(),), "questions": (question(),)}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Two calibrators, and three sites that do not run."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    return federation(tmp_path / "world", 3, start=False, monkeypatch=monkeypatch)


@pytest.fixture
def site(made: Federation) -> Puppet:
    return Puppet(made, "site-1")


def ask(exchange: Exchange, *names: str) -> dict[str, Any]:
    """What sites say to one question: an answer's numbers, or the code of a problem."""
    replies = exchange.ask("ask", "c", names or ("site-1",), **ASKED)
    return {
        name: reply.answers if isinstance(reply, Reply) else getattr(reply, "code", reply)
        for name, reply in replies
    }


def exchange(made: Federation, wait: float = 20.0, **more: Any) -> Exchange:
    return asking.exchange(made, wait=wait, **more)


ANSWER = ((GRID,),)


# --- replies and refusals, in whatever order ---------------------------------------------------


def test_an_answer_is_taken_and_read_again_without_a_letter(made: Federation, site: Puppet) -> None:
    here = exchange(made)
    with beside(lambda: site.replies(an_answer())):
        assert ask(here) == {"site-1": ANSWER}
    assert ask(here) == {"site-1": ANSWER}
    assert len(site.letters()) == 1


@pytest.mark.parametrize("code", ["over_budget", "awaiting_approval", "busy"])
def test_an_answer_beats_a_refusal_whichever_the_mailbox_shows_first(
    made: Federation, site: Puppet, code: str
) -> None:
    """Attack 4. Both lie there when it looks; names, and so their order, are drawn."""
    for _ in range(6):
        box = Hostile(made.box)
        hidden = site.keys.id
        box.hides = lambda writer, name: writer == hidden  # noqa: B023

        def both() -> None:
            letter = site.awaits()
            for reply in (Reply(refused=code), an_answer(), Reply(refused=code)):
                site.puts(site.says(letter, reply))
            box.hides = lambda writer, name: False  # noqa: B023

        with beside(both):
            assert ask(exchange(made, box=box)) == {"site-1": ANSWER}
        shutil.rmtree(made.mailbox)
        made.mailbox.mkdir()


@pytest.mark.parametrize("code", ["awaiting_approval", "busy", "unavailable"])
def test_a_refusal_that_may_give_way_is_waited_for_until_the_deadline(
    made: Federation, site: Puppet, code: str
) -> None:
    def later() -> None:
        letter = site.awaits()
        site.puts(site.says(letter, Reply(refused=code)))
        time.sleep(0.3)
        site.puts(site.says(letter, an_answer()))

    with beside(later):
        assert ask(exchange(made)) == {"site-1": ANSWER}


def test_at_the_deadline_the_refusal_is_the_reason(made: Federation, site: Puppet) -> None:
    with beside(lambda: site.replies(Reply(refused="awaiting_approval"))):
        assert ask(exchange(made, wait=1.5)) == {"site-1": "awaiting_approval"}


def test_a_refusal_that_stands_is_not_waited_for(made: Federation, site: Puppet) -> None:
    began = time.monotonic()
    with beside(lambda: site.replies(REFUSED)):
        assert ask(exchange(made, wait=60.0)) == {"site-1": "over_budget"}
    assert time.monotonic() - began < 20


def test_a_reply_that_comes_soon_is_read_soon_however_seldom_the_mailbox_is_looked_at(
    made: Federation, site: Puppet
) -> None:
    began = time.monotonic()
    with beside(lambda: site.replies(an_answer())):
        assert ask(exchange(made, wait=60.0, every=30.0)) == {"site-1": ANSWER}
    assert time.monotonic() - began < 20


def test_who_answers_too_late_is_late_and_the_others_are_used(
    made: Federation, site: Puppet
) -> None:
    with beside(lambda: site.replies(an_answer())):
        assert ask(exchange(made, wait=1.5), *made.sites) == {
            "site-1": ANSWER,
            "site-2": "late",
            "site-3": "late",
        }


def test_an_answer_that_came_after_the_deadline_is_there_when_it_is_asked_again(
    made: Federation, site: Puppet
) -> None:
    here = exchange(made, wait=0.3)
    assert ask(here) == {"site-1": "late"}
    [letter] = site.letters()
    site.puts(site.says(letter, an_answer()))
    here.wait = 20.0
    assert ask(here) == {"site-1": ANSWER}
    assert site.letters() == [letter]


def test_an_answer_that_came_while_another_question_was_asked_is_not_lost(
    made: Federation, site: Puppet
) -> None:
    """It was looked at, and could not be opened with that round's key."""
    here = exchange(made, wait=0.3)
    assert ask(here) == {"site-1": "late"}
    [letter] = site.letters()
    site.puts(site.says(letter, an_answer()))
    other = question(round=1)
    assert [code for _, code in here.ask("ask", "c", ["site-1"], plan=(other,), questions=(other,))]
    here.wait = 20.0
    assert ask(here) == {"site-1": ANSWER}


# --- what is no reply of the site to this letter -----------------------------------------------

Forgery = Callable[[Federation, Puppet, Letter], tuple[Letter, str]]


def by_another_site(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    other = Keys.load(made.at("site-2"))
    return site.says(letter, an_answer(9 * GRID), by=other), site.keys.id


def in_its_name_by_another_site(
    made: Federation, site: Puppet, letter: Letter
) -> tuple[Letter, str]:
    """Every site of the round has the key that replies are sealed for: the signature alone tells."""
    other = Keys.load(made.at("site-2"))
    thief: Any = SimpleNamespace(public=site.keys.public, sign=other.sign)
    return site.says(letter, an_answer(9 * GRID), by=thief), site.keys.id


def by_the_other_calibrator(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(9 * GRID), by=Keys.load(made.at(BOB))), site.keys.id


def stripped_and_signed_by_another_site(
    made: Federation, site: Puppet, letter: Letter
) -> tuple[Letter, str]:
    good = site.says(letter, an_answer(9 * GRID))
    thief = Keys.load(made.at("site-2"))
    signature = thief.sign(_signed(thief.id, good.reader, good.sealed))
    return Letter(thief.id, good.reader, good.sealed, signature), thief.id


def for_another_key(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(), key=SealingKey.make().public), site.keys.id


def about_another_letter(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(9 * GRID), about="0" * 64), site.keys.id


def of_another_federation(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(9 * GRID), federation="0" * 32), site.keys.id


def from_another_inside(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(9 * GRID), sender=made.id("site-2")), site.keys.id


def to_another_inside(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return site.says(letter, an_answer(9 * GRID), reader=made.id(BOB)), site.keys.id


def own_letter_back(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    return letter, site.keys.id


def a_request(made: Federation, site: Puppet, letter: Letter) -> tuple[Letter, str]:
    request = site.opened(letter)
    return Letter.write(request.text, site.keys, letter.sender, request.reply_key), site.keys.id


@pytest.mark.parametrize(
    "forge",
    [
        by_another_site,
        in_its_name_by_another_site,
        by_the_other_calibrator,
        stripped_and_signed_by_another_site,
        for_another_key,
        about_another_letter,
        of_another_federation,
        from_another_inside,
        to_another_inside,
        own_letter_back,
        a_request,
    ],
    ids=lambda forge: forge.__name__,
)
def test_what_is_no_reply_to_this_letter_by_this_site_is_not_used(
    made: Federation, site: Puppet, forge: Forgery
) -> None:
    """Attacks 5 and 6, by another site, the other calibrator and the mailbox; the reply then counts."""

    def act() -> None:
        letter = site.awaits()
        forged, folder = forge(made, site, letter)
        site.puts(forged, folder)
        made.box.put(site.keys.id, file_name(letter.sender, forged.content), forged.content)
        time.sleep(0.3)
        site.puts(site.says(letter, an_answer()))

    with beside(act):
        assert ask(exchange(made)) == {"site-1": ANSWER}


def test_the_same_forgeries_alone_leave_the_site_late(made: Federation, site: Puppet) -> None:
    def act() -> None:
        letter = site.awaits()
        for forge in (
            by_another_site,
            in_its_name_by_another_site,
            for_another_key,
            about_another_letter,
            own_letter_back,
        ):
            forged, folder = forge(made, site, letter)
            site.puts(forged, folder)

    with beside(act):
        assert ask(exchange(made, wait=1.5), "site-1", "site-2") == {
            "site-1": "late",
            "site-2": "late",
        }


def test_the_reply_of_one_site_is_not_taken_for_that_of_another(
    made: Federation, site: Puppet
) -> None:
    """A site that answers twice, once in another's folder, is one site."""

    def act() -> None:
        letter = site.awaits()
        reply = site.says(letter, an_answer())
        site.puts(reply)
        site.puts(reply, made.id("site-2"))

    with beside(act):
        assert ask(exchange(made, wait=1.5), "site-1", "site-2") == {
            "site-1": ANSWER,
            "site-2": "late",
        }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "its reply has other parts"),
        ({"refused": "because"}, "it refused with an unknown code"),
        ({"answers": [[1, 2]], "rows_per_person": 1, "ledger": "0" * 32}, "not of the 1 numbers"),
        ({"answers": [[2**62]], "rows_per_person": 1, "ledger": "0" * 32}, "off the grid"),
        ({"answers": [[1]], "rows_per_person": 1, "ledger": "x"}, "has no id"),
        ({"accepted": True}, "other parts"),
    ],
)
def test_a_site_that_says_what_cannot_be_is_told_why(
    made: Federation, site: Puppet, body: dict[str, Any], why: str
) -> None:
    with beside(lambda: site.replies(an_answer(), body=body)):
        [code] = ask(exchange(made)).values()
    assert why in code


def test_two_thousand_files_of_a_site_that_lies_do_not_keep_another_from_being_heard(
    made: Federation, site: Puppet
) -> None:
    """Attack 9: well-formed names for this calibrator, with rubbish, in a good writer's folder."""
    folder = made.mailbox / made.roster.federation / made.id("site-2")
    folder.mkdir(parents=True)
    me = made.id("ann")
    for number in range(2_000):
        (folder / file_name(me, str(number).encode())).write_bytes(b"rubbish")
    with beside(lambda: site.replies(an_answer())):
        said = ask(exchange(made, wait=4.0), "site-1", "site-2")
    assert said == {"site-1": ANSWER, "site-2": "late"}


# --- a mailbox that hides, puts back, fails and hangs -------------------------------------------


def test_a_mailbox_put_back_to_any_earlier_state_costs_answers_at_most(
    made: Federation, site: Puppet, tmp_path: Path
) -> None:
    """Attack 1, from the calibrator's side: the letter is put again, the same, and read once."""
    here = exchange(made, wait=0.3)
    assert ask(here) == {"site-1": "late"}
    [letter] = site.letters()
    for state in ("nothing", "letter", "reply"):
        if state == "reply":
            site.puts(site.says(letter, an_answer()))
        shutil.copytree(made.mailbox, tmp_path / state)
    for state in ("nothing", "letter"):
        shutil.rmtree(made.mailbox)
        shutil.copytree(tmp_path / state, made.mailbox)
        assert ask(here) == {"site-1": "late"}
        assert site.letters() == [letter]
    shutil.rmtree(made.mailbox)
    made.mailbox.mkdir()
    assert ask(here) == {"site-1": "late"}
    assert site.letters() == [letter]
    shutil.rmtree(made.mailbox)
    shutil.copytree(tmp_path / "reply", made.mailbox)
    here.wait = 20.0
    assert ask(here) == {"site-1": ANSWER}
    shutil.rmtree(made.mailbox)
    made.mailbox.mkdir()
    assert ask(here) == {"site-1": ANSWER}, "what was read is known"


@pytest.mark.parametrize("what", ["put", "list", "get"])
def test_what_fails_for_a_while_is_tried_again(made: Federation, site: Puppet, what: str) -> None:
    box, warned = Hostile(made.box), list[str]()
    box.broken = {what}

    def mends() -> None:
        time.sleep(0.3)
        box.broken = set()
        site.replies(an_answer())

    with beside(mends):
        assert ask(exchange(made, box=box, warn=warned.append)) == {"site-1": ANSWER}
    if what != "get":
        assert any("the server is ill" in text for text in warned)
        assert len(warned) == len(set(warned))


@pytest.mark.parametrize("what", ["put", "list", "get"])
def test_a_mailbox_that_hangs_keeps_nobody_beyond_the_deadline(
    made: Federation, site: Puppet, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 11. The next round waits no longer either, and goes on when the mailbox does."""
    monkeypatch.setattr("privcal.transport.calibrator.exchange.SENDING", 0.3)
    box = Hostile(made.box)
    box.frozen = {what}
    here = exchange(made, wait=0.5, box=box)
    made.box.put(site.keys.id, file_name(made.id("ann"), b"x"), b"x")  # there is something to get
    for _ in range(2):
        began = time.monotonic()
        assert ask(here) == {"site-1": "late"}
        assert time.monotonic() - began < 3
    began = time.monotonic()
    here.send("release", "c", ["site-1"])
    here.clean()
    assert time.monotonic() - began < 10
    box.frozen = set()
    box.thaw.set()
    here.wait = 20.0
    with beside(lambda: site.replies(an_answer())):
        assert ask(here) == {"site-1": ANSWER}


def test_a_list_that_never_ends_keeps_nobody_beyond_the_deadline(
    made: Federation, site: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    class Endless(Hostile):
        def list(self, writer: str) -> Iterator[str]:
            while not stop.wait(0.001):
                yield "x"

    began = time.monotonic()
    assert ask(exchange(made, wait=0.5, box=Endless(made.box))) == {"site-1": "late"}
    assert time.monotonic() - began < 3
    stop.set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_mailbox_is_said(made: Federation) -> None:
    warned: list[str] = []
    made.mailbox.chmod(0o500)
    assert ask(exchange(made, wait=0.3, warn=warned.append)) == {"site-1": "late"}
    assert "Permission denied" in warned[0]


# --- rosters, parties and what is noted ---------------------------------------------------------


def test_a_site_with_a_newer_roster_is_a_warning(made: Federation, site: Puppet) -> None:
    """Somebody hides it from this calibrator, or nobody told them."""
    warned: list[str] = []
    stamp = (made.roster.number + 1, made.roster.digest)
    with beside(lambda: site.replies(an_answer(), roster=stamp)):
        assert ask(exchange(made, warn=warned.append)) == {"site-1": ANSWER}
    assert warned == [
        "site-1 goes by roster 2, and yours is roster 1: ask for the new one, compare its digest, and "
        "accept it (privcal roster accept)"
    ]


def test_a_roster_that_removes_is_taken_from_the_mailbox_and_one_that_adds_is_not(
    made: Federation,
) -> None:
    smaller = made.without("site-3")
    made.box.put("", f"roster-{smaller.number}", smaller.text.encode())
    me = Standing(made.at("ann"))
    take_hints(me, made.box)
    assert me.roster.stamp == smaller.stamp
    bigger = smaller.next(made.roster.cards, smaller.issued, smaller.until).signed(made.coordinator)
    made.box.put("", f"roster-{bigger.number}", bigger.text.encode())
    take_hints(me, made.box)
    assert me.roster.stamp == smaller.stamp
    assert Standing(made.at(BOB)).roster.number == 1, "each party takes it for itself"


def test_a_mailbox_that_hangs_keeps_no_one_from_beginning(
    made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privcal.transport.calibrator.exchange.SENDING", 0.2)
    box = Hostile(made.box)
    box.frozen = {"list"}
    began = time.monotonic()
    take_hints(Standing(made.at("ann")), box)
    assert time.monotonic() - began < 3
    box.thaw.set()


def test_only_a_calibrator_of_the_roster_asks(made: Federation, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="site-1, who is no calibrator in roster 1"):
        asking.exchange(made, "site-1")
    (tmp_path / "eve").mkdir(mode=0o700)
    Keys.make(tmp_path / "eve", "eve", "calibrator")
    shutil.copytree(made.at("ann") / "rosters", tmp_path / "eve" / "rosters")
    with pytest.raises(InputError, match="eve, who is no calibrator in roster 1"):
        Exchange(Standing(tmp_path / "eve"), made.box)


def test_when_a_sites_last_letter_came_is_noted(made: Federation, site: Puppet) -> None:
    assert last_heard(made.at("ann")) == {}
    now = int(time.time())
    with beside(lambda: site.replies(REFUSED)):
        ask(exchange(made, wait=5.0), "site-1")
    heard = last_heard(made.at("ann"))
    assert set(heard) == {"site-1"}
    assert now <= heard["site-1"] <= now + 60
    (made.at("ann") / "heard.json").write_text("rubbish")
    assert last_heard(made.at("ann")) == {}


def test_whom_a_round_waits_for_is_told(made: Federation, site: Puppet) -> None:
    told: list[str] = []
    with beside(lambda: site.replies(an_answer())):
        ask(exchange(made, wait=1.0, tell=told.append), "site-1", "site-2")
    assert told == [
        "ask: 0 of 2 sites replied, waiting for site-1, site-2",
        "ask: 1 of 2 sites replied, waiting for site-2",
    ]


def test_a_finished_campaign_sends_nothing(made: Federation, site: Puppet) -> None:
    here = exchange(made, silent=True)
    assert ask(here) == {"site-1": "absent"}
    here.send("release", "c", ["site-1"])
    assert (site.letters(), here.trips) == ([], 0)


def test_a_release_waits_for_nobody(made: Federation, site: Puppet) -> None:
    here = exchange(made, wait=60.0)
    began = time.monotonic()
    here.send("release", "c", made.sites)
    assert time.monotonic() - began < 5
    [letter] = site.letters()
    assert (site.opened(letter).kind, here.trips) == ("release", 0)


def test_a_letter_names_its_site_and_outlives_the_time_it_has(
    made: Federation, site: Puppet
) -> None:
    for wait, lifetime in ((0.1, 600), (1000.0, 2000), (10.0**8, 90 * 24 * 3600)):
        here = exchange(made, wait=wait)
        replies = here.ask("ask", "c", ["site-1"], **ASKED)
        with beside(lambda: site.replies(an_answer())):
            list(replies)
        request = site.opened(site.awaits())
        assert request.until - request.issued == lifetime
        assert (request.reader, request.plan) == (site.keys.id, ASKED["plan"])
        shutil.rmtree(made.mailbox)
        made.mailbox.mkdir()


def test_each_round_has_a_key_of_its_own_and_about_is_asked_anew(
    made: Federation, site: Puppet
) -> None:
    here = exchange(made, wait=0.1)
    ask(here)
    list(here.ask("about", "c", ["site-1"]))
    list(here.ask("about", "c", ["site-1"]))
    keys = {site.opened(letter).reply_key for letter in site.letters()}
    assert len(keys) == len(site.letters()) == 3


def test_two_calibrators_with_one_campaigns_name_get_their_own_replies(
    made: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 12: each pays for its own, and neither can open the other's."""
    made.start()
    with answering(made):
        for name in made.calibrators:
            here = asking.exchange(made, name)
            assert len(ask(here, *made.sites)["site-1"][0]) == 1
    assert made.ledger("site-1").nano_spent == 2 * question().nano_epsilon


def test_a_mailbox_is_of_one_federation(made: Federation, site: Puppet) -> None:
    """Attack 5: what lies in another federation's folder is not looked at."""
    other = FolderBox(made.mailbox, "0" * 32)

    def act() -> None:
        reply = site.says(site.awaits(), an_answer())
        other.put(site.keys.id, reply.name, reply.content)

    with beside(act):
        assert ask(exchange(made, wait=1.0)) == {"site-1": "late"}
