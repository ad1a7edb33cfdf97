"""Who a certificate of the federation's authority names, and what they signed with its key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from privcal.errors import InputError
from privcal.federation.shared.canonical import from_base64

MAX_CERTIFICATE = 16_384
"""Characters: the longest chain of a kit is far shorter."""


@dataclass(frozen=True)
class Holder:
    """Whom a certificate names, and the key that it is about."""

    name: str
    org: str
    role: str
    """Empty for a site and for the server."""
    key: Any
    """The public one."""

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)

    def check(self, text: str, signature: Any) -> None:
        """An exception unless they signed `text`."""
        from nvflare.lighter.utils import verify_content

        verify_content(text, from_base64(signature), self.key)


def fingerprint(key: Any) -> str:
    """Of a public key: SHA-256 of its SubjectPublicKeyInfo (DER), in hex.

    Not of a certificate: a key that was stolen is the same in every certificate made for it.
    """
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def root(path: str | Path) -> Any:
    """The certificate of the federation's authority."""
    from nvflare.lighter.utils import load_crt

    try:
        return load_crt(str(path))
    except (OSError, ValueError):
        raise InputError(
            f"{path} is not a readable certificate; get the kit from whoever made it"
        ) from None


def holder(certificate: Any, root: Any, now: float | None = None) -> Holder:
    """Whom a certificate (PEM) names, if the authority with that root certificate made it.

    An exception of whatever kind if not.
    """
    from nvflare.lighter.utils import (
        load_crt_chain_bytes,
        validate_admin_leaf_cert,
        verify_cert_chain,
    )

    if not isinstance(certificate, str) or len(certificate) > MAX_CERTIFICATE:
        raise InputError("a certificate must be a text that is not too long")
    chain = load_crt_chain_bytes(certificate.encode("ascii"))
    when = None if now is None else datetime.fromtimestamp(now, UTC)
    verify_cert_chain(chain[0], chain[1:], root, when)
    validate_admin_leaf_cert(chain[0])  # not an authority's, and one that may sign
    return _holder(chain[0])


def unverified(certificate: str) -> Holder:
    """Whom a certificate names, whoever made it."""
    from nvflare.lighter.utils import load_crt_chain_bytes

    return _holder(load_crt_chain_bytes(certificate.encode("ascii"))[0])


def of_kit(startup: Path) -> tuple[Holder, str, Any]:
    """Whose kit it is, with the certificate (PEM) and the private key."""
    from nvflare.lighter.utils import load_private_key_file

    try:
        text = (startup / "client.crt").read_text("ascii")
        return unverified(text), text, load_private_key_file(str(startup / "client.key"))
    except (OSError, ValueError) as error:
        raise InputError(f"{startup} holds no readable key and certificate: {error}") from None


def sign(text: str, key: Any) -> str:
    """What `Holder.check` of the same key takes."""
    from nvflare.lighter.utils import sign_content

    return str(sign_content(text, key))


def _holder(certificate: Any) -> Holder:
    from nvflare.lighter.utils import _cert_to_submitter

    name, org, role = map(str, _cert_to_submitter(certificate))
    return Holder(name, org, role, certificate.public_key())
