"""Device selection."""

from __future__ import annotations

from typing import Any

import torch

from privcal.errors import InputError


def choose_device(name: str) -> str:
    """The device of that name, which must be there; for `auto`, a GPU if there is one."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name == "auto":
        return "cuda" if "cuda" in devices else "cpu"
    if name not in devices:
        raise InputError(f"there is no device {name!r} here; use auto or {' or '.join(devices)}")
    return name


def precision(device: str) -> Any:
    """bfloat16 where the GPU is fast at it; on a CPU it would be slower than plain numbers."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda"))
