"""Reading and writing privcal's own files: JSON for programs, TOML that people write.

Whatever is read is checked; a file that is written is complete or not there. Each document says
its format and version; docs/formats.md says what may change in one, and what never does.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from privcal.errors import InputError
from privcal.files import replacing


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
        raise InputError(f"{what} {path} has version {theirs}; this privcal reads version {ours}")
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
