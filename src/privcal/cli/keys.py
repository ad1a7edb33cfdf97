"""`privcal keys`: make, card, rotate, destroy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.cli.console import show
from privcal.cli.options import Json
from privcal.trusted.errors import InputError, Refused

PartyFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of a site or of a calibrator.")
]


def make(
    folder: PartyFolder,
    name: Annotated[str, typer.Option(help="What the others call this party, as in the roster.")],
    role: Annotated[str, typer.Option(help="site or calibrator.")] = "site",
    as_json: Json = False,
) -> None:
    """Make the keys of a party, which never leave its folder, and its card.

    The card has the party's name and public keys. Send it to the coordinator, who puts the roster
    together, by any way. `privcal site init` makes a site's keys, too.

    Example: `privcal keys make me --name ann@lab.org --role calibrator`
    """
    from privcal.transport.keys import Keys

    _show(folder, Keys.make(folder, name, role), as_json)


def card(
    folder: PartyFolder,
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; by default FOLDER/card.json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a party's card: its name and public keys, to be sent to the coordinator.

    Example: `privcal keys card hospital-1 --out hospital-1.card.json`
    """
    from privcal.transport.keys import Keys

    _show(folder, Keys.load(folder), as_json, out)


def rotate(
    folder: PartyFolder,
    signing: Annotated[
        bool,
        typer.Option(
            "--signing", help="Make a new signing key, too: to the others it is another party."
        ),
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Destroy the old sealing key now, not after 90 days.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new sealing key in place of the old one, and a new card.

    The old key still opens letters and running secure sums for 90 days. Use --now where it may have
    been stolen, and --signing where the signing key may have been, too. Send the new card to the
    coordinator: the others do not use the new keys before they accept the next roster.

    Examples: `privcal keys rotate hospital-1`, `privcal keys rotate hospital-1 --signing --now`
    """
    from privcal.transport.keys import rotate as renew
    from privcal.transport.site.settings import SETTINGS, Site

    keys = renew(folder, signing=signing, now=now)
    if (folder / SETTINGS).exists():
        with suppress(InputError, Refused):  # a ledger is missing: later, then
            keys = Site.load(folder).bind_keys()
    _show(folder, keys, as_json)


def destroy(folder: PartyFolder, as_json: Json = False) -> None:
    """Overwrite and remove a party's keys. It can answer and ask nobody until it has new ones.

    Example: `privcal keys destroy hospital-1`
    """
    from privcal.transport.keys import destroy as remove

    remove(folder)
    show(as_json, {"destroyed": str(folder)}, f"the keys of {folder} are destroyed")


def _show(folder: Path, keys: Any, as_json: bool, out: Path | None = None) -> None:
    """Write the card of a party, and tell whose it is and where."""
    from privcal.transport.keys import CARD

    path = out or folder / CARD
    keys.card.save(path)
    facts = {"name": keys.name, "role": keys.role, "id": keys.id, "card": str(path)}
    show(
        as_json,
        facts,
        f"{keys.role} {keys.name}, ID {keys.id}",
        f"card: {path}; send it to the coordinator of the roster",
    )
