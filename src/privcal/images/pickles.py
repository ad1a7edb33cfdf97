"""Reading the pickles of published archives without running anything that they name.

A pickle may name any function of any installed module and have it called. The few names which the
CIFAR archives need are never called here: a stand-in notes what they would have been called with,
and the array is made from that note. Any other name is an error.
"""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.errors import InputError

ALLOWED_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",  # how Python 3 writes bytes for Python 2
}
BYTE_TYPES = (b"u1", "u1", b"|u1", "|u1", b"uint8", "uint8")


def read_pickle(path: Path, data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle, with arrays of bytes as arrays and keys as text."""
    try:
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
    except _Forbidden as error:
        raise InputError(
            f"{path} would run code when read ({error}); this is no published archive, delete it"
        ) from None
    except Exception as error:  # a damaged pickle raises all kinds
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is not a readable pickle, or is cut short ({first})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a dictionary, not {_kind(content)}")
    return {
        as_text(key): _array(path, value) if isinstance(value, _Made) else value
        for key, value in content.items()
        if isinstance(key, (bytes, str))
    }


def as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


class _Forbidden(Exception):
    """A pickle names something that archives do not need."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_NAMES:
            raise _Forbidden(f"it names {module}.{name}"[:120])
        return _Named(ALLOWED_NAMES[module, name])

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden("it names an object outside itself")


@dataclass
class _Named:
    """Stand-in for a name; a new one each time, so that nothing a pickle does to it lasts."""

    what: str

    def __call__(self, *args: Any) -> Any:
        if self.what == "encode":
            return args[0].encode("latin-1") if isinstance(args[0], str) else b""
        return _Made(self.what, args)


@dataclass
class _Made:
    """Note of what a name would have been called with."""

    what: str
    args: tuple[Any, ...]
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _array(path: Path, made: _Made) -> NDArray[np.uint8]:
    match made:
        case _Made(
            "array", _, (_, tuple(shape), _Made("dtype", (code, *_)), False | 0, bytes(data))
        ):
            sizes = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 4
            if code in BYTE_TYPES and sizes and math.prod(shape) == len(data):
                return np.frombuffer(data, np.uint8).reshape(shape)
    raise InputError(f"{path} holds an array that is not one of bytes in rows")


def _kind(value: Any) -> str:
    return value.what if isinstance(value, (_Named, _Made)) else type(value).__name__
