"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from privcal.errors import InputError


@contextmanager
def replacing(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary name to write to; that file then replaces `path`, at once and durably.

    An interruption or a full disk leaves an older file as it was. One that is `private` is its
    owner's alone from the first byte on.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    part = path.with_name(f".{secrets.token_hex(4)}{path.suffix.lower()}")
    try:
        if private:
            part.touch(mode=0o600, exist_ok=False)
        yield part
        with open(part, "r+b") as file:  # Windows syncs only what may be written
            os.fsync(file.fileno())
        os.replace(part, path)
        if hasattr(os, "O_DIRECTORY"):  # the new name must survive a crash too
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)
    finally:
        part.unlink(missing_ok=True)


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path | None]) -> None:
    """Raise InputError if outputs cannot be written or would replace an input; None is no file.

    Called before any budget is spent.
    """
    taken = {path.resolve() for path in inputs if path is not None}
    written: set[Path] = set()
    for out in outputs:
        if out is None:
            continue
        if out.is_dir():
            raise InputError(f"cannot write {out}: it is a folder")
        if not os.access(out.parent, os.W_OK):
            raise InputError(f"cannot write {out}: its folder is missing or not writable")
        if out.resolve() in taken:
            raise InputError(f"{out} is an input; choose another name for the output")
        if out.resolve() in written:
            raise InputError(f"{out} would be written twice; choose another name for one of them")
        written.add(out.resolve())
