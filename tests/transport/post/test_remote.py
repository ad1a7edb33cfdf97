"""A mailbox on a server loses letters at most: whatever the server does, no operation hangs or leads elsewhere."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from privcal.transport.letter import MAX_LETTER, file_name
from privcal.transport.post import remote
from privcal.transport.post.remote import RemoteBox
from tests.support.builders import python
from tests.transport.post.conftest import FEDERATION, OTHER, OWN

CONTENT = b"a letter" * 5_000
NAME = file_name(OTHER, CONTENT)


@pytest.fixture
def opened() -> Iterator[Callable]:
    """Opens the mailbox on a server, and ends its process afterwards."""
    boxes: list[RemoteBox] = []

    def open_one(server, **options) -> RemoteBox:
        boxes.append(RemoteBox(server.url, FEDERATION, {**server.options, **options}))
        return boxes[-1]

    yield open_one
    for box in boxes:
        box.close()


@pytest.fixture(params=["sftp", "s3"])
def server(request: pytest.FixtureRequest):
    found = request.getfixturevalue(request.param)
    return found() if request.param == "sftp" else found


def laid(server, name: str, content: bytes, writer: str = OWN) -> Path:
    """A file that lies in the folder that an SFTP server serves."""
    path = server.files / "box" / FEDERATION / writer / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_file_is_put_listed_got_and_deleted(server, opened: Callable) -> None:
    box = opened(server)
    assert list(box.list(OWN)) == []
    assert box.get(OWN, NAME) is None
    for _ in range(2):  # a second time too
        box.put(OWN, NAME, CONTENT)
        assert list(box.list(OWN)) == [NAME]
        assert box.get(OWN, NAME) == CONTENT
    opened(server).put(OWN, file_name(OTHER, b"2"), b"2")
    assert len(list(box.list(OWN))) == 2, "what another process put is listed at once"
    for _ in range(2):
        box.delete(OWN, NAME)
        assert box.get(OWN, NAME) is None
    assert list(box.list(OWN)) == [file_name(OTHER, b"2")]


def test_rosters_lie_beside_the_writers_folders(server, opened: Callable) -> None:
    box = opened(server)
    box.put("", "roster-3", b"{}")
    box.put(OWN, NAME, CONTENT)
    assert list(box.list("")) == ["roster-3"]
    assert box.get("", "roster-3") == b"{}"


def test_no_more_is_read_of_a_file_than_a_letter_may_have(server, opened: Callable) -> None:
    box = opened(server)
    box.put(OWN, NAME, b"x" * (3 * MAX_LETTER))
    assert len(box.get(OWN, NAME)) == MAX_LETTER + 1


@pytest.mark.parametrize("do", ["list", "get", "put", "delete"])
def test_a_frozen_server_ends_in_an_error_in_time(
    server, opened: Callable, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = opened(server)
    box.put(OWN, NAME, CONTENT)
    monkeypatch.setattr(remote, "SECONDS", 1.0)
    monkeypatch.setattr(remote, "LIST_SECONDS", 1.0)
    more = {"list": (), "get": (NAME,), "put": (NAME, CONTENT), "delete": (NAME,)}[do]
    server.freeze()
    began = time.monotonic()
    with pytest.raises(OSError, match="did not answer within 1 seconds"):
        getattr(box, do)(OWN, *more)
    with pytest.raises(OSError, match="is tried again in 5 seconds"):
        box.list(OTHER)
    assert time.monotonic() - began < 4
    server.process.send_signal(signal.SIGCONT)
    monkeypatch.setattr(box, "_rest", 0.0)
    monkeypatch.setattr(remote, "SECONDS", 20.0)
    box.put(OWN, NAME, CONTENT)
    assert box.get(OWN, NAME) == CONTENT


def test_a_server_that_was_killed_is_an_error_of_one_sentence(server, opened: Callable) -> None:
    box = opened(server)
    box.put(OWN, NAME, CONTENT)
    server.end()
    for _ in range(2):
        with pytest.raises(OSError, match=r"^s\w+://") as problem:
            list(box.list(OWN))
        assert len(str(problem.value).splitlines()) == 1


def test_a_process_that_was_killed_is_started_again(sftp: Callable, opened: Callable) -> None:
    box = opened(sftp())
    box.put(OWN, NAME, CONTENT)
    box._child.kill()
    with pytest.raises(OSError, match=r"process that talks to .* ended"):
        box.get(OWN, NAME)
    assert box.get(OWN, NAME) == CONTENT


def test_the_process_ends_with_its_parent(sftp: Callable) -> None:
    server = sftp()
    told = python(
        "import sys, json; from privcal.transport.post.remote import RemoteBox\n"
        f"box = RemoteBox(sys.argv[1], {FEDERATION!r}, json.loads(sys.argv[2]))\n"
        f"list(box.list({OWN!r})); print(box._child.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        server.url,
        json.dumps(server.options),
    )
    pid = int(told.stdout)
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


def test_a_server_of_one_byte_a_second_ends_in_an_error(
    sftp: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sftp("slow")
    laid(server, NAME, CONTENT)
    box = opened(server)
    assert list(box.list(OWN)) == [NAME]
    monkeypatch.setattr(remote, "SECONDS", 3.0)
    with pytest.raises(OSError, match="did not answer within 3 seconds"):
        box.get(OWN, NAME)


@pytest.mark.parametrize("way", ["full", "read-only"])
def test_a_server_that_takes_nothing_is_an_error(
    sftp: Callable, opened: Callable, way: str
) -> None:
    server = sftp(way)
    laid(server, NAME, CONTENT)
    box = opened(server)
    other = file_name(OTHER, b"other")
    with pytest.raises(OSError, match="sftp://"):
        box.put(OWN, other, b"other")
    assert box.get(OWN, NAME) == CONTENT, "and what is there is read all the same"
    assert box.get(OWN, other) in (None, b"")


def test_a_folder_that_is_missing_above_the_federation_is_not_made(
    sftp: Callable, opened: Callable
) -> None:
    server = sftp()
    server.url += "/mistyped"
    with pytest.raises(OSError, match="No such file"):
        opened(server).put(OWN, NAME, CONTENT)
    assert not (server.files / "box" / "mistyped").exists()


def test_a_bucket_that_is_missing_is_not_made(s3, opened: Callable) -> None:
    s3.url = "s3://mistyped/box"
    box = opened(s3)
    for _ in range(2):
        with pytest.raises(OSError, match="there is no bucket"):
            box.put(OWN, NAME, CONTENT)


def test_a_listing_that_never_ends_is_cut(
    sftp: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stops after so many names or seconds; here its parent does before."""
    server = sftp("endless")
    laid(server, NAME, CONTENT)
    box = opened(server)
    monkeypatch.setattr(remote, "LIST_SECONDS", 3.0)
    with pytest.raises(OSError, match="did not answer within 3 seconds"):
        list(box.list(OWN))


def test_a_wrong_size_in_a_listing_changes_nothing_of_what_is_read(
    sftp: Callable, opened: Callable
) -> None:
    server = sftp("sizes")
    laid(server, NAME, CONTENT)
    assert opened(server).get(OWN, NAME) == CONTENT


def test_names_that_lead_elsewhere_are_not_even_listed(sftp: Callable, opened: Callable) -> None:
    server = sftp("names")
    (server.files.parent / "secret").write_text("secret")
    laid(server, NAME, CONTENT)
    laid(server, NAME.upper(), CONTENT)
    assert list(opened(server).list(OWN)) == [NAME]


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", f"{NAME}\n", f"{NAME}/..", "*", "[ab]", "?", "", ".."]
)
def test_no_name_leads_out_of_its_folder(opened: Callable, name: str) -> None:
    class Nowhere:
        url, options = "sftp://nowhere.invalid/box", {}

    box = opened(Nowhere)
    for do, more in (("get", ()), ("put", (b"x",)), ("delete", ())):
        with pytest.raises(OSError, match="a mailbox has no"):
            getattr(box, do)(OWN, name, *more)
    with pytest.raises(OSError, match="a mailbox has no"):
        box.list(f"{OWN}/..")
    assert box._child is None, "nobody was asked"
