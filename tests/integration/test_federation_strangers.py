"""Participants with good certificates and bad intentions: a calibrator, a hospital, the server.

What they do is in `tests/support/attacker.py` and `tests/support/malicious_server.py`. The order of the tests is
that of growing damage: in the last ones the server dies, and comes back as somebody else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import privcal

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")
if not Path("/proc/self/cmdline").exists():
    pytest.skip("finds processes in /proc", allow_module_level=True)

from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType

from privcal.transport.federation.one_machine import processes
from privcal.transport.federation.site import settings as site_settings
from tests.support import attacker, malicious_server
from tests.support.attacker import NET, NET_TOPICS, Heard, Intruder
from tests.support.federation_parts import ANN, BOB, SERVER
from tests.support.federation_processes import NAMES, Federation, running, until

pytestmark = [pytest.mark.xdist_group("federation"), pytest.mark.usefixtures("marks_of_the_sites")]

HOSPITAL = "site-4"  # the one with bad intentions
VICTIMS = ("site-1", "site-2", "site-3")
RACE = float(os.environ.get("PRIVCAL_RACE_SECONDS", "4"))
"""Seconds for each race. Where deployments are still answered it takes some luck: give it 120."""
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that reached the server, as its operator may record it."""
    return tmp_path_factory.mktemp("tap") / "frames"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, tap: Path) -> Iterator[Federation]:
    """With a server that is honest but listens."""
    overlay = tmp_path_factory.mktemp("overlay")
    (overlay / "sitecustomize.py").write_text(attacker.TAP.format(tap=str(tap)))
    with running(tmp_path_factory.mktemp("federation"), path=[overlay]) as made:
        yield made


@pytest.fixture(scope="module")
def bob(federation: Federation) -> Iterator[Intruder]:
    with Intruder(federation.kits, BOB) as intruder:
        until(intruder.cell.core_cell.is_backbone_ready, "his connection: he is a participant")
        yield intruder


@pytest.fixture(scope="module")
def hospital(federation: Federation) -> Iterator[Intruder]:
    with Intruder(federation.kits, HOSPITAL) as intruder:
        yield intruder


