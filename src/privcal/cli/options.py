"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from privcal.trusted.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
MapOut = Annotated[Path, typer.Option(help="Where to write the map (JSON).")]

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="A ledger, or its data.")]
LedgerFolder = Annotated[
    Path | None, typer.Option(help="Folder of the ledgers; by default beside the data.")
]
PolicyFile = Annotated[Path | None, typer.Option("--policy", help="The owner's rules (TOML).")]
Person = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column of person ids: all rows of a person are protected."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=COLUMN",
        help="Which column is what, where its name does not say it, as label=died,probability=risk; "
        "also person, logit, logit_0, …, confidence, correct. May be repeated.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="The classes in order; labels may then be their names."),
]
PerRow = Annotated[
    bool, typer.Option("--per-row", help="Each row is a person of its own, and protected as one.")
]
SourceColumn = Annotated[
    str | None, typer.Option(help="A column that splits each table into sources.")
]
SourceList = Annotated[
    Path | None,
    typer.Option(
        help="With --source-column: the public list of sources, one a line. Those without rows "
        "answer all the same, rows of others are left out."
    ),
]
Whose = Annotated[str | None, typer.Option(help="Whose, where several askers use that name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Approve without being asked.")]

SiteFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder.")]
SketchFile = Annotated[Path, typer.Argument(metavar="SKETCH", help="A sketch (JSON).")]
Public = Annotated[
    Path | None,
    typer.Option(
        help="Your own clean labelled scores, those the sketch was taken with. These rows get no "
        "privacy: the map depends on them exactly."
    ),
]
Unchanged = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="For sketch: how probable you hold it, beforehand, that nothing changed, from 0 to "
        "below 1. By default 0.3 with public rows, 0.25 with an event, 0.5 with --leave-alone, "
        "otherwise 0.",
    ),
]
LeaveAlone = Annotated[
    bool,
    typer.Option(
        "--leave-alone",
        help="For sketch, and a model in use: keep it as it is where it may well be that nothing "
        "changed.",
    ),
]
PageOut = Annotated[
    Path | None,
    typer.Option("--html", help="A page to read and mail: one file that loads nothing (.html)."),
]
PrivatePlot = Annotated[
    Path | None, typer.Option(help="Estimated reliability diagram (.png, .svg, .pdf).")
]

Images = Annotated[
    Path | None,
    typer.Option(help="Folder or .tar.gz of the images; by default what `privcal data fetch` got."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Frost = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|drawn",
        help="Photographs of frost, or `drawn`; by default those that `privcal data fetch frost` "
        "got, or else drawn ones.",
    ),
]
Seed = Annotated[int, typer.Option(help="For the random part of the corruptions.")]


def columns_of(texts: list[str] | None) -> dict[str, str]:
    """What `--columns` says: the column of each thing."""
    columns: dict[str, str] = {}
    for text in (part for given in texts or () for part in given.split(",")):
        name, equals, column = (part.strip() for part in text.partition("="))
        if not (name and equals and column):
            raise InputError(
                f"--columns must look like label=outcome,probability=risk, not {text!r}"
            )
        if columns.setdefault(name, column) != column:
            raise InputError(f"--columns says twice what {name} is: {columns[name]} and {column}")
    return columns


def options_given(context: typer.Context) -> set[str]:
    """The parameters that stand on the command line, by their names in the function."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, how in sources.items() if how is not None and how.name == "COMMANDLINE"}


def check_page(path: Path | None) -> None:
    """Raise InputError unless the name ends like a page."""
    if path is not None and path.suffix.lower() != ".html":
        raise InputError(f"{path}: a page must end in .html")


def words(text: str | None) -> list[str] | None:
    """The words of an option like `a,b,c`; a comma in brackets, as in `a(x=1,y=2),b`, is a word's own."""
    if text is None:
        return None
    parted = re.split(r",(?![^()]*\))", text)
    return [word.strip() for word in parted if word.strip()]
