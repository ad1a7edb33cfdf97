"""The members of a federation, as far as secure sums need them: names and public keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from privcal.crypto import canonical

# 192 bits. Nobody finds a second roster for a digest with 128; but whoever collects the cards may
# prepare two rosters with one digest, to show one to each half of the owners, and that takes only
# the root: 2⁹⁶ attempts here, 2⁶⁴ with 128 bits, which has been done. Twelve groups can be read
# over the phone in half a minute.
_GROUPS, _GROUP = 12, 4

_ROSTER = "privcal roster 2"


@dataclass(frozen=True)
class Member:
    """A site's public keys: for its signatures, and for what is sealed for it."""

    signing: str
    sealing: str


@dataclass(frozen=True)
class Members:
    """Everybody on a roster, by name; its digest is what owners compare."""

    by_name: Mapping[str, Member]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        keys = ([name, m.signing, m.sealing] for name, m in sorted(self.by_name.items()))
        object.__setattr__(self, "digest", roster_digest(keys))

    def grouped(self, groups: int) -> dict[str, int]:
        """The group of every member, of `groups` that differ by one member at most.

        It goes by the whole roster and its digest: whoever asks chooses whom to ask, and neither
        who is in a group nor who is with whom.
        """

        def order(name: str) -> str:
            return hashlib.sha256(f"{self.digest}|{name}".encode()).hexdigest()

        ordered = sorted(self.by_name, key=order)
        return {name: place % groups for place, name in enumerate(ordered)}


def roster_digest(keys: Iterable[list[str]]) -> str:
    """A digest of names and keys (name, signing, sealing; sorted), to be read to each other."""
    text = canonical.write([_ROSTER, list(keys)])
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    starts = range(0, _GROUPS * _GROUP, _GROUP)
    return " ".join(digest[k : k + _GROUP] for k in starts)
