from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import privcal
from privcal.trusted.epsilon import NANO, split, to_nano


@given(st.integers(1, 10**15), st.integers(1, 101))
def test_shares_add_up_to_the_last_nano_and_the_first_get_the_remainder(
    nano: int, parts: int
) -> None:
    if nano < parts:
        with pytest.raises(privcal.InputError):
            split(nano, parts)
        return
    shares = split(nano, parts)
    assert sum(shares) == nano
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


@pytest.mark.parametrize(
    ("epsilon", "nano"),
    [
        (0.1, 10**8),
        (1, NANO),
        ("0.3", 3 * 10**8),
        (1 / 3, 333_333_333),
        (Fraction(2, 3), 666_666_666),
    ],
)
def test_epsilon_is_read_as_written_and_rounded_down(epsilon: object, nano: int) -> None:
    assert to_nano(epsilon) == nano


@pytest.mark.parametrize(
    "epsilon",
    [0, -1, 1e-10, float("nan"), float("inf"), "x", None, True, 1e7, [], "1e3000000", "1e-3000000"],
)
def test_no_other_epsilon_is_taken(epsilon: object) -> None:
    with pytest.raises(privcal.InputError, match="epsilon must be"):
        to_nano(epsilon)
