"""A site's own keys: made at the site, never by whoever makes the kits, and kept there.

With one it signs its replies and what it deals in secure sums; with the other it opens what was
sealed for it there. Both lie in one file, which only the site's own account may read.

That a site opens one set for each question, it knows from its ledgers. So the sealing key goes with
those that the site has had since the key was made: where one of them was restored, reconciled or made anew, openings may be
forgotten, and the key is destroyed. Nothing that was sealed for it can be opened again; the site
answers ordinary questions as before, and takes part in secure sums once it has new keys, which the
others have in their rosters.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privcal.data.files import replacing
from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import SealingKey, check_public_key
from privcal.trusted.errors import InputError

KEYS_FORMAT = 2
LOST = (
    "the sealing key was destroyed, because a ledger it was used with is gone or was restored: this "
    "site takes part in secure sums again after privcal site keys rotate, when the others have its "
    "new card in their rosters"
)
"""Why there is no sealing key."""

_FILE = Path("local", "keys", "site.key")
_PARTS = {"format", "ledgers", "made", "sealing", "sealing_public", "signing"}


@dataclass(frozen=True, repr=False)
class SiteKeys:
    """A site's signing and sealing key. Neither shows in a text of this object."""

    _signing: Ed25519PrivateKey
    _sealing: SealingKey | None
    sealing_public: str
    made: int
    """Unix seconds."""
    ledgers: tuple[str, ...] = ()
    """The generations of the ledgers that the sealing key goes with, sorted."""

    @classmethod
    def make(cls, folder: str | Path) -> SiteKeys:
        """New keys for the site in `folder`, which must have none."""
        path, keys = _closed_path(folder), _fresh()
        try:
            _write_new(path, keys._text())
        except FileExistsError:
            raise InputError(
                f"{path} is there already; privcal site keys rotate makes new keys in its place"
            ) from None
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None
        return keys

    @classmethod
    def load(cls, folder: str | Path) -> SiteKeys:
        path = Path(folder) / _FILE
        try:
            _check_closed(path)
            text = path.read_text("ascii")
        except OSError as error:
            raise InputError(
                f"cannot read the site's keys, {path}: {error.strerror}; run this as the account "
                "that set the site up, or make new keys with privcal site keys rotate"
            ) from None
        except UnicodeDecodeError:
            raise _damaged(path) from None
        try:
            facts = canonical.read(text, 10_000)
            if facts.get("format") == KEYS_FORMAT:
                return cls._of(facts)
        except ValueError:  # without its cause, which might quote the file
            raise _damaged(path) from None
        raise InputError(
            f"{path} is not of format {KEYS_FORMAT}, which this privcal has; make new keys with "
            "privcal site keys rotate"
        )

    @classmethod
    def _of(cls, facts: dict[str, Any]) -> SiteKeys:
        """The keys in the parts of their file; ValueError for whatever else these are."""
        if set(facts) != _PARTS:
            raise InputError("it has other parts")
        if type(facts["made"]) is not int:
            raise InputError("its date is odd")
        ledgers = facts["ledgers"]
        if not isinstance(ledgers, list) or not all(isinstance(name, str) for name in ledgers):
            raise InputError("its ledgers are odd")
        signing = Ed25519PrivateKey.from_private_bytes(from_base64(facts["signing"], 32))
        sealing = None if facts["sealing"] is None else SealingKey.read(facts["sealing"])
        public = check_public_key(facts["sealing_public"])
        if sealing is not None and sealing.public != public:
            raise InputError("its sealing key has another public half")
        return cls(signing, sealing, public, facts["made"], tuple(ledgers))

    @property
    def lost(self) -> bool:
        """Whether the sealing key was destroyed."""
        return self._sealing is None

    @property
    def sealing(self) -> SealingKey:
        """The sealing key; InputError where it was destroyed."""
        if self._sealing is None:
            raise InputError(LOST)
        return self._sealing

    @property
    def public(self) -> str:
        """The public half of the signing key."""
        return to_base64(self._signing.public_key().public_bytes_raw())

    def sign(self, text: str) -> str:
        return to_base64(self._signing.sign(text.encode("utf-8")))

    def _text(self) -> str:
        return canonical.write(
            {
                "format": KEYS_FORMAT,
                "ledgers": self.ledgers,
                "made": self.made,
                "sealing": None if self._sealing is None else self._sealing.secret,
                "sealing_public": self.sealing_public,
                "signing": to_base64(self._signing.private_bytes_raw()),
            }
        )

    def __repr__(self) -> str:
        return f"<site keys made at {self.made}>"


