"""Shares give the number back, fewer say nothing, and wrong ones are found."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privcal.secure import sharing
from privcal.secure.sharing import PRIME, WIDTH, Combined, combine, split

ALARM = 1e-7
"""The chance of a false alarm of one test."""

Rows = list[list[int]]


def held(rows: Rows) -> dict[int, list[int]]:
    return dict(enumerate(rows, 1))


def at_zero(shares: dict[int, list[int]], at: int = 0) -> list[int]:
    """Lagrange's formula as it stands in books, in fractions; modulo the prime only in the end."""
    total = [0] * len(next(iter(shares.values())))
    for x, row in shares.items():
        weight = prod((Fraction(at - k, x - k) for k in shares if k != x), start=Fraction(1))
        w = weight.numerator * pow(weight.denominator, -1, PRIME)
        total = [(t + w * y) % PRIME for t, y in zip(total, row, strict=True)]
    return total


def numbers() -> st.SearchStrategy[int]:
    return st.one_of(
        st.integers(-(PRIME // 2), PRIME // 2), st.sampled_from([0, 1, -1, 2**62, -(2**72)])
    )


@st.composite
def cut(draw: st.DrawFn) -> tuple[list[int], int, int]:
    values = draw(st.lists(numbers(), min_size=1, max_size=5))
    points = draw(st.integers(1, 20))
    return values, draw(st.integers(1, points)), points


@given(cut(), st.randoms(use_true_random=False))
def test_any_threshold_of_the_shares_give_the_numbers(
    case: tuple[list[int], int, int], order: random.Random
) -> None:
    values, threshold, points = case
    shares = held(split(values, threshold, points))
    some = dict(order.sample(sorted(shares.items()), threshold))
    assert combine(some, threshold) == Combined(values, ())
    assert combine(shares, threshold) == Combined(values, ())
    assert at_zero(some) == [value % PRIME for value in values]


@given(cut())
def test_the_shares_lie_on_a_polynomial_of_degree_below_the_threshold(
    case: tuple[list[int], int, int],
) -> None:
    values, threshold, points = case
    shares = held(split(values, threshold, points))
    some = {x: shares[x] for x in range(1, threshold + 1)}
    assert all(at_zero(some, at=x) == row for x, row in shares.items())
    assert all(0 <= y < PRIME for row in shares.values() for y in row)


@pytest.mark.parametrize("points", [2, 3, 7, 8, 63, 127, 300, 511, 1000])
@pytest.mark.parametrize("coefficient", [PRIME - 1, PRIME // 2, 0])
def test_no_lane_runs_over_into_the_next_one(
    points: int, coefficient: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = min(points, 40)
    lanes = sharing._Lanes(3).packed([coefficient] * 3)
    monkeypatch.setattr(secrets, "randbits", lambda bits: lanes)
    rows = split([PRIME - 1, 0, -5], threshold, points)
    for x in {1, points // 2, points - 1, points} - {0}:
        others = sum(coefficient * x**power for power in range(1, threshold))
        assert rows[x - 1] == [(others + value) % PRIME for value in (PRIME - 1, 0, -5)]


def test_shares_of_a_sum_are_sums_of_shares() -> None:
    values = [[-7, 2**61, 0], [3, -(2**62), 0], [-1, 5, 0]]
    dealt = [split(each, 4, 9) for each in values]
    sums = [
        [sum(column) for column in zip(*rows, strict=True)] for rows in zip(*dealt, strict=True)
    ]
    found = combine({x: sums[x - 1] for x in (2, 4, 5, 9)}, 4)
    assert found == Combined([sum(column) for column in zip(*values, strict=True)], ())


def thresha() -> tuple[ModuleType, Any]:
    """MPyC's own Shamir, and its field modulo a prime as a function of the prime.

    Importing it reads the command line, which is pytest's here, and sets logging up.
    """
    handlers, level = logging.root.handlers[:], logging.root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv[:1])
        pytest.importorskip("mpyc", reason="MPyC is not installed: pip install 'privcal[test]'")
        from mpyc import thresha as module
        from mpyc.finfields import GF
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    return module, GF


def test_mpyc_opens_what_we_cut_and_we_open_what_it_cut() -> None:
    mpyc, field = thresha()
    modulo = field(PRIME)
    values = [0, 1, -1, 2**62, -(2**100), PRIME // 2, -(PRIME // 2)]
    for threshold, points in [(1, 1), (1, 4), (3, 3), (4, 9), (37, 50)]:
        ours = held(split(values, threshold, points))
        some = sorted(ours.items())[points - threshold :]
        assert [int(v) % PRIME for v in mpyc.recombine(modulo, some)] == [v % PRIME for v in values]
        theirs = mpyc.random_split(modulo, [v % PRIME for v in values], threshold - 1, points)
        some = sorted(held([[int(v) for v in row] for row in theirs]).items())[: threshold + 1]
        assert combine(dict(some), threshold) == Combined(values, ())


def test_the_import_of_mpyc_leaves_logging_alone() -> None:
    before = logging.root.handlers[:], logging.root.level
    thresha()
    assert (logging.root.handlers, logging.root.level) == before


def test_a_share_fits_into_its_bytes() -> None:
    assert PRIME < 2 ** (8 * WIDTH)
    assert PRIME == 2**127 - 1


# --- fewer say nothing -------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> int:
    """A field so small that all that can be drawn can be looked at."""
    monkeypatch.setattr(sharing, "BITS", 3)
    monkeypatch.setattr(sharing, "PRIME", 7)
    return 7


def everything_drawn(
    values: list[int], threshold: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rows]:
    """The shares for each outcome of the bits; without the outcomes that are drawn again."""
    words = range(2 ** (2 * sharing.BITS * len(values)))
    for outcome in itertools.product(words, repeat=threshold - 1):
        draws = list(outcome)
        monkeypatch.setattr(secrets, "randbits", lambda bits, draws=draws: draws.pop())
        with contextlib.suppress(IndexError):  # it wanted more than there is
            yield split(values, threshold, points)


@pytest.mark.parametrize(("threshold", "count"), [(2, 1), (3, 1), (2, 2)])
def test_one_share_too_few_is_uniform_whatever_the_numbers_are(
    tiny: int, threshold: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = 3
    for values in itertools.product(range(tiny), repeat=count):
        if count == 2 and values not in [(0, 0), (1, 6), (3, 3)]:
            continue
        dealt = list(everything_drawn(list(values), threshold, points, monkeypatch))
        for few in itertools.combinations(range(points), threshold - 1):
            seen = Counter(tuple(tuple(rows[j]) for j in few) for rows in dealt)
            assert len(seen) == tiny ** ((threshold - 1) * count)
            assert len(set(seen.values())) == 1
        for enough in itertools.combinations(range(points), threshold):
            seen = Counter(tuple(tuple(rows[j]) for j in enough) for rows in dealt)
            assert len(seen) == tiny ** ((threshold - 1) * count), "all of them, and no more"


@pytest.mark.parametrize("value", [0, -1, 2**62])
def test_shares_one_too_few_look_the_same_for_every_number(value: int) -> None:
    rows = [split([value, value], 3, 5) for _ in range(4000)]
    for point in range(5):
        for bits in (0, 119):  # the lowest and the highest byte
            cells = np.bincount([(r[point][k] >> bits) & 255 for r in rows for k in (0, 1)])
            assert stats.chisquare(cells).pvalue > ALARM
    # Two shares, two numbers: 2⁴ cells of their highest bits.
    together = Counter((*(v >> 126 for v in r[1]), *(v >> 126 for v in r[4])) for r in rows)
    assert (
        stats.chisquare([together[c] for c in itertools.product((0, 1), repeat=4)]).pvalue > ALARM
    )


def test_the_same_number_is_never_cut_twice_in_the_same_way() -> None:
    assert len({tuple(split([5], 2, 2)[0]) for _ in range(100)}) == 100


# --- wrong ones are found ----------------------------------------------------------------


def spoil(rows: dict[int, list[int]], wrong: list[int], how: random.Random) -> None:
    """Every way to be wrong: all numbers, one of them, by one, and so that their sum is the same."""
    for place, x in enumerate(wrong):
        row = rows[x] = rows[x][:]
        number = how.randrange(len(row))
        if place % 4 == 0:
            rows[x] = [(y + how.randrange(1, PRIME)) % PRIME for y in row]
        elif place % 4 == 1 or len(row) == 1:
            row[number] = (row[number] + 1) % PRIME
        elif place % 4 == 2:
            row[number - 1], row[number] = (row[number - 1] + 9) % PRIME, (row[number] - 9) % PRIME
        else:
            row[number] = how.randrange(PRIME)


@pytest.mark.parametrize(
    ("points", "threshold"),
    [(1, 1), (3, 1), (5, 1), (4, 4), (5, 4), (6, 4), (9, 4), (12, 5), (50, 37)],
)
@pytest.mark.parametrize("count", [1, 6])
def test_every_number_of_errors_up_to_half_of_what_is_over_is_corrected_and_one_more_is_not(
    points: int, threshold: int, count: int
) -> None:
    how = random.Random(points * 100 + threshold)
    most = (points - threshold) // 2
    values = [how.randrange(-(2**70), 2**70) for _ in range(count)]
    for errors in range(min(most + 2, points + 1)):
        shares = held(split(values, threshold, points))
        wrong = sorted(how.sample(sorted(shares), errors))
        spoil(shares, wrong, how)
        found = combine(shares, threshold)
        if errors <= most:
            assert found == Combined(values, tuple(wrong))
        elif points > threshold:
            assert found is None


def closest(shares: dict[int, list[int]], threshold: int) -> Combined | None:
    """By trying every set: the largest that lies on polynomials, if few enough are outside it."""
    most = (len(shares) - threshold) // 2
    for errors in range(most + 1):
        for wrong in itertools.combinations(sorted(shares), errors):
            right = {x: row for x, row in shares.items() if x not in wrong}
            some = dict(sorted(right.items())[:threshold])
            if all(at_zero(some, at=x) == row for x, row in right.items()):
                values = [v - PRIME if v > PRIME // 2 else v for v in at_zero(some)]
                return Combined(values, wrong)
    return None


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.integers(0, 2), min_size=4, max_size=7),
    st.lists(st.integers(0, 2), min_size=7, max_size=7),
)
def test_points_of_several_polynomials_are_decoded_as_by_trying_every_set(
    threshold: int, first: list[int], second: list[int]
) -> None:
    # Each point has the shares of one of three cuts, each of two numbers by itself: the worst there
    # is, since the wrong ones agree with each other.
    dealt = [split([11, 12], threshold, len(first)) for _ in range(2)]
    dealt.append(split([13, 12], threshold, len(first)))
    shares = {
        x: [dealt[a][x - 1][0], dealt[b][x - 1][1]]
        for x, (a, b) in enumerate(zip(first, second, strict=False), 1)
    }
    assert combine(shares, threshold) == closest(shares, threshold)


def test_a_combination_that_hides_an_error_is_followed_by_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = held(split([1, 2], 3, 9))
    shares[4] = [shares[4][0] + 1, shares[4][1]]
    for x in (1, 2, 5, 6, 7):
        shares[x] = [shares[x][0], shares[x][1] + x]
    unlucky, real = [0, 1], secrets.randbelow  # the first number alone is looked at
    monkeypatch.setattr(secrets, "randbelow", lambda n: unlucky.pop() if unlucky else real(n))
    assert combine(shares, 3) is None


def test_more_points_than_can_be_corrected_are_never_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = held(split([1], 3, 7))
    shares[1] = [shares[1][0] + 1]
    # (x − 1)(x − 2)(x − 3)(x − 4): what is left would be three points, which lie on anything.
    monkeypatch.setattr(sharing, "_shortest_recurrence", lambda _: [1, -10, 35, -50, 24])
    assert combine(shares, 3) is None


def test_too_few_shares_give_nothing() -> None:
    shares = held(split([1, 2], 4, 6))
    assert combine({}, 4) is None
    assert combine({x: shares[x] for x in (1, 2, 3)}, 4) is None


def test_shares_that_hold_no_number_are_put_together_to_none() -> None:
    assert combine(held(split([], 2, 3)), 2) == Combined([], ())


@pytest.mark.parametrize(("threshold", "points"), [(0, 3), (4, 3), (1, 0), (-1, 3)])
def test_a_threshold_that_cannot_be_met_is_refused(threshold: int, points: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        split([1], threshold, points)
