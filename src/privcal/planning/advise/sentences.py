"""A plan in sentences that a data office can read; the ECE never stands alone."""

from __future__ import annotations

from privcal.data.wording import plural
from privcal.planning.advise.plan import (
    LARGEST_EPSILON,
    PRIOR,
    RANGE,
    Choice,
    Course,
    Enough,
    Expectation,
    GridSearch,
    Point,
    Repeated,
    SecureSums,
    Smallest,
    Verdict,
    best_without_data,
    judge,
    leaves_alone,
    wins,
)
from privcal.planning.simulate.variants import EACH, Variant, epsilon_share, pays_from
from privcal.secure.panel import USUAL_ALONE
from privcal.secure.terms import FEWEST, usual_colluding, usual_needed
from privcal.trusted.epsilon import from_nano, to_nano

OPENING: dict[Verdict, str] = {
    "yes": "Yes, there is enough data",
    "barely": "There is barely enough data",
    "no": "No, there is not enough data",
}


def recommendation(
    choice: Choice, samples: int, target: float | None, search: GridSearch | None
) -> str:
    """Which method, which ε, and what it brings."""
    method, point = _name(choice.method), choice.point
    change = _change(point.nothing_done, point.of(choice.method))
    setting = f"ε = {point.epsilon:g} at {_sources(point, samples)}"
    verdict, without = judge(choice.method, point), best_without_data(point)
    if target is None or search is None:
        if leaves_alone(choice.method, point):
            return (
                f"Leave the model alone: {method} with {setting} brings {change}. "
                f"{_in_doubt(point)}"
            )
        if verdict == "no":
            return (
                f"Spend no ε on this: {method} with {setting} brings {change}, and "
                f"{_free(without)} has {_both(without)}."
            )
        return f"Use {method} with {setting}: {change}."
    if without.ece.mean <= target:
        return (
            f"No ε is needed for an ECE of {target:g}: {_free(without)} has "
            f"{_both(without)}, where {method} with {setting} has {_both(point.of(choice.method))}."
        )
    if not choice.reached:
        return f"{_out_of_reach(search, point, samples, target)}; {method} with {setting} brings {change}."
    return f"Use {method} with {setting}, {_least(search, search.smallest[choice.method], target)}: {change}."


def _sources(point: Point, samples: int) -> str:
    summed = "" if point.aggregation == EACH else " in secure sums"
    return f"each of {point.sources:,} sources of {samples:,} rows{summed}"


def in_secure_sums(point: Point, epsilon: float | None = None) -> SecureSums | None:
    """What the setting takes with secure sums and without; None where sources are too few.

    `epsilon` is that of all campaigns together, where there are several.
    """
    sources, spent = point.sources, point.epsilon if epsilon is None else epsilon
    if sources < FEWEST:
        return None
    share, colluding = epsilon_share(sources), usual_colluding(sources)
    needed = usual_needed(sources, colluding)
    each, summed = (spent, share * spent) if point.aggregation == EACH else (spent / share, spent)
    pays = pays_from()
    said = (
        f"With secure sums (--aggregation secure) about ε = {summed:.2g} brings what ε = {spent:g} "
        "brings where each source adds its own noise"
        if point.aggregation == EACH
        else f"Without secure sums about ε = {each:.2g} would be needed in place of {spent:g}"
    )
    sentence = (
        f"{said}; from {pays} sources on secure sums take less than half. For them {needed:,} of the "
        f"{sources:,} must answer, or the ε is spent for nothing. They rest on at most {colluding:,} working with whoever asks, on all others keeping "
        f"their keys and their record of what they opened, and on the encryption; where that fails, up "
        f"to {USUAL_ALONE} times the ε ({USUAL_ALONE * summed:.2g}) is lost."
    )
    return SecureSums(each, summed, colluding, needed, USUAL_ALONE, pays, sentence)


def secure_sentence(point: Point) -> str:
    """The same in words, for whatever number of sources."""
    found = in_secure_sums(point)
    return f"Secure sums need at least {FEWEST} sources." if found is None else found.sentence


def _least(search: GridSearch, least: Smallest, target: float) -> str:
    value = "smallest ε" if search.over == "epsilon" else "smallest number of sources"
    if least.failed is None:
        return f"the {value} tried, which reaches an ECE of {target:g}"
    return f"the {value} that reaches an ECE of {target:g} ({least.failed:,g} does not)"


def _out_of_reach(search: GridSearch, point: Point, samples: int, target: float) -> str:
    lowest = min(search.smallest, key=lambda method: search.smallest[method].floor)
    brier = search.points[-1].of(lowest).brier.mean
    where = (
        f"{point.sources:,} sources of {samples:,} rows and ε up to {LARGEST_EPSILON:g}"
        if search.over == "epsilon"
        else f"ε = {point.epsilon:g} and up to {search.points[-1].sources:,} sources of {samples:,} rows"
    )
    floor = search.smallest[lowest].floor
    if floor <= target:
        return (
            f"An ECE of {target:g} with {where} costs more than it is worth: {_name(lowest)} has "
            f"{floor:.3f}, but a worse Brier score ({brier:.3f}) than with nothing done"
        )
    return (
        f"An ECE of {target:g} is out of reach with {where}: the lowest is {floor:.3f} "
        f"({_name(lowest)}, Brier {brier:.3f})"
    )


