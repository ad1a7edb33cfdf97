"""A party's rosters on disk: the one it goes by, those before it, and who is blocked here.

A roster counts when the party's owner has accepted its digest (`accept`). One that a carrier brings
is a hint (`hint`): it is taken only if a coordinator of the present one signed it, it is the next
one, and it does nothing but remove. Where it does more, it waits for the owner; but whom it leaves
out is blocked at once, so that nobody can hide a removal behind an addition.

A number never goes down, and one number has one digest. A site notes both in its ledgers, too, which
lie under their marks: a folder of rosters that was put back to an older state is refused, and one
that was put back together with the ledgers is refused with these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal.data.files import read_json, write_document
from privcal.transport.keys import Keys
from privcal.transport.letter import Stamp
from privcal.transport.roster import Card, Changes, Roster, shrinks, signed_by
from privcal.transport.site.settings import SETTINGS, Site
from privcal.trusted.errors import InputError, Refused

if TYPE_CHECKING:
    from privcal.data.ledger import Ledger

ROSTERS, BLOCKED = "rosters", "blocked.json"
KEPT = 90 * 24 * 3600
"""Seconds for which a secure sum may go by the roster that it began with."""
SKEW = 24 * 3600
"""Seconds that a coordinator's clock may be ahead of an owner's."""


class Standing:
    """What a party in `folder` goes by. It reads a file anew where that changed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[tuple[int, int], Roster]] = {}
        self._held: tuple[int, str] | None = None

    @property
    def keys(self) -> Keys:
        """The party's own keys."""
        return Keys.load(self.folder)

    @property
    def roster(self) -> Roster:
        """The present roster; InputError where there is none, or it has ended, or is an older one."""
        roster = self.latest
        if roster is None:
            raise InputError(
                f"{self.folder} has no roster yet: compare the digest of the one you were sent by "
                "telephone, then run privcal roster accept"
            )
        if roster.until <= time.time():
            raise InputError(
                f"roster {roster.number} of {self.folder} has ended: ask its coordinator for a new one, "
                "and accept it"
            )
        return roster

    @property
    def latest(self) -> Roster | None:
        """The roster with the highest number, ended or not; InputError where that is not the highest accepted."""
        roster = next((roster for roster, _ in self._all()), None)
        if roster is not None and roster.stamp != self._held:
            self._hold(roster)
            self._held = roster.stamp
        return roster

    @property
    def before(self) -> Roster | None:
        """The roster that was the present one before the latest."""
        return next((roster for roster, _ in list(self._all())[1:]), None)

    def roster_of(self, digest: str) -> Roster | None:
        """The roster with this digest, if it was the present one within the last 90 days."""
        ended = time.time()
        for roster, since in self._all():
            if ended + KEPT < time.time():
                return None
            if roster.digest == digest:
                return roster
            ended = since
        return None

    def accept(self, given: Roster, digest: str) -> Changes:
        """Take a roster on its owner's word: they typed the digest that others read to them."""
        if digest.split() != given.digest.split():
            raise InputError(
                f"roster {given.number} has another digest than the one you gave; ask the party that "
                "sent it to you, and accept neither until you know why"
            )
        self._check_own(given)
        if given.issued > time.time() + SKEW:
            raise InputError(f"roster {given.number} is dated after now; ask for one of today")
        before = next((roster for roster, _ in self._all()), None)
        if before is not None and given.federation != before.federation:
            raise InputError(
                "this roster is of another federation: use another folder, with keys of its own"
            )
        self._check_newer(given.stamp, [*self._noted(given.federation), *_stamps(before)])
        if before is None:
            self._put(given)
            return Changes(new=tuple(card.name for card in given.cards))
        if given.digest != before.digest:
            self._put(given)
        return given.since(before)

    def hint(self, content: bytes) -> bool:
        """Take a roster that a carrier brought as far as it only removes; whether anything changed."""
        own = self.latest
        given = None if own is None else signed_by(content, own)
        if own is None or given is None:
            return False
        if shrinks(given, own):
            self._put(given)
            return True
        left_out = {card.id for card in own.cards} - {card.id for card in given.cards}
        names, ids = self._blocked
        if left_out <= ids:
            return False
        self._block(names, ids | left_out)
        return True

    def sender(self, id: str) -> Card:
        """The card of a party that may write to this one; Refused where it may not."""
        card = self.roster.party(id)
        names, ids = self._blocked
        if card is None or card.name in names or id in ids:
            raise Refused("revoked")
        return card

    @property
    def blocked(self) -> tuple[str, ...]:
        """The names that are blocked here, by the owner or because a newer roster leaves them out."""
        names, ids = self._blocked
        roster = self.latest
        left_out = {card.name for card in roster.cards if card.id in ids} if roster else set()
        return tuple(sorted(names | left_out))

    def block(self, name: str) -> None:
        """Let no letter of this party in any more, whatever a roster says; at once, and here alone."""
        roster = self.latest
        if roster is None or roster.named(name) is None:
            raise InputError(f"there is no {name!r} in the roster of {self.folder}")
        names, ids = self._blocked
        self._block(names | {name}, ids)

    def unblock(self, name: str) -> None:
        """Let a party in again."""
        if name not in self.blocked:
            raise InputError(f"{name!r} is not blocked in {self.folder}")
        names, ids = self._blocked
        card = self.latest and self.latest.named(name)
        self._block(names - {name}, ids - ({card.id} if card else set()))

    @property
    def _blocked(self) -> tuple[set[str], set[str]]:
        """Names that the owner blocked, and IDs that a hint leaves out."""
        path = self.folder / BLOCKED
        if not path.exists():
            return set(), set()
        facts: Any = read_json(path, "list of blocked parties")
        try:
            names, ids = facts["names"], facts["left_out"]
            if all(isinstance(one, str) for one in (*names, *ids)):
                return set(names), set(ids)
        except (TypeError, KeyError):
            pass
        raise InputError(f"{path} is damaged: block the parties anew with privcal site block")

    def _block(self, names: set[str], ids: set[str]) -> None:
        facts = {"names": sorted(names), "left_out": sorted(ids)}
        write_document(self.folder / BLOCKED, facts, private=True)

    def _check_own(self, given: Roster) -> None:
        """InputError unless the party's own card is in a roster, with its present keys."""
        keys = self.keys
        own = given.party(keys.id)
        if own is None or (own.name, own.role) != (keys.name, keys.role):
            raise InputError(
                f"the card of {keys.name} is not in roster {given.number} as it is now; send the card "
                "that privcal keys card writes to the coordinator"
            )
        if keys.as_of(own.sealing, time.time()).sealing_public != own.sealing:
            raise InputError(
                f"roster {given.number} has another sealing key for {keys.name} than it has now; send "
                "the new card to the coordinator"
            )

    # --- no way back --------------------------------------------------------------------------

    def _hold(self, roster: Roster) -> None:
        """Hold the present roster against the ledgers' notes, and note it where it is newer."""
        self._check_newer(roster.stamp, self._noted(roster.federation), "is there")
        for ledger in self._ledgers():
            with suppress(Refused):  # it answers nothing then, and is told elsewhere
                if ledger.noted_roster(roster.federation) != roster.stamp:
                    ledger.note_roster(roster.federation, *roster.stamp)

    def _noted(self, federation: str) -> Iterator[Stamp]:
        for ledger in self._ledgers():
            with suppress(Refused):
                if (noted := ledger.noted_roster(federation)) is not None:
                    yield noted

    def _ledgers(self) -> list[Ledger]:
        """The ledgers of a site; none where this is no site, or it is not set up yet."""
        # Imported here: it is the owner's desk, and not on an answer's way.
        from privcal.data.ledger import Ledger

        if not (self.folder / SETTINGS).exists():
            return []
        paths = {population.ledger for population in Site.load(self.folder).populations}
        return [Ledger(path) for path in sorted(paths)]

    def _check_newer(self, given: Stamp, known: Iterable[Stamp], how: str = "was given") -> None:
        """InputError where a higher number was accepted, or another roster of this number."""
        for number, digest in known:
            if given[0] < number:
                raise InputError(
                    f"roster {given[0]} {how} and roster {number} was accepted in {self.folder} before: an "
                    "older one is never taken again; get the newest roster, and run privcal roster accept"
                )
            if given[0] == number and given[1] != digest:
                raise InputError(
                    f"there is another roster {number} than the one accepted in {self.folder}: somebody "
                    "shows different rosters to different owners; compare digests"
                )

    # --- files --------------------------------------------------------------------------------

    def _put(self, roster: Roster) -> None:
        folder = self.folder / ROSTERS
        folder.mkdir(mode=0o700, exist_ok=True)
        roster.save(folder / f"{roster.number}.json")
        self._hold(roster)

    def _all(self) -> Iterator[tuple[Roster, float]]:
        """The rosters, the newest first, and since when each is here; a file is read once while it stays."""
        folder = self.folder / ROSTERS
        paths = folder.glob("*.json") if folder.is_dir() else ()
        numbered = sorted((int(p.stem), p) for p in paths if p.stem.isdecimal())
        for _, path in reversed(numbered):
            facts = path.stat()
            state = facts.st_ino, facts.st_mtime_ns
            known = self._read.get(path)
            if known is None or known[0] != state:
                known = self._read[path] = state, Roster.load(path)
            yield known[1], facts.st_mtime


def _stamps(roster: Roster | None) -> list[Stamp]:
    return [] if roster is None else [roster.stamp]