def exist(folder: str | Path) -> bool:
    """Whether a site has keys, whatever their state."""
    return (Path(folder) / _FILE).exists()


def rotate(folder: str | Path) -> SiteKeys:
    """New keys in place of the old, whatever their state; these are overwritten."""
    path, keys = _closed_path(folder), _fresh()
    if not path.exists():  # destroyed before
        return SiteKeys.make(folder)
    return _put(path, keys)


def bind(folder: str | Path, ledgers: Collection[str]) -> SiteKeys:
    """The keys, whose sealing key from now on goes with the ledgers of these generations.

    Where one that it went with before is not among them, openings may be forgotten, and the key is
    destroyed: the owner restored that ledger, or made another in its place, or no longer has it.
    """
    keys = SiteKeys.load(folder)
    if keys.lost or set(ledgers) == set(keys.ledgers):
        return keys
    path = _closed_path(folder)
    if set(keys.ledgers) - set(ledgers):
        return _put(path, replace(keys, _sealing=None))
    return _put(path, replace(keys, ledgers=tuple(sorted(ledgers))))


def _put(path: Path, keys: SiteKeys) -> SiteKeys:
    """Write keys in the place of others, which are overwritten."""
    try:
        with _overwritten(path), replacing(path, private=True) as part:
            part.write_text(keys._text(), encoding="ascii")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    return keys


def destroy(folder: str | Path) -> None:
    """Overwrite and remove a site's keys, whatever their state. It cannot answer until it has new ones."""
    path = Path(folder) / _FILE
    try:
        with _overwritten(path):
            path.unlink()
    except FileNotFoundError:
        raise InputError(f"{folder} has no keys: there is no {path}") from None
    except OSError as error:
        raise InputError(f"cannot remove {path}: {error.strerror}") from None


def _fresh() -> SiteKeys:
    sealing = SealingKey.make()
    return SiteKeys(Ed25519PrivateKey.generate(), sealing, sealing.public, int(time.time()))


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged; make new keys with privcal site keys rotate")


def _closed_path(folder: str | Path) -> Path:
    """The file of a site's keys, in a folder that nobody else may enter."""
    path = Path(folder) / _FILE
    if not path.parent.parent.is_dir():
        raise InputError(f"{folder} is not a site's folder: it has no local/")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
    except OSError as error:
        raise InputError(f"cannot make {path.parent}: {error.strerror}") from None
    return path


def _write_new(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _check_closed(path: Path) -> None:
    if os.name != "posix":
        return
    for opened in (path.parent, path):
        if opened.stat().st_mode & 0o077:
            raise InputError(
                f"{opened} is open to other accounts; if nobody can have read it, close it with "
                f"chmod go= {opened}, else make new keys with privcal site keys rotate"
            )


@contextmanager
def _overwritten(path: Path) -> Iterator[None]:
    """Afterwards, when `path` names something else or nothing, what it was is overwritten.

    The best a program can do: a disk, a snapshot or a backup may keep what was there.
    """
    with open(path, "r+b", buffering=0) as old:
        size = os.fstat(old.fileno()).st_size
        yield
        old.write(secrets.token_bytes(size))
        os.fsync(old.fileno())
