"""`privcal data check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from privcal.calibration.evaluation import evaluate
from privcal.cli.console import show, table
from privcal.cli.options import Json
from privcal.lab.study.paper import Differs, Reported, made_here, match_data
from privcal.planning.simulate.archive import read_archive


def check(
    archive: Annotated[list[Path], typer.Argument(help="Logit archive(s), .npz.")],
    as_json: Json = False,
) -> None:
    """Accuracy and calibration error of an archive under each shift, beside the paper's.

    The paper has figures for CIFAR-10-C, CIFAR-100-C and ImageNet-C at severity 5; they are left
    out beside an archive with other rows or classes, and what differs is said.

    Reads the whole archive, so it tells whether a file is complete. A few seconds; no torch.

    Example: `privcal data check cifar10c.npz`
    """
    contents = read_archive(archive)
    match = match_data(contents.dataset, contents.severity, contents.rows, contents.classes)
    paper = match if isinstance(match, Reported) else None
    remarks = [made_here(contents.corrupted, contents.frost)]
    remarks += [str(match)] if isinstance(match, Differs) else []
    remark = " ".join(filter(None, remarks))
    rows: list[dict[str, Any]] = []
    for shift in contents.shifts:
        ours = evaluate(contents.scores(shift))
        theirs = {} if paper is None else paper.without_privacy.get(shift, {})
        rows.append(
            {
                "shift": shift,
                "rows": ours.rows,
                "accuracy": ours.accuracy,
                "paper_accuracy": None if paper is None else paper.accuracy.get(shift),
                "ece": ours.ece,
                "paper_ece": theirs.get("base"),
            }
        )
    both = [row for row in rows if row["paper_accuracy"] is not None]
    difference = None
    if both:
        difference = sum(abs(row["accuracy"] - row["paper_accuracy"]) for row in both) / len(both)
    severity = "" if contents.severity is None else f", severity {contents.severity}"
    title = f"{contents.dataset}{severity}: {rows[0]['rows']:,} rows"
    document = {
        "dataset": contents.dataset,
        "severity": contents.severity,
        "shifts": rows,
        "mean_absolute_difference": difference,
        "remark": remark or None,
    }
    show(as_json, document, _table(title, rows, difference), *([Text(remark)] if remark else []))


def _table(title: str, rows: list[dict[str, Any]], difference: float | None) -> Table:
    """The rows of `check`; where the paper has no figures, without its columns."""
    columns = ["shift", "accuracy", "paper", "difference", "ECE", "paper"]
    shown = range(len(columns)) if difference is not None else (0, 1, 4)
    caption = None
    if difference is not None:
        caption = f"mean absolute difference to the paper's accuracy: {difference:.3f}"
    shifts = table([columns[i] for i in shown], ("shift",), title=title, caption=caption)
    for row in rows:
        paper = row["paper_accuracy"]
        cells = (
            row["shift"],
            f"{row['accuracy']:.3f}",
            _shown(paper),
            "" if paper is None else f"{row['accuracy'] - paper:+.3f}",
            f"{row['ece']:.3f}",
            _shown(row["paper_ece"]),
        )
        shifts.add_row(*(cells[i] for i in shown))
    return shifts


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
