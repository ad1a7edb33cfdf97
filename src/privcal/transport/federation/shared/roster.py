"""The sites of a federation with the keys that each made itself: cards, and the roster of them.

A card is vouched for twice. The site's own signing key signs it, so nobody can show a key that
they do not have; and the key of the site's kit signs it, so the name is the one that the
federation's authority gave. The authority made that second key and could make another card of
the same name: hence owners compare the roster's digest with each other, by voice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from privcal.data.files import replacing
from privcal.secure import canonical
from privcal.secure.keys import check_public_key, check_signature, check_signing, suite_of
from privcal.secure.terms import Member, Members
from privcal.transport.federation.shared import certificates, kit
from privcal.transport.federation.shared.kit import MAX_SITES, SITE_NAME, Startup
from privcal.trusted.errors import InputError

CARD_VERSION = 2
RESERVED = {"calibrator", "server"}
MAX_CARD = 32_768
_POSSESSION, _VOUCHED = (f"privcal {what} {CARD_VERSION}" for what in ("card", "name"))


@dataclass(frozen=True)
class Card:
    """A site's name and public keys, with what proves them."""

    site: str
    signing: str
    sealing: str
    made: int
    certificate: str
    """The certificate of the site's kit, PEM."""
    possession: str
    """Signature with the signing key."""
    vouched: str
    """Signature with the key of the kit's certificate, over all the rest."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not (int if name == "made" else str):
                raise InputError(f"{name} of a card must be a text, and made a whole number")
        if not SITE_NAME.fullmatch(self.site) or self.site.lower() in RESERVED:
            raise InputError(f"{self.site!r} cannot be the name of a site")
        if not 0 <= self.made < 2**33 or len(self.certificate) > certificates.MAX_CERTIFICATE:
            raise InputError(f"the card of {self.site} is out of bounds")
        check_signing(self.signing)
        check_public_key(self.sealing)
        try:
            check_signature(
                self.signing, canonical.write([_POSSESSION, *self._facts]), self.possession
            )
        except ValueError:
            raise InputError(
                f"the card of {self.site} is not signed with the key that it shows"
            ) from None

    @classmethod
    def make(
        cls,
        facts: tuple[str, str, str, int, str],
        sign: Callable[[str], str],
        vouch: Callable[[str], str],
    ) -> Card:
        """A site's card, from the first five fields and what signs with each of its two keys."""
        possession = sign(canonical.write([_POSSESSION, *facts]))
        return cls(*facts, possession, vouch(canonical.write([_VOUCHED, *facts, possession])))

    @classmethod
    def read(cls, text: Any) -> Card:
        """A card that is signed with the key it shows; whose it is, `verify` tells."""
        return _card(canonical.read(text, MAX_CARD))

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """A card from a file that a site sent."""
        try:
            with Path(path).open("rb") as file:
                return cls.read(file.read(MAX_CARD + 2).decode("ascii").removesuffix("\n"))
        except OSError as error:
            raise InputError(f"cannot read the card {path}: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"{path} is not a site's card, or damaged: {error}") from None

    def verify(self, root_certificate: str | Path, *, server: str | None = None) -> None:
        """InputError unless the authority of this root certificate gave the site its name.

        Its server has a certificate like a site's: `server` is the name that no card may have.
        """
        root = certificates.load(root_certificate)
        vouched = canonical.write([_VOUCHED, *self._facts, self.possession])
        try:
            holder = certificates.holder(self.certificate, root)
            holder.check(vouched, self.vouched)
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
        return canonical.write({"privcal": CARD_VERSION, **asdict(self)})

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
        """The fingerprint of its certificate's key, as lists of revocations name it."""
        return certificates.unverified(self.certificate).fingerprint

    @property
    def suite(self) -> str:
        return suite_of(self.sealing)

    @property
    def keys(self) -> tuple[str, str]:
        return self.signing, self.sealing

    @property
    def _facts(self) -> tuple[str, str, str, int, str]:
        return self.site, self.signing, self.sealing, self.made, self.certificate


@dataclass(frozen=True)
class Changes:
    """The differences between a roster and the one before it."""

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
        """A roster from a file; whose the cards are, `verify` tells."""
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
            if type(facts["privcal"]) is not int or facts["privcal"] != CARD_VERSION:
                raise InputError(f"it is not of version {CARD_VERSION}")
            roster = cls(tuple(map(_card, facts["cards"])))
            if roster.text != text.removesuffix("\n"):
                raise InputError("it is not sorted")
            return roster
        except ValueError as error:
            raise InputError(f"{path} is not a roster, or damaged: {error}") from None

    def save(self, path: str | Path) -> None:
        path = Path(path)
        try:
            with replacing(path, private=True) as part:
                part.write_text(self.text + "\n", encoding="ascii")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    @property
    def text(self) -> str:
        cards = [{"privcal": CARD_VERSION, **asdict(card)} for card in self.cards]
        return canonical.write({"privcal": CARD_VERSION, "cards": cards})

    @cached_property
    def digest(self) -> str:
        """A digest of names and keys alone, which owners read to each other."""
        return self.members.digest

    @cached_property
    def members(self) -> Members:
        """Names and keys alone."""
        return Members({card.site: Member(*card.keys) for card in self.cards})

    def card(self, site: str) -> Card | None:
        return next((card for card in self.cards if card.site == site), None)

    def since(self, before: Roster) -> Changes:
        """The differences from an earlier one."""
        old = {card.site: card.keys for card in before.cards}
        now = {card.site: card.keys for card in self.cards}
        return Changes(
            tuple(name for name in now if name not in old),
            tuple(name for name in old if name not in now),
            tuple(name for name in now if name in old and now[name] != old[name]),
        )

    def verify(self, folder: str | Path) -> None:
        """InputError unless every card is vouched for by the authority of a participant's folder."""
        folder = Path(folder)
        kind: kit.Kind = "calibrator" if kit.is_calibrator(folder) else "site"
        startup = Startup.read(folder, kind)
        for card in self.cards:
            card.verify(folder / "startup" / kit.ROOT, server=startup.server)


def roster_path(folder: str | Path) -> Path:
    """The file of the roster that a site's owner accepted, or a calibrator pinned."""
    folder = Path(folder) if kit.is_calibrator(folder) else Path(folder, "local")
    return folder / "roster.json"


def stored_roster(folder: str | Path) -> Roster:
    """A participant's roster, without cards where none was accepted or pinned yet."""
    path = roster_path(folder)
    return Roster.load(path) if path.exists() else Roster(())


def _card(facts: Any) -> Card:
    names = {"privcal", *Card.__dataclass_fields__}
    if not isinstance(facts, dict) or set(facts) != names:
        raise InputError("a card has other parts")
    if type(facts["privcal"]) is not int or facts["privcal"] != CARD_VERSION:
        raise InputError(f"a card is not of version {CARD_VERSION}")
    return Card(**{name: value for name, value in facts.items() if name != "privcal"})
