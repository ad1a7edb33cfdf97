"""`privcal advise`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from privcal.cli.console import counting, plural, show, table
from privcal.cli.options import Json, words
from privcal.data.files import check_outputs
from privcal.data.wording import as_odds
from privcal.planning.advise.plan import LEAVE_ALONE
from privcal.planning.advise.sentences import rounded_down
from privcal.planning.simulate.variants import EACH

if TYPE_CHECKING:
    from privcal.planning.advise.plan import Expectation, Plan, Point, Repeated, ShiftMean
    from privcal.planning.simulate.variants import Variant


def command(
    samples: Annotated[
        int, typer.Option(help="Rows of each source; with --campaigns at each, one row a person.")
    ],
    sources: Annotated[
        int | None, typer.Option(help="How many sources; may be left out with --target-ece.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Budget of the run at each source, or of all --campaigns together; 1 unless said."
        ),
    ] = None,
    target_ece: Annotated[
        float | None,
        typer.Option(
            help="An expected ECE to reach: searches the smallest ε, or with --epsilon the "
            "smallest number of sources."
        ),
    ] = None,
    current_ece: Annotated[
        float | None,
        typer.Option(
            help="What you know of your model's present ECE: the plan then says whether asking "
            "improves on it, or the model is to be left alone."
        ),
    ] = None,
    campaigns: Annotated[
        int | None,
        typer.Option(
            help="Plan so many campaigns out of one ε: with one budget for all people, and with "
            "one for each."
        ),
    ] = None,
    new_people: Annotated[
        float | None,
        typer.Option(
            help="With --campaigns: the share of people at each who were not there at the one "
            "before; 0 unless said."
        ),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Your own clean labelled scores, for methods that use them.")
    ] = None,
    archive: Annotated[
        list[Path] | None,
        typer.Option(
            help="Plan on this logit archive (.npz; once for each part), not the bundled one."
        ),
    ] = None,
    shifts: Annotated[str | None, typer.Option(help="Some shifts, as a,b,c.")] = None,
    aggregation: Annotated[
        str,
        typer.Option(
            help="each: every source adds its own noise; secure: only sums over all are opened. "
            "What ε the other would take is said as well."
        ),
    ] = "each",
    plot: Annotated[
        Path | None,
        typer.Option(help="Picture of the whole range, or of all campaigns (.png, .svg, .pdf)."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="A page to read and mail, with sliders over ε, sources and rows (.html)."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Simulated runs at each shift.")] = 40,
    seed: Annotated[int, typer.Option(help="For simulated rows and noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Plan before anybody is asked: what to expect, which method, which ε, how many sources.

    Simulates the setting with the methods themselves, on real shifts; nobody's budget is
    touched. Says what a target takes, whether there is enough data at all, and when a model is
    better left alone.

    Examples:

    `privcal advise --sources 40 --samples 25`

    `privcal advise --sources 87 --samples 10 --current-ece 0.023`

    `privcal advise --sources 40 --samples 25 --target-ece 0.04 --plot plan.png`

    `privcal advise --sources 40 --samples 25 --html plan.html`

    `privcal advise --sources 40 --samples 25 --target-ece 0.04 --aggregation secure`

    `privcal advise --samples 25 --epsilon 0.5 --target-ece 0.03 --public clean.npz`

    `privcal advise --sources 40 --samples 25 --epsilon 1 --campaigns 12 --new-people 0.3`
    """
    from privcal.data.sources import read_public
    from privcal.planning.advise.planner import advise
    from privcal.report.plan import PlanDisplay
    from privcal.report.plots import check_picture

    check_picture(plot)
    check_outputs([plot, html], [*(archive or ()), public])
    clean = None if public is None else read_public(public)
    with counting("simulating") as progress:
        plan = advise(
            samples=samples,
            sources=sources,
            epsilon=epsilon,
            target_ece=target_ece,
            current_ece=current_ece,
            campaigns=campaigns,
            new_people=new_people,
            public=clean,
            archives=archive or (),
            shifts=words(shifts),
            aggregation=aggregation,
            trials=trials,
            seed=seed,
            sweep=plot is not None and campaigns is None,
            around=html is not None and campaigns is None,
            progress=progress,
        )
    if plot is not None:
        PlanDisplay.from_plan(plan).save(plot)
    if html is not None:
        plan.save_html(html)
    written = {"plot": plot, "html": html}
    show(
        as_json,
        {**plan.to_dict(), **{name: path and str(path) for name, path in written.items()}},
        _table(plan) if plan.repeated is None else _campaigns(plan, plan.repeated),
        *map(Text, _lines(plan)),
        Text(plan.recommendation, style="bold"),
        Text(_promise(plan)),
        *([] if plot is None else [f"picture: {plot}"]),
        *([] if html is None else [f"page: {html}"]),
    )


