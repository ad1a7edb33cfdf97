"""A federation's server and sites as processes of this machine: start, stop, see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privcal.errors import InputError
from privcal.federation import server
from privcal.federation.authority.kits import load
from privcal.federation.site import service
from privcal.files import replacing

PIDS = "processes.json"
OUTPUT = "output.txt"
MAX_OUTPUT = 1 << 20
_SERVER = "privcal.federation.server"
_SITE = "privcal.federation.site.service"
_ANY = "privcal.federation."  # the children that read data too
_READY = {_SERVER: server.READY, _SITE: service.READY}
# Nothing else of the caller's environment is for a participant to know.
_PASSED = (*service.PASSED, "SSL_CERT_FILE")


@dataclass(frozen=True)
class _Participant:
    name: str
    folder: Path
    module: str

    @property
    def command(self) -> list[str]:
        # -P: nothing is imported from the folder it is started in.
        return [sys.executable, "-u", "-P", "-m", self.module, str(self.folder)]


@dataclass(frozen=True)
class _Starting:
    participant: _Participant
    process: subprocess.Popen[bytes] | None
    """None where it runs already."""
    before: int
    """How much it had said by then."""


def be(folder: Path, kind: str) -> None:
    """Become a participant: this process, in the foreground, with an environment of its own."""
    folder = folder.resolve()
    if not (
        folder / "startup" / ("fed_client.json" if kind == "site" else "fed_server.json")
    ).is_file():
        raise InputError(f"{folder} is not a {kind}'s start-up kit")
    participant = _Participant(folder.name, folder, _SITE if kind == "site" else _SERVER)
    os.umask(0o077)
    os.chdir(folder)
    os.execve(sys.executable, participant.command, _environment(folder))


def up(
    kits: Path, sites: Sequence[str] | None = None, server: bool = True, timeout: float = 60.0
) -> dict[str, int]:
    """Start what does not run yet, wait until all sites are connected; each one's process id.

    `sites`: names, all where not given. Without `server`, only sites are started here.
    """
    kits = kits.resolve()
    wanted = _participants(kits, sites, server)
    alive = {p.name for p in wanted if _mains(p)}
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
        _stop([one.participant.folder for one in starting if one.process is not None])
        raise
    finally:
        pids = running(kits)
        with replacing(kits / PIDS) as part:
            part.write_text(json.dumps(pids, indent=2) + "\n", "utf-8")
    return pids


def down(kits: Path) -> int:
    """Stop every process of a folder's participants; how many there were."""
    kits = kits.resolve()
    count = _stop([p.folder for p in _participants(kits, None, True)])
    (kits / PIDS).unlink(missing_ok=True)
    return count


def running(kits: Path) -> dict[str, int]:
    """Name and process id of each participant that runs here."""
    kits = kits.resolve()
    found = {p.name: _mains(p) for p in _participants(kits, None, True)}
    return {name: pids[0] for name, pids in found.items() if pids}


def _participants(kits: Path, sites: Sequence[str] | None, server: bool) -> list[_Participant]:
    project = load(kits)
    known = [member.name for member in project.sites]
    if unknown := [name for name in sites or () if name not in known]:
        raise InputError(f"{kits} has no site {unknown[0]!r}; it has {', '.join(known)}")
    host = project.server.name
    found = [_Participant(host, kits / host, _SERVER)] if server else []
    names = known if sites is None else sites
    found += [_Participant(name, kits / name, _SITE) for name in names]
    for participant in found:
        if not (participant.folder / "startup").is_dir():
            raise InputError(f"{participant.folder} is missing; name the sites that are here")
    return found


def _environment(folder: Path) -> Mapping[str, str]:
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp")):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        environment[variable] = str(folder / name)
    if path := environment.get("PYTHONPATH"):  # what it says is seen from here
        places = [os.path.abspath(place) for place in path.split(os.pathsep) if place]
        environment["PYTHONPATH"] = os.pathsep.join(places)
    return environment


def _start(participant: _Participant) -> _Starting:
    folder = participant.folder
    path = folder / OUTPUT
    if path.exists() and path.stat().st_size > MAX_OUTPUT:
        path.replace(folder / f"{OUTPUT}.1")
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = os.fstat(output).st_size
    try:
        process = subprocess.Popen(
            participant.command,
            cwd=folder,
            env=_environment(folder),
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
    """Until each has said, since it was started, that it is ready."""
    end = time.monotonic() + timeout
    for one in starting:
        participant = one.participant
        path = participant.folder / OUTPUT
        while True:
            # First: what it said last must be read.
            gone = one.process is not None and one.process.poll() is not None
            with path.open("rb") as output:
                output.seek(one.before)
                if _READY[participant.module].encode() in output.read():
                    break
            if gone:
                raise InputError(f"{participant.name} stopped while starting; see {path}")
            if time.monotonic() > end:
                raise InputError(
                    f"{participant.name} was not connected after {timeout:g} seconds; see {path}"
                )
            time.sleep(0.1)


def _mains(participant: _Participant) -> list[int]:
    """The participant's own process, without its children."""
    return [pid for pid, words in _processes([participant.folder]) if participant.module in words]


def _stop(folders: Sequence[Path]) -> int:
    """Ask, then kill, until nothing of these folders is left."""
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


def _processes(folders: Sequence[Path]) -> list[tuple[int, list[str]]]:
    """The processes of these folders' participants, children included.

    By command line, not by recorded numbers: those are lost in a crash, and are given to others.
    """
    places = {str(folder) for folder in folders}
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # gone, or another user's
            continue
        if places & set(words) and any(word.startswith(_ANY) for word in words):
            found.append((int(entry.parent.name), words))
    return found
