"""A party's own keys: made where it is, by itself, and never copied to another party.

With one it signs its letters and what it deals in secure sums; with the other it opens what was
sealed for it. Both lie in one file, which only the party's own account may read.

A site knows from its ledgers that it opens one set for each question. So its sealing key goes with
the ledgers that it has had since the key was made: where one of them was restored, reconciled or
made anew, openings may be forgotten, and the key is destroyed. Nothing that was sealed for it can
be opened again. The site needs new keys then, and the others a new roster.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privcal.data.files import replacing
from privcal.secure import canonical
from privcal.secure.canonical import from_base64, to_base64
from privcal.secure.keys import SealingKey, check_public_key
from privcal.transport.letter import check_name, check_role, id_of
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.transport.roster import Card

KEYS_FORMAT = 3
LOST = (
    "the sealing key was destroyed, because a ledger it was used with is gone or was restored: run "
    "privcal keys rotate, and send the new card to the coordinator of the roster"
)
"""Why there is no sealing key."""
OLD_FOR = 90 * 24 * 3600
"""Seconds for which a rotated sealing key still opens what was dealt for it."""

CARD = "card.json"
"""A party's card in its folder, to be sent to the coordinator of a roster."""

_FILE = Path("keys", "privcal.key")
_PARTS = {
    "format",
    "role",
    "name",
    "ledgers",
    "made",
    "old",
    "sealing",
    "sealing_public",
    "signing",
}


@dataclass(frozen=True)
class Old:
    """A sealing key that was rotated: it opens boxes of sums that began before, until its day."""

    key: SealingKey
    until: int


@dataclass(frozen=True, repr=False)
class Keys:
    """A party's signing and sealing key. Neither shows in a text of this object."""

    role: str
    name: str
    _signing: Ed25519PrivateKey
    _sealing: SealingKey | None
    sealing_public: str
    made: int
    """Unix seconds."""
    ledgers: tuple[str, ...] = ()
    """The generations of the ledgers that the sealing key goes with, sorted."""
    old: Old | None = None

    @classmethod
    def make(cls, folder: str | Path, name: str, role: str) -> Keys:
        """New keys for a party in `folder`, which must have none."""
        check_name("the name of a party", name)
        check_role("the role of a party", role)
        path, keys = _closed_path(folder), _fresh(name, role)
        try:
            _write_new(path, keys._text())
        except FileExistsError:
            raise InputError(
                f"{path} is there already; privcal keys rotate makes new keys in its place"
            ) from None
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None
        return keys

    @classmethod
    def load(cls, folder: str | Path) -> Keys:
        path = Path(folder) / _FILE
        check_no_kit(folder)
        try:
            _check_closed(path)
            text = path.read_text("ascii")
        except OSError as error:
            raise InputError(
                f"cannot read the keys {path}: {error.strerror}; run this as the account that made "
                "them, or make some with privcal keys make"
            ) from None
        except UnicodeDecodeError:
            raise _damaged(path) from None
        try:
            facts = canonical.read(text, 20_000)
            if facts.get("format") == KEYS_FORMAT:
                return cls._of(facts)
        except ValueError:  # without its cause, which might quote the file
            raise _damaged(path) from None
        raise InputError(
            f"{path} is not of format {KEYS_FORMAT}, which this privcal has; remove it and make new "
            "keys with privcal keys make"
        )

    @classmethod
    def _of(cls, facts: dict[str, Any]) -> Keys:
        """The keys in the parts of their file; ValueError for whatever else these are."""
        if set(facts) != _PARTS or type(facts["made"]) is not int:
            raise InputError("it has other parts")
        check_name("name", facts["name"])
        check_role("role", facts["role"])
        ledgers = facts["ledgers"]
        if not isinstance(ledgers, list) or not all(isinstance(name, str) for name in ledgers):
            raise InputError("its ledgers are odd")
        signing = Ed25519PrivateKey.from_private_bytes(from_base64(facts["signing"], 32))
        sealing = None if facts["sealing"] is None else SealingKey.read(facts["sealing"])
        public = check_public_key(facts["sealing_public"])
        if sealing is not None and sealing.public != public:
            raise InputError("its sealing key has another public half")
        old = None if facts["old"] is None else _old(facts["old"])
        return cls(
            facts["role"],
            facts["name"],
            signing,
            sealing,
            public,
            facts["made"],
            tuple(ledgers),
            old,
        )

    @property
    def id(self) -> str:
        """The party's ID."""
        return id_of(self.public)

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

    def openers(self, now: float) -> tuple[SealingKey, ...]:
        """The keys that open letters: the sealing key, and the rotated one until its day."""
        old = () if self.old is None or self.old.until <= now else (self.old.key,)
        return old if self._sealing is None else (self._sealing, *old)

    @property
    def public(self) -> str:
        """The public half of the signing key."""
        return to_base64(self._signing.public_key().public_bytes_raw())

    @property
    def card(self) -> Card:
        """The card that this party sends to whoever makes the roster."""
        from privcal.transport.roster import Card  # a site's data process shows none

        facts = (self.role, self.name, self.public, self.sealing_public, self.made)
        return Card.make(facts, self.sign)

    def sign(self, text: str) -> str:
        return to_base64(self._signing.sign(text.encode("utf-8")))

    def as_of(self, sealing_public: str, now: float) -> Keys:
        """These keys, or the same with the rotated sealing key, where a roster still has that one."""
        old = self.old
        if old is None or old.until <= now or old.key.public != sealing_public:
            return self
        return replace(self, _sealing=old.key, sealing_public=sealing_public)

    def _text(self) -> str:
        old = self.old
        return canonical.write(
            {
                "format": KEYS_FORMAT,
                "role": self.role,
                "name": self.name,
                "ledgers": self.ledgers,
                "made": self.made,
                "old": None if old is None else [old.key.secret, old.until],
                "sealing": None if self._sealing is None else self._sealing.secret,
                "sealing_public": self.sealing_public,
                "signing": to_base64(self._signing.private_bytes_raw()),
            }
        )

    def __repr__(self) -> str:
        return f"<keys of {self.name}, made at {self.made}>"


