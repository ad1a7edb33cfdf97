"""A site's life: its process with the letters runs in the foreground, until stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from privcal.transport import wire
from privcal.transport.carry import EVERY, carry
from privcal.transport.keys import Keys
from privcal.transport.mailbox import FolderBox
from privcal.transport.site import log
from privcal.transport.site.child import scoring_ahead
from privcal.transport.site.service import STATUS, Service, only_one
from privcal.trusted.errors import InputError

INTERVAL = 5.0
"""Seconds between two looks of the process at its own state."""
PATIENCE = 30.0
"""Seconds that are left to finish what was begun, when the site is stopped."""

Tell = Callable[[str], None]


class Stopped(RuntimeError):
    """The end of a site that may have forgotten something: it answers nothing more with its keys."""


def run(
    folder: Path,
    boxes: Sequence[Path] = (),
    path: Path | None = None,
    *,
    every: float = EVERY,
    once: bool = False,
    log_json: bool = False,
    tell: Tell,
) -> int:
    """Be the site in `folder`, with mailboxes in folders and a socket at `path`.

    Returns how many replies were put; Stopped where it answers nothing more with its present keys.
    """
    if not boxes and path is None:
        raise InputError("say with --folder or --socket where letters come from")
    if once and path is not None:
        raise InputError("--once looks into folders: leave --socket out")
    stopped, replied = threading.Event(), list[int]()
    ahead = nullcontext() if once else scoring_ahead(folder.resolve())
    with only_one(folder), _signals(stopped), ahead:
        service = Service(folder, _print if log_json else lambda facts: None)
        try:
            _check(service)
            jobs: list[Callable[[], object]] = []
            for box in boxes:
                mailbox = FolderBox(box, service.federation)
                tell(f"{service.name} looks into {box} every {every:g} seconds")
                way = partial(
                    carry,
                    mailbox,
                    service,
                    every=every,
                    once=once,
                    stopped=stopped,
                    tell=partial(_note, service.folder, tell),
                    looked=partial(service.looked, str(box)),
                )
                jobs.append(lambda way=way: replied.append(way()))  # type: ignore[misc]
            if path is not None:
                tell(f"{service.name} listens at {path}")
                jobs.append(partial(wire.serve, path, service, stopped))
            _beside(jobs, service, stopped)
            _check(service)
        finally:
            service.close()
            with suppress(OSError):
                (service.folder / STATUS).unlink()
    return sum(replied)


def _check(service: Service) -> None:
    """Stopped where the site answers nothing more with its keys."""
    if why := service.stopped:
        raise Stopped(
            f"{service.name} answers nothing more with these keys: {why}; find out which, then run "
            f"privcal keys rotate {service.folder} --signing and send the new card to whoever makes the "
            "roster"
        )


def _beside(
    jobs: Sequence[Callable[[], object]], service: Service, stopped: threading.Event
) -> None:
    """Run these beside each other until all have ended; an error of one ends the others, and is raised."""
    problems: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as problem:
            problems.append(problem)
            stopped.set()

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for one in threads:
        one.start()
    notify("READY=1")
    next_look, ends = 0.0, float("inf")
    while any(one.is_alive() for one in threads):  # signals are handled here, between short waits
        if stopped.is_set():
            ends = min(ends, time.monotonic() + PATIENCE)
        if time.monotonic() > ends:  # a folder that hangs, say: its thread ends with the process
            break
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + INTERVAL
            service.write_status()
            notify("WATCHDOG=1")
        if service.stopped or _other_keys(service):
            stopped.set()
        threads[0].join(0.2) if threads[0].is_alive() else time.sleep(0.1)
    if problems:
        raise problems[0]


def _other_keys(service: Service) -> bool:
    """Whether its owner made another signing key: it is another party then, and must be started anew."""
    try:
        return Keys.load(service.folder).id != service.id
    except InputError:  # said to whoever asks
        return False


def notify(state: str) -> None:
    """Tell systemd, where it asked for that."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        address = f"\0{address[1:]}" if address.startswith("@") else address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto(state.encode("ascii"), address)


def _note(folder: Path, tell: Tell, text: str) -> None:
    tell(text)
    log.write(folder, text)


def _print(facts: dict[str, Any]) -> None:
    print(json.dumps({"time": round(time.time(), 3), **facts}), flush=True)


@contextmanager
def _signals(stopped: threading.Event) -> Iterator[None]:
    """Meanwhile Ctrl-C and SIGTERM stop it, when it has finished what it does."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda *_: stopped.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
