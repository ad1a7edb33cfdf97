"""One trip with letters: a job submitted, waited for, and what it brought put into a mailbox's folder.

    python -m privcal.transport.flare.trip KIT TRIP SPOOL [CLIENT ...]      not to these clients

A process of its own, because FLARE's threads do not all end and its calls do not all return: who
starts it kills it. It ends by itself when its input does. `TRIP/job` has the letters already;
`TRIP/told.json` says afterwards how it went. A job's status is not believed, answers are looked for.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from privcal.data.files import read_json, write_document
from privcal.transport.flare.job import ALLOWED, BOX, HELLO, MET, WAIT, collect, write_job

TOLD = "told.json"
CONNECT, START, IDLE, END = 15.0, 40.0, 10.0, 20.0
"""Seconds for a session; for a job to begin everywhere; to stay when it has ended at the server; to end when aborted."""
ABOUT = f"is privcal installed there, and {ALLOWED} in class_allow_list of its resources.json?"
CLIENT = f"does a site run behind PRIVCAL_SOCKET; {ABOUT}"


def username(kit: Path) -> str:
    """The name in an admin's start-up kit."""
    facts = read_json(kit / "startup" / "fed_admin.json", "FLARE admin's start-up kit")
    return str(facts["admin"]["username"])


def trip(kit: Path, folder: Path, spool: Path, without: Collection[str] = ()) -> dict[str, Any]:
    """Bring the letters in `folder/job` to their sites; what was brought back, and who said nothing."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session(username(kit), str(kit), timeout=CONNECT)
    clients = sorted(client.name for client in session.get_connected_client_list())
    clients = [name for name in clients if name not in without] or clients
    if not clients:
        return {"problem": "no client is connected to FLARE's server"}
    write_job(folder / "job", clients)
    job = session.submit_job(str(folder / "job"))
    try:
        status = _wait(session, job, START + HELLO + WAIT)
        if status is None:
            session.abort_job(job)
            status = _wait(session, job, END)
        result = Path(session.download_job_result(job, str(folder / "result")), "workspace", BOX)
    finally:
        with suppress(Exception):
            session.delete_job(job)
    brought = collect(folder / "job" / "letters" / BOX, result, spool)
    if not (result / MET).is_file():
        return {
            "problem": f"FLARE's server did not run the job ({status}): {ABOUT}",
            "brought": brought,
        }
    met = read_json(result / MET, "list of clients")
    return {"met": {name: str(met.get(name, "silent")) for name in clients}, "brought": brought}


def _wait(session: Any, job: str, seconds: float) -> str | None:
    """The job's last status; None if it goes on, or would for nothing.

    FLARE waits a quarter of an hour for a client that died in a job, although nothing runs at the
    server any more and all answers are there.
    """
    end, ran, idle = time.monotonic() + seconds, False, 0.0
    while time.monotonic() < end:
        status = str(session.get_job_status(job))
        if status.startswith(("FINISHED", "FAILED", "ABANDONED")):
            return status
        runs = any(each.job_id == job for each in session.get_system_info().job_info)
        ran, idle = ran or runs, time.monotonic() if runs else idle
        if ran and time.monotonic() - idle > IDLE:
            return None
        time.sleep(0.3)
    return None


def _problem(error: Exception) -> str:
    known = {
        "NoConnection": "FLARE's server cannot be reached",
        "AuthenticationError": "FLARE's server does not accept this admin's kit",
        "AuthorizationError": "FLARE's server does not let this admin submit, see or download jobs",
    }
    kind = type(error).__name__
    return known.get(kind) or f"{kind}: {str(error)[:300]}"


def main() -> None:
    """Run a trip; end with it, or with the process that began it."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    logging.disable(logging.CRITICAL)
    kit, folder, spool = map(Path, sys.argv[1:4])
    try:
        told = trip(kit, folder, spool, sys.argv[4:])
    except Exception as error:
        told = {"problem": _problem(error)}
    write_document(folder / TOLD, told)
    os._exit(0)


if __name__ == "__main__":
    main()
