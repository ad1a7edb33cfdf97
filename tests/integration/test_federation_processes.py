"""Real server and site processes over loopback: they connect, stop, and survive a crash."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from privcal.trusted.errors import InputError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")
if not Path("/proc/self/cmdline").exists():
    pytest.skip("finds processes in /proc", allow_module_level=True)

import privcal
from privcal.transport.federation.authority.kits import provision
from privcal.transport.federation.authority.project import Member, Project
from privcal.transport.federation.calibrator.link import Link
from privcal.transport.federation.one_machine import processes
from privcal.transport.federation.one_machine.demo import free_port
from privcal.transport.federation.site import setup
from privcal.transport.federation.site.health import Sign, last_status, look
from tests.support.federation_parts import write_rows
from tests.support.federation_processes import until

pytestmark = pytest.mark.xdist_group("federation processes")


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Made once. What one test leaves running the next one finds; `up` starts what is missing."""
    folder = tmp_path_factory.mktemp("federation")
    project = Project(
        "trial",
        Member("localhost", "server"),
        free_port(),
        (Member("hospital-1", "one"), Member("hospital-2", "second")),
        (Member("ann@lab.org", "lab"),),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        provision(project, folder / "kits")
        for member in project.sites:
            data = write_rows(folder / f"{member.name}.npz", 20, seed=len(member.org))
            setup.init(folder / "kits" / member.name, data, privcal.Policy(1.0), delay=0.2)
    yield folder / "kits"
    processes.down(folder / "kits")


@pytest.fixture(autouse=True)
def _our_code_and_their_marks_in_their_processes(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(privcal.__file__).parent.parent))
    monkeypatch.setenv("PRIVCAL_MARKS", str(kits.parent / "marks.db"))


def of(kits: Path) -> list[str]:
    """Every process that names the kits, found without the code under test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(kits) in words:
            found.append(words)
    return found


def test_a_site_opens_no_port(kits: Path) -> None:
    """The server has one; nobody on a hospital's machine or network can connect to the site."""
    pids = processes.up(kits)
    assert listening(pids["localhost"])
    assert not listening(pids["hospital-1"])


def test_sites_connect_stop_and_come_back_after_a_crash(kits: Path) -> None:
    processes.down(kits)
    assert processes.running(kits) == {}
    pids = processes.up(kits)
    assert list(pids) == ["localhost", "hospital-1", "hospital-2"]
    assert json.loads((kits / "processes.json").read_text()) == pids
    assert processes.up(kits) == pids  # nothing to do

    os.kill(pids["hospital-2"], signal.SIGKILL)
    until(lambda: "hospital-2" not in processes.running(kits), "its end")
    again = processes.up(kits)
    assert again["hospital-2"] != pids["hospital-2"]
    assert {n: again[n] for n in ("localhost", "hospital-1")} == {
        n: pids[n] for n in ("localhost", "hospital-1")
    }
    assert connected(kits) == ["hospital-1", "hospital-2"]

    assert processes.down(kits) == 3
    assert of(kits) == []
    assert processes.running(kits) == {}
    assert not (kits / "processes.json").exists()
    assert processes.down(kits) == 0
    for name in ("localhost", "hospital-1"):
        assert (kits / name / processes.OUTPUT).stat().st_size > 0


def test_sites_find_a_server_that_was_restarted(kits: Path) -> None:
    pids = processes.up(kits)
    os.kill(pids["localhost"], signal.SIGKILL)
    until(lambda: "localhost" not in processes.running(kits), "its end")
    again = processes.up(kits)
    assert again["localhost"] != pids["localhost"]
    assert again["hospital-1"] == pids["hospital-1"], "a hospital needs to do nothing"
    until(lambda: connected(kits) == ["hospital-1", "hospital-2"], "the sites")


def test_a_site_that_runs_is_well_and_one_that_was_stopped_is_not(kits: Path) -> None:
    processes.up(kits, sites=None)
    until(lambda: last_status(kits / "hospital-1").get("connected_since"), "its first word")
    signs = {sign.what: sign for sign in look(kits / "hospital-1")}
    assert all(sign.well for sign in signs.values()), signs
    os.kill(processes.running(kits)["localhost"], signal.SIGKILL)
    until(lambda: not signs_of(kits)["server"].well, "its notice that the server is gone")
    processes.down(kits)
    assert not signs_of(kits)["process"].well


def signs_of(kits: Path) -> dict[str, Sign]:
    return {sign.what: sign for sign in look(kits / "hospital-1")}


def connected(kits: Path) -> list[str]:
    link = Link(kits / "ann@lab.org")
    link.open()
    try:
        return link.sites()
    finally:
        link.close()


def listening(pid: int) -> bool:
    """Whether a process has a socket that waits for connections."""
    mine = {
        os.readlink(entry)
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if entry.is_symlink() and os.path.lexists(entry)
    }
    waiting = "0A"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == waiting and f"socket:[{words[9]}]" in mine:
                return True
    return False


def test_a_site_that_cannot_start_is_said_and_nothing_is_left(kits: Path) -> None:
    processes.down(kits)
    file = kits / "hospital-2" / "startup" / "fed_client.json"
    whole = file.read_text()
    file.write_text("{")
    try:
        with pytest.raises(InputError, match="hospital-2 stopped while starting; see"):
            processes.up(kits)
    finally:
        file.write_text(whole)
    assert of(kits) == []


def test_only_sites_of_the_federation_are_started(kits: Path) -> None:
    with pytest.raises(InputError, match="has no site 'hospital-9'; it has hospital-1"):
        processes.up(kits, sites=["hospital-9"])
