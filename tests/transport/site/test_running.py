"""A site's life as a process: where letters come from, what stops it, and what is said of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privcal.transport.keys import Keys
from privcal.transport.site import outbox, running
from privcal.transport.site.service import STATUS, only_one
from privcal.transport.site.settings import SETTINGS
from privcal.transport.wire import Caller
from tests.support.letters import ANN, Federation, federation, nano, question

NAME = "site-1"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path, sites=1, start=False, monkeypatch=monkeypatch)


def until(met: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not met() and time.monotonic() < end:
        time.sleep(0.02)
    return met()


def test_once_answers_what_is_there_in_every_folder_and_ends(run: Any, fed: Federation) -> None:
    ann, second = fed.asker(ANN), fed.folder / "second"
    second.mkdir()
    request = ann.request("ask", NAME, question())
    letter = ann.put(NAME, request)
    options = ["--folder", fed.mailbox, "--folder", second, "--once", "--log-json"]
    code, out, _ = run("site", "run", fed.at(NAME), *options)
    assert code == 0
    [line] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    told = {name: line[name] for name in ("letter", "from", "kind", "campaign", "refused")}
    assert told == {
        "letter": letter.digest,
        "from": ANN,
        "kind": "ask",
        "campaign": "c",
        "refused": None,
    }
    assert len(ann.replies(NAME, request, letter)) == 1
    assert not (fed.at(NAME) / STATUS).exists()


def test_a_site_that_stopped_is_1_and_says_what_to_do(run: Any, fed: Federation) -> None:
    outbox.Outbox(fed.at(NAME), fed.id(NAME)).stop("it runs twice")
    code, _, err = run("site", "run", fed.at(NAME), "--folder", fed.mailbox, "--once")
    assert code == 1
    assert "answers nothing more with these keys: it runs twice" in err
    assert "rotate" in err


def test_what_is_missing_is_one_sentence(run: Any, fed: Federation, tmp_path: Path) -> None:
    at = fed.at(NAME)
    for options, said in (
        ([], "say with --folder or --socket"),
        (["--folder", tmp_path / "none", "--once"], "there is no folder"),
        (["--socket", tmp_path / "s", "--once"], "leave --socket out"),
        (["--socket", tmp_path / "no" / "s"], "cannot listen at"),
    ):
        code, _, err = run("site", "run", at, *options)
        assert (code, said in err) == (2, True), err
    with only_one(at):
        code, _, err = run("site", "run", at, "--folder", fed.mailbox, "--once")
        assert (code, "runs already" in err) == (2, True)
    (at / "rosters" / "1.json").unlink()
    code, _, err = run("site", "run", at, "--folder", fed.mailbox, "--once")
    assert (code, "no roster yet" in err) == (2, True)
    (at / SETTINGS).unlink()
    code, _, err = run("site", "run", at, "--folder", fed.mailbox, "--once")
    assert (code, "run privcal site init first" in err) == (2, True)


def test_systemd_is_told_where_it_asked_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.notify("READY=1")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "notify")
        running.notify("READY=1")
        assert systemd.recv(100) == b"READY=1"
    running.notify("WATCHDOG=1")


def test_new_signing_keys_end_a_process_that_has_the_old_ones(fed: Federation) -> None:
    Keys.load(fed.at(NAME))
    thread = threading.Thread(target=fed.rekeyed, args=(NAME,), kwargs={"signing": True})
    threading.Timer(0.5, thread.start).start()
    began = time.monotonic()
    running.run(fed.at(NAME), [fed.mailbox], every=0.05, tell=lambda text: None)
    assert 0.4 < time.monotonic() - began < 20


def test_a_site_as_a_process_answers_from_folder_and_socket_until_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    """Two processes of its own: the one with letters has no data open, the one with data no socket."""
    fed = federation(tmp_path, sites=1, start=False)
    ann, path = fed.asker(), Path(f"/tmp/privcal-{os.getpid()}.sock")
    argv = [sys.executable, "-P", "-m", "privcal", "site", "run", str(fed.at(NAME))]
    argv += ["--folder", str(fed.mailbox), "--socket", str(path), "--every", "0.1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        request = ann.request("ask", NAME, question("folder"))
        letter = ann.put(NAME, request)
        assert until(lambda: bool(ann.replies(NAME, request, letter)))
        assert until(path.exists)
        over = ann.request("ask", NAME, question("socket"))
        sent = ann.write(NAME, over)
        reply = Caller(path).take(sent.content)
        assert reply is not None
        assert ann.open(reply, over, sent).answers
        assert until((fed.at(NAME) / STATUS).exists)
        assert fed.ledger(NAME).nano_spent == 2 * nano(0.5)
        assert (fed.at(NAME) / outbox.OUTBOX).stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "looks into" in out
        assert "listens at" in out
        assert not path.exists()
        assert not (fed.at(NAME) / STATUS).exists()
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)
