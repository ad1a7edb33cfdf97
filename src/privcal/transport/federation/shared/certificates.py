"""Certificates of the federation's authority: whom one names, what its key signed, how long it holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from privcal.secure.canonical import from_base64
from privcal.transport.federation.shared.kit import CREDENTIALS, ROOT
from privcal.trusted.errors import InputError

MAX_CERTIFICATE = 16_384
"""Characters: the longest chain of a kit is far shorter."""

WARNING = timedelta(days=30)
"""How long before its end a certificate is warned of."""


@dataclass(frozen=True)
class Holder:
    """Whom a certificate names, and the public key that it is about."""

    name: str
    org: str
    role: str
    """Empty for a site and for the server."""
    key: Any

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Holder:
        def text(oid: x509.ObjectIdentifier) -> str:
            values = certificate.subject.get_attributes_for_oid(oid)
            return str(values[0].value) if values else ""

        return cls(
            name=text(NameOID.COMMON_NAME),
            org=text(NameOID.ORGANIZATION_NAME),
            role=text(NameOID.UNSTRUCTURED_NAME),
            key=certificate.public_key(),
        )

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)

    def check(self, text: str, signature: Any) -> None:
        """An exception unless they signed `text`."""
        from nvflare.lighter.utils import verify_content

        verify_content(text, from_base64(signature), self.key)


def fingerprint(key: Any) -> str:
    """The fingerprint of a public key: SHA-256 of its SubjectPublicKeyInfo (DER), in hex.

    Not of a certificate: a key that was stolen is the same in every certificate made for it.
    """
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def load(path: str | Path) -> x509.Certificate:
    """A certificate from a file (PEM)."""
    try:
        return x509.load_pem_x509_certificate(Path(path).read_text("ascii").encode())
    except (OSError, ValueError):
        raise InputError(
            f"{path} is missing, or is not a certificate; get the kit from whoever made it"
        ) from None


def load_key(path: str | Path) -> Any:
    """A private key from a file (PEM)."""
    try:
        return load_pem_private_key(Path(path).read_bytes(), None)
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"{path} is missing, or is not a private key; get the kit from whoever made it"
        ) from None


def own_path(folder: Path) -> Path:
    """The file of a participant's own certificate; its key has the same name with .key."""
    server = folder / "startup" / f"{CREDENTIALS['server']}.crt"
    return server if server.exists() else server.with_name(f"{CREDENTIALS['site']}.crt")


def own_certificate(folder: str | Path) -> x509.Certificate:
    """The certificate of the participant whose folder it is."""
    return load(own_path(Path(folder)))


def root_certificate(folder: str | Path) -> x509.Certificate:
    """The certificate of its federation's authority."""
    return load(Path(folder) / "startup" / ROOT)


def own_name(folder: str | Path) -> str:
    """The name in a participant's certificate."""
    return Holder.of(own_certificate(folder)).name


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
    return Holder.of(chain[0])


def unverified(certificate: str) -> Holder:
    """Whom a certificate (PEM) names, whoever made it."""
    return Holder.of(x509.load_pem_x509_certificate(certificate.encode("ascii")))


def of_kit(folder: str | Path) -> tuple[Holder, str, Any]:
    """The holder of a participant's certificate, the certificate (PEM) and the private key."""
    path = own_path(Path(folder))
    return Holder.of(load(path)), path.read_text("ascii"), load_key(path.with_suffix(".key"))


def sign(text: str, key: Any) -> str:
    """A signature that `Holder.check` of the same key takes."""
    from nvflare.lighter.utils import sign_content

    return str(sign_content(text, key))


# --- dates, and whether things fit ---------------------------------------------------------


@dataclass(frozen=True)
class Expiry:
    """Until when a participant can take part; both sentences are empty where all is well."""

    certificate: datetime
    authority: datetime
    expired: str
    """A sentence on what has run out or has not begun."""
    soon: str
    """A sentence on what runs out within 30 days."""


def expiry(folder: Path, now: datetime | None = None) -> Expiry:
    """The dates of a participant's certificate and of its authority's."""
    now = datetime.now(UTC) if now is None else now
    own, root = own_certificate(folder), root_certificate(folder)
    expired = soon = ""
    for what, after, certificate in (
        ("this participant's certificate", "", own),
        ("the federation's authority", ", and with it every kit", root),
    ):
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > end:
            expired = expired or f"{what} ran out on {end:%Y-%m-%d}{after}"
        elif now < start:
            expired = expired or (
                f"{what} begins on {start:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
            )
        elif end - now <= WARNING:
            soon = soon or f"{what} runs out on {end:%Y-%m-%d}{after}"
    return Expiry(own.not_valid_after_utc, root.not_valid_after_utc, expired, soon)


def mismatch(folder: Path) -> str:
    """A sentence on what does not fit among certificate, key and root; empty where all does."""
    own, root, path = own_certificate(folder), root_certificate(folder), own_path(folder)
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return f"startup/{path.name} was not made by the authority of startup/rootCA.pem"
    try:
        key = load_key(path.with_suffix(".key"))
    except InputError:
        return f"startup/{path.stem}.key cannot be read"
    if key.public_key() != own.public_key():
        return f"startup/{path.stem}.key is not the key of startup/{path.name}"
    return ""
