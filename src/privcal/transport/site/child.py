"""Turns for those who ask, and the child process that has the data and no network."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from privcal.transport.content import Reply, Request
from privcal.transport.replied import read_reply
from privcal.transport.site.settings import Site
from privcal.trusted.errors import Refused

MAX_REQUESTS = 32
"""Letters that wait for the child, or for their time, at once; more are told `busy`."""

MAX_REQUESTS_OF_ONE = 8
"""The same for one asker; fewer where little room is left (`Turns.room`)."""

CHILD_TIMEOUT = 600.0
"""Seconds that the child has for one request; then it is stopped."""

CHILD_IDLE = 600.0
"""Seconds without a request after which the child, with its memory, goes away."""

PASSED = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "LC_ALL",
    "VIRTUAL_ENV",
    "PRIVCAL_MARKS",
    "POLARS_SKIP_CPU_CHECK",
)
"""The variables of the environment that the process with the data may know."""


class Turns:
    """Room for requests, and one turn after the other: both fairly by asker."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._here: Counter[str] = Counter()
        self._busy = False
        self._numbers = itertools.count(1)
        self._last: dict[str, int] = {}
        """Which turn was an asker's last one."""
        self.waiting: list[tuple[str, int]] = []
        """Who waits for a turn, and their places."""

    @property
    def taken(self) -> int:
        return self._here.total()

    @contextlib.contextmanager
    def room(self, asker: str) -> Iterator[int]:
        """Room for one request more of an asker, and its place; Refused (`busy`) where there is none.

        Nobody gets more of it than is left then. So six who take all they can leave room for a
        seventh, and all strangers together count as one.
        """
        with self._change:
            left = MAX_REQUESTS - self.taken
            if self._here[asker] >= min(MAX_REQUESTS_OF_ONE, left):
                raise Refused("busy")
            self._here[asker] += 1
            place = next(self._numbers)
        try:
            yield place
        finally:
            with self._change:
                self._here[asker] -= 1

    @contextlib.contextmanager
    def turn(self, asker: str, place: int) -> Iterator[None]:
        """The one turn, after whoever waits and had theirs longer ago, or has a lower place."""
        mine = (asker, place)
        with self._change:
            self.waiting.append(mine)
            self._change.wait_for(lambda: not self._busy and mine == self._next())
            self.waiting.remove(mine)
            self._busy, self._last[asker] = True, next(self._numbers)
        try:
            yield
        finally:
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _next(self) -> tuple[str, int]:
        return min(self.waiting, key=lambda one: (self._last.get(one[0], 0), one[1]))


def hold(arrived: float, delay: float) -> None:
    """Wait until `delay` after arrival, or the next multiple of it."""
    passed = time.monotonic() - arrived
    time.sleep(max(0.0, max(1, math.ceil(passed / delay)) * delay - passed))


class Child:
    """The process that has the data: started when asked, one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._idle: threading.Timer | None = None

    def wake(self) -> None:
        """Wait until it runs: how long that takes must not come on top of what rows take."""
        with self._turn:
            self._running()

    def ask(self, asker: str, request: Request) -> Reply:
        """Its reply to a request of an asker."""
        with self._turn:
            return self._ask(asker, request)

    def _ask(self, asker: str, request: Request) -> Reply:
        if self._idle is not None:
            self._idle.cancel()
        line = json.dumps({"asker": asker, "request": request.text})
        process = self._running()
        try:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply = self._lines.get(timeout=CHILD_TIMEOUT)
        except (OSError, Empty) as error:
            self.stop()
            raise RuntimeError(f"the child did not answer ({error!r})") from None
        if not reply:
            self.stop()
            raise RuntimeError("the child that reads the data died")
        self._idle = threading.Timer(CHILD_IDLE, self._leave)
        self._idle.daemon = True
        self._idle.start()
        return read_reply(json.loads(reply), request)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._lines = SimpleQueue()
            self._process = _with_data("worker", self._folder, stdout=subprocess.PIPE)
            reader = threading.Thread(
                target=_read, args=(self._process, self._lines), daemon=True, name="child"
            )
            reader.start()
            with contextlib.suppress(Empty):
                if not self._lines.get(timeout=CHILD_TIMEOUT):  # else it says that it is ready
                    self._lines.put("")  # it died, which whoever asks is told
        return self._process

    def _leave(self) -> None:
        with self._turn:
            self.stop()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()  # whatever it has committed stays committed
        process.wait()


def _with_data(module: str, folder: Path, stdout: int | None = None) -> subprocess.Popen[str]:
    """A child that has the data: a module of the site's own installation, and no network."""
    return subprocess.Popen(
        # -P: nothing is imported from the folder it is started in.
        [sys.executable, "-P", "-m", f"privcal.transport.site.{module}", str(folder)],
        cwd=folder,
        env={name: os.environ[name] for name in PASSED if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=stdout,
        text=True,
        encoding="utf-8",
        umask=0o077,
    )


def _read(process: subprocess.Popen[str], lines: SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


@contextlib.contextmanager
def scoring_ahead(folder: Path) -> Iterator[None]:
    """Where the site scores its own table: the child that does so before anybody asks (`ahead`)."""
    if all(population.scoring is None for population in Site.load(folder).populations):
        yield
        return
    child = _with_data("ahead", folder)
    try:
        yield
    finally:
        child.kill()
        child.wait()
