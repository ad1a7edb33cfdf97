"""`advise`: simulate the very setting that is asked about, on real shifts, and choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privcal.advise import words
from privcal.advise.choice import best, choose, judge
from privcal.advise.plan import Basis, Plan, Point, Public, Search
from privcal.advise.search import Over, Smallest, epsilons, smallest, source_counts
from privcal.advise.simulate import MAX_PUBLIC, Task, simulate
from privcal.confidence import confidence
from privcal.errors import InputError
from privcal.metrics import ece
from privcal.privacy.epsilon import to_nano
from privcal.scores import Scores
from privcal.sketch.reading import Reading
from privcal.study.archive import Archive, read_archive
from privcal.study.run import CLEAN

DEFAULT_EPSILON = 1.0

MAX_DRAWS = 10**8
"""Private rows in all that a plan may be about."""


def advise(
    *,
    samples: int,
    sources: int | None = None,
    epsilon: float | None = None,
    target_ece: float | None = None,
    public: Scores | None = None,
    archives: Sequence[str | Path] = (),
    shifts: Sequence[str] | None = None,
    trials: int = 40,
    seed: int = 0,
    sweep: bool = False,
    progress: Callable[[int, int], None] | None = None,
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
    public
        The calibrator's own clean labelled scores: checked, described, and as many clean rows of
        the archive given to methods that have a use for them.
    archives, shifts
        What to simulate on: logit archives (parts of one), by default the bundled CIFAR-10-C,
        and some of its shifts, by default all but `clean`.
    trials
        Simulated runs at each shift.
    sweep
        Go through the whole grid of ε even without a target, for a picture.
    progress
        Called with how many settings of how many are done.
    """
    _check(samples, sources, epsilon, target_ece, trials)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed!r}")
    archive = read_archive(archives)
    chosen_shifts = _shifts(archive, shifts)
    facts = _public(public, archive, chosen_shifts[0])
    spend = DEFAULT_EPSILON if epsilon is None else float(epsilon)
    given: tuple[int, float] | None = None
    over: Over = "epsilon"
    if sources is None or (target_ece is not None and epsilon is not None):
        over = "sources"
    if sources is not None and (target_ece is None or epsilon is not None):
        given = (sources, spend)
    settings = [given] if given else []
    if target_ece is not None or sweep:
        settings = _grid(over, sources, spend, given, samples)
    task = Task(archive, samples, settings, facts.simulated if facts else 0, trials, seed)
    points, rows = simulate(task, chosen_shifts, progress)
    search = None
    if target_ece is not None or sweep:
        found = {} if target_ece is None else _found(points, over, target_ece)
        search = Search(over, tuple(points), found)
    asked = points[settings.index(given)] if given else None
    choice = choose(asked, search)
    point = asked or choice.point
    here = best(point)
    return Plan(
        samples=samples,
        target_ece=target_ece,
        point=point,
        method=choice.method,
        chosen=choice.point,
        reached=choice.reached if target_ece is not None else None,
        recommendation=words.recommendation(choice, samples, target_ece, search),
        enough=words.enough(judge(here, point), here, point),
        caveat=words.caveat(
            archive.dataset, len(chosen_shifts), point.of(here).ece.mean, bundled=not archives
        ),
        search=search,
        public=facts,
        basis=Basis(archive.dataset, tuple(chosen_shifts), rows, trials, seed),
    )


def _check(samples: Any, sources: Any, epsilon: float | None, target: Any, trials: Any) -> None:
    for name, value in (("sources", sources), ("samples", samples), ("trials", trials)):
        if name == "sources" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
    if trials < 2:
        raise InputError("trials must be at least 2, or nothing is known of the error")
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


def _shifts(archive: Archive, wanted: Sequence[str] | None) -> list[str]:
    if wanted is not None and not wanted:
        raise InputError("no shift is named; leave shifts out for all of them")
    for shift in wanted or ():
        if shift not in archive.where:
            raise InputError(f"there is no shift {shift!r}; there are {', '.join(archive.where)}")
    found = [s for s in archive.shifts if (s != CLEAN if wanted is None else s in wanted)]
    if not found:
        raise InputError("the archive holds no shift but clean, so there is nothing to plan for")
    return found


def _public(public: Scores | None, archive: Archive, shift: str) -> Public | None:
    """Whether these rows can be used, and what they say."""
    if public is None:
        return None
    if CLEAN not in archive.where:
        raise InputError(
            "public rows are simulated by clean rows of the archive, and it holds no shift 'clean'"
        )
    reading = Reading.of(public)
    own = confidence(public.outputs, 1.0)
    return Public(
        rows=len(public),
        accuracy=float(public.correct.mean()),
        ece=ece(own, public.correct),
        temperature=reading.temperature,
        simulated=min(len(public), MAX_PUBLIC, len(archive.scores(shift)) // 2),
    )


def _grid(
    over: Over,
    sources: int | None,
    epsilon: float,
    given: tuple[int, float] | None,
    samples: int,
) -> list[tuple[int, float]]:
    """The settings of a search, in ascending order, with the one asked about among them."""
    if over == "sources":
        found = [(n, epsilon) for n in source_counts() if n * samples <= MAX_DRAWS]
    else:
        assert sources is not None
        found = [(sources, e) for e in epsilons()]
    return sorted({*found, *([given] if given else [])})


def _found(points: Sequence[Point], over: Over, target: float) -> dict[str, Smallest]:
    grid = [float(getattr(point, over)) for point in points]
    found = {}
    for one in points[0].private():
        along = [point.of(one.method).ece for point in points]
        found[one.method] = smallest(
            grid, [figure.mean for figure in along], [figure.se for figure in along], target
        )
    return found
