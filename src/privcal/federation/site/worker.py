"""The process at a site that reads data: it has the ledger and the rows, and no network.

It is the site's own child, a fixed module of its own installation. One line in is one request,
whose signature has been checked; one line out is the reply, not yet sealed. What is asked is
asked one after the other, so that a question sent twice finds the answer that is being stored.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from privcal.errors import Refused
from privcal.federation.shared.messages import Reply, Request, read_request
from privcal.federation.site.settings import Site
from privcal.queries import GRID

ERRORS = "privcal-errors.log"
"""In `local/`, for the owner: why a question was not answered. Never sent anywhere."""

MAX_LOG = 1 << 20


def reply_to(site: Site, asker: str, request: Request) -> Reply:
    """What a site says to a request of an asker. Refused, or any other exception: see `safely`."""
    if request.kind == "release":
        for one in site.populations:
            one.source(site.name).release(request.campaign, asker)
        return Reply(accepted=True)
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
    """Whatever happens, an answer or one of the fixed codes; why is for the owner alone."""
    try:
        return reply_to(Site.load(folder), asker, request)
    except Refused as refusal:
        note(folder, traceback.format_exc())
        return Reply(refused=refusal.code)
    except BaseException:
        note(folder, traceback.format_exc())
        return Reply(refused="unavailable")


def note(folder: Path, text: str) -> None:
    """Tell the owner, and nobody else, what went wrong."""
    path = folder / "local" / ERRORS
    try:
        if path.exists() and path.stat().st_size > MAX_LOG:
            path.replace(path.with_name(f"{ERRORS}.1"))
        with path.open("a", encoding="utf-8") as log:
            path.chmod(0o600)
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n{text}\n")
    except OSError:  # a full disk must not change the reply
        return


def main(folder: Path) -> None:
    """Answer lines of standard input, one after the other, until it ends."""
    # Whatever a library prints must not come between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import opendp.prelude  # noqa: F401  # takes seconds: before the first question comes

    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        facts: dict[str, Any] = json.loads(line)
        reply = safely(folder, facts["asker"], read_request(facts["request"]))
        replies.write(reply.text() + "\n")
        replies.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
