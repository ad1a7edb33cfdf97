"""The command line: a table of contents. Each command is a function in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

import privcal
from privcal.cli import (
    data,
    exits,
    federation,
    ledger,
    ledger_approvals,
    ledger_show,
    site,
    sketch,
    source,
    study,
)
from privcal.cli.advise import command as advise
from privcal.cli.apply import apply
from privcal.cli.audit import audit
from privcal.cli.calibrate import calibrate
from privcal.cli.demo import demo
from privcal.cli.evaluate import evaluate
from privcal.cli.fit import fit
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
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"privcal {privcal.__version__}")
        raise typer.Exit


app.command("demo")(demo)
app.command("calibrate")(calibrate)
app.command("apply")(apply)
app.command("evaluate")(evaluate)
app.command("fit")(fit)
app.command("advise")(advise)
app.command("audit")(audit)

ledgers = typer.Typer(
    no_args_is_help=True, help="A source's ledger: its rules, what left, and at what cost."
)
ledgers.command("create")(ledger.create)
ledgers.command("show")(ledger_show.show_ledger)
ledgers.command("policy")(ledger.policy)
ledgers.command("attach")(ledger.attach)
ledgers.command("reconcile")(ledger.reconcile)
ledgers.command("waiting")(ledger_approvals.waiting)
ledgers.command("approve")(ledger_approvals.approve)
ledgers.command("export")(ledger.export)
app.add_typer(ledgers, name="ledger")

sources = typer.Typer(no_args_is_help=True, help="For data owners.")
sources.callback()(lambda: None)  # a group, though it has one command
sources.command("check")(source.check)
app.add_typer(sources, name="source")

sketches = typer.Typer(
    no_args_is_help=True,
    help="A sketch: noisy answers that were saved. Merging and reading them costs no privacy.",
)
sketches.command("merge")(sketch.merge)
sketches.command("show")(sketch.show_sketch)
sketches.command("fit")(sketch.fit)
app.add_typer(sketches, name="sketch")

app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation", callback=need_posix)
app.add_typer(site.app, name="site", callback=need_posix)


def main() -> None:
    """The entry point of the package."""
    exits.run(app)
