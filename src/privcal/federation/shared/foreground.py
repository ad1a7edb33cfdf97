"""A process that is a cell, until it is told to stop: what a site's and the server's share."""

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

from privcal.errors import InputError

LOOK = 10.0
"""Seconds between two looks at how things are."""


def main(run: Callable[[Path], None]) -> None:
    """The whole life of such a process; what is wrong is one sentence, as from any command."""
    code = 0
    try:
        run(Path(sys.argv[1]))
    except InputError as error:
        code = _told(str(error), 2)
    except OSError as error:
        code = _told(f"cannot read or write {error.filename}: {error.strerror}", 1)
    os._exit(code)  # FLARE's threads do not all end with its cell


def _told(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    return code


class Once(logging.Filter):
    """Says nothing twice in a row: FLARE tells every ten seconds that there is no server."""

    _last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        before, self._last = self._last, re.sub(r"0x[0-9a-f]+|CH\d+", "", record.getMessage())
        return self._last != before


def foreground(
    cell: Any, started: Callable[[], None], look: Callable[[], None] = lambda: None
) -> None:
    """Start the cell, and `look` now and then, until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("nvflare.fuel.f3.sfm.conn_manager").addFilter(Once())
    # It complains of each reply to a calibrator who has left: every campaign ends so.
    logging.getLogger("nvflare.fuel.f3.cellnet").setLevel(logging.CRITICAL)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    cell.start()
    started()
    while not over.wait(LOOK):
        look()
    # With a limit: FLARE waits for peers that may be gone.
    stopper = threading.Thread(target=cell.stop, daemon=True)
    stopper.start()
    stopper.join(2.0)
