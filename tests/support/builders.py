"""What tests begin with, each in a line: rows, a source, a ledger, a question, an answer or its refusal, files."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from privcal import InputError, Ledger, Policy, Question, Refused, Scores, Source
from privcal.trusted.queries import Query


def random_scores(rows: int, classes: int = 5, seed: int = 0, **more: object) -> Scores:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, classes)).astype(np.float32)
    noisy = logits + rng.gumbel(0, 2, (rows, classes))
    return Scores(logits=logits, labels=noisy.argmax(axis=1), **more)


def a_ledger(folder: Path, unit: str = "row", **policy: Any) -> Path:
    """A new ledger, source.db, with this policy."""
    Ledger.create(folder / "source.db", Policy(**policy), unit=unit)
    return folder / "source.db"


def a_source(rows: Any = 9, seed: int = 0, /, name: str | None = None, **policy: Any) -> Source:
    """A source of so many random rows, or of these, with a ledger in memory."""
    scores = random_scores(rows, seed=seed) if isinstance(rows, int) else rows
    return Source(scores, Policy(**policy) if policy else None, ledger=None, name=name)


def some_sources(count: int, rows: int = 20, name: str = "s{}", **policy: Any) -> list[Source]:
    return [a_source(rows, i, name.format(i), **policy) for i in range(count)]


def sharing(scores: Scores, count: int, **policy: Any) -> list[Source]:
    """Sources that have these rows between them."""
    parts = np.array_split(np.arange(len(scores)), count)
    return [a_source(scores.take(rows), name=f"{i}", **policy) for i, rows in enumerate(parts)]


def named(name: str, query: Query, epsilon: float, model: str | None = None) -> Question:
    """The question "campaign/round/index"; "campaign" is the first of all."""
    campaign, *place = name.split("/")
    round, index = map(int, place or (0, 0))
    return Question.of(query, epsilon, campaign, round, index, model)


def forged(question: Question, **wrong: object) -> Question:
    """The same question with parts that no check has seen, as only code of somebody else makes it."""
    copy = object.__new__(Question)
    vars(copy).update({**vars(question), **wrong})
    return copy


def sentence(act: Callable[..., object], *given: Any, **more: Any) -> str:
    """The one sentence with which something is refused."""
    with pytest.raises(InputError) as caught:
        act(*given, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextmanager
def editing(path: Path) -> Iterator[sqlite3.Connection]:
    """A ledger's file, opened by somebody who may write it."""
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def edit(path: Path, statement: str, *values: object) -> list[Any]:
    """What a statement finds in a ledger's file; one that changes rows must find some."""
    with editing(path) as db:
        done = db.execute(statement, values)
        assert done.rowcount != 0
        return done.fetchall()


def outcome(act: Callable[..., object], *given: Any) -> str:
    """The code with which something is refused, or "answered"."""
    try:
        act(*given)
    except Refused as refused:
        return refused.code
    return "answered"


COMMAND = "from privcal.cli.app import main; main()"
"""The command line, as code for `python`."""


def python(
    code: str, *args: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What comes of code in a process of its own."""
    command, env = [sys.executable, "-c", code, *map(str, args)], {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


def interrupted(where: str, call: int, *args: object, how: str = KILLED) -> Any:
    """What comes of a command that is interrupted in this call of a function, say "json:dumps"."""
    module, _, name = where.partition(":")
    *owner, function = name.split(".")
    code = f"""if True:
        import os, signal
        import {module} as module
        where = module{"".join(f".{part}" for part in owner)}
        do, calls = where.{function}, iter(range(100))

        def interrupted(*args):
            if next(calls) == {call}:
                {how}
            return do(*args)

        where.{function} = interrupted
        {COMMAND}"""
    return python(code, *args)


def a_file(path: Path, content: str | bytes | list[str]) -> Path:
    """A file of bytes, of text, or of lines."""
    text = "\n".join(content) if isinstance(content, list) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


NEW = ("--new-ledger", "--per-row")
"""What lets a command make ledgers."""


def save(path: Path, scores: Scores, times: float = 1, **more: Any) -> Path:
    """A file of logits, so many times as large, of labels, and of what else a row has."""
    np.savez(path, logits=times * scores.outputs.array, labels=scores.labels, **more)
    return path


def a_clinic(path: Path, rows: int = 40, seed: int = 0, **more: Any) -> Path:
    """A file of random scores."""
    return save(path, random_scores(rows, seed=seed), **more)


def some_clinics(
    folder: Path, count: int, rows: int = 40, name: str = "clinic-{}.npz", **more: Any
) -> list[Path]:
    return [a_clinic(folder / name.format(i), rows, i, **more) for i in range(count)]


def an_archive(
    path: Path, rows: int = 300, seed: int = 3, about: Any = None, **times: float
) -> Path:
    """An archive of shifts, each with the same random logits so many times as large."""
    scores = random_scores(rows, seed=seed)
    shifts = {shift: factor * scores.outputs.array for shift, factor in times.items()}
    meta = {} if about is None else {"meta": json.dumps(about)}
    np.savez(path, labels=scores.labels, **shifts, **meta)
    return path


def a_table(path: Path, columns: Any = None, /, **named: Any) -> Path:
    """Columns in a file of the kind that its ending says, Parquet if it says none."""
    frame = pl.DataFrame(named if columns is None else columns)
    match path.suffix.lower():
        case ".csv":
            frame.write_csv(path)
        case ".arrow" | ".feather":
            frame.write_ipc(path)
        case _:
            frame.write_parquet(path)
    return path
