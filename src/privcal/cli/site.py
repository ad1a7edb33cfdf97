"""`privcal site`: init, add, run, status, health, metrics, approve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from privcal.cli.console import note, progress_bar, say, show, table
from privcal.cli.ledger_approvals import approve_campaign
from privcal.cli.ledger_show import warn_of_its_mark
from privcal.cli.options import Json, PerRow, Person, PolicyFile, SiteFolder, Whose, Yes
from privcal.cli.score import As, Classes, Features, Missing, Output, setup_of
from privcal.report.explain import balance, budget_of, promise
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.data.ledger import Ledger
    from privcal.data.scoring import Setup
    from privcal.transport.site.settings import Population, Scoring
    from privcal.trusted.policy import Policy


DataFile = Annotated[
    Path | None, typer.Option(help="Labelled scores: .npz, .npy, .parquet or .csv.")
]
ModelFile = Annotated[
    Path | None,
    typer.Option(help="Instead of scores: an ONNX model that scores --table at this site."),
]
TableFile = Annotated[
    Path | None, typer.Option(help="With --model-file: the table (.parquet, .csv; .npz with x).")
]
Label = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="With --table: the column of the true classes."),
]
AttachTo = Annotated[
    Path | None,
    typer.Option(
        metavar="LEDGER",
        help="With --table: the ledger, or its data, that these people have already.",
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(help="All that may ever be spent; left out where the data have a ledger."),
]
MaxRows = Annotated[
    int | None, typer.Option(help="Declare to everyone that you never have more rows.")
]


def init(
    folder: SiteFolder,
    name: Annotated[
        str | None, typer.Option(help="The site's name in the roster; by default the folder's.")
    ] = None,
    data: DataFile = None,
    model_file: ModelFile = None,
    table: TableFile = None,
    label: Label = None,
    features: Features = None,
    classes: Classes = None,
    output: Output = None,
    kind: As = None,
    missing: Missing = False,
    attach_to: AttachTo = None,
    epsilon: Epsilon = None,
    person: Person = None,
    per_row: PerRow = False,
    policy: PolicyFile = None,
    model: Annotated[str | None, typer.Option(help="The model the scores come from.")] = None,
    asker: Annotated[
        list[str] | None,
        typer.Option(help="Who may ask, as the roster names them; may be repeated."),
    ] = None,
    delay: Annotated[
        float, typer.Option(help="A reply is held until so many seconds after its question.")
    ] = 2.0,
    max_rows: MaxRows = None,
    as_json: Json = False,
) -> None:
    """Set a site up: its settings with comments, its keys, its ledger; the data are checked.

    The folder is made if it is not there. It is the site's alone: never copy its keys or its ledger.
    Data that have a ledger keep it, with its rules; otherwise say what may be spent and whom it
    protects. With a model file the site scores its own table, and again when that changes; the
    model is then called by the SHA-256 of its file, and questions about another are refused. It takes
    part in secure sums where the policy file says what must be so in them (`[secure]`).

    Examples: `privcal site init hospital-1 --data hospital.parquet --person patient_id
    --epsilon 2 --model v3`

    `privcal site init hospital-1 --model-file model.onnx --table visits.parquet --label died
    --person patient_id --epsilon 2`
    """
    from privcal.transport.keys import CARD
    from privcal.transport.site.settings import SETTINGS
    from privcal.transport.site.setup import init as make

    said = setup_of(label, features, classes, output, kind, missing)
    rows, scoring = _rows(data, model_file, table, model, said, attach_to)
    rules = _rules(
        policy,
        person,
        per_row,
        epsilon=epsilon,
        askers=asker,
        model=model,
    )
    with _scoring(scoring) as progress:
        site = make(
            folder,
            rows,
            rules,
            name=name,
            person=person,
            delay=delay,
            max_rows=max_rows,
            scoring=scoring,
            attach_to=attach_to,
            warn=note,
            progress=progress,
        )
    settings, population = folder / SETTINGS, site.populations[0]
    facts = {
        "settings": str(settings),
        "ledger": str(population.ledger),
        "model": population.model,
        "name": site.name,
        "card": str(folder / CARD),
    }
    check = f"privcal source check {rows}, to see what can leave; " if scoring is None else ""
    named = "" if scoring is None else f"model: {population.model}\n"
    show(
        as_json,
        facts,
        f"settings: {settings}\nledger: {population.ledger}\n{named}Next: {check}"
        f"send {folder / CARD} to the coordinator; privcal roster accept {folder}, when the roster "
        f"has come; then privcal site run {folder}.",
    )


def _rows(
    data: Path | None,
    model_file: Path | None,
    table: Path | None,
    model: str | None,
    setup: Setup | None,
    attach_to: Path | None,
) -> tuple[Path, Scoring | None]:
    """The data of a site, and what scores them where they are a table."""
    if data is not None:
        if attach_to is not None:
            raise InputError(
                "--attach-to is for a table; of scores say it with privcal ledger attach"
            )
        if model_file is not None or table is not None or setup is not None:
            raise InputError("give --data, or --model-file with --table and --label, not both")
        return data, None
    if model_file is None or table is None or setup is None:
        raise InputError("give the site's scores with --data; or --model-file, --table and --label")
    if model is not None:
        raise InputError("a model file has its digest as its name: leave --model out")
    from privcal.transport.site.settings import Scoring

    return table, Scoring(model_file, setup)


def add(
    folder: SiteFolder,
    data: DataFile = None,
    model: Annotated[
        str | None, typer.Option(help="With --data: the model that these scores come from.")
    ] = None,
    model_file: ModelFile = None,
    table: TableFile = None,
    label: Label = None,
    features: Features = None,
    classes: Classes = None,
    output: Output = None,
    kind: As = None,
    missing: Missing = False,
    attach_to: AttachTo = None,
    epsilon: Epsilon = None,
    person: Person = None,
    per_row: PerRow = False,
    policy: PolicyFile = None,
    max_rows: MaxRows = None,
    as_json: Json = False,
) -> None:
    """Let a site answer about another model too, from data of their own.

    Which data a question is answered from is decided by the model it names. People whose data
    have a ledger already keep it: attach the new file first (privcal ledger attach). A table that
    the site scores already keeps its ledger for the next model.

    Examples: `privcal site add hospital-1 --data other.parquet --model v4`

    `privcal site add hospital-1 --model-file v5.onnx --table visits.parquet --label died`
    """
    from privcal.transport.site.setup import add as make

    said = setup_of(label, features, classes, output, kind, missing)
    rows, scoring = _rows(data, model_file, table, model, said, attach_to)
    rules = _rules(policy, person, per_row, epsilon=epsilon)
    with _scoring(scoring) as progress:
        site = make(
            folder,
            rows,
            rules,
            model=model,
            person=person,
            max_rows=max_rows,
            scoring=scoring,
            attach_to=attach_to,
            warn=note,
            progress=progress,
        )
    made = site.populations[-1]
    facts = {"model": made.model, "ledger": str(made.ledger)}
    show(as_json, facts, f"{made.model}: answered from {rows}, ledger {made.ledger}")


@contextmanager
def _scoring(scoring: Scoring | None) -> Iterator[Callable[[int], None]]:
    """A progress bar where a table is scored."""
    with progress_bar() as bar:
        task = bar.add_task("scoring the table", total=None, visible=scoring is not None)
        yield lambda done: bar.update(task, completed=done)


def _rules(policy: Path | None, person: str | None, per_row: bool, **flags: Any) -> Policy | None:
    """The policy that was given, in a file or by flags; None if there was none."""
    from privcal.data.sources import check_unit
    from privcal.trusted.policy import Policy

    given = {name: value for name, value in flags.items() if value is not None}
    if policy is None and not given:
        if person is not None or per_row:
            check_unit(person, per_row)
        return None
    check_unit(person, per_row)
    return Policy.of(given, "on the command line", None if policy is None else Policy.load(policy))


def run(
    folder: SiteFolder,
    mailbox: Annotated[
        list[Path] | None,
        typer.Option(
            "--folder", help="A mailbox in a folder, to look into; may be repeated.", metavar="PATH"
        ),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            help="Where to listen for what carries letters from elsewhere.", metavar="PATH"
        ),
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            min=0.05,
            max=86_400,
            help="Seconds between two looks into a folder; less while letters come.",
        ),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Answer what is there now, and end.")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Print a line of JSON for each letter replied to.")
    ] = False,
) -> None:
    """Be the site, in the foreground, until stopped: for systemd, a container, or a terminal.

    It answers letters that calibrators of its roster wrote to it: in folders that it looks into, or
    brought over a local socket. It opens no port. It ends with 1 where it finds that its folder was
    put back to an older state, or that it runs twice.

    Example: `privcal site run hospital-1 --folder /srv/mailbox`
    """
    from privcal.transport.site import running
    from privcal.transport.site.settings import Site

    Site.load(folder)  # say what is missing before anything is locked
    more: dict[str, Any] = {"every": every, "once": once, "log_json": log_json}
    try:
        replied = running.run(
            folder, mailbox or (), socket, **more, tell=lambda text: say(log_json, text)
        )
    except running.Stopped as stopped:
        note(f"error: {stopped}")
        raise typer.Exit(1) from None
    say(log_json, f"replies that left: {replied:,}")


def metrics(folder: SiteFolder) -> None:
    """What whatever watches this machine may know of a site, as OpenMetrics text.

    Example: `privcal site metrics hospital-1 > /var/lib/node_exporter/privcal.prom`
    """
    from privcal.transport.site.metrics import text

    print(text(folder), end="")


def health(folder: SiteFolder, as_json: Json = False) -> None:
    """Is a site well? Exits with 1 where something keeps it from answering, or soon will.

    Example: `privcal site health hospital-1`
    """
    from privcal.transport.site.health import look

    signs = look(folder)
    columns = ("", "what", "finding")
    findings = table(columns, columns)
    for sign in signs:
        findings.add_row("ok" if sign.well else "LOOK", sign.what, sign.sentence)
    well = all(sign.well for sign in signs)
    show(as_json, {"well": well, "signs": [vars(sign) for sign in signs]}, findings)
    if not well:
        raise typer.Exit(1)


def approve(
    folder: SiteFolder,
    campaign: Annotated[str, typer.Argument(help="The campaign, as `site status` names it.")],
    asker: Whose = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a campaign ask what it waits to ask, and no more: recorded in the ledger.

    Only where the policy says `approve = true`; `privcal site status` shows what waits.

    Example: `privcal site approve hospital-1 spring-2026`
    """
    from privcal.data.ledger import Ledger
    from privcal.transport.site.settings import Site

    ledgers = {population.ledger for population in Site.load(folder).populations}
    waiting = [
        ledger
        for ledger in map(Ledger, sorted(ledgers))
        if any(terms.campaign == campaign for terms, _ in ledger.waiting())
    ]
    if not waiting:
        raise InputError(
            f"no campaign {campaign!r} waits for approval; privcal site status {folder} lists "
            "those that do"
        )
    answers = [approve_campaign(ledger, campaign, asker, yes, as_json) for ledger in waiting]
    approved = all(answers)
    show(as_json, {"campaign": campaign, "approved": approved})
    if not approved:
        raise typer.Exit(1)


