"""The keys with which a site takes part in secure sums: to sign, and to open what is sealed for it.

A site of a federation has keys of its own, made there and kept there. Sources in one process have
none, and need none against each other: whoever runs the process sees all their rows. They run the
same protocol all the same, with keys that are derived from their ledgers.

Sealing is HPKE (RFC 9180): a text for a public key is read with the private half alone. A public key is
one text, "suite:base64", so that another suite can be added. The first one joins ML-KEM-768 and X25519
and holds as long as either does: what is recorded today must stay closed when X25519 is broken.
Signatures are Ed25519.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
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

from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.terms import Member
from privcal.trusted.book import Book
from privcal.trusted.errors import InputError

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

_NO_KEY = "nothing can be sealed for this key"
_TRIAL = X25519PrivateKey.generate()
"""Nobody's key: it shows which public keys are of low order. To seal something takes four times as long."""


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
    suite, classical, hybrid = _public_key(public)
    try:
        return SUITES[suite].encrypt(text, hybrid or classical, info=info)
    except ValueError:
        raise InputError(_NO_KEY) from None


def check_public_key(public: Any) -> str:
    """A public key that something can be sealed for: tried, for a key of low order parses too."""
    try:
        _TRIAL.exchange(_public_key(public)[1])
    except ValueError:
        raise InputError(_NO_KEY) from None
    return str(public)


def _public_key(public: Any) -> tuple[str, X25519PublicKey, Any]:
    """The suite of a public key, its X25519 part, and the whole where there is another part."""
    suite, raw = _split(public, _PUBLIC)
    try:
        key = X25519PublicKey.from_public_bytes(raw[-32:])
        other = MLKEM768PublicKey.from_public_bytes(raw[:-32]) if suite == HYBRID else None
        return suite, key, other and MLKEM768X25519PublicKey(other, key)
    except ValueError:
        raise InputError(_NO_KEY) from None


def suite_of(public: str) -> str:
    return public.partition(":")[0]


def _split(text: Any, lengths: dict[str, int]) -> tuple[str, bytes]:
    if not isinstance(text, str) or len(text) > MAX_PUBLIC:
        raise InputError("a sealing key must be a text that is not too long")
    suite, _, rest = text.partition(":")
    if suite not in lengths:
        raise InputError(f"a sealing key must be of one of the suites {', '.join(lengths)}")
    return suite, from_base64(rest, lengths[suite])


def check_signing(public: str) -> str:
    """A public signing key for which nobody can sign but who has the private half.

    Keys of low order parse too, and anyone can sign for them. A point (x, y) of Ed25519 is the
    point u = (1 + y)/(1 − y) of X25519, which refuses those of low order.
    """
    raw = from_base64(public, 32)
    prime = 2**255 - 19
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if y >= prime:
        raise InputError("a signing key has one spelling")
    u = (1 + y) * pow(1 - y, prime - 2, prime) % prime
    try:
        Ed25519PublicKey.from_public_bytes(raw)
        point = X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
        X25519PrivateKey.generate().exchange(point)
    except ValueError:
        raise InputError("a signing key is not one that can be relied on") from None
    return public


def check_signature(public: str, text: str, signature: object) -> None:
    """ValueError unless whoever has the private half of `public` signed `text`."""
    try:
        key = Ed25519PublicKey.from_public_bytes(from_base64(public, 32))
        key.verify(from_base64(signature, 64), text.encode("utf-8"))
    except (InvalidSignature, ValueError):
        raise ValueError("its signature is not right") from None


_DERIVED = "privcal local keys 1"


class Keys(Protocol):
    """A site's private keys: it signs with one and opens with the other what is sealed for it."""

    @property
    def public(self) -> str:
        """The public half of the signing key."""
        ...

    @property
    def sealing(self) -> SealingKey: ...

    def sign(self, text: str) -> str: ...


@dataclass(frozen=True, repr=False)
class LocalKeys:
    """The keys of a source in this process. No text of this object shows them."""

    _signing: Ed25519PrivateKey
    sealing: SealingKey

    @property
    def public(self) -> str:
        """The public half of the signing key."""
        return to_base64(self._signing.public_key().public_bytes_raw())

    def sign(self, text: str) -> str:
        """The signature under `text`."""
        return to_base64(self._signing.sign(text.encode("utf-8")))


def local_keys(ledger: Book) -> LocalKeys:
    """The keys of a source in this process: the same whenever its ledger is opened again.

    They are derived from the ledger's secret, so that an interrupted run goes on with what was
    sealed before; and from how often the ledger was reconciled. One that was restored from a copy
    may have forgotten what it opened, so what was sealed for it before must stay closed.

    >>> one, other = Book.in_memory(), Book.in_memory()
    >>> local_keys(one).public == local_keys(one).public != local_keys(other).public
    True
    """
    generation, secret = ledger.generation, ledger.secret

    def derived(what: str, size: int) -> bytes:
        text = canonical.write([_DERIVED, what, generation])
        # A keyed BLAKE2b is a pseudorandom function; `person` parts it from all other uses of the
        # ledger's secret.
        hashed = hashlib.blake2b(
            text.encode("ascii"), key=secret, digest_size=size, person=b"privcal keys"
        )
        return hashed.digest()

    signing = Ed25519PrivateKey.from_private_bytes(derived("signing", 32))
    return LocalKeys(signing, SealingKey(HYBRID, derived("ml-kem", 64) + derived("x25519", 32)))


def member(keys: Keys) -> Member:
    """The public halves, as a roster has them.

    >>> keys = local_keys(Book.in_memory())
    >>> member(keys).signing == keys.public
    True
    """
    return Member(keys.public, keys.sealing.public)
