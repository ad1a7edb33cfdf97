"""A mailbox is fit if a party can put, list, get and delete there; that it can write elsewhere is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from privcal.transport.mailbox import FolderBox
from privcal.transport.post.check import attempts
from privcal.transport.post.remote import RemoteBox
from tests.transport.post.conftest import FEDERATION, OTHER, OWN


def test_a_folder_is_fit_and_what_it_lets_everybody_do_is_told(tmp_path: Path) -> None:
    found = list(attempts(FolderBox(tmp_path, FEDERATION), OWN, OTHER))
    assert not [finding for finding in found if finding.failed]
    assert [f.text.partition(":")[0] for f in found] == ["put", "list", "get", "delete", "another's folder"]  # fmt: skip
    assert "this party can write there" in found[-1].text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing stays"


def test_a_server_with_a_folder_for_each_party_is_fit(sftp: Callable) -> None:
    server = sftp("own")
    for writer in (OWN, OTHER):
        (server.files / "box" / FEDERATION / writer).mkdir(parents=True)
    box = RemoteBox(server.url, FEDERATION, server.options)
    found = list(attempts(box, OWN, OTHER))
    box.close()
    assert not [finding for finding in found if finding.failed]
    assert found[-1].text == "another's folder: nothing can be written there"


@pytest.mark.parametrize("way", ["read-only", "full"])
def test_a_server_that_takes_nothing_is_unfit(sftp: Callable, way: str) -> None:
    server = sftp(way)
    (server.files / "box" / FEDERATION / OWN).mkdir(parents=True)
    box = RemoteBox(server.url, FEDERATION, server.options)
    [finding] = attempts(box, OWN, OTHER)
    box.close()
    assert finding.failed
    assert "it cannot be used: sftp://" in finding.text


class Stale(FolderBox):
    """A mailbox with a listing of before."""

    def list(self, writer: str):
        return iter(())


class Keeps(FolderBox):
    def delete(self, writer: str, name: str) -> None: ...


class Changes(FolderBox):
    def get(self, writer: str, name: str) -> bytes | None:
        return (super().get(writer, name) or b"")[:-1]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Stale, "list: the file is not listed"),
        (Keeps, "delete: the file is still there"),
        (Changes, "get: the file does not come back as it was put"),
    ],
)
def test_a_mailbox_that_does_something_else_is_unfit(tmp_path: Path, kind, text: str) -> None:
    failed = [f.text for f in attempts(kind(tmp_path, FEDERATION), OWN, OTHER) if f.failed]
    assert failed == [text]
