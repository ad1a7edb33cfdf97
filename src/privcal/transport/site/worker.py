"""The process at a site that reads data: it has the ledger and the rows, and no network.

It is the site's own child, a fixed module of its own installation. One line in is one request,
whose signature has been checked; one line out is the reply, not yet sealed. Requests are answered
one after the other, so that a question sent twice finds the answer that is being stored. Each has
one question at most: of a letter with several, `service` asks one at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from privcal.transport.content import Reply, Request
from privcal.transport.site import log
from privcal.transport.site.settings import Site
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.policy import strictest


def reply_to(site: Site, asker: str, request: Request) -> Reply:
    """The reply to a request of an asker. Refused, or any other exception: see `safely`."""
    if request.kind == "release":
        for population in site.populations:
            population.source(site.name).release(request.campaign, asker)
        return Reply(accepted=True)
    if request.terms is not None:
        from privcal.transport.site.sums import reply_in_a_sum

        reply = reply_in_a_sum(site, asker, request, request.terms)
        return reply or _about(site, asker)
    if request.plan:
        source = site.population(request.model).source(site.name)
        source.reserve(request.plan, asker, lasts=request.until - time.time())
    if request.kind == "about":
        return _about(site, asker)
    [question] = request.questions
    given = source.answer(question, asker)
    return Reply((given.points,), source.rows_per_person, source.max_rows, given.ledger)


def _about(site: Site, asker: str) -> Reply:
    """What owners tell whoever may ask: about how many rows, and what must be so in secure sums."""
    sources = [population.source(site.name) for population in site.populations]
    asked = [source for source in sources if source.policy.admits(asker)]
    rows = min(filter(None, (source.policy.rows for source in asked)), default=None)
    secure = [source for source in asked if source.policy.secure is not None]
    wanted = strictest(source.policy.secure for source in secure)
    if wanted is None:
        return Reply(accepted=True, rows=rows)
    most = max(source.rows_per_person for source in secure)
    return Reply(accepted=True, rows=rows, rules=wanted, rows_per_person=most)


def safely(folder: Path, asker: str, request: Request) -> Reply:
    """An answer or one of the fixed codes, whatever happens; the reason is for the owner alone."""
    try:
        return reply_to(Site.load(folder), asker, request)
    except BaseException as error:
        return Reply(refused=log.refusal(folder, asker, error))


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
        reply = safely(folder, facts["asker"], Request.read(facts["request"]))
        replies.write(json.dumps(reply.facts) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
