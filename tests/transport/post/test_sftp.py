"""SFTP goes to a server whose key is known, whatever packages are installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privcal.transport.post.remote import RemoteBox
from tests.transport.post.conftest import FEDERATION, OWN


def opened(server, **options) -> RemoteBox:
    return RemoteBox(server.url, FEDERATION, {**server.options, **options})


def test_a_server_whose_key_is_known_is_used(sftp: Callable) -> None:
    assert list(opened(sftp()).list(OWN)) == []


def test_a_server_whose_key_is_in_no_file_is_refused_with_its_fingerprint(
    sftp: Callable, tmp_path: Path
) -> None:
    server, empty = sftp(), tmp_path / "empty"
    empty.write_text("")
    for known in (empty, tmp_path / "missing"):
        with pytest.raises(OSError, match=r"has no key in .*compare it with SHA256:"):
            opened(server, known_hosts=str(known)).list(OWN)


def test_a_server_with_another_key_than_the_known_one_is_refused(
    sftp: Callable, tmp_path: Path
) -> None:
    server, other, known = sftp(), sftp(), tmp_path / "known"
    key = other.known_hosts.read_text().partition(" ")[2]
    known.write_text(f"[127.0.0.1]:{server.port} {key}")
    with pytest.raises(OSError, match="does not match"):
        opened(server, known_hosts=str(known)).list(OWN)


def test_the_known_hosts_of_the_account_count_by_default(
    sftp: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sftp()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    del server.options["known_hosts"]
    with pytest.raises(OSError, match="has no key in"):
        opened(server).list(OWN)
    server.known_hosts.rename(tmp_path / "home" / ".ssh" / "known_hosts")
    assert list(opened(server).list(OWN)) == []


def test_a_wrong_password_is_an_error_that_does_not_repeat_it(sftp: Callable) -> None:
    with pytest.raises(OSError, match="Authentication failed") as problem:
        opened(sftp(), password="another word").list(OWN)
    assert "another word" not in str(problem.value)


def test_an_installed_package_does_not_take_the_protocol_over(
    sftp: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sshfs does, which knows other options, and trusts other hosts."""
    facts = tmp_path / "usurper-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: usurper\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[fsspec.specs]\nsftp = usurper:Files\n")
    (tmp_path / "usurper.py").write_text("raise SystemExit('the usurper was imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert list(opened(sftp()).list(OWN)) == []
