"""How a site is: for its owner, and for whatever watches over the machine."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privcal.data.ledger import Ledger
from privcal.data.scoring.rows import check_model_file
from privcal.transport.keys import LOST, Keys
from privcal.transport.site.log import LOG
from privcal.transport.site.outbox import stopped
from privcal.transport.site.service import STATUS
from privcal.transport.site.settings import Population, Site
from privcal.transport.standing import Standing
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import SecureRules

STALE = 60.0
"""Seconds after which a site that said nothing is taken for dead: it says something every ten."""

MARGIN = 0.5
"""The most of its delay that an answer should take: a machine may be twice as busy another day."""

SKEW = 30.0
"""Seconds by which clocks may differ; from a minute on an asker who is ahead is refused."""

SILENT = 300.0
"""Seconds without a look into a mailbox after which something is wrong with it."""

SOON = 30
"""Days before a roster ends in which its successor should be made."""

ROOM = 100 << 20
"""Bytes that should be free where a ledger is: without room nothing is answered."""


@dataclass(frozen=True)
class Sign:
    """One thing that was looked at, and whether it is well."""

    what: str
    well: bool
    sentence: str


def look(folder: Path) -> list[Sign]:
    """Everything that keeps a site from answering, or soon will."""
    site = Site.load(folder)
    return [
        _sign("process", _running, folder),
        _sign("mailboxes", _looks, folder),
        _sign("roster", _roster, folder),
        _sign("keys", _keys, folder),
        _sign("witness", _witness, folder),
        *([_sign("secure sums", _secure, folder)] if _secure_rules(site) else []),
        *(
            sign
            for index, population in enumerate(site.populations, start=1)
            for sign in _look_at(population, "" if len(site.populations) == 1 else f" {index}")
        ),
        _sign("timing", _timing, folder),
        _sign("clock", _clock, folder),
        _sign("refusals", _refusals, folder),
    ]


def _look_at(population: Population, suffix: str) -> list[Sign]:
    return [
        _sign(f"data{suffix}", _data, population.data),
        *(
            []
            if population.scoring is None
            else [_sign(f"model{suffix}", lambda _: _model(population), population.data)]
        ),
        _sign(f"ledger{suffix}", _ledger, population.ledger),
        _sign(f"disk{suffix}", _disk, population.ledger),
    ]


def last_status(folder: Path) -> dict[str, Any]:
    """The last words of the site's process about itself; empty where it does not run."""
    try:
        facts: dict[str, Any] = json.loads((folder / STATUS).read_text("utf-8"))
        # Nothing from the future either: a clock may have been set back.
        fresh = abs(time.time() - facts["time"]) < STALE
        return facts if fresh and _lives(facts["process"]) else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _lives(process: int) -> bool:
    try:
        # Empty where it has ended and nobody has asked how.
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


def ago(moment: float | None) -> str:
    """The time since a moment, for a person."""
    if moment is None:
        return "never"
    seconds = max(0, int(time.time() - moment))
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} seconds ago"


def _sign(what: str, judge: Callable[[Path], tuple[bool, str]], path: Path) -> Sign:
    try:
        return Sign(what, *judge(path))
    except (InputError, Refused, OSError) as error:
        return Sign(what, False, str(error))


def _running(folder: Path) -> tuple[bool, str]:
    facts = last_status(folder)
    if not facts:
        return False, "the site does not run (privcal site run)"
    return True, f"runs as process {facts['process']}; last letter {ago(facts['last_letter'])}"


def _looks(folder: Path) -> tuple[bool, str]:
    """Whether those who carry letters came lately; a site with a socket alone is told of no look."""
    looks: dict[str, float] = last_status(folder).get("looks") or {}
    silent = [
        f"{where} {ago(when)}" for where, when in looks.items() if time.time() - when > SILENT
    ]
    if silent:
        return False, f"last looked into: {', '.join(silent)}; see {LOG}"
    return True, ", ".join(f"{where} {ago(when)}" for where, when in looks.items()) or "none"


def _roster(folder: Path) -> tuple[bool, str]:
    standing = Standing(folder)
    roster, keys = standing.roster, standing.keys
    own = roster.party(keys.id)
    if own is None:
        return False, "the site is not on the roster any more: calibrators do not ask it"
    if (own.sealing, own.name) != (keys.sealing_public, keys.name):
        return False, (
            "the roster has another sealing key than the site has now: send the card that privcal keys "
            "card writes to whoever makes the roster, and accept the new roster"
        )
    blocked = f"; blocked here: {', '.join(standing.blocked)}" if standing.blocked else ""
    days = int(roster.until - time.time()) // 86400
    said = f"roster {roster.number} of {len(roster.cards)} parties ends in {days} days{blocked}"
    return days >= SOON, said + ("" if days >= SOON else ": ask for the next one")


