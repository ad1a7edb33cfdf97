"""The exact ε of what a coalition sees of a secure sum, from the laws of its noise.

What it sees is one number (or several) with the noise of the honest sites in it; all else in the total
it knows. Rows of one person move the exact sums by at most the sensitivity, over all numbers
together. The ε of that is the largest logarithm of a ratio of two probabilities, and is computed here
to many digits, by adding up.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from privcal.secure.round import NoiseLaw
from tests.support.noise_laws import Law, discrete_laplace, law_of_sum, share_law

SENSITIVITY, EPSILON = 8, 1.0
GAMMA = EPSILON / SENSITIVITY
RANGE = 500
DIGITS = 1e-9


@functools.cache
def view(honest: int, promised: int, alone: float | None, sensitivity: int = SENSITIVITY) -> Law:
    """The noise of so many honest sites' shares, of which `promised` make the whole, and floors."""
    gamma = EPSILON / sensitivity
    laws = [share_law(gamma, promised, RANGE)] * honest
    if alone is not None:
        laws += [discrete_laplace(alone * gamma, RANGE)] * honest
    return law_of_sum(*laws)


def loss(law: Law, moved: int) -> float:
    """The largest log-ratio where a number moves by so much, over what is far from the ends."""
    far = len(law) // 3
    here, there = law[far:-far], law[far - moved : -far - moved]
    return float(np.abs(np.log(here / there)).max())


def epsilon_of(law: Law, numbers: int = 1) -> float:
    """The most over all ways in which a person's rows can move so many numbers."""
    one = [0.0, *(loss(law, moved) for moved in range(1, SENSITIVITY + 1))]
    most = one
    for _ in range(numbers - 1):
        most = [max(most[k] + one[d - k] for k in range(d + 1)) for d in range(len(one))]
    return most[SENSITIVITY]


@pytest.mark.parametrize("numbers", [1, 2, 3])
@pytest.mark.parametrize("promised", [1, 2, 5, 27])
def test_the_promised_number_of_honest_sites_gives_epsilon(promised: int, numbers: int) -> None:
    assert epsilon_of(view(promised, promised, None), numbers) == pytest.approx(EPSILON, abs=DIGITS)
    assert epsilon_of(view(promised, promised, 10), numbers) <= EPSILON + DIGITS


@pytest.mark.parametrize("alone", [None, 2, 10])
def test_more_honest_sites_than_promised_are_no_worse(alone: float | None) -> None:
    found = [epsilon_of(view(honest, 3, alone)) for honest in (3, 4, 6, 10)]
    assert all(epsilon <= EPSILON + DIGITS for epsilon in found)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("alone", [None, 10])
@pytest.mark.parametrize("honest", [2, 5, 27])
def test_half_the_noise_would_exceed_epsilon(honest: int, alone: float | None) -> None:
    assert epsilon_of(view(honest, 2 * honest, alone)) > 1.3 * EPSILON


@pytest.mark.parametrize("alone", [None, 10])
def test_one_honest_site_too_few_exceeds_epsilon(alone: float | None) -> None:
    assert epsilon_of(view(4, 5, alone)) > 1.02 * EPSILON


@pytest.mark.parametrize("numbers", [1, 2, 3])
@pytest.mark.parametrize("alone", [1, 2, 5])
def test_a_site_alone_is_protected_by_its_floor(alone: int, numbers: int) -> None:
    assert epsilon_of(view(1, 25, alone), numbers) <= alone * EPSILON + DIGITS
    if alone > 1:
        assert epsilon_of(view(1, 25, alone), numbers) > EPSILON, "so it is charged for more"
        assert epsilon_of(view(1, 25, None), numbers) > alone * EPSILON, "the share is no floor"


def test_shares_for_a_smaller_sensitivity_do_not_protect_the_site_with_the_largest() -> None:
    # Five sites, one of which has twice the sensitivity: in its own noise, but not in the others'.
    own = [share_law(GAMMA, 5, RANGE), discrete_laplace(10 * GAMMA, RANGE)]
    others = view(4, 5, 10, sensitivity=SENSITIVITY // 2)
    assert epsilon_of(law_of_sum(*own, others)) > 1.5 * EPSILON
    assert epsilon_of(view(5, 5, 10)) <= EPSILON + DIGITS


def moment(law: Law) -> float:
    z = np.arange(len(law)) - len(law) // 2
    return float((law * z**2).sum())


@pytest.mark.parametrize(("sources", "honest", "alone"), [(5, 3, 10), (9, 5, 2), (3, 1, 1)])
def test_the_law_that_others_reckon_with_has_the_variance_of_the_noise(
    sources: int, honest: int, alone: int
) -> None:
    said = NoiseLaw(honest=honest, alone=alone).variance(10**9, sources) * sources**2
    laws: Sequence[Law] = [
        share_law(1 / 64, honest, 3000), discrete_laplace(alone / 64, 3000)
    ]  # fmt: skip
    seen = sources * sum(moment(law) for law in laws) / 64**2
    # On a grid 2/γ² is less by a sixth of a step squared, 2r/(1 − r)².
    assert seen == pytest.approx(said, rel=1e-2 if alone == 10 else 1e-3)
    assert seen <= said * (1 + 1e-9)
