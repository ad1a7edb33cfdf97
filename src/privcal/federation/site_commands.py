"""`privcal site`: init, status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from privcal.console import Json, errors, human, print_json
from privcal.owner_commands import PerRow, Person, PolicyFile, left, promise

app = typer.Typer(no_args_is_help=True, help="A site of a federation: for its data owner.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder: its start-up kit.")]


@app.command()
def init(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Labelled scores: .npz, .npy, .parquet or .csv.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="All that may ever be spent; left out where the data have a ledger."),
    ] = None,
    person: Person = None,
    per_row: PerRow = False,
    policy: PolicyFile = None,
    model: Annotated[str | None, typer.Option(help="The model the scores come from.")] = None,
    asker: Annotated[
        list[str] | None,
        typer.Option(help="Who may ask, as their certificate names them; may be repeated."),
    ] = None,
    epsilon_per_request: Annotated[
        float | None, typer.Option(help="The most one question may cost.")
    ] = None,
    rows_per_person: Annotated[
        int | None, typer.Option(help="With --person: rows of a person that count.")
    ] = None,
    delay: Annotated[
        float, typer.Option(help="A reply is held until so many seconds after its question.")
    ] = 2.0,
    max_rows: Annotated[
        int | None, typer.Option(help="Declare to everyone that you never have more rows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a site up: its settings with comments, its ledger; the data are checked.

    Data that have a ledger keep it, with its rules; otherwise say what may be spent and whom it
    protects.

    Example: `privcal site init kits/hospital-1 --data hospital.parquet --person patient_id
    --epsilon 2 --model v3`
    """
    from privcal.federation.site import SETTINGS
    from privcal.federation.site import init as make
    from privcal.privacy.policy import Policy
    from privcal.sources import check_unit

    said = {
        "epsilon": epsilon,
        "epsilon_per_request": epsilon_per_request,
        "askers": asker,
        "model": model,
        "rows_per_person": rows_per_person,
    }
    rules = None
    given = {name: value for name, value in said.items() if value is not None}
    if policy is not None or given:
        rules = Policy.of(
            given, "on the command line", None if policy is None else Policy.load(policy)
        )
    if rules is not None or person is not None or per_row:
        check_unit(person, per_row)
    site = make(
        folder,
        data,
        rules,
        person=person,
        delay=delay,
        max_rows=max_rows,
        warn=lambda text: errors.print(text, soft_wrap=True),
    )
    settings = folder / "local" / SETTINGS
    human(as_json).print(
        f"settings: {settings}\nledger: {site.ledger}\nNext: privcal source check {data}, to see "
        f"what can leave; privcal federation check {folder}; then start the site.",
        soft_wrap=True,
    )
    if as_json:
        print_json({"settings": str(settings), "ledger": str(site.ledger)})


@app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """What left a site, what remains, who asked.

    Example: `privcal site status kits/hospital-1`
    """
    from privcal.federation.site import Site
    from privcal.privacy.epsilon import from_nano, to_nano
    from privcal.privacy.ledger import Ledger

    site = Site.load(folder)
    ledger = Ledger(site.ledger)
    policy, unit = ledger.policy, ledger.unit
    spent, entries = ledger.nano_spent, ledger.entries()
    facts = {
        "spent": from_nano(spent),
        "total": policy.epsilon,
        "remains": from_nano(policy.nano_total - spent) if policy.budget == "population" else None,
    }
    by_asker: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        if entry.key is not None:
            by_asker.setdefault((entry.key.asker, entry.key.campaign), []).append(
                to_nano(entry.epsilon)
            )
    table = Table(title="Who asked", box=box.SIMPLE_HEAD)
    for name in ("asker", "campaign", "questions", "ε"):
        table.add_column(name, justify="right" if name in ("questions", "ε") else "left")
    for (asker, campaign), nanos in by_asker.items():
        table.add_row(asker, campaign, str(len(nanos)), f"{from_nano(sum(nanos)):g}")
    console = human(as_json)
    if policy.budget == "population":
        console.print(f"ε {facts['spent']:g} of {facts['total']:g} is spent; {left(facts)}")
    for line in promise(policy, unit):
        console.print(line, soft_wrap=True)
    if not ledger.in_step:
        errors.print(
            "warning: the ledger is not what its high-water mark says; this site refuses until you "
            f"run privcal ledger reconcile {site.ledger}",
            soft_wrap=True,
        )
    if site.max_rows is not None and len(site.source().scores) > site.max_rows:
        errors.print(
            f"warning: there are more rows than the {site.max_rows:,} declared: answers are cut to "
            "what so many could give"
        )
    console.print(table)
    if as_json:
        print_json(
            {
                **facts,
                "unit": unit,
                "policy": policy.to_dict(),
                "in_step": ledger.in_step,
                "campaigns": [
                    {"asker": a, "campaign": c, "questions": len(n), "epsilon": from_nano(sum(n))}
                    for (a, c), n in by_asker.items()
                ],
            }
        )
