"""`privcal calibrate --answers`: the map of what came back by mail, or the next question."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import typer

from privcal.calibration.campaign import Campaign, campaign_folder
from privcal.calibration.loop import SourceDropped
from privcal.cli.calibrate_report import save, say_dropped, show_result
from privcal.cli.console import plural, show
from privcal.cli.options import check_page, options_given
from privcal.data.files import check_outputs
from privcal.data.plausible import MAX_SITE_ROWS
from privcal.report.plots import check_picture
from privcal.report.result_pages import UNIT
from privcal.transport.mail.post import MailCampaign, Waiting, find_record
from privcal.trusted.errors import InputError

OPTIONS = {
    "source", "answers", "question", "out", "min_sources", "max_rows", "sketch", "plot",
    "html", "as_json",
}  # fmt: skip
"""The parameters of `calibrate` that go with --answers; all others the campaign was begun with."""
AGAIN = "the same command reads its answers again, free of charge"


def by_mail(
    context: typer.Context,
    files: Sequence[Path],
    question: Path | None,
    out: Path,
    min_sources: int | None,
    max_rows: int | None,
    sketch: Path | None,
    plot: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Go on with a campaign by mail, as far as its answers go."""
    _check_options(context)
    answers = _answers(files)
    check_picture(plot)
    check_page(html)
    check_outputs([out, sketch, plot, html], [*answers, question])
    folder = find_record(answers, Path()) if question is None else campaign_folder(question)
    campaign = MailCampaign(Campaign.resume(folder))
    check_outputs([out, sketch, plot, html], [campaign.question])
    most = MAX_SITE_ROWS if max_rows is None else max_rows
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceDropped)  # said afterwards
            result, names = campaign.go_on(
                answers,
                min_sources=min_sources,
                max_rows=most,
            )
    except Waiting as waiting:
        _say_next(campaign.send(waiting), waiting, as_json)
        return
    save(result, out, sketch)
    say_dropped(result)
    public = getattr(campaign.method(), "public", None)
    show_result(result, names, public, out, sketch, plot, html, UNIT, most, as_json, False, AGAIN)


def _answers(files: Sequence[Path]) -> list[Path]:
    """The files of answers; of a folder, all of its own."""
    found: list[Path] = []
    for file in files:
        found += sorted(file.glob("*.json")) if file.is_dir() else [file]
    if not found:
        raise InputError("there are no answers: name their files, or the folder they are in")
    return list(dict.fromkeys(found))


def _check_options(context: typer.Context) -> None:
    """What the campaign was begun with must not be on the command line."""
    for name in sorted(options_given(context) - OPTIONS):
        raise InputError(
            f"--{name.replace('_', '-')} was said when the campaign began: leave it out with "
            "--answers"
        )


def _say_next(path: Path, waiting: Waiting, as_json: bool) -> None:
    number, names = waiting.round + 1, list(waiting.names)
    facts = {
        "map": None,
        "next": str(path),
        "round": number,
        "rounds": waiting.rounds,
        "sources": names,
    }
    show(
        as_json,
        facts,
        f"{path}: question {number} of {waiting.rounds}; no map yet",
        f"Send it to the {plural(len(names), 'source')} that answered all before: {', '.join(names)}",
        "Then run the same command with their new answers.",
    )
