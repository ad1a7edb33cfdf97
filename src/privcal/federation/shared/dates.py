"""The certificates in a participant's folder: until when they are good, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from privcal.errors import InputError

WARNING = timedelta(days=30)


@dataclass(frozen=True)
class Expiry:
    """Until when a participant can take part; both sentences are empty where all is well."""

    certificate: datetime
    authority: datetime
    expired: str
    """What has run out or has not begun."""
    soon: str
    """What runs out within 30 days."""


def expiry(folder: Path, at: datetime | None = None) -> Expiry:
    """The dates of a participant's certificate and of its authority's, seen now or at a moment."""
    at = datetime.now(UTC) if at is None else at
    own, root = own_certificate(folder), root_certificate(folder)
    expired = soon = ""
    for what, after, certificate in (
        ("this participant's certificate", "", own),
        ("the federation's authority", ", and with it every kit", root),
    ):
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if at > end:
            expired = expired or f"{what} ran out on {end:%Y-%m-%d}{after}"
        elif at < start:
            expired = expired or (
                f"{what} begins on {start:%Y-%m-%d %H:%M} UTC; is this machine's clock right?"
            )
        elif end - at <= WARNING:
            soon = soon or f"{what} runs out on {end:%Y-%m-%d}{after}"
    return Expiry(own.not_valid_after_utc, root.not_valid_after_utc, expired, soon)


def unfitting(folder: Path) -> str:
    """What is wrong between a participant's certificate, its key and its root; nothing: empty."""
    own, root, path = own_certificate(folder), root_certificate(folder), _own(folder)
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return f"startup/{path.name} was not made by the authority of startup/rootCA.pem"
    try:
        key = serialization.load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return f"startup/{path.stem}.key cannot be read"
    if key.public_key() != own.public_key():
        return f"startup/{path.stem}.key is not the key of startup/{path.name}"
    return ""


def own_certificate(folder: Path) -> x509.Certificate:
    """That of the participant whose folder it is."""
    return _certificate(_own(folder))


def root_certificate(folder: Path) -> x509.Certificate:
    """That of its federation's authority."""
    return _certificate(folder / "startup" / "rootCA.pem")


def _own(folder: Path) -> Path:
    server = folder / "startup" / "server.crt"
    return server if server.exists() else server.with_name("client.crt")


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path} is missing, or is not a certificate") from None
