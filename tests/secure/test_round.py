"""How much noise is in an average: the law that is stated, against the noise itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privcal.secure.round import NoiseLaw, Part, Round, Total
from privcal.secure.shares import add_noise_share
from privcal.secure.terms import GROUPS
from privcal.trusted.errors import InputError
from privcal.trusted.queries import GRID, Gap
from privcal.trusted.question import Question

NANO = 10**9
QUESTION = Question.of(Gap(), 0.5, "spring")


def drawn(law: NoiseLaw, sources: int, draws: int, seed: int = 0) -> np.ndarray:
    """The noise in an average over sources in equal groups, at ε = 1: shares of Laplace variables
    are differences of gamma variables of shape 1/h, and each source adds its own Laplace floor."""
    assert law.honest is not None
    assert law.alone is not None
    rng = np.random.default_rng(seed)
    each = sources // law.groups
    shape = (draws, law.groups)
    shares = rng.gamma(each / law.honest, size=shape) - rng.gamma(each / law.honest, size=shape)
    floors = (rng.gamma(each, size=shape) - rng.gamma(each, size=shape)) / law.alone
    return np.median((shares + floors) / each, axis=1) * law.rows_per_person


def exact_of_a_median(groups: int, each: int, honest: int, alone: int) -> float:
    """The variance of the median over that of the mean, by integrating the law of the noise.

    Its characteristic function is (1 + t²)^(−n/h) · (1 + t²/alone²)^(−n).
    """
    points, width = 2**16, 200.0
    step = width / points
    x = (np.arange(points) - points // 2) * step
    t = 2 * np.pi * np.fft.fftfreq(points, step)
    transform = (1 + t**2) ** (-each / honest) * (1 + t**2 / alone**2) ** -each
    density = np.maximum(np.fft.fftshift(np.fft.ifft(transform).real), 0)
    density /= density.sum()
    below = np.cumsum(density) - density / 2
    middle = (groups - 1) // 2
    of_median = (below * (1 - below)) ** middle * density
    variance = float(of_median @ x**2 / of_median.sum())
    return variance * groups / (2 * each * (1 / honest + 1 / alone**2))


@pytest.mark.parametrize("groups", [g for g in GROUPS if g > 1])
@pytest.mark.parametrize(
    ("each", "honest", "alone", "close"),
    [
        (20, 6, 10, 0.01),  # 60 sources in three groups, of which 12 may collude
        (33, 10, 10, 0.01),
        (100, 30, 10, 0.01),
        (50, 25, 1000, 0.01),
        (30, 9, 5, 0.02),
        (20, 18, 10, 0.07),  # hardly anybody colludes: nearly one Laplace variable, and a floor
    ],
)
def test_the_variance_of_a_median_of_groups_is_that_of_its_law(
    groups: int, each: int, honest: int, alone: int, close: float
) -> None:
    one, several = (NoiseLaw(1, honest, alone, g) for g in (1, groups))
    stated = several.variance(NANO, groups * each) / one.variance(NANO, groups * each)
    assert stated == pytest.approx(exact_of_a_median(groups, each, honest, alone), rel=close)


def test_the_median_of_three_laplace_variables_is_known_in_closed_form() -> None:
    """Of three Laplace variables of scale 1 the middle one has variance 23/36; a mean 2/3."""
    exact = exact_of_a_median(3, each=7, honest=7, alone=10**6)
    assert exact == pytest.approx((23 / 36) / (2 / 3), rel=1e-3)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("rows_per_person", [1, 4])
def test_the_stated_variance_is_that_of_drawn_noise(groups: int, rows_per_person: int) -> None:
    law = NoiseLaw(rows_per_person, honest=9, alone=10, groups=groups)
    noise = drawn(law, 27 * groups, 40_000)
    # An estimate of a variance from n draws of kurtosis 4 deviates by √(3/n) = 0.9 %.
    assert noise.var() == pytest.approx(law.variance(NANO, 27 * groups), rel=0.04)
    half = NoiseLaw(rows_per_person, honest=18, alone=10, groups=groups)
    assert noise.var() > 1.2 * half.variance(NANO, 27 * groups)


def test_the_stated_variance_is_that_of_the_shares_that_sites_add() -> None:
    """Nine sites, h = 6: the noise of their sum, over the numbers that they each add shares to."""
    law, nano, numbers = NoiseLaw(2, honest=6, alone=3), NANO // 2, 800
    shares = [add_noise_share(np.zeros(numbers, np.int64), 2 * GRID, nano, 6, 3) for _ in range(9)]
    average = np.sum(shares, axis=0) / GRID / 9
    # The relative deviation of a variance of 800 numbers of kurtosis 4.4 is √(3.4/800) = 7 %.
    assert average.var() == pytest.approx(law.variance(nano, 9), rel=0.3)


def test_the_stated_kurtosis_is_that_of_drawn_noise() -> None:
    for honest, sources in ((5, 9), (20, 24)):
        law = NoiseLaw(1, honest, 10)
        noise = drawn(law, sources, 1_000_000)
        kurtosis = float((noise**4).mean() / noise.var() ** 2) - 3
        assert law.excess_kurtosis(sources) == pytest.approx(kurtosis, rel=0.1)
    assert NoiseLaw().excess_kurtosis(1) == 3  # a Laplace variable
    assert NoiseLaw().excess_kurtosis(50) == 0.06


def test_rows_in_a_median_of_groups_say_less() -> None:
    """Of normal group averages the median varies by 1.35 to 1.49 of what their mean does."""
    rng = np.random.default_rng(1)
    for groups in GROUPS:
        law = NoiseLaw(1, 5, 10, groups) if groups > 1 else NoiseLaw()
        means = rng.normal(size=(100_000, groups)) / math.sqrt(20)
        varies = np.median(means, axis=1).var()
        assert 1 / law.independent(20 * groups) == pytest.approx(varies, rel=0.03)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"rows_per_person": 0}, "rows_per_person must be a whole number of at least 1"),
        ({"honest": 5}, "both of a secure sum"),
        ({"alone": 5}, "both of a secure sum"),
        ({"honest": 0, "alone": 5}, "honest must be a whole number of at least 1"),
        ({"honest": 5, "alone": 0}, "alone must be a whole number from 1 to 1,000"),
        ({"honest": 5, "alone": 5, "groups": 2}, "groups must be one of 1, 3, 5, 7, 9"),
        ({"honest": 5, "alone": 5, "groups": True}, "groups must be a whole number"),
        ({"groups": 3}, "of a secure sum"),
    ],
)
def test_an_impossible_law_is_refused_in_a_sentence(facts: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        NoiseLaw(**facts)


# --- rounds ----------------------------------------------------------------------------------------


def test_a_round_of_answers_is_averaged_over_those_that_stay() -> None:
    answers = {"north": (3.0, 1.0), "south": (5.0, 1.0), "west": (40.0, 4.0)}
    told = {"north": "4f", "south": "9a", "west": "9a"}
    asked = Round(QUESTION, answers, NoiseLaw(2), told)
    assert np.array_equal(asked.average, [16, 2])
    assert asked.sources == ("north", "south", "west")
    stayed = asked.among(["south", "north"])
    assert np.array_equal(stayed.average, [4, 1])
    assert stayed.sources == ("south", "north")
    assert (stayed.noise, stayed.round, stayed.epsilon) == (NoiseLaw(2), 0, 0.5)
    assert stayed.ledgers == {"north": "4f", "south": "9a"}
    assert asked.among(asked.sources).ledgers == {"north": "4f"}, (
        "a ledger that two claim is nobody's"
    )


def test_a_total_is_one_whole_whoever_leaves_later() -> None:
    parts = (Part(("north", "south"), (8.0, 2.0)), Part(("west",), (1.0, 1.0)))
    law = NoiseLaw(honest=1, alone=10)
    opened = Round.of(Total(QUESTION, parts, law, {"west": "4f"}))
    assert opened.among(["north"]) is opened
    assert np.array_equal(opened.average, [2.5, 1])
    assert opened.sources == ("north", "south", "west")
    assert (opened.noise, opened.ledgers, opened.answers) == (law, {"west": "4f"}, {})
