"""One set only: whatever sets a coalition tells to whom, it opens one sum, or nothing.

The proof is in docs/proofs.md. Here it is looked at as linear algebra over the field of the shares.
A coalition holds the points of its own sites of every honest polynomial, and gets from each honest
site j the sum of f_i(j) over the set that it told j. It may take any combination of these sums; what
it learns of the answers are the combinations in which the random coefficients cancel.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import pytest

from privcal.secure.sharing import PRIME, combine, split
from privcal.secure.terms import threshold

Row = tuple[int, ...]


# --- linear algebra ----------------------------------------------------------------------


@cache
def reduced(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The row space in its one reduced form (Gauss and Jordan), zero rows dropped."""
    left, done = [list(row) for row in rows], []
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        inverse = pow(pivot[column], -1, PRIME)
        pivot = [v * inverse % PRIME for v in pivot]
        for row in (*left, *done):
            factor = row[column]
            row[:] = [(v - factor * p) % PRIME for v, p in zip(row, pivot, strict=True)]
        done.append(pivot)
    return tuple(tuple(row) for row in done)


def solutions(equations: tuple[Row, ...], unknowns: int) -> list[Row]:
    """A basis of all c with equation · c = 0."""
    rows = reduced(equations)
    pivots = [next(k for k, v in enumerate(row) if v) for row in rows]
    found = []
    for free in range(unknowns):
        if free not in pivots:
            c = [0] * unknowns
            c[free] = 1
            for row, pivot in zip(rows, pivots, strict=True):
                c[pivot] = -row[free] % PRIME
            found.append(tuple(c))
    return found


class View:
    """What a coalition sees: `sites` are asked, those at the points `colluding` are of it."""

    def __init__(self, sites: int, threshold: int, colluding: Iterable[int] = ()) -> None:
        theirs = tuple(colluding)
        self.honest = [x for x in range(1, sites + 1) if x not in theirs]
        self.count = len(self.honest)
        # A polynomial is what the coalition knows of it, plus v·known(x), plus a combination of
        # x·known(x)·x^k: what is zero at the coalition's points, and at 0 besides.
        known = [math.prod(1 - x * pow(c, -1, PRIME) for c in theirs) % PRIME for x in self.honest]
        self._value = known
        self._random = [
            [x ** (k + 1) * at % PRIME for x, at in zip(self.honest, known, strict=True)]
            for k in range(threshold - len(theirs) - 1)
        ]

    def cancelling(self, told: Iterable[int]) -> tuple[Row, ...]:
        """What c must fulfil for a polynomial's coefficients to cancel, if it is in these sums."""
        inside = set(told)
        return tuple(
            tuple(v if j in inside else 0 for j, v in enumerate(row)) for row in self._random
        )

    def learnt(self, told: Sequence[Iterable[int]], equations: tuple[Row, ...]) -> tuple[Row, ...]:
        """The combinations of the honest answers that it can compute."""
        rows = []
        for c in solutions(equations, self.count):
            rows.append(
                tuple(sum(c[j] * self._value[j] for j in inside) % PRIME for inside in told)
            )
        return reduced(tuple(rows))


def seen(view: View, sets: Sequence[Iterable[int]]) -> tuple[Row, ...]:
    """What is learnt where the honest site number j is told the honest part sets[j] of a set."""
    told = [{j for j, dealers in enumerate(sets) if i in dealers} for i in range(view.count)]
    equations = tuple(row for inside in told for row in view.cancelling(inside))
    return view.learnt(told, equations)


def every_leak(view: View, least: int) -> Iterator[tuple[Counter[frozenset[int]], tuple[Row, ...]]]:
    """Every way to tell sets with at least so many honest members, by which anything is learnt.

    All polynomials are alike, so it matters only to which sites a dealer's share is asked for, not
    who the dealer is: ways that differ in the dealers' names come once. Once no combination is left
    that cancels, none will be, whoever comes after: so few ways have to be gone to their end.
    """
    count = view.count
    choices = [
        frozenset(s) for r in range(count + 1) for s in itertools.combinations(range(count), r)
    ]

    def go_on(
        told: tuple[frozenset[int], ...], first: int, equations: tuple[Row, ...]
    ) -> Iterator[tuple[Counter[frozenset[int]], tuple[Row, ...]]]:
        missing = [len(told) - sum(j in inside for inside in told) for j in range(count)]
        if max(missing) > count - least or len(equations) == count:
            return
        if len(told) == count:
            if learnt := view.learnt(told, equations):
                yield Counter(told), learnt
            return
        for place in range(first, len(choices)):
            more = reduced(equations + view.cancelling(choices[place]))
            yield from go_on((*told, choices[place]), place, more)

    yield from go_on((), 0, ())


def is_one_plain_sum(learnt: tuple[Row, ...]) -> bool:
    """One combination, in which every answer counts once or not at all."""
    return len(learnt) == 1 and set(learnt[0]) <= {0, 1}


# --- the theorem -------------------------------------------------------------------------


@pytest.mark.parametrize(("sites", "colluding"), [(4, ()), (5, (2,))])
@pytest.mark.slow
def test_four_honest_sites_open_one_sum_or_nothing_whatever_sets_they_are_told(
    sites: int, colluding: tuple[int, ...]
) -> None:
    view = View(sites, threshold(sites, len(colluding)), colluding)
    assert view.count == 4
    sets = [s for r in (2, 3, 4) for s in itertools.combinations(range(4), r)]
    opened = 0
    for told in itertools.product(sets, repeat=4):
        learnt = seen(view, told)
        # It opens where three sites, as many as are needed, were told the same, and only there.
        common, often = Counter(told).most_common(1)[0]
        if often >= 3:
            assert learnt == (tuple(int(i in common) for i in range(4)),)
            opened += 1
        else:
            assert learnt == ()
    assert opened == 11 + 4 * 11 * 10, "all four the same, or one of them another"


