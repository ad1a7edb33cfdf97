"""`privcal roster`: make, next, sign, show, accept."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privcal.cli.console import note, plural, show, table
from privcal.cli.options import Json
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.transport.roster import Card, Changes, Roster

DAYS = 365

As = Annotated[
    Path, typer.Option("--as", metavar="FOLDER", help="Your own folder: you are the coordinator.")
]
Out = Annotated[Path, typer.Option(help="Where to write the roster, to be sent to all owners.")]
Coordinator = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A second party whose key may remove parties; only you otherwise."
    ),
]
File = Annotated[Path, typer.Argument(metavar="ROSTER", help="The roster's file.")]


def make(
    cards: Annotated[
        list[Path], typer.Argument(metavar="CARD...", help="The cards of the other parties.")
    ],
    own: As,
    out: Out,
    days: Annotated[int, typer.Option(help="How long the roster holds, at most 400.")] = DAYS,
    coordinator: Coordinator = None,
    as_json: Json = False,
) -> None:
    """Make the first roster of a new federation from the parties' cards and your own.

    A card counts once its owner has read its ID to you over a telephone number that you knew before.
    Send the roster to all owners by any way. Everybody, you too, compares its digest by telephone
    and accepts it (`privcal roster accept`).

    Example: `privcal roster make h1.card.json h2.card.json h3.card.json --as me --out roster-1.json`
    """
    from privcal.transport.keys import Keys
    from privcal.transport.roster import Card, Changes, Roster

    keys, now = Keys.load(own), int(time.time())
    given = _by_name([*map(Card.load, cards), keys.card])
    who = _coordinators(keys.public, given, coordinator or [])
    roster = Roster.first(given.values(), who, now, now + _seconds(days)).signed(keys)
    roster.save(out)
    _show(as_json, out, roster, Changes(new=tuple(sorted(given))))


def following(
    before: File,
    own: As,
    out: Out,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CARD",
            help="The card of a new party, or the new card of one that is there. May be repeated.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A party to be removed. May be repeated."),
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(help="How long it holds from now, at most 400; by default as long as before."),
    ] = None,
    coordinator: Coordinator = None,
    as_json: Json = False,
) -> None:
    """Make the roster that follows another: without some parties, or with new cards.

    A roster that only removes parties is taken by every site as soon as it lies in the mailbox. All
    else (a new party, a new key, a longer time, another coordinator) counts at a site once its owner
    has accepted the new digest, so compare it by telephone again.

    Examples: `privcal roster next roster-1.json --remove hospital-2 --as me --out roster-2.json`

    `privcal roster next roster-2.json --add h4.card.json --as me --out roster-3.json`
    """
    from privcal.transport.keys import Keys
    from privcal.transport.roster import Card, Roster

    keys, old, now = Keys.load(own), Roster.load(before), int(time.time())
    cards = {card.name: card for card in old.cards}
    for name in remove or ():
        if cards.pop(name, None) is None:
            raise InputError(f"there is no party {name!r} in {before}")
    added = _by_name(map(Card.load, add or ()))
    if both := {*added} & {*(remove or ())}:
        raise InputError(f"{', '.join(sorted(both))} cannot be added and removed at once")
    cards |= added
    coordinators: tuple[str, ...] | None = None
    if coordinator is not None:
        coordinators = _coordinators(keys.public, cards, coordinator)
    elif keys.public not in old.coordinators:
        raise InputError(
            f"{keys.name} is not a coordinator of {before}; to become one, name yourself with "
            "--coordinator: all owners must accept that"
        )
    until = old.until if days is None else now + _seconds(days)
    roster = old.next(cards.values(), now, until, coordinators).signed(keys)
    roster.save(out)
    _show(as_json, out, roster, roster.since(old))


def sign(
    roster: File,
    own: As,
    as_json: Json = False,
) -> None:
    """Sign a roster as its second coordinator. The digest stays the same.

    Example: `privcal roster sign roster-2.json --as me`
    """
    from privcal.transport.keys import Keys
    from privcal.transport.roster import Roster

    keys = Keys.load(own)
    signed = Roster.load(roster).signed(keys)
    signed.save(roster)
    show(
        as_json,
        {"roster": str(roster), "digest": signed.digest, "signatures": len(signed.signers)},
        f"{roster} has {plural(len(signed.signers), 'signature')} of its coordinators",
    )


def show_roster(
    what: Annotated[
        Path, typer.Argument(metavar="ROSTER|FOLDER", help="A roster's file, or a party's folder.")
    ],
    as_json: Json = False,
) -> None:
    """The parties of a roster with their IDs, its dates and its digest.

    Of a folder: the roster that its party goes by, and what changed in it since the one before.

    Examples: `privcal roster show roster-1.json`, `privcal roster show hospital-1`
    """
    from privcal.transport.roster import Changes, Roster
    from privcal.transport.standing import Standing

    if not what.is_dir():
        _show(as_json, what, Roster.load(what), Changes())
        return
    standing = Standing(what)
    roster = standing.latest or standing.roster  # which says that there is none
    before = standing.before
    changes = Changes() if before is None else roster.since(before)
    _show(as_json, what, roster, changes, blocked=standing.blocked)


def accept(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Your own folder.")],
    roster: File,
    digest: Annotated[
        list[str],
        typer.Argument(
            metavar="DIGEST...", help="All twelve groups, as another owner read them to you."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Take a roster: from now on this party goes by it. It prints what changed.

    Type the digest as another owner reads it to you over a telephone number that you knew before,
    not as the file or the sender of the file has it: else whoever sent you the file decides whose
    keys you trust.

    Example: `privcal roster accept hospital-1 roster-1.json 7f3a 01bc 44d2 9a90 5e1f c8d7 0b66 12ab
    f00d 93e4 58c1 a7d0`
    """
    from privcal.transport.roster import Roster
    from privcal.transport.standing import Standing

    standing, given = Standing(folder), Roster.load(roster)
    changes = standing.accept(given, " ".join(digest))
    _show(as_json, folder, given, changes, blocked=standing.blocked, loud=True)