@pytest.fixture(scope="module")
def archives(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`good.zip`, as Ann signs it and every site has seen it; `evil.zip`, signed by Bob."""
    folder = tmp_path_factory.mktemp("archives")
    code = attacker.CODE.format(marker=str(folder / malicious_server.MARKER))
    for name, who, brings in (("good", ANN, None), ("evil", BOB, code)):
        startup = federation.kits / who / "startup"
        packed = attacker.app_archive(startup, folder / name, brings)
        (folder / f"{name}.zip").write_bytes(packed)
        shutil.rmtree(folder / name)
    return folder


# --- looking at a site from its own side --------------------------------------------------------


def processes_of(folder: Path) -> dict[int, str]:
    """Every process that names a folder or works in it, found without the code under test."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            works_in = os.readlink(entry / "cwd")
        except OSError:
            continue
        if works_in == str(folder) or str(folder) in words:
            found[int(entry.name)] = " ".join(words)
    return found


def peak_megabytes(pids: dict[int, str]) -> int:
    peaks = [re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{p}/status").read_text()) for p in pids]
    return sum(int(peak) for [peak] in peaks) // 1024


def contents(folder: Path) -> set[str]:
    """What lies in a site's folder, but for logs and what its own process keeps for itself."""
    own = {"home", "tmp", "transfer"}
    says = re.compile(r"local/(status\.json|\.[0-9a-f]{8}\.json)")  # how it is, every ten seconds
    return {
        name
        for path in folder.rglob("*")
        if (name := path.relative_to(folder).as_posix()).split("/")[0] not in own
        and not says.fullmatch(name)
        and not re.search(r"log[^/]*\.(txt|json|log)$|output\.txt$|\.log$|-wal$|-shm$", name)
    }


def noisy_values(federation: Federation) -> set[int]:
    """Numbers that left a site, as its ledger stored them; long enough to be told from others."""
    found: set[int] = set()
    for name in NAMES:
        ledger = federation.site(name) / "local" / site_settings.LEDGER
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
            for (text,) in db.execute("SELECT answer FROM entry WHERE answer IS NOT NULL"):
                found |= {v for v in json.loads(text) if abs(v) >= 10**5}
    return found


def readable(values: set[int], seen: bytes) -> set[int]:
    """Those numbers that somebody who sees these bytes can read: in words or in binary."""
    return {
        v
        for v in values
        if re.search(rb"(?<!\d)%d(?!\d)" % abs(v), seen)
        or v.to_bytes(8, "big", signed=True) in seen
        or v.to_bytes(8, "little", signed=True) in seen
    }


def secrets_of(federation: Federation, seen: bytes) -> set[str]:
    """What of the sites' machines is told in these bytes: paths, numbers of processes, memory."""
    words = {str(federation.kits), "Memory Usage", "Process ID", "client.key", "tcp://"}
    told = {word for word in words if word.encode() in seen}
    for name in NAMES:
        for pid in processes_of(federation.site(name)):
            if re.search(rb"(?<![\w.:-])%d(?![\w.:-])" % pid, seen):
                told.add(f"process {pid} of {name}")
    return told


def heard_of(intruder: Intruder) -> bytes:
    """All that reached an attacker since the last look."""
    seen = b"\n".join(intruder.received)
    intruder.received.clear()
    return seen


# --- 1: code ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("who", "victim"), [("bob", "site-1"), ("hospital", "site-2")])
def test_no_interleaving_of_deployments_brings_code_or_a_file_to_a_site(
    federation: Federation,
    archives: Path,
    request: pytest.FixtureRequest,
    who: str,
    victim: str,
) -> None:
    """Two deployments of one job and its start, raced: one brings code between 550 MB of zeros.

    The site does not even unpack them: no file, no memory, no process, no reply.
    """
    intruder: Intruder = request.getfixturevalue(who)
    folder, marker = federation.site(victim), archives / malicious_server.MARKER
    marker.unlink(missing_ok=True)  # another attacker's
    before, files = processes_of(folder), contents(folder)
    peak = peak_megabytes(before)
    good, evil = ((archives / f"{name}.zip").read_bytes() for name in ("good", "evil"))

    def say(site: str, asked: tuple[str, dict[str, Any], Any], timeout: float) -> Heard:
        return intruder.admin_request(site, *asked, timeout=timeout)

    replies = attacker.race(say, victim, good, evil, marker, seconds=RACE)
    assert not marker.exists(), marker.read_text()
    assert [reply.text for reply in replies if reply.served] == []
    assert processes_of(folder) == before
    assert contents(folder) == files
    assert peak_megabytes(before) < peak + 100


# --- 2: somebody else's campaign ----------------------------------------------------------------


def test_nobody_else_reads_or_ends_a_campaign(
    federation: Federation, bob: Intruder, hospital: Intruder, tap: Path, tmp_path: Path
) -> None:
    """Another calibrator and a hospital try while Ann's runs; the server's operator reads along.

    Afterwards both send every question again that the server carried, byte for byte.
    """
    start = tap.stat().st_size
    known = noisy_values(federation)
    out = tmp_path / "map.json"
    running = federation.calibrate(out)
    while running.poll() is None:
        for job in bob.jobs():
            replies = bob.at_once(
                *(
                    partial(intruder.app_command, job, "privcal.replies", {"ticket": ticket})
                    for intruder in (bob, hospital)
                    for ticket in range(6)
                )
            )
            if any("values" in reply.text for reply in replies):
                bob.app_command(job, "privcal.end", {})
        time.sleep(0.2)
    _, said = running.communicate()
    secret = noisy_values(federation) - known
    seen = {"bob": heard_of(bob), "hospital": heard_of(hospital)}
    with tap.open("rb") as file:
        file.seek(start)
        seen["the server's operator"] = file.read()
    spent = federation.spent()
    bob.at_once(
        *(
            partial(intruder.again, headers, payload)
            for headers, payload in attacker.frames(tap)
            if headers.get(MessageHeaderKey.DESTINATION) in NAMES
            and headers.get(MessageHeaderKey.MSG_TYPE) == MessageType.REQ
            for intruder in (bob, hospital)
        )
    )
    seen["bob, later"], seen["hospital, later"] = heard_of(bob), heard_of(hospital)
    assert secret, "there was something to read"
    read = {who: sorted(some) for who, what in seen.items() if (some := readable(secret, what))}
    assert (read, running.returncode) == ({}, 0), said
    assert federation.spent() == spent, "an old question costs nothing"


# --- 3: what a process tells about itself -------------------------------------------------------


@pytest.mark.parametrize("who", ["bob", "hospital"])
def test_no_process_tells_anybody_of_its_memory_its_paths_or_its_peers(
    federation: Federation, request: pytest.FixtureRequest, who: str
) -> None:
    """FLARE's introspection, and the replies to commands that are not this sender's to give."""
    intruder: Intruder = request.getfixturevalue(who)
    heard_of(intruder)
    job = str(uuid.uuid4())
    asked = {"mode": "count", "pool": "msg_travel"}
    attacks = [
        *(
            partial(intruder.net, target, topic, asked)
            for target in ("site-1", "server", f"site-1.{job}", f"server.{job}")
            for topic in NET_TOPICS
        ),
        partial(intruder.delete_run, "site-1", job),
        partial(intruder.admin_request, "site-1", "train.check_status"),
        partial(intruder.admin_request, "site-1", "sys.info"),
        *(partial(intruder.aux, target, "fed.event") for target in ("site-1", "server")),
    ]
    replies = intruder.at_once(*attacks)
    assert [reply.text for reply in replies if reply.served] == []
    assert secrets_of(federation, heard_of(intruder)) == set()


OFFICIAL = (
    "cells", "check_status server", "check_status client", "sys_info server", "report_env client",
    *(f"{topic} {target}" for target in ("site-1", "server")
      for topic in ("process_info", "conns", "peers", "msg_stats", "list_pools",
                    "show_pool msg_travel")),
)  # fmt: skip
TOKEN = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@pytest.fixture(scope="module")
def console(federation: Federation) -> Iterator[Any]:
    """Bob's session by FLARE's own tools; None where the server gives none."""
    with attacker.official(federation.kits, BOB) as session:
        yield session


def test_the_official_commands_tell_a_calibrator_nothing_of_the_sites(
    federation: Federation, console: Any
) -> None:
    """By FLARE's own console, for whoever is let into it; with it, the sites' bearer tokens."""
    commands = OFFICIAL if console is not None else ()
    said = "\n".join(str(console.api.do_command(command)) for command in commands)
    assert secrets_of(federation, said.encode()) == set()
    assert TOKEN.findall(said) == []


# --- 7: the server ------------------------------------------------------------------------------


SECRET = "canary-of-the-server"


def hocon_job(folder: Path, secret: Path) -> Path:
    """A job whose configuration for the server is made of the server's environment and a file.

    They become the name of a workflow, which is in the job's log, which its owner may download.
    """
    job = folder / "job"
    at_sites = {"executors": [{"tasks": ["x"], "executor": {"path": attacker.EXECUTOR}}]}
    meta = {"name": "job", "resource_spec": {}, "min_clients": 1,
            "deploy_map": {"app": ["server"], "at_sites": list(NAMES)}}  # fmt: skip
    for place, text in {
        "meta.json": json.dumps(meta),
        "at_sites/config/config_fed_client.json": json.dumps({"format_version": 2, **at_sites}),
        "app/config/config_fed_server.conf": (
            f'format_version = 2\nstolen {{ include file("{secret}") }}\n'
            'workflows = [{id = ${PATH}"-"${stolen.password}, '
            'path = "privcal.transport.federation.relay.Relay", args {}}]\ncomponents = []\n'
        ),
    }.items():
        (job / place).parent.mkdir(parents=True, exist_ok=True)
        (job / place).write_text(text)
    return job


def test_a_job_reads_nothing_of_the_servers_environment_or_files(
    federation: Federation, bob: Intruder, console: Any, tmp_path: Path
) -> None:
    """Sent as a calibrator may, if there are jobs at all; and as commands without a session."""
    heard_of(bob)
    secret = federation.kits / SERVER / "secret.json"
    secret.write_text(json.dumps({"password": SECRET}))
    back: list[bytes] = []
    if console is not None:
        job = console.submit_job(str(hocon_job(tmp_path, secret)))
        until(lambda: "RUNNING" in str(console.get_job_status(job)), "its start", 30)
        time.sleep(5)
        console.abort_job(job)
        until(lambda: "FINISHED" in str(console.get_job_status(job)), "its end", 30)
        result = Path(console.download_job_result(job))
        back = [path.read_bytes() for path in result.rglob("*") if path.is_file()]
    command = json.dumps({"data": [{"type": "command", "data": "list_jobs"}]})
    bob.at_once(
        partial(bob.send, "server", CellChannel.HCI, "command", command),
        partial(bob.send, "server", CellChannel.SERVER_PARENT_LISTENER, "get_clients", {}),
        partial(bob.send, "server", CellChannel.SERVER_COMMAND, "get_run_info", {}),
    )
    seen = b"\n".join([*back, heard_of(bob)])
    assert os.environ["PATH"].encode() not in seen
    assert SECRET.encode() not in seen


CHANNELS = (
    "privcal", "nobody's", NET, "_download_service", "sm__STREAM",
    *(channel for name, channel in vars(CellChannel).items() if name.isupper()),
)  # fmt: skip


def test_nothing_goes_from_one_hospital_to_another(
    federation: Federation, hospital: Intruder
) -> None:
    """On whatever channel, as one message or as a stream: the other does not even refuse it."""
    replies = hospital.at_once(
        *(
            partial(hospital.send, "site-3", channel, "peers", b"hello", core=core)
            for channel in CHANNELS
            for core in (True, False)
        )
    )
    assert [reply for reply in replies if reply.by.startswith("site-3")] == []
    assert [reply.text for reply in replies if reply.served] == []


# --- 6: another account -------------------------------------------------------------------------


def test_a_site_set_up_by_one_account_and_run_by_another_answers(
    federation: Federation, tmp_path: Path
) -> None:
    """Its marks are where PRIVCAL_MARKS says, whatever HOME it is started with."""
    folder = federation.site("site-3")
    pid = processes.running(federation.kits)["site-3"]
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")[:-1]
    environment = dict(line.split("=", 1) for line in variables) | {"HOME": str(tmp_path)}
    assert environment["PRIVCAL_MARKS"] == str(federation.marks)
    federation.kill("site-3")
    log = (tmp_path / "output").open("wb")
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        said = (tmp_path / "output").read_bytes
        until(lambda: b"is connected" in said(), "its connection")
        out = tmp_path / "map.json"
        asking = federation.calibrate(out, "--min-sites", 2)
        _, told = asking.communicate(timeout=240)
        assert asking.returncode == 0, told
        assert "left out" not in told
        assert privcal.load_map(out).provenance["answered"] == [4] * 5
    finally:
        process.kill()
        process.wait()
        log.close()
        federation.up("site-3")


# --- 5: those who die ---------------------------------------------------------------------------


def test_calibrators_that_die_leave_nothing_behind_and_lock_nobody_out(
    federation: Federation, tmp_path: Path
) -> None:
    """Four are killed in mid-campaign; the fifth calibrates, and no process of theirs is left."""
    first = federation.calibrate(tmp_path / "first.json")
    assert first.wait(timeout=240) == 0  # each site has its child that reads data now
    before = {name: set(processes_of(federation.site(name))) for name in (SERVER, *NAMES)}
    dying = [federation.calibrate(tmp_path / f"{n}.json") for n in range(4)]
    answers = [tmp_path / f"{n}.json.campaign" / "answers.jsonl" for n in range(4)]
    until(lambda: all(a.exists() and a.stat().st_size for a in answers), "their answers")
    for process in dying:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    fifth = federation.calibrate(tmp_path / "fifth.json")
    _, said = fifth.communicate(timeout=240)
    assert fifth.returncode == 0, said

    def nothing_left() -> bool:
        return all(set(processes_of(federation.site(n))) <= p for n, p in before.items())

    until(nothing_left, "the end of what the dead had asked for")


# --- 8 and the end: the server dies, and comes back as somebody else ----------------------------


def test_when_the_server_dies_a_calibrator_is_told_in_a_sentence(
    federation: Federation, tmp_path: Path
) -> None:
    out = tmp_path / "map.json"
    asking = federation.calibrate(out, "--site-timeout", 20)
    answers = tmp_path / "map.json.campaign" / "answers.jsonl"
    until(lambda: answers.exists() and answers.stat().st_size, "the first answers")
    federation.kill(SERVER)
    _, said = asking.communicate(timeout=240)
    assert asking.returncode == 1, said
    assert "the same command" in said
    assert len(said.splitlines()) <= 5, said


def test_a_malicious_server_gets_nothing_from_a_site_and_brings_nothing_to_it(
    federation: Federation, archives: Path, tmp_path: Path
) -> None:
    """It has the server's key, so the sites connect to it; then it says whatever it likes.

    Commands, introspection, odd and large payloads on every channel, lies in heartbeats, raced
    deployments, another address to go to. The sites live on and their folders stay as they are.
    """
    federation.kill(SERVER)
    marker = archives / malicious_server.MARKER
    marker.unlink(missing_ok=True)  # another attacker's
    before = {name: processes_of(federation.site(name)) for name in NAMES}
    files = {name: contents(federation.site(name)) for name in NAMES}
    peaks = {name: peak_megabytes(before[name]) for name in NAMES}
    places = [str(REPOSITORY), str(Path(privcal.__file__).parents[1])]
    command = [sys.executable, "-m", malicious_server.__name__, federation.kits, archives, RACE]
    with (tmp_path / "output").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            stdout=log,
            stderr=log,
        )
        try:
            until((archives / malicious_server.HEARD).exists, "what it heard", 240 + 2 * RACE)
        finally:
            process.kill()
            process.wait()
    heard = json.loads((archives / malicious_server.HEARD).read_text())
    assert not marker.exists(), marker.read_text()
    assert set(heard) == set(NAMES), "all of them were spoken to"
    for name, replies in heard.items():
        served = {asked: said for asked, said in replies.items() if said.startswith("ok ")}
        assert served == {}
        assert secrets_of(federation, json.dumps(replies).encode()) == set()
        assert processes_of(federation.site(name)) == before[name]
        assert contents(federation.site(name)) == files[name]
        assert peak_megabytes(before[name]) < peaks[name] + 100
