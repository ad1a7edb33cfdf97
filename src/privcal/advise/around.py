"""The settings around the recommended one, for a page with sliders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from privcal.advise import sentences
from privcal.advise.choose import Choice, best, best_without_data, judge
from privcal.advise.expect import PlanTask, Scenario, SettingsDone, expect
from privcal.advise.plan import Around, Point, Spot
from privcal.secure.terms import FEWEST
from privcal.simulate.aggregation import EACH

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
    shifts: Sequence[str],
    choice: Choice,
    recommendation: str,
    progress: SettingsDone | None,
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
        mine = replace(task, samples=rows, scenarios=scenarios, trials=trials)
        points, _ = expect(mine, shifts, _part(progress, index, len(samples)))
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


def _part(progress: SettingsDone | None, index: int, parts: int) -> SettingsDone | None:
    """Progress of one of several equal parts, told as of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(index * total + done, parts * total)
