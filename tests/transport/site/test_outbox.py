"""What a site replied: the same bytes again, names for ever, and a witness of rollbacks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from privcal.transport.site.outbox import KEPT, OUTBOX, Outbox, Stored, stopped

ID = "a" * 32


@pytest.fixture
def box(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path, ID)


def store(box: Outbox, code: str | None, reply: bytes, now: float = 0.0, until: int = 100) -> bytes:
    return box.store("letter", code, until, now, f"name-{reply.decode()}", reply)


def test_an_answer_stays_and_a_refusal_gives_way_to_another_reply(box: Outbox) -> None:
    assert store(box, "busy", b"1") == b"1"
    assert store(box, "busy", b"2", now=5.0) == b"1", "the same code is the same bytes"
    assert box.find("letter") == Stored("busy", 5.0, b"1")
    assert store(box, "over_budget", b"3") == b"3"
    assert store(box, None, b"4") == b"4"
    assert store(box, None, b"5") == b"4"
    assert store(box, "busy", b"6") == b"4", "also where two looked at it at once"
    assert [box.sent(f"name-{n}") for n in range(1, 7)] == [True, False, True, True, False, False]
    assert box.find("another") is None


def test_it_is_on_disk_when_it_leaves_and_nobody_else_reads_it(box: Outbox, tmp_path: Path) -> None:
    store(box, None, b"1")
    other = Outbox(tmp_path, ID)
    assert other.find("letter") == Stored(None, 0.0, b"1")
    assert stat.S_IMODE((tmp_path / OUTBOX).stat().st_mode) == 0o600
    [mode] = box._db.execute("PRAGMA synchronous").fetchone()
    assert mode >= 2, "FULL"


def test_bytes_go_a_week_after_the_letters_end_and_names_stay(box: Outbox) -> None:
    store(box, None, b"1", until=100)
    assert box.expired(100 + KEPT) == []
    assert box.expired(101 + KEPT) == ["name-1"]
    box.store("later", None, 10**7, 101 + KEPT, "name-2", b"2")
    assert box.find("letter") == Stored(None, 0.0, None)
    assert box.sent("name-1")


def test_a_plan_is_pinned_by_asker_and_campaign(box: Outbox) -> None:
    assert box.pin("ann", "c", "x") is True
    assert box.pin("ann", "c", "x") is False
    assert box.pin("ann", "c", "y") is None
    assert box.pin("bob", "c", "y") is True
    box.unpin("ann", "c")
    assert box.pin("ann", "c", "y") is True


def test_fewer_entries_than_ever_are_noticed_by_ledger_and_by_keys(
    box: Outbox, tmp_path: Path
) -> None:
    assert [box.fewer("one", n) for n in (3, 3, 5, 4, 5)] == [False, False, False, True, False]
    assert not box.fewer("two", 1)
    assert not Outbox(tmp_path, "b" * 32).fewer("one", 1), "new keys begin anew"


def test_a_site_stops_for_good_with_these_keys(box: Outbox, tmp_path: Path) -> None:
    assert (box.stopped, stopped(tmp_path, ID)) == ("", "")
    box.stop("it was put back")
    box.stop("twice")
    assert stopped(tmp_path, ID) == "it was put back"
    assert stopped(tmp_path, "b" * 32) == ""
    assert stopped(tmp_path / "elsewhere", ID) == ""
