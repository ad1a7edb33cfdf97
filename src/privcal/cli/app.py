"""The command line."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

import privcal
from privcal.cli.advise import command as advise_command
from privcal.cli.audit import command as audit_command
from privcal.cli.console import Json, errors, human, print_json, progress_bar
from privcal.cli.data import app as data_app
from privcal.cli.federation import app as federation_app
from privcal.cli.owner import (
    PerRow,
    Person,
    SourceColumn,
    SourceList,
    ledger_app,
    read_list,
    source_app,
)
from privcal.cli.site import app as site_app
from privcal.cli.sketch import Public
from privcal.cli.sketch import app as sketch_app
from privcal.cli.study import app as study_app
from privcal.errors import REFUSALS, CalibrationError, InputError, Refused
from privcal.files import check_outputs

if TYPE_CHECKING:
    from privcal.maps import Map

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Calibrated confidence from private data: correct a classifier's confidence from "
    "differentially private answers of many sources.",
    epilog="Start with `privcal demo`. Every command has `--help` with examples.",
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(source_app, name="source")
app.add_typer(sketch_app, name="sketch")
app.add_typer(study_app, name="study")
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")
app.add_typer(site_app, name="site")
app.command("advise")(advise_command)
app.command("audit")(audit_command)

Bins = Annotated[int, typer.Option(help="Equal-width bins of confidence.")]
Bounds = Annotated[
    tuple[float, float] | None, typer.Option(help="Range of temperatures: lower and upper.")
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"privcal {privcal.__version__}")
        raise typer.Exit


# --- commands ----------------------------------------------------------------------------


@app.command()
def demo(
    shift: Annotated[
        str, typer.Option(help="A corruption of CIFAR-10-C, or clean.")
    ] = "motion_blur",
    sources: Annotated[int, typer.Option(help="How many private sources.")] = 50,
    samples: Annotated[int, typer.Option(help="Rows of each source.")] = 30,
    epsilon: Annotated[float, typer.Option(help="Budget of one method at each source.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For the split; noise is never seeded.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture, maps and ledgers.")] = Path(
        "privcal-demo"
    ),
    as_json: Json = False,
) -> None:
    """Run every method on bundled real data, through real sources with real ledgers.

    Splits the logits of a CIFAR-10 network under a corruption into small private sources and an
    unseen rest, recalibrates with each method, and measures on the rest.

    Example: `privcal demo --shift fog --sources 100 --epsilon 0.5`
    """
    from privcal.demo import run_demo

    with progress_bar() as bar:
        task = bar.add_task("preparing", total=None)

        def progress(method: str, step: Any) -> None:
            if step is None:
                bar.update(task, description=method)
            else:
                bar.advance(task)

        result = run_demo(shift, sources, samples, epsilon, seed, out, progress)
    table = Table(
        title=f"CIFAR-10-C {shift}: {sources} sources of {samples} rows each\n"
        f"measured on {result.test_rows:,} unseen rows, before → after",
        caption="T: temperature. ECE: mean gap between confidence and accuracy. Brier: mean "
        "squared error of the confidence. AURC: mean error rate of the most confident rows, over "
        "all numbers of them (after). Lower is better; read all. ε: charged to each source. "
        "Exact fit: ECE and Brier when the same rows are used without noise, which only public "
        "data like these allow.",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,  # fits in 80 columns
        pad_edge=False,
    )
    for name in ("method", "T", "ECE", "Brier", "AURC", "ε", "exact fit"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in result.rows:
        temperature = _temperature(row.map)
        table.add_row(
            row.method,
            row.map.kind if temperature is None else f"{temperature:.3f}",
            f"{row.before.ece:.3f} → {row.after.ece:.3f}",
            f"{row.before.brier:.3f} → {row.after.brier:.3f}",
            f"{row.after.aurc:.3f}",
            f"{row.spent:g}",
            f"{row.exact.ece:.3f}, {row.exact.brier:.3f}" if row.exact else "",
        )
    files = {
        "reliability diagrams": result.out / "reliability.png",
        "maps": result.out / "maps",
        "ledgers": result.out / "ledgers",
    }
    console = human(as_json)
    console.print(table)
    for what, path in files.items():
        console.print(f"{what}: {path}" + (" (of this demo alone)" if what == "ledgers" else ""))
    if as_json:
        print_json(
            {
                "shift": shift,
                "sources": sources,
                "samples": samples,
                "epsilon": epsilon,
                "seed": seed,
                "test_rows": result.test_rows,
                "methods": [
                    {
                        "method": row.method,
                        "temperature": _temperature(row.map),
                        "epsilon_spent": row.spent,
                        "before": row.before.to_dict(),
                        "after": row.after.to_dict(),
                        "exact": row.exact.to_dict() if row.exact else None,
                    }
                    for row in result.rows
                ],
                "files": {what: str(path) for what, path in files.items()},
            }
        )


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="Where to write the map (JSON).")],
    source: Annotated[
        list[Path] | None,
        typer.Argument(help="Scores of each source: .npz, .npy, .parquet or .csv."),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(help="Ask the sites of a federation instead: your start-up kit's folder."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="One of: " + ", ".join(privcal.methods.names()))
    ] = "acc-t",
    epsilon: Annotated[float, typer.Option(help="Budget of this run at each source.")] = 1.0,
    source_column: SourceColumn = None,
    source_list: SourceList = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Rules (TOML) that narrow the owners'; of new ledgers, their rules."),
    ] = None,
    ledger_dir: Annotated[
        Path | None, typer.Option(help="Folder of the ledgers; by default beside the data.")
    ] = None,
    new_ledger: Annotated[
        bool,
        typer.Option(
            "--new-ledger",
            help="Make ledgers for data that never had any (with --person or --per-row).",
        ),
    ] = False,
    person: Person = None,
    per_row: PerRow = False,
    min_sources: Annotated[
        int, typer.Option("--min-sources", "--min-sites", help="Stop if fewer are left.")
    ] = 1,
    model: Annotated[str | None, typer.Option(help="The model's name.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="With --federation: go on with an interrupted campaign."),
    ] = False,
    site_timeout: Annotated[
        int, typer.Option(help="With --federation: seconds a site has for one reply.")
    ] = 120,
    max_rows: Annotated[
        int | None,
        typer.Option(
            help="With --federation: distrust answers that more rows would be needed for; by "
            "default 1,000,000. Give a bound near the truth where there are fewer than 8 sites."
        ),
    ] = None,
    rows_per_person: Annotated[
        int, typer.Option(help="With --federation: how many rows of a person the sites count.")
    ] = 1,
    asker: Annotated[
        str, typer.Option(help="Who asks, as the owners' policies name them.")
    ] = "local",
    campaign: Annotated[
        str | None,
        typer.Option(help="Names the run; asked again under it, stored answers come back free."),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Shrinkages of the search (K).")] = None,
    bounds: Bounds = None,
    bins: Annotated[int | None, typer.Option(help="Bins of ece-t and histogram binning.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest loss of a row in nll-t.")] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            help="For sketch: clean labelled scores of your own. These rows get no privacy: the "
            "map depends on them exactly."
        ),
    ] = None,
    sketch: Annotated[
        Path | None,
        typer.Option(help="For sketch: save the noisy answers too, to merge and read again."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="For sketch: estimated reliability diagram (.png, .svg, .pdf)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recalibrate from the private answers of many sources, and write the map.

    Every source keeps a durable ledger with its owner's rules (`privcal ledger create`). Before
    anybody is charged it is checked that enough sources can answer, and pay, everything. Where a
    run was interrupted, the same command goes on, and answers already paid for come back free.

    Examples:

    `privcal calibrate clinic-*.npz --method acc-t --epsilon 1 --out map.json`

    `privcal calibrate new.npz --new-ledger --per-row --out map.json`

    `privcal calibrate icu.csv --source-column hospital --out map.json`

    `privcal calibrate clinic-*.npz --method sketch --public clean.npz --sketch sketch.json
    --out map.json`

    `privcal calibrate --federation kits/me@lab.org --model resnet50-v3 --min-sites 3 --out map.json`
    """
    from numpy.random import default_rng

    from privcal.calibrate import Here, SourceDropped
    from privcal.calibrate import Progress as Step
    from privcal.campaign import Campaign, Recorded, campaign_folder, open_campaign
    from privcal.methods.base import Batch
    from privcal.plausible import FEWEST, IMPLAUSIBLE, MAX_ROWS
    from privcal.plots import check_picture, save_private_reliability
    from privcal.privacy.epsilon import to_nano
    from privcal.privacy.ledger import Key
    from privcal.sketch.report import document, headline, tell
    from privcal.sources import check_public

    source = source or []
    if federation is None:
        if not source:
            raise InputError("there are no sources: name their files, or give --federation")
        if resume or max_rows is not None or rows_per_person != 1:
            raise InputError("--resume, --max-rows and --rows-per-person are for --federation")
    else:
        theirs = (source_column, source_list, policy, ledger_dir, person)
        own = source or asker != "local" or new_ledger or per_row
        if own or any(v is not None for v in theirs):
            raise InputError("sites keep their own data, policies and ledgers: give none of these")
        if model is None:
            raise InputError("a campaign names its model: give --model")
        if importlib.util.find_spec("nvflare") is None:
            raise InputError("--federation needs FLARE: pip install 'privcal[federation]'")
    if method != "sketch":
        for name, value in (("public", public), ("sketch", sketch), ("plot", plot)):
            if value is not None:
                raise InputError(f"--{name} is for --method sketch alone, not for {method}")
    check_picture(plot)
    options: dict[str, Any] = {
        name: value
        for name, value in (
            ("iterations", iterations),
            ("bounds", bounds),
            ("bins", bins),
            ("clip", clip),
        )
        if value is not None
    }
    if public is not None:
        check_public(public, source)
        options["public"] = privcal.read_scores(public)
    # Whatever is wrong with the request is said before a ledger is made.
    next(
        privcal.methods.make(method, **options).run(Batch(1, to_nano(epsilon), default_rng())), None
    )
    if campaign is not None and "/" in campaign:
        raise InputError(f"a campaign's name cannot contain a slash: {campaign!r}")
    Key.parse(asker, campaign or "unnamed")
    outputs = [path for path in (out, sketch, plot) if path is not None]
    inputs = [path for path in (*source, policy, public) if path is not None]
    check_outputs(outputs, inputs)
    said = {k: v for k, v in options.items() if k != "public"}
    plan = {"method": method, "epsilon": epsilon, "model": model, "options": said}
    plan["public"] = None if public is None else str(public)
    plan = json.loads(json.dumps(plan))
    panel: Any
    if federation is None:
        sources = privcal.open_sources(
            source,
            source_column=source_column,
            source_names=read_list(source_list),
            model=model,
            policy=policy,
            ledger_dir=ledger_dir,
            new_ledgers=new_ledger,
            person=person,
            per_row=per_row,
            epsilon=epsilon,
            public=options.get("public"),
            tell=lambda text: errors.print(text, soft_wrap=True),
        )
        here = Here(sources, asker)
        plan |= {"asker": asker, "sources": {one.ledger.id: one.name for one in sources}}
        plan |= {"files": [str(path.resolve()) for path in source], "column": source_column}
        resume = Campaign.began(campaign_folder(out))
        begun = open_campaign(out, plan, resume, campaign)
        unit, again = str(sources[0].unit), "the same command"
        panel = nullcontext(Recorded(here, begun))
        if resume:
            errors.print(f"going on with campaign {begun.plan['campaign']}, which was interrupted")
    else:
        from privcal.federation.calibrator import distant

        begun = open_campaign(out, plan, resume, campaign)
        unit = "person, or row where a site has no person ids"
        again = "the same command and --resume"
        panel = distant(
            federation,
            begun,
            timeout=site_timeout,
            max_rows=MAX_ROWS if max_rows is None else max_rows,
            rows_per_person=rows_per_person,
            warn=lambda text: errors.print(text, soft_wrap=True),
        )

    def show(step: Step) -> None:
        bar.update(
            task,
            description=f"{method}: question {step.asked + 1}"
            + _place(step.query)
            + _left(step.dropped),
            completed=step.answered,
            total=step.sources,
        )

    try:
        with progress_bar() as bar, warnings.catch_warnings():
            warnings.simplefilter("ignore", SourceDropped)  # said below
            task = bar.add_task("opening the sources", total=None)
            with panel as asked:
                result = privcal.calibrate(
                    asked,
                    method,
                    epsilon,
                    min_sources=min_sources,
                    asker=asker,
                    campaign=str(begun.plan["campaign"]),
                    model=model,
                    progress=show,
                    **options,
                )
        result.map.save(out)
        if sketch is not None and result.sketch is not None:
            result.sketch.save(sketch)
    except BaseException:
        if Campaign.began(begun.folder):
            errors.print(f"answers already paid for come back free with {again}", soft_wrap=True)
        elif federation is None:
            begun.remove()
        raise
    if federation is None:
        begun.remove()
    reasons = {**REFUSALS, IMPLAUSIBLE: "its answer is not believed; what it was charged is spent"}
    for name, reason in result.dropped.items():
        errors.print(
            f"left out: {name} ({reason}: {reasons.get(reason, 'it failed')})", highlight=False
        )
    console = human(as_json)
    answered = len(result.spent) - len(result.dropped)
    console.print(
        f"{method}: {result.map.describe()}, from {answered} of {len(result.spent)} sources, "
        f"each charged epsilon {max(result.spent):g}; map written to {out}",
    )
    if federation is not None and "left_out" not in result.map.provenance:
        console.print(
            f"With fewer than {FEWEST} sites a false answer cannot be told from the others: only the "
            f"bound of {max_rows or MAX_ROWS:,} rows (--max-rows) limits what one of them could claim.",
            style="dim",
        )
    console.print(
        f"Protected at each source: one {unit}. A person at k sources is exposed to k times epsilon.",
        style="dim",
    )
    estimated: dict[str, Any] = {}
    if result.sketch is not None:
        spent = result.sketch.epsilon
        evaluation = result.sketch.evaluate(options.get("public"))
        tell(console, evaluation, spent)
        estimated = {"evaluation": document(evaluation, spent)}
        if sketch is not None:
            console.print(f"sketch, to merge and read again: {sketch}")
            estimated["sketch"] = str(sketch)
        if plot is not None:
            save_private_reliability(plot, evaluation, "Reliability on the hidden rows", spent)
            console.print(f"reliability diagram, {headline(spent)}: {plot}")
            estimated["plot"] = str(plot)
    if as_json:
        print_json(
            {
                "method": method,
                "map": result.map.to_dict(),
                "out": str(out),
                "campaign": result.campaign,
                "spent": dict(zip(asked.names, result.spent, strict=True)),
                "dropped": result.dropped,
                "left_out": result.left_out,
                "rounds": [
                    {
                        "round": asked.round,
                        "query": asked.query.to_dict(),
                        "epsilon": asked.epsilon,
                        "answers": asked.answers,
                    }
                    for asked in result.rounds
                ],
                **estimated,
            }
        )


