"""A shared map and own rows: the posterior is right, and whatever the rows are, it is a map."""

from __future__ import annotations

import hashlib
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

import privcal
from privcal import BinsMap, CurveMap, InputError, RiskMap, Scores, TemperatureMap
from privcal.calibration.maps import check_may_leave, compress_tail
from privcal.calibration.refinement import (
    UNLIKE,
    Fitted,
    average,
    fit,
    own_directions,
    rows_of,
    weigh,
)
from privcal.trusted.scores import BoolArray, FloatArray
from tests.support.curves import drawn_rows, rows_at, shared_map

SHARED = shared_map()
S = np.array(SHARED.scores)


# --- against slow references -------------------------------------------------------------------


def interpolated(values: FloatArray, s: FloatArray) -> FloatArray:
    """A function given at the scores S, at others: straight lines, row by row."""
    found = []
    for score in compress_tail(s, S[-1]):
        k = next((i for i in range(len(S) - 2) if score < S[i + 1]), len(S) - 2)
        share = (score - S[k]) / (S[k + 1] - S[k])
        found.append((1 - share) * values[k] + share * values[k + 1])
    return np.array(found)


def basis_of(unlike: float) -> FloatArray:
    """The functions that the curve moves by, held flat at both ends."""
    basis = np.hstack([np.array(SHARED.directions).T, unlike * own_directions(S)])
    basis[0], basis[-1] = basis[1], basis[-2]
    return basis


def reference(own: Scores, unlike: float) -> tuple[FloatArray, FloatArray, float]:
    """Mode, covariance and Laplace evidence by a general minimiser and numeric second derivatives."""
    directions = list(basis_of(unlike).T)
    total = sum(d**2 for d in directions)
    start = np.array(SHARED.log_odds) * np.sqrt(1 + np.pi * total / 8)
    s, right = SHARED.score(own.outputs), own.correct
    base = interpolated(start, s)
    seen = np.stack([interpolated(d, s) for d in directions], axis=1)
    sign = np.where(right, 1.0, -1.0)

    def cost(u: FloatArray) -> float:
        return float(np.log1p(np.exp(-sign * (base + seen @ u))).sum() + 0.5 * u @ u)

    def gradient(u: FloatArray) -> FloatArray:
        return np.asarray(seen.T @ (expit(base + seen @ u) - right) + u)

    u = minimize(cost, np.zeros(len(directions)), jac=gradient, method="BFGS", tol=1e-9).x
    step = 1e-5
    hessian = np.stack(
        [(gradient(u + step * e) - gradient(u - step * e)) / (2 * step) for e in np.eye(len(u))]
    )
    basis = np.stack(directions, axis=1)
    covariance = basis @ np.linalg.inv(hessian) @ basis.T
    return start + basis @ u, np.diag(covariance), -cost(u) - 0.5 * np.linalg.slogdet(hessian)[1]


@pytest.mark.parametrize("unlike", UNLIKE)
@pytest.mark.parametrize(("rows", "level"), [(35, -0.4), (200, 1.5)])
def test_the_posterior_is_that_of_a_general_minimiser(
    unlike: float, rows: int, level: float
) -> None:
    own = drawn_rows(rows, level)
    ours = fit(SHARED, rows_of(SHARED, own), unlike)
    mean, variance, evidence = reference(own, unlike)
    np.testing.assert_allclose(ours.mean, mean, atol=1e-4)
    np.testing.assert_allclose(ours.variance, variance, rtol=1e-3)
    assert ours.log_evidence == pytest.approx(evidence, abs=1e-4)


