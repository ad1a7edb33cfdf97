"""`privcal ledger`: create, policy, attach, reconcile, export."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.cli.console import note, show
from privcal.cli.ledger_show import facts_of, warn_of_its_mark
from privcal.cli.options import (
    Classes,
    Columns,
    Json,
    LedgerFile,
    LedgerFolder,
    PerRow,
    Person,
    PolicyFile,
    SourceColumn,
    SourceList,
    columns_of,
    words,
)
from privcal.data.files import check_outputs, replacing
from privcal.data.opening import ledger_of
from privcal.data.sources import attach_data, create_ledgers
from privcal.report.explain import balance, promise, written_off_in_words
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy


def create(
    data: Annotated[
        list[Path],
        typer.Argument(help="The scores that it is for; each file gets a ledger of its own."),
    ],
    person: Person = None,
    per_row: PerRow = False,
    policy: PolicyFile = None,
    epsilon: Annotated[
        float | None, typer.Option(help="All that may ever be spent (or say it in the policy).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the source is called in what leaves it.")
    ] = None,
    ledger_dir: LedgerFolder = None,
    source_column: SourceColumn = None,
    source_list: SourceList = None,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Make the ledger of some data, once: whom it protects, and the owner's rules.

    Nothing is answered without one. Of several files all are checked before the first is made. Where a ledger at its place was lost, what that had spent is
    carried over.

    Examples:

    `privcal ledger create hospital.parquet --person patient_id --epsilon 2`

    `privcal ledger create hospital.npz --per-row --policy policy.toml --name "St. Anna"`

    `privcal ledger create clinic-*.csv --person patient_id`

    `privcal ledger create icu.csv --source-column hospital --person person`

    `privcal ledger create visits.csv --columns label=died,probability=risk,person=pid`
    """
    made = create_ledgers(
        data,
        _rules(policy, epsilon),
        person=person,
        per_row=per_row,
        name=name,
        ledger_dir=ledger_dir,
        source_column=source_column,
        source_names=read_list(source_list),
        columns=columns_of(columns),
        class_names=words(classes),
        tell=note,
    )
    lines = []
    for ledger in made:
        lines.append(f"created {ledger.path}")
        carried = ledger.spent
        if carried.nano:
            more = f" ({from_nano(carried.alone):g} alone)" if carried.alone > carried.nano else ""
            lines.append(
                f"epsilon {from_nano(carried.nano):g}{more} carried over from a lost ledger"
            )
    lines += promise(made[0].policy, made[0].unit)
    show(as_json, {"ledgers": [facts_of(ledger) for ledger in made]}, *lines)


def policy(
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
    rows: Annotated[
        int | None,
        typer.Option(
            help="About how many rows there are, told to whoever may ask: your word, never counted."
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
    ledger = ledger_of(file)
    rules = _rules(policy, epsilon, ledger.policy)
    changes = {
        "minimum_epsilon": minimum_epsilon,
        "epsilon_by_asker": _by_asker(epsilon_by_asker, rules),
        "requests_per_hour": requests_per_hour,
        "approve": approve,
        "rows": rows,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if policy is not None or epsilon is not None or changes:
        ledger.set_policy(Policy.of(changes, "on the command line", rules))
    facts = facts_of(ledger)
    lines = [f"{name} = {_toml(value)}" for name, value in ledger.policy.to_dict().items()]
    if facts["remains"] is not None:
        lines += balance(facts)
    show(as_json, facts, *lines)


def attach(
    file: LedgerFile,
    data: Annotated[Path, typer.Argument(help="Other scores of the same people.")],
    person: Person = None,
    source_column: SourceColumn = None,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Say that other data are about the same people: all charges add up in this one ledger.

    For a new week's export, another model's scores, or data that were moved. With --source-column,
    LEDGER is a table that is split by that column, and each part goes to the ledger of its value.

    Examples:

    `privcal ledger attach hospital.npz.ledger hospital-week-46.npz`

    `privcal ledger attach icu.csv icu-week-46.csv --source-column hospital`
    """
    attached = attach_data(
        file,
        data,
        person=person,
        source_column=source_column,
        columns=columns_of(columns),
        class_names=words(classes),
        tell=note,
    )
    document = {"ledgers": [facts_of(ledger) for ledger, _ in attached]}
    lines = [f"{more} is attached to {ledger.path}" for ledger, more in attached]
    show(as_json, document, *lines)


def reconcile(
    file: LedgerFile,
    write_off: Annotated[
        float | None, typer.Option(help="Epsilon known to have left that the copy does not show.")
    ] = None,
    as_json: Json = False,
) -> None:
    """After a restore or a move to another machine: write off what the file does not know was spent.

    A file that privcal did not write with the marks of this machine is taken at your word: look at it
    with `privcal ledger show`, and say how much is missing with --write-off (0 if nothing is).

    Example: `privcal ledger reconcile hospital.npz.ledger`
    """
    ledger = ledger_of(file)
    ledger.reconcile(write_off)
    written = ledger.entries()[-1]
    document = {"file": str(file), "written_off": written.epsilon, "alone": written.alone}
    what = written_off_in_words(written)
    show(as_json, document, f"{file}: epsilon {written.epsilon:g} {what}")
    if ledger.policy.secure is not None:
        note(
            "if it is the ledger of a federation's site, that takes part in secure sums again when it has "
            "new keys (privcal keys rotate) that all others accepted: see privcal site health"
        )


def export(
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
    ledger = ledger_of(file)
    check_outputs([out], [file, ledger.path])
    lines = (json.dumps(entry) + "\n" for entry in ledger.export(since))
    if out is None:
        sys.stdout.writelines(lines)
    else:
        with replacing(out) as part, part.open("w", encoding="utf-8") as written:
            written.writelines(lines)
    warn_of_its_mark(ledger)


def read_list(path: Path | None) -> list[str] | None:
    """The names in a file, one a line."""
    if path is None:
        return None
    try:
        names = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the list of sources {path}: {why}") from None
    return [name for name in names if name]


def _rules(policy: Path | None, epsilon: float | None, over: Policy | None = None) -> Policy:
    rules = over or Policy()
    if policy is not None:
        rules = Policy.load(policy, over)
    return rules if epsilon is None else replace(rules, epsilon=epsilon)


def _by_asker(texts: list[str] | None, rules: Policy) -> dict[str, Any] | None:
    """The rules' table, with what stands on the command line put in."""
    if not texts:
        return None
    table: dict[str, Any] = dict(rules.epsilon_by_asker or {})
    for text in texts:
        asker, equals, epsilon = text.rpartition("=")
        if not asker or not equals:
            raise InputError(f"--epsilon-by-asker must look like acme=0.5, not {text!r}")
        table[asker] = epsilon
    return table


def _toml(value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml(name)} = {_toml(inner)}" for name, inner in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return json.dumps(value, ensure_ascii=False)
