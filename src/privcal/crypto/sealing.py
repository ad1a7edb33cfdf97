"""Sealing (HPKE, RFC 9180): a text for a public key is read with the private half alone.

A public key is one text, "suite:base64", so that another suite can be added. The first one joins
ML-KEM-768 and X25519 and holds as long as either does: what is recorded today must stay closed
when X25519 is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from privcal.crypto.canonical import from_base64, to_base64
from privcal.errors import InputError

HYBRID = "mlkem768-x25519"
CLASSICAL = "x25519"
SUITES = {
    HYBRID: Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
    CLASSICAL: Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM),
}
OVERHEAD = {HYBRID: 1120 + 16, CLASSICAL: 32 + 16}
"""Bytes that a sealed text is longer than the text: the encapsulated key and the tag."""

_PRIVATE = {HYBRID: 64 + 32, CLASSICAL: 32}
_PUBLIC = {HYBRID: 1184 + 32, CLASSICAL: 32}
MAX_PUBLIC = 2000
"""Characters of a public key's text: the longest has 1,640."""


@dataclass(frozen=True, repr=False)
class SealingKey:
    """The private half of a sealing key. Nothing but `secret` shows it."""

    suite: str
    _raw: bytes

    @classmethod
    def make(cls, suite: str = HYBRID) -> SealingKey:
        """A new key."""
        raw = X25519PrivateKey.generate().private_bytes_raw()
        if suite == HYBRID:
            raw = MLKEM768PrivateKey.generate().private_bytes_raw() + raw
        return cls(suite, raw)

    @classmethod
    def read(cls, secret: Any) -> SealingKey:
        """A key from the text of its `secret`."""
        return cls(*_split(secret, _PRIVATE))

    @property
    def secret(self) -> str:
        """The private half as text, for the one file that holds it."""
        return f"{self.suite}:{to_base64(self._raw)}"

    @property
    def public(self) -> str:
        raw = X25519PrivateKey.from_private_bytes(self._raw[-32:]).public_key().public_bytes_raw()
        if self.suite == HYBRID:
            seed = MLKEM768PrivateKey.from_seed_bytes(self._raw[:64])
            raw = seed.public_key().public_bytes_raw() + raw
        return f"{self.suite}:{to_base64(raw)}"

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """The text that was sealed for this key with the same `info`; else a ValueError."""
        try:
            return SUITES[self.suite].decrypt(sealed, self._key, info=info)
        except (InvalidTag, ValueError):
            raise ValueError("it was sealed for another key or about something else") from None

    @cached_property
    def _key(self) -> Any:  # to make it of its seed takes as long as to open something with it
        key = X25519PrivateKey.from_private_bytes(self._raw[-32:])
        if self.suite == HYBRID:
            seed = MLKEM768PrivateKey.from_seed_bytes(self._raw[:64])
            return MLKEM768X25519PrivateKey(seed, key)
        return key

    def __repr__(self) -> str:
        return f"<sealing key, {self.suite}>"


def seal(public: str, text: bytes, info: bytes) -> bytes:
    """`text`, for the owner of `public` alone, and only together with the same `info`."""
    suite, raw = _split(public, _PUBLIC)
    try:
        key: Any = X25519PublicKey.from_public_bytes(raw[-32:])
        if suite == HYBRID:
            key = MLKEM768X25519PublicKey(MLKEM768PublicKey.from_public_bytes(raw[:-32]), key)
        return SUITES[suite].encrypt(text, key, info=info)
    except ValueError:
        raise InputError("nothing can be sealed for this key") from None


def check_public_key(public: Any) -> str:
    """A public key that something can be sealed for: tried, for a key of low order parses too."""
    seal(public, b"", b"privcal trial")
    return str(public)


def suite_of(public: str) -> str:
    return public.partition(":")[0]


def _split(text: Any, lengths: dict[str, int]) -> tuple[str, bytes]:
    if not isinstance(text, str) or len(text) > MAX_PUBLIC:
        raise InputError("a sealing key must be a text that is not too long")
    suite, _, rest = text.partition(":")
    if suite not in lengths:
        raise InputError(f"a sealing key must be of one of the suites {', '.join(lengths)}")
    return suite, from_base64(rest, lengths[suite])
