"""A job for FLARE that carries letters: two apps of configuration, and no code.

    JOB/meta.json
    JOB/letters/config/config_fed_server.json      the server's app, with the controller
    JOB/letters/box/<federation>/...               its letters, in the layout of a mailbox
    JOB/carrier/config/config_fed_client.json      the clients' app, with the executor

Letters are in the server's app alone: one app for everybody would send every letter to all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from privcal.data.files import write_document
from privcal.transport.letter import digest
from privcal.transport.mailbox import NAME, ROSTER, FolderBox

BOX, MET = "box", "met.json"
"""The folder with letters in the server's app, and in the result; and there, what each client said."""
HELLO, WAIT = 30.0, 30.0
"""Seconds for a client to say whose letters it carries, and for a site to answer them."""
ALLOWED = "privcal.transport.flare.components."
"""What server and clients must have in class_allow_list of local/resources.json."""

_CONFIG: dict[str, Any] = {
    "format_version": 2,
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}


def write_job(folder: Path, clients: Sequence[str], wait: float = WAIT) -> None:
    """Make the job around the letters in `folder`, which are there already, for these clients."""
    meta = {
        "name": "privcal",
        "min_clients": 1,
        "resource_spec": {},
        "deploy_map": {"letters": ["server"], "carrier": list(clients)},
    }
    controller = {"path": f"{ALLOWED}LetterController", "args": {"wait": wait}}
    executor = {"path": f"{ALLOWED}LetterExecutor", "args": {}}
    server = {
        "server": {"task_request_interval": 0.2},
        "workflows": [{"id": "letters", **controller}],
    }
    client = {"executors": [{"tasks": ["hello", "letters"], "executor": executor}]}
    for path, facts in (
        ("letters/config/config_fed_server.json", _CONFIG | server),
        ("carrier/config/config_fed_client.json", _CONFIG | client),
        ("meta.json", meta),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_document(folder / path, facts)


def pack(job: Path, spool: Path, federation: str, files: Iterable[str]) -> None:
    """Put files of a mailbox (`<writer>/<name>`) into a job that is being made."""
    for name in files:
        to = job / "letters" / BOX / federation / name
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(spool / federation / name, to)


def job_of(mailbox: Path, job: Path, clients: Sequence[str]) -> int:
    """Make a job with all letters of a mailbox in a folder, for an operator to submit; how many they are."""
    letters = 0
    for path in sorted(path for path in mailbox.glob("*/*/*") if NAME.fullmatch(path.name)):
        federation, writer, name = path.relative_to(mailbox).parts
        content = FolderBox(mailbox, federation).get(writer, name)  # through no link
        if content is not None and digest(content) == name[33:]:
            to = job / "letters" / BOX / federation / writer
            to.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(content)
            letters += 1
    write_job(job, clients)
    return letters


def collect(sent: Path, result: Path, spool: Path) -> int:
    """Put the answers to the letters that were sent into a mailbox's folder; how many are new."""
    brought = 0
    for federation in [path.name for path in sent.iterdir()] if result.is_dir() else ():
        to, given = FolderBox(spool, federation), FolderBox(result, federation)
        files = [path for path in (sent / federation).glob("*/*") if NAME.fullmatch(path.name)]
        askers = {path.parent.name for path in files}
        for site in {path.name[:32] for path in files}:
            for name in {*given.list(site)} - {*to.list(site)}:
                match = NAME.fullmatch(name)
                content = given.get(site, name) if match and match[1] in askers else None
                if match and content is not None and digest(content) == match[2]:
                    to.put(site, name, content)
                    brought += 1
    return brought


def letters_for(box: Path, federation: str, site: str) -> dict[str, bytes]:
    """All in a job that a site is to see: letters for it, its own ones, and rosters.

    A site looks at its own letters to see whether its ledger still knows of them.
    """
    letters: dict[str, bytes] = {}
    if not (box / federation).is_dir():
        return letters
    mailbox = FolderBox(box, federation)
    for entry in sorted((box / federation).iterdir()):
        writer = entry.name if entry.is_dir() else ""
        for name in mailbox.list(writer) if writer else [entry.name]:
            match = NAME.fullmatch(name) if writer else ROSTER.fullmatch(name)
            if match and (not writer or site in (writer, match[1])):
                content = mailbox.get(writer, name)
                if content is not None:
                    letters[name] = content
    return letters