@pytest.mark.parametrize(("rows", "level"), [(30, -0.4), (30, -3.0), (120, -1.5)])
def test_the_map_is_near_the_mean_probability_of_exact_draws(rows: int, level: float) -> None:
    """Weighted draws from the prior, τ and all: no Laplace, no Newton, no probit."""
    own = drawn_rows(rows, level)
    rng = np.random.default_rng(1)
    s, sign = SHARED.score(own.outputs), np.where(own.correct, 1.0, -1.0)
    logs, drawn = [], []
    for unlike, believed in UNLIKE.items():
        basis = basis_of(unlike)
        start = np.array(SHARED.log_odds) * np.sqrt(1 + np.pi * (basis**2).sum(axis=1) / 8)
        curves = start + rng.standard_normal((40_000, basis.shape[1])) @ basis.T
        place = np.stack([interpolated(e, s) for e in np.eye(len(S))], axis=1)
        eta = curves @ place.T
        logs.append(np.log(believed) - np.logaddexp(0, -sign * eta).sum(axis=1))
        drawn.append(expit(curves))
    weight = np.exp(np.concatenate(logs) - logsumexp(np.concatenate(logs)))
    assert 1 / (weight**2).sum() > 200  # enough draws count
    exact = weight @ np.concatenate(drawn)
    refined = expit(np.array(privcal.refine(SHARED, own).log_odds))
    busy = (S > 0.5) & (S < 6)
    np.testing.assert_allclose(refined[busy], exact[busy], atol=0.03)


def test_the_evidence_of_each_tau_weighs_it_and_half_is_believed_of_none() -> None:
    even = [Fitted(S, S**2, 0.0)] * 4
    np.testing.assert_allclose(weigh(even), [1 / 2, 1 / 6, 1 / 6, 1 / 6])
    better = [*even[:3], replace(even[3], log_evidence=np.log(6.0))]
    np.testing.assert_allclose(weigh(better), np.array([3, 1, 1, 6]) / 11)
    hopeless = [replace(f, log_evidence=-1e6 * k) for k, f in enumerate(even)]
    np.testing.assert_allclose(weigh(hopeless), [1, 0, 0, 0])


def test_probabilities_are_averaged_not_log_odds() -> None:
    sure = [Fitted(np.array([x]), np.zeros(1), 0.0) for x in (-4.0, 4.0, 4.0, 4.0)]
    weight = np.array([0.7, 0.1, 0.1, 0.1])
    expected = 0.7 * expit(-4) + 0.3 * expit(4)
    assert expit(average(sure, weight))[0] == pytest.approx(expected)
    far = [Fitted(np.array([900.0]), np.zeros(1), 0.0)] * 4
    assert average(far, weight)[0] == pytest.approx(900.0)  # though its probability rounds to 1


def test_without_rows_every_tau_means_the_shared_map() -> None:
    nobody = rows_of(SHARED, drawn_rows(40, 0.0).take(slice(0, 0)))
    fits = [fit(SHARED, nobody, unlike) for unlike in UNLIKE]
    np.testing.assert_allclose(weigh(fits), list(UNLIKE.values()))
    np.testing.assert_allclose(average(fits, weigh(fits)), SHARED.log_odds, atol=1e-9)


# --- what it does ----------------------------------------------------------------------------


@pytest.mark.parametrize("level", [-3.0, 1.5])
def test_many_rows_of_a_source_unlike_the_others_decide(level: float) -> None:
    refined = privcal.refine(SHARED, drawn_rows(20_000, level))
    busy = (S > 0.5) & (S < 5)
    truth = expit(0.6 * S + level)[busy]
    np.testing.assert_allclose(expit(np.array(refined.log_odds))[busy], truth, atol=0.03)
    assert refined.provenance["like_the_others"] < 0.01


def test_rows_like_the_others_change_little_and_are_said_to_be_alike() -> None:
    refined = privcal.refine(SHARED, drawn_rows(200, -0.4))
    busy = (S > 0.5) & (S < 6)
    moved = expit(np.array(refined.log_odds)) - expit(np.array(SHARED.log_odds))
    assert np.abs(moved[busy]).max() < 0.06
    assert refined.provenance["like_the_others"] > 0.6


