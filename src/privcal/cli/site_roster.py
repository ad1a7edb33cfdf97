"""`privcal site roster`: show, accept; `privcal site keys`: rotate, destroy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privcal.cli.console import show, table
from privcal.cli.options import Json, SiteFolder
from privcal.trusted.errors import InputError, Refused

if TYPE_CHECKING:
    from privcal.transport.federation.shared.roster import Changes, Roster


def show_roster(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A site's folder, or a calibrator's kit.")
    ],
    as_json: Json = False,
) -> None:
    """The roster that a site accepted, or that a calibrator uses, with its digest.

    Owners read the digest to each other: whoever has the same one has the same sites and keys.

    Example: `privcal site roster show kits/hospital-1`
    """
    from privcal.transport.federation.shared.roster import stored_roster

    roster = stored_roster(folder)
    if not roster.cards:
        raise InputError(
            f"{folder} has no roster yet: a calibrator gathers one (privcal federation roster), a "
            "site takes it (privcal site roster accept)"
        )
    columns = ("site", "organisation", "keys since", "sealed with")
    cards = table(columns, columns)
    for card in roster.cards:
        cards.add_row(card.site, card.org, card.day, card.suite)
    sites = [{"site": c.site, "org": c.org, "made": c.made, "suite": c.suite} for c in roster.cards]
    facts = {"digest": roster.digest, "sites": sites}
    show(as_json, facts, cards, f"digest: {roster.digest}")


def accept(
    folder: SiteFolder,
    roster: Annotated[
        Path, typer.Argument(metavar="ROSTER.json", help="The roster that a calibrator gave out.")
    ],
    as_json: Json = False,
) -> None:
    """Take a roster for a site: checked, with this site's present keys in it.

    Shows what changed since the one before. Compare the digest with the other owners: in secure sums
    the promise is about the hospitals on it. What was dealt and not yet opened never opens after a change.

    Example: `privcal site roster accept kits/hospital-1 roster.json`
    """
    from privcal.transport.federation.shared.roster import stored_roster
    from privcal.transport.federation.site.roster import accept as take

    changes = take(folder, roster)
    accepted = stored_roster(folder)
    facts = {"digest": accepted.digest, **vars(changes)}
    show(as_json, facts, *lines_of(accepted, changes))


def lines_of(roster: Roster, changes: Changes) -> list[str]:
    """What an owner or a calibrator should know of a roster that was taken."""
    lines = [] if changes else ["the same sites with the same keys as before"]
    for change, names in (("new", changes.new), ("gone", changes.gone)):
        if names:
            lines.append(f"{change}: {', '.join(names)}")
    if changes.rekeyed:
        rekeyed = ", ".join(changes.rekeyed)
        lines.append(f"other keys than before: {rekeyed}; ask them whether they made new ones")
    return [*lines, f"digest: {roster.digest}"]


def rotate(folder: SiteFolder, as_json: Json = False) -> None:
    """Make new keys for a site; the old ones are overwritten.

    What was sealed for the old ones in secure sums never opens again.

    Example: `privcal site keys rotate kits/hospital-1`
    """
    from privcal.transport.federation.site.keys import rotate as renew
    from privcal.transport.federation.site.roster import own_card
    from privcal.transport.federation.site.settings import Site

    renew(folder)
    with suppress(InputError, Refused):  # not set up yet, or a ledger is missing: later, then
        Site.load(folder).bind_keys()
    card = own_card(folder)
    show(
        as_json,
        {"site": card.site, "made": card.made, "suite": card.suite},
        f"{card.site} has new keys. Calibrators do not ask it until they have taken them (privcal "
        f"federation roster KIT --new-keys {card.site}); then accept their new roster.",
    )


def destroy(folder: SiteFolder, as_json: Json = False) -> None:
    """Overwrite and remove a site's keys. It can answer nobody until `rotate` made new ones.

    Example: `privcal site keys destroy kits/hospital-1`
    """
    from privcal.transport.federation.site.keys import destroy as remove

    remove(folder)
    show(as_json, {"destroyed": str(folder)}, f"the keys of {folder} are destroyed")
