"""How a site is: each sign, well and not, and what the command says to whatever watches."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.data.ledger import Ledger
from privcal.transport import keys
from privcal.transport.roster import Roster
from privcal.transport.site import health, outbox, setup
from privcal.transport.site import settings as site
from privcal.transport.site.health import ROOM, STALE, Sign, ago, last_status, look
from privcal.transport.site.service import STATUS
from privcal.transport.standing import Standing
from privcal.trusted import book as books
from privcal.trusted import marks
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import Gap
from privcal.trusted.question import Question
from tests.support.letters import BOB, Federation, federation, write_rows

NAME = "site-1"
WELL = {"process": os.getpid(), "last_letter": None, "slowest_answer_in_delays": 0.2}


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    return federation(tmp_path, sites=1, rows=20, policy=privcal.Policy(5.0), start=False)


@pytest.fixture
def folder(fed: Federation) -> Path:
    """A site that was set up and runs, as far as one can see from here."""
    says(fed.at(NAME))
    return fed.at(NAME)


def says(folder: Path, **facts: Any) -> None:
    """What the site's process said last."""
    told = {"time": time.time(), **WELL, **facts}
    (folder / STATUS).write_text(json.dumps(told))


def signs(folder: Path) -> dict[str, Sign]:
    return {sign.what: sign for sign in look(folder)}


def sick(folder: Path) -> dict[str, str]:
    """What is not well, and the sentences."""
    return {sign.what: sign.sentence for sign in look(folder) if not sign.well}


def test_a_site_that_runs_is_well(folder: Path) -> None:
    assert list(signs(folder)) == [
        "process", "mailboxes", "roster", "keys", "witness", "data", "ledger", "disk", "timing",
        "clock", "refusals",
    ]  # fmt: skip
    assert sick(folder) == {}
    assert f"runs as process {os.getpid()}; last letter never" in signs(folder)["process"].sentence
    says(folder, last_letter=time.time() - 300)
    assert "last letter 5 minutes ago" in signs(folder)["process"].sentence