def _keys(folder: Path) -> tuple[bool, str]:
    if _needs_new_keys(Site.load(folder)):
        return False, LOST
    return True, "the site's own keys are here"


def _witness(folder: Path) -> tuple[bool, str]:
    why = stopped(folder, Keys.load(folder).id)
    return not why, why or "the mailbox has no file of this site's that it does not know"


def _secure_rules(site: Site) -> list[SecureRules]:
    """What the owner wants of secure sums, of each ledger that can be read and says something of them."""
    wanted = []
    for population in site.populations:
        with suppress(Refused):
            wanted.append(Ledger(population.ledger).policy.secure)
    return [rules for rules in wanted if rules is not None]


def _needs_new_keys(site: Site) -> bool:
    """Whether the sealing key was destroyed, or will be, because a ledger that it goes with is another now."""
    own = Keys.load(site.folder)
    with suppress(Refused):  # nobody knows before all can be read
        now = {Ledger(population.ledger).generation for population in site.populations}
        return own.lost or bool(set(own.ledgers) - now)
    return own.lost


def _secure(folder: Path) -> tuple[bool, str]:
    roster = Standing(folder).roster
    if any(rules.roster not in (None, roster.digest) for rules in _secure_rules(Site.load(folder))):
        return False, (
            "the policy is for another roster than the one that was accepted: compare the digest "
            "with the other owners, then change secure.roster (privcal ledger policy)"
        )
    return True, f"takes part, with {len(roster.members.by_name) - 1} others on its roster"


def _data(data: Path) -> tuple[bool, str]:
    readable = os.access(data, os.R_OK)
    return readable, f"{data.name} is there" if readable else f"{data} is missing or cannot be read"


def _model(population: Population) -> tuple[bool, str]:
    assert population.scoring is not None
    check_model_file(population.scoring.model_file, population.model or "")
    return True, f"{population.scoring.model_file.name} is the model it was"


def _ledger(path: Path) -> tuple[bool, str]:
    trouble = ledger_trouble(path)
    return not trouble, trouble or f"{path.name} is as its mark says, and can be written"


def ledger_trouble(path: Path) -> str:
    """A sentence on why a site with this ledger answers nothing; empty where it would."""
    ledger = Ledger(path)
    try:
        if trouble := ledger.trouble:
            return f"{path.name}: {trouble}"
        ledger.check_writable()
    except Refused as refusal:
        return f"{path.name} cannot be used ({refusal.__cause__ or refusal})"
    return ""


def _disk(path: Path) -> tuple[bool, str]:
    files = [path]
    with suppress(Refused):  # said of the ledger
        files.append(Ledger(path).marks)
    free = min(shutil.disk_usage(file.parent).free for file in files)
    return free >= ROOM, f"{free >> 20:,} MiB free"


def _timing(folder: Path) -> tuple[bool, str]:
    slowest = last_status(folder).get("slowest_answer_in_delays") or 0.0
    if slowest > MARGIN:
        return False, (
            f"an answer took {slowest:.1f} delays: from 1 on, how long it takes can tell of the number "
            "of rows, or of the noise; choose a longer delay in privcal.toml"
        )
    return True, "answers are ready before they may leave"


def _clock(folder: Path) -> tuple[bool, str]:
    """Whether an asker's clock is ahead; one that is behind looks like a letter long on its way."""
    clocks: dict[str, float] = last_status(folder).get("clocks") or {}
    off = {asker: ahead for asker, ahead in clocks.items() if ahead > SKEW}
    if not off:
        return True, f"within {SKEW:.0f} seconds of the clocks of those who asked"
    asker = max(off, key=lambda asker: off[asker])
    sentence = f"the clock of {asker} is {off[asker]:,.0f} seconds ahead of this site's"
    whose = "compare both with a third one"
    if len(off) == 1 < len(clocks):
        whose = f"this site's agrees with others', so it is probably {asker}'s that is wrong"
    elif 1 < len(off) == len(clocks):
        whose = "all others' are too, so it is probably this site's that is wrong"
    return False, f"{sentence}; {whose}"


def _refusals(folder: Path) -> tuple[bool, str]:
    facts = last_status(folder)
    counts, since = counted(facts), facts.get("failing_since")
    if since is None:
        return True, counts
    return False, f"every request fails, the first {ago(since)}: see {LOG}; {counts}"


def counted(facts: dict[str, Any]) -> str:
    """How many letters a site's process refused, by code, and how many it dropped, for its owner."""
    return (
        f"refused since it started: {_told(facts, 'refused')}; dropped: {_told(facts, 'unheard')}"
    )


def _told(facts: dict[str, Any], name: str) -> str:
    counts = sorted((facts.get(name) or {}).items())
    return ", ".join(f"{code} {number:,}" for code, number in counts) or "nothing"
