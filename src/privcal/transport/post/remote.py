"""A mailbox that lies elsewhere: a process of its own talks to the server, and is killed when it hangs.

No operation takes longer than its time, whatever a server does, and each ends with a result or an
OSError of one sentence. After a listing that took too long, the next few seconds' operations are
refused at once: a look at a hundred folders of a frozen server is over after the first.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from privcal.transport.letter import ID, MAX_LETTER
from privcal.transport.mailbox import NAME, ROSTER
from privcal.transport.post.frames import FOUND, PROBLEM, read_frame, write_frame
from privcal.transport.roster import MAX_ROSTER

SECONDS, LIST_SECONDS = 20.0, 60.0
"""What an operation may take, and a listing."""
REST = 5.0
"""Seconds without attempts after a listing that took too long."""


class RemoteBox:
    """One federation's part of a mailbox at a URL (`mailbox.Box`)."""

    def __init__(self, url: str, federation: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._federation, self._options = url, federation, dict(options or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._rest = 0.0

    def list(self, writer: str) -> Iterator[str]:
        found = self._ask("list", writer) or b""
        return iter(found.decode("ascii").split())

    def get(self, writer: str, name: str) -> bytes | None:
        limit = (MAX_LETTER if writer else MAX_ROSTER) + 1
        return self._ask("get", writer, name, limit=limit)

    def put(self, writer: str, name: str, content: bytes) -> None:
        self._ask("put", writer, name, content)

    def delete(self, writer: str, name: str) -> None:
        self._ask("delete", writer, name)

    def close(self) -> None:
        """End the process that talks to the server."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            child.wait()

    __del__ = close

    def _ask(
        self, do: str, writer: str, name: str = "", content: bytes = b"", limit: int = 0
    ) -> bytes | None:
        path = "/".join(filter(None, (self._federation, writer, name)))
        if not (_FOLDER if do == "list" else _FILE).fullmatch(
            path
        ):  # no name that a server told leads out of its folder
            raise OSError(f"a mailbox has no {path!r}")
        order = json.dumps({"do": do, "path": path, "limit": limit}).encode("ascii")
        with self._lock:
            reply = self._within(LIST_SECONDS if do == "list" else SECONDS, order + b"\n" + content)
        if reply.startswith(PROBLEM):
            raise OSError(f"{self._url}: {reply[1:].decode()}")
        return reply[1:] if reply.startswith(FOUND) else None

    def _within(self, seconds: float, order: bytes) -> bytes:
        """The reply to an order; an OSError where it does not come in time."""
        if time.monotonic() < self._rest:
            raise OSError(f"{self._url} did not answer; it is tried again in {REST:g} seconds")
        child = self._child = self._child or self._started()
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            write_frame(child.stdin, order)  # type: ignore[arg-type]
            reply = read_frame(child.stdout)  # type: ignore[arg-type]
        except (OSError, EOFError):
            reply = b""
        finally:
            timer.cancel()
        if not reply or reply.startswith(PROBLEM):
            self.close()
        if late.is_set():
            if seconds == LIST_SECONDS:  # one file may be a pipe, which says nothing of the others
                self._rest = time.monotonic() + REST
            raise OSError(f"{self._url} did not answer within {seconds:g} seconds")
        if not reply:
            raise OSError(f"the process that talks to {self._url} ended")
        return reply

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "privcal.transport.post.child"]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)
        with suppress(OSError):
            write_frame(child.stdin, json.dumps(self._first).encode("ascii"))  # type: ignore[arg-type]
        return child

    @property
    def _first(self) -> dict[str, Any]:
        return {"url": self._url, "options": self._options}


_FOLDER = re.compile(f"{ID.pattern}(/{ID.pattern})?")
_FILE = re.compile(f"{ID.pattern}/({ID.pattern}/{NAME.pattern}|{ROSTER.pattern})")
