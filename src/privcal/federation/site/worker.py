"""The process at a site that reads data: it has the ledger and the rows, and no network.

It is the site's own child, a fixed module of its own installation. One line in is one request,
whose signature has been checked; one line out is the reply, not yet sealed. Requests are answered
one after the other, so that a question sent twice finds the answer that is being stored.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from privcal.errors import InputError, Refused
from privcal.federation.shared.messages import Reply, Request, read_request
from privcal.federation.shared.roster import roster_path, stored_roster
from privcal.federation.site import log
from privcal.federation.site.keys import LOST
from privcal.federation.site.settings import Site
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import strictest
from privcal.queries import GRID
from privcal.secure.members import Members
from privcal.secure.participant import Participant
from privcal.secure.terms import Terms


def reply_to(site: Site, asker: str, request: Request) -> Reply:
    """The reply to a request of an asker. Refused, or any other exception: see `safely`."""
    if request.kind == "release":
        for population in site.populations:
            population.source(site.name).release(request.campaign, asker)
        return Reply(accepted=True)
    if request.kind == "about":
        return _about(site, asker)
    if request.terms is not None:
        return _in_a_sum(site, asker, request, request.terms)
    source = site.population(request.model).source(site.name)
    if request.kind == "offer":
        code = source.offer(request.questions, asker)
        return Reply(refused=code) if code else Reply(accepted=True)
    [question] = request.questions
    given = source.answer(question, asker)
    values = tuple(round(v * GRID) for v in given.values)
    return Reply(values, source.rows_per_person, source.max_rows, given.ledger)


def _about(site: Site, asker: str) -> Reply:
    """What owners tell whoever may ask: about how many rows, and what must be so in secure sums."""
    sources = [population.source(site.name) for population in site.populations]
    asked = [source for source in sources if source.policy.admits(asker)]
    rows = min(filter(None, (source.policy.rows for source in asked)), default=None)
    secure = [source for source in asked if source.policy.secure is not None]
    wanted = strictest(source.policy.secure for source in secure)
    if wanted is None:
        return Reply(accepted=True, rows=rows)
    wanted = replace(wanted, roster=_members(site).digest)
    most = max(source.rows_per_person for source in secure)
    return Reply(accepted=True, rows=rows, rules=wanted, rows_per_person=most)


def _in_a_sum(site: Site, asker: str, request: Request, terms: Terms) -> Reply:
    """The reply to a request of a secure sum."""
    participant = _participant(site, request.model)
    if request.kind == "offer":
        code = participant.offer(terms, request.questions, asker)
        return Reply(refused=code) if code else Reply(accepted=True)
    if request.kind == "share":
        return Reply(dealt=participant.share(terms, asker).text())
    if request.kind == "check":
        return Reply(bad=participant.check(terms, asker, request.boxes))
    return Reply(sums=tuple(participant.open(terms, asker, request.boxes)))


def _participant(site: Site, model: str | None) -> Participant:
    """The site with its keys and its roster; Refused where it takes no part in secure sums."""
    population = site.population(model)
    source = population.source(site.name)
    if source.policy.secure is None:
        raise Refused("terms")
    keys = site.bind_keys()
    if keys.lost:
        raise Refused("roster") from InputError(LOST)
    others = [Ledger(other.ledger) for other in site.populations if other != population]
    return Participant(site.name, source, keys, _members(site), None, others)


def _members(site: Site) -> Members:
    """Everybody on the roster that the owner accepted; nobody where there is none."""
    path = roster_path(site.folder)
    if not path.exists():
        return Members({})
    facts = path.stat()
    return _read_members(site.folder, (facts.st_ino, facts.st_size, facts.st_mtime_ns))


@lru_cache(maxsize=1)
def _read_members(folder: Path, _: tuple[int, int, int]) -> Members:
    """Read once for each roster: to check the cards of hundreds of sites takes long."""
    return stored_roster(folder).members


def safely(folder: Path, asker: str, request: Request) -> Reply:
    """An answer or one of the fixed codes, whatever happens; the reason is for the owner alone."""
    try:
        return reply_to(Site.load(folder), asker, request)
    except BaseException as error:
        log.write(folder, f"{asker} was refused: {log.reason(error)}")
        return Reply(refused=error.code if isinstance(error, Refused) else "unavailable")


def _load(folder: Path) -> None:
    """Import what takes long, before the first question comes."""
    import opendp.measurements  # noqa: F401

    with contextlib.suppress(InputError, ImportError, Refused):  # said to whoever asks
        Site.load(folder).bind_keys()  # where one was restored, the sealing key goes now
    with contextlib.suppress(InputError, ImportError):
        if any(population.scoring for population in Site.load(folder).populations):
            import onnxruntime  # noqa: F401


def main(folder: Path) -> None:
    """Answer lines of standard input, one after the other, until it ends."""
    # Whatever a library prints must not come between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _load(folder)
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        facts: dict[str, Any] = json.loads(line)
        reply = safely(folder, facts["asker"], read_request(facts["request"]))
        replies.write(reply.text() + "\n")
        replies.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
