"""The certificates in a participant's folder: until when they are good, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import InvalidSignature

from privcal.errors import InputError
from privcal.federation.shared.certificates import (
    load_key,
    own_certificate,
    own_path,
    root_certificate,
)

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
    """What does not fit among a participant's certificate, its key and its root; empty: all does."""
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