@pytest.mark.parametrize("right", [True, False])
def test_rows_that_are_all_alike_move_the_map_their_way(right: bool) -> None:
    s = np.linspace(0, 7, 60)
    refined = privcal.refine(SHARED, rows_at(s, np.full(60, right)))
    before, after = (1 / (1 + np.exp(-m.at(s))) for m in (SHARED, refined))
    assert (after > before).all() if right else (after < 0.3).all()


def test_where_confident_rows_are_more_often_wrong_the_better_known_stretch_decides() -> None:
    """No rising curve fits; the mean of all points of the curve, known or not, would be 0.83."""
    s = np.concatenate([np.linspace(0, 2, 200), np.linspace(5, 6, 20_000)])
    right = np.concatenate([np.ones(200), np.arange(20_000) % 10 < 3])
    refined = privcal.refine(SHARED, own := rows_at(s, right))
    np.testing.assert_allclose(refined.confidence(own), right.mean(), atol=0.02)


finite = st.floats(-1e4, 1e4)


@given(
    st.lists(st.tuples(finite, finite, st.booleans()), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.4, 20.0]),
)
def test_whatever_the_rows_are_the_map_is_finite_and_rises(
    rows: list[tuple[float, float, bool]], spread: float
) -> None:
    logits = [[a, b] for a, b, _ in rows]
    labels = [label for *_, label in rows]
    refined = privcal.refine(
        shared_map(spread=spread), Scores(logits=logits, labels=labels), force=True
    )
    assert np.isfinite(refined.log_odds).all()
    assert (np.diff(refined.log_odds) > 0).all()
    assert ((p := refined.confidence(logits)) >= 0).all()
    assert (p <= 1).all()


@pytest.mark.parametrize(
    "right", [np.ones(50, bool), np.zeros(50, bool), np.arange(50) < 25, np.arange(50) % 2 == 0]
)
def test_a_confidence_of_exactly_one_is_no_trouble(right: BoolArray) -> None:
    certain = Scores(logits=[[1e5, 0.0]] * 50, labels=1 - right.astype(int))
    assert np.isinf(SHARED.score(certain.outputs)).all()
    refined = privcal.refine(SHARED, certain)
    assert np.isfinite(refined.log_odds).all()
    [p] = set(refined.confidence(certain).tolist())
    assert abs(p - right.mean()) < 0.1


@pytest.mark.slow
def test_a_million_rows_are_refined_with() -> None:
    s = np.tile(np.linspace(0, 10, 1000), 1000)
    refined = privcal.refine(SHARED, rows_at(s, np.arange(10**6) % 4 > 0))
    busy = (S > 0) & (S <= 8)
    np.testing.assert_allclose(expit(np.array(refined.log_odds))[busy], 0.75, atol=0.02)


# --- what it is, and where it stays ------------------------------------------------------------


def test_the_result_is_a_map_of_the_same_kind_that_says_what_it_is(tmp_path: Path) -> None:
    SHARED.save(tmp_path / "shared.json")
    refined = privcal.refine(SHARED, drawn_rows(44, 0.0))
    assert (type(refined), refined.scores, refined.temperature) == (CurveMap, SHARED.scores, 1.0)
    assert (refined.private, refined.stays_at_home, refined.directions) == (False, True, ())
    facts = refined.provenance
    assert (facts["method"], facts["rows"], facts["stays_at_home"]) == ("refine", 44, True)
    file = hashlib.sha256((tmp_path / "shared.json").read_bytes()).hexdigest()
    assert facts["shared"] == {"sha256": file, "provenance": SHARED.provenance}
    refined.save(tmp_path / "own.json")
    again = privcal.load_map(tmp_path / "own.json")
    assert again == refined
    assert again.stays_at_home
    assert not SHARED.stays_at_home


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_its_file_is_its_owners_alone_even_where_another_was(tmp_path: Path) -> None:
    SHARED.save(tmp_path / "map.json")
    (tmp_path / "map.json").chmod(0o644)
    privcal.refine(SHARED, drawn_rows(40, 0.0)).save(tmp_path / "map.json")
    assert stat.S_IMODE((tmp_path / "map.json").stat().st_mode) == 0o600


