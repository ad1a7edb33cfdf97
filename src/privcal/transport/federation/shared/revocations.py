"""The list of revoked names and keys, signed by the federation's authority.

A certificate is good until it runs out, whoever holds its key by then. So the authority's keeper
signs a list, and every participant keeps it as `local/revoked.json` and looks at it whenever
somebody speaks. Without a list nobody is revoked; with one that is damaged, or that somebody else
signed, nobody can be told from the revoked, and nobody is believed.

Lists are numbered, and each holds all that was ever revoked. A folder takes no list that is older
than the one it has, and a process that has seen a list takes no older one, nor its absence.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from privcal.data.files import replacing
from privcal.transport.federation.shared import certificates
from privcal.transport.federation.shared.kit import ROOT
from privcal.trusted.errors import InputError

REVOKED = "revoked.json"
MAX_LIST = 1 << 20
_PREFIX = b"privcal revocations\n"  # so that no other text the authority signs is taken for a list
_FIELDS = {"version", "number", "time", "names", "keys"}
_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Revocations:
    """Names, in lower case, and fingerprints of keys that nobody believes any more."""

    number: int = 0
    """The count of lists that the authority has signed, with this one; 0: there is no list."""
    time: str = ""
    names: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    def refuses(self, name: str, key_fingerprint: str) -> bool:
        return name.lower() in self.names or key_fingerprint in self.keys


def sign(revoked: Revocations, key: rsa.RSAPrivateKey) -> str:
    """The list as it is handed out."""
    names, keys = sorted(revoked.names), sorted(revoked.keys)
    text = json.dumps(
        {"version": 1, "number": revoked.number, "time": revoked.time, "names": names, "keys": keys}
    )
    signature = key.sign(_PREFIX + text.encode(), _padding(), hashes.SHA256())
    return json.dumps({"list": text, "signature": base64.b64encode(signature).decode()}) + "\n"


def load(folder: Path) -> Revocations:
    """The list of a participant's folder; raises `InputError` unless it is whole and signed.

    Cheap enough for every message: a list is read again only when its file has changed.
    """
    path, root = folder / "local" / REVOKED, folder / "startup" / ROOT
    key = str(path.absolute())
    before = _SEEN.get(key)
    state = (_state(path), _state(root))
    if state[1] is None:
        raise InputError(f"{root} is missing, so no list of revocations can be believed")
    if before is not None and before[0] == state:
        return before[1]
    revoked = Revocations() if state[0] is None else read(path, root)
    if before is not None and revoked.number < before[1].number:
        raise InputError(
            f"{path} is older than it was, or gone: install the newest list again "
            "(privcal federation revocations)"
        )
    _SEEN[key] = (state, revoked)
    return revoked


_SEEN: dict[str, tuple[tuple[Any, Any], Revocations]] = {}
"""The last list of each file, with the state of the two files that it was read from."""


def _state(path: Path) -> tuple[int, int, int, int] | None:
    try:
        file = os.stat(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            return None
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


def read(path: Path, root_certificate: Path) -> Revocations:
    """A list from a file, checked against the root certificate of a kit."""
    root = certificates.load(root_certificate)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_LIST + 1)
        if len(text) > MAX_LIST:
            raise ValueError("too long")
        return _verified(text, root)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from None
    except InvalidSignature:
        raise InputError(
            f"{path} is not signed by this federation's authority; get the list again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path} is not a whole list of revocations; get it again") from None


def install(folder: Path, path: Path) -> Revocations:
    """Put a list into a participant's folder, unless the folder has a newer one."""
    root = folder / "startup" / ROOT
    if not root.is_file() or not (folder / "local").is_dir():
        raise InputError(f"{folder} is not a participant's folder: startup/ or local/ is missing")
    new, installed = read(path, root), folder / "local" / REVOKED
    if installed.exists():
        try:
            old = read(installed, root)
        except InputError:  # nobody can tell which is newer: only the owner can go on, knowingly
            raise InputError(
                f"{installed} is damaged: remove it if you are sure that list {new.number} is the "
                "newest, and install that again"
            ) from None
        if new.number < old.number:
            raise InputError(
                f"{path} is list {new.number} and {folder} has list {old.number}: there is no way "
                "back to an older one"
            )
        if new.number == old.number and new != old:
            raise InputError(
                f"{path} and the list in {folder} are different lists with the number {new.number}: "
                "ask the authority's keeper which one holds"
            )
    with replacing(installed, private=True) as part:
        part.write_bytes(path.read_bytes())
        if read(part, root) != new:  # it was changed while it was copied
            raise InputError(f"{path} changed while it was read; install it again")
    return new


def _verified(text: bytes, root: x509.Certificate) -> Revocations:
    document = json.loads(text)
    if set(document) != {"list", "signature"}:
        raise ValueError("other parts")
    key = root.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise TypeError("another kind of key")
    signature = base64.b64decode(document["signature"], validate=True)
    key.verify(signature, _PREFIX + document["list"].encode(), _padding(), hashes.SHA256())
    facts = json.loads(document["list"])
    number, names, keys = facts["number"], facts["names"], facts["keys"]
    if set(facts) != _FIELDS or facts["version"] != 1 or type(number) is not int or number < 1:
        raise ValueError("a list of another version")
    if not isinstance(names, list) or not isinstance(keys, list):
        raise ValueError("not lists")
    if not all(_KEY.fullmatch(key) for key in keys):
        raise ValueError("not a key")
    return Revocations(
        number, str(facts["time"]), frozenset(name.lower() for name in names), frozenset(keys)
    )


def _padding() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
