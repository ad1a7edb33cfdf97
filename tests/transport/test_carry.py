"""The loop between a mailbox and a site: what it brings, what it leaves, and what never ends it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from privcal.transport import carry as carrying
from privcal.transport.carry import Carrier, carry
from privcal.transport.letter import digest, file_name
from privcal.transport.mailbox import FolderBox, pause
from privcal.transport.standing import Standing
from tests.support.letters import ANN, BOB, Federation, federation, nano, question

FEDERATION, SITE, WRITER = "f" * 32, "a" * 32, "b" * 32


class Site:
    """A site that replies to whatever it is brought."""

    id = SITE

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.gone: list[str] = []

    def writers(self) -> list[str]:
        return [WRITER, SITE]

    def expired(self) -> list[str]:
        return self.gone

    def take(self, content: bytes) -> bytes | None:
        self.taken.append(content)
        return b"to " + content if content.startswith(b"letter") else None


class Failing(FolderBox):
    """A mailbox in which an operation fails."""

    broken: str | None = None

    def _fail(self, what: str) -> None:
        if what == self.broken:
            raise OSError(5, "Input/output error")

    def list(self, writer: str) -> Iterator[str]:
        self._fail("list")
        return super().list(writer)

    def get(self, writer: str, name: str) -> bytes | None:
        self._fail("get")
        return super().get(writer, name)

    def put(self, writer: str, name: str, content: bytes) -> None:
        self._fail("put")
        super().put(writer, name, content)


@pytest.fixture
def box(tmp_path: Path) -> Failing:
    return Failing(tmp_path, FEDERATION)


def leave(box: FolderBox, content: bytes, writer: str = WRITER, reader: str = SITE) -> str:
    name = file_name(reader, content)
    box.put(writer, name, content)
    return name


def names(box: FolderBox, writer: str = SITE) -> set[str]:
    return set(box.list(writer))


def look(carrier: Carrier) -> None:
    carrier.look()
    carrier.wait()


def test_a_letter_is_brought_once_and_its_reply_is_put(box: Failing) -> None:
    site = Site()
    carrier = Carrier(box, site)
    leave(box, b"letter 1")
    leave(box, b"letter to another", reader="c" * 32)
    look(carrier)
    look(carrier)
    assert site.taken == [b"letter 1"]
    assert names(box) == {file_name(WRITER, b"to letter 1")}
    assert carrier.replied == 1


def test_a_letter_is_brought_again_after_a_while_and_silence_is_not(box: Failing) -> None:
    site, now = Site(), [0.0]
    carrier = Carrier(box, site, clock=lambda: now[0])
    leave(box, b"letter 1")
    leave(box, b"nothing to say to")
    for seconds, times in ((0, 1), (599, 1), (601, 2), (700, 2), (1300, 3)):
        now[0] = seconds
        look(carrier)
        assert site.taken.count(b"letter 1") == times
    assert site.taken.count(b"nothing to say to") == 1
    assert carrier.replied == 1, "the same bytes are the same file"


def test_letters_that_are_replied_to_bring_looks_closer_together_and_strange_files_do_not(
    box: Failing,
) -> None:
    site, now = Site(), [0.0]
    carrier = Carrier(box, site, clock=lambda: now[0])
    leave(box, b"nothing to say to")
    look(carrier)
    assert pause(2.0, carrier.quiet) == 2.0
    hold = threading.Event()
    site.take = lambda content: b"to it" if hold.wait(30) else None  # type: ignore[method-assign]
    leave(box, b"letter 1")
    carrier.look()
    assert pause(2.0, carrier.quiet) == 0.2, "a reply is under way"
    hold.set()
    carrier.wait()
    for now[0], seconds in ((1.0, 0.2), (5.0, 0.5), (20.0, 2.0), (700.0, 2.0)):
        assert pause(2.0, carrier.quiet) == seconds


def test_the_sites_own_files_are_shown_to_it_once_except_those_that_it_just_put(
    box: Failing,
) -> None:
    site = Site()
    carrier = Carrier(box, site)
    leave(box, b"an old reply", SITE, WRITER)
    leave(box, b"letter 1")
    for _ in range(3):
        look(carrier)
    assert sorted(site.taken) == [b"an old reply", b"letter 1"]


def test_own_files_that_had_their_time_are_deleted_and_nobody_elses(box: Failing) -> None:
    site = Site()
    old, new = leave(box, b"old", SITE, WRITER), leave(box, b"new", SITE, WRITER)
    theirs = leave(box, b"letter 1")
    site.gone = [old, theirs, "../../x"]
    look(Carrier(box, site))
    assert new in names(box)
    assert old not in names(box)
    assert theirs in names(box, WRITER)


def test_rosters_are_shown_in_their_order(box: Failing, tmp_path: Path) -> None:
    site = Site()
    for number in (10, 9, 2):
        box.put("", f"roster-{number}", b"roster %d" % number)
    carrier = Carrier(box, site)
    look(carrier)
    look(carrier)
    assert site.taken == [b"roster 2", b"roster 9", b"roster 10"]


@pytest.mark.parametrize("operation", ["list", "get", "put"])
def test_a_mailbox_that_fails_is_told_once_and_used_again_when_it_works(
    box: Failing, operation: str
) -> None:
    site, told, stopped = Site(), list[str](), threading.Event()
    leave(box, b"letter 1")
    box.broken = operation
    thread = threading.Thread(
        target=carry,
        args=(box, site),
        kwargs={"every": 0.02, "stopped": stopped, "tell": told.append},
    )
    thread.start()
    time.sleep(0.3)
    assert names_on_disk(box) == set()
    assert any("Input/output error" in line for line in told)
    if operation == "list":
        assert len(told) == 1
    box.broken = None
    end = time.monotonic() + 10
    while not names_on_disk(box) and time.monotonic() < end:
        time.sleep(0.02)
    stopped.set()
    thread.join(10)
    assert not thread.is_alive()
    assert names_on_disk(box) == {file_name(WRITER, b"to letter 1")}
    assert site.taken.count(b"letter 1") == 1, "it is not asked anew for what could not be put"


def names_on_disk(box: FolderBox) -> set[str]:
    folder = box._root / SITE
    return {name for name in os.listdir(folder) if name[0] != "."} if folder.is_dir() else set()


def test_a_site_that_cannot_be_reached_gets_its_letter_later(box: Failing) -> None:
    site, told = Site(), list[str]()
    real = site.take

    def gone(content: bytes) -> bytes | None:
        raise ConnectionRefusedError("no one listens")

    site.take = gone  # type: ignore[method-assign]
    carrier = Carrier(box, site, told.append)
    leave(box, b"letter 1")
    look(carrier)
    assert "a letter was not delivered" in told[0]
    site.take = real  # type: ignore[method-assign]
    look(carrier)
    assert names(box) == {file_name(WRITER, b"to letter 1")}


def test_at_most_eight_letters_are_with_the_site_at_once(box: Failing) -> None:
    site, go, most, here, lock = Site(), threading.Event(), [0], [0], threading.Lock()

    def slow(content: bytes) -> bytes | None:
        with lock:
            here[0] += 1
            most[0] = max(most[0], here[0])
        go.wait(10)
        with lock:
            here[0] -= 1
        return None

    site.take = slow  # type: ignore[method-assign]
    for n in range(20):
        leave(box, b"letter %d" % n)
    carrier = Carrier(box, site)
    thread = threading.Thread(target=look, args=(carrier,))
    thread.start()
    time.sleep(0.3)
    assert here[0] == carrying.AT_ONCE
    go.set()
    thread.join(10)
    assert most[0] == carrying.AT_ONCE


def test_it_stops_when_it_is_told_to_also_while_letters_are_with_the_site(box: Failing) -> None:
    site, go, stopped = Site(), threading.Event(), threading.Event()

    def slow(content: bytes) -> None:
        go.wait(20)

    site.take = slow  # type: ignore[method-assign]
    for n in range(20):
        leave(box, b"letter %d" % n)
    thread = threading.Thread(target=carry, args=(box, site), kwargs={"stopped": stopped})
    thread.start()
    time.sleep(0.2)
    stopped.set()
    thread.join(5)
    assert not thread.is_alive()
    go.set()


# --- with a real site -----------------------------------------------------------------------


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path, sites=2, monkeypatch=monkeypatch)


def test_a_letter_to_one_site_is_not_answered_by_another(fed: Federation) -> None:
    ann = fed.asker()
    request = ann.request("ask", "site-1", question())
    letter = ann.put("site-1", request)
    for name in (f"{fed.id('site-2')}-{digest(letter.content)}",):
        fed.box.put(letter.sender, name, letter.content)
    fed.round()
    assert len(ann.replies("site-1", request, letter)) == 1
    assert fed.ledger("site-2").nano_spent == 0
    assert fed.site("site-2").unheard == {"addressee": 1}


def test_a_removal_reaches_sites_by_the_mailbox_alone(fed: Federation) -> None:
    bob = fed.asker(BOB)
    without = fed.without(BOB)
    fed.box.put("", "roster-2", without.text.encode())
    fed.round()
    assert [Standing(fed.at(name)).roster.number for name in fed.sites] == [2, 2]
    letter = bob.put("site-1", bob.request("ask", "site-1", question()))
    fed.round()
    assert fed.ledger("site-1").nano_spent == 0
    assert letter.sender not in fed.site("site-1").writers()


def test_what_lies_in_a_mailbox_keeps_no_letter_waiting(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage under good names from another calibrator's folder; hers is answered at the first look."""
    ann, bob = fed.asker(), fed.asker(BOB)
    his = fed.mailbox / fed.roster.federation / bob.keys.id
    his.mkdir(parents=True, exist_ok=True)
    for n in range(3000):
        (his / f"{fed.id('site-1')}-{n:064x}").write_bytes(b"x" * 100)
    (his / ".." / "odd\nname").write_bytes(b"x")
    request = ann.request("ask", "site-1", question())
    letter = ann.put("site-1", request)
    began = time.monotonic()
    fed.round("site-1")
    assert len(ann.replies("site-1", request, letter)) == 1
    assert time.monotonic() - began < 10
    assert fed.ledger("site-1").nano_spent == nano(0.5)


def test_a_reply_that_was_lost_comes_again_with_the_same_bytes(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = fed.asker(ANN)
    letter = ann.put("site-1", ann.request("ask", "site-1", question()))
    fed.round("site-1")
    [name] = fed.box.list(fed.id("site-1"))
    content = fed.box.get(fed.id("site-1"), name)
    fed.box.delete(fed.id("site-1"), name)
    monkeypatch.setattr(carrying, "AGAIN", 0.0)
    fed.round("site-1")
    fed.round("site-1")
    assert [fed.box.get(letter.reader, one) for one in fed.box.list(letter.reader)] == [content]


def test_any_order_of_looks_and_restarts_charges_once(fed: Federation) -> None:
    ann = fed.asker()
    request = ann.request("ask", "site-1", question())
    letter = ann.put("site-1", request)
    for _ in range(3):
        fed.round()
        fed.stop()
        fed.start()
    assert fed.ledger("site-1").nano_spent == nano(0.5)
    assert len(ann.replies("site-1", request, letter)) == 1
