"""privcal's own files, written as a whole or not at all: JSON for programs, TOML that people write.

Whatever is read is checked. Each document says its format and version; docs/formats.md says what may
change in one, and what never does.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from privcal.trusted.checks import short
from privcal.trusted.errors import InputError


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


def read_json(path: str | Path, what: str) -> Any:
    """The content of a JSON file; `what` names the kind of file in error sentences.

    Deep nesting, numbers of thousands of digits, NaN and bytes that are no text are all "not JSON".
    """
    try:
        return json.loads(Path(path).read_text("utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a {what}: it is not JSON, or is cut short") from None


def read_document(path: str | Path, what: str, format: str, *versions: int) -> dict[str, Any]:
    """A JSON object of this format and one of these versions; else it is refused with a sentence."""
    document = read_json(path, what)
    if not isinstance(document, dict) or document.get("format") != format:
        raise InputError(f"{path} is not a privcal {what}")
    theirs = document.get("version")
    if type(theirs) is not int or theirs not in versions:
        ours = " and ".join(map(str, versions))
        raise InputError(
            f"{what} {path} has version {short(theirs)}; this privcal reads version {ours}"
        )
    return document


def write_document(path: str | Path, document: Any, *, private: bool = False) -> None:
    """Write JSON; a file that is there is replaced as a whole, or stays as it was."""
    with replacing(path, private=private) as part:
        part.write_bytes(_bytes(document))


def digest(document: Any) -> str:
    """The SHA-256 of the file that `write_document` makes, as `sha256sum` shows it."""
    return hashlib.sha256(_bytes(document)).hexdigest()


def _bytes(document: Any) -> bytes:
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; `what` names the kind of file in error sentences."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} {path} is not valid TOML: {error}") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")
