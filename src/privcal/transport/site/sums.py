"""A site's part in secure sums; a site without them never imports this."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path

from privcal.secure.participant import Participant
from privcal.secure.terms import Terms
from privcal.transport.content import Reply, Request
from privcal.transport.keys import LOST
from privcal.transport.roster import Roster
from privcal.transport.site.settings import Site
from privcal.transport.standing import Standing
from privcal.trusted.book import Book
from privcal.trusted.errors import InputError, Refused


def reply_in_a_sum(site: Site, asker: str, request: Request, terms: Terms) -> Reply | None:
    """The reply to a request of a secure sum; None for yes to its plan."""
    ends = request.kind in ("check", "open")
    participant = _participant(site, request.model, _roster(site, terms, ends))
    if request.kind == "about":
        participant.reserve(terms, request.plan, asker, request.until - time.time())
        return None
    if request.kind == "share":
        return Reply(dealt=participant.share(terms, asker).text())
    if request.kind == "check":
        return Reply(bad=participant.check(terms, asker, request.boxes))
    return Reply(sums=tuple(participant.open(terms, asker, request.boxes)))


def _roster(site: Site, terms: Terms, ends: bool) -> Roster:
    """The roster that a sum goes by; Refused where that is not one of the site's.

    A sum begins by the present one and `ends` by the one that it began with: whoever was removed
    meanwhile was one of the dealers whom it counted as dishonest anyway.
    """
    standing = _standing(site.folder)
    try:
        roster = standing.roster_of(terms.roster) if ends else standing.roster
    except InputError as error:
        raise Refused("roster") from error
    if roster is None:
        raise Refused("roster")
    return roster


def _participant(site: Site, model: str | None, roster: Roster) -> Participant:
    """The site with its keys and a roster; Refused where it takes no part in secure sums."""
    population = site.population(model)
    source = population.source(site.name)
    if source.policy.secure is None:
        raise Refused("terms")
    keys = site.bind_keys()
    if keys.lost:
        raise Refused("roster") from InputError(LOST)
    if (own := roster.party(keys.id)) is not None:  # it may have an older sealing key
        keys = keys.as_of(own.sealing, time.time())
    others = [Book(other.ledger) for other in site.populations if other != population]
    return Participant(site.name, source, keys, roster.members, None, others)


@lru_cache(maxsize=1)
def _standing(folder: Path) -> Standing:
    """Kept, with the rosters that it has read: to check the cards of hundreds of sites takes long."""
    return Standing(folder)
