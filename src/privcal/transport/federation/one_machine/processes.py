"""A federation's server and sites as processes of this machine: start, stop, list."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privcal.data.files import write_document
from privcal.transport.federation.authority.kits import load
from privcal.transport.federation.shared.kit import Kind
from privcal.transport.federation.shared.process import MODULE, READY, command, environment
from privcal.trusted.errors import InputError

PIDS = "processes.json"
OUTPUT = "output.txt"
MAX_OUTPUT = 1 << 20
_ANY = "privcal.transport.federation."  # the children that read data too


@dataclass(frozen=True)
class _Participant:
    kind: Kind
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class _Starting:
    participant: _Participant
    process: subprocess.Popen[bytes] | None
    """None where it runs already."""
    output_before: int
    """The size of its output when it was started."""


def up(
    kits: Path, sites: Sequence[str] | None = None, server: bool = True, timeout: float = 60.0
) -> dict[str, int]:
    """Start what does not run yet, wait until all sites are connected; each one's process id.

    `sites`: names, all where not given. Without `server`, only sites are started here.
    """
    kits = kits.resolve()
    wanted = _participants(kits, sites, server)
    alive = {p.name for p in wanted if _pids(p)}
    starting: list[_Starting] = []
    # Sites that outlived their server will say so when they have found the new one.
    lost = server and wanted[0].name not in alive
    try:
        for participant in wanted:
            if participant.name not in alive:
                _stop([participant.folder])  # what a process that crashed left
                starting.append(_start(participant))
            elif lost:
                size = (participant.folder / OUTPUT).stat().st_size
                starting.append(_Starting(participant, None, size))
        _wait(starting, timeout)
    except BaseException:
        _stop([s.participant.folder for s in starting if s.process is not None])
        raise
    finally:
        pids = running(kits)
        write_document(kits / PIDS, pids)
    return pids


def down(kits: Path, warn: Callable[[str], None] = lambda text: None) -> int:
    """Stop every process of a folder's participants; how many there were.

    What runs is found in the table of processes: it is stopped whatever became of its folder.
    """
    kits = kits.resolve()
    folders = {Path(w) for _, words in _all_processes() for w in words if Path(w).parent == kits}
    try:
        load(kits)
    except InputError as error:
        if not folders:
            raise
        warn(str(error))
    count = _stop(folders)
    (kits / PIDS).unlink(missing_ok=True)
    return count


def running(kits: Path) -> dict[str, int]:
    """Name and process id of each participant that runs here."""
    pids = {p.name: _pids(p) for p in _participants(kits.resolve(), None, True)}
    return {name: numbers[0] for name, numbers in pids.items() if numbers}


def _participants(kits: Path, sites: Sequence[str] | None, server: bool) -> list[_Participant]:
    project = load(kits)
    known = [member.name for member in project.sites]
    if unknown := [name for name in sites or () if name not in known]:
        raise InputError(f"{kits} has no site {unknown[0]!r}; it has {', '.join(known)}")
    participants = [_Participant("server", kits / project.server.name)] if server else []
    participants += [
        _Participant("site", kits / name) for name in (known if sites is None else sites)
    ]
    for participant in participants:
        if not (participant.folder / "startup").is_dir():
            raise InputError(f"{participant.folder} is missing; name the sites that are here")
    return participants


def _start(participant: _Participant) -> _Starting:
    folder = participant.folder
    path = folder / OUTPUT
    if path.exists() and path.stat().st_size > MAX_OUTPUT:
        path.replace(folder / f"{OUTPUT}.1")
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = os.fstat(output).st_size
    try:
        process = subprocess.Popen(
            command(participant.kind, folder),
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this command, and its terminal
            umask=0o077,
        )
    finally:
        os.close(output)
    return _Starting(participant, process, before)


def _wait(starting: Iterable[_Starting], timeout: float) -> None:
    """Return when each has printed, since it was started, that it is ready."""
    end = time.monotonic() + timeout
    for start in starting:
        participant = start.participant
        path = participant.folder / OUTPUT
        while True:
            # First: what it printed last must be read.
            gone = start.process is not None and start.process.poll() is not None
            with path.open("rb") as output:
                output.seek(start.output_before)
                if READY[participant.kind].encode() in output.read():
                    break
            if gone:
                raise InputError(f"{participant.name} stopped while starting; see {path}")
            if time.monotonic() > end:
                raise InputError(
                    f"{participant.name} was not connected after {timeout:g} seconds; see {path}"
                )
            time.sleep(0.1)


def _pids(participant: _Participant) -> list[int]:
    """The participant's own process, without its children."""
    module = MODULE[participant.kind]
    return [pid for pid, words in _processes([participant.folder]) if module in words]


def _stop(folders: Collection[Path]) -> int:
    """Ask, then kill, until nothing of these folders is left; how many processes there were."""
    count = len(_processes(folders))
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        end = time.monotonic() + patience
        while left := _processes(folders):  # again and again: one may start while we stop
            for pid, _ in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        else:
            return count
    raise InputError(f"processes {', '.join(str(pid) for pid, _ in left)} could not be stopped")


def _processes(folders: Collection[Path]) -> list[tuple[int, list[str]]]:
    """The processes of these folders' participants, children included, with their command lines."""
    names = {str(folder) for folder in folders}
    return [(pid, words) for pid, words in _all_processes() if names & set(words)]


def _all_processes() -> list[tuple[int, list[str]]]:
    """All processes of federations on this machine.

    By command line, not by recorded numbers: those are lost in a crash, and are given to others.
    """
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # gone, or another user's
            continue
        if any(word.startswith(_ANY) for word in words):
            processes.append((int(entry.parent.name), words))
    return processes
