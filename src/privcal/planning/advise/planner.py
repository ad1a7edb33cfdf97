"""`advise`: simulate the very setting that is asked about, on real shifts, and choose."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from privcal.calibration.kernel import FAST
from privcal.calibration.metrics import ece
from privcal.calibration.sketch.reader import SketchReader
from privcal.data.scores import Scores
from privcal.data.sources import check_unknown
from privcal.planning.advise import sentences
from privcal.planning.advise.expect import (
    MAX_PUBLIC_ROWS,
    PlanTask,
    Scenario,
    SettingsDone,
    expect,
    own_ece,
)
from privcal.planning.advise.plan import (
    Around,
    Basis,
    Budget,
    Choice,
    Course,
    Expectation,
    GridSearch,
    Over,
    Plan,
    Point,
    PublicFacts,
    Repeated,
    ShiftMean,
    Smallest,
    Spot,
    best,
    best_of,
    best_without_data,
    choose,
    clearly,
    epsilons,
    judge,
    leaves_alone,
    smallest,
    source_counts,
)
from privcal.planning.simulate.archive import CLEAN, Archive, read_archive
from privcal.planning.simulate.variants import EACH, Variant, noise_law
from privcal.secure.terms import FEWEST
from privcal.trusted.checks import known, number, whole
from privcal.trusted.epsilon import from_nano, to_nano
from privcal.trusted.errors import InputError

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
        as wrong as that (see `privcal.planning.advise.expect.eased`), so that the plan says whether asking
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
        and the plan is about their noise, under the usual terms (`privcal.planning.simulate.variants`).
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
    task = PlanTask(
        archive, samples, (), clean, trials, seed, current_ece, aggregation, chosen_shifts,
        progress or (lambda done, total: None),
    )  # fmt: skip
    if turnover is None:
        advice = _once(task, sources, epsilon, target_ece, sweep)
    else:
        assert sources is not None  # only a target may stand for them
        advice = _repeatedly(task, sources, epsilon, turnover)
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
        secure=sentences.in_secure_sums(
            choice.point, None if advice.repeated is None else advice.repeated.epsilon
        ),
        repeated=advice.repeated,
        around=settings_around(task, choice, advice.recommendation) if around else None,
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
    sources: int | None,
    epsilon: float | None,
    target_ece: float | None,
    sweep: bool,
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
    points, rows = expect(replace(task, scenarios=scenarios))
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
    sources: int,
    epsilon: float | None,
    turnover: Turnover,
) -> _Advice:
    nano = to_nano(DEFAULT_EPSILON if epsilon is None else epsilon)
    repeated, rows = over_campaigns(task, sources, nano, turnover)
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
    check_unknown(public)
    if CLEAN not in archive.where:
        raise InputError(
            "public rows are simulated by clean rows of the archive, and it holds no shift 'clean'"
        )
    reader = SketchReader.of(public)
    own = FAST.confidence(public.outputs, 1.0)
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


# --- The settings around the recommended one, for a page with sliders -----------------------------

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SOURCES = (0.25, 0.5, 1.0, 2.0, 4.0)
SAMPLES = (0.5, 1.0, 2.0)
"""Sources and rows as multiples of the recommended ones."""

TRIALS = 10
"""Enough for a mean over shifts; a plan for one setting takes more."""

MOST_ROWS = 10**6
"""Private rows of the largest setting, unless the plan itself is about more."""


def settings_around(
    task: PlanTask,
    choice: Choice,
    recommendation: str,
) -> Around:
    """Every method at every setting of the grid. The recommended setting is in it, as it was planned."""
    planned = Scenario(choice.point.sources, task.samples, choice.point.epsilon)
    most = max(MOST_ROWS, planned.sources * planned.samples)
    samples = _multiples(planned.samples, SAMPLES, most // planned.sources)
    least = 1 if task.aggregation == EACH else FEWEST
    sources = _multiples(planned.sources, SOURCES, most // samples[-1], least)
    epsilons = tuple(sorted({*EPSILONS, planned.epsilon}))
    trials = min(task.trials, TRIALS)
    spots: list[Spot] = []
    for index, rows in enumerate(samples):
        scenarios = [Scenario(n, rows, epsilon) for n in sources for epsilon in epsilons]
        part = _part(task.progress, index, len(samples))
        mine = replace(task, samples=rows, scenarios=scenarios, trials=trials, progress=part)
        points, _ = expect(mine)
        for scenario, point in zip(scenarios, points, strict=True):
            if scenario == planned:
                spots.append(_spot(choice.point, rows, choice, recommendation))
            else:
                spots.append(_spot(point, rows, Choice(best(point), point, False)))
    return Around(epsilons, sources, samples, tuple(spots), trials)


def _spot(point: Point, rows: int, choice: Choice, recommendation: str | None = None) -> Spot:
    said = recommendation or sentences.recommendation(choice, rows, None, None)
    verdict = judge(choice.method, point)
    used = best_without_data(point).method if verdict == "no" else choice.method
    enough = sentences.enough(verdict, choice.method, point)
    return Spot(rows, point, used, said, enough, sentences.secure_sentence(point))


def _multiples(value: int, factors: Sequence[float], most: int, least: int = 1) -> tuple[int, ...]:
    """These multiples as round numbers, the value itself as it is."""
    found = {value}
    for factor in factors:
        near = float(f"{value * factor:.2g}")
        found |= {int(near)} if factor != 1 and least <= near <= max(most, value) else set()
    return tuple(sorted(found))


def _part(progress: SettingsDone, index: int, parts: int) -> SettingsDone:
    """Progress of one of several equal parts, told as of the whole."""
    return lambda done, total: progress(index * total + done, parts * total)


# --- Who is there at each of several campaigns, and who still counts ------------------------------
# At every source a row is a person. `samples` people are there at each campaign; from one campaign
# to the next a share of them is replaced, the longest present first, and nobody comes back. At the
# first campaign everybody is new.
#
# With a budget for each person a campaign of ε/k is charged to everybody who counts in it, so a
# person counts the first k times and then no more. People leave in the order in which they came.
# So those who count in campaign c are those who came in the last k campaigns, as far as they are
# still there: as many as came since campaign c − k, and at most all. That needs no simulation of
# persons; a test does it with every person's own account.

MAX_CAMPAIGNS = 1000


@dataclass(frozen=True)
class Turnover:
    """The people of one source over all campaigns."""

    samples: int
    campaigns: int
    share: Fraction
    """Of the people of a campaign, those who were not there at the one before."""

    @classmethod
    def of(cls, samples: int, campaigns: Any, new_people: Any) -> Turnover:
        whole("campaigns", campaigns, 1, MAX_CAMPAIGNS)
        number("new_people, a share,", new_people, 0, 1)
        return cls(samples, campaigns, Fraction(str(new_people)))

    def arrived(self, campaign: int) -> int:
        """How many people have been there up to this campaign; the first is 1.

        Rounded as a whole, not in each campaign: of 7.5 new people there are 8 and 7 in turn.
        """
        later = self.share * self.samples * (campaign - 1)
        return self.samples + floor(later + Fraction(1, 2))

    def new(self) -> tuple[int, ...]:
        """People who were not there before, in each campaign from the second on."""
        return tuple(self.arrived(c) - self.arrived(c - 1) for c in range(2, self.campaigns + 1))

    def counting(self, times: int) -> tuple[int, ...]:
        """Rows that count in each campaign where every person counts so many times."""
        return tuple(
            self.samples
            if c <= times
            else min(self.samples, self.arrived(c) - self.arrived(c - times))
            for c in range(1, self.campaigns + 1)
        )

    def choices(self) -> list[int]:
        """How many times a person may count: 1, 2, 3, 4, 6, 8, 12, …, and as many as campaigns.

        Not beyond the first at which all rows count in every campaign (more would only thin out
        ε), and none that leaves a campaign in which nobody counts: its answers were noise alone.
        """
        times = range(1, self.campaigns + 1)  # the more of them, the more rows count
        every = times[bisect_left(times, self.samples, key=self._least)]
        steps = {n << power for n in (1, 3) for power in range(every.bit_length())}
        fewer = {k for k in steps if k < every and self._least(k) > 0}
        return sorted(fewer | {every, self.campaigns})

    def _least(self, times: int) -> int:
        return min(self.counting(times))


# --- Several campaigns out of one ε: every campaign is a run that the planner knows how to simulate ---
# With one budget for all people C campaigns may ask with ε/C each, and all rows count. With a
# budget for each person they may ask with ε/k, and those rows count whose person was asked about
# fewer than k times before; the others are as if they were not there, and the noise is the same.
# Either way a campaign is a scenario (sources, rows that count, ε of the campaign), and campaigns
# with as many rows are one scenario. A campaign is planned by itself: nothing is carried over from
# one to the next.


def over_campaigns(
    task: PlanTask,
    sources: int,
    nano_epsilon: int,
    turnover: Turnover,
) -> tuple[Repeated, int]:
    """The plan, and of how many rows the populations are."""
    if nano_epsilon < turnover.campaigns:
        raise InputError(
            f"epsilon {from_nano(nano_epsilon)} is too small for {turnover.campaigns:,} campaigns"
        )
    scenarios = {
        times: [
            Scenario(sources, rows, from_nano(nano_epsilon // times))
            for rows in turnover.counting(times)
        ]
        for times in turnover.choices()
    }
    distinct = sorted({scenario for along in scenarios.values() for scenario in along})
    points, rows = expect(replace(task, scenarios=distinct))
    expected = dict(zip(distinct, points, strict=True))
    tried = [_course(times, along, expected) for times, along in scenarios.items()]
    population = replace(tried[-1], budget="population")  # every person counts in every campaign
    lasting = [course for course in tried if _lasts(course, population)]
    chosen = best_of([course.expected for course in lasting])
    person = next(course for course in lasting if course.expected is chosen)
    recommended: Budget = "person" if clearly(chosen, population.expected) else "population"
    return (
        Repeated(
            campaigns=turnover.campaigns,
            new_people=float(turnover.share),
            epsilon=from_nano(nano_epsilon),
            population=population,
            person=person,
            tried=tuple(tried),
            recommended=recommended,
            who=_who(turnover, person),
        ),
        rows,
    )


def _lasts(course: Course, population: Course) -> bool:
    """Is it in the last campaign still as good as one budget for all?

    Whoever uses up the people of the first campaigns is better at first, and in the mean of not
    too many campaigns. That is no gift of new people: one budget for all could be spent early too.
    """
    ours, theirs = course.last, population.last
    return ours.ece.mean <= theirs.ece.mean and ours.brier.mean <= theirs.brier.mean


def _course(times: int, along: Sequence[Scenario], expected: Mapping[Scenario, Point]) -> Course:
    counts = Counter(along)
    weights = [many / len(along) for many in counts.values()]
    mean = _mean([expected[scenario] for scenario in counts], weights)
    return Course(
        budget="person",
        times=times,
        rows=tuple(scenario.samples for scenario in along),
        points=tuple(expected[scenario] for scenario in along),
        mean=mean,
        method=best(mean),
    )


def _mean(points: Sequence[Point], weights: Sequence[float]) -> Point:
    """What is expected of every method over campaigns."""
    together = zip(*(point.expected for point in points), strict=True)
    return replace(points[0], expected=tuple(_mixed(along, weights) for along in together))


def _mixed(along: Sequence[Expectation], weights: Sequence[float]) -> Expectation:
    first = along[0]
    if not first.private:  # the very same everywhere
        return first
    unclear = None
    if first.unclear is not None:
        unclear = sum(w * (e.unclear or 0.0) for w, e in zip(weights, along, strict=True))
    return replace(
        first,
        ece=ShiftMean.mixed([e.ece for e in along], weights),
        brier=ShiftMean.mixed([e.brier for e in along], weights),
        aurc=ShiftMean.mixed([e.aurc for e in along], weights),
        ece_if_right=ShiftMean.mixed([e.ece_if_right for e in along], weights),
        unclear=unclear,
    )


def _who(turnover: Turnover, person: Course) -> str:
    """What is assumed of the people, and how many of them count with a budget for each."""
    unit = (
        "A row is a person here, and ε is a person's at each source, over all campaigns together."
    )
    if turnover.campaigns == 1:
        return unit
    new, later = turnover.new(), person.rows[person.times :]
    come = (
        "New people, who were not there at the campaign before and are like the others, have "
        f"{_between(new, turnover.samples)} of the {turnover.samples:,} rows of a source; the "
        "longest present leave first, nobody comes back, and at the first campaign everybody is "
        "new."
        if any(new)
        else f"The {turnover.samples:,} rows of a source are of the same people in every campaign."
    )
    counts = (
        "all rows count in every campaign"
        if min(person.rows) == turnover.samples
        else f"all rows count at first, {_between(later, turnover.samples)} from campaign "
        f"{person.times + 1:,} on"
    )
    return (
        f'{unit} {come} With budget = "person" and ε = {sentences.rounded_down(person.epsilon)} in each campaign '
        f"a person counts {sentences.times(person.times)} and then no more: {counts}."
    )


def _between(values: Sequence[int], every: int) -> str:
    low, high = min(values), max(values)
    if low == every:
        return "all"
    if low == high:
        return f"{low:,}"
    return f"{low:,} {'or' if high == low + 1 else 'to'} {high:,}"
