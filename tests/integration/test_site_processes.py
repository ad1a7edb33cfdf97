"""A real site's processes: nobody can connect to them over a network, nor they to anybody.

What they do is seen twice: from outside, in /proc, and from inside, by an audit hook that is there
before their first line and notes every file, import and socket.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/proc/self/cmdline").exists():
    pytest.skip("finds processes in /proc", allow_module_level=True)

from privcal.transport.wire import Caller
from tests.support.letters import Federation, federation, question

NAME = "site-1"
AUDIT = """
import os, sys
out = os.open({folder!r} + "/" + str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, (repr(["argv", str(getattr(sys, "orig_argv", []))]) + "\\n").encode())
def hook(event, args):
    if event == "import" or event == "open" or event.startswith("socket."):
        some = str(args[0]) if event in ("import", "open") else str(args[1:])
        os.write(out, (repr([event, some]) + "\\n").encode())
sys.addaudithook(hook)
"""
FOREIGN = (
    *("fsspec", "paramiko", "asyncssh", "s3fs", "aiohttp", "grpc", "nvflare"),
    *(f"privcal.transport.{name}" for name in ("post", "flare", "calibrator", "mail")),
)
"""What talks to servers, and what is other parties': no process of a site imports it."""


def sockets(pid: int) -> dict[str, list[str]]:
    """The sockets of a process, by kind (tcp, udp, unix ...), each with its line in /proc."""
    mine = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kind, _, number = os.readlink(file).partition(":")
        except OSError:
            continue
        if kind == "socket":
            mine.add(number.strip("[]"))
    found: dict[str, list[str]] = {}
    for kind, column in (("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9), ("unix", 6)):
        lines = Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        ours = [line for line in lines if line.split()[column] in mine]
        found |= {kind: ours} if ours else {}
    return found


def children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for file in threads for one in file.read_text().split()]


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    return federation(tmp_path / "f", sites=1, start=False)


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """Where each process notes what it does."""
    folder = tmp_path / "noted"
    folder.mkdir()
    (tmp_path / "hook").mkdir()
    text = AUDIT.format(folder=str(folder))
    (tmp_path / "hook" / "sitecustomize.py").write_text(text)
    return folder


@pytest.fixture
def running(fed: Federation, noted: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The site's command, with a mailbox in a folder and a socket."""
    command = [sys.executable, "-m", "privcal", "site", "run", fed.at(NAME)]
    command += ["--folder", fed.mailbox, "--socket", fed.folder / "s", "--every", "0.1"]
    paths = [str(noted.parent / "hook"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(list(map(str, command)), env=env)
    try:
        until(lambda: (fed.folder / "s").exists())
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def until(met: object) -> None:
    end = time.monotonic() + 60
    while not met():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_site_opens_no_port(fed: Federation, running: subprocess.Popen[bytes]) -> None:
    """Neither of its two processes, while it answers by the folder and by its local socket."""
    ann = fed.asker()
    request = ann.request("ask", NAME, question())
    letter = ann.put(NAME, request)
    until(lambda: ann.replies(NAME, request, letter))
    assert Caller(fed.folder / "s").id == fed.id(NAME)
    [child] = children(running.pid)
    assert set(sockets(running.pid)) == {"unix"}
    assert sockets(child) == {}


def test_the_process_with_the_letters_opens_no_data_and_the_one_with_data_no_socket(
    fed: Federation, running: subprocess.Popen[bytes], noted: Path
) -> None:
    """From their first line to their last, and they import nothing of other parties and carriers."""
    ann, data = fed.asker(), str(fed.folder / "data")
    for n in range(2):
        request = ann.request("ask", NAME, question("c", n))
        letter = ann.put(NAME, request)
        until(lambda: ann.replies(NAME, request, letter))  # noqa: B023
    [child] = children(running.pid)
    did: dict[int, list[list[str]]] = {}
    for pid in (running.pid, child):
        did[pid] = list(map(ast.literal_eval, (noted / str(pid)).read_text().splitlines()))
        imported = {some for event, some in did[pid] if event == "import"}
        foreign = {
            name for name in imported if any(f"{name}.".startswith(f"{o}.") for o in FOREIGN)
        }
        assert foreign == set()
        kept = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
        assert [path for path in kept if path.startswith(data)] == []
    letters, rows = (
        [[event, some] for event, some in did[pid] if event == "open" and some.startswith(data)]
        for pid in (running.pid, child)
    )
    assert letters == []
    assert len(rows) >= 2, "each question has read them anew"
    assert [event for event, _ in did[child] if event.startswith("socket.")] == []
    made = [some for event, some in did[running.pid] if event == "socket.__new__"]
    assert made
    assert all("AF_UNIX" in some or some.startswith("(1,") for some in made), made
