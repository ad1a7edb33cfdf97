"""The sites of a federation with the keys that each made itself: cards, and the roster of them.

A card is vouched for twice. The site's own signing key signs it, so nobody can show a key that
they do not have; and the key of the site's kit signs it, so the name is the one that the
federation's authority gave. The authority made that second key and could make another card of
the same name: hence owners compare the roster's digest with each other, by voice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from privcal.errors import InputError
from privcal.federation.authority.project import SITE
from privcal.federation.shared import canonical, certificates
from privcal.federation.shared.keys import SiteKeys, check_signature, check_signing
from privcal.federation.shared.sealing import check_public, suite_of
from privcal.files import replacing

VERSION = 2
RESERVED = {"calibrator", "server"}
MAX_SITES = 1000
MAX_CARD = 32_768
_POSSESSION, _VOUCHED, _DIGEST = (
    f"privcal {what} {VERSION}" for what in ("card", "name", "roster")
)

# 192 bits. Nobody finds a second roster for a digest with 128; but whoever collects the cards may
# prepare two rosters with one digest, to show one to each half of the owners, and that takes only
# the root: 2⁹⁶ attempts here, 2⁶⁴ with 128 bits, which has been done. Twelve groups can be read
# over the phone in half a minute.
_GROUPS, _GROUP = 12, 4


@dataclass(frozen=True)
class Card:
    """A site's name and public keys, with what proves them."""

    site: str
    signing: str
    sealing: str
    made: int
    certificate: str
    """Of the site's kit, PEM."""
    possession: str
    """Signature with the signing key."""
    vouched: str
    """Signature with the key of the kit's certificate, over all the rest."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not (int if name == "made" else str):
                raise InputError(f"{name} of a card must be a text, and made a whole number")
        if not SITE.fullmatch(self.site) or self.site.lower() in RESERVED:
            raise InputError(f"{self.site!r} cannot be the name of a site")
        if not 0 <= self.made < 2**33 or len(self.certificate) > certificates.MAX_CERTIFICATE:
            raise InputError(f"the card of {self.site} is out of bounds")
        check_signing(self.signing)
        check_public(self.sealing)
        try:
            check_signature(self.signing, self._own_part(), self.possession)
        except ValueError:
            raise InputError(
                f"the card of {self.site} is not signed with the key that it shows"
            ) from None

    @classmethod
    def of_site(cls, folder: str | Path) -> Card:
        """The card of the site in `folder`, from its own keys and its kit."""
        keys = SiteKeys.load(folder)
        holder, certificate, key = certificates.of_kit(Path(folder) / "startup")
        own = (holder.name, keys.public, keys.sealing.public, keys.made, certificate)
        possession = keys.sign(_own_part(*own))
        return cls(*own, possession, certificates.sign(_vouched_part(*own, possession), key))

    @classmethod
    def read(cls, text: Any) -> Card:
        """A card that holds together. Whose it is, `verify` tells."""
        return _card(canonical.read(text, MAX_CARD))

    def verify(self, root_certificate: str | Path, *, server: str | None = None) -> None:
        """InputError unless the authority of this root certificate gave the site its name.

        Its server has a certificate like a site's: `server` is the name that no card may have.
        """
        root = certificates.root(root_certificate)
        try:
            holder = certificates.holder(self.certificate, root)
            holder.check(_vouched_part(*self._own(), self.possession), self.vouched)
        except Exception:  # whatever is wrong with a certificate
            raise InputError(
                f"the card of {self.site} is not vouched for by this federation's authority; ask "
                "that site for its card"
            ) from None
        if holder.role or holder.name == server or holder.name != self.site:
            raise InputError(
                f"the card of {self.site} comes from {holder.name}, who is not that site; ask that "
                "site for its card"
            )

    @property
    def text(self) -> str:
        return canonical.write({"privcal": VERSION, **asdict(self)})

    @property
    def org(self) -> str:
        """The organisation that its certificate names; true once the card is verified."""
        try:
            return certificates.unverified(self.certificate).org
        except ValueError:
            return ""

    @property
    def day(self) -> str:
        """When its keys were made, as the site says."""
        return datetime.fromtimestamp(self.made, UTC).date().isoformat()

    @property
    def fingerprint(self) -> str:
        """Of the key in its certificate, as lists of revocations name it."""
        return certificates.unverified(self.certificate).fingerprint

    @property
    def suite(self) -> str:
        return suite_of(self.sealing)

    @property
    def keys(self) -> tuple[str, str]:
        return self.signing, self.sealing

    def _own(self) -> tuple[str, str, str, int, str]:
        return self.site, self.signing, self.sealing, self.made, self.certificate

    def _own_part(self) -> str:
        return _own_part(*self._own())


@dataclass(frozen=True)
class Changes:
    """What a roster has that the one before it had not."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    rekeyed: tuple[str, ...] = ()
    """Sites that were there, with other keys."""

    def __bool__(self) -> bool:
        return bool(self.new or self.gone or self.rekeyed)


