"""A site's part in secure sums; a site without them never imports this."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from privcal.secure.participant import Participant
from privcal.secure.terms import Members, Terms
from privcal.transport.federation.shared.requests import Reply, Request
from privcal.transport.federation.shared.roster import roster_path, stored_roster
from privcal.transport.federation.site.keys import LOST
from privcal.transport.federation.site.settings import Site
from privcal.trusted.book import Book
from privcal.trusted.errors import InputError, Refused


def reply_in_a_sum(site: Site, asker: str, request: Request, terms: Terms) -> Reply:
    """The reply to a request of a secure sum."""
    participant = _participant(site, request.model)
    if request.kind == "offer":
        participant.reserve(terms, request.questions, asker)
        return Reply(accepted=True)
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
    others = [Book(other.ledger) for other in site.populations if other != population]
    return Participant(site.name, source, keys, members(site), None, others)


def members(site: Site) -> Members:
    """Everybody on the roster that the owner accepted; nobody where there is none."""
    path = roster_path(site.folder)
    if not path.exists():
        return Members({})
    facts = path.stat()
    return _read(site.folder, (facts.st_ino, facts.st_size, facts.st_mtime_ns))


@lru_cache(maxsize=1)
def _read(folder: Path, _: tuple[int, int, int]) -> Members:
    """Read once for each roster: to check the cards of hundreds of sites takes long."""
    return stored_roster(folder).members
