"""The roster: who takes part in a federation, with the keys that each party made itself.

There is no authority. A party makes its keys and sends its *card*, by any way. Whoever makes the
roster, its *coordinator*, puts the cards together and signs. Every owner reads the roster's digest
to the others, over a telephone number known before, and accepts it. The coordinator's signature
alone may only shrink a roster. What adds or changes a key, a role or a name, lets the roster hold
for longer, or lets other keys shrink it, counts when an owner has accepted its digest (`standing`).

Rosters of one federation are numbered and linked: each names the digest of the one before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from privcal.data.files import replacing
from privcal.secure import canonical
from privcal.secure.keys import check_public_key, check_signature, check_signing
from privcal.secure.terms import MAX_SITES, Member, Members, digest_groups
from privcal.transport.letter import (
    DIGEST,
    VERSION,
    Signs,
    Stamp,
    check_id,
    check_name,
    check_role,
    id_of,
)
from privcal.trusted import records
from privcal.trusted.checks import short
from privcal.trusted.errors import InputError
from privcal.trusted.records import Between, By

T = TypeVar("T")

MAX_CARD = 8192
MAX_ROSTER = MAX_SITES * MAX_CARD
LIFETIME = 400 * 24 * 3600
"""The longest a roster may hold, in seconds: one that hides its successor ends by itself."""
COORDINATORS = 2
"""How many keys may shrink a roster."""
_CARD, _ROSTER = f"privcal card {VERSION}", f"privcal roster {VERSION}"


def _version(facts: Any, what: str) -> dict[str, Any]:
    """The parts of a document beside its version, which must be this one."""
    if not isinstance(facts, dict):
        raise InputError(f"{what} must be an object, not {short(facts)}")
    version = facts.get("privcal")
    if type(version) is not int or version != VERSION:
        raise InputError(f"{what} is not of version {VERSION}")
    return {name: value for name, value in facts.items() if name != "privcal"}


def _party_id(what: str, value: Any) -> str:
    return check_id(value)


def _before(what: str, value: Any) -> str:
    if value != "" and not (isinstance(value, str) and DIGEST.fullmatch(value)):
        raise InputError("a roster must name the one before it by its digest")
    return str(value)


Date = Annotated[int, Between(0, 2**33 - 1)]
"""Unix seconds."""


@dataclass(frozen=True)
class Card:
    """A party's role, name and public keys, signed with the key that it shows."""

    role: Annotated[str, By(check_role)]
    name: Annotated[str, By(check_name)]
    signing: str
    sealing: str
    made: Date
    possession: str
    """Signature with the signing key over all the rest."""

    def __post_init__(self) -> None:
        records.check(self)
        check_signing(self.signing)
        check_public_key(self.sealing)
        try:
            check_signature(self.signing, _signed_card(*self._facts), self.possession)
        except ValueError:
            raise InputError(
                f"the card of {self.name} is not signed with the key that it shows"
            ) from None

    @classmethod
    def make(cls, facts: tuple[str, str, str, str, int], sign: Callable[[str], str]) -> Card:
        """A card from its first five fields and what signs with its key."""
        return cls(*facts, sign(_signed_card(*facts)))

    @classmethod
    def of(cls, facts: Any) -> Card:
        """A card from its parts as JSON has them."""
        return records.read(cls, _version(facts, "a card"), "a card", complete=True)

    @classmethod
    def read(cls, text: Any) -> Card:
        """A card from its one spelling; InputError for whatever else that is."""
        return cls.of(canonical.read(text, MAX_CARD))

    @classmethod
    def load(cls, path: str | Path) -> Card:
        """A card from a file that a party sent."""
        return _loaded(path, "a card", MAX_CARD, cls.read)

    def save(self, path: str | Path) -> None:
        _save(path, self.text)

    @property
    def text(self) -> str:
        return canonical.write(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return {"privcal": VERSION, **asdict(self)}

    @cached_property
    def id(self) -> str:
        """The party's ID: the start of its signing key's SHA-256."""
        return id_of(self.signing)

    @property
    def day(self) -> str:
        """When its keys were made, as the party says."""
        return datetime.fromtimestamp(self.made, UTC).date().isoformat()

    @property
    def _facts(self) -> tuple[str, str, str, str, int]:
        return self.role, self.name, self.signing, self.sealing, self.made


@dataclass(frozen=True)
class Changes:
    """The differences between a roster and an earlier one, by the names of parties."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Parties that were there, with another key or role."""
    back: tuple[str, ...] = ()
    """Parties with a name or an ID that had been removed before."""
    forgotten: bool = False
    """Whether an earlier removal is not listed any more."""
    coordinators: bool = False
    """Whether other keys may shrink it."""
    longer: bool = False
    """Whether it holds for longer."""

    @property
    def only_removes(self) -> bool:
        return replace(self, gone=()) == Changes()


def _card(_: str, value: Any) -> Card:
    return value if isinstance(value, Card) else Card.of(value)


def _gone(name: str, pair: tuple[str, str]) -> tuple[str, str]:
    return check_name(f"a name in {name}", pair[0]), check_id(pair[1])


@dataclass(frozen=True)
class Roster:
    """Numbered, linked, signed cards, sorted by name.

    federation
        128 random bits, in hex, drawn for the first roster.
    number, before
        From 1, and the digest of the one with the number before; "" for the first.
    issued, until
        Unix seconds, at most 400 days apart.
    coordinators
        The public keys whose signature may shrink it: one or two.
    gone
        The name and ID of every party that was removed, ever.
    signatures
        By the coordinators' keys, in their order; "" where one did not sign.
    """

    federation: Annotated[str, By(_party_id)]
    number: Annotated[int, Between(1, 2**31 - 1)]
    before: Annotated[str, By(_before)]
    issued: Date
    until: Date
    coordinators: Annotated[tuple[str, ...], Between(1, COORDINATORS)]
    cards: Annotated[tuple[Annotated[Card, By(_card)], ...], Between(0, 2 * MAX_SITES)]
    gone: Annotated[tuple[Annotated[tuple[str, str], _gone], ...], Between(0, 10 * MAX_SITES)] = ()
    signatures: Annotated[tuple[str, ...], Between(0, COORDINATORS)] = field(
        default=(), compare=False
    )

    def __post_init__(self) -> None:
        records.check(self)
        object.__setattr__(self, "cards", tuple(sorted(self.cards, key=lambda card: card.name)))
        if (self.number == 1) != (self.before == ""):
            raise InputError("a roster must name the one before it, unless it is the first")
        if not self.issued < self.until <= self.issued + LIFETIME:
            raise InputError("a roster must hold for 1 second to 400 days")
        for key in self.coordinators:
            check_signing(key)
        if sum(card.role == "site" for card in self.cards) > MAX_SITES:
            raise InputError(f"a roster has at most {MAX_SITES:,} sites")
        self._check_distinct()

    def _check_distinct(self) -> None:
        """No two parties have a name, a signing or a sealing key, or an ID, in common."""
        seen: dict[tuple[str, str], str] = {}
        for card in self.cards:
            for what in (
                ("name", card.name.lower()),
                ("signing key", card.signing),
                ("sealing key", card.sealing),
                ("ID", card.id),
            ):
                if what in seen:
                    raise InputError(
                        f"{seen[what]} and {card.name} have the same {what[0]} in the roster; each "
                        "must have its own"
                    )
                seen[what] = card.name
        if len(set(self.coordinators)) < len(self.coordinators):
            raise InputError("a coordinator's key is there twice")

    @classmethod
    def first(
        cls, cards: Iterable[Card], coordinators: Sequence[str], issued: int, until: int
    ) -> Roster:
        """The first roster of a new federation; not signed yet."""
        federation = secrets.token_hex(16)
        return cls(federation, 1, "", issued, until, tuple(coordinators), tuple(cards))

    def next(
        self,
        cards: Iterable[Card],
        issued: int,
        until: int,
        coordinators: Sequence[str] | None = None,
    ) -> Roster:
        """The roster after this one, with these cards; not signed yet."""
        cards = tuple(cards)
        there = {card.id for card in cards}
        left = tuple((card.name, card.id) for card in self.cards if card.id not in there)
        return Roster(
            self.federation,
            self.number + 1,
            self.digest,
            max(issued, self.issued),
            until,
            self.coordinators if coordinators is None else tuple(coordinators),
            cards,
            tuple(sorted({*self.gone, *left})),
        )

    def signed(self, keys: Signs) -> Roster:
        """The same with a coordinator's signature (`transport.keys.Keys`)."""
        if keys.public not in self.coordinators:
            raise InputError("these keys are not a coordinator's of this roster")
        own = self.coordinators.index(keys.public)
        made = list(self.signatures or [""] * len(self.coordinators))
        made[own] = keys.sign(self._signed)
        return replace(self, signatures=tuple(made))

    @property
    def signers(self) -> tuple[str, ...]:
        """The coordinators' keys that signed it."""
        pairs = zip(self.coordinators, self.signatures, strict=False)
        return tuple(key for key, sign in pairs if _is_signature(key, self._signed, sign))

    @classmethod
    def read(cls, text: Any) -> Roster:
        """A roster from its one spelling; InputError for whatever else that is."""
        facts = canonical.read_any_spelling(text, MAX_ROSTER)  # its spelling is looked at below
        roster = records.read(cls, _version(facts, "a roster"), "a roster", complete=True)
        if roster.text != text:
            raise InputError("it is not in the one spelling")
        return roster

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """A roster from a file. Whether it may be relied on, `standing` tells."""
        return _loaded(path, "a roster", MAX_ROSTER, cls.read)

    def save(self, path: str | Path) -> None:
        _save(path, self.text)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return {"privcal": VERSION, **records.facts(self)}

    @cached_property
    def _signed(self) -> str:
        return _signed_roster(self._facts)

    @property
    def text(self) -> str:
        return canonical.write(self._facts)

    @cached_property
    def digest(self) -> str:
        """The digest of all of it but its signatures, which owners read to each other."""
        return digest_groups(self._signed)

    @property
    def stamp(self) -> Stamp:
        """Its number and digest: what a letter says of the roster that its writer goes by."""
        return self.number, self.digest

    @cached_property
    def members(self) -> Members:
        """The names and keys of the sites alone, for secure sums."""
        sites = {c.name: Member(c.signing, c.sealing) for c in self.cards if c.role == "site"}
        return Members(sites, self.digest)

    def party(self, id: str) -> Card | None:
        """The card with this ID."""
        return self._by_id.get(id)

    def named(self, name: str) -> Card | None:
        """The card with this name."""
        return next((card for card in self.cards if card.name == name), None)

    @cached_property
    def _by_id(self) -> dict[str, Card]:
        return {card.id: card for card in self.cards}

    def since(self, before: Roster) -> Changes:
        """The differences from an earlier one."""
        old = {card.name: card for card in before.cards}
        now = {card.name: card for card in self.cards}
        known = {card.id for card in before.cards}
        names, ids = {name for name, _ in before.gone}, {id for _, id in before.gone}
        return Changes(
            new=tuple(name for name in now if name not in old),
            gone=tuple(name for name in old if name not in now),
            changed=tuple(n for n, c in now.items() if n in old and c._facts != old[n]._facts),
            back=tuple(
                name
                for name, card in now.items()
                if (name in names and name not in old) or (card.id in ids and card.id not in known)
            ),
            forgotten=not {*before.gone} <= {*self.gone},
            coordinators=self.coordinators != before.coordinators,
            longer=self.until > before.until,
        )

    def follows(self, before: Roster) -> bool:
        """Whether it is the next roster of the same federation."""
        same = self.federation == before.federation and self.number == before.number + 1
        return same and self.before == before.digest and self.issued >= before.issued


def signed_by(content: bytes, own: Roster) -> Roster | None:
    """The roster in a file that a carrier brought, if a coordinator of the own one signed it.

    It must be of the own federation and have a higher number. That is looked at first, so that a
    stranger's file costs a reader one or two signature checks, and not a look at each card.
    """
    try:
        text = content.decode("ascii").removesuffix("\n")
        facts = canonical.read_any_spelling(text, MAX_ROSTER)
        number, signatures = facts.get("number"), facts.get("signatures")
        if type(number) is not int or number <= own.number or not isinstance(signatures, list):
            return None
        signed = _signed_roster(facts)
        if facts.get("federation") == own.federation and any(
            _is_signature(key, signed, signature)
            for signature in signatures[:COORDINATORS]
            for key in own.coordinators
        ):
            return Roster.read(text)
    except (ValueError, RecursionError):
        pass
    return None


def shrinks(given: Roster, own: Roster) -> bool:
    """Whether a roster may be taken in place of the own one on its coordinator's word alone.

    It must be the next one, be signed by a coordinator of the *own* roster, and only remove.
    """
    if not given.follows(own) or not set(given.signers) & set(own.coordinators):
        return False
    return given.since(own).only_removes


def _is_signature(key: str, text: str, signature: object) -> bool:
    try:
        check_signature(key, text, signature)
    except ValueError:
        return False
    return True


def _signed_card(*facts: object) -> str:
    return canonical.write([_CARD, *facts])


def _signed_roster(facts: dict[str, Any]) -> str:
    """What is signed, and what the digest is of: all of a roster but its signatures."""
    return canonical.write([_ROSTER, {n: v for n, v in facts.items() if n != "signatures"}])


def _loaded(path: str | Path, what: str, limit: int, read: Callable[[str], T]) -> T:
    """What is in a file that came from elsewhere."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(limit + 2)
        text = content.decode("ascii").removesuffix("\n")
        return read(text)
    except OSError as error:
        raise InputError(f"cannot read {what[2:]} {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not {what}, or damaged: {error}") from None


def _save(path: str | Path, text: str) -> None:
    try:
        with replacing(path) as part:
            part.write_text(text + "\n", encoding="ascii")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
