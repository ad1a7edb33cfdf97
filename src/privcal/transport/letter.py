"""One letter: one party's message to one other, sealed for its reader and signed by its writer.

Whatever carries a letter is trusted with nothing. It is one ASCII file of at most 2 MiB:

    {"from": ID, "privcal": 4, "sealed": base64, "signature": base64, "to": ID}

An ID is the start of a signing key's SHA-256. The signature is over the sealed bytes and both IDs,
so a reader drops what others wrote for the price of one Ed25519 check, before anything is opened.
The seal (HPKE) is bound to both IDs, and the sealed text repeats them. So a letter that somebody
strips and signs anew, or forwards, does not open; and a reader's own letter comes back to it as
one that it cannot have been sent.

There is one spelling of the outside and one of the inside, and each is parsed once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import SealingKey, check_signature, seal
from privcal.trusted.checks import one_of, short
from privcal.trusted.errors import InputError

VERSION = 4
"""The version of letters, cards and rosters."""
MAX_LETTER = 2 << 20
"""Bytes: no party reads more. A secure sum of 300 sites and 100 numbers just fits."""
ID = re.compile("[0-9a-f]{32}")
ROLES = ("calibrator", "site")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
"""A name becomes part of a file's name, a policy and a report."""
DIGEST = re.compile("([0-9a-f]{4} ){11}[0-9a-f]{4}")
Stamp = tuple[int, str]
"""A roster's number and digest."""

_SIGNED, _SEALED = f"privcal letter {VERSION}", f"privcal sealed {VERSION}"
_PARTS = {"privcal", "from", "to", "sealed", "signature"}


class Signs(Protocol):
    """A party's signing key (`transport.keys.Keys`)."""

    @property
    def public(self) -> str:
        """The public half."""
        ...

    def sign(self, text: str) -> str: ...


def id_of(signing: str) -> str:
    """The ID of the party with this public signing key."""
    return hashlib.sha256(from_base64(signing, 32)).hexdigest()[:32]


@dataclass(frozen=True)
class Letter:
    """The outside of a letter. That its parts are well formed is all that is known so far."""

    sender: str
    reader: str
    sealed: str
    signature: str

    @classmethod
    def write(cls, text: str, keys: Signs, reader: str, sealing: str) -> Letter:
        """A letter with this text to the party with the ID `reader`, for this public sealing key."""
        sender = id_of(keys.public)
        sealed = to_base64(seal(sealing, text.encode("ascii"), _about(_SEALED, sender, reader)))
        letter = cls(sender, reader, sealed, keys.sign(_signed(sender, reader, sealed)))
        if len(letter.content) > MAX_LETTER:
            raise InputError(f"a letter is longer than {MAX_LETTER >> 20} MiB")
        return letter

    @classmethod
    def read(cls, content: bytes) -> Letter:
        """A letter from the content of its file; InputError for whatever else that is."""
        if len(content) > MAX_LETTER:
            raise InputError(f"it is longer than {MAX_LETTER >> 20} MiB")
        try:
            facts = canonical.read_any_spelling(content.decode("ascii"), MAX_LETTER)
        except UnicodeDecodeError:
            raise InputError("it is not ASCII") from None
        if set(facts) != _PARTS:
            raise InputError("it has other parts than a letter")
        if type(facts["privcal"]) is not int or facts["privcal"] != VERSION:
            raise InputError(f"it is not of version {VERSION}")
        for name in ("from", "to"):
            check_id(facts[name])
        if not isinstance(facts["sealed"], str) or not isinstance(facts["signature"], str):
            raise InputError("its seal and its signature must be texts")
        letter = cls(facts["from"], facts["to"], facts["sealed"], facts["signature"])
        if letter.content != content:
            raise InputError("it is not in the one spelling")
        return letter

    @cached_property
    def content(self) -> bytes:
        """The bytes of its file."""
        return canonical.write(
            {
                "privcal": VERSION,
                "from": self.sender,
                "to": self.reader,
                "sealed": self.sealed,
                "signature": self.signature,
            }
        ).encode("ascii")

    @property
    def digest(self) -> str:
        """The SHA-256 of its file, by which a reply names it."""
        return digest(self.content)

    @property
    def name(self) -> str:
        """The name of its file, in a folder of its writer's."""
        return file_name(self.reader, self.content)

    def check(self, signing: str) -> None:
        """ValueError unless the party with this public key signed it."""
        if id_of(signing) != self.sender:
            raise ValueError("it is signed by another party")
        check_signature(signing, _signed(self.sender, self.reader, self.sealed), self.signature)

    def open(self, *keys: SealingKey) -> str:
        """The text inside, by the first of these keys that opens it.

        A ValueError where it was sealed for another key or between other parties.
        """
        sealed, about = from_base64(self.sealed), _about(_SEALED, self.sender, self.reader)
        for key in keys:
            try:
                return key.open(sealed, about).decode("ascii")
            except ValueError:
                continue
        raise ValueError("it was sealed for another key or between other parties")


def check_name(what: str, name: Any) -> str:
    """`name` if a party may have it."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"{what} must be of letters, digits, and - _ . @ (at most 63 of them, not a sign first), "
            f"not {short(name)}"
        )
    return name


def check_role(what: str, role: Any) -> str:
    """`role` if a party may have it."""
    return one_of(what, role, ROLES)


def digest(content: bytes) -> str:
    """The SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def file_name(reader: str, content: bytes) -> str:
    """The name of the file with this content for `reader`: it says what is in it, and never changes."""
    return f"{reader}-{digest(content)}"


def check_id(value: Any) -> str:
    """`value` if it is an ID."""
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise InputError("an ID must be 32 hexadecimal digits")
    return value


def _signed(sender: str, reader: str, sealed: str) -> str:
    # A list of plain texts in the one spelling; `sealed` is base64 and needs no escape.
    return f'["{_SIGNED}","{sender}","{reader}","{sealed}"]'


def _about(tag: str, *ids: str) -> bytes:
    return canonical.write([tag, *ids]).encode("ascii")
