"""`privcal federation`: add, renew, revoke, revocations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privcal.cli.console import show
from privcal.cli.options import Json
from privcal.transport.federation import need_flare

Kits = Annotated[
    Path, typer.Argument(metavar="KITS", help="The folder that `privcal federation init` made.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The participant, as its folder.")]
Ca = Annotated[
    Path | None, typer.Option("--ca", help="The authority's folder, where it is not KITS/ca.")
]


def add(
    kits: Kits,
    org: Annotated[str, typer.Option(help="Its organisation.")],
    site: Annotated[str | None, typer.Option(help="The name of a new site.")] = None,
    calibrator: Annotated[
        str | None, typer.Option(help="The e-mail address of a new calibrator.")
    ] = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Make a kit for a site or a calibrator who joins later.

    Nothing changes for the others, and nobody needs to be restarted.

    Example: `privcal federation add kits --site hospital-9 --org hospital_9`
    """
    need_flare()
    from privcal.transport.federation.authority.kits import add as make

    folder = make(kits, site=site, calibrator=calibrator, org=org, ca=ca)
    show(as_json, {"kit": str(folder)}, str(folder))


def renew(
    kits: Kits,
    name: Name,
    out: Annotated[Path, typer.Option(help="A new folder for the two files.")],
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Make a new key and certificate for a participant, before the old ones run out.

    Give the two files to the participant, over a way that nobody else reads: they replace those of
    the same names in `startup/`, and hold from the next start. The old ones stay good until they
    run out, unless you revoke them (`privcal federation revoke --old-keys`).

    Example: `privcal federation renew kits hospital-1 --out renewed`
    """
    need_flare()
    from privcal.transport.federation.authority.kits import renew as make

    until = make(kits, name, out, ca=ca)
    show(
        as_json,
        {"name": name, "folder": str(out), "until": until.isoformat()},
        f"{out}: a key and a certificate for {name}, until {until:%Y-%m-%d}; both go into its "
        "startup/. The old ones stay good until they run out or are revoked.",
    )


def revoke(
    kits: Kits,
    name: Name,
    old_keys: Annotated[
        bool,
        typer.Option("--old-keys", help="Not the name: its keys but the newest, after a `renew`."),
    ] = False,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Sign a list on which a participant, or its older keys, are revoked.

    A revoked name is out for good. Where a key was stolen, renew it, then revoke with --old-keys:
    the name goes on with the new key. The list holds for whoever has installed it
    (`privcal federation revocations`): send it to the server, every site and every calibrator.

    Examples: `privcal federation revoke kits ann@lab.org`,
    `privcal federation revoke kits hospital-1 --old-keys`
    """
    need_flare()
    from privcal.transport.federation.authority.kits import revoke as make

    path = make(kits, name, old_keys=old_keys, ca=ca)
    show(
        as_json,
        {"name": name, "old_keys": old_keys, "list": str(path)},
        f"{path}: to be installed by everyone, with privcal federation revocations",
    )


def revocations(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A participant's folder, in use.")],
    revoked: Annotated[Path, typer.Argument(metavar="revoked.json", help="The list you got.")],
    as_json: Json = False,
) -> None:
    """Install the list of those who are revoked; it holds at once.

    It is taken only if the authority of this kit signed it, and if it is not older than the one
    that is there.

    Example: `privcal federation revocations kits/hospital-1 revoked.json`
    """
    need_flare()
    from privcal.transport.federation.shared.revocations import install

    installed = install(kit, revoked)
    names, keys = sorted(installed.names), sorted(installed.keys)
    show(
        as_json,
        {"number": installed.number, "time": installed.time, "names": names, "keys": keys},
        f"list {installed.number} of {installed.time}: {len(names)} names and {len(keys)} keys are "
        "revoked",
    )
