"""A share of the noise has exactly the law it should have, coin by coin and as a whole."""

from __future__ import annotations

import ast
import heapq
import itertools
import math
import secrets
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import hyp2f1

from privcal.secure import shares, sharing
from privcal.secure.shares import add_noise_share, noise_share
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import GRID
from tests.support.noise_laws import Law, discrete_laplace, law_of_sum, share_law

# --- all that a program with random choices can do ---------------------------------------

Result = TypeVar("Result")


class _NewChoice(Exception):
    def __init__(self, weights: Sequence[Fraction]) -> None:
        self.weights = weights


class Choices:
    """What a program asks instead of chance: it goes one way, then every other one."""

    def __init__(self) -> None:
        self.script: tuple[int, ...] = ()
        self._place = 0

    def start(self, script: tuple[int, ...]) -> None:
        self.script, self._place = script, 0

    def pick(self, weights: Sequence[Fraction]) -> int:
        """One of the ways, which have these probabilities."""
        if self._place == len(self.script):
            raise _NewChoice(weights)
        self._place += 1
        return self.script[self._place - 1]

    def below(self, n: int) -> int:
        return self.pick([Fraction(1, n)] * n)

    def bits(self, count: int) -> int:
        return self.below(2**count)

    def coin(self, p: int, q: int) -> bool:
        assert p >= 0, "a probability"
        return p >= q or self.pick([Fraction(q - p, q), Fraction(p, q)]) == 1

    def heads(self, most: int) -> int:
        """Heads before a tail; `most` stands for that many or more."""
        return self.pick([*(Fraction(1, 2 << n) for n in range(most)), Fraction(1, 1 << most)])


def every_outcome(
    program: Callable[[], Result], choices: Choices, left: float = 0.0
) -> dict[Result, Fraction]:
    """The probability of each result, the likeliest ways first, until less than `left` is left.

    So a result's true probability is what is said here, or more by at most `left`.
    """
    found: dict[Result, Fraction] = {}
    ways: list[tuple[Fraction, tuple[int, ...]]] = [(Fraction(-1), ())]
    remaining = 1.0
    while ways and remaining > left:
        mass, script = heapq.heappop(ways)
        choices.start(script)
        try:
            result = program()
        except _NewChoice as new:
            for way, weight in enumerate(new.weights):
                if weight:
                    heapq.heappush(ways, (mass * weight, (*script, way)))
            assert len(ways) < 100_000, "too many ways"
        else:
            found[result] = found.get(result, Fraction(0)) - mass
            remaining += float(mass)
    return found


# --- shares ------------------------------------------------------------------------------


# Chance of a false alarm of one test, and the error in the scale that must not escape.
ALARM = 1e-7
WRONG = 1.05


# --- the coins, without chance -----------------------------------------------------------


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Choices:
    """Every draw of the sampler becomes a choice, and all ways are gone."""
    chosen = Choices()
    monkeypatch.setattr(shares, "_coin", chosen.coin)
    monkeypatch.setattr(secrets, "randbelow", chosen.below)
    monkeypatch.setattr(secrets, "randbits", chosen.bits)
    return chosen


def true_with(coin: Callable[[], bool], choices: Choices) -> float:
    """The probability of True, to 13 digits."""
    return float(every_outcome(coin, choices, left=1e-13).get(True, 0))


@pytest.mark.parametrize("q", [1, 2, 3, 7, 12])
def test_a_coin_shows_true_for_p_of_q_numbers(q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for p in range(q + 1):
        seen = 0
        for drawn in range(q):
            monkeypatch.setattr(
                secrets, "randbelow", lambda n, drawn=drawn: drawn if n == q else -1
            )
            seen += shares._coin(p, q)
        assert seen == p


@pytest.mark.parametrize(
    ("words", "heads"), [([1], 0), ([2], 1), ([0b1011000], 3), ([2**63], 63), ([0, 0, 4], 130)]
)
def test_heads_are_the_zeros_before_the_first_one(
    words: list[int], heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(words)
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(drawn) if bits == 64 else None)
    assert shares._heads() == heads


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 10**9), (1, 3), (1, 2), (999, 1000), (1, 1)])
def test_the_falling_coin_from_one_is_the_exponential(p: int, q: int, choices: Choices) -> None:
    seen = true_with(lambda: shares._falling(p, q, 1), choices)
    assert seen == pytest.approx(math.exp(-p / q), abs=1e-12)


