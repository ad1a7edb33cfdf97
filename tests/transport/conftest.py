"""Mailboxes of every kind, for tests that hold over all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from privcal.transport.mailbox import Box, FolderBox
from tests.support.campaigns import policy
from tests.support.carrier import Storage
from tests.support.letters import Federation, federation

BoxOf = Callable[[str], Box]
"""A federation's part of a mailbox, by its ID."""

LONGEST = 120
"""Seconds after which a test is said to hang."""


@dataclass
class World:
    """Five sites, two calibrators, and storage between them that a test commands."""

    fed: Federation
    storage: Storage

    @property
    def patience(self) -> float:
        """Seconds in which every site answers that is not kept from it: a server takes longer."""
        return 4.0 if isinstance(self.fed.box, FolderBox) else 20.0

    @property
    def ann(self) -> Box:
        return self.storage.way("ann")

    def start(self, *names: str) -> None:
        """Run these sites, or all, each with a way of its own to the mailbox."""
        for name in names or self.fed.sites:
            self.fed.start(name, box=self.storage.way(name))

    def restart(self, *names: str) -> None:
        """End these sites, or all, and run them again: only what is on disk is left."""
        for name in names or self.fed.sites:
            self.fed.stop(name)
            self.start(name)


@pytest.fixture
def no_hang() -> Iterator[None]:
    """The test fails, and does not hang."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: nothing ended it within {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _on_folder(folder: Path) -> Iterator[BoxOf]:
    (folder / "box").mkdir()
    yield lambda id: FolderBox(folder / "box", id)


def _on_a_server(server: Any) -> Iterator[BoxOf]:
    from privcal.transport.post.remote import RemoteBox

    made: list[RemoteBox] = []

    def box(id: str) -> Box:
        made.append(RemoteBox(server.url, id, server.options))
        return made[-1]

    try:
        yield box
    finally:
        for one in made:
            one.close()
        server.end()


def _on_sftp(folder: Path) -> Iterator[BoxOf]:
    from tests.support.sftp_server import Server

    yield from _on_a_server(Server(folder))


def _on_s3(folder: Path) -> Iterator[BoxOf]:
    from tests.support.s3_server import Server

    yield from _on_a_server(Server())


CARRIERS = {"folder": (_on_folder, ()), "sftp": (_on_sftp, ("fsspec", "paramiko"))}
CARRIERS["s3"] = (_on_s3, ("s3fs", "moto"))


@pytest.fixture(params=CARRIERS)
def carriers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BoxOf]:
    """Mailboxes of each kind in turn."""
    make, needs = CARRIERS[request.param]
    if request.param != "folder" and not os.environ.get("PRIVCAL_EVERY_CARRIER"):
        pytest.skip("minutes over a real server: make carriers")
    if missing := [name for name in needs if find_spec(name) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")
    yield from make(tmp_path)


@pytest.fixture
def in_a_folder(tmp_path: Path) -> Iterator[BoxOf]:
    """Mailboxes in a folder."""
    yield from _on_folder(tmp_path)


def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box_of: BoxOf) -> Iterator[World]:
    made = federation(
        tmp_path / "f", 5, policy=policy(epsilon=100.0), start=False, monkeypatch=monkeypatch
    )
    made.box = box_of(made.roster.federation)
    world = World(made, Storage(made.box))
    world.start()
    yield world
    made.stop()


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hang: None, in_a_folder: BoxOf
) -> Iterator[World]:
    """A federation with a mailbox in a folder."""
    yield from _world(tmp_path, monkeypatch, in_a_folder)


@pytest.fixture
def everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hang: None, carriers: BoxOf
) -> Iterator[World]:
    """A federation with a mailbox of each kind."""
    yield from _world(tmp_path, monkeypatch, carriers)
