"""`privcal campaign new`: the first question of a campaign by mail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.calibration import default, methods
from privcal.cli.calibrate_run import (
    MAX_SOURCES,
    CampaignName,
    Epsilon,
    Event,
    MethodOptions,
    Model,
    PublicRows,
    RowsPerSource,
    check_files,
    make_method,
)
from privcal.cli.console import plural, show
from privcal.cli.options import Classes, Json, LeaveAlone, Unchanged, words
from privcal.data.files import check_outputs
from privcal.data.sources import read_public
from privcal.data.wording import place_of
from privcal.report.description import ASKER
from privcal.secure.round import NoiseLaw
from privcal.transport.mail.post import MailCampaign, Waiting
from privcal.trusted import approvals
from privcal.trusted.epsilon import from_nano, to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.question import UNSIGNED, check_campaign

SOURCES = 10

MethodName = Annotated[
    str,
    typer.Option(
        help="One of: " + ", ".join(methods.names()) + ". sketch needs one question, a search "
        "several, each sent when the one before is answered."
    ),
]


def new(
    out: Annotated[Path, typer.Option(help="Where to write the question (JSON), to be sent.")],
    method: MethodName = default.METHOD,
    epsilon: Epsilon = 1.0,
    option: MethodOptions = None,
    model: Model = None,
    asker: Annotated[str, typer.Option(help="Who asks, as owners know you.")] = ASKER,
    campaign: CampaignName = None,
    sources: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SOURCES,
            help="About how many will answer, by which it is decided how finely to ask; a second "
            f"question waits for so many. By default {SOURCES}.",
        ),
    ] = None,
    rows_per_person: Annotated[
        int, typer.Option(min=1, help="How many rows of a person the sources count.")
    ] = 1,
    public: PublicRows = None,
    event: Event = None,
    classes: Classes = None,
    rows_per_source: RowsPerSource = None,
    unchanged: Unchanged = None,
    leave_alone: LeaveAlone = False,
    as_json: Json = False,
) -> None:
    """Begin a campaign by mail: write the question that each data owner answers with a file.

    Owners answer with `privcal source answer`, and `privcal calibrate --answers` makes the map of what they send back, or the next question. Beside the question is
    the campaign's record (`.campaign`): keep it until the map is made.

    Example: `privcal campaign new --method sketch --epsilon 1 --asker "Ann, lab.org" --out question.json`
    """
    check_files(method, public=public)
    clean = None if public is None else read_public(public)
    names = words(classes) or (None if clean is None else clean.class_names)
    flags = {
        "event": place_of(event, names),
        "rows_per_source": rows_per_source,
        "unchanged": unchanged,
    }
    chosen = make_method(method, option, clean, **flags, leave_alone=leave_alone or None)
    if campaign is not None:
        check_campaign(campaign)
    check_outputs([out], [public])
    decided = {
        "sources": sources or SOURCES,
        "rows_per_source": rows_per_source,
    }
    _check_rounds(chosen, epsilon, rows_per_person, decided, waits=bool(sources))
    plan = {
        "method": method,
        "epsilon": epsilon,
        "options": {k: v for k, v in chosen.options().items() if k != "public"},
        "public": None if public is None else str(public.resolve()),
        "model": model,
        "class_names": None if names is None else list(names),
        "campaign": campaign,
        "asker": asker + UNSIGNED,
        "rows_per_person": rows_per_person,
        "decided": decided,
        "needed": sources or 1,
    }
    begun, first = MailCampaign.begin(out, json.loads(json.dumps(plan)))
    _report(begun, first, out, as_json)


def _check_rounds(
    method: methods.Method,
    epsilon: float,
    rows_per_person: int,
    decided: dict[str, Any],
    waits: bool,
) -> None:
    """A second question shuts out whoever has not answered the first, so it must be known how many
    will."""
    asked = methods.plan(method, to_nano(epsilon), NoiseLaw(rows_per_person), **decided)
    rounds = 1 + max((round for round, _, _ in asked), default=0)
    if rounds > 1 and not waits:
        raise InputError(
            f"{method.name} asks {rounds} times, each time those alone who answered before: say "
            "with --sources how many will answer, or use a method that asks once, like sketch"
        )


def _report(
    begun: MailCampaign,
    first: Waiting,
    out: Path,
    as_json: bool,
) -> None:
    numbers = sum(question.query.length for question in first.questions)
    total = sum(question.nano_epsilon for question in first.plan)
    digest = approvals.digest(begun.asker, first.plan)
    facts = {
        "question": str(out),
        "campaign": begun.name,
        "asker": begun.asker,
        "rounds": first.rounds,
        "numbers": numbers,
        "epsilon": from_nano(total),
        "digest": digest,
        "record": str(begun.folder),
    }
    show(
        as_json,
        facts,
        f"{out}: question 1 of {first.rounds} of campaign {begun.name}, by {begun.asker}; the campaign "
        f"costs epsilon {from_nano(total):g} at each source, and this question brings back "
        f"{plural(numbers, 'number')}",
        f"digest, which owners are shown too: {digest}",
        f"Send it to the owners; each answers with: privcal source answer DATA {out.name} --out "
        "answer.json",
        "Then: privcal calibrate --answers answers/*.json --out map.json",
        f"Keep {begun.folder} until then.",
    )
