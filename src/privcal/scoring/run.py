"""Scores of a table: read in pieces, run row by row, written as a whole or not at all.

A malformed row (a cell that the model cannot take, a label that is no class, a run that fails) has no
scores and changes no other row. Strict scoring says which one it is: for the owner's terminal.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privcal.errors import InputError
from privcal.files import replacing
from privcal.scores import Scores
from privcal.scoring.model import Model
from privcal.scoring.setup import Setup
from privcal.scoring.tables import Piece, Table

MODEL = "privcal.model"
CLASSES = "privcal.classes"
UNIT = "privcal.unit"
"""The names under which a Parquet file of scores says which model and classes they are of."""

LABEL, PERSON = "label", "person"
OUT = (".parquet", ".csv")

Progress = Callable[[int], None]
"""Called now and then with the number of rows done."""


def scored(
    model: Model,
    table: str | Path,
    setup: Setup,
    *,
    keep: Sequence[str] = (),
    strict: bool = True,
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """The table's scores with labels, person ids and the columns to keep, some rows at a time.

    Each row is run through the model alone. A malformed row is an InputError if `strict`; else all
    its scores are NaN.
    """
    done = 0
    for piece in Table(table, model, setup, keep).pieces(strict):
        bad = piece.bad
        if strict and bad.any():
            raise InputError(f"{table}: {piece.complaint(int(np.argmax(bad)))}")
        outputs = _run(model, piece, str(table) if strict else None)
        _check(model, piece, outputs, setup, str(table) if strict else None)
        yield _frame(model, piece, outputs, setup)
        done += len(piece)
        if progress is not None:
            progress(done)


def score_table(
    model: Model,
    table: str | Path,
    out: str | Path,
    setup: Setup,
    *,
    keep: Sequence[str] = (),
    skip_malformed: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write a table's scores, Parquet or CSV by the ending of `out`; the numbers of rows written and
    left out.

    A Parquet file says in its metadata which model (`privcal.model`) and classes
    (`privcal.classes`) its scores are of, and whether a `person` or a `row` is to be protected
    (`privcal.unit`). With `skip_malformed` a malformed row is left out, and
    counts for nothing in whatever is made of the scores; else it is an InputError.
    """
    out = Path(out)
    if out.suffix.lower() not in OUT:
        raise InputError(f"{out} has an unknown ending; use .parquet or .csv")
    rows = left = 0

    def frames() -> Iterator[pl.DataFrame]:
        nonlocal rows, left
        for frame in scored(
            model, table, setup, keep=keep, strict=not skip_malformed, progress=progress
        ):
            good = frame.filter(pl.col(score_columns(model)[0]).is_not_nan())
            rows, left = rows + len(good), left + len(frame) - len(good)
            yield good

    write_frames(model, frames(), out, {UNIT: "row" if setup.person is None else "person"})
    return rows, left


def write_frames(
    model: Model,
    frames: Iterator[pl.DataFrame],
    out: Path,
    more: Mapping[str, str] | None = None,
    *,
    private: bool = False,
) -> None:
    """Write pieces of scores as one file, holding one of them at a time; `more`: for its metadata."""
    with replacing(out, private=private) as part:
        if out.suffix.lower() == ".csv":
            with part.open("wb") as file:
                for number, frame in enumerate(frames):
                    frame.write_csv(file, include_header=number == 0)
            return
        # Parquet cannot be added to: pieces are put together from a folder of one's own.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".scores-") as folder:
            pieces = []
            for number, frame in enumerate(frames):
                pieces.append(Path(folder) / f"{number}.parquet")
                frame.write_parquet(pieces[-1])
            classes = json.dumps(model.classes, ensure_ascii=False)
            facts = {MODEL: model.name, CLASSES: classes, **(more or {})}
            pl.scan_parquet(pieces, glob=False).sink_parquet(part, metadata=facts)


def _run(model: Model, piece: Piece, where: str | None) -> npt.NDArray[Any]:
    """The scores of each row, run alone; NaN where it is malformed, or a run fails.

    A run that fails is an InputError if it is said `where` the rows are from.
    """
    said = np.full((len(piece), model.raw_columns), np.nan, model.dtype)
    feed = list(piece.feed.items())
    for row in np.flatnonzero(~piece.bad).tolist():
        try:
            said[row] = model.run({name: block[row : row + 1] for name, block in feed})
        except Exception as error:  # the runtime has several, and a row may bring about any
            if where is not None:
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(
                    f"{where}: the model cannot score row {piece.first + row} ({first[:200]})"
                ) from None
    return model.as_scores(said)


def _scores(
    model: Model, outputs: npt.NDArray[Any], labels: Any, person: Any, *, strict: bool
) -> Scores:
    return Scores(**{model.kind: outputs}, labels=labels, person=person, strict=strict)  # type: ignore[arg-type]


def _check(
    model: Model, piece: Piece, outputs: npt.NDArray[Any], setup: Setup, where: str | None
) -> None:
    """Take the scores of malformed rows away; an InputError for the first, if it is said `where` it is."""
    person = None if setup.person is None else piece.kept[setup.person].to_list()
    valid = _scores(model, outputs, piece.labels, person, strict=False).valid
    if where is not None and not valid.all():
        row = int(np.argmin(valid))
        own = slice(row, row + 1)
        try:
            _scores(model, outputs[own], piece.labels[own], person and person[own], strict=True)
        except InputError as error:
            text = str(error).replace("row 0", f"row {piece.first + row}", 1)
            raise InputError(f"{where}: {text}") from None
    outputs[~valid] = np.nan


def _frame(model: Model, piece: Piece, outputs: npt.NDArray[Any], setup: Setup) -> pl.DataFrame:
    kept = piece.kept
    if setup.person is not None:
        kept = kept.rename({setup.person: PERSON})
    names = score_columns(model)
    for name in kept.columns:
        if name in (LABEL, *names):
            raise InputError(f"column {name} cannot be kept: the scores have one of that name")
    label = pl.Series(LABEL, piece.labels, nan_to_null=True).cast(pl.Int64)
    if named(model):
        places = dict(enumerate(model.classes))
        label = label.replace_strict(places, default=None, return_dtype=pl.String)
    scores = pl.DataFrame(np.asarray(outputs), schema=names, orient="row")
    return pl.DataFrame([*scores, label, *kept])


def named(model: Model) -> bool:
    """Whether columns and labels are called after the classes: by names that are no numbers."""
    return model.columns > 1 and not any(name.isdecimal() for name in model.classes)


def score_columns(model: Model) -> list[str]:
    """The names of the columns of scores."""
    word = "logit" if model.kind == "logits" else "probability"
    if model.columns == 1:
        return [word]
    return [f"{word}_{n}" for n in (model.classes if named(model) else range(model.columns))]
