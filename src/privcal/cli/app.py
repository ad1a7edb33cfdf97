"""The command line: a table of contents. Each command is a function in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import privcal
from privcal import compiled
from privcal.cli import (
    campaign,
    data,
    data_check,
    data_logits,
    data_pack,
    exits,
    federation,
    federation_members,
    ledger,
    ledger_approvals,
    ledger_show,
    site,
    site_roster,
    site_watch,
    sketch,
    source,
    source_answer,
    study,
)
from privcal.cli.advise import command as advise
from privcal.cli.apply import apply
from privcal.cli.audit import audit
from privcal.cli.calibrate import calibrate
from privcal.cli.demo import demo
from privcal.cli.evaluate import evaluate
from privcal.cli.fit import fit
from privcal.cli.refine import refine
from privcal.cli.systems import need_posix

app = typer.Typer(
    cls=exits.Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Calibrated confidence from private data: correct a classifier's confidence from "
    "differentially private answers of many sources.",
    epilog="Start with `privcal demo`. Every command has `--help` with examples.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and the kernel in use.")
    ] = False,
) -> None:
    if version:
        print(f"privcal {privcal.__version__} (kernel: {compiled.in_use()})")
        raise typer.Exit


app.command("demo")(demo)
app.command("calibrate")(calibrate)
app.command("apply")(apply)
app.command("evaluate")(evaluate)
app.command("refine")(refine)
app.command("fit")(fit)
app.command("advise")(advise)
app.command("audit")(audit)


def _group(
    name: str,
    help: str,
    commands: dict[str, Callable[..., None]],
    *,
    under: typer.Typer = app,
    before: Callable[[], None] = lambda: None,
    epilog: str | None = None,
) -> typer.Typer:
    """Commands under a common word; `before` runs before each of them."""
    group = typer.Typer(no_args_is_help=True, help=help, epilog=epilog)
    for word, command in commands.items():
        group.command(word)(command)
    under.add_typer(group, name=name, callback=before)
    return group


_group(
    "ledger",
    "A source's ledger: its rules, what left, and at what cost.",
    {
        "create": ledger.create,
        "show": ledger_show.show_ledger,
        "policy": ledger.policy,
        "attach": ledger.attach,
        "reconcile": ledger.reconcile,
        "waiting": ledger_approvals.waiting,
        "approve": ledger_approvals.approve,
        "export": ledger.export,
    },
)
_group(
    "source",
    "For data owners.",
    {"check": source.check, "answer": source_answer.answer},
)
_group(
    "campaign",
    "A campaign by mail: questions and answers in files, and no server.",
    {"new": campaign.new},
)
_group(
    "sketch",
    "A sketch: noisy answers that were saved. Merging and reading them costs no privacy.",
    {"merge": sketch.merge, "show": sketch.show_sketch, "fit": sketch.fit},
)
_group(
    "study",
    "The paper's benchmark, simulated: run it, and read it as tables, figures and a report.",
    {
        "run": study.run,
        "table": study.table,
        "figures": study.figures,
        "report": study.report,
    },
)
_group(
    "data",
    "From images to logits: fetch, train, corrupt, and write the archives a study reads.",
    {
        "fetch": data.fetch,
        "train": data.train,
        "logits": data_logits.logits,
        "pack": data_pack.pack,
        "check": data_check.check,
        "corruptions": data.sheet,
    },
    epilog="From nothing to the paper's tables: `privcal data fetch cifar10`, `privcal data train "
    "cifar10`, `privcal data logits`, `privcal study run`.",
)
_group(
    "federation",
    "Calibrate over NVIDIA FLARE: each data owner runs a site that trusts nobody.",
    {
        "init": federation.init,
        "check": federation.check,
        "roster": federation.roster,
        "serve": federation.serve,
        "up": federation.up,
        "down": federation.down,
        "add": federation_members.add,
        "renew": federation_members.renew,
        "revoke": federation_members.revoke,
        "revocations": federation_members.revocations,
    },
    before=need_posix,
)
_site = _group(
    "site",
    "A site of a federation: for its data owner.",
    {
        "init": site.init,
        "add": site.add,
        "run": site.run,
        "watch": site_watch.watch,
        "card": site_watch.card,
        "health": site.health,
        "approve": site.approve,
        "status": site.status,
    },
    before=need_posix,
)
_group(
    "roster",
    "The sites of a federation with the keys that each made itself.",
    {"show": site_roster.show_roster, "accept": site_roster.accept},
    under=_site,
)
_group(
    "keys",
    "A site's own keys, which never leave it.",
    {"rotate": site_roster.rotate, "destroy": site_roster.destroy},
    under=_site,
)


def main() -> None:
    """The entry point of the package."""
    exits.run(app)
