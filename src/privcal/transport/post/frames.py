"""Frames on the pipes between `remote` and `child`: four bytes of length, and as many bytes."""

from __future__ import annotations

from typing import IO

MAX_FRAME = 32 << 20
"""Bytes: a listing at its limit fits."""
FOUND, NOTHING, PROBLEM = b"+", b"0", b"-"
"""How a reply begins: with what was asked for, alone, or with a sentence on what went wrong."""


def write_frame(file: IO[bytes], content: bytes) -> None:
    file.write(len(content).to_bytes(4) + content)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes:
    """The next frame; EOFError where the other side has ended, or sends something else."""
    size = int.from_bytes(head := file.read(4))
    content = file.read(size) if len(head) == 4 and size <= MAX_FRAME else b""
    if len(head) < 4 or len(content) < size:
        raise EOFError
    return content
