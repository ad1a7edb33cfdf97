"""A federation of one site that listens at a socket, in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from privcal.transport import wire
from tests.support.letters import Federation, federation


@contextmanager
def listening(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Federation, Path]]:
    """The federation, and the path of the socket."""
    found = federation(folder / "f", sites=1, monkeypatch=monkeypatch)
    monkeypatch.setattr(wire, "POLL", 0.1)
    stopped, path = threading.Event(), folder / "socket"
    serving = threading.Thread(target=wire.serve, args=(path, found.site("site-1"), stopped))
    serving.start()
    try:
        while serving.is_alive() and not path.exists():
            stopped.wait(0.02)
        yield found, path
    finally:
        stopped.set()
        serving.join()
        found.stop()
