"""A calibrator that asks a federation in a folder (`tests.support.letters`), while its sites answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privcal.calibration.campaign import LETTERS
from privcal.transport.calibrator.exchange import Exchange
from privcal.transport.calibrator.letterbook import Letterbook
from privcal.transport.calibrator.panel import Sites
from privcal.transport.content import Reply, Request
from privcal.transport.keys import Keys
from privcal.transport.letter import Letter
from privcal.transport.mailbox import Box
from privcal.transport.replied import Replied
from privcal.transport.standing import Standing
from privcal.trusted.queries import GRID
from tests.support.letters import ANN, Federation

WAIT, EVERY = 20.0, 0.02
"""Seconds: long enough for a busy machine, and looks that cost a test nothing."""


@contextmanager
def answering(made: Federation, *names: str) -> Iterator[None]:
    """Meanwhile these sites, or all that run, look at the mailbox again and again."""
    stopped = threading.Event()

    def look() -> None:
        while not stopped.wait(EVERY):
            made.round(*names)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(30)


def exchange(
    made: Federation,
    name: str = ANN,
    *,
    box: Box | None = None,
    record: Path | None = None,
    **settings: Any,
) -> Exchange:
    """A calibrator's letters over the federation's mailbox, or another one."""
    settings = {"wait": WAIT, "every": EVERY, **settings}
    book = Letterbook(record)
    return Exchange(Standing(made.at(name)), box or made.box, book, **settings)


def sites(made: Federation, name: str = ANN, **settings: Any) -> Sites:
    """The sites as a panel; settings of the exchange and of the panel alike."""
    own = ("rows_per_person", "max_rows", "without", "begun")
    panel = {key: settings.pop(key) for key in own if key in settings}
    return Sites(exchange(made, name, **settings), **panel)


def written(record: Path) -> dict[str, bytes]:
    """The files of letters in a campaign's record."""
    return {path.name: path.read_bytes() for path in sorted((record / LETTERS).glob("*.json"))}


@dataclass
class Puppet:
    """A site of which a test says what it replies, and when: `made` runs no site of this name."""

    made: Federation
    name: str

    @property
    def keys(self) -> Keys:
        return Keys.load(self.made.at(self.name))

    def letters(self, asker: str = ANN) -> list[Letter]:
        """The letters to it in the mailbox."""
        writer, box = self.made.id(asker), self.made.box
        names = [n for n in box.list(writer) if n.startswith(self.keys.id)]
        return [Letter.read(box.get(writer, name) or b"") for name in names]

    def awaits(self, count: int = 1) -> Letter:
        """The newest letter to it that wants a reply, once there are so many."""
        end = time.monotonic() + WAIT
        while (
            len(letters := [x for x in self.letters() if self.opened(x).kind != "release"]) < count
        ):
            assert time.monotonic() < end, "no letter came"
            time.sleep(0.01)
        return max(letters, key=lambda letter: self.opened(letter).issued)

    def opened(self, letter: Letter) -> Request:
        return Request.read(letter.open(self.keys.sealing))

    def says(
        self,
        letter: Letter,
        reply: Reply,
        *,
        by: Keys | None = None,
        key: str | None = None,
        **parts: Any,
    ) -> Letter:
        """A reply to a letter; `parts` replace what is inside, `by` who signs, `key` whom it is for."""
        request = self.opened(letter)
        stamp = Standing(self.made.at(self.name)).roster.stamp
        inside = replace(Replied.to(request, letter.digest, stamp, reply), **parts)
        signs = by or self.keys
        return Letter.write(inside.text, signs, letter.sender, key or request.reply_key)

    def puts(self, reply: Letter, folder: str | None = None) -> None:
        """Leave a reply in the mailbox, in its own folder or another's."""
        self.made.box.put(folder or self.keys.id, reply.name, reply.content)

    def replies(self, reply: Reply, **parts: Any) -> None:
        """Wait for a letter, and answer it so."""
        self.puts(self.says(self.awaits(), reply, **parts))


def an_answer(*values: int, **more: Any) -> Reply:
    return Reply((values or (GRID,),), **{"ledger": "0" * 32, **more})


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    """Do this in another thread meanwhile; what goes wrong there is raised here."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(WAIT)
    assert not thread.is_alive()
    assert not problems, problems


class Hostile:
    """A mailbox whose keeper hides files, puts old states back, fails and hangs, as a test says."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self.hides: Callable[[str, str], bool] = lambda writer, name: False
        self.broken: set[str] = set()
        """Operations that raise OSError."""
        self.frozen: set[str] = set()
        """Operations that never return."""
        self.puts: list[tuple[str, str, bytes]] = []
        self.before_put: Callable[[str, bytes], None] = lambda name, content: None
        self.thaw = threading.Event()

    def _do(self, what: str) -> None:
        if what in self.broken:
            raise OSError(5, "the server is ill")
        if what in self.frozen:
            self.thaw.wait(60)

    def list(self, writer: str) -> Iterator[str]:
        self._do("list")
        return iter([name for name in self._box.list(writer) if not self.hides(writer, name)])

    def get(self, writer: str, name: str) -> bytes | None:
        self._do("get")
        return None if self.hides(writer, name) else self._box.get(writer, name)

    def put(self, writer: str, name: str, content: bytes) -> None:
        self.before_put(name, content)
        self._do("put")
        self.puts.append((writer, name, content))
        self._box.put(writer, name, content)

    def delete(self, writer: str, name: str) -> None:
        self._do("delete")
        self._box.delete(writer, name)
