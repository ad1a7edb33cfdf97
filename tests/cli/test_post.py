"""`privcal post` carries letters between a server and a site's socket, and tells whether a mailbox is fit."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privcal.transport.mailbox import FolderBox
from tests.conftest import Run

pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")

from tests.support.letters import Federation, nano, question
from tests.support.listening import listening


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A federation of one site that listens at a socket, and its calibrator."""
    with listening(tmp_path, monkeypatch) as found:
        yield found


def asked(found: Federation):
    ann = found.asker()
    request = ann.request("ask", "site-1", question())
    return ann, request, ann.write("site-1", request)


def test_a_letter_in_a_folder_is_answered_through_the_socket(hospital, run: Run) -> None:
    found, path = hospital
    ann, request, letter = asked(found)
    found.box.put(letter.sender, letter.name, letter.content)
    assert run.json("post", found.mailbox, "--socket", path, "--once") == {"replies": 1}
    [reply] = ann.replies("site-1", request, letter)
    assert reply.refused is None
    assert run.json("post", found.mailbox, "--socket", path, "--once")["replies"] <= 1
    assert len(ann.replies("site-1", request, letter)) == 1, "the same bytes again"


def test_a_letter_on_a_server_is_answered_through_the_socket(
    hospital, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec", reason="a mailbox over SFTP needs privcal[mailbox]")
    pytest.importorskip("paramiko", reason="a mailbox over SFTP needs privcal[mailbox]")
    from tests.support.sftp_server import Server

    found, path = hospital
    ann, request, letter = asked(found)
    server, secret = Server(tmp_path / "server"), tmp_path / "credentials.toml"
    secret.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in server.options.items()))
    secret.chmod(0o600)
    try:
        found.box = FolderBox(server.files / "box", found.roster.federation)
        found.box.put(letter.sender, letter.name, letter.content)
        told = ("post", server.url, "--socket", path, "--once", "--credentials", secret)
        assert run.json(*told) == {"replies": 1}
        [reply] = ann.replies("site-1", request, letter)
        assert reply.refused is None
        checked = ("post", server.url, "--check", "--as", found.at("site-1"))
        facts = run.json(*checked, "--credentials", secret)
        assert facts["fit"]
        assert "this party can write there" in facts["found"][-1]
    finally:
        server.end()
    code, out, _ = run(*checked, "--credentials", secret)
    assert code == 1
    assert "it cannot be used" in out


@pytest.mark.slow
def test_it_may_be_killed_at_any_time(hospital, run: Run, tmp_path: Path) -> None:
    """Twelve times, at moments of chance: each question is charged once and answered with the same bytes."""
    pytest.importorskip("fsspec", reason="a mailbox over SFTP needs privcal[mailbox]")
    pytest.importorskip("paramiko", reason="a mailbox over SFTP needs privcal[mailbox]")
    from tests.support.sftp_server import Server

    found, path = hospital
    server, secret = Server(tmp_path / "server"), tmp_path / "credentials.toml"
    secret.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in server.options.items()))
    secret.chmod(0o600)
    found.box = FolderBox(server.files / "box", found.roster.federation)
    told = ("post", server.url, "--socket", path, "--credentials", secret)
    command = [sys.executable, "-m", "privcal", *map(str, told), "--every", "0.1"]
    ann, letters, chance = found.asker(), [], random.Random(7)
    try:
        for k in range(12):
            request = ann.request("ask", "site-1", question(f"c{k}", epsilon=0.1))
            letters.append((request, ann.put("site-1", request)))
            started = subprocess.Popen(command, stdout=-3, stderr=-3)
            time.sleep(chance.uniform(0.5, 2.0))
            started.kill()
            started.wait()
        run.ok(*told, "--once")
        for request, letter in letters:
            [reply] = ann.replies("site-1", request, letter)
            assert reply.refused is None
        assert found.ledger("site-1").nano_spent == nano(1.2)
    finally:
        server.end()


@pytest.mark.parametrize("options", [(), ("--check",), ("--as", "x"), ("--check", "--as", "x", "--socket", "y")])  # fmt: skip
def test_it_carries_or_checks(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    assert "give --socket with the site's socket, or --check with --as" in run.fails(
        "post", tmp_path, *options
    )


def test_a_socket_where_no_site_is_is_told(run: Run, tmp_path: Path) -> None:
    assert "no site answers at" in run.fails("post", tmp_path, "--socket", tmp_path / "none")