@dataclass(frozen=True)
class Roster:
    """Cards, sorted by name. No two have a name, a signing or a sealing key in common."""

    cards: tuple[Card, ...]

    def __post_init__(self) -> None:
        cards = tuple(sorted(self.cards, key=lambda card: card.site))
        object.__setattr__(self, "cards", cards)
        if len(cards) > MAX_SITES:
            raise InputError(f"a roster has at most {MAX_SITES} sites")
        seen: dict[tuple[str, str], str] = {}
        for card in cards:
            own = {
                "name": card.site.lower(),
                "signing key": card.signing,
                "sealing key": card.sealing,
            }
            for what in own.items():
                if what in seen:
                    raise InputError(
                        f"{seen[what]} and {card.site} have the same {what[0]} in the roster; each "
                        "must have its own"
                    )
                seen[what] = card.site

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """From a file; whose the cards are, `verify` tells."""
        path = Path(path)
        try:
            text = path.read_text("ascii")
        except OSError as error:
            raise InputError(f"cannot read the roster {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not a roster, or damaged: it cannot be read") from None
        try:
            facts = canonical.read(text.removesuffix("\n"), MAX_SITES * MAX_CARD)
            if set(facts) != {"privcal", "cards"} or not isinstance(facts["cards"], list):
                raise InputError("it has other parts")
            if type(facts["privcal"]) is not int or facts["privcal"] != VERSION:
                raise InputError(f"it is not of version {VERSION}")
            roster = cls(tuple(map(_card, facts["cards"])))
            if roster.text != text.removesuffix("\n"):
                raise InputError("it is not sorted")
            return roster
        except ValueError as error:
            raise InputError(f"{path} is not a roster, or damaged: {error}") from None

    @classmethod
    def of_kit(cls, kit: str | Path) -> Roster:
        """The roster of a calibrator, which is empty before anything was pinned."""
        return kept(kit) or cls(())

    def save(self, path: str | Path) -> None:
        path = Path(path)
        try:
            with replacing(path) as part:
                file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(file, "w", encoding="ascii") as out:
                    out.write(self.text + "\n")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    @property
    def text(self) -> str:
        cards = [{"privcal": VERSION, **asdict(card)} for card in self.cards]
        return canonical.write({"privcal": VERSION, "cards": cards})

    @cached_property
    def digest(self) -> str:
        """What owners read to each other: names and keys, whatever was signed when."""
        said = [_DIGEST, [[card.site, *card.keys] for card in self.cards]]
        found = hashlib.sha256(canonical.write(said).encode("ascii")).hexdigest()
        starts = range(0, _GROUPS * _GROUP, _GROUP)
        return " ".join(found[k : k + _GROUP] for k in starts)

    def card(self, site: str) -> Card | None:
        return next((card for card in self.cards if card.site == site), None)

    def since(self, before: Roster) -> Changes:
        """What is other than in an earlier one."""
        old = {card.site: card.keys for card in before.cards}
        now = {card.site: card.keys for card in self.cards}
        return Changes(
            tuple(name for name in now if name not in old),
            tuple(name for name in old if name not in now),
            tuple(name for name in now if name in old and now[name] != old[name]),
        )

    def verify(self, folder: str | Path) -> None:
        """Every card, against the root certificate in a participant's folder."""
        startup = Path(folder) / "startup"
        server = _server(startup)
        for card in self.cards:
            card.verify(startup / "rootCA.pem", server=server)