def test_the_falling_coin_from_three_is_two_over_e(choices: Choices) -> None:
    seen = true_with(lambda: shares._falling(1, 1, 3), choices)
    assert seen == pytest.approx(2 / math.e, abs=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0, 5), (2, 5), (5, 5), (7, 5), (10, 5), (16, 5), (41, 10)])
def test_the_exponential_coin_is_right_beyond_one_too(p: int, q: int, choices: Choices) -> None:
    found = every_outcome(lambda: shares._exponential(p, q), choices, left=1e-9)
    assert float(found.get(True, 0)) == pytest.approx(math.exp(-p / q), abs=2e-9)


def test_the_poisson_number_has_mean_one(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0

    def heads() -> int:
        nonlocal passes
        passes += 1
        if passes > 1:
            raise LookupError
        return choices.heads(12)

    def one_pass() -> int | None:
        nonlocal passes
        passes = 0
        try:
            return shares._poisson()
        except LookupError:  # this one is not kept, and it starts anew
            return None

    monkeypatch.setattr(shares, "_heads", heads)
    found = every_outcome(one_pass, choices)
    assert sum(found.values()) == 1
    assert [found[n] * math.factorial(n) / found[0] for n in range(12)] == [1] * 12


SMALL = [  # sensitivity, ε, h: on both sides of the powers of two, γ above and below 1
    (1, "1", 1), (1, "2.3", 2), (2, "1", 1), (3, "1", 2), (4, "1", 3), (4, "1.000000001", 3),
    (4, "0.999999999", 3), (5, "1", 25), (1, "0.7", 4), (30, "2.7", 161),
]  # fmt: skip


@pytest.fixture
def known_coins(choices: Choices, monkeypatch: pytest.MonkeyPatch) -> Choices:
    """The coins of the tests above, at their word: the probabilities that they were seen to have."""

    def exponential(p: int, q: int) -> bool:
        assert p >= 0
        yes = Fraction(math.exp(-p / q))
        return choices.pick([1 - yes, yes]) == 1

    def falling(p: int, q: int, first: int) -> bool:
        assert (p, q, first) == (1, 1, 3)
        yes = Fraction(2 / math.e)
        return choices.pick([1 - yes, yes]) == 1

    monkeypatch.setattr(shares, "_exponential", exponential)
    monkeypatch.setattr(shares, "_falling", falling)
    monkeypatch.setattr(shares, "_heads", lambda: choices.heads(4))
    return choices


@pytest.mark.parametrize(("sensitivity", "epsilon", "honest"), SMALL)
def test_jumps_of_every_size_are_kept_with_the_mean_that_is_wanted(
    sensitivity: int,
    epsilon: str,
    honest: int,
    known_coins: Choices,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One candidate: of `asked` Poisson numbers of mean 1, the first is 1 and the others are 0.
    asked = 0

    def poisson() -> int:
        nonlocal asked
        asked += 1
        return int(asked == 1)

    def one() -> int:
        nonlocal asked
        asked = 0
        return noise_share(sensitivity, round(float(epsilon) * NANO), honest)

    monkeypatch.setattr(shares, "_poisson", poisson)
    found = every_outcome(one, known_coins)
    gamma = float(epsilon) / sensitivity
    for size in range(1, 16):  # four heads or more are sizes of 16 and more
        wanted = math.exp(-gamma * size) / (size * honest)
        for sign in (1, -1):
            assert asked * float(found[sign * size]) == pytest.approx(wanted, rel=1e-12)


def test_a_share_is_the_sum_of_its_jumps(
    known_coins: Choices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(count: int) -> dict[int, Fraction]:
        monkeypatch.setattr(shares, "_heads", lambda: known_coins.heads(1))
        monkeypatch.setattr(shares, "_poisson", lambda: count)
        return every_outcome(lambda: noise_share(1, 3 * NANO, 2), known_coins)

    one = share(1)
    assert share(0) == {0: 1}
    twice: dict[int, Fraction] = {}
    for (a, p), (b, q) in itertools.product(one.items(), repeat=2):
        twice[a + b] = twice.get(a + b, Fraction(0)) + p * q
    assert share(2) == twice


# --- the whole, by chance ----------------------------------------------------------------


def fit(noise: npt.NDArray[np.int64], expected: Law) -> float:
    """The p-value of a chi-square test, in cells that end at ±1, ±2, ±4, … (few, so it is sharp)."""
    centre = len(expected) // 2
    ends = [2**j for j in range(40) if expected[centre + 2**j : None].sum() * len(noise) > 20]
    edges = [*(-e for e in reversed(ends)), *(e - 1 for e in ends)]  # … −1 | 0 | 1 …
    starts = [0, *(centre + e + 1 for e in edges)]
    wanted = np.add.reduceat(expected, starts) * len(noise)
    observed = np.bincount(np.searchsorted(edges, noise), minlength=len(starts))
    return float(stats.chisquare(observed, wanted * len(noise) / wanted.sum()).pvalue)


def drawn(count: int, sensitivity: int, nano: int, honest: int) -> npt.NDArray[np.int64]:
    return np.array([noise_share(sensitivity, nano, honest) for _ in range(count)])


# So many draws that an error of 5 % escapes with a probability below 10⁻⁶ (by the noncentral
# chi-square law), as 10⁻⁷ is that of a false alarm.
PAIRS = [
    (1, 1.0, 1, 60_000), (10, 3.0, 2, 100_000), (2, 1.0, 3, 125_000), (1, 1.2, 4, 150_000),
    (1, 2.3, 2, 90_000),
]  # fmt: skip


@pytest.mark.parametrize(("sensitivity", "epsilon", "honest", "count"), PAIRS)
@pytest.mark.slow
def test_shares_follow_their_law_and_a_scale_5_percent_off_would_show(
    sensitivity: int, epsilon: float, honest: int, count: int
) -> None:
    noise = drawn(count, sensitivity, round(epsilon * NANO), honest)
    gamma = epsilon / sensitivity
    assert fit(noise, share_law(gamma, honest)) > ALARM
    assert fit(noise, share_law(gamma * WRONG, honest)) < ALARM
    assert fit(noise, share_law(gamma / WRONG, honest)) < ALARM


@pytest.mark.parametrize("off", [WRONG, 1 / WRONG])
@pytest.mark.slow
def test_shares_drawn_at_a_scale_5_percent_off_are_rejected(off: float) -> None:
    noise = drawn(160_000, 1, round(1.2 * off * NANO), 4)
    assert fit(noise, share_law(1.2, 4)) < ALARM


@pytest.mark.parametrize(("gamma", "honest"), [(0.25, 2), (0.5, 5), (0.1, 25), (2.0, 3)])
def test_by_the_law_h_shares_are_the_discrete_laplace_noise_of_one(
    gamma: float, honest: int
) -> None:
    share = share_law(gamma, honest)
    middle = len(share) // 2
    total = law_of_sum(*[share] * honest)
    np.testing.assert_allclose(total, discrete_laplace(gamma, middle + 1), atol=1e-12)
    # and as many as are promised, not fewer
    assert abs(share_law(gamma, honest + 1)[middle] - share[middle]) > 1e-4


@pytest.mark.parametrize(
    ("sensitivity", "honest", "sums", "off"),
    [(4, 2, 60_000, WRONG), (GRID, 25, 8_000, 1.2), (10 * GRID, 5, 3_000, 1.4)],
)
@pytest.mark.slow
def test_sums_of_h_shares_follow_the_discrete_laplace_law(
    sensitivity: int, honest: int, sums: int, off: float
) -> None:
    noise = drawn(sums * honest, sensitivity, NANO, honest).reshape(sums, honest).sum(axis=1)
    # The law of |Z| is close to exponential; on the large grids it is that to six digits.
    edges = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, np.inf]) * sensitivity
    rate = 1 / sensitivity

    def below(z: npt.NDArray[np.float64], rate: float) -> npt.NDArray[np.float64]:
        whole = np.ceil(np.minimum(z, 1e12))  # P[|Z| < z]
        return np.where(z <= 0, 0, 1 - 2 * np.exp(-rate * whole) / (1 + math.exp(-rate)))

    observed, _ = np.histogram(np.abs(noise), edges)

    def p_value(rate: float) -> float:
        expected = np.diff(below(edges, rate)) * sums
        return float(stats.chisquare(observed, expected).pvalue)

    assert p_value(rate) > ALARM
    assert max(p_value(rate * off), p_value(rate / off)) < ALARM
    assert stats.binomtest(int((noise > 0).sum()), int((noise != 0).sum())).pvalue > ALARM


@pytest.mark.slow
def test_on_the_real_grid_as_many_shares_are_zero_as_should_be() -> None:
    a, r, count = 1 / 25, math.exp(-1 / GRID), 60_000
    zero = (-math.expm1(-1 / GRID)) ** (2 * a) * hyp2f1(a, a, 1, r * r)
    assert zero == pytest.approx(0.3308, abs=1e-4)
    seen = int((drawn(count, GRID, NANO, 25) == 0).sum())
    assert stats.binomtest(seen, count, zero).pvalue > ALARM


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.integers(1, 20), st.integers(1, 2**40)),
    st.one_of(st.integers(1, 10 * NANO), st.integers(1, 10**15)),
    st.integers(1, 400),
)
def test_whatever_is_wanted_every_coin_is_a_probability(
    sensitivity: int, nano: int, honest: int
) -> None:
    real = shares._coin

    def coin(p: int, q: int) -> bool:
        assert type(p) is type(q) is int
        assert 0 <= p <= q
        return real(p, q)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "_coin", coin)
        assert type(noise_share(sensitivity, nano, honest)) is int


