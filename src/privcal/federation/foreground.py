"""A process that is a cell, until it is told to stop: what a site's and the server's share."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

LOOK = 10.0
"""Seconds between two looks at how things are."""


def foreground(
    cell: Any, started: Callable[[], None], look: Callable[[], None] = lambda: None
) -> None:
    """Start the cell, and `look` now and then, until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
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
