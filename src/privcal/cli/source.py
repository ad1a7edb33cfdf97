"""`privcal source check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
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
    columns_of,
    words,
)
from privcal.columns import Layout
from privcal.privacy import opening
from privcal.privacy.explain import Explanation, explain
from privcal.privacy.ledger import Ledger
from privcal.privacy.opening import Data
from privcal.privacy.policy import Policy
from privcal.readers import read_scores
from privcal.source import Source
from privcal.sources import warn_of_ids, warn_of_probabilities


def check(
    file: Annotated[Path, typer.Argument(help="The scores of one source.")],
    policy: PolicyFile = None,
    person: Person = None,
    per_row: PerRow = False,
    columns: Columns = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Read the data and explain, in plain words, what can leave and what it can tell.

    Where the data have a ledger, its rules hold. Counts are shown because this is your own
    terminal; none of them ever leaves.

    Example: `privcal source check hospital.parquet --person patient_id --policy policy.toml`
    """
    data = Data.at(file)
    said, person = Layout.of(columns_of(columns), words(classes)).without_person(person)
    column = opening.person_column(data, person, per_row)
    layout = opening.layout_of(data, said)
    split = next((note for note in opening.notes_of(data) if note.split is not None), None)
    ledger = None if split is not None else opening.find(data)
    scores = read_scores(file, person=column, columns=layout)
    noted = None if ledger is None else ledger.policy
    if split is not None:
        noted = Ledger(opening.ledger_path(split)).policy
    rules = noted if policy is None else Policy.load(policy, noted)
    facts = explain(Source(scores, rules, ledger=ledger))
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
    warn_of_probabilities(str(file), scores, note)
    document = {
        "file": str(file),
        "ledger": None if ledger is None else str(ledger.path),
        "unit": facts.unit,
        "summary": facts.lines,
        "queries": facts.queries,
    }
    show(as_json, document, *lines, *map(Text, facts.lines), _queries(facts))


def _queries(facts: Explanation) -> Table:
    queries = table(
        ("query", "numbers", f"one {facts.unit} changes", "noise", "what it asks"),
        ("query", "what it asks"),
        title="What may be asked, and the noise for the largest request",
    )
    for query in facts.queries:
        queries.add_row(
            query["kind"],
            str(query["length"]),
            f"≤ {query['sensitivity']:g}",
            f"± {query['noise']:.3g}",
            query["asks"],
        )
    return queries
