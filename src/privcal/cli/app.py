"""The command line: a table of contents. Each command is a function in a file of its own.

`later` names that function as "file:function", with the first line of its docstring: the file is
imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import privcal
from privcal.calibration import compiled
from privcal.cli import exits
from privcal.cli.later import SETTINGS, Command, group, later
from privcal.cli.systems import need_posix

app = typer.Typer(
    cls=exits.Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
    help="Calibrated confidence from private data: correct a classifier's confidence from "
    "differentially private answers of many sources.",
    epilog="Start with `privcal demo`. Every command has `--help` with examples.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"privcal {privcal.__version__} (kernel: {compiled.in_use()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,  # before typer looks at anything else, for which it imports a lot
            help="Print the version and the kernel in use.",
        ),
    ] = False,
) -> None:
    """Every command comes after this, which does nothing."""


def _group(
    name: str,
    help: str,
    commands: dict[str, Command],
    *,
    under: typer.Typer = app,
    before: Callable[[], None] = lambda: None,
    epilog: str | None = None,
) -> typer.Typer:
    """Commands under a common word; `before` runs before each of them."""
    made = group(help, commands, epilog)
    under.add_typer(made, name=name, callback=before)
    return made


_COMMANDS = {
    "demo": later(
        "demo:demo",
        "Run every method on bundled real data, through real sources with real ledgers.",
    ),
    "score": later(
        "score:score",
        "Run a table through a model: labelled scores, which calibrate, advise and the others read.",
    ),
    "calibrate": later(
        "calibrate:calibrate",
        "Recalibrate from the private answers of many sources, and write the map.",
    ),
    "apply": later(
        "apply:apply",
        "Apply a map: predicted class and calibrated confidence of each row, in the same order.",
    ),
    "onnx": later(
        "onnx:onnx",
        "Write a map as ONNX, to run wherever a model does: alone, or as part of the model's own file.",
    ),
    "thresholds": later(
        "thresholds:thresholds",
        "When to answer at all: for each confidence, the share of rows above it and the errors to expect.",
    ),
    "evaluate": later(
        "evaluate:evaluate",
        "Measure calibration exactly, on data you may look at: no privacy is involved.",
    ),
    "refine": later(
        "refine:refine",
        "Fit a shared map to your own rows as well. Nothing leaves, so it costs no ε.",
    ),
    "fit": later(
        "fit:fit", "The exact temperature, without privacy: the rows decide every digit of it."
    ),
    "advise": later(
        "advise:command",
        "Plan before anybody is asked: what to expect, which method, which ε, how many sources.",
    ),
    "post": later(
        "post:post",
        "Carry letters between a mailbox and a site, until stopped; or check the mailbox.",
    ),
    "audit": later(
        "audit:audit",
        "Try to break the privacy promises: does any answer tell more than its ε allows?",
    ),
}
for _word, _command in _COMMANDS.items():
    app.command(_word)(_command)

_group(
    "ledger",
    "A source's ledger: its rules, what left, and at what cost.",
    {
        "create": later(
            "ledger:create",
            "Make the ledger of some data, once: whom it protects, and the owner's rules.",
        ),
        "show": later(
            "ledger_show:show_ledger", "What left, when, to whom, at what cost, and what remains."
        ),
        "policy": later(
            "ledger:policy",
            "Show the rules that are kept in a ledger, or change them: the owner's decision, recorded.",
        ),
        "attach": later(
            "ledger:attach",
            "Say that other data are about the same people: all charges add up in this one ledger.",
        ),
        "reconcile": later(
            "ledger:reconcile",
            "After a restore or a move to another machine: write off what the file does not know was spent.",
        ),
        "waiting": later(
            "ledger_approvals:waiting",
            "The campaigns that wait for your approval: who asks what, for how much.",
        ),
        "approve": later(
            "ledger_approvals:approve",
            "Let a campaign ask what it waits to ask, and no more: recorded in the ledger.",
        ),
        "release": later(
            "ledger_approvals:release",
            "Give back the budget that a campaign has reserved and not used, before its reservation ends.",
        ),
        "export": later(
            "ledger:export",
            "Every entry as one line of JSON, for an audit system; the last line is the head of the chain.",
        ),
    },
)
_group(
    "source",
    "For data owners.",
    {
        "check": later(
            "source:check",
            "Read the data and explain, in plain words, what can leave and what it can tell.",
        ),
        "answer": later(
            "source_answer:answer",
            "Answer a question that came by mail: first see what it asks, then say yes or no.",
        ),
    },
)
_group(
    "campaign",
    "A campaign: described for approval, or by mail, in files.",
    {
        "new": later(
            "campaign:new",
            "Begin a campaign by mail: write the question that each data owner answers with a file.",
        ),
        "describe": later(
            "campaign_describe:describe",
            "What will leave each site, why that is acceptable, and what it costs: for approval.",
        ),
    },
)
_group(
    "sketch",
    "A sketch: noisy answers that were saved. Merging and reading them costs no privacy.",
    {
        "merge": later(
            "sketch:merge", "Put the answers of several sketches together. An answer counts once."
        ),
        "show": later(
            "sketch:show_sketch",
            "What is in a sketch: the question, the answers, ε at each source, the noisy totals.",
        ),
        "prior": later(
            "sketch_prior:prior",
            "The map that a sketch gives before any answer: it needs no data and costs no ε.",
        ),
        "fit": later(
            "sketch:fit", "The map that a sketch gives, and how good confidence is estimated to be."
        ),
    },
)
_group(
    "study",
    "The paper's benchmark, simulated: run it, and read it as tables, figures and a report.",
    {
        "run": later(
            "study:run",
            "Run every method over every shift and setting, many times, and measure it.",
        ),
        "table": later(
            "study:table",
            "The paper's tables, with its own figures beside a study that is like its own.",
        ),
        "figures": later(
            "study:figures",
            "Three panels for each shift (sources, samples, ε), and one overview, as PNG and SVG.",
        ),
        "report": later(
            "study:page",
            "One HTML page: pictures to choose from, tables to sort, and the claims of the paper's own study.",
        ),
    },
)
_group(
    "data",
    "From images to logits: fetch, train, corrupt, and write the archives a study reads.",
    {
        "fetch": later(
            "data:fetch",
            "Get a data set or the photographs of frost, check them, and keep them for later commands.",
        ),
        "train": later("data:train", "Train a network from images, by a recipe."),
        "logits": later(
            "data_logits:logits",
            "Ask a network about the test images, clean and corrupted, and write what it says.",
        ),
        "pack": later(
            "data_pack:pack",
            "Pack logits that were computed elsewhere into an archive that a study reads.",
        ),
        "check": later(
            "data_check:check",
            "Accuracy and calibration error of an archive under each shift, beside the paper's.",
        ),
        "corruptions": later(
            "data:sheet",
            "A contact sheet of all 15 corruptions at all 5 severities. Needs torch; a few seconds.",
        ),
    },
    epilog="From nothing to the paper's tables: `privcal data fetch cifar10`, `privcal data train "
    "cifar10`, `privcal data logits`, `privcal study run`.",
)
_group(
    "federation",
    "Calibrate over letters: each data owner runs a site, and whatever carries letters is trusted with nothing.",
    {
        "calibrate": later(
            "federation_calibrate:calibrate",
            "Recalibrate from the private answers of a federation's sites, and write the map.",
        ),
        "check": later(
            "federation:check",
            "Look at your folder and the mailbox before you ask: it costs no ε. Exits with 1 where something is wrong.",
        ),
        "demo": later(
            "federation:demo",
            "Try a federation: four hospitals with bundled data, a folder as mailbox, one calibration.",
        ),
    },
    before=need_posix,
)
_group(
    "site",
    "A site of a federation: for its data owner.",
    {
        "init": later(
            "site:init",
            "Set a site up: its settings with comments, its keys, its ledger; the data are checked.",
        ),
        "add": later(
            "site:add", "Let a site answer about another model too, from data of their own."
        ),
        "run": later(
            "site:run",
            "Be the site, in the foreground, until stopped: for systemd, a container, or a terminal.",
        ),
        "health": later(
            "site:health",
            "Is a site well? Exits with 1 where something keeps it from answering, or soon will.",
        ),
        "approve": later(
            "site:approve",
            "Let a campaign ask what it waits to ask, and no more: recorded in the ledger.",
        ),
        "status": later("site:status", "What left a site, what remains, who asked."),
        "metrics": later(
            "site:metrics",
            "What whatever watches this machine may know of a site, as OpenMetrics text.",
        ),
        "block": later(
            "site_block:block",
            "Let no letter of a party in any more: at once, at this site alone, whatever a roster says.",
        ),
        "unblock": later("site_block:unblock", "Let the letters of a party in again."),
    },
    before=need_posix,
)
_group(
    "keys",
    "The keys of a site or a calibrator, which it makes itself and which never leave it.",
    {
        "make": later(
            "keys:make", "Make the keys of a party, which never leave its folder, and its card."
        ),
        "card": later(
            "keys:card",
            "Write a party's card: its name and public keys, to be sent to the coordinator.",
        ),
        "rotate": later(
            "keys:rotate", "Make a new sealing key in place of the old one, and a new card."
        ),
        "destroy": later(
            "keys:destroy",
            "Overwrite and remove a party's keys. It can answer and ask nobody until it has new ones.",
        ),
    },
    before=need_posix,
)
_group(
    "roster",
    "Who takes part in a federation, with the keys that each party made itself.",
    {
        "make": later(
            "roster:make",
            "Make the first roster of a new federation from the parties' cards and your own.",
        ),
        "next": later(
            "roster:following",
            "Make the roster that follows another: without some parties, or with new cards.",
        ),
        "sign": later(
            "roster:sign", "Sign a roster as its second coordinator. The digest stays the same."
        ),
        "show": later(
            "roster:show_roster",
            "The parties of a roster with their IDs, its dates and its digest.",
        ),
        "accept": later(
            "roster:accept",
            "Take a roster: from now on this party goes by it. It prints what changed.",
        ),
    },
    before=need_posix,
)


def main() -> None:
    """The entry point of the package."""
    exits.run(app)
