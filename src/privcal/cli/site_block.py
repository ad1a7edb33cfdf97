"""`privcal site block` and `unblock`: who may not write to a site, whatever a roster says."""

from __future__ import annotations

from typing import Annotated

import typer

from privcal.cli.console import show
from privcal.cli.options import Json, SiteFolder

Name = Annotated[str, typer.Argument(metavar="NAME", help="The party's name in the roster.")]


def block(folder: SiteFolder, name: Name, as_json: Json = False) -> None:
    """Let no letter of a party in any more: at once, at this site alone, whatever a roster says.

    Use it as soon as somebody calls to say that a calibrator's key was stolen.

    Example: `privcal site block hospital-1 ann@lab.org`
    """
    from privcal.transport.standing import Standing

    standing = Standing(folder)
    standing.block(name)
    show(as_json, {"blocked": standing.blocked}, f"{name} is blocked at {folder}")


def unblock(folder: SiteFolder, name: Name, as_json: Json = False) -> None:
    """Let the letters of a party in again.

    Example: `privcal site unblock hospital-1 ann@lab.org`
    """
    from privcal.transport.standing import Standing

    standing = Standing(folder)
    standing.unblock(name)
    show(as_json, {"blocked": standing.blocked}, f"{name} may write to {folder} again")
