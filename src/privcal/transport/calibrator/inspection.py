"""Is a calibrator ready to ask? Its keys, its roster, and its mailbox, looked at without any ε."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from privcal.data.wording import plural
from privcal.transport.calibrator.exchange import last_heard, participant
from privcal.transport.calibrator.panel import box_of
from privcal.transport.letter import file_name
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError

SOON = 30 * 24 * 3600
"""Seconds before its end from which a roster is told to end soon."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, and a sentence about it."""

    what: str
    well: bool
    sentence: str


def look(folder: Path, mailbox: str) -> list[Finding]:
    """What there is in a calibrator's folder and a mailbox."""
    standing = Standing(folder)
    checks: dict[str, Callable[[], str]] = {
        "keys": lambda: _keys(standing),
        "roster": lambda: _roster(standing),
        "mailbox": lambda: _mailbox(standing, mailbox),
    }
    return [_found(what, check) for what, check in checks.items()]


def _found(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, check())
    except (InputError, OSError) as error:
        return Finding(what, False, str(error))


def _keys(standing: Standing) -> str:
    keys = standing.keys
    if keys.role != "calibrator":
        raise InputError(f"they are those of a {keys.role}; only calibrators ask")
    return f"{keys.name}, ID {keys.id}, of {keys.card.day}"


def _roster(standing: Standing) -> str:
    roster = standing.roster
    participant(standing, roster)
    age, left = time.time() - roster.issued, roster.until - time.time()
    soon = "; ask the coordinator for the next one" if left < SOON else ""
    sites = sum(card.role == "site" for card in roster.cards)
    return (
        f"number {roster.number} with {plural(sites, 'site')}, {plural(int(age) // 86400, 'day')} old, good "
        f"for {plural(int(left) // 86400, 'day')}{soon}; digest {roster.digest}"
    )


def _mailbox(standing: Standing, mailbox: str) -> str:
    """Put, list, get and delete a small file in the own folder."""
    own = standing.keys.id
    box = box_of(standing, mailbox)
    content = secrets.token_bytes(32)
    name = file_name(own, content)
    box.put(own, name, content)
    try:
        if name not in list(box.list(own)) or box.get(own, name) != content:
            raise InputError(f"{mailbox} does not give back what was put there")
    finally:
        box.delete(own, name)
    return f"{mailbox} can be read, and written in your own folder of it"


def heard(folder: Path) -> dict[str, int | None]:
    """When the last letter of each site of the roster came, where one did."""
    roster, known = Standing(folder).latest, last_heard(folder)
    cards = () if roster is None else roster.cards
    return {card.name: known.get(card.name) for card in cards if card.role == "site"}
