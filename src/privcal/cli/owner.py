"""For data owners: `privcal ledger` and `privcal source`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

import privcal
from privcal.cli.console import Json, errors, human, print_json
from privcal.errors import InputError, Refused

if TYPE_CHECKING:
    from rich.console import Console

    from privcal.privacy.approvals import Proposal
    from privcal.privacy.chain import Entry
    from privcal.privacy.ledger import Ledger
    from privcal.privacy.policy import Policy

ledger_app = typer.Typer(
    no_args_is_help=True, help="A source's ledger: its rules, what left, and at what cost."
)
source_app = typer.Typer(no_args_is_help=True, help="For data owners.")

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="A ledger, or its data.")]
PolicyFile = Annotated[Path | None, typer.Option("--policy", help="The owner's rules (TOML).")]
Person = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column of person ids: all rows of a person are protected."
    ),
]
PerRow = Annotated[
    bool, typer.Option("--per-row", help="Each row is a person of its own, and protected as one.")
]
SourceColumn = Annotated[
    str | None, typer.Option(help="A column that splits each table into sources.")
]
SourceList = Annotated[
    Path | None,
    typer.Option(
        help="With --source-column: the public list of sources, one a line. Those without rows "
        "answer all the same, rows of others are left out."
    ),
]
Whose = Annotated[str | None, typer.Option(help="Whose, where several askers use that name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Approve without being asked.")]


def read_list(path: Path | None) -> list[str] | None:
    """The names in a file, one a line."""
    if path is None:
        return None
    try:
        names = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the list of sources {path}: {why}") from None
    names = [name for name in names if name]
    if not names or len(set(names)) < len(names):
        raise InputError(f"{path} must name each source once, one a line")
    return names


# --- ledgers -----------------------------------------------------------------------------


@ledger_app.command("create")
def ledger_create(
    data: Annotated[Path, typer.Argument(help="The scores that it is for.")],
    person: Person = None,
    per_row: PerRow = False,
    policy: PolicyFile = None,
    epsilon: Annotated[
        float | None, typer.Option(help="All that may ever be spent (or say it in the policy).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the source is called in what leaves it.")
    ] = None,
    ledger_dir: Annotated[
        Path | None, typer.Option(help="Folder for it; by default beside the data.")
    ] = None,
    source_column: SourceColumn = None,
    source_list: SourceList = None,
    as_json: Json = False,
) -> None:
    """Make the ledger of some data, once: whom it protects, and the owner's rules.

    Nothing is answered without one. Where a ledger at its place was lost, what that had spent is
    carried over.

    Examples:

    `privcal ledger create hospital.parquet --person patient_id --epsilon 2`

    `privcal ledger create hospital.npz --per-row --policy policy.toml --name "St. Anna"`

    `privcal ledger create icu.csv --source-column hospital --person person`
    """
    if name is not None and source_column is not None:
        raise InputError("--name is for one source; with --source-column each has its value's name")
    made = privcal.create_ledgers(
        data,
        _rules(policy, epsilon),
        person=person,
        per_row=per_row,
        name=name,
        ledger_dir=ledger_dir,
        source_column=source_column,
        source_names=read_list(source_list),
        tell=lambda text: errors.print(text, soft_wrap=True),
    )
    console = human(as_json)
    first = made[0]
    for ledger in made:
        console.print(f"created {ledger.path}", soft_wrap=True)
        if carried := ledger.nano_spent:
            console.print(f"epsilon {carried / 1e9:g} carried over from a lost ledger")
    for line in promise(first.policy, first.unit):
        console.print(line, soft_wrap=True)
    if as_json:
        print_json({"ledgers": [_facts(ledger) for ledger in made]})


@ledger_app.command("show")
def ledger_show(file: LedgerFile, as_json: Json = False) -> None:
    """What left, when, to whom, at what cost, and what remains.

    Example: `privcal ledger show hospital.npz.ledger`
    """
    ledger = find_ledger(file)
    entries = [entry for entry in ledger.entries() if entry.kind != "persons"]
    facts = _facts(ledger)
    table = Table(title=str(ledger.path), box=box.SIMPLE_HEAD)
    for column in ("time (UTC)", "asker and request", "what", "ε", ""):
        table.add_column(
            column,
            justify="right" if column == "ε" else "left",
            no_wrap=column == "time (UTC)",
            overflow="fold",
        )
    for entry in entries:
        table.add_row(
            entry.time[:16].replace("T", " "),
            f"{entry.key.asker} {entry.key}" if entry.key else "(owner)",
            _readable(entry),
            f"{entry.epsilon:.6g}" if entry.epsilon else "",
            "" if entry.answered or not entry.key else "lost",
        )
    console = human(as_json)
    console.print(table)
    for line in promise(ledger.policy, ledger.unit):
        console.print(line, soft_wrap=True)
    persons = _persons(ledger)
    if persons is None:
        console.print(f"epsilon spent: {facts['spent']:g}; {left(facts)}")
    else:
        console.print(
            f"{persons['left']:,} of {persons['all']:,} persons can still be asked about "
            "(this number is for you: it never leaves)"
        )
    for one in ledger.reserved():
        console.print(
            f"reserved now: epsilon {one.nano / 1e9:g} for campaign {one.campaign} of {one.asker}",
            soft_wrap=True,
        )
    if waiting := len(ledger.waiting()):
        console.print(f"waiting for your approval: {waiting} (privcal ledger waiting {file})")
    behind = ledger.nano_behind()
    if not ledger.in_step:
        what = "is behind, or another copy of, what its high-water mark says"
        if behind is None:
            what = "has no high-water mark on this machine"
        elif behind:
            what = f"is behind its high-water mark by epsilon {behind / 1e9:g}: it was restored from an old copy"
        errors.print(
            f"warning: this ledger {what}; its source refuses until you run privcal ledger reconcile",
            soft_wrap=True,
        )
    if as_json:
        print_json(
            {
                **facts,
                "persons": persons,
                "behind": None if behind is None else behind / 1e9,
                "in_step": ledger.in_step,
                "reserved": [
                    {"asker": one.asker, "campaign": one.campaign, "epsilon": one.nano / 1e9}
                    for one in ledger.reserved()
                ],
                "waiting": waiting,
                "entries": [
                    {
                        "time": e.time,
                        "kind": e.kind,
                        "asker": e.key.asker if e.key else None,
                        "request_id": str(e.key) if e.key else None,
                        "what": e.what,
                        "epsilon": e.epsilon,
                        "answered": e.answered,
                    }
                    for e in entries
                ],
            }
        )


@ledger_app.command("policy")
def ledger_policy(
    file: LedgerFile,
    policy: PolicyFile = None,
    epsilon: Annotated[
        float | None, typer.Option(help="All that may ever be spent, counted from the beginning.")
    ] = None,
    minimum_epsilon: Annotated[
        float | None, typer.Option(help="The least that one request may cost.")
    ] = None,
    epsilon_by_asker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ASKER=EPSILON", help="All that one asker may ever spend; may be repeated."
        ),
    ] = None,
    requests_per_hour: Annotated[
        int | None, typer.Option(help="The most requests within an hour, over all askers.")
    ] = None,
    approve: Annotated[
        bool | None,
        typer.Option(
            "--approve/--no-approve",
            help="Whether you approve each campaign before it is answered.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rules that are kept in a ledger, or change them: the owner's decision, recorded.

    What neither a policy file nor an option says stays as it is.

    Examples:

    `privcal ledger policy hospital.npz.ledger`

    `privcal ledger policy hospital.npz.ledger --epsilon 3 --epsilon-by-asker acme=1`

    `privcal ledger policy hospital.npz.ledger --approve`
    """
    from privcal.privacy.policy import Policy

    ledger = find_ledger(file)
    rules = _rules(policy, epsilon, ledger.policy)
    said = {
        "minimum_epsilon": minimum_epsilon,
        "epsilon_by_asker": _by_asker(epsilon_by_asker, rules),
        "requests_per_hour": requests_per_hour,
        "approve": approve,
    }
    given = {name: value for name, value in said.items() if value is not None}
    if policy is not None or epsilon is not None or given:
        ledger.set_policy(Policy.of(given, "on the command line", rules))
    console = human(as_json)
    for name, value in ledger.policy.to_dict().items():
        console.print(f"{name} = {_toml(value)}")
    facts = _facts(ledger)
    if ledger.policy.budget == "population":
        console.print(f"epsilon spent: {facts['spent']:g}; {left(facts)}")
    if as_json:
        print_json(facts)


