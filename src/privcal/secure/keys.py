"""The keys with which a site takes part in secure sums.

A site of a federation has keys of its own, made there and kept there. Sources in one process have
none, and need none against each other: whoever runs the process sees all their rows. They run the
same protocol all the same, with keys that are derived from their ledgers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privcal.crypto import canonical
from privcal.crypto.canonical import to_base64
from privcal.crypto.sealing import HYBRID, SealingKey
from privcal.privacy.ledger import Ledger
from privcal.secure.members import Member

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


def local_keys(ledger: Ledger) -> LocalKeys:
    """The keys of a source in this process: the same whenever its ledger is opened again.

    They are derived from the ledger's secret, so that an interrupted run goes on with what was
    sealed before; and from how often the ledger was reconciled. One that was restored from a copy
    may have forgotten what it opened, so what was sealed for it before must stay closed.

    >>> one, other = Ledger.in_memory(), Ledger.in_memory()
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

    >>> keys = local_keys(Ledger.in_memory())
    >>> member(keys).signing == keys.public
    True
    """
    return Member(keys.public, keys.sealing.public)