@app.command()
def apply(
    map: Annotated[Path, typer.Argument(help="A map written by calibrate or fit.")],
    scores: Annotated[Path, typer.Argument(help="Scores; labels are not needed.")],
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv or .npz.")],
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probabilities of all classes too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply a map: predicted class and calibrated confidence of each row, in the same order.

    Example: `privcal apply map.json scores.npz --out calibrated.parquet`
    """
    from privcal.files import write_columns
    from privcal.readers import read_outputs

    check_outputs([out], [map, scores])
    loaded = privcal.load_map(map)
    outputs = read_outputs(scores)
    columns: dict[str, Any] = {
        "predicted": outputs.predicted,
        "confidence": loaded.confidence(outputs),
    }
    if probabilities:
        table = loaded.predict_proba(outputs)
        columns |= {f"probability_{j}": table[:, j] for j in range(outputs.classes)}
    write_columns(out, columns)
    human(as_json).print(f"{outputs.rows:,} rows written to {out}")
    if as_json:
        print_json({"rows": outputs.rows, "out": str(out), "columns": list(columns)})


@app.command()
def evaluate(
    scores: Annotated[Path, typer.Argument(help="Labelled scores; with --private, a sketch.")],
    map: Annotated[Path | None, typer.Option(help="A map: measures before and after it.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Reliability diagram (.png, .svg, .pdf).")
    ] = None,
    bins: Bins = 15,
    private: Annotated[
        bool,
        typer.Option("--private", help="Estimate from a saved sketch; nothing is measured."),
    ] = False,
    public: Public = None,
    as_json: Json = False,
) -> None:
    """Measure calibration exactly, on data you may look at: no privacy is involved.

    With --private: estimate it, with intervals, on rows nobody may look at, from a sketch of them.

    Examples:

    `privcal evaluate scores.npz --map map.json --plot reliability.png`

    `privcal evaluate sketch.json --private --public clean.npz --plot reliability.png`
    """
    from privcal.evaluate import evaluate as measure
    from privcal.plots import check_picture, save_reliability

    check_picture(plot)
    inputs = [path for path in (scores, map, public) if path is not None]
    check_outputs([] if plot is None else [plot], inputs)
    if private:
        _evaluate_privately(scores, public, map, plot, bins, as_json)
        return
    if scores.suffix.lower() == ".json":
        raise InputError(
            f"{scores} holds no scores; if it is a sketch, say --private to estimate from it"
        )
    if public is not None:
        raise InputError("--public is for reading a sketch, with --private")
    loaded = None if map is None else privcal.load_map(map)
    data = privcal.read_scores(scores)
    results = {"before": measure(data, None, bins)}
    if loaded is not None:
        results["after"] = measure(data, loaded, bins)
    if plot is not None:
        save_reliability(plot, list(results.items()), str(scores.name), columns=2)
    table = Table(title=f"{scores}, {len(data):,} rows")
    table.add_column("measure")
    for name in results:
        table.add_column(name if loaded else "value", justify="right")
    for measure_name in list(results["before"].to_dict())[1:]:
        table.add_row(measure_name, *(f"{r.to_dict()[measure_name]:.4f}" for r in results.values()))
    console = human(as_json)
    console.print(table)
    if plot is not None:
        console.print(f"reliability diagram: {plot}")
    if as_json:
        print_json({name: r.to_dict() for name, r in results.items()})


@app.command()
def fit(
    scores: Annotated[Path, typer.Argument(help="Labelled scores.")],
    objective: Annotated[str, typer.Option(help="nll, accuracy or ece.")] = "nll",
    bounds: Bounds = (0.05, 20.0),
    out: Annotated[Path | None, typer.Option(help="Write the map (JSON).")] = None,
    as_json: Json = False,
) -> None:
    """The exact temperature, without privacy: the rows decide every digit of it.

    Example: `privcal fit scores.npz --objective nll --out map.json`
    """
    from privcal.maps import TemperatureMap

    data = privcal.read_scores(scores)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below
        found = privcal.fit_temperature(data, objective, bounds)  # type: ignore[arg-type]
    if out is not None:
        TemperatureMap(found.temperature, private=False).with_provenance(
            method=f"exact fit by {objective}", privcal=privcal.__version__
        ).save(out)
    console = human(as_json)
    console.print(
        f"temperature {found.temperature:.6f}, {objective} {found.value:.6g}", highlight=False
    )
    if found.outside:
        errors.print(f"note: {found.message}")
    if as_json:
        print_json(
            {
                "temperature": found.temperature,
                "objective": objective,
                "value": found.value,
                "outside": found.outside,
                "private": False,
            }
        )


def _evaluate_privately(
    file: Path,
    public: Path | None,
    map: Path | None,
    plot: Path | None,
    bins: int,
    as_json: bool,
) -> None:
    from privcal.maps import CurveMap
    from privcal.plots import save_private_reliability
    from privcal.readers import ENDINGS
    from privcal.sketch.report import document, headline, tell

    if file.is_dir() or file.suffix.lower() in ENDINGS:
        raise InputError(
            f"{file} holds scores, not a sketch; --private estimates from a saved sketch (.json)"
        )
    sketch = privcal.Sketch.load(file)
    loaded = None if map is None else privcal.load_map(map)
    if loaded is not None and not isinstance(loaded, CurveMap):
        raise InputError(
            f"a sketch can judge a curve, as privcal sketch fit writes it; {map} is not one"
        )
    evaluation = sketch.evaluate(
        None if public is None else privcal.read_scores(public), loaded, bins
    )
    console = human(as_json)
    tell(console, evaluation, sketch.epsilon)
    if plot is not None:
        save_private_reliability(plot, evaluation, file.name, sketch.epsilon)
        console.print(f"reliability diagram, {headline(sketch.epsilon)}: {plot}")
    if as_json:
        print_json(document(evaluation, sketch.epsilon))


# --- shared ------------------------------------------------------------------------------


def _place(query: Any) -> str:
    """Where a question looks, for the progress bar."""
    temperature = getattr(query, "temperature", None)
    return "" if temperature is None else f" at T = {temperature:.3f}"


def _left(dropped: Mapping[str, str]) -> str:
    """How many have left a run, and why, for the progress bar."""
    reasons = Counter(dropped.values())
    return "".join(f", {count} left ({reason})" for reason, count in reasons.items())


def _temperature(map: Map) -> float | None:
    """Of a map that is nothing but a temperature."""
    return map.temperature if isinstance(map, privcal.TemperatureMap) else None


class _Interrupted(BaseException):
    """Ctrl-C, under a name that typer does not turn into an exit code of its own."""


def _interrupt(*_: object) -> None:
    # Raised where nobody can catch it (in a destructor, say) it would be lost: so, once more
    # in a second, unless `main` has it by then.
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    raise _Interrupted


def main() -> None:
    """0 fine, 2 bad usage or input, 1 anything else; one sentence on standard error."""
    before = {s: signal.signal(s, _interrupt) for s in (signal.SIGINT, signal.SIGALRM)}
    try:
        app()
    except InputError as error:
        _stop(str(error), 2)
    except Refused as error:
        _stop(f"{error}" + (f" ({error.__cause__})" if error.__cause__ else ""), 1)
    except CalibrationError as error:
        spent = (
            f"; charged all the same: up to epsilon {max(error.spent, default=0):g} at each source"
        )
        hint = (
            "; privcal ledger show FILE tells what is left, privcal ledger policy changes it"
            if "over_budget" in str(error)
            else ""
        )
        _stop(f"{error}{spent if any(error.spent) else ''}{hint}", 1)
    except _Interrupted:
        _stop("interrupted; what was finished is on disk, and what was charged stays charged", 1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _stop(f"cannot read or write{where}: {error.strerror or error}", 1)
    except Exception as error:
        if "PRIVCAL_DEBUG" in os.environ:
            raise
        _stop(f"unexpected {type(error).__name__}: {error} (set PRIVCAL_DEBUG=1 for details)", 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
