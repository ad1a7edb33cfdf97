"""The range of a search: a map says when the search never left one end of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration import methods
from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, History, drive
from privcal.trusted.epsilon import NANO
from privcal.trusted.kernel import MAX_TEMPERATURE, MIN_TEMPERATURE
from tests.calibration.methods.test_methods import golden_section_as_written
from tests.support.builders import sharing

SEARCHES = ("acc-t", "nll-t", "ece-t")


def found(optima: Sequence[float], noise: float = 0.0, **options: object) -> list[TemperatureMap]:
    """The maps of runs whose answer is the distance from their optimum, with noise if wanted."""
    rng = np.random.default_rng(0)
    history = History(sources=1)

    def answer(asks: Sequence[Ask]) -> History:
        for ask in asks:
            assert ask.temperatures is not None
            exact = np.abs(ask.temperatures - optima)
            history.append((exact + noise * rng.normal(size=exact.shape))[:, None])
        return history

    method = methods.make("nll-t", **options)
    batch = Batch(len(optima), NANO, np.random.default_rng(0))
    return drive(method.run(batch), answer)  # type: ignore[return-value]


def ends(maps: Sequence[TemperatureMap]) -> list[str | None]:
    return [map.provenance.get("range_end") for map in maps]


@pytest.mark.parametrize("search", ["golden", "grid"])
@pytest.mark.parametrize("bounds", [(0.5, 3.0), (0.5, 4.0), (1.5, 1.75), (0.01, 100.0)])
def test_an_optimum_beyond_an_end_is_told_and_one_well_inside_is_not(
    bounds: tuple[float, float], search: str
) -> None:
    low, high = bounds
    optima = [low - 5, low, (low + high) / 2, low + 0.3 * (high - low), high, high + 5]
    maps = found(optima, bounds=bounds, search=search, iterations=5)
    assert ends(maps) == ["lower", "lower", None, None, "upper", "upper"]
    assert [map.note is None for map in maps] == [end is None for end in ends(maps)]


@settings(max_examples=80, deadline=None)
@given(st.floats(0.0, 3.5), st.integers(2, 9), st.floats(0.0, 2.0), st.integers(0, 99))
def test_an_end_is_told_exactly_where_the_last_interval_touches_it(
    optimum: float, iterations: int, noise: float, seed: int
) -> None:
    """Whatever the noise: by the paper's listing, run by hand, whose midpoint tells the interval."""
    rng = np.random.default_rng(seed)
    values: dict[float, float] = {}

    def noisy(t: float) -> float:
        at = round(t, 9)
        return values.setdefault(at, abs(t - optimum) + noise * rng.normal())

    middle, _ = golden_section_as_written(noisy, 0.5, 3.0, iterations)
    half = 2.5 * ((np.sqrt(5) - 1) / 2) ** iterations / 2
    touches = (
        "lower" if middle - half < 0.5 + 1e-6 else "upper" if middle + half > 3 - 1e-6 else None
    )

    history = History(sources=1)

    def answer(asks: Sequence[Ask]) -> History:
        for ask in asks:
            assert ask.temperatures is not None
            history.append(np.array([[noisy(ask.temperatures[0])]]))
        return history

    method = methods.make("nll-t", bounds=(0.5, 3.0), iterations=iterations)
    [map] = drive(method.run(Batch(1, NANO, np.random.default_rng(0))), answer)
    assert map.provenance.get("range_end") == touches


def test_after_a_single_cut_an_end_is_left_in_any_case_and_so_not_told() -> None:
    assert ends(found([0.1, 1.0, 1.75, 2.5, 9.0], bounds=(0.5, 3.0), iterations=1)) == [None] * 5


def test_under_little_noise_no_run_raises_a_false_alarm_and_none_is_missed() -> None:
    for optimum, expected in ((0.1, "lower"), (1.8, None), (3.4, "upper")):
        maps = found([optimum] * 300, noise=0.02, bounds=(0.5, 3.0), iterations=4)
        assert set(ends(maps)) == {expected}


