"""A site's own card, and the roster that its owner accepts."""

from __future__ import annotations

from pathlib import Path

from privcal.transport.federation.shared import certificates
from privcal.transport.federation.shared.roster import (
    Card,
    Changes,
    Roster,
    roster_path,
    stored_roster,
)
from privcal.transport.federation.site.keys import SiteKeys
from privcal.trusted.errors import InputError


def own_card(folder: str | Path) -> Card:
    """The card of the site in `folder`, from its own keys and its kit."""
    keys = SiteKeys.load(folder)
    holder, certificate, key = certificates.of_kit(folder)
    return Card.make(
        (holder.name, keys.public, keys.sealing_public, keys.made, certificate),
        sign=keys.sign,
        vouch=lambda text: certificates.sign(text, key),
    )


def accept(folder: str | Path, roster: str | Path) -> Changes:
    """Take a roster for a site, and tell what is other than in the one accepted before.

    Every card must be vouched for, and the site's own must be there with its present keys.
    """
    given = Roster.load(roster)
    given.verify(folder)
    keys, name = SiteKeys.load(folder), certificates.own_name(folder)
    own = given.card(name)
    if own is None:
        raise InputError(
            f"{name}, this site, is not in {roster}; ask the calibrator to gather it again while "
            "the site runs"
        )
    if own.keys != (keys.public, keys.sealing_public):
        raise InputError(
            f"{roster} has other keys for {name}, this site, than it has now; ask the calibrator "
            f"to take the new ones (privcal federation roster --new-keys {name})"
        )
    changes = given.since(stored_roster(folder))
    given.save(roster_path(folder))
    return changes
