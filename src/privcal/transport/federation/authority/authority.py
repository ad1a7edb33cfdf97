"""The certificate authority of a federation: its key, what it signed, what it took back.

Its folder has the key (`cert.json`) and a register of every certificate it ever made, by name and
key, and of everything revoked. The keys of participants are in no register: they leave with the
kits.
"""

from __future__ import annotations

import ipaddress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privcal.data.files import read_json, write_document
from privcal.transport.federation.authority.project import Member
from privcal.transport.federation.shared.certificates import fingerprint
from privcal.transport.federation.shared.kit import CALIBRATOR_ROLE, Kind
from privcal.transport.federation.shared.revocations import Revocations, sign
from privcal.trusted.errors import InputError

KEY = "cert.json"
REGISTER = "register.json"
# FLARE's 2048 bits are what NIST allows until 2030, and an authority lives for ten years.
BITS = 3072
_SKEW = timedelta(hours=1)  # other machines' clocks may be behind


@dataclass(frozen=True)
class Issued:
    """A certificate that was made: a line of the register."""

    name: str
    key: str
    until: str


@dataclass(frozen=True)
class Credentials:
    """A certificate and its key, as files."""

    certificate: bytes
    key: bytes
    until: datetime


class Authority:
    """The key that makes certificates, with what it made and took back so far."""

    def __init__(
        self,
        certificate: x509.Certificate,
        key: rsa.RSAPrivateKey,
        issued: list[Issued],
        revoked: Revocations,
    ) -> None:
        self.certificate = certificate
        self.key = key
        self.issued = issued
        self.revoked = revoked

    @classmethod
    def create(cls, name: str, days: int) -> Authority:
        """A new authority, good for so many days; nothing is written."""
        key, subject = _new_key(), _name(name)
        certificate = (
            _builder(subject, subject, key.public_key(), key.public_key(), _until(days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, [], Revocations())

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """An authority from its folder, as `save` wrote it."""
        try:
            secret = read_json(folder / KEY, "key of an authority")
            register = read_json(folder / REGISTER, "register of an authority")
        except InputError as error:
            raise InputError(f"{error}; say where the authority's folder is with --ca") from None
        try:
            certificate = x509.load_pem_x509_certificate(secret["root_cert"].encode())
            key = serialization.load_pem_private_key(secret["root_pri_key"].encode(), None)
            if (
                not isinstance(key, rsa.RSAPrivateKey)
                or key.public_key() != certificate.public_key()
            ):
                raise ValueError("not the certificate's key")
            revoked = register["revoked"]
            return cls(
                certificate,
                key,
                [Issued(**line) for line in register["issued"]],
                Revocations(
                    int(revoked["number"]),
                    str(revoked["time"]),
                    frozenset(revoked["names"]),
                    frozenset(revoked["keys"]),
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{folder} is not the folder of an authority: {KEY} or {REGISTER} is damaged"
            ) from None

    def save(self, folder: Path) -> None:
        """Write the register, and the key where it is not there yet."""
        if not (folder / KEY).exists():
            secret = {
                "root_cert": self.pem.decode(),
                "root_pri_key": _private_pem(self.key).decode(),
            }
            write_document(folder / KEY, secret, private=True)
        revoked = asdict(self.revoked)
        revoked |= {part: sorted(revoked[part]) for part in ("names", "keys")}
        register = {"issued": [asdict(line) for line in self.issued], "revoked": revoked}
        write_document(folder / REGISTER, register, private=True)

    @property
    def pem(self) -> bytes:
        """Its certificate: the root of every kit."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, kind: Kind, member: Member, days: int) -> Credentials:
        """A new key and its certificate, good for so many days, or as long as the authority is."""
        if member.name.lower() in self.revoked.names:
            raise InputError(f"{member.name} was revoked, for good: choose another name")
        until = min(_until(days), self.certificate.not_valid_after_utc)
        if until <= datetime.now(UTC):
            raise InputError(
                f"the federation's authority ran out on {until:%Y-%m-%d}: make a new federation"
            )
        key = _new_key()
        role = CALIBRATOR_ROLE if kind == "calibrator" else None
        subject = _name(member.name, member.org, role)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if kind == "server":
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)  # no site can pose as the server
        builder = (
            _builder(
                subject, self.certificate.subject, key.public_key(), self.key.public_key(), until
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if kind == "server":
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(member.name)]), critical=False
            )
        certificate = builder.sign(self.key, hashes.SHA256())
        self.issued.append(Issued(member.name, fingerprint(key.public_key()), f"{until:%Y-%m-%d}"))
        return Credentials(
            certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key), until
        )

    def revoke_name(self, name: str) -> None:
        """Revoke a name, with every key it has or will have."""
        self._revoke(names={name.lower()}, keys=self._keys(name))

    def revoke_old_keys(self, name: str) -> None:
        """Revoke every key made for a name but the newest, with which the name goes on."""
        old = self._keys(name)[:-1]
        if not old:
            raise InputError(
                f"{name} has one key only: make a new one first (privcal federation renew)"
            )
        self._revoke(names=set(), keys=old)

    def revocations(self) -> str:
        """The list of all that is revoked, signed."""
        return sign(self.revoked, self.key)

    def _keys(self, name: str) -> list[str]:
        return [line.key for line in self.issued if line.name == name]

    def _revoke(self, names: set[str], keys: list[str]) -> None:
        before = self.revoked
        after = replace(before, names=before.names | names, keys=before.keys | set(keys))
        if after != before:
            time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            self.revoked = replace(after, number=before.number + 1, time=time)


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=BITS)


def _until(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _name(name: str, org: str | None = None, role: str | None = None) -> x509.Name:
    """A subject, as FLARE writes and reads it."""
    parts = [
        (NameOID.COMMON_NAME, name),
        (NameOID.ORGANIZATION_NAME, org),
        (NameOID.UNSTRUCTURED_NAME, role),
    ]
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts if text is not None])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPublicKey,
    by: rsa.RSAPublicKey,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by), critical=False)
    )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