def test_under_noise_alone_most_runs_move_off_both_ends() -> None:
    """Pure chance stays at an end now and then, and the map says so: its T is one of the ends'."""
    maps = found([1.75] * 2000, noise=1e9, bounds=(0.5, 3.0), iterations=5)
    told = [map.temperature for map in maps if map.note]
    silent = [map.temperature for map in maps if not map.note]
    half = 2.5 * ((np.sqrt(5) - 1) / 2) ** 5 / 2
    assert set(np.round(told, 9)) == {round(0.5 + half, 9), round(3 - half, 9)}
    assert 0.5 + half < min(silent)
    assert max(silent) < 3 - half
    assert len(told) < len(silent)


def test_the_note_says_which_end_what_to_do_and_what_it_costs() -> None:
    below, above = found([0.0, 9.0], bounds=(0.5, 3.0))
    assert above.note == (
        "the search never left the upper end of its range, T from 0.5 to 3, so the best temperature "
        "may lie above it; to look there, start another campaign with a wider range, such as the "
        "option bounds=0.5,6, which costs its epsilon again"
    )
    assert "the lower end" in below.note
    assert "may lie below it" in below.note
    assert "bounds=0.25,3," in below.note
    assert re.fullmatch(
        r"temperature 2\.\d+, at the upper end of the range searched", above.describe()
    )
    [inside] = found([1.75], bounds=(0.5, 3.0))
    assert inside.describe() == f"temperature {inside.temperature:.4f}"


def test_the_range_that_is_proposed_is_one_that_can_be_given() -> None:
    for bounds, option in {(0.015, 3.0): "bounds=0.01,3", (0.5, 60.0): "bounds=0.5,100"}.items():
        for map in found([0.0, 99.0], bounds=bounds, iterations=9):
            [proposed] = re.findall(r"bounds=[\d.,]+\d", map.note or "")
            methods.make("acc-t", **methods.parse_options("acc-t", [proposed]))
        assert option in str([map.note for map in found([0.0, 99.0], bounds=bounds, iterations=9)])
    for map in found([0.0, 200.0], bounds=(MIN_TEMPERATURE, MAX_TEMPERATURE), iterations=9):
        assert map.note is not None
        assert "campaign" not in map.note


def sources(over: float) -> list[privcal.Source]:
    """Sources whose rows are right, and sure of themselves `over` times too much."""
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(4000, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    scores = privcal.Scores(logits=over * logits, labels=labels)
    return sharing(scores, 4, epsilon=1000)


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize(("over", "end"), [(0.1, "lower"), (2.0, None), (12.0, "upper")])
def test_a_calibration_says_when_its_answer_lies_at_the_end_of_the_range(
    method: str, over: float, end: str | None, tmp_path: Path
) -> None:
    """Of real sources, with real noise, little of it; and so does the map from its file."""
    result = privcal.calibrate(sources(over), method, 1000)
    assert result.map.provenance.get("range_end") == end
    assert result.note == result.map.note
    assert (result.note is None) == (end is None)
    result.map.save(tmp_path / "map.json")
    loaded = privcal.load_map(tmp_path / "map.json")
    assert loaded.note == result.note
    assert (f"at the {end} end" in loaded.describe()) == (end is not None)


@pytest.mark.parametrize("note", [7, None, ["x"], {"a": 1}])
def test_a_map_from_elsewhere_may_say_anything_there(note: object) -> None:
    map = TemperatureMap(1.5, provenance={"note": note, "range_end": note})
    assert map.note is None
    assert map.describe() == "temperature 1.5000"


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 8.0), st.integers(1, 9))
def test_on_the_log_scale_the_search_is_the_listing_over_log_t(
    optimum: float, iterations: int
) -> None:
    middle, _ = golden_section_as_written(
        lambda u: abs(np.exp(u) - optimum), np.log(0.5), np.log(6.0), iterations
    )
    [map] = found([optimum], bounds=(0.5, 6.0), spacing="log", iterations=iterations)
    assert map.temperature == pytest.approx(np.exp(middle), rel=1e-12)


@pytest.mark.parametrize("bounds", [(0.01, 100.0), (0.3, 0.7), (1 / 3, 10 / 3)])
def test_on_the_log_scale_no_question_leaves_the_range(bounds: tuple[float, float]) -> None:
    """A grid asks at the very ends, where the logarithm and back are off by a last bit."""
    maps = found([0.0, 200.0], bounds=bounds, spacing="log", search="grid")
    low, high = (map.temperature for map in maps)
    assert (low, high) == pytest.approx(bounds, rel=1e-12)
    assert bounds[0] <= low < high <= bounds[1]
