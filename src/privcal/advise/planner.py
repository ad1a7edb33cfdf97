"""`advise`: simulate the very setting that is asked about, on real shifts, and choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from privcal.advise import sentences
from privcal.advise.around import settings_around
from privcal.advise.campaigns import over_campaigns
from privcal.advise.choose import Choice, best, choose, judge, leaves_alone
from privcal.advise.expect import (
    MAX_PUBLIC_ROWS,
    PlanTask,
    Scenario,
    SettingsDone,
    expect,
    own_ece,
)
from privcal.advise.grid import Over, Smallest, epsilons, smallest, source_counts
from privcal.advise.plan import Basis, GridSearch, Plan, Point, PublicFacts, Repeated
from privcal.advise.turnover import Turnover
from privcal.checks import known, number, whole
from privcal.errors import InputError
from privcal.kernel import confidence
from privcal.metrics import ece
from privcal.privacy.epsilon import to_nano
from privcal.scores import Scores
from privcal.secure.terms import FEWEST
from privcal.simulate.aggregation import EACH, noise_law
from privcal.simulate.archive import CLEAN, Archive, read_archive
from privcal.simulate.variants import Variant
from privcal.sketch.reader import SketchReader

DEFAULT_EPSILON = 1.0

MAX_DRAWS = 10**8
"""Private rows in all that a plan may be about."""


def advise(
    *,
    samples: int,
    sources: int | None = None,
    epsilon: float | None = None,
    target_ece: float | None = None,
    current_ece: float | None = None,
    campaigns: int | None = None,
    new_people: float | None = None,
    public: Scores | None = None,
    archives: Sequence[str | Path] = (),
    shifts: Sequence[str] | None = None,
    aggregation: str = EACH,
    trials: int = 40,
    seed: int = 0,
    sweep: bool = False,
    around: bool = False,
    progress: SettingsDone | None = None,
) -> Plan:
    """What to expect of every method at a setting, and what a target would take.

    Parameters
    ----------
    samples, sources, epsilon
        Rows at each source, how many sources, and the budget of the run at each; ε is 1 unless
        said. `sources` may be left out where a target is given.
    target_ece
        An expected ECE to be reached. The search is for the smallest ε at the given `sources`,
        or, where `epsilon` is given (or `sources` is not), for the smallest number of sources.
    current_ece
        What is known of the own model's present ECE. Every shift is then eased until the model is
        as wrong as that (see `privcal.advise.expect.eased`), so that the plan says whether asking
        improves on it; shifts that are milder are left out. Without it, every shift is taken as it
        is, and doing nothing costs what it costs there.
    campaigns, new_people
        Plan so many campaigns. `epsilon` is then for all of them together: that of each person
        (budget = "person"), or one for all (budget = "population"). `samples` are the rows of a
        source at each campaign, one row a person, of which a share `new_people` (0 unless said)
        was not there at the campaign before. Those longest present leave first, nobody comes
        back, and at the first campaign everybody is new. Not together with `target_ece` or
        `sweep` or `around`, which are about one campaign.
    public
        The calibrator's own clean labelled scores: checked, described, and as many clean rows of
        the archive given to methods that have a use for them.
    archives, shifts
        What to simulate on: logit archives (parts of one), by default the bundled CIFAR-10-C,
        and some of its shifts, by default all but `clean`.
    aggregation
        "each": every source adds its own noise. "secure": only sums over all sources are opened,
        and the plan is about their noise, under the usual terms (`privcal.simulate.aggregation`).
        Either way `Plan.secure` says what ε the other would take.
    trials
        Simulated runs at each shift.
    seed
        For the simulation; the same seed gives the same plan.
    sweep
        Go through the whole grid of ε even without a target, for a picture.
    around
        Go on from the recommended setting to other ε, numbers of sources and rows, with fewer
        trials each, for the sliders of the plan's page (`Plan.to_html`).
    progress
        Called with how many settings of how many are done.

    Returns
    -------
    Plan
        What to expect of every method, a recommendation in words, and what it rests on.

    Examples
    --------
    >>> plan = advise(samples=30, sources=50, epsilon=1.0, shifts=["fog"], trials=4)
    >>> str(plan.method) in privcal.methods.names()
    True
    >>> plan.expected.ece.mean < 0.1
    True
    """
    _check(samples, sources, epsilon, target_ece, current_ece, trials)
    whole("seed", seed, 0)
    noise_law(aggregation, FEWEST if sources is None else sources)  # says what is wrong with them
    turnover = _turnover(samples, campaigns, new_people, target_ece, sweep or around)
    archive = read_archive(archives)
    chosen_shifts = _as_wrong(archive, _shifts(archive, shifts), current_ece)
    facts = _public(public, archive, chosen_shifts[0])
    clean = facts.simulated if facts else 0
    task = PlanTask(archive, samples, (), clean, trials, seed, current_ece, aggregation)
    if turnover is None:
        advice = _once(task, chosen_shifts, sources, epsilon, target_ece, sweep, progress)
    else:
        assert sources is not None  # only a target may stand for them
        advice = _repeatedly(task, chosen_shifts, sources, epsilon, turnover, progress)
    choice, point = advice.choice, advice.point
    judged, when = best(point), ""
    if advice.repeated is not None and advice.repeated.campaigns > 1:
        judged, when = choice.method, " in the last campaign"
    return Plan(
        samples=samples,
        target_ece=target_ece,
        point=point,
        method=choice.method,
        chosen=choice.point,
        reached=choice.reached if target_ece is not None else None,
        recommendation=advice.recommendation,
        enough=sentences.enough(judge(judged, point), judged, point, when),
        caveat=sentences.caveat(
            archive.dataset,
            len(chosen_shifts),
            point.of(judged),
            point.in_doubt(),
            current_ece,
            bundled=not archives,
        ),
        search=advice.search,
        public=facts,
        basis=Basis(archive.dataset, tuple(chosen_shifts), advice.rows, trials, seed, current_ece),
        leave_alone=leaves_alone(choice.method, choice.point),
        secure=sentences.secure(
            choice.point, None if advice.repeated is None else advice.repeated.epsilon
        ),
        repeated=advice.repeated,
        around=settings_around(task, chosen_shifts, choice, advice.recommendation, progress)
        if around
        else None,
    )


class _Advice(NamedTuple):
    """What differs between one campaign and several."""

    point: Point
    choice: Choice
    recommendation: str
    rows: int
    search: GridSearch | None = None
    repeated: Repeated | None = None


def _once(
    task: PlanTask,
    shifts: Sequence[str],
    sources: int | None,
    epsilon: float | None,
    target_ece: float | None,
    sweep: bool,
    progress: SettingsDone | None,
) -> _Advice:
    spend = DEFAULT_EPSILON if epsilon is None else float(epsilon)
    given: Scenario | None = None
    over: Over = "epsilon"
    if sources is None or (target_ece is not None and epsilon is not None):
        over = "sources"
    if sources is not None and (target_ece is None or epsilon is not None):
        given = Scenario(sources, task.samples, spend)
    scenarios = [given] if given else []
    if target_ece is not None or sweep:
        scenarios = _grid(over, sources, spend, given, task)
    points, rows = expect(replace(task, scenarios=scenarios), shifts, progress)
    search = None
    if target_ece is not None or sweep:
        reached = {} if target_ece is None else _smallest(points, over, target_ece)
        search = GridSearch(over, tuple(points), reached)
    asked = points[scenarios.index(given)] if given else None
    choice = choose(asked, search)
    text = sentences.recommendation(choice, task.samples, target_ece, search)
    return _Advice(asked or choice.point, choice, text, rows, search)


def _repeatedly(
    task: PlanTask,
    shifts: Sequence[str],
    sources: int,
    epsilon: float | None,
    turnover: Turnover,
    progress: SettingsDone | None,
) -> _Advice:
    nano = to_nano(DEFAULT_EPSILON if epsilon is None else epsilon)
    repeated, rows = over_campaigns(task, shifts, sources, nano, turnover, progress)
    last = repeated.course.points[-1]
    choice = Choice(repeated.course.method, last, reached=False)
    text = sentences.repeated(repeated, task.samples)
    return _Advice(last, choice, text, rows, repeated=repeated)


def _check(
    samples: Any, sources: Any, epsilon: float | None, target: Any, current: Any, trials: Any
) -> None:
    if sources is not None:
        whole("sources", sources, 1)
    whole("samples", samples, 1)
    whole("trials", trials, 2)  # one tells nothing of the error
    if sources is None and target is None:
        raise InputError("say how many sources there are, or which ECE they shall reach")
    if (sources or 1) * samples > MAX_DRAWS:
        raise InputError(
            f"{sources or 1:,} sources of {samples:,} rows are more than the {MAX_DRAWS:,} rows "
            "that can be planned for"
        )
    if epsilon is not None:
        to_nano(epsilon)
    if target is not None and (
        isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target < 1
    ):
        raise InputError(f"the target ECE must be between 0 and 1, not {target!r}")
    if current is not None:
        number("current_ece", current, 0, 1)


def _turnover(
    samples: int, campaigns: Any, new_people: Any, target: float | None, sweep: bool
) -> Turnover | None:
    """The people of several campaigns; None where one is planned."""
    if campaigns is None:
        if new_people is not None:
            raise InputError(
                "new people are those of one campaign who were not there at the one before; say "
                "how many campaigns there are"
            )
        return None
    if target is not None or sweep:
        raise InputError(
            "a target and a sweep are planned for one campaign; leave them out, or campaigns"
        )
    return Turnover.of(samples, campaigns, 0 if new_people is None else new_people)


def _shifts(archive: Archive, wanted: Sequence[str] | None) -> list[str]:
    if wanted is not None and not wanted:
        raise InputError("no shift is named; leave shifts out for all of them")
    for shift in wanted or ():
        known("shift", shift, archive.where)
    chosen = [s for s in archive.shifts if (s != CLEAN if wanted is None else s in wanted)]
    if not chosen:
        raise InputError("the archive holds no shift but clean, so there is nothing to plan for")
    return chosen


def _as_wrong(archive: Archive, shifts: list[str], current: float | None) -> list[str]:
    """The shifts under which the network is at least as wrong as the own model is said to be."""
    if current is None:
        return shifts
    found = {shift: own_ece(archive.scores(shift)) for shift in shifts}
    chosen = [shift for shift in shifts if found[shift] >= current]
    if not chosen:
        raise InputError(
            f"no shift here makes the network as wrong as an ECE of {current:g}; the worst has "
            f"{max(found.values()):.3f}; leave current_ece out, for a model so far off asking pays"
        )
    return chosen


def _public(public: Scores | None, archive: Archive, shift: str) -> PublicFacts | None:
    """What is known of these rows; an InputError where they cannot be used."""
    if public is None:
        return None
    if CLEAN not in archive.where:
        raise InputError(
            "public rows are simulated by clean rows of the archive, and it holds no shift 'clean'"
        )
    reader = SketchReader.of(public)
    own = confidence(public.outputs, 1.0)
    return PublicFacts(
        rows=len(public),
        accuracy=float(public.correct.mean()),
        ece=ece(own, public.correct),
        temperature=reader.temperature,
        simulated=min(len(public), MAX_PUBLIC_ROWS, len(archive.scores(shift)) // 2),
    )


def _grid(
    over: Over, sources: int | None, epsilon: float, given: Scenario | None, task: PlanTask
) -> list[Scenario]:
    """The scenarios of a search, in ascending order, with the one asked about among them."""
    samples = task.samples
    if over == "sources":
        least = 1 if task.aggregation == EACH else FEWEST
        counts = [n for n in source_counts() if n >= least and n * samples <= MAX_DRAWS]
        scenarios = [Scenario(n, samples, epsilon) for n in counts]
    else:
        assert sources is not None
        scenarios = [Scenario(sources, samples, e) for e in epsilons()]
    return sorted({*scenarios, *([given] if given else [])})


def _smallest(points: Sequence[Point], over: Over, target: float) -> dict[Variant, Smallest]:
    """The least value at which each private method reaches the target."""
    grid = [float(getattr(point, over)) for point in points]
    reached = {}
    for method in [expected.method for expected in points[0].candidates()]:
        along = [point.of(method).ece for point in points]
        reached[method] = smallest(
            grid, [ece.mean for ece in along], [ece.se for ece in along], target
        )
    return reached
