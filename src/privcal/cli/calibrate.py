"""`privcal calibrate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from privcal.calibration import default, methods
from privcal.calibration.campaign import Campaign, Recorded, check_begun
from privcal.cli.calibrate_answers import by_mail
from privcal.cli.calibrate_run import (
    Again,
    Aggregation,
    Asked,
    CampaignName,
    Epsilon,
    Event,
    MaxRows,
    MethodName,
    MethodOptions,
    MinSources,
    Model,
    PublicRows,
    Request,
    RowsPerSource,
    SketchOut,
    check_files,
    check_kept,
    make_method,
    run,
    secure_options,
)
from privcal.cli.console import note
from privcal.cli.ledger import read_list
from privcal.cli.options import (
    Classes,
    Columns,
    Json,
    LeaveAlone,
    LedgerFolder,
    PageOut,
    PerRow,
    Person,
    PrivatePlot,
    SourceColumn,
    SourceList,
    Unchanged,
    check_page,
    columns_of,
    words,
)
from privcal.data.files import check_outputs
from privcal.data.panels import LocalPanel, Panel
from privcal.data.sources import class_names_of, open_sources, read_public, whom
from privcal.data.wording import name_of, place_of
from privcal.report.plots import check_picture
from privcal.secure import need_cryptography
from privcal.secure.panel import Secure, SecurePanel
from privcal.trusted.errors import InputError
from privcal.trusted.policy import Policy
from privcal.trusted.source import Source

NO_OUT = "say with --out where to write the map"

Files = Annotated[
    list[Path] | None, typer.Argument(help="Scores of each source: .npz, .npy, .parquet or .csv.")
]
MapOut = Annotated[
    Path | None,
    typer.Option(help="Where to write the map (JSON). Required, but for a rehearsal."),
]
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        help="On data that you may look at: say how the run would go, what it would cost, and how "
        "wrong every method is. Ledgers are in memory, and nothing is written.",
    ),
]
NarrowerPolicy = Annotated[
    Path | None,
    typer.Option(help="Rules (TOML) that narrow the owners'; of new ledgers, their rules."),
]
NewLedger = Annotated[
    bool,
    typer.Option(
        "--new-ledger",
        help="Make ledgers for data that never had any (with --person or --per-row).",
    ),
]
Asker = Annotated[str, typer.Option(help="Who asks, as the owners' policies name them.")]
ByMail = Annotated[
    bool,
    typer.Option(
        "--answers", help="The files are answers that came by mail (privcal campaign new)."
    ),
]
FirstQuestion = Annotated[
    Path | None,
    typer.Option(
        help="With --answers: the campaign's first question, if it is not in this folder."
    ),
]


def calibrate(
    context: typer.Context,
    source: Files = None,
    out: MapOut = None,
    rehearse: Rehearse = False,
    answers: ByMail = False,
    question: FirstQuestion = None,
    method: MethodName = None,
    epsilon: Epsilon = 1.0,
    option: MethodOptions = None,
    source_column: SourceColumn = None,
    source_list: SourceList = None,
    policy: NarrowerPolicy = None,
    ledger_dir: LedgerFolder = None,
    new_ledger: NewLedger = False,
    person: Person = None,
    per_row: PerRow = False,
    columns: Columns = None,
    classes: Classes = None,
    min_sources: MinSources = None,
    model: Model = None,
    again: Again = False,
    max_rows: MaxRows = None,
    aggregation: Aggregation = "each",
    asker: Asker = "local",
    campaign: CampaignName = None,
    public: PublicRows = None,
    event: Event = None,
    rows_per_source: RowsPerSource = None,
    unchanged: Unchanged = None,
    leave_alone: LeaveAlone = False,
    sketch: SketchOut = None,
    plot: PrivatePlot = None,
    html: PageOut = None,
    as_json: Json = False,
) -> None:
    """Recalibrate from the private answers of many sources, and write the map.

    Every source keeps a durable ledger with its owner's rules (`privcal ledger create`). Before
    any source is charged, privcal checks that enough of them can answer and pay for every question.
    The same command never pays twice: it resumes an interrupted run, and reads the answers of a
    finished one again. --again asks the sources again. Sites of a federation are asked with
    `privcal federation calibrate`.

    Examples:

    `privcal calibrate clinic-*.npz --epsilon 1 --out map.json`

    `privcal calibrate own-*.npz --rehearse`

    `privcal calibrate new.npz --new-ledger --per-row --out map.json`

    `privcal calibrate icu.csv --source-column hospital --method acc-t --option iterations=4 --out map.json`

    `privcal calibrate clinic-*.npz --public clean.npz --sketch sketch.json --out map.json`

    `privcal calibrate clinic-*.csv --event 1 --plot risk.png --out map.json`

    `privcal calibrate clinic-*.csv --aggregation secure,needed=8 --out map.json`

    `privcal calibrate --answers answers/*.json --out map.json`
    """
    files = source or []
    secure = secure_options(aggregation)
    if secure is not None:
        _check_secure(answers, rehearse)
    if answers and not rehearse:
        if out is None:
            raise InputError(NO_OUT)
        by_mail(context, files, question, out, min_sources, max_rows, sketch, plot, html, as_json)
        return
    if question is not None:
        raise InputError("--question is for --answers")
    named, method = method, method or default.METHOD
    _check_who(files, max_rows)
    check_files(method, public=public, sketch=sketch, plot=plot)
    layout: dict[str, Any] = {
        "columns": columns_of(columns),
        "class_names": words(classes),
    }
    clean = None if public is None else read_public(public, files, **layout)
    names = layout["class_names"] or (None if clean is None else clean.class_names)
    if names is None and files and event is not None:
        names = class_names_of(files[0], **layout)
    flags = {
        "event": place_of(event, names),
        "rows_per_source": rows_per_source,
        "unchanged": unchanged,
    }
    chosen = make_method(method, option, clean, **flags, leave_alone=leave_alone or None)
    check_kept(chosen, sketch=sketch, plot=plot)
    if rehearse:
        from privcal.cli import rehearse as rehearsal  # the demo, the simulation

        _check_rehearsal(new_ledger, sketch, html, campaign, answers, again)
        check_picture(plot)
        check_outputs([plot], [*files, source_list, policy, public])
        rehearsal.run(
            files,
            chosen,
            epsilon,
            source_column=source_column,
            source_names=read_list(source_list),
            model=model,
            policy=policy,
            ledger_dir=ledger_dir,
            person=whom(files, person, per_row)[0],
            layout=layout,
            min_sources=min_sources,
            asker=asker,
            public=clean,
            named=named is not None,
            plot=plot,
            as_json=as_json,
        )
        return
    if out is None:
        raise InputError(NO_OUT)
    request = Request(
        chosen,
        epsilon,
        public,
        model,
        asker,
        campaign,
        min_sources,
        out,
        sketch,
        again,
        named=named is not None,
        secure=secure,
        class_names=names,
    )
    request.check([*files, source_list, policy, public], plot)
    check_page(html)
    check_outputs([out, sketch, html], [*files, source_list, policy, public])
    about = {
        "asker": asker,
        "files": [str(path.resolve()) for path in files],
        "column": source_column,
    }
    check_begun(out, request.plan(**about), again, campaign)
    if new_ledger and secure is not None:
        _check_new_rules(secure, policy)
    sources = open_sources(
        files,
        source_column=source_column,
        source_names=read_list(source_list),
        model=model,
        policy=policy,
        ledger_dir=ledger_dir,
        new_ledgers=new_ledger,
        person=person,
        per_row=per_row,
        **layout,
        epsilon=epsilon,
        queries=request.planned(),
        public=clean,
        tell=note,
    )
    check_outputs([out, sketch, plot], [source.ledger.path for source in sources])
    _say_target(chosen, sources)
    run(request, _sources(request, sources, about), clean, plot, html, as_json)


def _check_new_rules(secure: Secure, policy: Path | None) -> None:
    """Rules without a word of secure sums let everybody else together learn ε, and no more."""
    told = None if policy is None else Policy.load(policy).secure
    if told is None and secure.alone != 1:
        raise InputError(
            "new ledgers let answers go into secure sums where their policy says so: give --policy a "
            "file with [secure] and how many sources may be colluding in it"
        )


def _check_who(files: list[Path], max_rows: int | None) -> None:
    if not files:
        raise InputError(
            "there are no sources: name their files; sites of a federation are asked with privcal "
            "federation calibrate"
        )
    if letter := next((file for file in files if file.suffix.lower() == ".json"), None):
        raise InputError(f"{letter} holds no scores; of answers by mail, say --answers")
    if max_rows is not None:
        raise InputError("--max-rows is for --answers")


def _check_secure(answers: bool, rehearse: bool) -> None:
    """An InputError where secure sums cannot be asked for as it is wanted."""
    if answers:
        raise InputError(
            "answers by mail come from one source each: secure sums are for sources of your own, or "
            "for a federation (privcal federation calibrate)"
        )
    if rehearse:
        raise InputError(
            "a rehearsal asks each source by itself: leave out --aggregation (privcal study compares both)"
        )
    need_cryptography()


def _check_rehearsal(*kept: object) -> None:
    if any(kept):
        raise InputError(
            "a rehearsal makes no ledger, keeps no sketch, writes no page and is no campaign: leave out "
            "--new-ledger, --sketch, --html, --campaign, --answers and --again"
        )


def _say_target(method: methods.Method, sources: list[Source]) -> None:
    """Of a single column of probabilities, a risk, two things can be corrected: say which one is."""
    rows = [source.rows_in_memory for source in sources]
    if not any(r is not None and r.outputs.binary_column for r in rows):
        return
    names = next((r.class_names for r in rows if r is not None and r.class_names), None)
    event = getattr(method, "event", None)
    if event is None:
        how = "--event 1" if hasattr(method, "event") else "--method sketch --event 1"
        note(
            f"this corrects how far the predicted class can be trusted; {how} corrects the "
            f"probability of class {name_of(1, names)} itself, the risk, for the same epsilon"
        )
    else:
        note(
            f"this corrects the risk of class {name_of(event, names)}; without --event, how far the "
            "predicted class can be trusted is corrected"
        )


def _sources(request: Request, sources: list[Source], about: dict[str, Any]) -> Asked:
    local = LocalPanel(sources, request.asker)
    named = {source.ledger.id: source.name for source in sources}
    campaign = request.begin(**about, sources=named)
    ledgers = [source.ledger for source in sources if source.ledger.exists]
    before = [ledger.spent for ledger in ledgers]
    unit = str(sources[0].unit)
    return Asked(
        lambda tell: _together(local, request.secure, campaign),
        campaign,
        unit,
        lambda: [ledger.spent for ledger in ledgers] == before,
    )


@contextmanager
def _together(
    local: LocalPanel, secure: Secure | None, campaign: Campaign
) -> Iterator[Panel | SecurePanel]:
    if secure is None:
        yield Recorded(local, campaign)
        return
    from privcal.secure.local import LocalWay  # cryptography

    yield SecurePanel(LocalWay(local), secure, campaign)