@ledger_app.command("attach")
def ledger_attach(
    file: LedgerFile,
    data: Annotated[Path, typer.Argument(help="Other scores of the same people.")],
    person: Person = None,
    source_column: SourceColumn = None,
    as_json: Json = False,
) -> None:
    """Say that other data are about the same people: all charges add up in this one ledger.

    For a new week's export, another model's scores, or data that were moved. With --source-column,
    LEDGER is a table that is split by that column, and each part goes to the ledger of its value.

    Examples:

    `privcal ledger attach hospital.npz.ledger hospital-week-46.npz`

    `privcal ledger attach icu.csv icu-week-46.csv --source-column hospital`
    """
    attached = privcal.attach_data(
        file if source_column else find_ledger(file),
        data,
        person=person,
        source_column=source_column,
    )
    for ledger, more in attached:
        human(as_json).print(f"{more} is attached to {ledger.path}", soft_wrap=True)
    if as_json:
        print_json({"ledgers": [_facts(ledger) for ledger, _ in attached]})


@ledger_app.command("reconcile")
def ledger_reconcile(
    file: LedgerFile,
    write_off: Annotated[
        float | None, typer.Option(help="Epsilon known to have left that the copy does not show.")
    ] = None,
    as_json: Json = False,
) -> None:
    """After a restore or a move to another machine: write off what the file does not know was spent.

    Example: `privcal ledger reconcile hospital.npz.ledger`
    """
    nano = find_ledger(file).reconcile(write_off)
    human(as_json).print(f"{file}: epsilon {nano / 1e9:g} written off")
    if as_json:
        print_json({"file": str(file), "written_off": nano / 1e9})


