"""A site's and the server's process: what keeps it from running is one sentence and an exit code."""

from __future__ import annotations

import fcntl
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import privcal

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install privcal[federation]")

from privcal.transport.federation.shared.process import Once
from privcal.transport.federation.site import keys, setup
from tests.support import federation_parts as parts
from tests.support.federation_parts import SERVER


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    return parts.make_kits(tmp_path / "kits", sites=1)


def fails(module: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", f"privcal.transport.federation.{module}", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_site_that_runs_already_or_has_no_keys_says_so_in_one_sentence(
    kits: Path, tmp_path: Path
) -> None:
    folder = kits / "site-1"
    setup.init(folder, parts.write_rows(tmp_path / "rows.npz", 20), privcal.Policy(5.0))
    with (folder / "local" / "running.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = (2, f"error: {folder} runs already; stop that process first\n")
        assert fails("site.service", folder) == told
    keys.destroy(folder)
    code, said = fails("site.service", folder)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: cannot read the site's keys")


def test_a_server_whose_port_is_taken_does_not_seem_to_be_up(kits: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = kits / SERVER / "startup" / "fed_server.json"
        facts = json.loads(file.read_text())
        facts["servers"][0]["service"]["target"] = f"localhost:{port}"
        file.write_text(json.dumps(facts))
        code, said = fails("server", kits / SERVER)
    assert code == 2
    assert said.startswith(
        f"error: the server cannot listen on port {port}: Address already in use"
    )
    assert said.count("\n") == 1


def test_what_flare_says_again_and_again_is_said_once() -> None:
    def passes(filter: Once, text: str) -> bool:
        return filter.filter(logging.LogRecord("x", logging.ERROR, "", 0, text, (), None))

    once = Once()
    assert passes(once, "[CH00001] no server: <SSL object at 0x7f15d6234830>")
    assert not passes(once, "[CH00002] no server: <SSL object at 0x7f15d62347a0>")
    assert passes(once, "[CH00002] the certificate has run out")
    assert passes(once, "[CH00003] no server: <SSL object at 0x7f15d62347a0>")
