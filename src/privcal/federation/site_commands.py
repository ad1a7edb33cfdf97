"""`privcal site`: init, status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from privcal.console import Json, human, print_json

app = typer.Typer(no_args_is_help=True, help="A site of a federation: for its data owner.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder: its start-up kit.")]


@app.command()
def init(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="Labelled scores: .npz, .npy, .parquet or .csv.")],
    epsilon: Annotated[float, typer.Option(help="All that may ever be spent on this population.")],
    model: Annotated[str | None, typer.Option(help="The model the scores come from.")] = None,
    asker: Annotated[
        list[str] | None,
        typer.Option(help="Who may ask, as their certificate names them; may be repeated."),
    ] = None,
    epsilon_per_request: Annotated[
        float | None, typer.Option(help="The most one question may cost.")
    ] = None,
    rows_per_person: Annotated[
        int, typer.Option(help="Where person ids are given: rows of a person that count.")
    ] = 1,
    delay: Annotated[
        float, typer.Option(help="A reply is held until so many seconds after its question.")
    ] = 2.0,
    max_rows: Annotated[
        int | None, typer.Option(help="Declare to everyone that you never have more rows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a site up: its settings with comments, its ledger; the data are checked.

    Example: `privcal site init kits/hospital-1 --data hospital.parquet --epsilon 2 --model v3`
    """
    from privcal.federation.site import SETTINGS
    from privcal.federation.site import init as make

    site = make(
        folder,
        data,
        epsilon,
        model=model,
        askers=None if asker is None else tuple(asker),
        epsilon_per_request=epsilon_per_request,
        rows_per_person=rows_per_person,
        delay=delay,
        max_rows=max_rows,
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
    total = min(n for n in (site.policy.nano_total, ledger.nano_total) if n is not None)
    spent, entries = ledger.nano_spent, ledger.entries()
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
    console.print(
        f"ε {from_nano(spent):g} of {from_nano(total):g} is spent; {from_nano(total - spent):g} remains"
    )
    console.print(table)
    if as_json:
        print_json(
            {
                "spent": from_nano(spent),
                "total": from_nano(total),
                "campaigns": [
                    {"asker": a, "campaign": c, "questions": len(n), "epsilon": from_nano(sum(n))}
                    for (a, c), n in by_asker.items()
                ],
            }
        )