@ledger_app.command("waiting")
def ledger_waiting(file: LedgerFile, as_json: Json = False) -> None:
    """The campaigns that wait for your approval: who asks what, for how much.

    Only where the policy says `approve = true`. The digest is over the questions; whoever asks can
    tell you theirs.

    Example: `privcal ledger waiting hospital.npz.ledger`
    """
    found = find_ledger(file).waiting()
    console = human(as_json)
    for terms, since in found:
        for line in _asks(terms, since):
            console.print(line, soft_wrap=True)
        console.print()
    console.print(
        f"approve one with: privcal ledger approve {file} CAMPAIGN"
        if found
        else "no campaign waits for approval",
        soft_wrap=True,
    )
    if as_json:
        print_json({"file": str(file), "waiting": [_terms(terms, since) for terms, since in found]})


@ledger_app.command("approve")
def ledger_approve(
    file: LedgerFile,
    campaign: Annotated[str, typer.Argument(help="The campaign, as `ledger waiting` names it.")],
    asker: Whose = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a campaign ask what it waits to ask, and no more: recorded in the ledger.

    Example: `privcal ledger approve hospital.npz.ledger spring-2026`
    """
    terms = approve_campaign(find_ledger(file), campaign, asker, yes, human(as_json))
    if as_json:
        print_json({"file": str(file), "approved": terms is not None})
    if terms is None:
        raise typer.Exit(1)


def approve_campaign(
    ledger: Ledger, campaign: str, asker: str | None, yes: bool, console: Console
) -> Proposal | None:
    """Show the owner what a waiting campaign asks, and record the approval; None if they say no.

    With `yes` nobody is asked; otherwise there must be somebody at a terminal.
    """
    found = [
        (terms, since)
        for terms, since in ledger.waiting()
        if terms.campaign == campaign and asker in (None, terms.asker)
    ]
    if not found:
        whose = "" if asker is None else f" of {asker!r}"
        raise InputError(
            f"no campaign {campaign!r}{whose} waits for approval; privcal ledger waiting lists those "
            "that do"
        )
    if len(found) > 1:
        names = ", ".join(terms.asker for terms, _ in found)
        raise InputError(f"{names} all have a campaign {campaign!r}: say whose with --asker")
    [(terms, since)] = found
    for line in _asks(terms, since):
        console.print(line, soft_wrap=True)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("there is nobody to ask here; say --yes to approve it")
        if not typer.confirm("Approve it?", err=True):
            console.print("not approved; it goes on waiting")
            return None
    ledger.approve(terms)  # what was shown: if it asks for something else by now, an error
    console.print("approved")
    return terms


@ledger_app.command("export")
def ledger_export(
    file: LedgerFile,
    since: Annotated[int, typer.Option(min=0, help="Only entries after this number.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default standard output.")
    ] = None,
) -> None:
    """Every entry as one line of JSON, for an audit system; the last line is the head of the chain.

    No answer and no secret is in it. The fields are those of docs/privacy.md.

    Example: `privcal ledger export hospital.npz.ledger --since 1200 --out ledger.jsonl`
    """
    from privcal.files import check_outputs, replacing

    ledger = find_ledger(file)
    if out is not None:
        check_outputs([out], [file, *([ledger.path] if ledger.path else [])])
    lines = (json.dumps(entry) + "\n" for entry in ledger.export(since))
    if out is None:
        sys.stdout.writelines(lines)
    else:
        with replacing(out) as part, part.open("w", encoding="utf-8") as written:
            written.writelines(lines)


def _asks(terms: Proposal, since: str) -> list[str]:
    """What a campaign wants, for its owner to read."""
    model = "a model that it does not name" if terms.model is None else f"model {terms.model}"
    return [
        f"Campaign {terms.campaign} of {terms.asker}, waiting since {since}",
        f"asks {terms.requests} questions ({', '.join(terms.kinds)}) about {model},",
        f"for epsilon {terms.nano / 1e9:g} in all.",
        f"Digest of the questions: {terms.digest}",
    ]


def _terms(terms: Proposal, since: str) -> dict[str, Any]:
    return {
        "asker": terms.asker,
        "campaign": terms.campaign,
        "model": terms.model,
        "queries": list(terms.kinds),
        "requests": terms.requests,
        "epsilon": terms.nano / 1e9,
        "digest": terms.digest,
        "since": since,
    }


def find_ledger(file: Path) -> Ledger:
    """A ledger by its file, or by the data that it is for."""
    from privcal.privacy import opening
    from privcal.privacy.opening import Data
    from privcal.readers import ENDINGS

    if file.is_dir() or file.suffix.lower() in ENDINGS:
        data = Data.at(file)
        split = [note for note in opening.notes_of(data) if note.split is not None]
        if split:
            raise InputError(
                f"{file} is split by its column {split[0].split} and has a ledger for each value: "
                f"name one, such as {opening.place(split[0])}"
            )
        ledger = opening.find(data)
        if ledger is None:
            raise InputError(
                f"the ledger of {file} is gone; put it back, or make a new one, which starts with "
                f"what that had spent: privcal ledger create {file}"
                if opening.lost(data)
                else f"{file} has no ledger yet; make one with: privcal ledger create {file}"
            )
        return ledger
    if not file.is_file():
        raise InputError(f"there is no ledger {file}")
    ledger = privcal.Ledger(file)
    try:
        ledger.facts  # noqa: B018
    except Refused as refused:
        raise InputError(
            f"{file} is not a ledger, or is damaged ({refused.__cause__ or refused})"
        ) from None
    return ledger


def promise(policy: Policy, unit: str) -> list[str]:
    """What an owner's ε means, in words."""
    from privcal.privacy.epsilon import as_odds

    whom = "one row; someone with several rows has no more than that promised for each"
    if unit == "person":
        whom = "one person, with all their rows"
    budget = "each person's own" if policy.budget == "person" else "one for all"
    return [
        f"Protected: {whom}. Budget: epsilon {policy.epsilon:g}, {budget}.",
        f"At epsilon {policy.epsilon:g}, {as_odds(policy.epsilon)}.",
    ]


def left(facts: dict[str, Any]) -> str:
    """What remains of a population's budget, in words."""
    if facts["remains"] < 0:
        return f"the total is {facts['total']:g}, less than that: nothing more is answered"
    return f"{facts['remains']:g} remains of {facts['total']:g}"


def _facts(ledger: Ledger) -> dict[str, Any]:
    from privcal.privacy.opening import Data

    fixed, policy, spent = ledger.facts, ledger.policy, ledger.nano_spent
    population = policy.budget == "population"
    return {
        "file": str(ledger.path),
        "id": fixed.id,
        "name": fixed.name,
        "unit": fixed.unit,
        "policy": policy.to_dict(),
        "data": [str(Data.noted(note)) for note in ledger.notes()],
        "total": policy.epsilon,
        "spent": spent / 1e9,
        "remains": (policy.nano_total - spent) / 1e9 if population else None,
    }


def _persons(ledger: Ledger) -> dict[str, int] | None:
    """How many persons, in the data or ever asked about, have budget left; for the owner alone."""
    from privcal.privacy.accounts import person_hash
    from privcal.privacy.opening import Data

    policy = ledger.policy
    if policy.budget != "person":
        return None
    secret = ledger.secret
    known = {who: spent for spent, persons in ledger.persons() for who in persons}
    for note in map(Data.noted, ledger.notes()):
        try:
            scores = note.read()
        except InputError:
            continue
        for who in set([] if scores.person is None else scores.person) - {""}:
            known.setdefault(person_hash(who, secret), ledger.nano_written_off)
    return {"left": sum(spent < policy.nano_total for spent in known.values()), "all": len(known)}


def _rules(policy: Path | None, epsilon: float | None, over: Policy | None = None) -> Policy:
    from dataclasses import replace

    from privcal.privacy.policy import Policy

    rules = over or Policy()
    if policy is not None:
        rules = Policy.load(policy, over)
    return rules if epsilon is None else replace(rules, epsilon=epsilon)


def _by_asker(said: list[str] | None, rules: Policy) -> dict[str, Any] | None:
    """The rules' table with what was said on the command line."""
    if not said:
        return None
    table: dict[str, Any] = dict(rules.epsilon_by_asker or {})
    for one in said:
        asker, equals, epsilon = one.rpartition("=")
        if not asker or not equals:
            raise InputError(f"--epsilon-by-asker must look like acme=0.5, not {one!r}")
        table[asker] = epsilon
    return table


def _toml(value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml(name)} = {_toml(inner)}" for name, inner in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value, ensure_ascii=False)


def _readable(entry: Entry) -> str:
    """What an entry is about, as a person would say it."""
    from privcal.privacy.opening import Data

    if entry.kind == "charge":
        facts = json.loads(entry.what)
        parts = [facts.pop("kind")]
        if "temperature" in facts:
            parts.append(f"T={facts.pop('temperature'):.4g}")
        for name, value in sorted(facts.items()):
            listed = value if isinstance(value, list) else [value]
            parts.append(f"{name}=" + ",".join(f"{v:g}" for v in listed))
        return " ".join(parts)
    if entry.kind == "policy":
        rules = json.loads(entry.what)
        return "policy: " + ", ".join(f"{name} {value}" for name, value in rules.items())
    if entry.kind == "approved":
        said = json.loads(entry.what)
        return (
            f"approved: campaign {said['campaign']} of {said['asker']}, {', '.join(said['kinds'])} "
            f"about {said['model'] or 'no named model'}, epsilon {said['nano'] / 1e9:g}"
        )
    if entry.kind == "data":
        return f"data: {Data.noted(json.loads(entry.what))}"
    return entry.what


# --- sources -----------------------------------------------------------------------------


@source_app.command("check")
def source_check(
    file: Annotated[Path, typer.Argument(help="The scores of one source.")],
    policy: PolicyFile = None,
    person: Person = None,
    per_row: PerRow = False,
    as_json: Json = False,
) -> None:
    """Read the data and explain, in plain words, what can leave and what it can tell.

    Where the data have a ledger, its rules hold. Counts are shown because this is your own
    terminal; none of them ever leaves.

    Example: `privcal source check hospital.parquet --person patient_id --policy policy.toml`
    """
    from privcal.privacy import opening
    from privcal.privacy.explain import explain
    from privcal.privacy.opening import Data
    from privcal.readers import PERSON
    from privcal.sources import warn_of_ids

    if per_row and person is not None:
        raise InputError("give --person or --per-row, not both")
    notes = opening.notes_of(Data.at(file))
    split = next((note for note in notes if note.split is not None), None)
    ledger = None if split is not None else opening.find(Data.at(file))
    column = None if per_row else person or PERSON
    if notes:
        column = notes[0].person
        if (per_row and column is not None) or person not in (None, column):
            whom = "a row" if column is None else f"a person, by the column {column}"
            raise InputError(f"the ledger of {file} protects {whom}, as was said when it was made")
    scores = privcal.read_scores(file, person=column)
    kept = None if ledger is None else ledger.policy
    if split is not None:
        kept = privcal.Ledger(opening.place(split)).policy
    rules = kept if policy is None else _rules(policy, None, kept)
    facts = explain(privcal.Source(scores, rules, ledger=ledger))
    console = human(as_json)
    console.print(str(file), style="bold")
    if split is not None:
        console.print(
            f"Split by its column {split.split} into sources with a ledger each, such as "
            f"{opening.place(split)}; what follows is of all rows together."
        )
    elif ledger is None:
        console.print(
            "It has no ledger yet, so nothing is answered; what follows is how it would be with "
            + ("these rules." if policy else "the default rules.")
        )
    for line in facts.lines:
        console.print(line)
    by = None if split is None else split.split
    warn_of_ids(file, column, by, lambda text: errors.print(text, soft_wrap=True))
    table = Table(
        title="What may be asked, and the noise for the largest request", box=box.SIMPLE_HEAD
    )
    for name in ("query", "numbers", f"one {facts.unit} changes", "noise", "what it asks"):
        table.add_column(name, justify="left" if name in ("query", "what it asks") else "right")
    for query in facts.queries:
        table.add_row(
            query["kind"],
            str(query["length"]),
            f"≤ {query['sensitivity']:g}",
            f"± {query['noise']:.3g}",
            query["asks"],
        )
    console.print(table)
    if as_json:
        print_json(
            {
                "file": str(file),
                "ledger": None if ledger is None else str(ledger.path),
                "unit": facts.unit,
                "summary": facts.lines,
                "queries": facts.queries,
            }
        )
