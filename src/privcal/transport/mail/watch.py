"""A site that answers by mail, unattended: signed questions in a folder, answers beside them.

Whatever brings files into the folder, and whoever else writes there, is trusted with nothing. Only
plain files with plain names are opened, and of those only so much is read as a question can be
long; what is not a letter that an admitted asker signed for this site is left alone. Nothing else in
the folder is read, least of all answers. This process has no data: as over a network, a
child with the data answers (`federation.site.service`), and each reply is held until its time.

What was answered is in the ledger, so after a restart the same answers are written again.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from privcal.data.panels import undisturbed
from privcal.secure import canonical
from privcal.transport.federation.shared.messages import Opened
from privcal.transport.federation.shared.requests import MAX_LIFETIME_BY_MAIL
from privcal.transport.federation.site import log
from privcal.transport.federation.site.service import Service, only_one, scoring_ahead
from privcal.transport.mail.letters import MAX_FILE, QUESTION_FORMAT, digest, parse_file
from privcal.transport.mail.signed import open_letter, sealed_document
from privcal.trusted.errors import InputError, Refused

ANSWERS = "answers"
"""The folder for answers, in the one that is watched."""

AGAIN = 600.0
"""Seconds after which a question that was refused is looked at again: its owner may have approved it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,150}\.json")


class Watch:
    """One site, and the folder that it watches."""

    def __init__(self, kit: Path, folder: Path, tell: Callable[[str], None]) -> None:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder} to watch")
        self._kit, self._folder, self._tell = kit, folder, tell
        self._service = _ByMail(kit)
        self._seen: dict[str, tuple[int, int, int]] = {}
        """Files that were looked at, and what they were then."""
        self._again: dict[str, float] = {}
        """When to look once more at those that were refused."""

    def look(self) -> int:
        """Answer what is new in the folder; how many answers were written."""
        now, written = time.monotonic(), 0
        there = {}
        for name in sorted(os.listdir(self._folder)):
            if not _NAME.fullmatch(name):
                continue
            state = _state(self._folder / name)
            if state is None:
                continue
            there[name] = state
            if self._seen.get(name) == state and now < self._again.get(name, float("inf")):
                continue
            self._again.pop(name, None)
            written += self._look_at(name)
        self._seen = there
        return written

    def _look_at(self, name: str) -> int:
        try:
            with undisturbed():
                return self._answer(name)
        except (InputError, Refused) as problem:
            self._say(f"{name} is not answered: {log.line(problem)}")
        except Exception as error:  # whatever a file brings about, the next one is looked at
            self._say(f"{name} is not answered: {log.line(error)}")
            self._again[name] = time.monotonic() + AGAIN
        return 0

    def _answer(self, name: str) -> int:
        document = parse_file(read_plain(self._folder / name), QUESTION_FORMAT)
        if "messages" not in document:
            raise InputError("it is not signed; privcal source answer shows it to its owner")
        site = self._service.name
        opened = open_letter(document, self._service.root, site)
        replies: list[str] = []
        refused = ""
        for message in document["messages"]:
            replies.append(self._service.answer("ask", message.encode()).decode())
            if refused := self._service.code or "":
                break
        if not all(replies):
            raise RuntimeError("the site could not answer; see its log")
        answer = canonical.write(sealed_document(document, opened, replies, site))
        out = f"{site}-{digest(document)[:16]}.json"
        _write(self._folder, out, f"{answer}\n".encode("ascii"))
        request = opened[0].request
        what = f"{opened[0].asker}, campaign {request.campaign}, round {_round(opened) + 1}"
        if refused:
            self._again[name] = time.monotonic() + AGAIN
            self._say(f"{name} ({what}) is refused: {refused}")
        else:
            self._tell(f"{name} ({what}) is answered in {ANSWERS}/{out}")
        return 1

    def _say(self, text: str) -> None:
        self._tell(text)
        log.write(self._kit, f"by mail: {text}")

    def close(self) -> None:
        self._service.close()


class _ByMail(Service):
    """The service with the limit for letters; it tells whether its last reply was a refusal."""

    longest = MAX_LIFETIME_BY_MAIL
    code: str | None = None

    def _count(self, code: str | None) -> None:
        self.code = code
        super()._count(code)

    @property
    def root(self) -> str:
        return self._root


def _round(opened: list[Opened]) -> int:
    return opened[1].request.questions[0].round


def _state(path: Path) -> tuple[int, int, int] | None:
    """By what a file is known to have changed; None for what is no plain file."""
    try:
        facts = os.lstat(path)
    except OSError:  # gone meanwhile
        return None
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None


def read_plain(path: Path) -> bytes:
    """The content of a plain file, up to what is too long for a letter; never through a link.

    A pipe is not waited for, and a device is not read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as opened:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise InputError("it is no plain file")
        if facts.st_size > MAX_FILE:
            raise InputError(f"it is longer than {MAX_FILE >> 20} MiB")
        return opened.read(MAX_FILE + 1)


def _write(folder: Path, name: str, content: bytes) -> None:
    """Write an answer, whole or not at all, into the folder for answers itself.

    Not where a link that somebody put in its place leads to.
    """
    with suppress(FileExistsError):
        os.mkdir(folder / ANSWERS)
    try:
        into = os.open(folder / ANSWERS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise InputError(f"{folder / ANSWERS} is no folder, or a link to one") from None
    part = f".{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o644, dir_fd=into), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, name, src_dir_fd=into, dst_dir_fd=into)
        os.fsync(into)
    finally:
        with suppress(OSError):
            os.unlink(part, dir_fd=into)
        os.close(into)


def watch(kit: Path, folder: Path, *, every: float, once: bool, tell: Callable[[str], None]) -> int:
    """Answer what appears in a folder, until stopped; with `once`, what is there now.

    Returns how many answers were written.
    """
    stopped = threading.Event()
    written = 0
    ahead = nullcontext() if once else scoring_ahead(kit.resolve())
    with only_one(kit, "watching.lock"), ahead, _stopping(stopped):
        watched = Watch(kit, folder, tell)
        try:
            while not stopped.is_set():
                written += _look(watched, folder, once, tell)
                if once or stopped.wait(every):
                    break
        finally:
            watched.close()
    return written


def _look(watched: Watch, folder: Path, once: bool, tell: Callable[[str], None]) -> int:
    """One look; a share that is not there just now is looked at again later."""
    try:
        return watched.look()
    except OSError as error:
        if once:
            raise
        tell(f"{folder} cannot be read: {error.strerror}")
        return 0


@contextmanager
def _stopping(stopped: threading.Event) -> Iterator[None]:
    """Meanwhile Ctrl-C and SIGTERM stop it, when it has finished what it does."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda *_: stopped.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
