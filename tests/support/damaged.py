"""What a JSON file of ours may hold after an accident, or by somebody's hand."""

from __future__ import annotations

DAMAGED = {
    "nothing": b"",
    "half an object": b'{"format": ',
    "a list": b"[]",
    "a zero byte": b"\x00",
    "no text": b"\xff\xfe",
    "a number of 5,000 digits": b'{"format": ' + b"9" * 5000 + b"}",
    "a hundred thousand brackets": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "not a number": b'{"format": NaN}',
    "infinity": b'{"format": -Infinity}',
}
"""Content of the file by what is wrong with it."""
