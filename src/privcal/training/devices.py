"""Where networks run."""

from __future__ import annotations

from typing import Any

import torch

from privcal.errors import InputError


def choose(name: str) -> str:
    """`auto`: a GPU if there is one. Anything else must be there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise InputError(f"there is no device {name!r} here; use cpu, or auto")
    return name


def precision(device: str) -> Any:
    """bfloat16 where the GPU is fast at it; on a CPU it would be slower than plain numbers."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda"))
