"""`privcal advise`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from privcal.console import Json, human, print_json, progress_bar
from privcal.files import check_outputs

if TYPE_CHECKING:
    from privcal.advise.plan import Expected, Figure, Plan


def command(
    samples: Annotated[int, typer.Option(help="Rows of each source.")],
    sources: Annotated[
        int | None, typer.Option(help="How many sources; may be left out with --target-ece.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of the run at each source; 1 unless said.")
    ] = None,
    target_ece: Annotated[
        float | None,
        typer.Option(
            help="An expected ECE to reach: searches the smallest ε, or with --epsilon the "
            "smallest number of sources."
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
    plot: Annotated[
        Path | None, typer.Option(help="Picture of the whole range (.png, .svg, .pdf).")
    ] = None,
    trials: Annotated[int, typer.Option(help="Simulated runs at each shift.")] = 40,
    seed: Annotated[int, typer.Option(help="For simulated rows and noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Plan before anybody is asked: what to expect, which method, which ε, how many sources.

    Simulates the setting with the methods themselves, on real shifts; nobody's budget is
    touched. Says what a target takes, and whether there is enough data at all.

    Examples:

    `privcal advise --sources 40 --samples 25`

    `privcal advise --sources 40 --samples 25 --target-ece 0.04 --plot plan.png`

    `privcal advise --samples 25 --epsilon 0.5 --target-ece 0.03 --public clean.npz`
    """
    from privcal.advise.figure import save_plan
    from privcal.advise.planner import advise
    from privcal.plots import check_picture
    from privcal.readers import read_scores

    check_picture(plot)
    if plot is not None:
        check_outputs([plot], [*(archive or ()), *([public] if public else [])])
    clean = None if public is None else read_scores(public)
    names = None if shifts is None else [n.strip() for n in shifts.split(",") if n.strip()]
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=None)
        plan = advise(
            samples=samples,
            sources=sources,
            epsilon=epsilon,
            target_ece=target_ece,
            public=clean,
            archives=archive or (),
            shifts=names,
            trials=trials,
            seed=seed,
            sweep=plot is not None,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if plot is not None:
        save_plan(plot, plan)
    console = human(as_json)
    console.print(_table(plan))
    for line in _lines(plan):
        console.print(line)
    console.print(plan.recommendation, style="bold")
    if plot is not None:
        console.print(f"picture: {plot}")
    if as_json:
        print_json({**plan.to_dict(), "plot": None if plot is None else str(plot)})


def _table(plan: Plan) -> Table:
    point, basis = plan.point, plan.basis
    table = Table(
        title=f"{point.sources:,} sources of {plan.samples:,} rows, ε = {point.epsilon:g} at each\n"
        f"expected over {len(basis.shifts)} shifts of {basis.dataset}, {basis.trials} trials each",
        caption="Mean over shifts (10th–90th percentile over shifts). Monte-Carlo standard errors "
        f"of the means: at most {_largest(plan, 0)} for ECE, {_largest(plan, 1)} for Brier. Lower "
        "is better; read both. prior: the sketch's map before any answer. one-source: a source's "
        "own exact fit, which never leaves it.",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,  # fits in 80 columns
        pad_edge=False,
    )
    search = plan.search if plan.search is not None and plan.search.found else None
    columns = ["method", "ECE", "Brier"]
    if search is not None:
        columns.append(f"{'ε' if search.over == 'epsilon' else 'sources'} for {plan.target_ece:g}")
    for name in columns:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for one in point.expected:
        style = "bold" if one.method == plan.method else None
        cells = [one.method, *(f"{f.mean:.3f} {_range(f)}" for f in _both(one))]
        if search is not None:
            cells.append(_needed(plan, one))
        table.add_row(*cells, style=style)
    return table


def _lines(plan: Plan) -> list[str]:
    found = []
    if plan.public is not None:
        p = plan.public
        found.append(
            f"Your public rows: {p.rows:,}, accuracy {p.accuracy:.3f}, ECE {p.ece:.3f} at T = 1, "
            f"calibrated by T = {p.temperature:.3f}; {p.simulated:,} clean rows of the archive "
            "stood for them."
        )
    for one in plan.point.expected:
        if one.unclear is not None:
            found.append(
                f"{one.method}: the noise would drown the data, and leave the prior, in "
                f"{one.unclear:.1%} of runs."
            )
    return [*found, plan.enough.sentence, plan.caveat]


def _both(one: Expected) -> tuple[Figure, Figure]:
    return one.ece, one.brier


def _largest(plan: Plan, which: int) -> str:
    return f"{max(_both(one)[which].se for one in plan.point.expected):.4f}"


def _range(figure: Figure) -> str:
    return f"({_short(figure.low)}–{_short(figure.high)})"


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _needed(plan: Plan, one: Expected) -> str:
    """The least value that reaches the target, and the next lower one, which does not."""
    assert plan.search is not None
    if one.method not in plan.search.found:
        return "reached" if plan.target_ece and one.ece.mean <= plan.target_ece else ""
    found = plan.search.found[one.method]
    if found.value is None:
        return f"> {found.failed:,g}, floor {_short(found.floor)}"
    return f"{found.value:,g}" + (f" ({found.failed:,g} fails)" if found.failed else "")
