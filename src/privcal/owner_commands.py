"""For data owners: `privcal ledger` and `privcal source`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

import privcal
from privcal.console import Json, errors, human, print_json
from privcal.errors import InputError, Refused

if TYPE_CHECKING:
    from privcal.privacy.ledger import Entry, Ledger
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
    as_json: Json = False,
) -> None:
    """Show the rules that are kept in a ledger, or change them: the owner's decision, recorded.

    What a policy file does not say stays as it is.

    Examples:

    `privcal ledger policy hospital.npz.ledger`

    `privcal ledger policy hospital.npz.ledger --epsilon 3`
    """
    ledger = find_ledger(file)
    if policy is not None or epsilon is not None:
        ledger.set_policy(_rules(policy, epsilon, ledger.policy))
    console = human(as_json)
    for name, value in ledger.policy.to_dict().items():
        console.print(f"{name} = {json.dumps(value)}")
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
    from privcal.explain import explain
    from privcal.privacy import opening
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
