"""A FLARE as a hospital group runs it, on this machine: a server and clients as processes, mutual TLS."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import privcal
from privcal.transport.flare.job import ALLOWED

ADMIN, SERVER = "lead@lab.org", "localhost"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Flare:
    """The processes of one FLARE, provisioned by its own tool into a folder."""

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        self.clients, self.folder = tuple(clients), folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._kits = _provision(folder, self.clients)
        for name in (SERVER, *clients):
            self.allow(name)

    @property
    def admin(self) -> Path:
        """The start-up kit of one who may submit jobs, with FLARE's default rights of a lead."""
        return self._kits / ADMIN

    def socket(self, client: str) -> Path:
        """Where a client's site listens."""
        return self.folder / f"{client}.sock"

    def allow(self, name: str, *, allowed: bool = True) -> None:
        """Write the line of consent into a participant's resources, or take it out."""
        path = self._kits / name / "local" / "resources.json"
        default = path.with_name("resources.json.default")
        facts = json.loads((path if path.is_file() else default).read_text())
        own = facts["class_allow_list"]
        own[:] = [entry for entry in own if entry != ALLOWED] + [ALLOWED] * allowed
        storage = str(self._kits / name)  # in place of /tmp/nvflare
        text = json.dumps(facts).replace("/tmp/nvflare", storage)
        path.write_text(text)

    def up(self, *names: str) -> None:
        for name in names or (SERVER, *self.clients):
            kind = "server" if name == SERVER else "client"
            kit = self._kits / name
            who = [] if kind == "server" else [f"uid={name}"]
            command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train"]
            command += ["-m", str(kit), "-s", f"fed_{kind}.json", "--set", "secure_train=true"]
            places = {
                "PYTHONPATH": str(Path(privcal.__file__).parents[1]),
                "PRIVCAL_SOCKET": str(self.socket(name)),
            }
            (kit / "transfer").mkdir(exist_ok=True)
            self._running[name] = subprocess.Popen(
                [*command, *who, "org=lab", "config_folder=config"],
                cwd=kit,
                stdin=subprocess.DEVNULL,
                stdout=(kit / "out.txt").open("ab"),
                stderr=subprocess.STDOUT,
                env={**os.environ, **places},
            )

    def kill(self, *names: str) -> None:
        """End participants and their jobs at once and without warning."""
        for name in names:
            process = self._running.pop(name)
            process.kill()
            process.wait(10)
            for pid in self.processes(name):  # jobs, which are in sessions of their own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self, name: str = "") -> list[int]:
        """What runs with a participant's kit, or with anybody's."""
        kit = os.fsencode(f"{self._kits / name}" + ("\0" if name else ""))
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if kit in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def down(self) -> None:
        self.kill(*self._running)

    def connected(self, *names: str, timeout: float = 90.0) -> None:
        """Wait until the server has these clients, and no other."""
        program = (
            "import sys, os; from nvflare.fuel.flare_api.flare_api import new_secure_session\n"
            f"s = new_secure_session({ADMIN!r}, {str(self.admin)!r}, timeout=10)\n"
            "print('clients', *sorted(c.name for c in s.get_connected_client_list()), flush=True); os._exit(0)"
        )
        end = time.monotonic() + timeout
        wanted = "clients " + " ".join(sorted(names or self.clients))
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    [sys.executable, "-c", program],
                    capture_output=True,
                    text=True,
                    timeout=30,
                    cwd=self.folder,
                )
                if wanted in done.stdout.splitlines():
                    return
            time.sleep(0.5)
        raise AssertionError(f"waited {timeout:g} seconds for {wanted}")


@contextlib.contextmanager
def running(folder: Path, clients: Sequence[str]) -> Iterator[Flare]:
    flare = Flare(folder, clients)
    try:
        flare.up()
        flare.connected()
        yield flare
    finally:
        flare.down()
        assert not flare.processes()


def _provision(folder: Path, clients: Sequence[str]) -> Path:
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    participants: list[dict[str, Any]] = [
        {"name": SERVER, "type": "server", "org": "lab", "fed_learn_port": free_port()},
        *({"name": name, "type": "client", "org": "lab"} for name in clients),
        {"name": ADMIN, "type": "admin", "org": "lab", "role": "lead"},
    ]
    document = {"api_version": 3, "name": "trial", "description": "", "participants": participants}
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config"),
        CertBuilder(),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        made = Provisioner(str(folder / "kits"), builders).provision(prepare_project(document))
    return Path(made["current_prod_dir"])