def kept(folder: str | Path) -> Roster | None:
    """The roster that a site's owner accepted, or a calibrator pinned, if any."""
    path = _place(folder)
    return Roster.load(path) if path.exists() else None


def accept(folder: str | Path, roster: str | Path) -> Changes:
    """Take a roster for a site, and tell what is other than in the one accepted before.

    Every card must be vouched for, and the site's own must be there with its present keys.
    """
    folder = Path(folder)
    given = Roster.load(roster)
    given.verify(folder)
    keys, name = SiteKeys.load(folder), own_name(folder)
    own = given.card(name)
    if own is None:
        raise InputError(
            f"{name}, this site, is not in {roster}; ask the calibrator to gather it again while "
            "the site runs"
        )
    if own.keys != (keys.public, keys.sealing.public):
        raise InputError(
            f"{roster} has other keys for {name}, this site, than it has now; ask the calibrator "
            f"to take the new ones (privcal federation roster --new-keys {name})"
        )
    changes = given.since(kept(folder) or Roster(()))
    given.save(_place(folder))
    return changes


def pin(kit: str | Path, cards: Iterable[Card], *, rekeyed: Collection[str] = ()) -> Changes:
    """Add cards to a calibrator's roster, and tell what is new.

    Other keys of a site that is known are taken only if it is named in `rekeyed`: by somebody who
    asked that site.
    """
    before = Roster.of_kit(kit)
    given = Roster(tuple(cards))
    given.verify(kit)
    names = {card.site for card in given.cards}
    others = tuple(card for card in before.cards if card.site not in names)
    now = Roster(others + given.cards)
    changes = now.since(before)
    if odd := [name for name in changes.rekeyed if name not in rekeyed]:
        raise InputError(
            f"{', '.join(odd)} came with other keys than before; ask that site whether it made new "
            "ones, and only then take them (--new-keys)"
        )
    if unknown := [name for name in rekeyed if now.card(name) is None]:
        known = ", ".join(card.site for card in now.cards)
        raise InputError(f"there is no site {unknown[0]!r} in the roster; there are {known}")
    if now != before:
        now.save(_place(kit))
    return changes


def own_name(folder: str | Path) -> str:
    """The name in the certificate of a participant's folder."""
    path = Path(folder) / "startup" / "client.crt"
    try:
        return certificates.unverified(path.read_text("ascii")).name
    except (OSError, ValueError):
        raise InputError(
            f"{folder} is not a site's or a calibrator's folder: {path} cannot be read"
        ) from None


def is_calibrators(folder: str | Path) -> bool:
    """Whether a participant's folder is a calibrator's."""
    return (Path(folder) / "startup" / "fed_admin.json").is_file()


def _place(folder: str | Path) -> Path:
    folder = Path(folder)
    return folder / "roster.json" if is_calibrators(folder) else folder / "local" / "roster.json"


def _server(startup: Path) -> str:
    """The name in the server's certificate, as a participant's kit has it."""
    try:
        if (startup / "fed_admin.json").is_file():
            facts = json.loads((startup / "fed_admin.json").read_text("utf-8"))
            return str(facts["admin"]["server_identity"])
        facts = json.loads((startup / "fed_client.json").read_text("utf-8"))
        return str(facts["servers"][0]["identity"])
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(
            f"{startup} does not say who the server is; get the kit from whoever made it"
        ) from None


def _card(facts: Any) -> Card:
    names = {"privcal", *Card.__dataclass_fields__}
    if not isinstance(facts, dict) or set(facts) != names:
        raise InputError("a card has other parts")
    if type(facts["privcal"]) is not int or facts["privcal"] != VERSION:
        raise InputError(f"a card is not of version {VERSION}")
    return Card(**{name: value for name, value in facts.items() if name != "privcal"})


def _own_part(*own: str | int) -> str:
    return canonical.write([_POSSESSION, *own])


def _vouched_part(*parts: str | int) -> str:
    return canonical.write([_VOUCHED, *parts])
