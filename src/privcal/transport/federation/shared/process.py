"""The process of a site or of the server: how it is started, runs until stopped, and ends."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privcal.transport.federation.shared.kit import STARTUP_FILE, Kind
from privcal.trusted.errors import InputError

MODULE: dict[Kind, str] = {
    "server": "privcal.transport.federation.server",
    "site": "privcal.transport.federation.site.service",
}
READY: dict[Kind, str] = {"server": "the server is up", "site": "is connected"}
"""What each prints when it can do its work."""

INTERVAL = 10.0
"""Seconds between two looks of a process at its own state."""

PASSED = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "LC_ALL",
    "VIRTUAL_ENV",
    "PRIVCAL_MARKS",
    "POLARS_SKIP_CPU_CHECK",
)
"""The variables of the environment that a participant's processes may know."""


def command(kind: Kind, folder: Path) -> list[str]:
    # -P: nothing is imported from the folder it is started in.
    return [sys.executable, "-u", "-P", "-m", MODULE[kind], str(folder)]


def environment(folder: Path) -> dict[str, str]:
    """An environment of its own, with a home and a place for temporary files in its folder."""
    passed = (*PASSED, "SSL_CERT_FILE")
    variables = {name: os.environ[name] for name in passed if name in os.environ}
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp")):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        variables[variable] = str(folder / name)
    if path := variables.get("PYTHONPATH"):  # relative to the folder of now, not to its own
        folders = [os.path.abspath(part) for part in path.split(os.pathsep) if part]
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    return variables


def become(kind: Kind, folder: Path) -> None:
    """Replace the present process by a participant's, in the foreground."""
    folder = folder.resolve()
    if not (folder / "startup" / STARTUP_FILE[kind]).is_file():
        raise InputError(f"{folder} is not a {kind}'s start-up kit")
    os.umask(0o077)
    os.chdir(folder)
    os.execve(sys.executable, command(kind, folder), environment(folder))


def main(run: Callable[[Path], None]) -> None:
    """The whole life of such a process; what is wrong is one sentence, as from any command."""
    code = 0
    try:
        run(Path(sys.argv[1]))
    except InputError as error:
        code = _fail(str(error), 2)
    except OSError as error:
        code = _fail(f"cannot read or write {error.filename}: {error.strerror}", 1)
    os._exit(code)  # FLARE's threads do not all end with its cell


def _fail(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    return code


class Once(logging.Filter):
    """Drops a record that repeats the last one: FLARE tells every ten seconds of a lost server."""

    _last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        before, self._last = self._last, re.sub(r"0x[0-9a-f]+|CH\d+", "", record.getMessage())
        return self._last != before


def run_until_stopped(
    cell: Any, started: Callable[[], None], look: Callable[[], None] = lambda: None
) -> None:
    """Start the cell, and `look` now and then, until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("nvflare.fuel.f3.sfm.conn_manager").addFilter(Once())
    # It complains of each reply to a calibrator who has left: every campaign ends so.
    logging.getLogger("nvflare.fuel.f3.cellnet").setLevel(logging.CRITICAL)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    cell.start()
    started()
    while not stopped.wait(INTERVAL):
        look()
    # With a limit: FLARE waits for peers that may be gone.
    stopper = threading.Thread(target=cell.stop, daemon=True)
    stopper.start()
    stopper.join(2.0)
