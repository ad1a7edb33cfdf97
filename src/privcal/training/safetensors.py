"""Reading .safetensors files: a length, a JSON header, then the numbers, end to end.

Read here rather than by the compiled package of that name: the format is small, and nothing in such a
file can run.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privcal.errors import InputError

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise _unreadable(path, "its header is cut short")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise _unreadable(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, data, 8 + length) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: Any, data: bytearray, start: int) -> Tensor:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            if kind not in TYPES:
                raise InputError(
                    f"{path}: {name!r:.80} is of type {kind!r:.20}, which is not read here"
                )
            dtype, size = TYPES[kind], end - begin
            inside = 0 <= begin <= end <= len(data) - start
            sizes = all(type(count) is int and count >= 0 for count in shape)
            # An array without numbers may have any other axes: no more than torch can take.
            few = sizes and len(shape) <= 64 and math.prod(filter(None, shape)) < 2**62
            if inside and few and size == dtype.itemsize * math.prod(shape):
                if not size:
                    return torch.empty(shape, dtype=dtype)
                # A copy begins where its type may begin, which the file does not promise.
                raw = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=start + begin)
                return raw.clone().view(dtype).reshape(shape)
    raise _unreadable(path, f"what it says of {name[:60]!r} cannot be")


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not a readable .safetensors file, or is cut short ({why})")
