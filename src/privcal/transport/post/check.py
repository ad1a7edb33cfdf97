"""Is a mailbox fit? One party tries what it will do there, and what it should not be able to do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from privcal.transport.letter import file_name
from privcal.transport.mailbox import Box
from privcal.trusted.errors import InputError


@dataclass(frozen=True)
class Finding:
    """What came of one attempt. A mailbox with a finding that `failed` is unfit."""

    text: str
    failed: bool = False


def attempts(box: Box, own: str, other: str) -> Iterator[Finding]:
    """Each attempt of the party with the ID `own`, in a line; `other` is another party's ID.

    Nothing stays there: the file it leaves, in its own folder and in the other's, is deleted. It is
    addressed to its own writer and is no letter, so nobody answers it.
    """
    content = f"privcal check {secrets.token_hex(32)}".encode("ascii")
    name = file_name(own, content)
    try:
        yield from _in_its_own(box, own, name, content)
    except OSError as error:
        yield Finding(f"it cannot be used: {error.strerror or error}", failed=True)
        return
    yield _in_the_others(box, other, name, content)


def _in_its_own(box: Box, own: str, name: str, content: bytes) -> Iterator[Finding]:
    box.put(own, name, content)
    yield Finding("put: a file is in the own folder")
    if name not in box.list(own):
        yield Finding("list: the file is not listed", failed=True)
    else:
        yield Finding("list: the file is listed at once")
    if box.get(own, name) != content:
        yield Finding("get: the file does not come back as it was put", failed=True)
    else:
        yield Finding("get: the file comes back as it was put")
    box.delete(own, name)
    if name in box.list(own):
        yield Finding("delete: the file is still there", failed=True)
    else:
        yield Finding("delete: the file is gone")


def _in_the_others(box: Box, other: str, name: str, content: bytes) -> Finding:
    try:
        box.put(other, name, content)
        if box.get(other, name) != content:
            raise OSError("it is not there")
    except (OSError, InputError):
        return Finding("another's folder: nothing can be written there")
    try:
        box.delete(other, name)
        left = ""
    except OSError:
        left = f"; delete {other}/{name}"
    return Finding(
        "another's folder: this party can write there, so any party can flood or empty another's folder "
        f"(letters are lost then, nothing else): give every party write access to its own alone{left}"
    )
