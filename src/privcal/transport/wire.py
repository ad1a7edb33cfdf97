"""Letters over a local socket: a site listens, and whatever carries its letters calls.

Each way goes a frame: four bytes of length, the highest first, then so many bytes. A frame is a
letter, and its reply the site's, empty where it says nothing. An empty frame asks who is there, and the
reply is JSON: the site's ID, its federation, whose folders are to be looked into, and which of the
site's own files may go.

A caller may be anybody whom the socket's folder lets in, somebody else's program in a carrier's
account for example. Calling gets it at most a sealed reply: see `site.service`.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from privcal.transport.carry import Answers
from privcal.transport.letter import MAX_LETTER, VERSION, check_id
from privcal.trusted.errors import InputError

CALLS = 16
"""Calls at once; the next ones are closed."""
FRAME_SECONDS = 10.0
"""Within which a whole frame must have come, or gone."""
REPLY_SECONDS = 1800.0
"""How long a caller waits for a reply: many questions wait for many delays."""
POLL = 2.0
"""Seconds between two looks at whether to stop."""
MAX_HELLO = 1 << 20


class Site(Answers, Protocol):
    """A site, with the federation that it is of."""

    @property
    def federation(self) -> str: ...


def serve(path: Path, site: Site, stopped: threading.Event) -> None:
    """Listen at `path` until `stopped`. Its owner and its group may call."""
    with _listening(path) as listener:
        room = threading.Semaphore(CALLS)
        while not stopped.is_set():
            try:
                call, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # too many files are open, say
                stopped.wait(0.1)
                continue
            if room.acquire(blocking=False):
                threading.Thread(target=_talk, args=(call, site, room), daemon=True).start()
            else:
                call.close()
    path.unlink(missing_ok=True)


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()  # of a process that was killed: only one runs
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        path.chmod(0o660)
        listener.listen(CALLS)
        listener.settimeout(POLL)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen at {path}: {error.strerror or error}") from None
    return listener


def _talk(call: socket.socket, site: Site, room: threading.Semaphore) -> None:
    """Take the frames of one call. Whatever goes wrong with them ends it, and nothing else."""
    try:
        with call, suppress(OSError, ValueError):
            while True:
                asked = _receive(call, FRAME_SECONDS, MAX_LETTER)
                reply = site.take(asked) or b"" if asked else _hello(site)
                _send(call, reply)
    finally:
        room.release()


def _hello(site: Site) -> bytes:
    facts = {
        "privcal": VERSION,
        "id": site.id,
        "federation": site.federation,
        "writers": site.writers(),
        "expired": site.expired()[:5000],
    }
    return json.dumps(facts).encode("ascii")


class Caller:
    """A site at the other end of a socket; OSError where it cannot be reached."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        facts = self._ask_who()
        self.id, self.federation = str(facts["id"]), str(facts["federation"])

    def writers(self) -> list[str]:
        """The IDs of those whose folders are looked into."""
        facts = self._ask_who()
        if facts["id"] != self.id:
            raise OSError("another site listens at the socket now; start this anew")
        return [check_id(writer) for writer in facts["writers"]]

    def expired(self) -> list[str]:
        """The names of the site's own files that may go."""
        return [str(name) for name in self._ask_who()["expired"]]

    def take(self, content: bytes) -> bytes | None:
        """The site's reply to a letter, or None."""
        return self._call(content, MAX_LETTER) or None if content else None

    def _ask_who(self) -> dict[str, Any]:
        try:
            facts = json.loads(self._call(b"", MAX_HELLO))
            if facts["privcal"] != VERSION:
                raise OSError(f"the site at {self._path} is of another version")
            check_id(facts["id"]), check_id(facts["federation"])
            return {**facts, "writers": list(facts["writers"]), "expired": list(facts["expired"])}
        except (ValueError, LookupError, TypeError):
            raise OSError(f"what listens at {self._path} is no site") from None

    def _call(self, content: bytes, longest: int) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
            call.settimeout(FRAME_SECONDS)
            call.connect(self._path)
            _send(call, content)
            return _receive(call, REPLY_SECONDS, longest)


def _send(call: socket.socket, content: bytes) -> None:
    call.settimeout(FRAME_SECONDS)  # for all of it
    call.sendall(len(content).to_bytes(4, "big") + content)


def _receive(call: socket.socket, seconds: float, longest: int) -> bytes:
    """One frame; OSError where it is cut short, too long, or too slow."""
    end = time.monotonic() + seconds
    length = int.from_bytes(_exactly(call, 4, end), "big")
    if length > longest:
        raise OSError("a frame is too long")
    return _exactly(call, length, end)


def _exactly(call: socket.socket, length: int, end: float) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("a frame took too long")
        call.settimeout(left)
        part = call.recv(min(1 << 16, length - len(parts)))
        if not part:
            raise OSError("the other side hung up")
        parts += part
    return bytes(parts)
