"""Real servers on loopback ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FEDERATION, OWN, OTHER = "f" * 32, "a" * 32, "b" * 32


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[Callable]:
    """Starts an SFTP server that behaves in a given way."""
    pytest.importorskip("paramiko", reason="a mailbox over SFTP needs privcal[mailbox]")
    pytest.importorskip("fsspec", reason="a mailbox over SFTP needs privcal[mailbox]")
    from tests.support.sftp_server import Server

    started: list[Server] = []

    def start(way: str = "") -> Server:
        started.append(Server(tmp_path / f"server-{len(started)}", way))
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture
def s3() -> Iterator[object]:
    """An S3 server with an empty bucket."""
    pytest.importorskip("s3fs", reason="a mailbox over S3 needs privcal[mailbox]")
    pytest.importorskip("moto", reason="moto is not installed: make mailbox installs it")
    from tests.support.s3_server import Server

    server = Server()
    yield server
    server.end()
