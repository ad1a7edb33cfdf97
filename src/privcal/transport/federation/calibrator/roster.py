"""A calibrator's roster: the cards of the sites that are connected, gathered and pinned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from privcal.transport.federation.calibrator.link import Link
from privcal.transport.federation.shared.roster import (
    Card,
    Changes,
    Roster,
    roster_path,
    stored_roster,
)
from privcal.trusted.errors import CalibrationError, InputError


def gather(kit: Path, warn: Callable[[str], None] = lambda text: None) -> list[Card]:
    """The cards of all sites that are connected; whose they are is not yet verified."""
    link = Link(kit)
    link.open()
    try:
        if not (names := link.sites()):
            raise CalibrationError("no site is connected; gather the roster when they run", ())
        cards = []
        for name, text in link.ask_all("card", dict.fromkeys(names, b""), 10.0):
            try:
                card = Card.read(text)
                if card.site != name:
                    raise InputError(f"it is that of {card.site}")
                cards.append(card)
            except InputError as error:
                warn(f"{name} shows no card that can be used: {error}")
        return cards
    finally:
        link.close()


def pin(kit: str | Path, cards: Iterable[Card], *, rekeyed: Collection[str] = ()) -> Changes:
    """Add cards to a calibrator's roster, and tell what is new.

    Other keys of a site that is known are taken only if it is named in `rekeyed`: by somebody who
    asked that site.
    """
    before = stored_roster(kit)
    given = Roster(tuple(cards))
    given.verify(kit)
    names = {card.site for card in given.cards}
    others = tuple(card for card in before.cards if card.site not in names)
    after = Roster(others + given.cards)
    changes = after.since(before)
    if unexpected := [name for name in changes.rekeyed if name not in rekeyed]:
        raise InputError(
            f"{', '.join(unexpected)} came with other keys than before; ask that site whether it "
            "made new ones, and only then take them (--new-keys)"
        )
    if unknown := [name for name in rekeyed if after.card(name) is None]:
        known = ", ".join(card.site for card in after.cards)
        raise InputError(f"there is no site {unknown[0]!r} in the roster; there are {known}")
    if after != before:
        after.save(roster_path(kit))
    return changes