def test_what_was_never_set_up_has_no_health(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run privcal site init first"):
        look(tmp_path)


# --- what the process says ----------------------------------------------------------------


def test_a_site_that_says_nothing_is_taken_for_dead(folder: Path) -> None:
    says(folder, time=time.time() - STALE + 30)
    assert sick(folder) == {}
    says(folder, time=time.time() - STALE - 1)
    assert "does not run (privcal site run)" in sick(folder)["process"]
    assert set(sick(folder)) == {"process"}
    (folder / STATUS).unlink()
    assert set(sick(folder)) == {"process"}


def test_a_site_that_was_killed_is_dead_at_once(folder: Path) -> None:
    """Its last word is still fresh."""
    with subprocess.Popen(["true"]) as gone:
        says(folder, process=gone.pid)
        os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
        assert set(sick(folder)) == {"process"}
    assert set(sick(folder)) == {"process"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", '"x"', "{}", '{"time": "now"}', '{"time": null}', "\xff"]
)
def test_a_damaged_status_is_none(folder: Path, text: str) -> None:
    (folder / STATUS).write_text(text, "latin-1")
    assert last_status(folder) == {}
    assert set(sick(folder)) == {"process"}


def test_a_status_from_the_future_is_not_believed_for_ever(folder: Path) -> None:
    """A clock that was set back, after the site had died."""
    says(folder, time=time.time() + 1000 * STALE)
    assert "process" in sick(folder)


def test_a_mailbox_that_nobody_looks_into_any_more_is_said(folder: Path) -> None:
    says(folder, looks={"/srv/a": time.time() - 10, "/srv/b": time.time() - 7200})
    assert sick(folder) == {
        "mailboxes": "last looked into: /srv/b 2 hours ago; see privcal-errors.log"
    }
    says(folder, looks={"/srv/a": time.time() - 10})
    assert "/srv/a 10 seconds ago" in signs(folder)["mailboxes"].sentence


def test_answers_that_take_longer_than_the_delay_are_said(folder: Path) -> None:
    """How long they take could tell how many rows there are."""
    says(folder, slowest_answer_in_delays=0.5)
    assert sick(folder) == {}
    says(folder, slowest_answer_in_delays=2.34)
    assert "an answer took 2.3 delays" in sick(folder)["timing"]
    assert "choose a longer delay" in sick(folder)["timing"]


@pytest.mark.parametrize(
    ("clocks", "told"),
    [
        ({}, None),
        ({"ann": 30.0, "bob": -30.0}, None),
        (
            {"ann": 45.0},
            "the clock of ann is 45 seconds ahead of this site's; compare both with a third one",
        ),
        ({"ann": -86400.4, "bob": 0.0}, None),
        ({"ann": 3.0, "bob": 40.0}, "it is probably bob's that is wrong"),
        ({"ann": 41.0, "bob": 40.0}, "it is probably this site's that is wrong"),
        ({"ann": 41.0, "bob": 40.0, "cat": 0.0}, "41 seconds ahead of this site's; compare both"),
    ],
)
def test_a_clock_that_differs_from_those_of_the_askers_is_said(
    folder: Path, clocks: dict[str, float], told: str | None
) -> None:
    """Which of two is wrong is said only where a third one tells; a letter may be long on its way."""
    says(folder, clocks=clocks)
    assert set(sick(folder)) == ({"clock"} if told else set())
    assert (told or "within 30 seconds") in signs(folder)["clock"].sentence


def test_refusals_are_counted_and_a_site_that_answers_nothing_is_not_well(folder: Path) -> None:
    says(folder, refused={"asker": 1200, "busy": 3}, unheard={"stranger": 7}, failing_since=None)
    assert sick(folder) == {}
    counts = "refused since it started: asker 1,200, busy 3; dropped: stranger 7"
    assert signs(folder)["refusals"].sentence == counts
    says(folder, refused={"unavailable": 2}, failing_since=time.time() - 300)
    assert set(sick(folder)) == {"refusals"}
    assert "every request fails, the first 5 minutes ago" in sick(folder)["refusals"]
    assert "see privcal-errors.log" in sick(folder)["refusals"]


# --- what is in its folder ----------------------------------------------------------------


def test_a_roster_that_soon_ends_or_lacks_the_sites_card_is_said(
    fed: Federation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "roster 1 of 3 parties ends in 364 days" in signs(folder)["roster"].sentence
    Standing(folder).block(BOB)
    assert "blocked here: bob" in signs(folder)["roster"].sentence
    late = fed.roster.until - 20 * 86400.0
    with monkeypatch.context() as later:
        later.setattr(health.time, "time", lambda: late)
        assert "ask for the next one" in sick(folder)["roster"]
    keys.rotate(folder)
    assert set(sick(folder)) == {"roster"}
    assert "another sealing key" in sick(folder)["roster"]
    keys.rotate(folder, signing=True)
    assert "not on the roster any more" in sick(folder)["roster"]
    number = folder / "rosters" / "1.json"
    assert isinstance(Roster.load(number), Roster)
    number.unlink()
    assert "no roster yet" in sick(folder)["roster"]


def test_a_site_that_stopped_says_why(fed: Federation, folder: Path) -> None:
    outbox.Outbox(folder, fed.id(NAME)).stop("it runs twice")
    assert sick(folder) == {"witness": "it runs twice"}


def test_keys_that_are_gone_or_open_are_said(folder: Path) -> None:
    place = folder / "keys" / "privcal.key"
    place.chmod(0o644)
    assert "is open to other accounts" in sick(folder)["keys"]
    assert set(sick(folder)) == {"roster", "keys", "witness"}
    place.chmod(0o600)
    keys.destroy(folder)
    assert set(sick(folder)) == {"roster", "keys", "witness"}
    assert "cannot read the keys" in sick(folder)["keys"]


def test_data_that_are_gone_are_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / f"{NAME}.npz").unlink()
    assert set(sick(folder)) == {"data"}
    assert "site-1.npz is missing or cannot be read" in sick(folder)["data"]


def test_a_ledger_that_was_brought_back_is_said_with_what_to_do(folder: Path) -> None:
    ledger = folder / site.LEDGER
    before = ledger.read_bytes()
    site.Site.load(folder).population(None).source("site-1").answer(Question.of(Gap(), 1.0, "c"))
    assert sick(folder) == {}
    ledger.write_bytes(before)
    assert set(sick(folder)) == {"ledger"}
    assert f"privcal ledger reconcile {ledger}" in sick(folder)["ledger"]


def test_a_ledger_that_is_gone_or_damaged_is_said(folder: Path) -> None:
    ledger = folder / site.LEDGER
    ledger.write_bytes(b"x" * 4096)
    assert "privcal.ledger cannot be used" in sick(folder)["ledger"]
    ledger.unlink()
    assert "privcal.ledger cannot be used (ledger_missing" in sick(folder)["ledger"]


@pytest.mark.parametrize("which", ["ledger", "marks"])
def test_a_ledger_or_marks_that_cannot_be_written_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A file system that was remounted read-only after an error: nothing is answered any more."""
    ledger = Ledger(folder / site.LEDGER)
    path = ledger.path if which == "ledger" else Path(str(ledger.facts.marks))
    real = marks.connect

    def connect(to: Path) -> sqlite3.Connection:
        if to != path:
            return real(to)
        return sqlite3.connect(f"{to.as_uri()}?mode=ro", uri=True, isolation_level=None)

    for module in (marks, books):
        monkeypatch.setattr(module, "connect", connect)
    source = site.Site.load(folder).population(None).source("site-1")
    assert source.offer([Question.of(Gap(), 1.0, "c")]) in ("unavailable", None)
    with pytest.raises(Refused, match="unavailable"):
        source.answer(Question.of(Gap(), 1.0, "c"))
    assert set(sick(folder)) == {"ledger"}
    assert f"{path} cannot be written: attempt to write a readonly" in sick(folder)["ledger"]


def test_looking_whether_a_ledger_can_be_written_changes_nothing(folder: Path) -> None:
    ledger = Ledger(folder / site.LEDGER)
    files = [folder / site.LEDGER, Path(str(ledger.facts.marks))]
    before = [path.read_bytes() for path in files]
    assert signs(folder)["ledger"].well
    assert [path.read_bytes() for path in files] == before
    assert not list(folder.rglob("*-journal"))


def test_marks_that_are_not_there_are_said(folder: Path) -> None:
    marks = Path(str(Ledger(folder / site.LEDGER).facts.marks))
    marks.rename(marks.with_name("elsewhere.db"))
    assert set(sick(folder)) == {"ledger"}


@pytest.mark.parametrize(("free", "well"), [(ROOM, True), (ROOM - 1, False), (0, False)])
def test_a_disk_that_is_full_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, well: bool
) -> None:
    usage = shutil.disk_usage(folder)
    marks = Path(str(Ledger(folder / site.LEDGER).facts.marks))
    for full in (folder, marks.parent):
        monkeypatch.setattr(
            health.shutil,
            "disk_usage",
            lambda path, full=full: usage._replace(free=free if path == full else 2 * ROOM),
        )
        assert signs(folder)["disk"] == Sign("disk", well, f"{free >> 20} MiB free")


def test_of_several_populations_each_has_its_signs(folder: Path, tmp_path: Path) -> None:
    path = folder / site.SETTINGS
    path.write_text(path.read_text() + 'model = "one"\n')
    setup.add(folder, write_rows(tmp_path / "b.npz", 9, seed=1), privcal.Policy(), model="b")
    assert sick(folder) == {}
    (tmp_path / "b.npz").unlink()
    assert set(sick(folder)) == {"data 2"}
    (folder / "privcal-2.ledger").unlink()
    assert set(sick(folder)) == {"data 2", "ledger 2"}


# --- the command --------------------------------------------------------------------------


def test_the_command_is_0_where_all_is_well_and_1_where_it_is_not(
    run: Any, folder: Path, tmp_path: Path
) -> None:
    code, out, _ = run("site", "health", folder)
    assert code == 0
    assert "LOOK" not in out
    code, out, _ = run("site", "health", folder, "--json")
    told = json.loads(out)
    assert (code, told["well"]) == (0, True)
    assert [sign["what"] for sign in told["signs"]] == list(signs(folder))
    (tmp_path / "data" / f"{NAME}.npz").unlink()
    code, out, _ = run("site", "health", folder)
    assert code == 1
    assert out.count("LOOK") == 1
    assert "missing or cannot be read" in out
    code, out, _ = run("site", "health", folder, "--json")
    told = json.loads(out)
    assert (code, told["well"]) == (1, False)
    [wrong] = [sign for sign in told["signs"] if not sign["well"]]
    assert wrong["what"] == "data"
    code, _, err = run("site", "health", tmp_path)
    assert (code, "run privcal site init first" in err) == (2, True)


def test_status_says_whether_the_site_runs(run: Any, folder: Path) -> None:
    says(folder, last_letter=time.time() - 86400 * 3)
    assert "runs, last letter 3 days ago" in run("site", "status", folder)[1]
    assert "refused since it started: nothing; dropped: nothing" in run("site", "status", folder)[1]
    says(folder, refused={"busy": 2})
    assert "refused since it started: busy 2; dropped: nothing" in run("site", "status", folder)[1]
    told = json.loads(run("site", "status", folder, "--json")[1])
    assert (told["running"], told["refused"]) == (True, {"busy": 2})
    (folder / STATUS).unlink()
    assert "does not run just now" in run("site", "status", folder)[1]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-100, "0 seconds ago"),
        (0, "0 seconds ago"),
        (119, "119 seconds ago"),
        (120, "2 minutes ago"),
        (7199, "119 minutes ago"),
        (7200, "2 hours ago"),
        (2 * 86400 - 1, "47 hours ago"),
        (2 * 86400, "2 days ago"),
        (1000 * 86400, "1000 days ago"),
    ],
)
def test_how_long_ago_in_words(monkeypatch: pytest.MonkeyPatch, seconds: float, words: str) -> None:
    monkeypatch.setattr(health.time, "time", lambda: 1e9)
    assert ago(1e9 - seconds) == words
    assert ago(None) == "never"
