"""One sentence for each kind of mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privcal.trusted.checks import number, one_of, whole
from privcal.trusted.errors import InputError


@pytest.mark.parametrize("value", [1, 5, np.int64(3), np.uint8(5)])
def test_whole_numbers_pass_as_plain_ints(value: Any) -> None:
    assert whole("n", value, 1, 5) == value
    assert type(whole("n", value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, float("nan"), [1], 0, 6])
def test_what_is_no_whole_number_within_the_limits_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"n must be a whole number from 1 to 5, not "):
        whole("n", value, 1, 5)


def test_the_limits_are_said_as_they_are() -> None:
    with pytest.raises(InputError, match=r"n must be a whole number of at least 1, not 0$"):
        whole("n", 0, 1)
    with pytest.raises(InputError, match=r"n must be a whole number, not 'x'$"):
        whole("n", "x")
    with pytest.raises(InputError, match=r"x must be a number of at most 1.5, not 2$"):
        number("x", 2, high=1.5)


def test_limits_are_written_for_people() -> None:
    with pytest.raises(InputError, match=r"from 0\.01 to 100, not 0$"):
        number("t", 0, 0.01, 100.0)
    with pytest.raises(InputError, match=r"from -5 to 1,000, not -6$"):
        whole("n", -6, -5, 1000)


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), "x" * 500, ["a"] * 200],
    ids=["long", "negative", "text", "list"],
)
def test_a_sentence_stays_short_whatever_was_given(value: Any) -> None:
    checks = (
        lambda: whole("n", value, 0, 5),
        lambda: number("n", value, 0, 5),
        lambda: one_of("n", value, ["a"]),
    )
    for check in checks:
        with pytest.raises(InputError) as error:
            check()
        assert len(str(error.value)) < 150


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int8(1)])
def test_numbers_pass_as_plain_floats(value: Any) -> None:
    assert number("x", value, 0, 1) == value
    assert type(number("x", value)) is float


@pytest.mark.parametrize("value", [False, "1", None, float("nan"), float("inf"), 10**400, 1j, -0.1])
def test_what_is_no_finite_number_within_the_limits_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"x must be a number from 0 to 1, not .{1,80}$"):
        number("x", value, 0, 1)


@pytest.mark.parametrize("value", ["c", "", None, 1, ["a"]])
def test_only_the_words_of_a_list_pass(value: Any) -> None:
    assert one_of("word", "a", ("a", "b")) == "a"
    with pytest.raises(InputError, match=r"word must be one of a, b, not "):
        one_of("word", value, ("a", "b"))


def test_a_kind_of_number_with_comparisons_of_its_own_is_held_to_the_limits() -> None:
    class Sly(float):
        def __lt__(self, other: object) -> bool:
            return False

        __gt__ = __lt__

    class SlyWhole(int):
        __lt__ = __gt__ = Sly.__lt__  # type: ignore[assignment]

    with pytest.raises(InputError, match="from 1 to 1,000"):
        whole("bins", SlyWhole(-5), 1, 1000)
    with pytest.raises(InputError, match="from 0 to 9"):
        number("clip", Sly(-3.0), 0, 9)
    assert type(whole("bins", SlyWhole(5), 1, 1000)) is int
