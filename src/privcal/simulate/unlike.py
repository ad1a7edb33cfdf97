"""Sources that are not alike: unequal sizes, and each with rows of some groups more than others.

Every row has a group: its label, or in the pseudo-shift `mixed` the shift that its logits come
from, so that a source can live under a shift of its own. A source draws its proportions of groups
from a Dirichlet law around the overall ones; `skew` is its concentration: infinite, all sources
are alike; near 0, each has a single group. Its size is log-normal.

Methods that ask for sums barely notice, and that is not a fault of the simulation: the average of
sums over the same rows is the same whoever holds them. What remains is that the private rows
together differ in make-up from the test rows, by more the more unequal sources are. A single
source's own fit, in contrast, is of its own rows alone.
"""

from __future__ import annotations

import numpy as np

from privcal.errors import InputError
from privcal.scores import IntArray, Scores
from privcal.simulate.archive import Archive

MIXED = "mixed"
SPREAD = 1.0
"""The standard deviation of the logarithm of a source's size."""


def mixed(archive: Archive, rng: np.random.Generator) -> tuple[Scores, IntArray]:
    """Every row under a shift of the archive drawn at random, and the number of that shift."""
    first = archive.scores(archive.shifts[0])
    shift_of = rng.integers(0, len(archive.shifts), len(first))
    logits = first.outputs.array.copy()
    for number, shift in enumerate(archive.shifts[1:], 1):
        rows = shift_of == number
        other = archive.scores(shift).outputs.array
        if other.shape != logits.shape:
            raise InputError(
                f"{shift} has shape {other.shape} and {archive.shifts[0]} {logits.shape}; "
                "shifts of different shapes cannot be mixed"
            )
        logits[rows] = other[rows]
    return Scores(logits=logits, labels=first.labels), shift_of


def draw_sizes(rng: np.random.Generator, sources: int, total: int) -> IntArray:
    """Log-normal sizes of at least 1 that add up to `total`."""
    weights = np.exp(SPREAD * rng.standard_normal(sources))
    ends = np.cumsum(weights / weights.sum()) * (total - sources)
    ends[-1] = total - sources  # whatever rounding did
    return np.asarray(np.diff(np.rint(ends).astype(np.int64), prepend=0) + 1)


def draw_sources(
    rng: np.random.Generator, groups: IntArray, sources: int, total: int, skew: float
) -> tuple[IntArray, IntArray]:
    """The rows of all sources, `total` of them, one source after the other, and the sources' sizes.

    No row is drawn twice. Where a group has no rows left, what is missing is drawn from all that nobody has.
    """
    sizes = draw_sizes(rng, sources, total)
    _, groups = np.unique(groups, return_inverse=True)
    there = np.bincount(groups)
    proportions = rng.dirichlet(skew * there / there.sum(), sources)
    wanted = rng.multinomial(sizes, proportions)
    # Each group's rows in random order are a queue, from which one source after the other takes.
    shuffled = rng.permutation(len(groups))
    queue = shuffled[np.argsort(groups[shuffled], kind="stable")]
    stop = np.minimum(wanted.cumsum(axis=0), there)
    taken = np.diff(stop, axis=0, prepend=0)
    start = (there.cumsum() - there) + stop - taken
    missing = sizes - taken.sum(axis=1)
    from_groups = _ranges(start.ravel(), taken.ravel())
    free = np.ones(len(groups), bool)
    free[from_groups] = False
    rest = rng.permutation(np.flatnonzero(free))[: missing.sum()]
    # A stable sort by source puts what was missing behind its own.
    source = np.arange(sources)
    owner = np.concatenate([np.repeat(source, taken.sum(axis=1)), np.repeat(source, missing)])
    taken_rows = np.concatenate([from_groups, rest])[np.argsort(owner, kind="stable")]
    return queue[taken_rows], sizes


def _ranges(start: IntArray, count: IntArray) -> IntArray:
    """start, start + 1, … (count of them), one such range after the other."""
    skipped = np.repeat(start - (count.cumsum() - count), count)
    return np.asarray(np.arange(count.sum()) + skipped)
