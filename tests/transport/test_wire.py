"""Letters over a socket: what a site takes from a caller, whoever that is."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from privcal.transport import wire
from privcal.transport.letter import MAX_LETTER
from privcal.transport.wire import Caller, serve
from privcal.trusted.errors import InputError
from tests.support.letters import Federation, federation, question


class Echo:
    """A site that says what it is told, to all that begins with a letter."""

    id, federation = "a" * 32, "f" * 32

    def writers(self) -> list[str]:
        return ["b" * 32, self.id]

    def expired(self) -> list[str]:
        return ["c" * 32 + "-" + "0" * 64]

    def take(self, content: bytes) -> bytes | None:
        return content if content.startswith(b"letter") else None


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(wire, "FRAME_SECONDS", 1.0)
    monkeypatch.setattr(wire, "POLL", 0.05)
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    stopped, path = threading.Event(), Path("site.sock")
    thread = threading.Thread(target=serve, args=(path, Echo(), stopped))
    thread.start()
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.05)
    yield path
    stopped.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not path.exists()


def raw(path: Path) -> socket.socket:
    call = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    call.settimeout(10)
    call.connect(str(path))
    return call


def hung_up(call: socket.socket) -> bool:
    try:
        return call.recv(1) == b""
    except ConnectionError:
        return True


def test_a_caller_has_a_sites_three_members(path: Path) -> None:
    site = Caller(path)
    assert (site.id, site.federation) == (Echo.id, Echo.federation)
    assert site.writers() == Echo().writers()
    assert site.expired() == Echo().expired()
    assert site.take(b"letter") == b"letter"
    assert site.take(b"else") is None
    long = b"letter" + os.urandom(MAX_LETTER - 6)
    assert site.take(long) == long


def test_its_owner_and_its_group_may_call_and_nobody_else(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_caller_without_a_length_is_hung_up_on(path: Path) -> None:
    with raw(path) as call:
        call.sendall(b"\0\0")
        began = time.monotonic()
        assert hung_up(call)
        assert time.monotonic() - began < 5
    assert Caller(path).take(b"letter") == b"letter"


@pytest.mark.parametrize("length", [MAX_LETTER + 1, 2**31, 2**32 - 1])
def test_a_length_that_no_letter_has_ends_the_call_before_a_byte_is_read(
    path: Path, length: int
) -> None:
    with raw(path) as call:
        call.sendall(length.to_bytes(4, "big"))
        began = time.monotonic()
        assert hung_up(call)
        assert time.monotonic() - began < 0.9, "at once"


def test_half_a_letter_is_none(path: Path) -> None:
    with raw(path) as call:
        call.sendall((100).to_bytes(4, "big") + b"letter")
        call.shutdown(socket.SHUT_WR)
        assert hung_up(call)


def test_a_byte_now_and_then_does_not_keep_a_call(path: Path) -> None:
    with raw(path) as call:
        call.sendall((100).to_bytes(4, "big"))
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 8:
                call.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 5


def test_a_caller_that_never_reads_keeps_no_thread(path: Path) -> None:
    before = threading.active_count()
    calls = [raw(path) for _ in range(wire.CALLS)]
    for call in calls:
        call.setblocking(False)
        frame = MAX_LETTER.to_bytes(4, "big") + b"letter" + b"x" * (MAX_LETTER - 6)
        end = time.monotonic() + 0.5
        while frame and time.monotonic() < end:
            try:
                frame = frame[call.send(frame) :]
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
    end = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert threading.active_count() <= before
    assert Caller(path).take(b"letter") == b"letter"
    for call in calls:
        call.close()


def test_while_sixteen_calls_say_nothing_the_next_is_hung_up_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FRAME_SECONDS", 5.0)
    calls = [raw(path) for _ in range(wire.CALLS)]
    time.sleep(0.3)
    with raw(path) as one_more:
        began = time.monotonic()
        assert hung_up(one_more)
        assert time.monotonic() - began < 3
    for call in calls:
        call.close()
    time.sleep(0.3)
    assert Caller(path).take(b"letter") == b"letter"


def test_a_thousand_calls_lock_nobody_out_for_long(path: Path) -> None:
    calls = []
    for _ in range(1000):
        try:
            calls.append(raw(path))
        except OSError:
            break
    end, answered = time.monotonic() + 20, None
    while answered is None and time.monotonic() < end:
        try:
            answered = Caller(path).take(b"letter")
        except OSError:
            time.sleep(0.05)
    assert answered == b"letter", "with all of them still open"
    assert threading.active_count() < 10 + wire.CALLS
    for call in calls:
        call.close()


def test_what_is_no_site_is_an_error_that_a_look_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        Caller("nothing.sock")
    for reply in (b"{}", b"[", json.dumps({"privcal": 3, "id": "a" * 32}).encode()):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("odd.sock")
        listener.listen()

        def answer(listener: socket.socket = listener, reply: bytes = reply) -> None:
            call, _ = listener.accept()
            with call:
                call.recv(4)
                call.sendall(len(reply).to_bytes(4, "big") + reply)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match=r"no site|another version"):
            Caller("odd.sock")
        thread.join(5)
        listener.close()
        Path("odd.sock").unlink()


def test_a_path_that_cannot_be_listened_at_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot listen at"):
        serve(tmp_path / "no" / "folder.sock", Echo(), threading.Event())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot listen at"):
        serve(tmp_path / "file", Echo(), threading.Event())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return federation(tmp_path / "fed", sites=1, monkeypatch=monkeypatch)


def test_a_caller_gets_at_most_a_sealed_reply(fed: Federation, tmp_path: Path) -> None:
    """Whatever it sends: what leaves is a letter that the asker alone opens, or nothing."""
    ann, stopped = fed.asker(), threading.Event()
    path = tmp_path / "s"
    thread = threading.Thread(target=serve, args=(path, fed.site("site-1"), stopped), daemon=True)
    thread.start()
    time.sleep(0.2)
    caller = Caller(path)
    request = ann.request("ask", "site-1", question())
    letter = ann.write("site-1", request)
    reply = caller.take(letter.content)
    assert reply is not None
    assert ann.open(reply, request, letter).answers
    for odd in (b"\0", b'{"topic":"card"}', b'{"privcal":4}', letter.content[:-1], reply):
        assert caller.take(odd) is None
    assert b"ann" not in caller._call(b"", 10_000)
    assert b"site-1" not in caller._call(b"", 10_000), "IDs, and no names"
    stopped.set()
    thread.join(10)