def test_a_map_of_a_risk_is_refined_by_its_event() -> None:
    shared = RiskMap(1.0, SHARED.scores, SHARED.log_odds, SHARED.directions, event=1)
    chance = 1 / (1 + np.exp(-np.linspace(-3, 3, 80)))
    own = Scores(probabilities=chance, labels=np.ones(80, int))  # the event, predicted or not
    refined = privcal.refine(shared, own)
    assert (type(refined), refined.event) == (RiskMap, 1)  # type: ignore[attr-defined]
    assert (refined.risk(own) > shared.risk(own)).all()  # type: ignore[attr-defined]
    certain = Scores(probabilities=[0.0] * 50 + [1.0] * 50, labels=[0] * 45 + [1] * 55)
    low, high = np.split(privcal.refine(shared, certain).risk(certain), 2)  # type: ignore[attr-defined]
    np.testing.assert_allclose(low, 0.1, atol=0.05)
    np.testing.assert_allclose(high, 1.0, atol=0.05)


@pytest.mark.parametrize("rows", [1, 29])
def test_few_rows_are_refused_unless_forced(rows: int) -> None:
    own = drawn_rows(rows, 0.0)
    with pytest.raises(InputError, match=rf"^{rows} own rows are too few .* 30 .* \(--force\)"):
        privcal.refine(SHARED, own)
    assert privcal.refine(SHARED, own, force=True).provenance["rows"] == rows
    privcal.refine(SHARED, drawn_rows(30, 0.0))


def test_no_rows_cannot_be_forced_and_malformed_ones_do_not_count() -> None:
    with pytest.raises(InputError, match="0 own rows are too few"):
        privcal.refine(SHARED, drawn_rows(5, 0.0).take(slice(0, 0)), force=True)
    logits = np.array([[2.0, 0.0]] * 40)
    logits[:11] = np.nan
    own = Scores(logits=logits, labels=np.zeros(40, int), strict=False)
    with pytest.raises(InputError, match="29 own rows are too few"):
        privcal.refine(SHARED, own)
    forced = privcal.refine(SHARED, own, force=True)
    assert forced.log_odds == privcal.refine(SHARED, own.take(slice(11, 40)), force=True).log_odds


@pytest.mark.parametrize(
    "map",
    [TemperatureMap(1.5), BinsMap((0.2, 0.7)), replace(SHARED, directions=())],
    ids=lambda map: map.kind,
)
def test_a_map_that_does_not_say_how_it_is_uncertain_is_refused(map: privcal.Map) -> None:
    with pytest.raises(InputError, match="does not say how it is uncertain"):
        privcal.refine(map, drawn_rows(40, 0.0))


def test_what_is_no_map_and_no_scores_is_refused_and_so_is_another_model() -> None:
    with pytest.raises(InputError, match="is a Map, not str"):
        privcal.refine("map.json", drawn_rows(40, 0.0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="with Scores, not ndarray"):
        privcal.refine(SHARED, np.zeros((40, 2)))  # type: ignore[arg-type]
    own = Scores(logits=[[2.0, 0.0]] * 40, labels=[0, 1] * 20, model="v3")
    with pytest.raises(InputError, match="of model v2, not of v3"):
        privcal.refine(SHARED.with_provenance(model="v2"), own)
    assert privcal.refine(SHARED, own).provenance["model"] == "v3"


def test_a_refined_map_is_not_refined_again_and_may_not_leave() -> None:
    refined = privcal.refine(SHARED, drawn_rows(40, 0.0))
    for marked in (
        refined,
        replace(refined, private=True),  # either mark is enough
        replace(refined, provenance={}),
        replace(refined, directions=SHARED.directions),
    ):
        with pytest.raises(InputError, match="must not be refined again; refine the shared map"):
            privcal.refine(marked, drawn_rows(40, 0.0))
        with pytest.raises(InputError, match=r"exact rows .* must not be sent"):
            check_may_leave(marked, "sent")
    check_may_leave(SHARED, "sent")
