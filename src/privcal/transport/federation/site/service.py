"""The process of a site that has the network: it reads no data.

It opens each message, gives what was asked to a child that has the data and no network
(`worker`), waits until the reply may leave, and seals it for the asker. Nothing that arrives is
unpacked, imported or run, or kept but for what the ledger and the owner's log say of it: what a
message can bring about is one of the lines of `Service.answer`.
"""

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

from privcal.data.files import replacing
from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.certificates import own_name
from privcal.transport.federation.shared.messages import (
    MAX_LIFETIME,
    Opened,
    open_message,
    plain_refusal,
    read_reply,
    seal_reply,
)
from privcal.transport.federation.shared.process import PASSED, READY, main, run_until_stopped
from privcal.transport.federation.shared.requests import Reply
from privcal.transport.federation.site import log
from privcal.transport.federation.site.keys import SiteKeys
from privcal.transport.federation.site.roster import own_card
from privcal.transport.federation.site.settings import DELAY, Site
from privcal.trusted.errors import InputError, Refused

MAX_REQUESTS = 32
"""Requests that wait for the child, or for their time, at once; more are told `busy`."""

MAX_REQUESTS_OF_ONE = 8
"""The same for one asker; fewer where little room is left (`Turns.room`)."""

STRANGERS = ""
"""In place of an asker's name: all who are revoked or admitted by no policy, together."""

FAULTS = ("unavailable", "ledger_missing", "ledger_rolled_back")
"""Refusals for which the site is to blame, and not what was asked."""

CHILD_TIMEOUT = 600.0
"""Seconds that the child has for one request; then it is stopped."""

CHILD_IDLE = 600.0
"""Seconds without a request after which the child, with its memory, goes away."""

STATUS = "status.json"
"""In `local/`: how the site is, for `privcal site health`."""


class Service:
    """A site that answers, whatever network brings the messages."""

    longest = MAX_LIFETIME
    """Seconds that a request may hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.name = own_name(self.folder)
        SiteKeys.load(self.folder)  # complain now rather than to every asker
        Site.load(self.folder)
        self._card: tuple[str, bytes] = ("", b"")  # the public key that it is for, and its text
        self._root = str(self.folder / "startup" / "rootCA.pem")
        self._child = Child(self.folder)
        self._opening = threading.Lock()
        self._turns = Turns()
        self._strangers: set[str] = set()
        """The keys of those who were not admitted when they last asked."""
        self.last_asked: float | None = None
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by code."""
        self.failing_since: float | None = None
        """Since when nothing was answered, and something refused for which the site is to blame."""
        self.clocks: dict[str, tuple[int, float]] = {}
        """Of each asker who is admitted the date of the newest request, and by how much that was ahead."""
        self.slowest = 0.0
        """How many delays the slowest answer took: above one, its time could be seen."""

    def answer(self, topic: str, message: bytes) -> bytes:
        """The reply to a message: whatever goes wrong, nothing else gets to the sender."""
        try:
            keys = SiteKeys.load(self.folder)  # the owner may have made new ones
            return self._own_card(keys) if topic == "card" else self._answer(keys, message)
        except Exception as error:  # no keys, a disk that is gone
            log.write(self.folder, f"a message was not answered: {log.line(error)}")
            return b""

    def _answer(self, keys: SiteKeys, message: bytes) -> bytes:
        arrived = time.monotonic()
        text = message.decode("utf-8", "replace")
        who = "a message"
        try:
            with self._opening:  # one after the other: a few milliseconds each
                longest = self.longest
                opened = open_message(
                    text, self._root, site=self.name, longest=longest, dated=False
                )
            who = opened.asker
            share = STRANGERS if opened.fingerprint in self._strangers else who
            with self._turns.room(share) as place:
                reply = self._reply(opened, arrived, place)
            self._count(reply.refused)
            return seal_reply(reply, opened, keys, self.name).encode()
        except (Refused, InputError) as problem:  # nothing was looked at but the message
            code = log.refusal(self.folder, who, problem)
            self._count(code)
            return plain_refusal(code, text, keys, self.name).encode()

    def _turned_away(self, opened: Opened) -> str | None:
        """The code for an asker who is revoked or whom no policy admits, or another date; or None.

        It is found here, without the child and its one turn: whoever may not ask keeps nobody waiting.
        The charge looks at the policy again, in its own transaction.
        """
        try:
            if revocations.load(self.folder).refuses(opened.asker, opened.fingerprint):
                raise Refused("revoked")
            if not Site.load(self.folder).admits(opened.asker):
                raise Refused("asker")
            self._strangers.discard(opened.fingerprint)
            self._compare_clocks(opened)
            opened.check_date()
        except (Refused, InputError, OSError) as problem:  # a damaged list of who is revoked
            code = log.refusal(self.folder, opened.asker, problem)
            if code != "expired":
                self._strangers.add(opened.fingerprint)
            return code
        return None

    def _compare_clocks(self, opened: Opened) -> None:
        """Keep what the newest request says of its asker's clock; one that is sent again is older."""
        known = self.clocks.get(opened.asker)
        seen = (opened.request.issued, opened.ahead)
        if known is None or known[0] != seen[0] or known < seen:
            self.clocks[opened.asker] = seen

    def _count(self, code: str | None) -> None:
        if code is None:
            self.failing_since = None
            return
        self.refused[code] += 1
        if code in FAULTS:
            self.failing_since = self.failing_since or time.time()

    def _own_card(self, keys: SiteKeys) -> bytes:
        if self._card[0] != keys.public:
            self._card = (keys.public, own_card(self.folder).text.encode())
        return self._card[1]

    def _reply(self, opened: Opened, arrived: float, place: int) -> Reply:
        """The reply, when it may leave.

        When it leaves does not depend on rows, even for somebody who watches all replies to
        requests of their choice. The reply to an asker who is turned away leaves at a multiple of
        the delay after the request came, whichever it is; it waits neither for the child nor
        for a turn. To find it the policy is read from the ledger, which a charge may have locked
        just then, for a time that depends on how many persons it is about: that is why it is held,
        and why room and the place in the queue were given before. All others wait for the turns
        before theirs. Their order is one of names and places (`Turns.turn`); a turn in which rows
        are looked at, and everything that they lock, lasts for whole delays (`_ask_in_turn`); and
        any other is a look at the ledger, alone.
        """
        self.last_asked = time.time()
        refused = self._turned_away(opened)
        try:
            if refused is not None:
                reply = Reply(refused=refused)
            elif opened.request.kind in ("question", "share"):
                return self._ask_in_turn(opened, place)
            else:
                with self._turns.turn(opened.asker, place):
                    reply = self._child.ask(opened)
        except Exception as error:  # a child that died
            reply = Reply(refused=log.refusal(self.folder, opened.asker, error))
        if refused or opened.request.kind not in ("check", "open"):  # about boxes, and no rows
            hold(arrived, self._delay())
        return reply

    def _ask_in_turn(self, opened: Opened, place: int) -> Reply:
        """The reply to a question, which has the child to itself for a whole delay, or several.

        Whoever answers in a secure sum is asked like this too.

        Were the next request looked at as soon as the rows are read, a few dozen questions sent at
        once would add up what each of them took, until it is longer than the delay and shows.
        """
        delay = self._delay()
        with self._turns.turn(opened.asker, place):
            self._child.wake()
            began = time.monotonic()
            try:
                return self._child.ask(opened)
            finally:
                self.slowest = max(self.slowest, (time.monotonic() - began) / delay)
                hold(began, delay)

    def _delay(self) -> float:
        try:
            return Site.load(self.folder).delay
        except InputError:  # the owner is changing the settings
            return DELAY

    def close(self) -> None:
        self._child.stop()


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

    def ask(self, opened: Opened) -> Reply:
        with self._turn:
            return self._ask(opened)

    def _ask(self, opened: Opened) -> Reply:
        if self._idle is not None:
            self._idle.cancel()
        line = json.dumps({"asker": opened.asker, "request": opened.request.text()})
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
        return read_reply(reply.strip(), opened.request)

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
        [sys.executable, "-P", "-m", f"privcal.transport.federation.site.{module}", str(folder)],
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