def exist(folder: str | Path) -> bool:
    """Whether a party has keys, whatever their state."""
    return (Path(folder) / _FILE).exists()


def rotate(folder: str | Path, *, signing: bool = False, now: bool = False) -> Keys:
    """A new sealing key in place of the old one, and a new signing key where that is asked for.

    The old sealing key is kept for 90 days to open what was dealt for it, unless it must go `now`
    or was destroyed before. A new signing key is a new ID: the party is another one to the others.
    """
    keys, path = Keys.load(folder), _closed_path(folder)
    fresh = _fresh(keys.name, keys.role)
    old = None if now or signing or keys.lost else Old(keys.sealing, int(time.time()) + OLD_FOR)
    kept = fresh._signing if signing else keys._signing
    return _put(path, replace(fresh, _signing=kept, ledgers=keys.ledgers if old else (), old=old))


def bind(folder: str | Path, ledgers: Collection[str]) -> Keys:
    """The keys, whose sealing key from now on goes with the ledgers of these generations.

    Where one that it went with before is not among them, openings may be forgotten, and the key is
    destroyed: the owner restored that ledger, or made another in its place, or no longer has it.
    """
    keys = Keys.load(folder)
    bound = keys
    if keys.old is not None and keys.old.until <= time.time():
        bound = replace(bound, old=None)
    if set(keys.ledgers) - set(ledgers):
        bound = replace(bound, _sealing=None, old=None)
    elif not keys.lost:
        bound = replace(bound, ledgers=tuple(sorted(ledgers)))
    return keys if bound == keys else _put(_closed_path(folder), bound)


def destroy(folder: str | Path) -> None:
    """Overwrite and remove a party's keys, whatever their state. It cannot answer until it has new ones."""
    path = Path(folder) / _FILE
    try:
        with _overwritten(path):
            path.unlink()
    except FileNotFoundError:
        raise InputError(f"{folder} has no keys: there is no {path}") from None
    except OSError as error:
        raise InputError(f"cannot remove {path}: {error.strerror}") from None


def _put(path: Path, keys: Keys) -> Keys:
    """Write keys in the place of others, which are overwritten."""
    try:
        with _overwritten(path), replacing(path, private=True) as part:
            part.write_text(keys._text(), encoding="ascii")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    return keys


def _fresh(name: str, role: str) -> Keys:
    sealing = SealingKey.make()
    made = int(time.time())
    return Keys(role, name, Ed25519PrivateKey.generate(), sealing, sealing.public, made)


def _old(facts: Any) -> Old:
    if not isinstance(facts, list) or len(facts) != 2 or type(facts[1]) is not int:
        raise InputError("its old key is odd")
    return Old(SealingKey.read(facts[0]), facts[1])


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged; remove it and make new keys with privcal keys make")


def _closed_path(folder: str | Path) -> Path:
    """The file of a party's keys, in a folder that no other account may enter."""
    path = Path(folder) / _FILE
    check_no_kit(folder)
    try:
        path.parent.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
    except OSError as error:
        raise InputError(f"cannot make {path.parent}: {error.strerror}") from None
    return path


def check_no_kit(folder: str | Path) -> None:
    """InputError where this is a folder of an older privcal."""
    if (Path(folder) / "startup").exists():
        raise InputError(
            f"{folder} is a start-up kit of an older privcal: make a new folder with privcal keys make "
            "or privcal site init"
        )


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
                f"{opened} is open to other accounts; close it with chmod go= {opened}, and if somebody "
                "may have read it, make new keys with privcal keys rotate --signing --now"
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
