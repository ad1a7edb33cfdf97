"""Maps: confidence, probabilities that agree with it, and the file that ships with a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration.maps import (
    KINDS,
    LEFT_ALONE,
    PRIOR_ONLY,
    BinsMap,
    CurveMap,
    Map,
    RiskMap,
    TemperatureMap,
    register,
)
from privcal.data.scores import Outputs
from tests.support.builders import a_file, random_scores
from tests.support.damaged import DAMAGED

VALUE = st.none() | st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5])


@st.composite
def curves(draw: st.DrawFn) -> CurveMap:
    steps = st.floats(1e-6, 1e3) | st.sampled_from([1e-9, 1 / 3, 1.0])
    size = draw(st.integers(2, 12))
    lists = []
    for _ in range(2):
        start = draw(st.floats(-50, 50))
        rises = draw(st.lists(steps, min_size=size - 1, max_size=size - 1))
        lists.append(tuple(np.cumsum([start, *rises]).tolist()))
    return CurveMap(draw(st.floats(0.01, 100)), *lists)


MAPS = st.one_of(
    curves(),
    st.builds(TemperatureMap, st.floats(0.01, 100)),
    st.builds(BinsMap, st.lists(VALUE, min_size=1, max_size=20).map(tuple)),
)
LOGIT = st.sampled_from([0.0, 1.0, 1.0, -1e30, 1e30, 700.0]) | st.floats(-30, 30)


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    n, m = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    row = st.lists(LOGIT, min_size=m, max_size=m)
    return np.array(draw(st.lists(row, min_size=n, max_size=n)), float).reshape(n, m)


@settings(max_examples=400, deadline=None)
@given(MAPS, tables())
def test_probabilities_sum_to_one_keep_the_argmax_and_agree_with_the_confidence(
    map: Map, logits: np.ndarray
) -> None:
    p, c = map.predict_proba(logits=logits), map.confidence(logits=logits)
    assert p.shape == logits.shape
    assert np.allclose(p.sum(axis=1), 1, atol=1e-12)
    assert ((p >= 0) & (p <= 1)).all()
    assert np.array_equal(p.argmax(axis=1), logits.argmax(axis=1))
    top = p.max(axis=1)
    # Never lowered, and raised only where a rival would otherwise have caught up.
    assert (top >= c - 1e-15).all()
    if logits.shape[1] > 1:
        for row, (high, said) in enumerate(zip(top, c, strict=True)):
            if high > said + 1e-12:
                rival = np.partition(p[row], -2)[-2]
                assert high == pytest.approx(rival, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.05, 20), tables())
def test_a_temperature_maps_probabilities_are_the_softmax(
    temperature: float, logits: np.ndarray
) -> None:
    logits = np.clip(logits, -1e4, 1e4)
    z = (logits - logits.max(axis=1, keepdims=True, initial=-np.inf)) / temperature
    softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    # Where the others vanish altogether they share what is left, which is nothing.
    assert np.allclose(
        TemperatureMap(temperature).predict_proba(logits=logits), softmax, atol=1e-12
    )


def test_a_label_far_behind_keeps_a_share_even_where_the_confidence_rounds_to_one() -> None:
    logits = np.array([[0.0, 60.0]], np.float16)
    assert TemperatureMap(1.0).predict_proba(logits)[0, 0] == pytest.approx(np.exp(-60))


def test_a_higher_temperature_is_less_confident_and_keeps_the_order() -> None:
    logits = random_scores(200, classes=2).outputs.array
    cool, warm = (TemperatureMap(t).confidence(logits) for t in (1.0, 2.0))
    assert (warm < cool).all()
    assert np.array_equal(np.argsort(cool), np.argsort(warm))


def test_a_bins_map_replaces_the_confidence_of_known_bins_only() -> None:
    logits = np.log([[0.55, 0.45], [0.8, 0.2], [1 - 1e-9, 1e-9]])
    found = BinsMap((None, None, None, None, None, 0.7, None, None, None, 0.9)).confidence(logits)
    assert found == pytest.approx([0.7, 0.8, 0.9])


def test_a_curve_is_read_off_straight_lines() -> None:
    curve = CurveMap(1.0, (-1.0, 1.0, 3.0), (-2.0, 0.0, 1.0))
    scores = np.array([-3.0, -1.0, 0.0, 1.0, 2.0, 3.0])
    assert curve.at(scores).tolist() == [-4.0, -2.0, -1.0, 0.0, 0.5, 1.0]
    # Two classes, s = difference of the logits over T.
    warm = CurveMap(2.0, (0.0, 2.0), (0.0, 6.0))
    logits = np.array([[4.0, 0.0], [0.0, 0.0], [1.0, 2.0]])
    expected = [1 / (1 + np.exp(-6.0)), 0.5, 1 / (1 + np.exp(-1.5))]
    assert warm.confidence(logits) == pytest.approx(expected, rel=1e-14)


@settings(max_examples=100, deadline=None)
@given(curves(), st.lists(st.floats(-60, 60), min_size=2, max_size=20))
def test_a_curve_rises(curve: CurveMap, scores: list[float]) -> None:
    ordered = np.unique(scores)
    found = curve.at(ordered)
    # Beyond rounding: a slope of 1e-12 says less than the last bit of the value.
    slack = 4 * np.finfo(float).eps * np.abs(found).max()
    assert (np.diff(found) >= -slack).all()
    apart = np.diff(ordered) > 1e-3
    gentle = np.diff(curve.log_odds).min() / np.diff(curve.scores).max()
    if gentle * 1e-3 > slack:
        assert (np.diff(found)[apart] > 0).all()


@st.composite
def risks(draw: st.DrawFn) -> RiskMap:
    curve = draw(curves())
    return RiskMap(curve.temperature, curve.scores, curve.log_odds, event=draw(st.integers(0, 4)))


@st.composite
def two_and_more(draw: st.DrawFn, least: int = 2) -> np.ndarray:
    n, m = draw(st.integers(0, 5)), draw(st.integers(least, 5))
    row = st.lists(LOGIT, min_size=m, max_size=m)
    return np.array(draw(st.lists(row, min_size=n, max_size=n)), float).reshape(n, m)


@settings(max_examples=300, deadline=None)
@given(risks(), two_and_more(least=5))
def test_a_risk_is_the_probability_of_its_class_and_the_others_share_the_rest_as_before(
    map: RiskMap, logits: np.ndarray
) -> None:
    logits = np.clip(logits, -1e3, 1e3)  # differences of 1 beside 1e30 are no longer there
    k, p, risk = map.event, map.predict_proba(logits=logits), map.risk(logits=logits)
    assert np.array_equal(p[:, k], risk)
    assert ((p >= 0) & (p <= 1)).all()
    assert np.allclose(p.sum(axis=1), 1, atol=1e-12)
    for row, (z, found) in enumerate(zip(logits.tolist(), p, strict=True)):
        others = [j for j in range(len(z)) if j != k]
        top = max(z[j] for j in others)
        weights = {j: math.exp(z[j] - top) for j in others}
        for j in others:
            expected = (1 - risk[row]) * weights[j] / math.fsum(weights.values())
            assert found[j] == pytest.approx(expected, rel=1e-9, abs=1e-300)


@settings(max_examples=200, deadline=None)
@given(risks(), two_and_more(least=5))
def test_the_class_that_a_risk_predicts_is_the_most_probable_and_has_the_confidence(
    map: RiskMap, logits: np.ndarray
) -> None:
    p, predicted = map.predict_proba(logits=logits), map.predict(logits=logits)
    assert np.array_equal(predicted, p.argmax(axis=1))
    assert np.array_equal(map.confidence(logits=logits), p[np.arange(len(p)), predicted])


@settings(max_examples=200, deadline=None)
@given(risks(), st.lists(st.floats(-900, 900), min_size=2, max_size=20))
def test_a_risk_keeps_the_order_of_rows_and_is_slowed_at_both_ends(
    map: RiskMap, scores: list[float]
) -> None:
    ordered = np.unique(scores)
    found = map.at(ordered)
    slack = 8 * np.finfo(float).eps * np.abs(found).max()
    assert (np.diff(found) >= -slack).all()
    # Beyond either end no faster than the line there, times a logarithm.
    first, last = map.scores[0], map.scores[-1]
    y = np.array(map.log_odds)
    slope = np.diff(y) / np.diff(map.scores)
    below, above = ordered[ordered < first], ordered[ordered > last]
    assert map.at(below) == pytest.approx(
        y[0] - slope[0] * np.log1p(np.minimum(first - below, 745)), rel=1e-6, abs=1e-6
    )
    assert map.at(above) == pytest.approx(
        y[-1] + slope[-1] * np.log1p(np.minimum(above - last, 745)), rel=1e-6, abs=1e-6
    )


def test_a_risk_rises_strictly_where_a_double_can_tell() -> None:
    map = RiskMap(1.0, (-10.0, 0.0, 10.0), (-3.0, -1.0, 2.0), event=1)
    p = np.array([0.0, 1e-15, 1e-12, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-9, 1 - 1e-15, 1.0])
    risk = map.risk(probabilities=p)
    assert (np.diff(risk) > 0).all()
    # Neither 0 nor 1 is taken for certainty: a log-odds of −53 log 2 or 53 log 2, and slowed there.
    beyond = math.log1p(53 * math.log(2) - 10)
    assert risk[0] == pytest.approx(1 / (1 + math.exp(3 + 0.2 * beyond)))
    assert risk[-1] == pytest.approx(1 / (1 + math.exp(-2 - 0.3 * beyond)))
    # Logits may be further apart, and infinitely far.
    far = map.risk([[1e308, -1e308], [-1e308, 1e308]])
    assert far[0] == pytest.approx(1 / (1 + math.exp(3 + 0.2 * math.log1p(745))))
    assert far[1] == pytest.approx(1 / (1 + math.exp(-2 - 0.3 * math.log1p(745))))


def test_a_risk_of_two_classes_is_that_of_the_other_turned_round() -> None:
    p = np.array([0.0, 0.003, 0.4, 0.5, 0.97, 1.0])
    one = RiskMap(2.0, (-2.0, 1.0, 3.0), (-1.0, 0.5, 2.0), event=1)
    zero = RiskMap(2.0, (-3.0, -1.0, 2.0), (-2.0, -0.5, 1.0), event=0)
    assert one.risk(probabilities=p) == pytest.approx(1 - zero.risk(probabilities=p), rel=1e-12)
    assert one.predict(probabilities=p).tolist() == zero.predict(probabilities=p).tolist()


def test_only_a_risk_predicts_another_class_and_correctness_is_counted_by_it() -> None:
    scores = privcal.Scores(probabilities=[0.1, 0.4, 0.9, 0.3], labels=[0, 1, 1, 1])
    own = scores.outputs.predicted.tolist()
    assert own == [0, 0, 1, 0]
    for map in (TemperatureMap(2.0), BinsMap((0.1, 0.2)), CurveMap(1.0, (0.0, 1.0), (-3.0, -2.0))):
        assert map.predict(scores).tolist() == own
    higher = RiskMap(1.0, (-2.0, 2.0), (-0.5, 3.5), event=1)
    assert higher.predict(scores).tolist() == [0, 1, 1, 1]
    assert privcal.evaluate(scores).accuracy == 0.5
    found = privcal.evaluate(scores, higher)
    assert found.accuracy == 1.0
    assert found.mean_confidence == pytest.approx(higher.confidence(scores).mean())
    assert found.brier == pytest.approx(((1 - higher.confidence(scores)) ** 2).mean())


def test_a_risk_of_a_class_that_is_not_there_is_refused() -> None:
    map = RiskMap(1.0, (0.0, 1.0), (0.0, 1.0), event=2)
    with pytest.raises(privcal.InputError, match="there is no class 2: the model has 2"):
        map.risk(probabilities=[0.5])
    with pytest.raises(privcal.InputError, match="at least two classes"):
        RiskMap(1.0, (0.0, 1.0), (0.0, 1.0), event=0).predict_proba([[1.0]])
    assert map.predict_proba(np.empty((0, 3))).shape == (0, 3)
    assert map.target(privcal.Scores(logits=np.eye(3), labels=[2, 1, 2])).tolist() == [1, 0, 1]


def test_a_certain_class_leaves_the_others_nothing_to_go_by_and_they_share_evenly() -> None:
    map = RiskMap(1.0, (-1.0, 1.0), (-1.0, 1.0), event=0)
    [row] = map.predict_proba(probabilities=[[1.0, 0.0, 0.0]])
    assert row[1] == row[2] == pytest.approx((1 - row[0]) / 2)
    # Far behind, but not gone: they keep their shares.
    [row] = map.predict_proba([[2000.0, 1.0, 0.0]])
    assert row[1] / row[2] == pytest.approx(math.e)


def test_probabilities_in_and_scores_in_give_the_same_as_logits_in() -> None:
    scores = random_scores(50)
    scores = privcal.Scores(logits=scores.outputs.array.astype(float), labels=scores.labels)
    p = TemperatureMap(1.0).predict_proba(scores)
    halved = TemperatureMap(2.0)
    assert halved.confidence(probabilities=p) == pytest.approx(halved.confidence(scores), abs=1e-9)
    column = p[:, 0]
    both = np.stack([1 - column, column], axis=1)
    assert halved.confidence(probabilities=column) == pytest.approx(
        halved.confidence(probabilities=both)
    )
    assert halved.predict_proba(probabilities=column).shape == (50, 2)


@settings(max_examples=50, deadline=None)
@given(map=MAPS | risks())
def test_a_map_survives_its_file(map: Map, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("maps") / "map.json"
    map.with_provenance(method="test", model="ü").save(file)
    again = privcal.load_map(file)
    assert again == map.with_provenance(method="test", model="ü")
    assert not list(file.parent.glob(".*"))


CURVE = {"kind": "curve", "scores": [0.0, 1.0], "log_odds": [0.0, 1.0]}
RISK = CURVE | {"kind": "risk"}
OFFSETS = CURVE | {
    "kind": "offsets",
    "offsets": [0.0, 0.0],
    "corrected": [0.0, 1.0],
    "corrected_log_odds": [0.0, 1.0],
}


def test_an_exact_fit_is_marked_as_not_private(tmp_path: Path) -> None:
    TemperatureMap(2.0, private=False).save(tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["private"] is False
    assert not privcal.load_map(tmp_path / "m.json").private


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "has version 2; this privcal reads version 1"),
        ({"format": "other"}, "is not a privcal map"),
        ({"kind": "spline"}, "unknown kind 'spline'"),
        ({"kind": "curve"}, "scores is missing"),
        (CURVE | {"log_odds": [0.0]}, "log_odds must be a list of 2 to 1,000 values"),
        (CURVE | {"log_odds": [0, 1, 2]}, "must be equally many"),
        (CURVE | {"log_odds": [1.0, 1.0]}, "log_odds must rise strictly"),
        (CURVE | {"scores": [1.0, 0.0]}, "scores must rise strictly"),
        (CURVE | {"scores": [0.0, 5e-324]}, "must have finite slopes"),
        (CURVE | {"scores": [-1e308, 1e308]}, "must have finite slopes"),
        (CURVE | {"log_odds": [-1e308, 1e308]}, "must have finite slopes"),
        (
            CURVE | {"directions": [[1e300, 0.0]]},
            "directions must be a number from -1,000 to 1,000",
        ),
        (
            CURVE | {"directions": [[0.1, 0.1]] * 101},
            "directions must be a list of 0 to 100 values",
        ),
        (OFFSETS | {"log_odds": [-1e308, 1e308]}, "log_odds must be finite numbers"),
        (OFFSETS | {"scores": [-1e308, 1e308]}, "must have finite slopes"),
        (OFFSETS | {"corrected_log_odds": [-1e308, 1e308]}, "must have finite slopes"),
        (OFFSETS | {"offsets": []}, "offsets must be a list of 1 to 2,147"),
        (OFFSETS | {"offsets": [1e308, 0.0]}, "offsets must be a number from -1,000"),
        (CURVE | {"scores": [0.0, float("inf")]}, "it is not JSON"),
        (CURVE | {"scores": [float("nan"), 1.0]}, "it is not JSON"),
        (CURVE | {"scores": [0.0, "1"]}, "scores must be a number"),
        (CURVE | {"scores": [0.0, True]}, "scores must be a number"),
        (CURVE | {"scored": 1}, "kind curve has no 'scored'; there are directions, log_odds, "),
        (CURVE | {"temperature": 0}, "temperature must be a number from"),
        (RISK, "event is missing"),
        (RISK | {"event": -1}, "event must be a whole number of at least 0"),
        (RISK | {"event": 1.0}, "event must be a whole number"),
        (RISK | {"event": 1, "scores": [1.0, 0.0]}, "scores must rise strictly"),
        ({"temperature": 0.001}, "temperature must be a number from 0.01 to 100"),
        ({"temperature": "2"}, "temperature must be a number"),
        ({"temperature": True}, "temperature must be a number"),
        ({"temperature": None}, "temperature must be a number"),
        ({"private": "yes"}, "private must be true or false"),
        ({"provenance": []}, "provenance must be an object"),
        ({"kind": "bins"}, "kind bins has no 'temperature'"),
        ({"kind": []}, "unknown kind"),
        ({"version": True}, "has version True"),
        (
            {"temperature": 10**400},
            "temperature must be a number from 0.01 to 100, not one so large",
        ),
        ({"kind": "bins", "values": [0.5, 1.5]}, "values must be a number from 0"),
        ({"kind": "bins", "values": []}, "values must be a list of 1 to 1,000 values"),
    ],
)
def test_a_newer_or_impossible_map_is_refused(
    change: dict[str, object], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "map.json"
    document = TemperatureMap(2.0).to_dict() | change
    if "values" in change:
        del document["temperature"]
    file.write_text(json.dumps(document))
    with pytest.raises(privcal.InputError, match=says):
        privcal.load_map(file)


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_map_is_named_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    file = a_file(tmp_path / "map.json", content)
    with pytest.raises(privcal.InputError, match=r"map\.json is not a (privcal )?map") as refused:
        privcal.load_map(file)
    assert "\n" not in str(refused.value)


def test_a_map_cut_short_anywhere_is_named(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    TemperatureMap(2.0).save(file)
    whole = file.read_bytes()
    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(privcal.InputError, match=r"map\.json is not .*cut short"):
            privcal.load_map(file)
    with pytest.raises(privcal.InputError, match=r"cannot read map .*none\.json"):
        privcal.load_map(tmp_path / "none.json")


def test_a_failed_save_leaves_the_old_map(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    TemperatureMap(2.0).save(file)
    unwritable = TemperatureMap(3.0).with_provenance(bad=object())
    with pytest.raises(TypeError):
        unwritable.save(file)
    assert privcal.load_map(file).temperature == 2.0
    assert [p.name for p in tmp_path.iterdir()] == ["map.json"]


# --- a kind of map of one's own -----------------------------------------------------------


@dataclass(frozen=True)
class Own(Map):
    share: float
    count: int = 3
    name: str = "ü"
    sharp: bool = False
    knots: tuple[float, ...] = (0.5, 1.0)
    ends: tuple[int, int] = (0, 9)
    extra: float | None = None

    def apply(self, outputs: Outputs) -> np.ndarray:
        return np.full(outputs.rows, self.share)


@pytest.fixture
def own() -> Iterator[type[Own]]:
    yield register("own")(Own)
    del KINDS["own"]


def test_a_map_of_a_new_kind_needs_nothing_but_its_confidence(
    own: type[Own], tmp_path: Path
) -> None:
    map = own(0.6, extra=0.25).with_provenance(method="mine")
    map.save(tmp_path / "m.json")
    assert privcal.load_map(tmp_path / "m.json") == map
    written = json.loads((tmp_path / "m.json").read_text())
    assert list(written) == [
        *("format", "version", "kind", "share", "count", "name", "sharp", "knots", "ends"),
        *("extra", "private", "provenance"),
    ]
    assert map.describe() == "a map of kind own"
    assert map.informative is None
    assert map.predict_proba([[2.0, 0.0, 0.0]]) == pytest.approx(np.array([[0.6, 0.2, 0.2]]))


def test_numpys_numbers_are_written_as_numbers(own: type[Own], tmp_path: Path) -> None:
    odd = own(np.float32(0.5), np.int64(7), knots=np.array([1.0, 2.0]), ends=(np.int8(1), 2))
    odd.save(tmp_path / "m.json")
    expected = own(0.5, 7, knots=(1.0, 2.0), ends=(1, 2))
    assert privcal.load_map(tmp_path / "m.json") == expected


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("share", "0.5", "share must be a number"),
        ("share", None, "share must be a number"),
        ("count", 3.0, "count must be a whole number"),
        ("count", True, "count must be a whole number"),
        ("name", 3, "name must be text"),
        ("sharp", 0, "sharp must be true or false"),
        ("knots", 0.5, "knots must be a list"),
        ("knots", [0.5, "1"], "knots must be a number"),
        ("ends", [0], "ends must be a list of 2 values"),
        ("ends", [0, 1, 2], "ends must be a list of 2 values"),
        ("extra", "none", "extra must be a number"),
    ],
)
def test_a_damaged_value_of_a_new_kind_is_refused_by_name(
    name: str, value: object, says: str, own: type[Own], tmp_path: Path
) -> None:
    file = a_file(tmp_path / "m.json", json.dumps(own(0.5).to_dict() | {name: value}))
    with pytest.raises(privcal.InputError, match=rf"map .*m\.json: kind own: {says}"):
        privcal.load_map(file)


def test_a_kind_that_cannot_be_written_or_is_taken_is_refused_at_once() -> None:
    def fail(cls: type[Map], kind: str, says: str) -> None:
        with pytest.raises(privcal.InputError, match=says):
            register(kind)(cls)
        assert list(KINDS) == ["temperature", "bins", "curve", "risk", "offsets"]

    @dataclass(frozen=True)
    class Array(Map):
        table: np.ndarray

    @dataclass(frozen=True)
    class Mixed(Map):
        table: tuple[float, str]

    @dataclass(frozen=True)
    class Version(Map):
        version: int = 1

    fail(Own, "curve", "a map of kind 'curve' is already registered")
    fail(Array, "array", r"Array.table is a .*, which JSON cannot hold")
    fail(Mixed, "mixed", r"Mixed.table is a .*, which JSON cannot hold")
    fail(Version, "versioned", "cannot have a field version")


def test_a_kind_may_write_and_read_itself(tmp_path: Path) -> None:
    @register("table")
    @dataclass(frozen=True, eq=False)
    class Table(Map):
        table: np.ndarray

        def apply(self, outputs: Outputs) -> np.ndarray:
            return self.table[outputs.predicted]

        @classmethod
        def from_dict(cls, document: Mapping[str, Any]) -> Table:
            return cls(np.array(document["table"]), private=document["private"])

    try:
        Table(np.array([0.5, 0.75]), private=False).save(tmp_path / "m.json")
        again = privcal.load_map(tmp_path / "m.json")
        assert again.confidence([[2.0, 0.0], [0.0, 1.0]]).tolist() == [0.5, 0.75]
        assert not again.private
    finally:
        del KINDS["table"]


def test_only_a_curve_can_tell_that_noise_drowned_the_data() -> None:
    curve = CurveMap(1.0, (0.0, 1.0), (0.0, 1.0))
    assert curve.informative is True
    assert curve.with_provenance(note=PRIOR_ONLY).informative is False
    assert curve.with_provenance(note="made by hand").informative is True
    assert curve.with_provenance(note=f"{PRIOR_ONLY}; {LEFT_ALONE}").informative is False
    assert TemperatureMap(2.0).informative is None


@pytest.mark.parametrize(
    ("after", "words"),
    [(0.812, "81 %"), (0.009, "below 1 %"), (0.991, "above 99 %"), (0.5, "50 %")],
)
def test_a_map_says_how_probable_it_is_that_nothing_changed(after: float, words: str) -> None:
    map = TemperatureMap(1.0).with_provenance(unchanged=after, unchanged_before=0.3)
    said = f"the probability that nothing changed is {words} (believed beforehand: 30 %)"
    assert (map.unchanged, map.note) == (after, said)
    assert map.with_provenance(note=LEFT_ALONE).note == f"{said}; {LEFT_ALONE}"
    assert TemperatureMap(1.0).unchanged is None
    assert TemperatureMap(1.0).with_provenance(unchanged="perhaps").note is None


# --- curves -------------------------------------------------------------------------------


def test_beyond_its_last_point_a_curve_rises_ever_more_slowly() -> None:
    curve = CurveMap(1.0, (-1.0, 2.0), (-0.1, 0.2))  # slope 0.1: most certain rows mean little
    s = np.array([2.0, 3.0, 10.0, 700.0, 1e300, np.inf])
    expected = [0.2 + 0.1 * math.log1p(min(x - 2.0, 745.0)) for x in s]
    np.testing.assert_allclose(curve.at(s), expected, rtol=1e-12)
    # A probability rounded to exactly 1 is not taken for certainty.
    [certain] = curve.confidence(probabilities=[[0.0, 1.0]])
    beyond = 53 * math.log(2) - 2
    assert certain == pytest.approx(1 / (1 + math.exp(-0.2 - 0.1 * math.log1p(beyond))))


# --- of another model -----------------------------------------------------------------------


@pytest.mark.parametrize("act", ["confidence", "predict", "predict_proba"])
def test_a_map_of_another_number_of_classes_or_another_model_is_refused(act: str) -> None:
    map = TemperatureMap(2.0, provenance={"classes": 3, "model": "net-1"})
    assert len(getattr(map, act)(2 * np.eye(3))) == 3
    with pytest.raises(privcal.InputError, match="with 3 classes, and the scores have 2: they are"):
        getattr(map, act)(2 * np.eye(2))
    same, other = (
        privcal.Scores(logits=2 * np.eye(3), labels=[0, 1, 2], model=m) for m in ("net-1", "x")
    )
    assert len(getattr(map, act)(same)) == 3
    with pytest.raises(
        privcal.InputError,
        match=r"is of model net-1, not of x; .* map.with_provenance\(model='x'\)",
    ):
        getattr(map, act)(other)


def test_a_calibration_tells_its_map_the_number_of_classes() -> None:
    policy = privcal.Policy(epsilon=1)
    sources = [privcal.Source(random_scores(20, 4, seed), policy, ledger=None) for seed in (1, 2)]
    map = privcal.calibrate(sources, method="acc-t", epsilon=1).map
    assert map.classes == 4
    with pytest.raises(privcal.InputError, match="with 4 classes, and the scores have 5"):
        map.confidence(2 * np.eye(5))


def test_a_map_of_classes_takes_bare_confidences() -> None:
    scores = privcal.Scores(confidence=[0.5, 0.9], correct=[True, False])
    map = CurveMap(1.0, (0.0, 1.0), (0.0, 1.0), provenance={"classes": 10})
    assert map.confidence(scores).shape == (2,)


# --- scores far out ---------------------------------------------------------------------------


def test_above_700_a_score_counts_as_infinite_and_the_others_keep_their_shares() -> None:
    curve = CurveMap(1.0, (0.0, 2.0), (-1.0, 0.0))
    logits = np.array([[z, 1.0, 0.0, 0.0] for z in (300.0, 690.0, 703.0, 720.0, 744.0, 1e4)])
    confidence = curve.confidence(logits)
    assert (np.diff(confidence[:3]) > 0).all()
    assert (confidence[2:] == curve.confidence([[1e30, 0.0]])).all()
    p = curve.predict_proba(logits)
    assert p[:, 1] / p[:, 2] == pytest.approx(math.e)
    assert (p[:, 2] == p[:, 3]).all()
