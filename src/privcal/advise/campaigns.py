"""Several campaigns out of one ε: every campaign is a run that the planner knows how to simulate.

With one budget for all people C campaigns may ask with ε/C each, and all rows count. With a
budget for each person they may ask with ε/k, and those rows count whose person was asked about
fewer than k times before; the others are as if they were not there, and the noise is the same.
Either way a campaign is a scenario (sources, rows that count, ε of the campaign), and campaigns
with as many rows are one scenario. A campaign is planned by itself: nothing is carried over from
one to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from privcal.advise import sentences
from privcal.advise.choose import best, best_of, clearly
from privcal.advise.expect import PlanTask, Scenario, SettingsDone, expect
from privcal.advise.plan import Budget, Course, Expectation, Point, Repeated, ShiftMean
from privcal.advise.turnover import Turnover
from privcal.errors import InputError
from privcal.privacy.epsilon import from_nano


def over_campaigns(
    task: PlanTask,
    shifts: Sequence[str],
    sources: int,
    nano_epsilon: int,
    turnover: Turnover,
    progress: SettingsDone | None = None,
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
    points, rows = expect(replace(task, scenarios=distinct), shifts, progress)
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
            who=sentences.who(turnover, person),
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