def status(folder: SiteFolder, as_json: Json = False) -> None:
    """What left a site, what remains, who asked.

    Example: `privcal site status hospital-1`
    """
    from privcal.transport.site.health import ago, counted, last_status
    from privcal.transport.site.settings import Site

    site = Site.load(folder)
    process = last_status(folder)
    running = (
        f"runs, last letter {ago(process['last_letter'])}" if process else "does not run just now"
    )
    say(as_json, running)
    if process:
        say(as_json, counted(process))
    populations = [_show_population(p, site.name, as_json) for p in site.populations]
    counts = process.get("refused", {})
    show(as_json, {"running": bool(process), "refused": counts, "populations": populations})


def _show_population(population: Population, name: str, as_json: bool) -> dict[str, Any]:
    from privcal.data.ledger import Ledger

    ledger = Ledger(population.ledger)
    policy, facts = ledger.policy, budget_of(ledger)
    say(as_json, population.data.name + (f", model {population.model}" if population.model else ""))
    if facts["remains"] is not None:
        say(as_json, *balance(facts))
    say(as_json, *promise(policy, ledger.unit))
    warn_of_its_mark(ledger)
    if population.scoring is not None:
        from privcal.data.scoring.rows import check_model_file

        try:
            check_model_file(population.scoring.model_file, population.model or "")
        except InputError as error:
            note(f"warning: {error}; this site refuses until then")
    most = population.max_rows
    if most is not None and len(population.source(name).scores) > most:
        note(
            f"warning: there are more rows than the {most:,} declared: each number of an "
            "answer is cut to what so many could make it; declare more"
        )
    campaigns = _campaigns(ledger)
    waiting = ledger.waiting()
    lines = [
        f"waits for your approval: {terms.campaign}, of {terms.asker}, since {since} "
        "(privcal site approve)"
        for terms, since in waiting
    ]
    say(as_json, _who_asked(campaigns), *lines)
    return {
        **facts,
        "waiting": [{"asker": t.asker, "campaign": t.campaign} for t, _ in waiting],
        "data": str(population.data),
        "model": population.model,
        "unit": ledger.unit,
        "policy": policy.to_dict(),
        "in_step": ledger.in_step,
        "campaigns": campaigns,
    }


def _campaigns(ledger: Ledger) -> list[dict[str, Any]]:
    """What each campaign of each asker asked and spent."""
    from privcal.trusted.epsilon import from_nano, to_nano

    nanos: dict[tuple[str, str], list[int]] = {}
    for entry in ledger.entries():
        if entry.key is not None:
            asked = nanos.setdefault((entry.key.asker, entry.key.campaign), [])
            asked.append(to_nano(entry.epsilon))
    return [
        {"asker": a, "campaign": c, "questions": len(n), "epsilon": from_nano(sum(n))}
        for (a, c), n in nanos.items()
    ]


def _who_asked(campaigns: list[dict[str, Any]]) -> Table:
    columns = ("asker", "campaign", "questions", "ε")
    askers = table(columns, columns[:2], title="Who asked")
    for c in campaigns:
        askers.add_row(c["asker"], c["campaign"], str(c["questions"]), f"{c['epsilon']:g}")
    return askers
