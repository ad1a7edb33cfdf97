"""`privcal post`: letters between a mailbox that lies elsewhere and a site."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from privcal.cli.console import say, show
from privcal.cli.options import Json
from privcal.cli.systems import need_posix
from privcal.trusted.errors import InputError


def post(
    box: Annotated[
        str,
        typer.Argument(
            metavar="BOX",
            help="The mailbox: a folder, sftp://USER@HOST/PATH, or s3://BUCKET/PREFIX.",
        ),
    ],
    socket: Annotated[
        Path | None, typer.Option(help="The socket of the site: `privcal site run --socket`.")
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            min=0.1, max=86_400, help="Seconds between two looks; less while letters come."
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Carry what is there now, and end.")] = False,
    credentials: Annotated[
        Path | None,
        typer.Option(help="A file (TOML, for its owner alone) with what the server asks for."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only tell whether the mailbox is fit for a party.")
    ] = False,
    party: Annotated[
        Path | None,
        typer.Option("--as", metavar="DIR", help="With --check: the folder of that party."),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Instead: make a job for NVIDIA FLARE in a new folder, with the letters of a folder.",
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --job: a client of FLARE's. May be repeated."),
    ] = None,
    result: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --job: what FLARE gave back for that job; its replies go into the folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Carry letters between a mailbox and a site, until stopped; or check the mailbox.

    It needs no key and no data, and may run in another account than the site. It may be killed at
    any time: a letter that it had is brought again.

    Example: `privcal post sftp://hospital-1@mail.example.org/box --socket /run/privcal/site`

    Example: `privcal post s3://our-study/letters --check --as hospital-1`

    An operator of FLARE carries the letters of a folder by hand:

    `privcal post letters --job trip --client site-1 --client site-2`, then `nvflare job submit -j trip`,
    `nvflare job download ID`, and `privcal post letters --job trip --result ID`
    """
    need_posix()
    if job is not None:
        _by_job(Path(box), job, client or [], result, as_json)
        return
    if check != (party is not None) or check == (socket is not None):
        raise InputError("give --socket with the site's socket, or --check with --as")
    if party is not None:
        _check(box, party, credentials, as_json)
    elif socket is not None:
        _carry(box, socket, credentials, every, once, as_json)


def _by_job(
    folder: Path, job: Path, clients: list[str], result: Path | None, as_json: bool
) -> None:
    from privcal.transport.flare.job import BOX, collect, job_of

    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} with letters")
    if result is not None:
        sent, back = job / "letters" / BOX, result / "workspace" / BOX
        if not sent.is_dir() or not back.is_dir():
            raise InputError(f"{job} is no job of ours, or {result} no result of one: no {back}")
        put = collect(sent, back, folder)
        show(as_json, {"replies": put}, f"replies put: {put}")
        return
    if not clients or job.exists():
        raise InputError(f"name FLARE's clients with --client, and a new folder: not {job}")
    letters = job_of(folder, job, clients)
    show(as_json, {"job": str(job), "letters": letters}, f"{job}: letters in it: {letters}")


def _check(where: str, folder: Path, credentials: Path | None, as_json: bool) -> None:
    from privcal.transport.post import open_box
    from privcal.transport.post.check import attempts
    from privcal.transport.standing import Standing

    standing = Standing(folder)
    own, roster = standing.keys.id, standing.roster
    other = next((card.id for card in roster.cards if card.id != own), "0" * 32)
    box = open_box(where, roster.federation, credentials)
    found = []
    for finding in attempts(box, own, other):
        say(as_json, finding.text)
        found.append(finding)
    fit = not any(finding.failed for finding in found)
    facts = {"fit": fit, "found": [finding.text for finding in found]}
    show(as_json, facts, "the mailbox is fit" if fit else "the mailbox is not fit")
    if not fit:
        raise typer.Exit(1)


def _carry(
    where: str, path: Path, credentials: Path | None, every: float, once: bool, as_json: bool
) -> None:
    from privcal.transport.carry import carry
    from privcal.transport.post import open_box
    from privcal.transport.wire import Caller

    try:
        site = Caller(path)
    except OSError as error:
        raise InputError(f"no site answers at {path}: {error.strerror or error}") from None
    box = open_box(where, site.federation, credentials)
    if not once:  # a letter under way is brought again, so nothing is waited for
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def tell(text: str) -> None:
        say(as_json, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    say(as_json, f"carrying between {where} and {path}" + ("" if once else f", every {every:g} s"))
    put = carry(box, site, every=every, once=once, stopped=threading.Event(), tell=tell)
    show(as_json, {"replies": put}, f"replies put: {put}")
