"""`privcal campaign describe`: one page for approval, before anything is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from privcal.calibration import default
from privcal.cli.calibrate_run import (
    Aggregation,
    CampaignName,
    Epsilon,
    Event,
    MethodName,
    MethodOptions,
    Model,
    PublicRows,
    RowsPerSource,
    check_files,
    make_method,
    secure_options,
)
from privcal.cli.console import show
from privcal.cli.options import (
    Classes,
    Json,
    LeaveAlone,
    PageOut,
    Unchanged,
    check_page,
    options_given,
    words,
)
from privcal.data.files import check_outputs
from privcal.data.sources import read_public
from privcal.data.wording import place_of
from privcal.report import pages
from privcal.report.description import ASKER, Description
from privcal.report.description import describe as described
from privcal.report.owner_pages import description_page
from privcal.transport.mail import letters
from privcal.trusted.epsilon import to_nano
from privcal.trusted.errors import InputError
from privcal.trusted.question import check_asker, check_campaign


def describe(
    context: typer.Context,
    question: Annotated[
        Path | None,
        typer.Argument(
            metavar="[QUESTION]", help="What `privcal campaign new` wrote; it says the rest itself."
        ),
    ] = None,
    method: MethodName = None,
    epsilon: Epsilon = 1.0,
    option: MethodOptions = None,
    model: Model = None,
    asker: Annotated[str, typer.Option(help="Who will ask, as owners know them.")] = ASKER,
    campaign: CampaignName = None,
    sources: Annotated[
        int | None,
        typer.Option(min=1, help="About how many are asked; how finely may depend on it."),
    ] = None,
    rows_per_person: Annotated[
        int, typer.Option(min=1, help="How many rows of a person the sources count.")
    ] = 1,
    purpose: Annotated[str | None, typer.Option(help="What for, in a sentence or two.")] = None,
    contact: Annotated[str | None, typer.Option(help="Whom owners can ask.")] = None,
    aggregation: Aggregation = "each",
    public: PublicRows = None,
    event: Event = None,
    classes: Classes = None,
    rows_per_source: RowsPerSource = None,
    unchanged: Unchanged = None,
    leave_alone: LeaveAlone = False,
    html: PageOut = None,
    as_json: Json = False,
) -> None:
    """What will leave each site, why that is acceptable, and what it costs: for approval.

    Nothing is asked and nobody is charged. The digest is the one that the letter, and each owner's
    terminal, will show: compare it. Ask under the campaign's name that is told here (--campaign).

    Examples:

    `privcal campaign describe --epsilon 1 --sources 30 --asker ann@lab.org --event 1`

    `privcal campaign describe --epsilon 0.2 --sources 50 --aggregation secure --asker ann@lab.org`

    `privcal campaign describe question.json --purpose "Correct the risk" --html approval.html`
    """
    check_page(html)
    check_outputs([html], [question, public])
    if question is not None:
        _check_alone(context)
        _report(_of_letter(question, rows_per_person, purpose, contact), html, as_json)
        return
    if sources is None:
        raise InputError("say with --sources about how many are asked: what is asked depends on it")
    method = method or default.METHOD
    check_files(method, public=public)
    clean = None if public is None else read_public(public)
    names = words(classes) or (None if clean is None else clean.class_names)
    flags = {
        "event": place_of(event, names),
        "rows_per_source": rows_per_source,
        "unchanged": unchanged,
    }
    chosen = make_method(method, option, clean, **flags, leave_alone=leave_alone or None)
    check_asker(asker)
    if campaign is not None:
        check_campaign(campaign)
    found = described(
        chosen,
        to_nano(epsilon),
        sources=sources,
        rows_per_person=rows_per_person,
        rows_per_source=rows_per_source,
        aggregation=secure_options(aggregation),
        model=model,
        asker=asker,
        campaign=campaign,
        purpose=purpose,
        contact=contact,
    )
    _report(replace(found, class_names=names), html, as_json)


def _check_alone(context: typer.Context) -> None:
    """A question says itself what it asks: an option that says otherwise would be a lie."""
    beside = {"question", "rows_per_person", "purpose", "contact", "html", "as_json"}
    for name in sorted(options_given(context) - beside):
        flag = f"--{name.replace('_', '-')}"
        raise InputError(f"the question says itself what it asks: leave {flag} out")


def _of_letter(
    path: Path, rows_per_person: int, purpose: str | None, contact: str | None
) -> Description:
    document = letters.read_file(path, letters.QUESTION_FORMAT)
    try:
        letter = letters.Letter.read(document)
    except InputError as error:
        raise InputError(f"{path} cannot be used as question: {error}") from None
    return Description(
        letter.known_as, letter.plan, rows_per_person, purpose=purpose, contact=contact
    )


def _report(found: Description, html: Path | None, as_json: bool) -> None:
    if html is not None:
        pages.save(html, description_page(found))
    written = [] if html is None else [f"page: {html}"]
    show(as_json, found.to_dict(), *_parts(found), *written)


def _parts(found: Description) -> list[Text]:
    told = [
        ("What leaves each source", [*found.leaves(), found.stays()]),
        ("Why that is acceptable", found.acceptable()),
        ("What it costs", found.costs()),
        (f"Digest of campaign {found.campaign}, which asker and owners compare", [found.digest]),
    ]
    parts = [Text(found.purpose)] if found.purpose else []
    for title, sentences in told:
        parts += [Text(title, style="bold"), *(Text(f"  {sentence}") for sentence in sentences)]
    return parts
