"""Any classifier's scores: ordinary scikit-learn models, certain of rows that they are wrong about."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from privcal import Scores, TemperatureMap, fit_temperature
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import ONE_KNOT
from privcal.calibration.sketch import SketchReader
from privcal.data.scores import Outputs
from privcal.planning.simulate import answers
from privcal.planning.simulate.splits import Resampled
from tests.support.classifiers import bed, measure

SATURATED = ("naive Bayes", "digits", "noise")
"""All rows beyond the last knot, and one in ten correct."""

BEDS = [
    SATURATED,
    ("logistic, C = 1e4", "breast cancer", "strong noise"),
    ("random forest", "digits", "noise"),
    ("SVM, Platt", "digits", "gain"),
    ("boosting", "breast cancer", "noise"),
    ("MLP", "digits", "strong noise"),
]


@pytest.mark.slow
@pytest.mark.parametrize("place", BEDS, ids=" ".join)
def test_a_sketch_is_as_good_as_binning_and_its_intervals_hold(
    place: tuple[str, str, str],
) -> None:
    found = measure(bed(*place), runs=10, compared=["one-hot-binning"], seed=BEDS.index(place))
    assert found.ece["sketch"] < found.ece["one-hot-binning"] + 0.01
    assert found.ece["sketch"] < found.ece["left alone"] + 0.01
    # 95 % of 10, less three standard deviations; Platt's scores all lie within two hats.
    least = 0.5 if place[0] == "SVM, Platt" else 0.7
    for name in ("accuracy", "confidence_before", "ece_before"):
        assert found.covered[name] >= least, name
    assert found.said["ece_after"] == pytest.approx(found.true["ece_after"], abs=0.02)


def test_a_map_of_certain_rows_is_flat_and_names_another_method() -> None:
    population = Resampled(bed(*SATURATED).hidden)
    rng = np.random.default_rng(0)
    drawn = population.draw(rng, 4, 50 * 25)
    maps = answers.run(methods.make("sketch"), drawn, 50, 1.0, rng)
    for map in maps:
        assert map.note == ONE_KNOT
        assert "one-hot-binning" in ONE_KNOT
        # From 12 to a probability that a double cannot tell from 1, and to one rounded to 1.
        sure = map.confidence(probabilities=[1 - 6e-6, 1 - 1e-12, 1.0])
        assert np.ptp(sure) < 0.02
        assert sure == pytest.approx(0.1, abs=0.05)
        far = map.confidence(logits=[[12.0, 0.0], [800.0, 0.0], [1e5, 0.0]])
        assert np.ptp(far) < 0.02


def test_a_model_with_scores_in_many_places_gets_no_such_note() -> None:
    population = Resampled(bed("random forest", "digits", "noise").hidden)
    for sources, epsilon in ((50, 1.0), (10, 0.5)):
        rng = np.random.default_rng(1)
        drawn = population.draw(rng, 10, sources * 25)
        maps = answers.run(methods.make("sketch"), drawn, sources, epsilon, rng)
        assert all(map.note != ONE_KNOT for map in maps)


def test_a_curve_does_not_rise_where_no_row_was_seen() -> None:
    """Rows from 0 to 2 with a rising accuracy: beyond, the curve stays where it was."""
    reader = SketchReader.of()
    rng = np.random.default_rng(2)
    s = rng.uniform(0, 2, 20_000)
    labels = rng.random(len(s)) > 1 / (1 + np.exp(-s))
    scores = Scores(logits=np.stack([s, np.zeros_like(s)], axis=1), labels=labels.astype(int))
    query = reader.query
    average = query.contributions(scores).sum(query.length)[None] / 2**20 / 100
    [map] = reader.maps(reader.read(average, 100, 2 / 100))
    last, *beyond = map.confidence(logits=[[2.0, 0.0], [4.0, 0.0], [12.0, 0.0], [1e5, 0.0]])
    assert last == pytest.approx(1 / (1 + np.exp(-2)), abs=0.05)
    assert max(beyond) < last + 0.08  # a knot lies between, at 2.5


@pytest.mark.parametrize("name", ["acc-t", "nll-t", "ece-t"])
def test_a_search_says_that_certain_rows_need_more_than_its_range(name: str) -> None:
    hidden = bed("naive Bayes", "digits", "missing").hidden
    rng = np.random.default_rng(3)
    drawn = Resampled(hidden).draw(rng, 3, 50 * 25)
    for map in answers.run(methods.make(name), drawn, 50, 1000.0, rng):
        assert map.provenance["range_end"] == "upper"
        assert map.note is not None
        assert "never left the upper end of its range" in map.note
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objective = {"acc-t": "accuracy", "nll-t": "nll", "ece-t": "ece"}[name]
        fit = fit_temperature(hidden, objective, (0.5, 6.0))  # type: ignore[arg-type]
    assert fit.outside == "above"


def test_a_temperature_makes_a_confidence_of_one_less_certain() -> None:
    sure = [[1.0, 0.0], [0.9, 0.1]]
    one, other = TemperatureMap(12.0).confidence(probabilities=sure)
    assert 0.9 < one < 0.99
    assert one > other
    scores = Scores(probabilities=[[1.0, 0.0]] * 10, labels=[0] * 9 + [1])
    fit = fit_temperature(scores, "accuracy")
    # 2⁻⁵³ over T against 1 gives odds of 9 to 1.
    assert fit.temperature == pytest.approx(53 * np.log(2) / np.log(9), rel=1e-6)
    assert fit_temperature(scores, "nll").temperature == pytest.approx(fit.temperature, rel=1e-5)


def test_public_rows_of_a_certain_model_are_read_at_any_temperature() -> None:
    """Certain rows lie at the end of the grid, wherever the temperature puts them."""
    public = bed("naive Bayes", "digits", "clean").public
    reader = SketchReader.of(public)
    assert reader.temperature > 3
    certain = Outputs(probabilities=[[1.0] + [0.0] * 9])
    [highest] = FAST.log_odds(certain, reader.temperature)
    assert reader.mixture.frame.high == pytest.approx(max(highest, 5 - np.log(9)))
    doubled = Scores(
        logits=15 * np.log(np.maximum(public.outputs.array, 1e-9)), labels=public.labels
    )
    assert SketchReader.of(doubled).temperature > 20
