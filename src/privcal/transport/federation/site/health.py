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
from privcal.transport.federation.shared import revocations
from privcal.transport.federation.shared.certificates import (
    Holder,
    expiry,
    own_certificate,
    own_name,
)
from privcal.transport.federation.shared.roster import stored_roster
from privcal.transport.federation.site.keys import LOST, SiteKeys
from privcal.transport.federation.site.log import LOG
from privcal.transport.federation.site.service import STATUS
from privcal.transport.federation.site.settings import Population, Site
from privcal.trusted.errors import InputError, Refused

STALE = 60.0
"""Seconds after which a site that said nothing is taken for dead: it says something every ten."""

MARGIN = 0.5
"""The most of its delay that an answer should take: a machine may be twice as busy another day."""

SKEW = 30.0
"""Seconds by which clocks may differ; from a minute on whoever is ahead is refused."""

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
        _sign("server", _connected, folder),
        _sign("certificate", _certificate, folder),
        _sign("revocations", _revocations, folder),
        _sign("keys", _keys, folder),
        *([_sign("secure sums", _secure, folder)] if site.secure_rules else []),
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
        facts: dict[str, Any] = json.loads((folder / "local" / STATUS).read_text("utf-8"))
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
    return True, f"runs as process {facts['process']}; last asked {ago(facts['last_asked'])}"


def _connected(folder: Path) -> tuple[bool, str]:
    since = last_status(folder).get("connected_since")
    return since is not None, (
        "not connected to the server" if since is None else f"connected {ago(since)}"
    )


def _certificate(folder: Path) -> tuple[bool, str]:
    dates = expiry(folder)
    trouble = dates.expired or dates.soon
    return not trouble, trouble or "good for more than 30 days"


def _keys(folder: Path) -> tuple[bool, str]:
    SiteKeys.load(folder)
    if Site.load(folder).needs_new_keys:
        return False, LOST
    return True, "the site's own keys are here"


def _secure(folder: Path) -> tuple[bool, str]:
    roster = stored_roster(folder)
    if not roster.cards:
        return False, "there is no roster yet: accept the calibrator's (privcal site roster accept)"
    if Site.load(folder).needs_new_keys:
        return False, "takes no part before there are new keys (privcal site keys rotate)"
    card, keys = roster.card(own_name(folder)), SiteKeys.load(folder)
    if card is None or card.keys != (keys.public, keys.sealing_public):
        return False, (
            "the roster has not this site's present keys: ask the calibrator to take them, and "
            "accept the new roster"
        )
    if any(rules.roster not in (None, roster.digest) for rules in Site.load(folder).secure_rules):
        return False, (
            "the policy is for another roster than the one that was accepted: compare the digest "
            "with the other owners, then change secure.roster (privcal ledger policy)"
        )
    return True, f"takes part, with {len(roster.cards) - 1} others on its roster"


def _revocations(folder: Path) -> tuple[bool, str]:
    revoked = revocations.load(folder)  # a damaged one: nobody is answered
    own = Holder.of(own_certificate(folder))
    if revoked.refuses(own.name, own.fingerprint):
        return False, "this site's own certificate is revoked: calibrators do not ask it"
    return True, f"list {revoked.number} is here" if revoked.number else "there is no list"


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
            "of rows, or of the noise; choose a longer delay in local/privcal.toml"
        )
    return True, "answers are ready before they may leave"


def _clock(folder: Path) -> tuple[bool, str]:
    clocks: dict[str, float] = last_status(folder).get("clocks") or {}
    off = {asker: ahead for asker, ahead in clocks.items() if abs(ahead) > SKEW}
    if not off:
        return True, f"within {SKEW:.0f} seconds of the clocks of those who asked"
    asker = max(off, key=lambda asker: abs(off[asker]))
    side = "ahead of" if off[asker] > 0 else "behind"
    sentence = f"the clock of {asker} is {abs(off[asker]):,.0f} seconds {side} this site's"
    whose = "compare both with a third one"
    if len(off) == 1 < len(clocks):
        whose = f"this site's agrees with others', so it is probably {asker}'s that is wrong"
    elif 1 < len(off) == len(clocks) and len({ahead > 0 for ahead in off.values()}) == 1:
        whose = "all others' are too, so it is probably this site's that is wrong"
    return False, f"{sentence}; {whose}"


def _refusals(folder: Path) -> tuple[bool, str]:
    facts = last_status(folder)
    counts, since = refused(facts), facts.get("failing_since")
    if since is None:
        return True, counts
    return False, f"every request fails, the first {ago(since)}: see local/{LOG}; {counts}"


def refused(facts: dict[str, Any]) -> str:
    """How many requests a site's process refused, by code, for its owner."""
    counts = sorted((facts.get("refused") or {}).items())
    told = ", ".join(f"{code} {number:,}" for code, number in counts)
    return f"refused since it started: {told or 'nothing'}"
