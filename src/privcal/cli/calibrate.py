"""`privcal calibrate`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

import privcal
from privcal.calibration import default, methods
from privcal.calibration.campaign import Campaign, Recorded, check_begun, open_campaign
from privcal.calibration.loop import (
    AGGREGATIONS,
    Progress,
    Result,
    SourceDropped,
    Stopped,
    enough,
    usual_least,
)
from privcal.calibration.methods.options import listed
from privcal.cli.calibrate_answers import by_mail
from privcal.cli.calibrate_report import save, say_dropped, show_result, step_text
from privcal.cli.console import note, progress_bar
from privcal.cli.exits import Interrupted
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
from privcal.cli.systems import need_posix
from privcal.data.files import check_outputs
from privcal.data.panels import LocalPanel, Panel, away_from
from privcal.data.plausible import MAX_SITE_ROWS
from privcal.data.scores import Scores
from privcal.data.sources import class_names_of, open_sources, read_public, whom
from privcal.data.wording import name_of, place_of
from privcal.report.plots import check_picture
from privcal.report.result_pages import UNIT
from privcal.secure import need_cryptography
from privcal.secure.panel import Secure, SecurePanel
from privcal.transport.federation import need_flare
from privcal.trusted.checks import one_of
from privcal.trusted.epsilon import to_nano
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.policy import Policy
from privcal.trusted.queries import Query
from privcal.trusted.question import check_asker, check_campaign
from privcal.trusted.source import Source

MAX_SOURCES = 10**6
NO_OUT = "say with --out where to write the map"
AGAIN = "the same command reads its answers again, free of charge; --again asks and pays again"

Files = Annotated[
    list[Path] | None, typer.Argument(help="Scores of each source: .npz, .npy, .parquet or .csv.")
]
Federation = Annotated[
    Path | None,
    typer.Option(help="Ask the sites of a federation instead: your start-up kit's folder."),
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
MethodName = Annotated[
    str | None,
    typer.Option(
        help=f"One of: {', '.join(n for n in methods.names() if n != 'one-source')}. By default "
        f"{default.METHOD}, which `privcal advise` recommends."
    ),
]


def _list_options(texts: list[str]) -> list[str]:
    """With `--option help`: the options of every method, whatever else was given."""
    if "help" in (texts or ()):
        for name in methods.names():
            print(f"{name}: {listed(methods.find(name)) or 'none'}")
        raise typer.Exit
    return texts


MethodOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        callback=_list_options,
        is_eager=True,
        help="An option of the method, as bins=20 or bounds=0.5,6; may be repeated. "
        "`--option help` lists those of all methods with their defaults.",
    ),
]
Epsilon = Annotated[float, typer.Option(help="Budget of this run at each source.")]
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
MinSources = Annotated[
    int | None,
    typer.Option(
        "--min-sources",
        "--min-sites",
        help="Fail if fewer sources than this can answer; by default if more than a tenth of them, and "
        "more than one, cannot.",
    ),
]
Model = Annotated[str | None, typer.Option(help="The model's name.")]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Ask the sources again, and pay again. The result at --out is kept under another name. "
        "Without this option stored answers are read again, free of charge.",
    ),
]
SiteTimeout = Annotated[
    int, typer.Option(help="With --federation: seconds a site has for one reply.")
]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="SITE", help="With --federation: do not ask this site; may be repeated."),
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        help="With --federation and --answers: distrust answers that more rows would be needed for; by "
        "default 1,000,000. Give a bound near the truth where there are fewer than 8 sites."
    ),
]
RowsPerPerson = Annotated[
    int, typer.Option(help="With --federation: how many rows of a person the sites count.")
]
Aggregation = Annotated[
    str,
    typer.Option(
        metavar="each|secure",
        help="each: every source answers by itself, with noise of its own. secure: they answer in sums "
        "of which nobody sees a part, with hardly more noise than one of them adds otherwise.",
    ),
]
Colluding = Annotated[
    int | None,
    typer.Option(
        help="With --aggregation secure: how many sources may work with you; by default what their owners "
        "say, else a fifth."
    ),
]
Needed = Annotated[
    int | None,
    typer.Option(
        help="With --aggregation secure: how many must answer. More mean less noise, and fewer that may "
        "fail; by default nine tenths."
    ),
]
Alone = Annotated[
    int | None,
    typer.Option(
        help="With --aggregation secure: how many times epsilon all others together may learn of a source; "
        "by default 10."
    ),
]
Groups = Annotated[
    int,
    typer.Option(
        help="With --aggregation secure, from 60 sources on: sum them in so many groups and take the "
        "median, so that a false answer spoils one group."
    ),
]
Asker = Annotated[str, typer.Option(help="Who asks, as the owners' policies name them.")]
CampaignName = Annotated[
    str | None,
    typer.Option(help="Names the run; asked again under it, stored answers come back free."),
]
PublicRows = Annotated[
    Path | None,
    typer.Option(
        help="For sketch: clean labelled scores of your own. These rows get no privacy: the "
        "map depends on them exactly."
    ),
]
Event = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS",
        help="For sketch: correct the risk of this class (its name, or its number from 0 on), whether "
        "it is predicted or not. By default the trust in the predicted class is corrected.",
    ),
]
RowsPerSource = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        help="For sketch: your guess of how many rows a source has, by which it is decided how "
        "finely to ask; twice or half as many hardly matters. By default what the owners tell, "
        "else 30.",
    ),
]
SketchOut = Annotated[
    Path | None,
    typer.Option(help="For sketch: save the noisy answers too, to merge and read again."),
]


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
    federation: Federation = None,
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
    site_timeout: SiteTimeout = 120,
    without: Without = None,
    max_rows: MaxRows = None,
    rows_per_person: RowsPerPerson = 1,
    aggregation: Aggregation = "each",
    colluding: Colluding = None,
    needed: Needed = None,
    alone: Alone = None,
    groups: Groups = 1,
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
    finished one again. --again asks the sources again.

    Examples:

    `privcal calibrate clinic-*.npz --epsilon 1 --out map.json`

    `privcal calibrate own-*.npz --rehearse`

    `privcal calibrate new.npz --new-ledger --per-row --out map.json`

    `privcal calibrate icu.csv --source-column hospital --method acc-t --option iterations=4 --out map.json`

    `privcal calibrate clinic-*.npz --public clean.npz --sketch sketch.json --out map.json`

    `privcal calibrate clinic-*.csv --event 1 --plot risk.png --out map.json`

    `privcal calibrate --federation kits/me@lab.org --model resnet50-v3 --min-sites 3 --out map.json`

    `privcal calibrate --federation kits/me@lab.org --model resnet50-v3 --aggregation secure --out map.json`

    `privcal calibrate --answers answers/*.json --out map.json`
    """
    files = source or []
    secure = secure_options(aggregation, colluding, needed, alone, groups)
    if secure is not None:
        _check_secure(answers, rehearse, rows_per_person)
        if min_sources is None and secure.needed is not None:
            min_sources = secure.needed * secure.groups
    if answers and not rehearse:
        if out is None:
            raise InputError(NO_OUT)
        by_mail(context, files, question, out, min_sources, max_rows, sketch, plot, html, as_json)
        return
    if question is not None:
        raise InputError("--question is for --answers")
    named, method = method, method or default.METHOD
    theirs = (source_column, source_list, policy, ledger_dir, person, columns, *files)
    owned = asker != "local" or new_ledger or per_row or any(v is not None for v in theirs)
    distant = max_rows is not None or rows_per_person != 1 or without is not None
    _check_who(federation, files, owned, distant)
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
    _check_kept(chosen, sketch=sketch, plot=plot)
    if rehearse:
        from privcal.cli import rehearse as rehearsal  # the demo, the simulation

        _check_rehearsal(federation, new_ledger, sketch, html, campaign, answers, again)
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
    request = _Request(
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
    if federation is None:
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
        asked = _sources(request, sources, about)
    else:
        most = MAX_SITE_ROWS if max_rows is None else max_rows
        asked = _sites(
            request,
            federation,
            most,
            timeout=site_timeout,
            without=without or (),
            rows_per_person=rows_per_person,
        )
    result, names, of = _ask(request, asked)
    say_dropped(result)
    where = (asked.unit, asked.max_rows)
    show_result(result, names, clean, out, sketch, plot, html, *where, as_json, asked.free(), AGAIN)
    if min_sources is None and result.answered < usual_least(of):
        raise CalibrationError(
            f"only {result.answered} of {of} sources answered everything; the map of these is "
            f"written all the same{enough(result.answered)}",
            (),
        )


@dataclass(frozen=True)
class _Request:
    """What is asked, and where the results go, whoever is asked."""

    method: methods.Method
    epsilon: float
    public: Path | None
    """The file of the option `public`."""
    model: str | None
    asker: str
    campaign: str | None
    min_sources: int | None
    out: Path
    sketch: Path | None
    again: bool
    named: bool
    """Whether the asker named the method; otherwise it is said why it is this one."""
    secure: Secure | None = None
    """What is said of secure sums; None where each source answers by itself."""
    class_names: Sequence[str] | None = None

    def check(self, inputs: list[Path | None], plot: Path | None) -> None:
        """Whatever is wrong with the request is said before a ledger is made."""
        # How many sources there are is not known yet. What needs many is refused when it is.
        self.planned()
        check_asker(self.asker)
        if self.campaign is not None:
            check_campaign(self.campaign)
        check_picture(plot)
        check_outputs([self.out, self.sketch, plot], inputs)

    def planned(self) -> list[Query]:
        """What may be asked."""
        asks = methods.plan(self.method, to_nano(self.epsilon), sources=MAX_SOURCES)
        return [ask.for_run(0) for _, _, ask in asks]

    def plan(self, **more: Any) -> dict[str, Any]:
        """What is asked, as a campaign's record has it."""
        plan = {
            "method": self.method.name,
            "epsilon": self.epsilon,
            "model": self.model,
            "options": {k: v for k, v in self.method.options().items() if k != "public"},
            "public": None if self.public is None else str(self.public),
            "secure": None if self.secure is None else asdict(self.secure),
            **more,
        }
        return dict(json.loads(json.dumps(plan)))

    def begin(self, **more: Any) -> Campaign:
        """The record of the campaign; one that goes on must ask the same."""
        campaign = open_campaign(self.out, self.plan(**more), self.again, self.campaign)
        name = campaign.plan["campaign"]
        if campaign.finished:
            note(
                f"campaign {name} asked this already: its answers are read again, free of charge; "
                "--again asks and pays again"
            )
        elif Campaign.began(campaign.folder):
            note(f"going on with campaign {name}, which was interrupted")
        return campaign


@dataclass(frozen=True)
class _Asked:
    """Those who are asked, and what depends on who they are."""

    panel: AbstractContextManager[Panel | SecurePanel]
    campaign: Campaign
    unit: str
    free: Callable[[], bool]
    """Whether the run charged nobody, as far as that can be seen, once it is done."""
    max_rows: int | None = None
    """The bound on a site's rows; None for local sources."""

    @property
    def local(self) -> bool:
        return self.max_rows is None


def _check_new_rules(secure: Secure, policy: Path | None) -> None:
    """Rules without a word of secure sums let everybody else together learn ε, and no more."""
    told = None if policy is None else Policy.load(policy).secure
    if told is None and secure.alone != 1:
        raise InputError(
            "new ledgers let answers go into secure sums where their policy says so: give --policy a "
            "file with [secure] and how many sources may be colluding in it"
        )


def _check_who(federation: Path | None, files: list[Path], owned: bool, distant: bool) -> None:
    """`owned` and `distant`: whether options were given that are for the one or the other."""
    if federation is None:
        if not files:
            raise InputError("there are no sources: name their files, or give --federation")
        if letter := next((file for file in files if file.suffix.lower() == ".json"), None):
            raise InputError(f"{letter} holds no scores; of answers by mail, say --answers")
        if distant:
            raise InputError("--without, --max-rows and --rows-per-person are for --federation")
        return
    if owned:
        raise InputError("sites keep their own data, policies and ledgers: give none of these")
    need_posix()
    need_flare()


def secure_options(
    aggregation: str, colluding: int | None, needed: int | None, alone: int | None, groups: int
) -> Secure | None:
    """What is said of secure sums; None where each source answers by itself."""
    one_of("--aggregation", aggregation, AGGREGATIONS)
    said = Secure(colluding, needed, alone, groups)
    if aggregation == "secure":
        return said
    if said != Secure():
        raise InputError("--colluding, --needed, --alone and --groups are for --aggregation secure")
    return None


def _check_secure(answers: bool, rehearse: bool, rows_per_person: int) -> None:
    """An InputError where secure sums cannot be asked for as it is wanted."""
    if answers:
        raise InputError(
            "answers by mail come from one source each: secure sums are for sources of your own, or "
            "for a federation (--federation)"
        )
    if rehearse:
        raise InputError(
            "a rehearsal asks each source by itself: leave out --aggregation (privcal study compares both)"
        )
    if rows_per_person != 1:
        raise InputError(
            "in secure sums the sites tell how many rows of a person count: leave out --rows-per-person"
        )
    need_cryptography()


def _check_rehearsal(federation: Path | None, *kept: object) -> None:
    if federation is not None:
        raise InputError("a rehearsal looks at rows, and nobody may look at those of a federation")
    if any(kept):
        raise InputError(
            "a rehearsal makes no ledger, keeps no sketch, writes no page and is no campaign: leave out "
            "--new-ledger, --sketch, --html, --campaign, --answers and --again"
        )


def check_files(method: str, **paths: Path | None) -> None:
    """Public rows, a sketch and a picture of it are for methods that have a use for them."""
    cls = methods.find(method)
    for name, path in paths.items():
        fits = cls.takes_public if name == "public" else cls.sketch is not methods.Method.sketch
        if path is not None and not fits:
            raise InputError(f"--{name} is for methods like sketch, not for {method}")


def _check_kept(method: methods.Method, **paths: Path | None) -> None:
    """A run with class offsets leaves no sketch behind that could be saved or drawn."""
    for name, path in paths.items():
        if path is not None and getattr(method, "class_offsets", False):
            raise InputError(f"no sketch is kept with class_offsets: leave out that or --{name}")


def make_method(
    method: str, option: list[str] | None, public: Scores | None, **flags: Any
) -> methods.Method:
    """The method with its options: those of --option, and `flags` of their own that are not None."""
    options = methods.parse_options(method, option or [])
    options |= _flags_of(method, flags, options)
    return methods.make(method, **options, **({} if public is None else {"public": public}))


def _flags_of(method: str, flags: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given as flags of their own, for methods that have a use for them."""
    given = {name: value for name, value in flags.items() if value is not None}
    known = {field.name for field in fields(methods.find(method))}
    for name in given:
        flag = f"--{name.replace('_', '-')}"
        if name not in known:
            raise InputError(f"{flag} is for methods like sketch, not for {method}")
        if name in options:
            raise InputError(f"{name} is given twice: with {flag} and with --option")
    return given


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


def _sources(request: _Request, sources: list[Source], about: dict[str, Any]) -> _Asked:
    local = LocalPanel(sources, request.asker)
    named = {source.ledger.id: source.name for source in sources}
    campaign = request.begin(**about, sources=named)
    panel = _together(local, request.secure, campaign)
    ledgers = [source.ledger for source in sources if source.ledger.exists]
    before = [ledger.spent for ledger in ledgers]
    unit = str(sources[0].unit)
    return _Asked(panel, campaign, unit, lambda: [ledger.spent for ledger in ledgers] == before)


@contextmanager
def _together(
    local: LocalPanel, secure: Secure | None, campaign: Campaign
) -> Iterator[Panel | SecurePanel]:
    if secure is None:
        yield Recorded(local, campaign)
        return
    from privcal.secure.local import LocalWay  # cryptography

    yield SecurePanel(LocalWay(local), secure, campaign)


def _sites(request: _Request, kit: Path, max_rows: int, **settings: Any) -> _Asked:
    from privcal.transport.federation.calibrator import distant  # FLARE

    if request.model is None:
        raise InputError("a campaign names its model: give --model")
    about = {"federation": str(kit.resolve()), "rows_per_person": settings["rows_per_person"]}
    campaign = request.begin(**about)
    if campaign.finished and (left := set(settings["without"]) & set(campaign.sites)):
        raise InputError(
            f"campaign {campaign.plan['campaign']} has the answer of {min(left)}: choose another --out, "
            "or ask anew, and pay again, with --again"
        )
    panel = distant(
        kit,
        campaign,
        request.secure,
        max_rows=max_rows,
        warn=note,
        **settings,
    )
    finished = campaign.finished
    return _Asked(panel, campaign, UNIT, lambda: finished, max_rows)


def _ask(request: _Request, asked: _Asked) -> tuple[Result, list[str], int]:
    """Run the method and write its map; the result, the names of all that were asked, and how many
    should have been."""
    # What was asked before was paid for, whoever would not answer now.
    began = Campaign.began(asked.campaign.folder)
    with _kept(asked), warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceDropped)  # said afterwards
        with progress_bar() as bar:
            task = bar.add_task("opening the sources", total=None)

            def progress(step: Progress) -> None:
                text = step_text(request.method.name, step)
                bar.update(task, description=text, completed=step.answered, total=step.sources)

            with asked.panel as panel:
                if not request.named:
                    note(_why(request, panel))
                result = privcal.calibrate(
                    panel,
                    request.method,
                    request.epsilon,
                    min_sources=request.min_sources or (1 if began else None),
                    asker=request.asker,
                    campaign=str(asked.campaign.plan["campaign"]),
                    model=request.model,
                    class_names=request.class_names,
                    progress=progress,
                )
        save(result, request.out, request.sketch)
        away = 0 if began else away_from(panel)
        return result, list(panel.names), len(panel.names) + away


def _why(request: _Request, panel: Panel | SecurePanel) -> str:
    if getattr(request.method, "event", None) is not None:
        return default.ONLY
    public = request.public is not None
    why = default.why(panel.sources, panel.rows_per_source, request.epsilon, public)
    return (
        why if request.secure is None else f"{why} (for secure sums, which have less noise, ask it)"
    )


@contextmanager
def _kept(asked: _Asked) -> Iterator[None]:
    """The campaign's record stays while it may be needed: until the map is written."""
    record = asked.campaign
    try:
        yield
        record.finish()
    except BaseException as error:
        began = Campaign.began(record.folder)
        if not began or (isinstance(error, Stopped) and error.final):
            record.remove()
        elif not record.finished:
            note(
                "answers already paid for come back free with the same command (campaign "
                f"{record.plan['campaign']})"
            )
        if isinstance(error, KeyboardInterrupt) and began and not record.finished:
            raise Interrupted(
                "what was charged stays charged, and the same command goes on"
            ) from None
        if asked.local and isinstance(error, Stopped) and "over_budget" in error.codes:
            hint = "privcal ledger show FILE tells what is left, privcal ledger policy changes it"
            if asked.campaign.plan["secure"] is not None:
                hint = (
                    "a secure sum costs `alone` times epsilon against all others together, and where a "
                    "policy has no [secure] they may learn its epsilon in all; " + hint
                )
            raise CalibrationError(f"{error}; {hint}", error.spent) from None
        raise
