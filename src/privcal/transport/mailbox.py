"""A mailbox: a folder or prefix where parties leave files for each other, and three operations on it.

    BOX/<federation>/<writer's ID>/<reader's ID>-<SHA-256 of the file>
    BOX/<federation>/roster-<number>

A name says what is in the file, so a file never changes, none is renamed, and one whose content
is not what its name says is partial or false. Every party writes in the folder with its own ID
alone: the mailbox's access rules can see to that, and nothing of privacy rests on it. Names have
lower-case hex alone, so no server can misread one, and no name leads out of its folder.

`Looks` is how anybody reads a mailbox: with limits for each writer, one after the other, so that
what one of them leaves there keeps no letter of another's waiting for long.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from privcal.transport.letter import MAX_LETTER, digest
from privcal.transport.roster import MAX_ROSTER
from privcal.trusted.errors import InputError

NAME = re.compile("([0-9a-f]{32})-([0-9a-f]{64})")
ROSTER = re.compile("roster-([1-9][0-9]{0,8})")

MAX_NAMES = 20_000
"""Names of one writer that a look goes through; of more, a random part."""
MAX_KNOWN = 50 * MAX_NAMES
"""Names of one writer that are remembered, and that a listing may have."""
MAX_FILES, MAX_BYTES, MAX_SECONDS = 64, 32 << 20, 30.0
"""New files, their bytes, and the time for one writer in one look."""
AGAIN_AT = (1, 4, 16, 64)
"""After how many looks a file that is not what its name says is read again."""


def pause(every: float, quiet: float, took: float = 0.0) -> float:
    """Seconds until the next look, at most `every`: where something came lately, more is to come.

    It is a tenth of the `quiet` seconds since then, so that letters of one campaign lose no more
    than a tenth of their time to waiting for looks; and as long as the last look `took`, so that a
    slow server is left alone for half of the time.

    >>> [pause(2.0, quiet) for quiet in (0.0, 3.0, 60.0)]
    [0.2, 0.3, 2.0]
    """
    return min(every, max(every / 10, quiet / 10, took))


class Box(Protocol):
    """One federation's part of a mailbox. Any operation may raise OSError, and may be tried again."""

    def list(self, writer: str) -> Iterator[str]:
        """The names in a writer's folder, in any order; nothing where there is no such folder."""
        ...

    def get(self, writer: str, name: str) -> bytes | None:
        """A file's content, or as much of it as a letter may have and one byte more; None if it is gone."""
        ...

    def put(self, writer: str, name: str, content: bytes) -> None:
        """Leave a file there; one that is there with all its bytes may stay as it is."""
        ...

    def delete(self, writer: str, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def close(self) -> None:
        """End what it began; it is not used any more."""
        ...


class FolderBox:
    """A mailbox in a folder of this machine or of a share that is mounted here.

    Links are not followed, and pipes and devices not opened.
    """

    def __init__(self, folder: str | Path, federation: str) -> None:
        if not Path(folder).is_dir():
            raise InputError(f"there is no folder {folder} to carry letters")
        self._root = Path(folder, federation)

    def list(self, writer: str) -> Iterator[str]:
        with suppress(FileNotFoundError), _folder(self._path(writer)) as opened:
            for entry in os.scandir(opened):
                yield entry.name

    def get(self, writer: str, name: str) -> bytes | None:
        limit = MAX_LETTER if writer else MAX_ROSTER
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with _folder(self._path(writer)) as folder:
                file = os.open(name, flags, dir_fd=folder)
        except OSError:  # gone, or a link
            return None
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit:
            os.close(file)  # a folder cannot even be made a file of Python's
            return None
        with os.fdopen(file, "rb") as opened:
            return opened.read(limit + 1)

    def put(self, writer: str, name: str, content: bytes) -> None:
        path = self._path(writer)
        self._make(path)
        with _folder(path) as folder:
            with suppress(FileNotFoundError):
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(there.st_mode) and there.st_size == len(content):
                    return
            part = f".{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(part, flags, 0o644, dir_fd=folder), "wb") as file:
                    os.fchmod(file.fileno(), 0o644)  # sealed, and for others to carry
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                with suppress(OSError):
                    os.unlink(part, dir_fd=folder)

    def delete(self, writer: str, name: str) -> None:
        with suppress(FileNotFoundError), _folder(self._path(writer)) as folder:
            os.unlink(name, dir_fd=folder)

    def close(self) -> None:
        """End nothing: a folder needs no process."""

    def _path(self, writer: str) -> Path:
        return self._root / writer if writer else self._root

    def _make(self, path: Path) -> None:
        for folder in (self._root, path):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                folder.chmod(0o755)  # whatever the umask: others read what is left there


class _folder:
    """A folder's descriptor, for as long as it is used; never through a link in its last part."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._file = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return self._file

    def __exit__(self, *problem: object) -> None:
        os.close(self._file)


def bounded(names: Iterable[str], clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    """The names of a listing, as far as they come within the limits: it may never end."""
    end = clock() + MAX_SECONDS
    for name in islice(names, MAX_KNOWN):
        yield name
        if clock() > end:
            return


@dataclass
class _Seen:
    """What is known of one writer's files."""

    read: set[str] = field(default_factory=set)
    """Names that were read, and are what they say: these never change."""
    odd: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Names whose content was another, how often that was, and at which look to read them again."""

    def again(self, name: str, look: int, *, for_ever: bool = False) -> None:
        """Read a file once more at a later look; not any more after some, unless `for_ever`."""
        times = self.odd.get(name, (0, 0))[0]
        wait = AGAIN_AT[min(times, len(AGAIN_AT) - 1)]
        self.odd[name] = times + 1, look + (wait if for_ever or times < len(AGAIN_AT) else 2**31)

    def keep(self, there: set[str] | None) -> None:
        """Forget the names that are not `there`; where that is not known, some, when they are many."""
        if there is None:
            while len(self.odd) > MAX_KNOWN:
                del self.odd[next(iter(self.odd))]
            while len(self.read) > MAX_KNOWN:
                self.read.pop()
        else:
            self.read &= there
            self.odd = {name: known for name, known in self.odd.items() if name in there}


class Looks:
    """One party's looks at a mailbox: every file for it that is new, within the limits.

    Parameters
    ----------
    box
        The mailbox.
    reader
        The ID of the party whose files these are; None: all files, whoever they are for.
    warn
        Is told in one sentence of a writer with more names than are looked at.
    """

    def __init__(
        self,
        box: Box,
        reader: str | None,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._box, self._reader, self._warn, self._clock = box, reader, warn, clock
        self._seen: dict[str, _Seen] = {}
        self._look = 0

    def look(self, writers: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
        """The new files for this party as (writer, name, content), a file of each writer in turn.

        What one writer's folder brings about, an OSError too, keeps no other from being read.
        """
        self._look += 1
        left = [self._new(writer) for writer in writers]
        while left:
            for files in list(left):
                found = next(files, None)
                if found is None:
                    left.remove(files)
                else:
                    yield found

    def know(self, writer: str, name: str) -> bool:
        """Do not read this file, which is known to be there; whether that is news."""
        read = self._seen.setdefault(writer, _Seen()).read
        new = name not in read
        read.add(name)
        return new

    def known(self, writer: str) -> set[str]:
        """The names of a writer's files that were read, or are known."""
        return set(self._seen.get(writer, _Seen()).read)

    def forget(self, writer: str, name: str) -> None:
        """Read this file once more at the next look."""
        if writer in self._seen:
            self._seen[writer].read.discard(name)

    def _new(self, writer: str) -> Iterator[tuple[str, str, bytes]]:
        seen = self._seen.setdefault(writer, _Seen())
        end, size, files = self._clock() + MAX_SECONDS, 0, 0
        try:
            names = self._names(writer, seen)
            for name in names:
                if files == MAX_FILES or size >= MAX_BYTES or self._clock() > end:
                    return
                try:
                    content = self._box.get(writer, name)
                except OSError:  # what cannot be had comes last at the next look
                    seen.again(name, self._look, for_ever=True)
                    raise
                files, size = files + 1, size + len(content or b"")
                if content is not None and digest(content) == name[33:]:
                    seen.read.add(name)
                    seen.odd.pop(name, None)
                    yield writer, name, content
                else:
                    seen.again(name, self._look)
        except OSError as error:
            self._warn(f"the folder of {writer} cannot be read: {error.strerror or error}")

    def _names(self, writer: str, seen: _Seen) -> list[str]:
        """The names to read at this look, new ones first; what is gone is forgotten."""
        there: list[str] = []
        listed, ours = 0, 0
        for name in bounded(self._box.list(writer), self._clock):
            listed += 1
            match = NAME.fullmatch(name)
            if match is not None and self._reader in (None, match[1]):
                ours += 1
                if len(there) < MAX_NAMES:
                    there.append(name)
                elif (place := random.randrange(ours)) < MAX_NAMES:
                    there[place] = name
        if listed > MAX_NAMES:
            self._warn(
                f"the folder of {writer} has more than {MAX_NAMES:,} names: a random part of them is read"
            )
        seen.keep(set(there) if listed <= MAX_NAMES else None)
        new = [name for name in there if name not in seen.read and name not in seen.odd]
        again = [name for name in there if seen.odd.get(name, (0, 2**31))[1] <= self._look]
        random.shuffle(new)
        return new + again
