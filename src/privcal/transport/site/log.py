"""The owner's log: why something was not answered. Nothing of it is ever sent anywhere."""

from __future__ import annotations

import sqlite3
import time
import traceback
from pathlib import Path

from privcal.trusted.errors import InputError, Refused

LOG = "privcal-errors.log"
"""The name of the file, in the site's folder."""

MAX_LOG = 1 << 20
_EXPECTED = (InputError, Refused, OSError, sqlite3.Error)
_LONGEST = 1000

MOST, WITHIN = 10, 3600.0
"""Lines about refusals of one asker by one code, and the seconds within which there are no more."""

_told: dict[tuple[Path, str, str], tuple[float, int]] = {}


def write(folder: Path, text: str) -> None:
    """Add to the log of a site."""
    path = folder / LOG
    try:
        if path.exists() and path.stat().st_size > MAX_LOG:
            path.replace(path.with_name(f"{LOG}.1"))
        with path.open("a", encoding="utf-8") as log:
            path.chmod(0o600)
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
    except OSError:  # a full disk must not change the reply
        return


def refusal(folder: Path, who: str, error: BaseException) -> str:
    """Note why `who` was refused; returns the code for them.

    They can have the same refusal again and again, free of charge: so that nobody fills the log, or
    drives out of it what is about others, only the first `MOST` within a while are written.
    """
    code = error.code if isinstance(error, Refused) else "unavailable"
    now, kind = time.monotonic(), (folder, who, code)
    since, number = _told.get(kind, (now, 0))
    if now - since >= WITHIN:
        since, number = now, 0
    _told[kind] = since, number + 1
    if number < MOST:
        last = "; more of these are counted, and not written for an hour" * (number == MOST - 1)
        write(folder, f"{who} was refused: {reason(error)}{last}")
    return code


def reason(error: BaseException) -> str:
    """One line, with the cause, for what may happen; the traceback for what should not."""
    cause = error.__cause__
    if not all(isinstance(e, _EXPECTED) for e in (error, cause) if e is not None):
        return "".join(traceback.format_exception(error)).rstrip()
    return line(error)


def line(error: BaseException) -> str:
    """An error and its cause in one line, whatever a sender wrote into it."""
    text = str(error) if error.__cause__ is None else f"{error} ({error.__cause__})"
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
