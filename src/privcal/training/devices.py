"""Where networks run."""

from __future__ import annotations

from typing import Any

import torch

from privcal.errors import InputError


def choose(name: str) -> str:
    """`auto`: a GPU if there is one. Anything else must be there."""
    there = ["cpu"]
    if torch.cuda.is_available():
        there += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name == "auto":
        return "cuda" if "cuda" in there else "cpu"
    if name not in there:
        raise InputError(f"there is no device {name!r} here; use auto or {' or '.join(there)}")
    return name


def precision(device: str) -> Any:
    """bfloat16 where the GPU is fast at it; on a CPU it would be slower than plain numbers."""
    return torch.autocast("cuda", torch.bfloat16, enabled=device.startswith("cuda"))
