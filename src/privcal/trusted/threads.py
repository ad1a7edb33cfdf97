"""How many threads may work at once."""

from __future__ import annotations

import os


def default_threads() -> int:
    """One for each core this process may use, or what PRIVCAL_THREADS says."""
    if (text := os.environ.get("PRIVCAL_THREADS", "")).isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