@pytest.mark.parametrize(
    ("sites", "colluding", "least"),
    [(3, 0, 1), (4, 0, 1), (5, 0, 2), (5, 1, 1), (6, 1, 2), (7, 2, 2), (6, 0, 4)],
)
def test_with_the_threshold_of_the_terms_one_plain_sum_is_all_there_is(
    sites: int, colluding: int, least: int
) -> None:
    for theirs in itertools.islice(itertools.combinations(range(1, sites + 1), colluding), 4):
        view = View(sites, threshold(sites, colluding), theirs)
        leaks = list(every_leak(view, least))
        assert leaks
        assert all(is_one_plain_sum(learnt) for _, learnt in leaks)


@pytest.mark.parametrize(("honest", "needed"), [(4, 3), (5, 4), (6, 4)])
@pytest.mark.slow
def test_with_sets_of_as_many_as_are_needed_three_fifths_are_enough(
    honest: int, needed: int
) -> None:
    """The margin: sets of at least the threshold, of which the terms see to it."""
    assert 5 * needed > 3 * honest
    opened = 0
    for told, learnt in every_leak(View(honest, needed), least=needed):
        assert is_one_plain_sum(learnt)
        names = (math.factorial(often) for often in told.values())
        opened += math.factorial(honest) // math.prod(names)
    # As many as there are ways for `needed` or more sites to be told one set, and the rest others.
    sets = sum(math.comb(honest, r) for r in range(needed, honest + 1))
    same = range(needed, honest + 1)
    assert opened == sum(math.comb(honest, r) * sets * (sets - 1) ** (honest - r) for r in same)


def test_every_way_is_gone_as_the_slow_way_finds_it() -> None:
    view = View(3, 2)
    sets = [s for r in (1, 2, 3) for s in itertools.combinations(range(3), r)]
    slow = Counter(
        tuple(sorted(learnt))
        for told in itertools.product(sets, repeat=3)
        if (learnt := seen(view, told))
    )
    fast: Counter[tuple[Row, ...]] = Counter()
    for told, _ in every_leak(view, least=1):
        for dealers in set(itertools.permutations(told.elements())):
            equations = tuple(row for inside in dealers for row in view.cancelling(inside))
            fast[tuple(sorted(view.learnt(dealers, equations)))] += 1
    assert fast == slow


# --- and no less will do -----------------------------------------------------------------


def test_at_a_bare_majority_small_sets_leak_something_else_than_a_sum() -> None:
    for honest, needed, least in [(3, 2, 1), (5, 3, 2)]:
        assert 2 * needed > honest
        leaks = [learnt for _, learnt in every_leak(View(honest, needed), least)]
        assert any(not is_one_plain_sum(learnt) for learnt in leaks)
        assert 3 * threshold(honest, 0) > 2 * honest
        assert threshold(honest, 0) > needed, "the terms want more"


@pytest.mark.parametrize(("sites", "colluding"), [(5, 1), (8, 2), (10, 2), (20, 4)])
def test_from_twice_the_threshold_less_all_sites_on_two_sets_open_and_one_site_is_read(
    sites: int, colluding: int
) -> None:
    """Why the threshold must not be lowered: with the real shares, and no noise in the way."""
    enough = threshold(sites, colluding)
    answers = [[1000 * i, -i] for i in range(1, sites + 1)]
    dealt = [split(answer, enough, sites) for answer in answers]
    victim = sites

    def opened(told: Iterable[int], dealers: Iterable[int]) -> list[int] | None:
        sums = {
            j: [sum(column) for column in zip(*(dealt[i - 1][j - 1] for i in dealers), strict=True)]
            for j in told
        }
        found = combine(sums, enough)
        return found.values if found else None

    def two_sets(theirs: int) -> tuple[list[int] | None, list[int] | None]:
        coalition, honest = range(1, theirs + 1), range(theirs + 1, sites + 1)
        half = theirs + len(honest) // 2
        one = [*coalition, *(j for j in honest if j <= half)]
        other = [*coalition, *(j for j in honest if j > half)]
        everybody = list(range(1, sites + 1))
        return opened(one, everybody), opened(other, [i for i in everybody if i != victim])

    first = 2 * enough - sites
    assert first > colluding
    with_, without = two_sets(first)
    assert with_ is not None
    assert without is not None
    assert [a - b for a, b in zip(with_, without, strict=True)] == answers[victim - 1]
    assert None in two_sets(first - 1)
    assert None in two_sets(colluding)


def test_the_threshold_is_the_least_that_the_theorem_allows() -> None:
    for sites in range(3, 80):
        for colluding in range(sites - 1):
            enough = threshold(sites, colluding)
            assert 3 * (enough - colluding) > 2 * (sites - colluding)
            assert 3 * (enough - 1 - colluding) <= 2 * (sites - colluding)
            for fewer in range(colluding):  # the theorem holds with fewer colluding too
                assert 3 * (enough - fewer) > 2 * (sites - fewer)


@pytest.mark.parametrize(
    ("sites", "proved", "broken"),
    [(10, 4, 6), (20, 7, 10), (50, 17, 24), (100, 34, 48), (300, 102, 142)],
)
def test_the_margin_is_as_the_page_of_proofs_says(sites: int, proved: int, broken: int) -> None:
    enough = threshold(sites, sites // 5)
    one_set = [t for t in range(sites) if 5 * (enough - t) > 3 * (sites - t)]
    assert max(one_set) == proved
    assert 2 * enough - sites == broken
