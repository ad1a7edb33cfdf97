"""The risk of an event, estimated from a sketch: each measure by its definition, and the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import privcal
from privcal.calibration import evaluation as measures
from privcal.calibration.maps import CurveMap, RiskMap, sigmoid
from privcal.calibration.sketch import RiskEvaluation, SketchReader, evaluate_risk
from privcal.calibration.sketch.evaluation import WIDEST, Draws, Estimate, drawn
from privcal.trusted.errors import InputError
from privcal.trusted.scores import FloatArray
from tests.support.builders import sharing


def some_draws(seed: int = 0, draws: int = 7, points: int = 41) -> tuple[FloatArray, ...]:
    """Log-odds, outcomes and densities that no model made."""
    rng = np.random.default_rng(seed)
    odds = np.sort(rng.normal(0, 3, points))
    p = sigmoid(rng.normal(0, 2, (draws, 1)) + odds * rng.uniform(0.1, 2, (draws, 1)))
    density = rng.random((draws, points))
    return odds, p, density / density.sum(axis=1, keepdims=True)


def test_the_intercept_makes_the_mean_risk_that_of_the_outcome() -> None:
    odds, p, density = some_draws()
    for draw, a in enumerate(measures.intercept(p, density, odds)):
        expected = math.fsum(
            d / (1 + math.exp(-(a + z)))
            for d, z in zip(density[draw].tolist(), odds.tolist(), strict=True)
        )
        assert expected == pytest.approx(float(density[draw] @ p[draw]), abs=1e-9)


def test_the_slope_is_that_of_a_logistic_regression() -> None:
    odds, p, density = some_draws(1)
    for draw, b in enumerate(measures.slope(p, density, odds)):

        def loss(a: float, b: float, draw: int = draw) -> float:
            z = a + b * odds
            rows = p[draw] * np.logaddexp(0, -z) + (1 - p[draw]) * np.logaddexp(0, z)
            return float(density[draw] @ rows)

        def best(b: float) -> float:
            """The least loss with this slope, by a slow search over intercepts."""
            low, high = -40.0, 40.0
            while high - low > 1e-7:
                left, right = low + (high - low) / 3, high - (high - low) / 3
                low, high = (low, right) if loss(left, b) < loss(right, b) else (left, high)
            return loss((low + high) / 2, b)

        assert best(b) < best(b - 0.01)
        assert best(b) < best(b + 0.01)


def test_a_curve_that_is_a_line_gives_its_slope_and_intercept_back() -> None:
    odds, _, density = some_draws(2)
    line = np.tile(sigmoid(-1.5 + 0.4 * odds), (len(density), 1))
    assert measures.slope(line, density, odds) == pytest.approx(0.4, abs=1e-8)
    level = np.tile(sigmoid(-1.5 + odds), (len(density), 1))
    assert measures.intercept(level, density, odds) == pytest.approx(-1.5, abs=1e-8)
    assert measures.slope(level, density, odds) == pytest.approx(1.0, abs=1e-8)


def test_outcomes_that_are_nearly_certain_still_have_a_regression() -> None:
    odds = measures.log_odds(np.array([0.0, 1e-300, 0.01, 0.5, 0.99, 1.0]))
    assert np.isfinite(odds).all()
    assert odds[0] == -odds[-1]
    density = np.full((3, 6), 1 / 6)
    for share in (1e-12, 0.5, 1 - 1e-12):
        p = np.full((3, 6), share)
        assert np.isfinite(measures.slope(p, density, odds)).all()
        assert np.isfinite(measures.intercept(p, density, odds)).all()


def test_the_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    _, p, density = some_draws(3, points=12)
    found = measures.auroc(p, density)
    for draw in range(len(p)):
        right = pairs = 0.0
        for i in range(p.shape[1]):
            for j in range(p.shape[1]):
                both = density[draw, i] * p[draw, i] * density[draw, j] * (1 - p[draw, j])
                pairs += both
                right += both * (1.0 if i > j else 0.5 if i == j else 0.0)
        assert found[draw] == pytest.approx(right / pairs)


def sketched(
    reader: SketchReader, eta: FloatArray, density: FloatArray, rows: int, rng: np.random.Generator
) -> tuple[FloatArray, int, float]:
    """The average answer of 20 sources at ε = 1 whose rows are drawn from this truth."""
    sources = 20
    hats = reader.mixture.models[0].hats
    share = sigmoid(eta)
    cells = np.concatenate([density * (1 - share), density * share])
    drawn_rows = rng.multinomial(rows * sources, cells / cells.sum())
    wrong, right = np.split(drawn_rows, 2)
    sums = np.concatenate([wrong @ hats, right @ hats]) / sources
    noise = rng.laplace(0, 1.0, (sources, len(sums))).mean(axis=0)
    return (sums + noise)[None, :], sources, 2.0 / sources


def exact(eta: FloatArray, density: FloatArray, on: Draws, map: CurveMap) -> dict[str, float]:
    """Every measure of this truth, on the grid `on`, with the definitions tested above."""
    points = np.linspace(0, len(eta) - 1, len(on.grid))
    p = sigmoid(np.interp(points, np.arange(len(eta)), eta))
    fine = np.interp(points, np.arange(len(eta)), density)
    p, fine = p[None, :], (fine / fine.sum())[None, :]
    before, after = measures.log_odds(on.own), map.at(on.grid)
    risk_after = sigmoid(after)
    prevalence = float((p * fine).sum())
    own, mapped = float(fine[0] @ on.own), float(fine[0] @ risk_after)

    def brier(risk: FloatArray) -> float:
        return float((fine * (p * (1 - risk) ** 2 + (1 - p) * risk**2)).sum())

    return {
        "prevalence": prevalence,
        "risk_before": own,
        "risk_after": mapped,
        "observed_expected_before": prevalence / own,
        "observed_expected_after": prevalence / mapped,
        "intercept_before": measures.intercept(p, fine, before)[0],
        "intercept_after": measures.intercept(p, fine, after)[0],
        "slope_before": measures.slope(p, fine, before)[0],
        "slope_after": measures.slope(p, fine, after)[0],
        "brier_before": brier(on.own),
        "brier_after": brier(risk_after),
        "auroc": measures.auroc(p, fine)[0],
    }


@pytest.mark.slow
def test_intervals_hold_the_truth_where_the_model_is_right() -> None:
    """Truths drawn from what is believed beforehand, rows and noise from the truth."""
    rng = np.random.default_rng(5)
    reader = SketchReader.of(event=1)
    mixture = reader.mixture
    nothing_seen = reader.read(np.zeros((1, reader.query.length)), 1, 1.0)
    on = drawn(nothing_seen, reader, None)
    held: dict[str, list[bool]] = {}
    for _ in range(40):
        case = rng.choice(len(mixture.cases), p=[case.weight for case in mixture.cases])
        model = mixture.models[case]
        z = rng.standard_normal((1, model.size))
        state = model.state(z, np.zeros(1))
        rest = rng.standard_normal(model.unfitted_bend.shape[1]) @ model.unfitted_bend.T
        eta, density = state.eta[0] + rest, state.density[0]
        posterior = reader.read(*sketched(reader, eta, density, 30, rng))
        [map] = reader.maps(posterior)
        truth = exact(eta, density, on, map)
        for name, estimate in evaluate_risk(posterior, reader).estimates().items():
            held.setdefault(name, []).append(estimate.low <= truth[name] <= estimate.high)
    shares = {name: np.mean(found) for name, found in held.items()}
    assert len(shares) == 12
    assert np.mean(list(shares.values())) >= 0.9
    # Of 40 intervals that hold with 95 %, fewer than 33 do so once in 10,000 times.
    assert min(shares.values()) >= 0.82, shares


def two_classes(rows: int, seed: int, shift: float = 1.0) -> privcal.Scores:
    """A model whose risk of class 1 is too low by `shift` in log-odds."""
    rng = np.random.default_rng(seed)
    s = rng.normal(-1, 2, rows)
    labels = (rng.random(rows) < sigmoid(s + shift)).astype(int)
    return privcal.Scores(probabilities=sigmoid(s), labels=labels)


def asked(scores: privcal.Scores, epsilon: float = 5.0, **options: object) -> privcal.Result:
    return privcal.calibrate(sharing(scores, 5, epsilon=epsilon), "sketch", epsilon, **options)


@pytest.mark.parametrize("event", [0, 1])
@pytest.mark.parametrize("with_public", [False, True])
def test_a_risk_that_is_too_low_is_found_and_repaired(event: int, with_public: bool) -> None:
    hidden = two_classes(2000, 1)
    public = two_classes(500, 2, shift=0.0) if with_public else None
    result = asked(hidden, event=event, public=public)
    assert isinstance(result.map, RiskMap)
    assert result.map.event == event
    assert result.sketch is not None
    evaluation = result.sketch.evaluate(public)
    assert isinstance(evaluation, RiskEvaluation)
    happened = float((hidden.labels == event).mean())
    assert evaluation.prevalence.value == pytest.approx(happened, abs=0.03)
    unseen = two_classes(20_000, 3)
    risk, so = result.map.risk(unseen), unseen.labels == event
    own = unseen.outputs.array[:, 0] if event == 1 else 1 - unseen.outputs.array[:, 0]
    assert abs(own.mean() - so.mean()) > 0.1
    assert abs(risk.mean() - so.mean()) < 0.03
    assert np.mean((risk - so) ** 2) < np.mean((own - so) ** 2) - 0.01
    # What is said of the model's own risk is what can be measured of it.
    assert evaluation.risk_before.value == pytest.approx(own.mean(), abs=0.03)
    assert evaluation.observed_expected_before.value == pytest.approx(
        so.mean() / own.mean(), rel=0.08
    )
    sign = 1 if event == 1 else -1
    assert evaluation.intercept_before.value == pytest.approx(sign * 1.0, abs=0.3)
    assert evaluation.slope_before.value == pytest.approx(1.0, abs=0.25)
    assert evaluation.brier_before.value == pytest.approx(np.mean((own - so) ** 2), abs=0.015)
    assert evaluation.brier_after.value == pytest.approx(np.mean((risk - so) ** 2), abs=0.015)
    assert evaluation.auroc is not None
    order = np.argsort(own)
    ranks = np.empty(len(own))
    ranks[order] = np.arange(1, len(own) + 1)
    area = (ranks[so].sum() - so.sum() * (so.sum() + 1) / 2) / (so.sum() * (~so).sum())
    assert evaluation.auroc.value == pytest.approx(area, abs=0.02)


def test_one_class_against_the_rest_of_three() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (3000, 3))
    truth = logits + np.array((0.0, 0.0, 1.5))  # class 2 is more common than the model thinks
    p = np.exp(truth) / np.exp(truth).sum(axis=1, keepdims=True)
    labels = (rng.random((3000, 1)) > p.cumsum(axis=1)).sum(axis=1)
    scores = privcal.Scores(logits=logits, labels=labels)
    result = asked(scores, event=2)
    assert isinstance(result.map, RiskMap)
    risk = result.map.risk(scores)
    assert abs(risk.mean() - (labels == 2).mean()) < 0.03
    assert np.array_equal(result.map.predict_proba(scores)[:, 2], risk)
    assert privcal.evaluate(scores, result.map).accuracy > scores.correct.mean() + 0.02


def test_an_auroc_is_shown_only_where_its_interval_is_narrow() -> None:
    reader = SketchReader.of(event=1)
    sums = np.array([[0, 5, 8, 6, 3, 1, 0, 0, 1, 3, 5, 7, 4, 0.0]])
    sure, unsure = (evaluate_risk(reader.read(sums, 50, v), reader) for v in (0.01, 10.0))
    assert sure.informative
    assert unsure.informative
    assert sure.auroc is not None
    assert sure.auroc.high - sure.auroc.low <= WIDEST
    assert unsure.auroc is None
    assert unsure.to_dict()["auroc"] is None
    assert "auroc" not in unsure.estimates()


def test_a_sketch_of_an_event_judges_only_maps_of_its_risk() -> None:
    scores = two_classes(500, 1)
    risk, trust = asked(scores, event=1), asked(scores)
    assert risk.sketch is not None
    assert trust.sketch is not None
    assert isinstance(risk.map, CurveMap)
    assert isinstance(trust.map, CurveMap)
    with pytest.raises(InputError, match="about class 1 and the map about being right"):
        risk.sketch.evaluate(map=trust.map)
    with pytest.raises(InputError, match="about being right and the map about class 1"):
        trust.sketch.evaluate(map=risk.map)
    with pytest.raises(InputError, match="one is about the risk of class 1 and the other about"):
        privcal.sketch.merge(risk.sketch, trust.sketch)


def test_a_sketch_of_an_event_survives_its_file(tmp_path) -> None:
    result = asked(two_classes(500, 1), event=1)
    assert result.sketch is not None
    result.sketch.save(tmp_path / "s.json")
    again = privcal.Sketch.load(tmp_path / "s.json")
    assert again.query == result.sketch.query
    assert again.fit().map.log_odds == result.map.log_odds  # type: ignore[attr-defined]
    assert again.fit().map.to_dict()["event"] == 1


def test_public_rows_must_have_the_event_and_others() -> None:
    scores = two_classes(200, 1)
    for event, share in ((1, "all"), (0, "none")):
        lonely = scores.take(scores.labels == 1)
        with pytest.raises(InputError, match=f"{share} of the public rows are of class {event}"):
            SketchReader.of(lonely, event=event)
    with pytest.raises(InputError, match="there is no class 2 in the public rows: they have 2"):
        SketchReader.of(privcal.Scores(probabilities=[0.3, 0.6] * 50, labels=[0, 1] * 50), event=2)


def test_an_estimate_is_within_its_interval_though_a_few_draws_are_far_out() -> None:
    draws = np.ones(2000)
    draws[:5] = 1e9
    found = Estimate.of(draws)
    assert found.low <= found.value <= found.high == 1


@pytest.mark.parametrize("level", [-1e5, 1e5])
def test_a_map_that_is_certain_of_everybody_is_judged_in_finite_numbers(level: float) -> None:
    reader = SketchReader.of(event=1)
    posterior = reader.read(np.full((1, reader.query.length), 3.0), 40, 0.05)
    map = RiskMap(1.0, (-1.0, 1.0), (level, level + 1), event=1)
    for estimate in evaluate_risk(posterior, reader, map).estimates().values():
        assert estimate.low <= estimate.value <= estimate.high
        assert np.isfinite([estimate.low, estimate.high]).all()


def test_a_band_holds_its_middle_though_a_few_draws_are_far_out() -> None:
    map, one = RiskMap(1.0, (-1.0, 1.0), (-1.0, 1.0), event=1), np.array([0.5])
    p = np.full((2000, 1), 1e-9)
    p[:5] = 1.0
    draws = Draws(map, one, one, one, p, np.ones((2000, 1)), one, True, None, None)
    band = draws.band()
    assert band.low <= band.observed <= band.high
