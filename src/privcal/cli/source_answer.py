"""`privcal source answer`: an owner's answer to a question that came by mail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from privcal.cli.console import note, plural, say, show
from privcal.cli.ledger import read_list
from privcal.cli.options import Json, LedgerFolder, SourceColumn, SourceList
from privcal.data.files import check_outputs, write_document
from privcal.data.sources import class_names_of, open_sources
from privcal.transport.mail import letters
from privcal.transport.mail.answering import Asked, preview
from privcal.transport.mail.letters import Letter
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.source import Source


def answer(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The scores; they have a ledger.")],
    question: Annotated[
        Path, typer.Argument(metavar="QUESTION.json", help="What a calibrator sent.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the answer (JSON), to be sent back.")],
    source_column: SourceColumn = None,
    source_list: SourceList = None,
    ledger_dir: LedgerFolder = None,
    yes: Annotated[bool, typer.Option("--yes", help="Answer without being asked.")] = False,
    as_json: Json = False,
) -> None:
    """Answer a question that came by mail: first see what it asks, then say yes or no.

    The data's ledger is charged before anything is drawn, by the owner's rules in it. The answer
    holds noisy numbers, and nothing of a row. The same question again gives the same answer, free.

    Example: `privcal source answer hospital.parquet question.json --out answer.json`
    """
    check_outputs([out], [data, question, source_list])
    document = letters.read_file(question, letters.QUESTION_FORMAT)
    try:
        letter = Letter.read(document)
    except InputError as error:
        raise InputError(f"{question} cannot be used as question: {error}") from None
    asked = Asked.by(letter)
    sources = open_sources(
        [data],
        source_column=source_column,
        source_names=read_list(source_list),
        ledger_dir=ledger_dir,
        tell=note,
    )
    check_outputs([out], [source.ledger.path for source in sources])
    refused = _check(asked, sources)
    names = class_names_of(data)
    for source in sources:
        say(as_json, *map(Text, preview(asked, source, names)), "")
    agreed = False
    try:
        agreed = yes or _confirmed()
    finally:  # also where nobody can be asked, or the owner interrupts it
        for source in [] if agreed else sources:
            source.release(asked.campaign, asked.asker)
    if not agreed:
        show(as_json, {"answered": False}, "not answered; nothing was charged")
        raise typer.Exit(1)
    given = [asked.answer(source) for source in sources]
    answers = [one.document for one in given]
    write_document(out, letters.answer_document(document, letter.campaign, answers=answers))
    facts = {
        "answered": True,
        "out": str(out),
        "asker": asked.asker,
        "campaign": asked.campaign,
        "epsilon": from_nano(asked.nano),
        "sources": [one.source for one in given],
        "refused": refused,
    }
    show(as_json, facts, f"{plural(len(given), 'answer')} written to {out}: send it back")


def _check(asked: Asked, sources: list[Source]) -> dict[str, str]:
    """Take those out of `sources` that refuse, and tell why; Refused where all do."""
    refused: dict[str, str] = {}
    for source in list(sources):
        try:
            asked.check(source)
        except Refused as problem:
            if len(sources) == 1:
                raise
            sources.remove(source)
            refused[source.name or "unnamed"] = problem.code
            why = f" ({problem.__cause__})" if problem.__cause__ else ""
            note(f"{source.name} refuses: {problem}{why}")
    return refused


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise InputError("there is nobody to ask here; say --yes to answer it")
    return typer.confirm("Answer it?", err=True)
