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
from pathlib import Path
from typing import Any

from privcal.errors import InputError, Refused
from privcal.federation.shared.messages import Reply, Request, read_request
from privcal.federation.site import log
from privcal.federation.site.settings import Site
from privcal.queries import GRID


def reply_to(site: Site, asker: str, request: Request) -> Reply:
    """The reply to a request of an asker. Refused, or any other exception: see `safely`."""
    if request.kind == "release":
        for population in site.populations:
            population.source(site.name).release(request.campaign, asker)
        return Reply(accepted=True)
    if request.kind == "about":
        policies = [p.source(site.name).policy for p in site.populations]
        told = [policy.rows for policy in policies if policy.admits(asker)]
        return Reply(accepted=True, rows=min(filter(None, told), default=None))
    model = request.questions[0].model  # a request is about one
    source = site.population(model).source(site.name)
    if request.kind == "offer":
        code = source.offer(request.questions, asker)
        return Reply(refused=code) if code else Reply(accepted=True)
    [question] = request.questions
    given = source.answer(question, asker)
    values = tuple(round(v * GRID) for v in given.values)
    return Reply(values, source.rows_per_person, source.max_rows, given.ledger)


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

    with contextlib.suppress(InputError, ImportError):  # said to whoever asks
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
