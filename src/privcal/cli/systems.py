"""Which systems a command runs on."""

from __future__ import annotations

import os

from privcal.errors import InputError


def need_posix(what: str = "a federation and its sites") -> None:
    """InputError where the processes, locks and permissions of a federation do not exist."""
    if not hasattr(os, "fork"):
        raise InputError(
            f"{what} needs Linux or macOS: on Windows use the Windows Subsystem for Linux"
        )
