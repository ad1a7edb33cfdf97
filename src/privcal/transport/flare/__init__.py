"""Letters through NVIDIA FLARE, as its users run it: one job a trip, and nothing custom in the job.

`components` are the two classes that a job names, `job` makes a job, `trip` is the process that
submits one and downloads its result, and `FlareBox` is a mailbox whose letters travel so.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from privcal.data.files import read_json
from privcal.transport.flare.job import HELLO, WAIT, pack
from privcal.transport.flare.trip import CLIENT, CONNECT, END, START, TOLD, username
from privcal.transport.mailbox import FolderBox
from privcal.trusted.errors import InputError

PAUSE, PAUSES = 2.0, 300.0
"""Seconds between two trips; after trips that brought nothing new, twice as many each time, up to the second number."""
KEPT = 4
"""Letters to one site that are brought, the newest: a round waits for its answers before the next begins."""
LIMIT = CONNECT + START + HELLO + WAIT + END + 30.0
"""Seconds for a trip, after which its process is killed."""


class FlareBox(FolderBox):
    """A mailbox for a calibrator: what is put is brought to the sites when their folders are listed.

    Letters and answers lie in a temporary folder. A trip is a process, begun by a look and
    collected by a later one, so no look waits for FLARE. Whatever goes wrong, the same letters go
    with the next trip; a site's late answer comes with that, too. So does a site's own last
    letter, by which it sees that its ledger was put back.

    Parameters
    ----------
    where
        An admin's start-up kit, with or without "flare:" in front.
    federation
        The federation's ID.
    """

    def __init__(self, where: str, federation: str) -> None:
        self._kit = Path(str(where).removeprefix("flare:")).absolute()
        try:
            username(self._kit)
        except (KeyError, TypeError):
            raise InputError(f"{self._kit} is not a FLARE admin's start-up kit") from None
        if importlib.util.find_spec("nvflare") is None:
            raise InputError("flare: needs NVIDIA FLARE: pip install privcal[flare]")
        self._folder = Path(tempfile.mkdtemp(prefix="privcal-flare-"))
        self._spool = self._folder / "spool"
        self._spool.mkdir()
        super().__init__(self._spool, federation)
        self._federation = federation
        self._letters: dict[str, list[str]] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._next, self._began, self._empty, self._problem = 0.0, 0.0, 0, False
        self.met: dict[str, str] = {}
        """What each client said in the last trip: its site's ID, "no site", or "silent"."""
        self._told: Sequence[str] = []
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def put(self, writer: str, name: str, content: bytes) -> None:
        super().put(writer, name, content)
        path, to = f"{writer}/{name}" if writer else name, self._letters.setdefault(name[:32], [])
        if path not in to:
            to[:] = [*to[1 - KEPT :], path]
            self._next, self._empty = (self._next, self._empty) if self._problem else (0.0, 0)

    def delete(self, writer: str, name: str) -> None:
        super().delete(writer, name)
        with suppress(KeyError, ValueError):
            self._letters[name[:32]].remove(f"{writer}/{name}")

    def list(self, writer: str) -> Iterator[str]:
        if self._child is not None:
            self._collect(self._child)
        elif self._letters and time.monotonic() >= self._next:
            self._begin()
        yield from super().list(writer)

    def _begin(self) -> None:
        folder, letters = self._folder / "trip", [*chain(*self._letters.values())]
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "result").mkdir(parents=True)
        pack(folder / "job", self._spool, self._federation, [*letters, *self._last(letters)])
        command = [sys.executable, "-P", "-m", "privcal.transport.flare.trip"]
        # Who said nothing last time is waited for only where an answer is missing.
        without = [] if self._empty else self._odd()
        self._child = subprocess.Popen(
            [*command, str(self._kit), str(folder), str(self._spool), *without],
            stdin=subprocess.PIPE,  # its end tells the child of ours
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        self._began = time.monotonic()

    def _last(self, letters: Iterable[str]) -> Sequence[str]:
        """Each site's last answer."""
        root, own = self._spool / self._federation, {path[:32] for path in letters}
        sites = [path for path in root.iterdir() if path.is_dir() and path.name not in own]
        files = [max(site.iterdir(), key=lambda path: path.stat().st_mtime_ns) for site in sites]
        return [f"{path.parent.name}/{path.name}" for path in files]

    def _collect(self, child: subprocess.Popen[bytes]) -> None:
        """See whether the trip has ended; OSError with a sentence if it came to nothing."""
        late = time.monotonic() - self._began > LIMIT
        if child.poll() is None and not late:
            return
        child.kill()
        child.wait()
        if child.stdin is not None:
            child.stdin.close()
        self._child = None
        problem = f"FLARE did not end a job within {LIMIT:.0f} seconds"
        if not late:
            problem = "the process that talks to FLARE ended by itself"
        if (told := self._folder / "trip" / TOLD).is_file():
            facts = read_json(told, "account of a trip")
            problem, self.met = facts.get("problem"), self.met | facts.get("met", {})
            self._empty = 0 if facts.get("brought") else self._empty
        self._next = time.monotonic() + min(PAUSE * 2**self._empty, PAUSES)
        self._empty, self._problem = self._empty + 1, bool(problem)
        if problem:
            raise OSError(f"FLARE: {problem}")
        if self._told != (odd := self._odd()):
            self._told = odd
            if odd:
                raise OSError(f"FLARE: no word from the sites of {', '.join(odd)}: {CLIENT}")

    def _odd(self) -> Sequence[str]:
        """The clients that said nothing of a site in the last trip."""
        return [name for name, said in self.met.items() if said in ("silent", "no site")]

    def close(self) -> None:
        """End a trip that is under way."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
