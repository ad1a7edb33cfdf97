"""What a command needs of the machine it runs on."""

from __future__ import annotations

import importlib.util
import os

from privcal.trusted.errors import InputError


def need_posix() -> None:
    """InputError where the processes, locks and permissions of a federation do not exist."""
    if not hasattr(os, "fork"):
        raise InputError(
            "a federation needs Linux; on Windows that is the Windows Subsystem for Linux"
        )


def need_torch() -> None:
    """InputError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("this needs torch: pip install 'privcal[train]'")
