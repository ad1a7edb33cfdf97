"""A calibrator's letters on disk: durable before they leave, the same after a crash, gone at the end."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from privcal.calibration.campaign import LETTERS, Campaign
from privcal.secure.keys import SealingKey
from privcal.transport.calibrator.letterbook import GONE_AFTER, SENT, Letterbook, ended
from privcal.transport.content import Reply
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter
from privcal.trusted.errors import InputError
from tests.support.asking import Hostile, Puppet, an_answer, beside, exchange, sites, written
from tests.support.letters import Federation, federation, next_roster, question


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A calibrator, and two sites that do not run."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "marks.db"))
    return federation(tmp_path / "world", 2, start=False, monkeypatch=monkeypatch)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "m.json.campaign"
    folder.mkdir()
    return folder


def asked(made: Federation, record: Path, box: Any = None, **settings: Any) -> dict[str, Any]:
    """What comes of one question to both sites, by a run of its own, within a moment."""
    settings = {"wait": 0.1, "record": record, "begun": True, **settings}
    return dict(sites(made, box=box or made.box, **settings).ask(made.sites, question()))


def test_letters_and_their_key_are_on_disk_before_any_of_them_leaves(
    made: Federation, record: Path
) -> None:
    box, kept = Hostile(made.box), []

    def before(name: str, content: bytes) -> None:
        [file] = written(record).values()
        secret, _, _, letters = json.loads(file)
        texts = [text for _, text in letters.values()]
        kept.append(content.decode() in texts and len(texts) == 2)
        SealingKey.read(secret)

    box.before_put = before
    asked(made, record, box)
    assert kept == [True, True]


def test_the_same_command_after_a_kill_sends_the_same_bytes(made: Federation, record: Path) -> None:
    """It was killed while the first letter left, with the second still to come."""
    box = Hostile(made.box)
    box.broken = {"put"}
    asked(made, record, box)
    before = written(record)
    assert box.puts == []
    box.broken = set()
    asked(made, record, box)
    first = {name: content for _, name, content in box.puts}
    asked(made, record, box)
    assert {name: content for _, name, content in box.puts[2:]} == first
    assert len(first) == 2
    assert written(record) == before


def test_a_reply_to_a_letter_of_a_run_that_was_killed_is_read_by_the_next(
    made: Federation, record: Path
) -> None:
    asked(made, record)
    site = Puppet(made, "site-1")
    [letter] = site.letters()
    site.puts(site.says(letter, an_answer()))
    answers = asked(made, record, wait=1.0)
    assert answers["site-1"].values.tolist() == [1.0]


def test_what_is_on_disk_is_the_accounts_alone(made: Federation, record: Path) -> None:
    asked(made, record)
    [path] = (record / LETTERS).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_letter_that_ended_is_written_anew_with_another_key(
    made: Federation, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(made, record)
    [before] = written(record).values()
    later = time.time() + 601
    monkeypatch.setattr(time, "time", lambda: later)
    asked(made, record)
    [after] = written(record).values()
    assert json.loads(before)[0] != json.loads(after)[0]
    assert json.loads(after)[2] > later
    assert len(Puppet(made, "site-1").letters()) == 2


def test_by_another_roster_it_is_another_letter(made: Federation, record: Path) -> None:
    """Sites refuse what goes by an older one: the same bytes would be refused for ever."""
    asked(made, record)
    cards = [Keys.load(made.at(name)).card for name in (*made.calibrators, *made.sites)]
    made.accept(next_roster(made.coordinator, made.roster, cards))
    asked(made, record)
    site = Puppet(made, "site-1")
    assert {site.opened(letter).roster[0] for letter in site.letters()} == {1, 2}
    assert len(written(record)) == 2


def test_a_letter_that_was_refused_is_written_anew_when_it_is_asked_again(
    made: Federation, record: Path
) -> None:
    """An owner who changed a policy need not wait until the site looks at the old letter again."""
    site = Puppet(made, "site-1")
    with beside(lambda: site.replies(Reply(refused="over_budget"))):
        got = dict(sites(made, wait=5.0, record=record, begun=True).ask(["site-1"], question()))
    assert got["site-1"].code == "over_budget"
    assert asked(made, record)["site-1"].code == "late"
    assert len(site.letters()) == 2


def test_when_the_campaign_is_finished_no_reply_of_it_can_be_opened(
    made: Federation, tmp_path: Path
) -> None:
    """Nobody who gets the record afterwards reads an answer that the mailbox still has."""
    campaign = Campaign.start(tmp_path / "record", {"campaign": "c"})
    asked(made, campaign.folder)
    secret = json.loads(next(iter(written(campaign.folder).values())))[0]
    campaign.finish()
    left = b"".join(p.read_bytes() for p in campaign.folder.rglob("*") if p.is_file())
    assert secret.encode() not in left
    assert not (campaign.folder / LETTERS).exists()
    resumed = Campaign.resume(campaign.folder)
    resumed.finish()  # also where it was killed between the two
    asked(made, campaign.folder, silent=True)
    assert written(campaign.folder) == {}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["x", 1, 2, {}]', '["x", 1, 2, {"a": 1}]'])
def test_damaged_letters_are_one_sentence_without_the_key(
    made: Federation, record: Path, text: str
) -> None:
    asked(made, record)
    [path] = (record / LETTERS).iterdir()
    path.write_text(text)
    with pytest.raises(InputError) as told:
        asked(made, record)
    assert str(path) in str(told.value)


def test_own_letters_go_from_the_mailbox_a_week_after_they_ended_and_no_others(
    made: Federation, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(made, record)
    [theirs] = Puppet(made, "site-1").letters()
    reply = Puppet(made, "site-1").says(theirs, an_answer())
    Puppet(made, "site-1").puts(reply)
    me, now = made.at("ann"), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 600 + GONE_AFTER - 10)
    assert list(ended(me)) == []
    monkeypatch.setattr(time, "time", lambda: now + 600 + GONE_AFTER + 10)
    assert len(list(ended(me))) == 2
    exchange(made).clean()
    end = time.monotonic() + 10
    while list((me / SENT).iterdir()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert list(made.box.list(made.id("ann"))) == []
    assert list(made.box.list(made.id("site-1"))) == [reply.name]


def test_in_memory_a_round_is_the_same_as_long_as_the_process_lasts() -> None:
    book = Letterbook()
    first = book.round("ask", 600)
    assert not first.again
    second = book.round("ask", 600)
    assert second.again
    assert second.key is first.key
    assert book.round("open", 600).key is not first.key


def test_a_letter_with_another_text_is_another_letter(made: Federation) -> None:
    keys = Keys.load(made.at("ann"))
    card = Keys.load(made.at("site-1")).card

    def write(text: str) -> Any:
        return lambda: Letter.write(text, keys, card.id, card.sealing)

    round = Letterbook().round("ask", 600)
    first = round.letter("site-1", "a", write("a"))
    assert round.letter("site-1", "a", write("a")) is first
    assert round.letter("site-1", "b", write("b")) is not first
