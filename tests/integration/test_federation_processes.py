"""Real server and site processes over loopback: they connect, stop, and survive a crash."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from privcal.errors import InputError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")
if not Path("/proc/self/cmdline").exists():
    pytest.skip("finds processes in /proc", allow_module_level=True)

import privcal
from privcal.federation import processes
from privcal.federation.kits import provision
from privcal.federation.project import Member, Project


@pytest.fixture
def kits(tmp_path: Path) -> Iterator[Path]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    project = Project(
        "trial",
        Member("localhost", "server"),
        port,
        (Member("hospital-1", "one"), Member("hospital-2", "two")),
        (Member("ann@lab.org", "lab"),),
    )
    provision(project, tmp_path / "kits")
    yield tmp_path / "kits"
    processes.down(tmp_path / "kits")


@pytest.fixture(autouse=True)
def _our_code_in_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(privcal.__file__).parent.parent))


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


def test_sites_connect_stop_and_come_back_after_a_crash(kits: Path) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    assert processes.running(kits) == {}
    pids = processes.up(kits)
    assert list(pids) == ["localhost", "hospital-1", "hospital-2"]
    assert json.loads((kits / "processes.json").read_text()) == pids
    assert processes.up(kits) == pids  # nothing to do

    os.kill(pids["hospital-2"], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while "hospital-2" in processes.running(kits):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again = processes.up(kits)
    assert again["hospital-2"] != pids["hospital-2"]
    assert {n: again[n] for n in ("localhost", "hospital-1")} == {
        n: pids[n] for n in ("localhost", "hospital-1")
    }
    session = new_secure_session("ann@lab.org", str(kits / "ann@lab.org"), timeout=10)
    try:
        known = {client.name for client in session.get_system_info().client_info}
    finally:
        session.close()
    assert known == {"hospital-1", "hospital-2"}

    assert processes.down(kits) == 3
    assert of(kits) == []
    assert processes.running(kits) == {}
    assert not (kits / "processes.json").exists()
    assert processes.down(kits) == 0
    for name in ("localhost", "hospital-1"):
        assert (kits / name / "log.txt").stat().st_size > 0


def test_a_site_that_cannot_start_is_said_and_nothing_is_left(kits: Path) -> None:
    (kits / "hospital-2" / "local" / "resources.json").write_text("{")
    with pytest.raises(InputError, match="hospital-2 stopped while starting; see"):
        processes.up(kits)
    assert of(kits) == []


def test_only_sites_of_the_federation_are_started(kits: Path) -> None:
    with pytest.raises(InputError, match="has no site 'hospital-9'; it has hospital-1"):
        processes.up(kits, sites=["hospital-9"])


def test_a_path_with_spaces_is_refused_because_jobs_would_fail(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without spaces"):
        processes.up(tmp_path / "my kits")


# A server whose operator added a thread: it asks every site for a file and for a report, without
# the header by which FLARE would ask the site's rights first.
MALICE = """
import json, sys, threading, time

def ask():
    import gc
    while "nvflare.private.fed.app.utils" not in sys.modules:
        time.sleep(0.1)
    from nvflare.private.admin_defs import Message
    from nvflare.private.fed.server.admin import FedAdminServer
    servers = []
    while not servers or len(servers[0].clients) < 2:
        time.sleep(0.2)
        servers = [thing for thing in gc.get_objects() if isinstance(thing, FedAdminServer)]
    heard = {}
    for topic, body in (("sys.shell", "cat SECRET"), ("sys.report_env", ""), ("sys.info", "")):
        for client in list(servers[0].clients.values()):
            request = Message(topic=topic, body=body)
            got = servers[0].send_request_to_client(request, client.token, timeout_secs=5.0)
            heard.setdefault(client.name, []).append(got and got.reply and str(got.reply.body))
    with open("HEARD.part", "w") as file:
        json.dump(heard, file)
    import os
    os.rename("HEARD.part", "HEARD")

if "nvflare.private.fed.app.server.server_train" in sys.orig_argv:
    threading.Thread(target=ask, daemon=True).start()
"""


def test_a_malicious_server_reads_nothing_at_a_guarded_site(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second site is left without the guard, to show that the question is a real one."""
    secret, heard = tmp_path / "rows.csv", tmp_path / "heard.json"
    secret.write_text("name,diagnosis")
    malice = MALICE.replace("SECRET", str(secret)).replace("HEARD", str(heard))
    (tmp_path / "malice").mkdir()
    (tmp_path / "malice" / "sitecustomize.py").write_text(malice)
    ours = os.environ["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'malice'}{os.pathsep}{ours}")
    resources = kits / "hospital-2" / "local" / "resources.json"
    document = json.loads(resources.read_text())
    document["components"] = document["components"][1:]
    resources.write_text(json.dumps(document))

    processes.up(kits)
    deadline = time.monotonic() + 40
    while not heard.exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    answers = json.loads(heard.read_text())
    assert "diagnosis" in answers["hospital-2"][0]
    assert answers["hospital-1"] == ["invalid_request"] * 3


def test_a_calibrator_and_a_server_together_cannot_bring_code(kits: Path, tmp_path: Path) -> None:
    """Everything is open at the server, and the job is signed by the calibrator."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    local = kits / "localhost" / "local"
    rights = json.loads((local / "authorization.json").read_text())
    rights["permissions"]["lead"] = "any"
    (local / "authorization.json").write_text(json.dumps(rights))
    resources = json.loads((local / "resources.json").read_text())
    resources["class_allow_list"] = ["*"]
    (local / "resources.json").write_text(json.dumps(resources))
    app = tmp_path / "job" / "app"
    executor = {"tasks": ["*"], "executor": {"path": "evil.Executor"}}
    for path, content in {
        app.parent / "meta.json": {
            "name": "job", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]},
        },
        app / "config" / "config_fed_server.json": {"format_version": 2, "workflows": []},
        app / "config" / "config_fed_client.json": {"format_version": 2, "executors": [executor]},
        app / "custom" / "evil.py": {},
    }.items():  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    processes.up(kits)
    session = new_secure_session("ann@lab.org", str(kits / "ann@lab.org"), timeout=10)
    try:
        job = session.submit_job(str(app.parent))
        deadline = time.monotonic() + 30
        while not str(session.get_job_status(job)).startswith("FINISHED"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        said = session.get_job_meta(job)["job_deploy_detail"]
    finally:
        session.close()
    assert "server: OK" in said
    for site in ("hospital-1", "hospital-2"):
        assert f"{site}: NVFLARE_ERROR: this site takes no code and no folders with a job" in said
        assert not list((kits / site).glob("*/app_*"))
