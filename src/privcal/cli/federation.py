"""`privcal federation`: check, demo."""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.cli.console import note, plural, show, table
from privcal.cli.federation_calibrate import Mailbox, Me, calibrate
from privcal.cli.options import Json
from privcal.trusted.errors import InputError


def check(me: Me, mailbox: Mailbox, as_json: Json = False) -> None:
    """Look at your folder and the mailbox before you ask: it costs no ε. Exits with 1 where something is wrong.

    It shows your keys and your roster, whether the mailbox can be read and written, and when the last
    letter of each site came.

    Example: `privcal federation check --as ann --mailbox /mnt/letters`
    """
    from privcal.transport.calibrator import inspection

    findings = inspection.look(me, mailbox)
    columns = ("", "what", "finding")
    shown = table(columns, columns)
    for one in findings:
        shown.add_row("ok" if one.well else "BAD", one.what, one.sentence)
    heard = {
        name: None if when is None else datetime.fromtimestamp(when, UTC).isoformat()
        for name, when in inspection.heard(me).items()
    }
    letters = table(("site", "last letter"), ("site", "last letter"))
    for name, day in heard.items():
        letters.add_row(name, day or "none came yet")
    bad = sum(not one.well for one in findings)
    verdict = f"{plural(bad, 'thing')} to put right" if bad else "ready to ask"
    facts = {"well": not bad, "findings": [vars(one) for one in findings], "last_letters": heard}
    show(as_json, facts, shown, letters, verdict)
    if bad:
        raise typer.Exit(1)


def demo(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where to make it; a new folder otherwise.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Try a federation: four hospitals with bundled data, a folder as mailbox, one calibration.

    Each hospital is a process of its own, as it would be on its own machine. All of them end with
    the command; their folders stay, to look at and to go on with.

    Example: `privcal federation demo --dir demo`
    """
    from privcal.transport import demo as example

    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="privcal-demo-")) / "federation"
    if folder.exists():
        raise InputError(f"{folder} exists already; give --dir a new folder")
    began = time.monotonic()
    example.make(folder)
    me, box, out = folder / example.CALIBRATOR, folder / example.MAILBOX, folder / "map.json"
    asking: dict[str, Any] = {"me": me, "mailbox": str(box), "model": example.MODEL, "out": out}
    with example.running(folder) as sites:
        up = time.monotonic() - began
        note(f"{plural(len(sites), 'hospital')} in {folder}, up after {up:.1f} s")
        context.invoke(calibrate, **asking, every=example.EVERY, as_json=as_json)
    note(f"done after {time.monotonic() - began:.1f} s; all processes have ended")
    note("to go on, start hospitals again, each in a terminal of its own, and ask:")
    for name in example.SITES:
        note(f"  privcal site run {folder / name} --folder {box}")
    note(
        f"  privcal federation calibrate --as {me} --mailbox {box} --model {example.MODEL} "
        f"--aggregation secure --out {folder / 'secure.json'}"
    )
    note(f"  privcal site status {folder / example.SITES[0]}  (what left it, and what remains)")
