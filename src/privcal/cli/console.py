"""Printing: tables and sentences for people, one JSON document for programs.

Results go to standard output: for people, or with --json one document and nothing else. Notes and
progress go to standard error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from privcal.cli.exits import plain
from privcal.data.wording import plural as plural  # commands take it from here


class _Plain(Console):
    """Names of files, sources and askers as they are: no markup, and nothing that a terminal obeys.

    A ledger that somebody forged may hold any text.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text), style, control)


stderr = _Plain(stderr=True)


def say(as_json: bool, *parts: RenderableType) -> None:
    """Print part of a command's result for a person; with --json nothing.

    A plain string is never broken, so that a path in it can be copied; a `Text` is wrapped at the
    width of the terminal.
    """
    console = _Plain()
    for part in () if as_json else parts:
        console.print(part, soft_wrap=isinstance(part, str))


def show(as_json: bool, document: Any, *parts: RenderableType) -> None:
    """Print a command's result: `parts` for a person and, with --json, `document` for a program."""
    say(as_json, *parts)
    if as_json:
        text = json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
        print(plain(text, lambda letter: json.dumps(letter)[1:-1]))


def note(text: str) -> None:
    """Print a sentence that is not the result, such as a warning, on standard error."""
    stderr.print(text, soft_wrap=True)


def _finite(value: Any) -> Any:
    """JSON has no infinity (a log loss may be one): null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(
    columns: Collection[str], text: Collection[str], *, narrow: bool = False, **look: Any
) -> Table:
    """A table without rows; the columns of `text` are set to the left, those of figures to the right.

    A `narrow` one fits into 80 columns, and breaks no line.
    """
    made = Table(box=box.SIMPLE_HEAD, collapse_padding=narrow, pad_edge=not narrow, **look)
    for name in columns:
        made.add_column(name, justify="left" if name in text else "right", no_wrap=narrow)
    return made


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for something of which so many of so many are done."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def progress_bar(*more: str) -> Progress:
    """A bar on standard error that vanishes when it is done; none where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(text) for text in more),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
