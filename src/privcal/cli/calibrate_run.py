"""A run that calibrates, whoever is asked: what `privcal calibrate` and `privcal federation calibrate` share."""

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
from privcal.calibration.campaign import Campaign, open_campaign
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
from privcal.cli.calibrate_report import save, say_dropped, show_result, step_text
from privcal.cli.console import note, progress_bar
from privcal.cli.exits import Interrupted
from privcal.data.files import check_outputs
from privcal.data.panels import Panel, away_from
from privcal.data.scores import Scores
from privcal.report.plots import check_picture
from privcal.secure.panel import Secure, SecurePanel
from privcal.trusted.checks import one_of
from privcal.trusted.epsilon import to_nano
from privcal.trusted.errors import CalibrationError, InputError
from privcal.trusted.queries import Query
from privcal.trusted.question import check_asker, check_campaign

MAX_SOURCES = 10**6
AGAIN = "the same command reads its answers again, free of charge; --again asks and pays again"

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
MaxRows = Annotated[
    int | None,
    typer.Option(
        help="With --federation and --answers: distrust answers that more rows would be needed for; by "
        "default 1,000,000. Give a bound near the truth where there are fewer than 8 sites."
    ),
]
Aggregation = Annotated[
    str,
    typer.Option(
        metavar="each|secure[,NAME=N…]",
        help="each: every source answers by itself, with noise of its own. secure: they answer in sums "
        "of which nobody sees a part, with hardly more noise than one of them adds otherwise; as "
        "secure,needed=8,colluding=2. needed: how many must answer (by default nine tenths). "
        "colluding: how many may work with you (by default what their owners say, else a fifth). "
        "alone: how many times epsilon all others together may learn of a source (10). groups: from "
        "60 sources on, sum them in so many groups and take the median (1).",
    ),
]
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


@dataclass(frozen=True)
class Request:
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

    @property
    def least(self) -> int | None:
        """How many sources must answer, where that is said."""
        if self.min_sources is None and self.secure is not None and self.secure.needed is not None:
            return self.secure.needed * self.secure.groups
        return self.min_sources

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
class Asked:
    """Those who are asked, and what depends on who they are."""

    panel: Callable[[Callable[[str], None]], AbstractContextManager[Panel | SecurePanel]]
    """Is given what is told in a sentence while the run waits."""
    campaign: Campaign
    unit: str
    free: Callable[[], bool]
    """Whether the run charged nobody, as far as that can be seen, once it is done."""
    max_rows: int | None = None
    """The bound on a site's rows; None for local sources."""

    @property
    def local(self) -> bool:
        return self.max_rows is None


def secure_options(aggregation: str) -> Secure | None:
    """What is said of secure sums; None where each source answers by itself.

    >>> secure_options("secure,needed=8")
    Secure(colluding=None, needed=8, alone=None, groups=1)
    """
    how, *parts = aggregation.split(",")
    one_of("--aggregation", how, AGGREGATIONS)
    known = {one.name for one in fields(Secure)}
    said: dict[str, int] = {}
    for name, _, value in (part.partition("=") for part in parts):
        if how != "secure" or name not in known or not value.isdecimal():
            raise InputError(
                f"--aggregation takes each, or secure with {', '.join(sorted(known))}, as "
                f"secure,needed=8; not {aggregation!r}"
            )
        said[name] = int(value)
    return Secure(**said) if how == "secure" else None


def check_files(method: str, **paths: Path | None) -> None:
    """Public rows, a sketch and a picture of it are for methods that have a use for them."""
    cls = methods.find(method)
    for name, path in paths.items():
        fits = cls.takes_public if name == "public" else cls.sketch is not methods.Method.sketch
        if path is not None and not fits:
            raise InputError(f"--{name} is for methods like sketch, not for {method}")


def check_kept(method: methods.Method, **paths: Path | None) -> None:
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


def run(
    request: Request,
    asked: Asked,
    public: Scores | None,
    plot: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Ask, write the map, and say what came of it."""
    result, names, of = _ask(request, asked)
    say_dropped(result)
    outputs = (request.out, request.sketch, plot, html)
    where = (asked.unit, asked.max_rows)
    show_result(result, names, public, *outputs, *where, as_json, asked.free(), AGAIN)
    if request.least is None and result.answered < usual_least(of):
        raise CalibrationError(
            f"only {result.answered} of {of} sources answered everything; the map of these is "
            f"written all the same{enough(result.answered)}",
            (),
        )


def _ask(request: Request, asked: Asked) -> tuple[Result, list[str], int]:
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

            with asked.panel(lambda text: bar.update(task, description=text)) as panel:
                if not request.named:
                    note(_why(request, panel))
                result = privcal.calibrate(
                    panel,
                    request.method,
                    request.epsilon,
                    min_sources=request.least or (1 if began else None),
                    asker=request.asker,
                    campaign=str(asked.campaign.plan["campaign"]),
                    model=request.model,
                    class_names=request.class_names,
                    progress=progress,
                )
        save(result, request.out, request.sketch)
        away = 0 if began else away_from(panel)
        return result, list(panel.names), len(panel.names) + away


def _why(request: Request, panel: Panel | SecurePanel) -> str:
    if getattr(request.method, "event", None) is not None:
        return default.ONLY
    public = request.public is not None
    why = default.why(panel.sources, panel.rows_per_source, request.epsilon, public)
    return (
        why if request.secure is None else f"{why} (for secure sums, which have less noise, ask it)"
    )


@contextmanager
def _kept(asked: Asked) -> Iterator[None]:
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
