"""The loop between a mailbox and a site: it brings what is new, and leaves the replies there.

It looks every few seconds at the folders of those who may write to the site, hands each new file
over, and puts the reply into the site's own folder. The files in that folder go to the site too,
which knows its own (`site.outbox`), and so do rosters. Nothing of privacy rests on this loop: it may
run in another account and on another machine than the site's process, at the other end of a socket.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import sample
from typing import Protocol

from privcal.transport.letter import MAX_LETTER, file_name
from privcal.transport.mailbox import ROSTER, Box, Looks, bounded, pause

EVERY = 2.0
"""Seconds between two looks, the most (`mailbox.pause`)."""
AT_ONCE = 8
"""Letters that are with the site at once."""
AGAIN = 600.0
"""Seconds after which a letter is brought once more: its refusal may have another reason by then."""
MAX_ROSTERS = 16
"""Rosters that a site is shown at one look."""
ALL_ROSTERS = ""
"""In place of a writer: where the rosters are."""


class Answers(Protocol):
    """A site's process (`site.service.Service`), or a socket to it (`wire.Caller`)."""

    @property
    def id(self) -> str: ...

    def writers(self) -> list[str]:
        """The IDs of those whose folders are looked into."""
        ...

    def take(self, content: bytes) -> bytes | None:
        """The reply to a letter; None where there is none, or the content is something else."""
        ...

    def expired(self) -> list[str]:
        """The names of the site's own files that may go."""
        ...


class Carrier:
    """The way of letters between one mailbox and one site.

    Parameters
    ----------
    box
        The mailbox.
    site
        The site.
    tell
        Is told in one sentence of whatever is worth a person's while.
    """

    def __init__(
        self,
        box: Box,
        site: Answers,
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._box, self._site, self._tell, self._clock = box, site, tell, clock
        self._looks, self._own = Looks(box, site.id, tell), Looks(box, None, tell)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="letter")
        self._room = threading.Semaphore(AT_ONCE)
        self._under_way: dict[str, Future[None]] = {}
        self._brought: dict[tuple[str, str], float] = {}
        """When the letters that were replied to were last brought, by writer and name."""
        self._rosters: dict[str, float] = {}
        self._unsaid: dict[str, bytes] = {}
        """Replies that could not be put: they are tried again."""
        self._last = -math.inf
        self.replied = 0
        """How many replies were put."""

    def look(self, stopped: threading.Event | None = None) -> None:
        """Look once, and begin with what is new; OSError where site or mailbox cannot be reached."""
        for name, content in list(self._unsaid.items()):
            self._put(name, content)
        self._show_rosters()
        self._show_own()
        now = self._clock()
        for (writer, name), when in list(self._brought.items()):
            if now - when >= AGAIN:
                del self._brought[writer, name]
                self._looks.forget(writer, name)
        writers = [writer for writer in self._site.writers() if writer != self._site.id]
        for writer, name, content in self._looks.look(writers):
            while not self._room.acquire(timeout=1.0):
                if stopped is not None and stopped.is_set():
                    return
            self._under_way[name] = self._pool.submit(self._bring, writer, name, content)
        self._under_way = {n: one for n, one in self._under_way.items() if not one.done()}

    @property
    def quiet(self) -> float:
        """Seconds since the site last had a letter that it replies to."""
        busy = any(not one.done() for one in self._under_way.values())
        return 0.0 if busy else self._clock() - self._last

    def wait(self) -> None:
        """Wait until all that was brought is replied to."""
        for one in list(self._under_way.values()):
            one.result()

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _bring(self, writer: str, name: str, content: bytes) -> None:
        try:
            reply = self._site.take(content)
            if reply is not None:
                self._last = self._brought[writer, name] = self._clock()
                self._put(file_name(writer, reply), reply)
        except OSError as error:  # the site is not there: at the next look
            self._looks.forget(writer, name)
            self._tell(f"a letter was not delivered: {error}")
        finally:
            self._room.release()

    def _put(self, name: str, content: bytes) -> None:
        new = self._own.know(self._site.id, name)
        self._unsaid[name] = content
        try:
            self._box.put(self._site.id, name, content)
        except OSError as error:
            self._tell(f"a reply could not be put, and will be tried again: {_why(error)}")
            return
        self._unsaid.pop(name, None)
        self.replied += new

    def _show_own(self) -> None:
        """Show the site the files in its own folder, and delete those that have had their time."""
        for _, _, content in self._own.look([self._site.id]):
            self._site.take(content)
        for name in {*self._site.expired()} & self._own.known(self._site.id):
            self._box.delete(self._site.id, name)

    def _show_rosters(self) -> None:
        """Show the site the rosters that lie in the mailbox, in their order; of many, a random part."""
        names = bounded(self._box.list(ALL_ROSTERS), self._clock)
        found = [match for name in names if (match := ROSTER.fullmatch(name))]
        now, last = self._clock(), self._rosters
        self._rosters = {match[0]: last[match[0]] for match in found if match[0] in last}
        due = [match for match in found if now - last.get(match[0], -AGAIN) >= AGAIN]
        for match in sorted(sample(due, min(len(due), MAX_ROSTERS)), key=lambda m: int(m[1])):
            self._rosters[match[0]] = now
            content = self._box.get(ALL_ROSTERS, match[0])
            if content is not None and len(content) <= MAX_LETTER:
                self._site.take(content)


def carry(
    box: Box,
    site: Answers,
    *,
    every: float = EVERY,
    once: bool = False,
    stopped: threading.Event,
    tell: Callable[[str], None] = lambda text: None,
    looked: Callable[[], None] = lambda: None,
) -> int:
    """Carry letters until `stopped`, or with `once` those that are there now.

    Returns how many replies were put. What a mailbox brings about, an OSError, is told once and
    ends nothing: the next look may do better.
    """
    carrier, trouble = Carrier(box, site, tell), ""
    try:
        while not stopped.is_set():
            began = time.monotonic()
            try:
                carrier.look(stopped)
                looked()
                trouble = ""
            except OSError as error:
                if trouble != (trouble := _why(error)):
                    tell(f"the mailbox cannot be used just now: {trouble}")
            if once:
                carrier.wait()
                break
            stopped.wait(pause(every, carrier.quiet, time.monotonic() - began))
    finally:
        carrier.close()
    return carrier.replied


def _why(error: OSError) -> str:
    return str(error.strerror or error)
