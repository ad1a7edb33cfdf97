"""`privcal federation`: init, check, roster, serve, up, down."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.cli.console import note, plural, show, table
from privcal.cli.federation_members import Kits
from privcal.cli.options import Json
from privcal.transport.federation import need_flare
from privcal.trusted.errors import InputError


def init(
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT.toml", help="Who takes part; see below.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the kits.")],
    as_json: Json = False,
) -> None:
    """Make a closed start-up kit for each participant.

    The project file has a `name`; `[server]` with `host` and `port`; for each data owner a
    `[[sites]]` with `name` and `org`; for each who may ask a `[[calibrators]]` with `name`
    (an e-mail address) and `org`. Optionally `[certificates]` with `days`, for which a
    participant's certificate is good (730), and `authority_days`, after which all kits must be
    made anew (3650).

    Give each participant their own folder, over a way that nobody else reads. The folder `ca`
    is for none of them.

    Example: `privcal federation init project.toml --out kits`
    """
    need_flare()
    from privcal.transport.federation.authority.kits import init as make

    made = make(project, out)
    kits = [str(folder) for folder in made]
    ca = f"{out / 'ca'} holds the key that makes certificates: keep it offline, see its README.txt"
    show(as_json, {"kits": kits, "ca": str(out / "ca")}, *kits, ca)


def check(
    kit: Annotated[
        Path, typer.Argument(metavar="KIT", help="A participant's folder, new or in use.")
    ],
    as_json: Json = False,
) -> None:
    """Is a participant's folder closed? Exits with 1 where it is not.

    Run it when a kit arrives, when a site was set up, and now and then.

    Example: `privcal federation check kits/hospital-1`
    """
    need_flare()
    from privcal.transport.federation.inspection import check as inspect
    from privcal.transport.federation.inspection import closed

    findings = inspect(kit)
    columns = ("", "rule", "finding")
    rules = table(columns, columns)
    for finding in findings:
        remedy = f"\nwhat to do: {finding.remedy}" if finding.remedy else ""
        state = "OPEN" if not finding.ok else "SOON" if finding.warn else "ok"
        rules.add_row(state, finding.rule, finding.sentence + remedy)
    number = sum(not finding.ok for finding in findings)
    verdict = "closed" if not number else f"open: {number} of {len(findings)} rules"
    facts = {"kit": str(kit), "closed": closed(findings), "findings": list(map(asdict, findings))}
    show(as_json, facts, rules, f"{kit} is {verdict}")
    if number:
        raise typer.Exit(1)


def roster(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Your folder, as a calibrator.")],
    card: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CARD]...",
            help="Cards that sites sent (privcal site card); without, sites that are connected.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write it here too, to be sent to the sites' owners.")
    ] = None,
    new_keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Take the new keys of this site: after you asked its owner. May be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Gather the keys of the sites that are connected, or sent their cards, into your roster.

    Sites make their keys themselves; replies are believed only if they are signed with them.
    Compare the digest with the sites' owners over the phone: it is the same wherever nobody
    meddled. Run it again when a site has joined or made new keys.

    Example: `privcal federation roster kits/me@lab.org --out roster.json`
    """
    need_flare()
    from privcal.cli.site_roster import lines_of
    from privcal.transport.federation.calibrator.roster import gather, pin
    from privcal.transport.federation.shared.roster import Card, stored_roster

    cards = list(map(Card.load, card)) if card else gather(kit, note)
    changes = pin(kit, cards, rekeyed=new_keys or ())
    pinned = stored_roster(kit)
    if out is not None:
        pinned.save(out)
    facts = {"digest": pinned.digest, "sites": [card.site for card in pinned.cards]}
    show(as_json, {**facts, **vars(changes)}, *lines_of(pinned, changes))


def serve(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The server's folder.")],
) -> None:
    """Be the federation's server, in the foreground, until stopped.

    It carries messages between calibrators and sites and can read no answer.

    Example: `privcal federation serve kits/fl.example.org`
    """
    need_flare()
    from privcal.transport.federation.shared.process import become

    become("server", kit)


def up(
    kits: Annotated[
        Path | None, typer.Argument(metavar="[KITS]", help="The folder that init made.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Make a federation with bundled data and start it.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="With --demo: where; a new folder otherwise.")
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Only this site, and no server; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a federation's server and sites on this machine, and wait until they are connected.

    What runs already is left alone. With --demo: a server, four sites with 60 rows each of
    bundled data, and a calibrator.

    Examples: `privcal federation up kits`, `privcal federation up --demo`
    """
    need_flare()
    from privcal.transport.federation.one_machine import demo as example
    from privcal.transport.federation.one_machine import processes

    if demo == (kits is not None) or (folder is not None and not demo):
        raise InputError("say either a folder of kits, or --demo (and with it --dir, if you like)")
    if kits is None:
        kits = (
            folder if folder is not None else Path(tempfile.mkdtemp(prefix="privcal-federation-"))
        )
        if not (kits / "federation.json").exists():
            example.make(kits)
    pids = processes.up(kits, sites=site, server=not site)
    lines = [f"{name} runs (process {pid})" for name, pid in pids.items()]
    facts: dict[str, Any] = {"kits": str(kits), "processes": pids}
    if demo:
        facts["calibrator"] = str(kits / example.CALIBRATOR)
        lines.append(
            f"now: privcal calibrate --federation {kits / example.CALIBRATOR} "
            f"--model {example.MODEL} --epsilon 1 --out map.json"
        )
    show(as_json, facts, *lines, f"stop with: privcal federation down {kits}")


def down(kits: Kits = Path(), as_json: Json = False) -> None:
    """Stop a federation's server and sites on this machine; nothing of them is left.

    Example: `privcal federation down kits`
    """
    need_flare()
    from privcal.transport.federation.one_machine import processes

    count = processes.down(kits, note)
    sentence = f"{plural(count, 'process', 'es')} stopped" if count else "nothing was running"
    show(as_json, {"kits": str(kits), "stopped": count}, sentence)
