"""`privcal study`: run, table, figures, report."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from privcal.cli.console import note, plural, progress_bar, say, show
from privcal.cli.console import table as tabled
from privcal.cli.options import Json, words
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    from privcal.lab.study.results import Results
    from privcal.report.study.tables import Table

StudyFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")]
StudyFolders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="The folder of a study, or of several.")
]


def run(
    out: Annotated[Path, typer.Option(help="Folder for the results; an interrupted run goes on.")],
    archive: Annotated[
        list[Path] | None,
        typer.Argument(help="Logit archive(s), .npz; by default the bundled CIFAR-10-C."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            help="cifar, imagenet, factors, heterogeneous, or a TOML file of your own; by default "
            "the paper's for the data set."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Some methods, as a,b,c; with options as a(x=1),b.")
    ] = None,
    shifts: Annotated[str | None, typer.Option(help="Some shifts, as a,b,c.")] = None,
    trials: Annotated[int, typer.Option(help="Random splits for each setting.")] = 500,
    seed: Annotated[int, typer.Option(help="For splits and simulated noise.")] = 0,
    public_rows: Annotated[
        int, typer.Option(help="Rows of `clean` set aside, for methods that have a use for them.")
    ] = 0,
    aggregation: Annotated[
        str,
        typer.Option(
            help="each: every source adds its own noise; secure: only sums over all are opened; "
            "both: the one beside the other."
        ),
    ] = "each",
    jobs: Annotated[
        int | None, typer.Option(help="Processes; by default one for each core.")
    ] = None,
    keep_trials: Annotated[
        bool, typer.Option("--keep-trials", help="Write every trial's values too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run every method over every shift and setting, many times, and measure it.

    Results go to the folder as they finish; the same command goes on where it was interrupted.

    Examples:

    `privcal study run --out study`

    `privcal study run imagenetc.npz --methods acc-t,nll-t --out study-imagenet`

    `privcal study run tiny/part*.npz --grid cifar --out tiny-study`

    `privcal study run --grid heterogeneous --public-rows 2000 --out unlike`

    `privcal study run --methods sketch,acc-t --aggregation both --out secure`
    """
    from privcal.lab.study.paper import grid_for
    from privcal.lab.study.run import run as run_study
    from privcal.lab.study.store import Done
    from privcal.planning.simulate.archive import read_archive

    opened = read_archive(archive or ())
    if grid is None:
        grid, why = grid_for(opened)
        note(f"grid: {grid}, {why} (--grid chooses another)")
    began = time.perf_counter()
    start = 0
    with progress_bar("{task.fields[speed]}") as bar:
        task = bar.add_task("starting", total=None, speed="")

        def progress(piece: Done | None, done: int, total: int) -> None:
            nonlocal start
            if piece is None:
                start = done
                bar.update(task, completed=done, total=total)
                return
            speed = (done - start) / (time.perf_counter() - began)
            bar.update(
                task,
                description=f"{piece.shift} {piece.label}",
                completed=done,
                total=total,
                speed=f"{speed:,.0f} runs/s",
            )

        results = run_study(
            opened,
            grid=grid,
            methods=words(methods),
            shifts=words(shifts),
            trials=trials,
            seed=seed,
            public_rows=public_rows,
            aggregation=aggregation,
            jobs=jobs,
            out=out,
            keep_trials=keep_trials,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    show(
        as_json,
        {"out": str(out), "grid": grid, "results": len(results), "seconds": seconds},
        f"{plural(len(results), 'result')} ({len(results) * trials:,} runs) in {out}, after {seconds:.1f} s; "
        f"next: privcal study report {out}",
    )


def table(
    folders: StudyFolders,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the tables; the names are listed.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="markdown, csv or latex; by default set for the terminal, if it is one."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    as_json: Json = False,
) -> None:
    """The paper's tables, with its own figures beside a study that is like its own.

    Of several studies, of one data set each: one table of them all, and their accuracies. Of one
    that still runs: the shifts that are done. LaTeX needs the package booktabs; a file of CSV holds
    one table.

    Examples:

    `privcal study table study --only overall`

    `privcal study table study --format latex --out tables.tex`

    `privcal study table study-cifar10 study-cifar100 study-imagenet`
    """
    from privcal.data.files import replacing
    from privcal.report.study.tables import all_tables, render, together
    from privcal.trusted.checks import known

    studies = [_load(folder) for folder in folders]
    tables = all_tables(studies[0]) if len(studies) == 1 else together(studies)
    names = [t.name for t in tables]
    if only is not None:
        tables = [tables[names.index(known("table", only, names))]]
    if format == "csv" and len(tables) > 1:
        raise InputError(f"CSV holds one table: say which with --only ({', '.join(names)})")
    if out is not None:
        with replacing(out) as part:
            part.write_text(render(tables, format or "markdown"), encoding="utf-8")
        note(f"tables: {out}")
    elif format is None and sys.stdout.isatty():
        say(as_json, *map(_for_terminal, tables))
        if len(names) > 1 and only is None:
            note(f"one of them alone: --only, with {', '.join(names)}")
    elif not as_json:
        sys.stdout.write(render(tables, format or "markdown"))
    document = [
        {
            "title": t.title,
            "caption": t.caption,
            "header": t.header,
            "rows": t.rows,
            "best": sorted(t.best),
            "best_of_the_papers": sorted(t.marked),
        }
        for t in tables
    ]
    show(as_json, document)


def _for_terminal(shown: Table) -> RichTable:
    """A table of a study, as wide as the terminal."""
    text = [name for column, name in enumerate(shown.header) if shown.is_text(column)]
    filled = tabled(shown.header, text, title=shown.title, caption=shown.caption)
    for row in range(len(shown.rows)):
        filled.add_row(
            *(
                Text(shown.text(row, column), style="bold" if (row, column) in shown.best else "")
                for column in range(len(shown.header))
            )
        )
    return filled


def _load(folder: Path) -> Results:
    """A study; of one that still runs, the shifts that are done, and a word about it."""
    from privcal.lab.study.store import load

    study = load(folder)
    if missing := study.missing:
        note(
            f"the study in {folder} is not finished: this is about {plural(len(study.shifts), 'shift')}, "
            f"{len(missing)} more are to come"
        )
    return study


def figures(
    folder: StudyFolder,
    out: Annotated[Path | None, typer.Option(help="Another folder for the pictures.")] = None,
    as_json: Json = False,
) -> None:
    """Three panels for each shift (sources, samples, ε), and one overview, as PNG and SVG.

    Example: `privcal study figures study`
    """
    from privcal.report.study.figures import draw

    target = out or folder / "figures"
    results = _load(folder)
    with progress_bar() as bar:
        task = bar.add_task("drawing", total=None)

        def progress(name: str | None, done: int, total: int) -> None:
            bar.update(task, description=name or "drawing", completed=done, total=total)

        paths = draw(results, target, progress=progress)
    document = {"files": [str(path) for path in paths]}
    show(as_json, document, f"{plural(len(paths), 'picture')} in {target}")


def page(
    folder: StudyFolder,
    factors: Annotated[
        Path | None, typer.Option(help="The folder of a study with --grid factors, to be read too.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--html", "--out", help="Another name for the page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One HTML page: pictures to choose from, tables to sort, and the claims of the paper's own study.

    Example: `privcal study report study --factors study-factors`
    """
    from privcal.lab.study.store import load
    from privcal.report.study.report import write

    results, beside = load(folder), None if factors is None else load(factors)
    with progress_bar() as bar:
        task = bar.add_task("reading", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        path = write(results, out or folder / "report.html", beside, progress)
    show(as_json, {"file": str(path)}, f"page: {path}")
