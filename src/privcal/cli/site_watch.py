"""`privcal site watch` and `card`: a site that takes part by mail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from privcal.cli.console import plural, say, show
from privcal.cli.options import Json, SiteFolder
from privcal.data.files import check_outputs, replacing
from privcal.transport.federation import need_flare
from privcal.trusted.errors import InputError


def watch(
    folder: SiteFolder,
    mail: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Where questions appear; answers are written to answers/ there."
        ),
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Answer what is there now, and end.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=1, max=86_400, help="Seconds between two looks at the folder.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Answer signed questions that appear in a folder, unattended, until stopped.

    However files get into the folder and out of it is yours to choose: nothing listens here, and
    nothing arrives but a question. Only those are answered that a calibrator of your federation
    signed for this site and that your policy admits, from its data, by its ledger.

    Example: `privcal site watch kits/hospital-1 /srv/shared/questions`
    """
    need_flare()
    from privcal.transport.federation.site.settings import Site
    from privcal.transport.mail.watch import watch as begin

    Site.load(folder)  # say what is missing before anything is read
    lines: list[str] = []

    def tell(text: str) -> None:
        if once:
            lines.append(text)
        say(as_json, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    say(as_json, f"watching {mail}" if not once else f"looking at {mail}")
    written = begin(folder, mail, every=every, once=once, tell=tell)
    facts = {"written": written, "told": lines}
    show(as_json, facts, f"{plural(written, 'answer')} written")


def card(
    folder: SiteFolder,
    out: Annotated[Path, typer.Option(help="Where to write the card, to be sent to a calibrator.")],
    as_json: Json = False,
) -> None:
    """A site's card: its name and public keys, for a calibrator whom no server tells of it.

    The calibrator takes it with `privcal federation roster KIT card.json`; compare the roster's
    digest by telephone.

    Example: `privcal site card kits/hospital-1 --out hospital-1.card.json`
    """
    need_flare()
    from privcal.transport.federation.site.roster import own_card

    check_outputs([out], [])
    made = own_card(folder)
    if out.exists() and out.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{out} is a file of the site's own; choose another name for the card")
    with replacing(out) as part:
        part.write_text(made.text + "\n", "ascii")
    show(as_json, {"site": made.site, "out": str(out)}, f"the card of {made.site}: {out}")
