"""`privcal source check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from privcal.cli.console import note, show, table
from privcal.cli.options import (
    Classes,
    Columns,
    Json,
    PerRow,
    Person,
    PolicyFile,
    SourceColumn,
    columns_of,
    words,
)
from privcal.cli.source_queries import SOURCES, asked_by
from privcal.data import opening
from privcal.data.columns import Layout
from privcal.data.ids import warn_of_ids
from privcal.data.ledger import Ledger
from privcal.data.place import Data
from privcal.data.readers import read_scores, read_sources
from privcal.data.sources import warn_of_probabilities
from privcal.report.explain import explain
from privcal.trusted.policy import Policy
from privcal.trusted.source import Source


def check(
    file: Annotated[Path, typer.Argument(help="The scores of one source.")],
    policy: PolicyFile = None,
    person: Person = None,
    per_row: PerRow = False,
    source_column: SourceColumn = None,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Read the data and explain, in plain words, what can leave and what it can tell.

    Where the data have a ledger, its rules hold. Counts are shown because this is your own
    terminal; none of them ever leaves.

    Examples:

    `privcal source check hospital.parquet --person patient_id --policy policy.toml`

    `privcal source check icu.csv --source-column hospital`
    """
    data = Data.at(file)
    said, person = Layout.of(columns_of(columns), words(classes)).without_person(person)
    column = opening.person_column(data, person, per_row)
    layout = opening.layout_of(data, said)
    data = replace(data, layout=layout)
    split = next((note for note in opening.notes_of(data) if note.split is not None), None)
    ledger = None if split is not None else opening.find(data)
    scores = read_scores(file, person=column, columns=layout)
    judge = ledger if split is None else Ledger(opening.ledger_path(split))
    noted = None if judge is None else judge.policy
    rules = noted if policy is None else Policy.load(policy, noted)
    source, methods = Source(scores, rules, ledger=ledger), asked_by()
    facts = explain(source, {kind: query for kind, (_, query) in methods.items()})
    queries = [
        {**query, "methods": methods.get(query["kind"], ("", None))[0]} for query in facts.queries
    ]
    parts = _parts(file, source_column, column, layout)
    lines = [Text(str(file), style="bold")]
    if split is not None:
        lines.append(
            Text(
                f"Split by its column {split.split} into sources with a ledger each, such as "
                f"{opening.ledger_path(split)}; what follows is of all rows together."
            )
        )
    elif ledger is None:
        lines.append(
            Text(
                "It has no ledger yet, so nothing is answered; what follows is how it would be "
                f"with {'these' if policy else 'the default'} rules."
            )
        )
    warn_of_ids(file, column, None if split is None else split.split, note, layout)
    opening.warn_of_spellings(judge or source.ledger, replace(data, person=column), scores, note)
    warn_of_probabilities(str(file), scores, note)
    document = {
        "file": str(file),
        "ledger": None if ledger is None else str(ledger.path),
        "unit": facts.unit,
        "rows": len(scores),
        "persons": None if source.persons is None else len(set(source.persons)),
        "rows_that_count": len(source.counted_rows()),
        "classes": scores.classes,
        "accuracy": float(scores.correct.mean()) if len(scores) else None,
        "sources": parts,
        "summary": [line for line in facts.lines if line],
        "queries": queries,
    }
    shown: list[RenderableType] = [*lines, *map(Text, facts.lines), _queries(facts.unit, queries)]
    show(as_json, document, *shown, *([] if parts is None else [_sources(source_column, parts)]))


def _parts(
    file: Path, split: str | None, person: str | None, layout: Layout
) -> list[dict[str, Any]] | None:
    """The sources in a table that is split by a column, with their counts; None where none is."""
    if split is None:
        return None
    parts = read_sources(file, split, person=person, columns=layout)
    return [
        {
            "source": name,
            "rows": len(scores),
            "persons": None if scores.person is None else len(set(scores.person)),
        }
        for name, scores in parts.items()
    ]


def _sources(split: str | None, parts: list[dict[str, Any]]) -> Table:
    listed = table((str(split), "rows", "persons"), (str(split),), title="The sources")
    for part in parts:
        persons = "" if part["persons"] is None else f"{part['persons']:,}"
        listed.add_row(part["source"], f"{part['rows']:,}", persons)
    return listed


def _queries(unit: str, queries: list[dict[str, Any]]) -> Table:
    listed = table(
        ("query", "asked by", "numbers", f"one {unit} changes", "noise", "what it asks"),
        ("query", "asked by", "what it asks"),
        title="What may be asked, and the noise for the largest request",
        caption=f"Of a sketch: as for {SOURCES} sources; fewer are asked more coarsely, more of them "
        "more finely.",
    )
    for query in queries:
        listed.add_row(
            query["kind"],
            query["methods"],
            str(query["length"]),
            f"≤ {query['sensitivity']:g}",
            f"± {query['noise']:.3g}",
            query["asks"],
        )
    return listed
