"""A federation's server and sites as processes of this machine: start, stop, see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privcal.errors import InputError
from privcal.federation.kits import load
from privcal.federation.project import Member
from privcal.files import replacing
from privcal.privacy.marks import default_marks

PIDS = "processes.json"
OUTPUT = "output.txt"
_SERVER = "nvflare.private.fed.app.server.server_train"
_SITE = "nvflare.private.fed.app.client.client_train"
_ANY = "nvflare.private.fed.app."  # jobs too: those have process groups of their own
_READY = {_SERVER: "Server started", _SITE: "Successfully registered client"}
# Nothing else of the caller's environment is for a site to know.
_PASSED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "SSL_CERT_FILE")


@dataclass(frozen=True)
class _Participant:
    member: Member
    folder: Path
    module: str

    @property
    def command(self) -> list[str]:
        site = self.module == _SITE
        return [
            *(sys.executable, "-u", "-m", self.module, "-m", str(self.folder)),
            *("-s", "fed_client.json" if site else "fed_server.json"),
            *("--set", "secure_train=true", *([f"uid={self.member.name}"] if site else [])),
            *(f"org={self.member.org}", "config_folder=config"),
        ]


def up(
    kits: Path, sites: Sequence[str] | None = None, server: bool = True, timeout: float = 60.0
) -> dict[str, int]:
    """Start what does not run yet, wait until all sites are connected; each one's process id.

    `sites`: names, all where not given. Without `server`, only sites are started here.
    """
    kits = kits.resolve()
    if any(letter.isspace() or letter in "'\"\\" for letter in str(kits)):
        # FLARE builds a job's command as one text and splits it again.
        raise InputError(
            f"FLARE cannot run jobs below {str(kits)!r}: move it to a path without spaces"
        )
    wanted = _participants(kits, sites, server)
    alive = {p.member.name for p in wanted if _mains(p)}
    if server and wanted[0].member.name not in alive:
        # Sites that outlived their server hold a session that a new server does not know.
        _stop([p.folder for p in wanted])
        alive = set()
    starting: list[tuple[_Participant, subprocess.Popen[bytes], int]] = []
    try:
        for participant in wanted:
            if participant.member.name not in alive:
                _stop([participant.folder])  # jobs of a process that crashed
                starting.append(_start(participant))
                if participant.module == _SERVER:
                    _wait(starting, timeout)
        _wait(starting, timeout)
    except BaseException:
        _stop([participant.folder for participant, _, _ in starting])
        raise
    finally:
        pids = running(kits)
        with replacing(kits / PIDS) as part:
            part.write_text(json.dumps(pids, indent=2) + "\n", "utf-8")
    return pids


def down(kits: Path) -> int:
    """Stop every process of a folder's participants, jobs included; how many there were."""
    kits = kits.resolve()
    count = _stop([p.folder for p in _participants(kits, None, True)])
    (kits / PIDS).unlink(missing_ok=True)
    return count


def running(kits: Path) -> dict[str, int]:
    """Name and process id of each participant that runs here."""
    kits = kits.resolve()
    found = {p.member.name: _mains(p) for p in _participants(kits, None, True)}
    return {name: pids[0] for name, pids in found.items() if pids}


def _participants(kits: Path, sites: Sequence[str] | None, server: bool) -> list[_Participant]:
    project = load(kits)
    known = {member.name: member for member in project.sites}
    if unknown := [name for name in sites or () if name not in known]:
        raise InputError(f"{kits} has no site {unknown[0]!r}; it has {', '.join(known)}")
    found = [_Participant(project.server, kits / project.server.name, _SERVER)] if server else []
    names = known if sites is None else sites
    found += [_Participant(known[name], kits / name, _SITE) for name in names]
    for participant in found:
        if not (participant.folder / "startup").is_dir():
            raise InputError(f"{participant.folder} is missing; name the sites that are here")
    return found


def _start(participant: _Participant) -> tuple[_Participant, subprocess.Popen[bytes], int]:
    folder = participant.folder
    own = {}
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp")):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        own[variable] = str(folder / name)
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ} | own
    environment["PRIVCAL_MARKS"] = str(
        default_marks()
    )  # the owner's: its ledger was made with them
    if path := environment.get("PYTHONPATH"):  # what it says is seen from here
        places = [os.path.abspath(place) for place in path.split(os.pathsep) if place]
        environment["PYTHONPATH"] = os.pathsep.join(places)
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = os.fstat(output).st_size
    try:
        process = subprocess.Popen(
            participant.command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it outlives this command, and its terminal
            umask=0o077,
        )
    finally:
        os.close(output)
    return participant, process, before


def _wait(
    starting: Iterable[tuple[_Participant, subprocess.Popen[bytes], int]], timeout: float
) -> None:
    """Until each has said, since it was started, that it is ready."""
    end = time.monotonic() + timeout
    for participant, process, before in starting:
        path = participant.folder / OUTPUT
        while True:
            gone = process.poll() is not None  # first: what it said last must be read
            with path.open("rb") as output:
                output.seek(before)
                if _READY[participant.module].encode() in output.read():
                    break
            if gone:
                raise InputError(f"{participant.member.name} stopped while starting; see {path}")
            if time.monotonic() > end:
                raise InputError(
                    f"{participant.member.name} was not connected after {timeout:g} seconds; "
                    f"see {path}"
                )
            time.sleep(0.1)


def _mains(participant: _Participant) -> list[int]:
    """The participant's own process, without its jobs."""
    return [pid for pid, words in _processes([participant.folder]) if participant.module in words]


def _stop(folders: Sequence[Path]) -> int:
    """Ask, then kill, until nothing of these folders is left."""
    count = len(_processes(folders))
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        end = time.monotonic() + patience
        while left := _processes(folders):  # again and again: a job may start while we stop
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
    """FLARE's processes whose workspace is one of the folders, jobs included.

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