@pytest.mark.parametrize(
    ("sensitivity", "nano", "honest"), [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, -5, 1), (1, 1, 0)]
)
def test_nothing_is_drawn_for_what_is_not_positive(
    sensitivity: int, nano: int, honest: int
) -> None:
    with pytest.raises(ValueError, match="positive"):
        noise_share(sensitivity, nano, honest)
    with pytest.raises(ValueError, match="positive"):
        add_noise_share(np.array([1]), sensitivity, nano, honest, 10)


@pytest.mark.parametrize("module", [shares, sharing])
def test_no_floating_point_and_no_randomness_but_the_systems(module: object) -> None:
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id == "float")
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= {"math", "secrets"}


# --- the floor ---------------------------------------------------------------------------


def test_the_floor_is_the_noise_of_one_source_at_so_many_times_the_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[int], int, int]] = []
    shared: list[tuple[int, int, int]] = []

    def floor(total: npt.NDArray[np.int64], sensitivity: int, nano: int) -> list[int]:
        asked.append(([int(v) for v in total], sensitivity, nano))
        return [int(v) + 1000 for v in total]

    def share(*wanted: int) -> int:
        shared.append(wanted)  # type: ignore[arg-type]
        return 10 * len(shared)

    monkeypatch.setattr(shares, "add_noise", floor)
    monkeypatch.setattr(shares, "noise_share", share)
    assert add_noise_share(np.array([3, -5]), 7, 200, honest=4, alone=10) == [1013, 1015]
    assert asked == [([3, -5], 7, 2000)]
    assert shared == [(7, 200, 4)] * 2, "one for each number, each drawn anew"
    with pytest.raises(ValueError, match="at least the whole epsilon"):
        add_noise_share(np.array([3]), 7, 200, honest=4, alone=0)


@pytest.mark.slow
def test_share_and_floor_together_follow_the_law_of_their_sum() -> None:
    sensitivity, honest, alone, count = 4, 3, 2, 40_000
    share = share_law(1 / sensitivity, honest)
    half = len(share) // 2
    both = law_of_sum(share, discrete_laplace(alone / sensitivity, half + 1))
    zeros = np.zeros(count, np.int64)
    noise = np.array(add_noise_share(zeros, sensitivity, NANO, honest, alone))
    assert fit(noise, both) > ALARM
    assert fit(noise, share) < ALARM, "the floor would be missed"
    assert fit(noise, discrete_laplace(alone / sensitivity, half + 1)) < ALARM
    variance = 2 * math.exp(-1 / sensitivity) / math.expm1(-1 / sensitivity) ** 2 / honest
    variance += 2 * math.exp(-alone / sensitivity) / math.expm1(-alone / sensitivity) ** 2
    assert noise.var() == pytest.approx(variance, rel=0.08)
