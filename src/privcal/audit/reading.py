"""The rows of a file, and whose they are."""

from __future__ import annotations

from pathlib import Path

from privcal.errors import InputError
from privcal.readers import TABLES, _table, read_scores
from privcal.scores import Scores


def read(path: Path, person: str | None, per_row: bool) -> Scores:
    """The rows of a file, with the ids of a column (by default `person`, if there is one)."""
    scores = read_scores(path)
    if person is None and not per_row:
        return scores
    ids = None
    if person is not None:
        if path.suffix.lower() not in TABLES:
            raise InputError(f"{path} is no table; only Parquet and CSV have a column {person}")
        table = _table(path, person)
        if person not in table.columns:
            raise InputError(f"{path} has no column {person}; it has {', '.join(table.columns)}")
        ids = table[person].to_list()
    outputs = {scores.outputs.kind: scores.outputs.array}
    return Scores(**outputs, labels=scores.labels, person=ids, model=scores.model)