# --- running -----------------------------------------------------------------------------


def run(folder: Path) -> None:
    """Be the site, in the foreground, until stopped."""
    from privcal.transport.federation.site.cell import (
        site_cell,  # FLARE: other commands need it not
    )

    with only_one(folder, "running.lock"), scoring_ahead(folder.resolve()):
        service = Service(folder)
        cell = site_cell(service.folder, service.answer)
        since: float | None = None

        def changed(connected: bool) -> None:
            nonlocal since
            since = time.time() if connected else None
            print(f"{service.name} {READY['site'] if connected else 'lost the server'}", flush=True)
            report()

        def report() -> None:
            _write_status(service, since)

        cell.set_cell_connected_cb(lambda _: changed(True))
        cell.set_cell_disconnected_cb(lambda _: changed(False))
        try:
            run_until_stopped(cell, report, report)
        finally:
            service.close()
            with contextlib.suppress(OSError):
                (service.folder / "local" / STATUS).unlink()


def _write_status(service: Service, since: float | None) -> None:
    facts = {
        "time": time.time(),
        "process": os.getpid(),
        "connected_since": since,
        "last_asked": service.last_asked,
        "slowest_answer_in_delays": round(service.slowest, 3),
        "refused": dict(service.refused),
        "failing_since": service.failing_since,
        "clocks": {asker: round(ahead, 1) for asker, (_, ahead) in service.clocks.items()},
    }
    with contextlib.suppress(OSError), replacing(service.folder / "local" / STATUS) as part:
        part.write_text(json.dumps(facts) + "\n", "utf-8")


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


@contextlib.contextmanager
def only_one(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock of the site: two processes of one site would push each other out."""
    import fcntl

    with (folder / "local" / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder} runs already; stop that process first") from None
        yield


if __name__ == "__main__":
    main(run)