def repeated(plan: Repeated, samples: int) -> str:
    """Which budget, and what several campaigns bring with it."""
    course, other = plan.course, plan.population
    nothing, without = course.mean.nothing_done, best_without_data(course.mean)
    use = (
        f'{_name(course.method)} with budget = "{course.budget}" and ε = {rounded_down(course.epsilon)} '
        f"in {_each(plan.campaigns)}, at {_sources(course.mean, samples)}"
    )
    change = f"{_change(nothing, course.expected)}{_when(course)}"
    if course.budget == "person":
        opening = ""
        change += (
            f"; with one budget for all, ε = {rounded_down(other.epsilon)} in each, "
            f"{_both(other.expected)}"
        )
    else:
        opening = _no_help(plan)
    if leaves_alone(course.method, course.points[-1]):
        doubt = _in_doubt(course.points[-1])
        return f"{opening}Leave the model alone: {use} brings {change}. {doubt}"
    if judge(course.method, course.points[-1]) == "no":
        return (
            f"{opening}Spend no ε on this: {use} brings {change}, and {_free(without)} has "
            f"{_both(without)}."
        )
    return f"{opening}Use {use}: {change}."


def _no_help(plan: Repeated) -> str:
    person = plan.person
    if plan.campaigns == 1:
        return ""
    if plan.new_people == 0:
        return "Without new people a budget for each person is no better than one for all. "
    if person.times == plan.campaigns:
        return (
            "New people do not help: no larger ε in each campaign is better in the mean and as "
            "good in the last. "
        )
    return (
        f'New people hardly help: budget = "person" with ε = {rounded_down(person.epsilon)} has '
        f"{_both(person.expected)}, which is not clearly better than one budget for all. "
    )


def _each(campaigns: int) -> str:
    return "one campaign" if campaigns == 1 else f"each of {campaigns:,} campaigns"


def _when(course: Course) -> str:
    """The same in all campaigns, or in the mean and in the last."""
    if len(course.rows) == 1:
        return ""
    if len(set(course.rows)) == 1:
        return " in every campaign"
    return f" in the mean of the campaigns ({_both(course.last)} in the last)"


def rounded_down(epsilon: float) -> str:
    """Three digits, rounded down: who asks with them may ask as often as planned."""
    nano = to_nano(epsilon)
    unit = 10 ** max(len(str(nano)) - 3, 0)
    return f"{from_nano(nano // unit * unit):g}"


def times(many: int) -> str:
    return {1: "once", 2: "twice"}.get(many, f"{many:,} times")


def enough(verdict: Verdict, method: Variant, point: Point, when: str = "") -> Enough:
    """Against doing nothing, and against the best map that needs no data."""
    ours = point.of(method)
    others = [point.nothing_done, point.without_data()]
    counts = [wins(ours.ece.shifts, other.ece.shifts) for other in others]
    shifts = len(ours.ece.shifts)
    against = " and ".join(
        f"{_alternative(other)} ({_both(other)}; ECE lower at {count} of {shifts} shifts)"
        for other, count in zip(others, counts, strict=True)
    )
    how = {"yes": "clearly beats", "barely": "beats", "no": "does not beat both"}[verdict]
    but = ", but not clearly" if verdict == "barely" else ""
    sentence = f"{OPENING[verdict]}{when}: {_name(method)} ({_both(ours)}) {how} {against}{but}."
    return Enough(verdict, sentence)


def _in_doubt(point: Point) -> str:
    """What is there for those who ask all the same."""
    alone = point.in_doubt()
    return (
        f"Whoever wants to know all the same takes {alone.method}, which changes nothing unless "
        f"something speaks clearly for a change: {_change(point.nothing_done, alone)}."
    )


def caveat(
    dataset: str,
    shifts: int,
    after: Expectation,
    in_doubt: Expectation,
    current: float | None,
    *,
    bundled: bool,
) -> str:
    """`after`: what is best at the setting; `in_doubt`: what leaves a model alone then."""
    basis = f"{plural(shifts, 'shift')} of {dataset}"
    of = "the bundled network" if bundled else "the network of that archive"
    seen = " The sketch's beliefs were chosen with these shifts in sight." if bundled else ""
    right = (
        f"Of a model that is right already, {_name(after.method)} would make one with ECE "
        f"{after.ece_if_right.mean:.3f}, {in_doubt.method} one with {in_doubt.ece_if_right.mean:.3f}."
    )
    known = (
        f"How good your model is today it cannot know: if its ECE is already below "
        f"{after.ece.mean:.3f}, leave it alone (or say --current-ece)."
        if current is None
        else f"Each shift was eased until it was as wrong as an ECE of {current:g}."
    )
    return (
        f"This plan rests on {basis} and {of}, with sources that are alike; your shift may be milder "
        f"or worse. Ranges are the {RANGE[0]}th to {RANGE[1]}th percentile over these shifts of "
        f"what is expected at each.{seen} {known} {right}"
    )


def _change(before: Expectation, after: Expectation) -> str:
    return (
        f"expected ECE {before.ece.mean:.3f} → {after.ece.mean:.3f}, "
        f"Brier {before.brier.mean:.3f} → {after.brier.mean:.3f}"
    )


def _both(expected: Expectation) -> str:
    return f"ECE {expected.ece.mean:.3f}, Brier {expected.brier.mean:.3f}"


def _name(method: Variant) -> str:
    """A method as a person would say it."""
    return f"{method.method} (with public rows)" if method.public_rows else str(method)


def _alternative(expected: Expectation) -> str:
    """What needs no data, as a person would say it."""
    if expected.method.method != PRIOR:
        return "doing nothing"
    return "the sketch's prior map" + (" with public rows" if expected.method.public_rows else "")


def _free(expected: Expectation) -> str:
    """What needs no data, and how to get it."""
    command = "" if expected.method.method != PRIOR else " (privcal sketch prior)"
    return f"{_alternative(expected)}, which needs no data{command},"
