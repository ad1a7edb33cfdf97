"""What the commands share: where tables, progress and JSON go.

Tables go to standard output (to standard error with --json), progress to standard error; --json
prints one JSON document on standard output and nothing else.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# No markup: names of files, sources and askers are shown as they are.
errors = Console(stderr=True, markup=False, highlight=False, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def human(as_json: bool) -> Console:
    """Where a person reads."""
    return errors if as_json else Console(markup=False, highlight=False, emoji=False)


def print_json(document: Any) -> None:
    print(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity (a log loss may be one): null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def progress_bar(*more: str) -> Progress:
    """A bar on standard error that vanishes when it is done; none where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(text) for text in more),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