def warnings(changes: Changes) -> list[str]:
    """What an owner should know of a roster beyond those who left."""
    said = []
    for names, what in (
        (changes.new, "new in this roster: did you speak to them?"),
        (changes.changed, "with other keys or another role than before: did they tell you so?"),
        (changes.back, "removed before, and back now: ask the coordinator why"),
    ):
        if names:
            said.append(f"{', '.join(names)}: {what}")
    if changes.forgotten:
        said.append("parties that were removed are not listed as removed any more")
    if changes.coordinators:
        said.append("other keys than before may remove parties from the roster")
    if changes.longer:
        said.append("the roster holds for longer than the one before")
    return said


def _seconds(days: int) -> int:
    return whole("--days", days, 1, 400) * 24 * 3600


def _by_name(cards: Any) -> dict[str, Card]:
    found: dict[str, Card] = {}
    for card in cards:
        if found.setdefault(card.name, card) != card:
            raise InputError(f"two cards are of {card.name}; take the one whose ID its owner reads")
    return found


def _coordinators(own: str, cards: dict[str, Card], names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in cards:
            raise InputError(f"there is no party {name!r} who could be a coordinator")
    return tuple(dict.fromkeys([own, *(cards[name].signing for name in names)]))


def _show(
    as_json: bool,
    where: Path,
    roster: Roster,
    changes: Changes,
    blocked: tuple[str, ...] = (),
    loud: bool = False,
) -> None:
    """Print a roster; what is new in it on standard error, where that is `loud`."""
    columns = ("name", "role", "ID", "keys since")
    parties = table(columns, columns)
    parties.columns[2].min_width = 32  # all of it is compared
    for card in roster.cards:
        parties.add_row(card.name, card.role, card.id, card.day)
    issued, until = (_day(date) for date in (roster.issued, roster.until))
    removing = [card.name for card in roster.cards if card.signing in roster.coordinators]
    lists = {"coordinator": removing, "blocked here": blocked, "gone": changes.gone}
    lines = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
    for sentence in warnings(changes):
        if loud:
            note(f"WARNING: {sentence}")
        else:
            lines.append(sentence)
    facts = {
        "file": str(where),
        "federation": roster.federation,
        "number": roster.number,
        "digest": roster.digest,
        "issued": issued,
        "until": until,
        "signatures": len(roster.signers),
        "parties": [{"name": c.name, "role": c.role, "id": c.id} for c in roster.cards],
        "blocked": blocked,
        "changes": vars(changes),
    }
    show(
        as_json,
        facts,
        f"{where}: roster {roster.number} of {issued}, until {until}, federation {roster.federation}",
        parties,
        *lines,
        f"digest: {roster.digest}",
    )


def _day(date: int) -> str:
    return datetime.fromtimestamp(date, UTC).date().isoformat()
