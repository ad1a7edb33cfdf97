"""Which method to recommend, and whether it is worth any ε at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from privcal.advise.plan import Expectation, GridSearch, Point, Verdict
from privcal.simulate.variants import Variant

AS_GOOD = 0.02
"""A Brier score at most this share above the best is as good: then the ECE decides."""

CLEAR_ERRORS = 2.0
"""A difference counts from so many Monte-Carlo standard errors on."""

MOST_SHIFTS = 0.75
"""A clear gain is one at this share of the shifts, not only in the mean."""


def best(point: Point) -> Variant:
    """The best private method."""
    return best_of(point.candidates()).method


def best_of(several: Sequence[Expectation]) -> Expectation:
    """The one of lowest expected ECE among those with about the best Brier score.

    Not the lowest ECE of all: binning has it at times and pays with a worse confidence.
    """
    least = min(e.brier.mean for e in several)
    close = [e for e in several if e.brier.mean <= (1 + AS_GOOD) * least]
    return min(close, key=lambda e: e.ece.mean)


class Choice(NamedTuple):
    """The recommended method, where, and whether it reaches the target there, if there is one."""

    method: Variant
    point: Point
    reached: bool


def choose(asked: Point | None, search: GridSearch | None) -> Choice:
    """What to recommend.

    With a target: the one that reaches it first; of several the one with the better Brier
    score; none whose Brier score is worse than with nothing done. Otherwise the best one at the
    setting asked about, or at the end of the grid.
    """
    reached: list[tuple[float, float, Variant, Point]] = []
    if search is not None:
        for method, least in search.smallest.items():
            if least.value is not None:
                point = search.points[search.grid.index(least.value)]
                brier = point.of(method).brier.mean
                if brier < point.nothing_done.brier.mean:
                    reached.append((least.value, brier, method, point))
    if reached:
        _, _, method, point = min(reached, key=lambda entry: entry[:2])
        return Choice(method, point, True)
    if asked is None:
        assert search is not None
        asked = search.points[-1]
    return Choice(best(asked), asked, False)


def best_without_data(point: Point) -> Expectation:
    """The best that needs no data of any source: nothing at all, or a prior map."""
    return min(point.nothing_done, point.without_data(), key=lambda e: e.ece.mean)


def judge(method: Variant, point: Point) -> Verdict:
    """Do private answers beat doing nothing, and the best map that needs no data?"""
    private = point.of(method)
    others = [point.nothing_done, point.without_data()]
    if all(clearly(private, other) for other in others):
        return "yes"
    better = (
        private.ece.mean < other.ece.mean and private.brier.mean < other.brier.mean
        for other in others
    )
    return "barely" if all(better) else "no"


def leaves_alone(method: Variant, point: Point) -> bool:
    """Is the model best left as it is?"""
    return judge(method, point) == "no" and best_without_data(point) is point.nothing_done


def clearly(private: Expectation, other: Expectation) -> bool:
    """Better in both measures beyond the Monte-Carlo error, and at most of the shifts."""
    sure = all(
        theirs.mean - ours.mean > CLEAR_ERRORS * (ours.se**2 + theirs.se**2) ** 0.5
        for ours, theirs in ((private.ece, other.ece), (private.brier, other.brier))
    )
    return sure and wins(private.ece.shifts, other.ece.shifts) >= MOST_SHIFTS * len(
        private.ece.shifts
    )


def wins(ours: Sequence[float], theirs: Sequence[float]) -> int:
    return sum(a < b for a, b in zip(ours, theirs, strict=True))
