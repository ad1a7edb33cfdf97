"""A method's options as text: read by their types, checked by the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.methods.options import check_known, listed, parse
from tests.support.builders import sentence

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class Stranger:
    depth: int
    share: float = 0.5
    deep: bool = False
    name: str = "x"
    limit: int | None = None
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[float, ...] = (1.0,)
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    either: float | str = "auto"
    made: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    rows: privcal.Scores | None = None
    inner: int = field(default=3, init=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("depth=3", 3), ("depth= -3 ", -3), ("share=1e-3", 0.001), ("share=2", 2.0),
        ("deep=true", True), ("deep=False", False), ("name=a=b", "a=b"), ("name=", ""),
        ("limit=none", None), ("limit=7", 7), ("pair=3,0.5", (3, 0.5)), ("pair=3, 0.5", (3, 0.5)),
        ("many=1,2,3", (1.0, 2.0, 3.0)), ("mode=slow", "slow"), ("mode=odd", "odd"), ("level=2", 2),
        ("either=0.5", 0.5), ("either=auto", "auto"), ("made=4", (4,)),
    ],
)  # fmt: skip
def test_a_value_has_the_type_of_its_field(text: str, value: Any) -> None:
    [parsed] = parse("stranger", Stranger, [text]).values()
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("depth=3.5", "option depth of method stranger must be a whole number, not '3.5'"),
        ("depth=", "must be a whole number"),
        ("depth=none", "must be a whole number"),
        ("limit=few", "must be of type int | None"),
        ("share=half", "must be a number"),
        ("deep=1", "must be true or false"),
        ("pair=3", "must be of type tuple[int, float]"),
        ("pair=3,4,5", "must be of type tuple[int, float]"),
        ("many=1,x", "must be of type tuple[float, ...]"),
        ("rows=a.npz", "option rows of method stranger cannot be written as text"),
        ("inner=4", "has no option 'inner'"),
        ("depth", "an option is written name=value, not 'depth'"),
        ("Depth=3", "has no option 'Depth'"),
    ],
)
def test_a_wrong_text_is_one_sentence(text: str, says: str) -> None:
    assert says in sentence(parse, "stranger", Stranger, [text])


def test_an_unknown_option_lists_those_there_are_with_their_defaults() -> None:
    with pytest.raises(privcal.InputError) as error:
        parse("stranger", Stranger, ["speed=1"])
    assert str(error.value) == (
        "method stranger has no option 'speed'; its options are depth (required) share=0.5 "
        "deep=false name=x limit=none pair=1,2 many=1 mode=fast level=1 either=auto made=1,2"
    )
    with pytest.raises(privcal.InputError, match="it has no options"):
        methods.parse_options("uncalibrated", ["x=1"])
    with pytest.raises(privcal.InputError, match=r"its options are bins=15$"):
        methods.make("histogram-binning", speed=1)


def test_an_option_is_given_once() -> None:
    with pytest.raises(privcal.InputError, match="given twice"):
        parse("stranger", Stranger, ["depth=1", "depth=2"])


@dataclass(frozen=True)
class Odd:
    part: Fraction | None = None


def test_types_that_only_type_checkers_see_are_told() -> None:
    with pytest.raises(privcal.InputError, match="a type of theirs is imported for type checkers"):
        parse("odd", Odd, ["part=1"])


def test_they_stop_neither_a_run_without_options_nor_the_list_of_all() -> None:
    assert parse("odd", Odd, []) == {}
    assert listed(Odd) == ""
    with pytest.raises(privcal.InputError, match="method odd has no option 'speed'"):
        check_known("odd", Odd, ["speed"])


@pytest.mark.parametrize("name", [name for name in methods.names() if name != "one-source"])
def test_every_default_of_every_method_can_be_written_and_read_back(name: str) -> None:
    options = methods.parse_options(name, listed(methods.find(name)).split())
    assert methods.make(name, **options) == methods.make(name) or name == "sketch"
    for option, value in options.items():
        assert getattr(methods.make(name), option) == value
