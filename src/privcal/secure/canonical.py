"""One spelling for whatever is signed: JSON in ASCII with sorted names and without spaces.

So two readers of one text cannot understand it differently: no name stands there twice, no number
is NaN, and what was read and is written again gives the same text.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from privcal.trusted import records
from privcal.trusted.errors import InputError

write = records.text


def read(text: Any, limit: int) -> dict[str, Any]:
    """The parts of a text in the one spelling, of at most `limit` characters."""
    facts = read_any_spelling(text, limit)
    try:
        same = write(facts) == text
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        same = False
    if not same:
        raise InputError("it is not in the one spelling")
    return facts


def read_any_spelling(text: Any, limit: int) -> dict[str, Any]:
    """The parts of any JSON object, to tell what it was meant to be before it is refused."""
    if not isinstance(text, str) or len(text) > limit:
        raise InputError("it is not a text, or too long")
    try:
        facts = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise InputError("it cannot be read") from None
    if not isinstance(facts, dict):
        raise InputError("it cannot be read")
    return facts


def to_base64(data: bytes) -> str:
    """The one base64 spelling of bytes."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: Any, length: int | None = None) -> bytes:
    """Bytes from the one base64 spelling of them."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (AttributeError, UnicodeEncodeError, binascii.Error):
        raise InputError("it is not base64") from None
    if to_base64(data) != text or length not in (None, len(data)):
        raise InputError("it is not base64 of the right length")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        raise ValueError("a name is there twice")
    return facts


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")
