"""Which systems a command runs on."""

from __future__ import annotations

import os

from privcal.errors import InputError


def need_posix() -> None:
    """InputError where the processes, locks and permissions of a federation do not exist."""
    if not hasattr(os, "fork"):
        raise InputError(
            "a federation needs Linux; on Windows that is the Windows Subsystem for Linux"
        )
