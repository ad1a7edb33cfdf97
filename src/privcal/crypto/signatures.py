"""Signatures with a site's own key (Ed25519), as others check them."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from privcal.crypto.canonical import from_base64
from privcal.errors import InputError


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