def _empty(
    plan: Plan, setting: str, note: str, columns: Sequence[str], points: Sequence[Point]
) -> Table:
    """A table without rows, for what is expected at these points."""
    basis = plan.basis
    eased = "" if basis.current_ece is None else f" eased to ECE {basis.current_ece:g}"
    summed = "" if plan.aggregation == EACH else " in secure sums"
    shown = [expected for point in points for expected in point.expected]
    errors = [max(mean.se for mean in means) for means in zip(*map(_measures, shown), strict=True)]
    return table(
        columns,
        columns[:1],
        narrow=True,
        title=f"{plan.point.sources:,} sources of {plan.samples:,} rows{summed}, {setting}\n"
        f"expected over {plural(len(basis.shifts), 'shift')} of {basis.dataset}{eased}, "
        f"{basis.trials} trials each",
        caption=f"{note} Monte-Carlo standard errors of the means: at most {errors[0]:.4f} "
        f"for ECE, {errors[1]:.4f} for Brier, {errors[2]:.4f} for AURC. Lower is better; read all. "
        "prior: the sketch's map before any answer. leave_alone: the sketch, leaving the model "
        "alone in doubt. one-source: a source's own exact fit, which never leaves it.",
    )


def _campaigns(plan: Plan, repeated: Repeated) -> Table:
    """Both budgets, the one for each person in the mean over campaigns and in the last."""
    person, population = repeated.person, repeated.population
    points = (person.mean, person.points[-1], population.mean)
    filled = _empty(
        plan,
        f"ε = {repeated.epsilon:g} for {plural(repeated.campaigns, 'campaign')}, "
        f"{100 * repeated.new_people:g}% new people at each",
        f"person: a budget for each person, ε = {rounded_down(person.epsilon)} in each campaign; the "
        "mean over campaigns, and the last. population: one for all, ε = "
        f"{rounded_down(population.epsilon)} in each, all alike. Mean over shifts.",
        ["method", "person\nECE", "last", "Brier", "last", "AURC", "population\nECE", "Brier"],
        points,
    )
    for expected in plan.point.expected:
        mean, last, other = (point.of(expected.method) for point in points)
        values = (mean.ece, last.ece, mean.brier, last.brier, mean.aurc, other.ece, other.brier)
        style = "bold" if expected.method == plan.method else None
        filled.add_row(
            _label(expected.method), *(f"{value.mean:.3f}" for value in values), style=style
        )
    return filled


def _table(plan: Plan) -> Table:
    point = plan.point
    search = plan.search if plan.search is not None and plan.search.smallest else None
    columns = ["method", "ECE", "if\nright", "Brier", "AURC"]
    if search is not None:
        columns.append(f"{'ε' if search.over == 'epsilon' else 'sources'} for {plan.target_ece:g}")
    filled = _empty(
        plan,
        f"ε = {point.epsilon:g} at each",
        f"Mean over shifts{'' if search else ' (10th–90th percentile over shifts)'}. if right: the "
        "ECE of a model that was right already.",
        columns,
        [point],
    )
    for expected in point.expected:
        style = "bold" if expected.method == plan.method else None
        # With ranges where 80 columns hold them.
        ranged = (expected.ece, expected.brier) if search is None else ()
        ece, *others = (
            f"{m.mean:.3f}" + f" {_range(m)}" * (m in ranged) for m in _measures(expected)
        )
        cells = [_label(expected.method), ece, f"{expected.ece_if_right.mean:.3f}", *others]
        if search is not None:
            cells.append(_needed(plan, expected))
        filled.add_row(*cells, style=style)
    return filled


def _label(method: Variant) -> str:
    """A method's name, short enough for 80 columns; with public rows it is in use with them."""
    return f"{method.method}({LEAVE_ALONE})" if LEAVE_ALONE in method.names else str(method)


def _promise(plan: Plan) -> str:
    """What the recommended ε means for one of those protected."""
    spent = plan.epsilon if plan.repeated is None else plan.repeated.epsilon
    against = ""
    if plan.aggregation != EACH and plan.secure is not None:
        helpers = plural(plan.secure.colluding, "source")
        against = f" That is against whoever asks, the carrier and up to {helpers} together."
    return (
        f"At ε = {spent:g}, {as_odds(spent)}. One row is protected, or one person where ids are "
        f"given.{against}"
    )


def _lines(plan: Plan) -> list[str]:
    lines = []
    if plan.public is not None:
        p = plan.public
        lines.append(
            f"Your public rows: {p.rows:,}, accuracy {p.accuracy:.3f}, ECE {p.ece:.3f} at T = 1, "
            f"calibrated by T = {p.temperature:.3f}; {p.simulated:,} clean rows of the archive "
            "stood for them."
        )
    for expected in plan.point.candidates():
        if expected.unclear is not None:
            lines.append(
                f"{expected.method}: the noise would drown the data, and leave the prior, in "
                f"{expected.unclear:.1%} of runs."
            )
    if plan.repeated is not None:
        lines.append(plan.repeated.who)
    if plan.secure is not None:
        lines.append(plan.secure.sentence)
    return [*lines, plan.enough.sentence, plan.caveat]


def _measures(expected: Expectation) -> tuple[ShiftMean, ShiftMean, ShiftMean]:
    return expected.ece, expected.brier, expected.aurc


def _range(mean: ShiftMean) -> str:
    return f"({_short(mean.low)}–{_short(mean.high)})"


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _needed(plan: Plan, expected: Expectation) -> str:
    """The least value that reaches the target, and the next lower one, which does not."""
    assert plan.search is not None
    if expected.method not in plan.search.smallest:
        return "reached" if plan.target_ece and expected.ece.mean <= plan.target_ece else ""
    least = plan.search.smallest[expected.method]
    if least.value is None:
        return f"> {least.failed:,g}, floor {_short(least.floor)}"
    return f"{least.value:,g}" + (f" ({least.failed:,g} fails)" if least.failed else "")
