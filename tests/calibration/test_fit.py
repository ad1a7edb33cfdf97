"""Exact temperature fits against SciPy, against closed forms, and at the ends of their range."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import softmax

from privcal.calibration.fit import OBJECTIVES, OutsideBounds, fit_temperature
from privcal.calibration.kernel import FAST
from privcal.data.scores import Scores
from privcal.trusted.errors import InputError
from tests.support import reference

ROOTS = ("nll", "accuracy")
WIDE = (0.01, 100.0)


@pytest.fixture(autouse=True)
def _warnings_are_expected_or_wrong():
    """A fit inside its bounds says nothing; `pytest.warns` lifts this where one is due."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideBounds)
        yield


def drawn(seed, n, m, scale=3.0, temperature=1.8, dtype=np.float64):
    """Logits, and labels drawn from their softmax at a known temperature."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n, m)) * scale).astype(dtype)
    noisy = logits.astype(np.float64) / temperature + rng.gumbel(size=(n, m))
    return logits, noisy.argmax(axis=1)


def agrees(scores, logits, labels, objective, bounds=WIDE):
    fit = fit_temperature(scores, objective, bounds)
    assert fit.outside is None
    expected = reference.best_temperature(objective, logits, labels, bounds)
    assert fit.temperature == pytest.approx(expected, rel=0, abs=1e-6)
    if objective == "nll":
        there = reference.mean_nll(np.asarray(logits, np.float64), labels, expected)
        assert fit.value == pytest.approx(there, rel=1e-9, abs=1e-9)
    else:
        assert fit.value == 0


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("n", "m"), [(20, 2), (50, 3), (1000, 10), (300, 100)])
def test_the_fit_is_scipys_optimum(n, m, dtype, objective):
    logits, labels = drawn(n + m, n, m, dtype=dtype)
    agrees(Scores(logits=logits, labels=labels), logits, labels, objective)


def test_no_search_without_derivatives_finds_a_lower_log_loss():
    logits, labels = drawn(1, 200, 5)
    fit = fit_temperature(Scores(logits=logits, labels=labels), "nll", WIDE)
    least = reference.least_nll(logits, labels, WIDE)
    assert fit.value == pytest.approx(least, rel=1e-12)
    assert reference.mean_nll(logits, labels, fit.temperature) == pytest.approx(least, rel=1e-12)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
@pytest.mark.parametrize("n", [8193, 12_345, 30_000])
def test_a_fit_that_starts_from_a_sample_of_rows_is_the_optimum_of_all_rows(n, objective):
    logits, labels = drawn(n, n, 4)
    agrees(Scores(logits=logits, labels=labels), logits, labels, objective)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
def test_a_sample_unlike_the_other_rows_does_not_mislead_the_fit(objective):
    logits, labels = drawn(3, 10_240, 4)
    sampled = slice(None, None, 5)  # 10240 // 2048: the rows the fit starts from
    logits[sampled] *= 40
    agrees(Scores(logits=logits, labels=labels), logits, labels, objective)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize(("dtype", "objective"), [(np.float16, "accuracy"), (np.float32, "nll")])
def test_a_fit_that_starts_in_single_precision_is_the_optimum_in_double(dtype, objective):
    n, m = 42_000, 101
    assert n * m > 1 << 22
    logits, labels = drawn(4, n, m, dtype=dtype)
    agrees(Scores(logits=logits, labels=labels), logits, labels, objective, bounds=(1.0, 3.0))


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        pytest.param(*drawn(5, 400, 5, scale=1e4, temperature=60.0), id="large"),
        pytest.param(*drawn(6, 400, 5, scale=2e-2, temperature=0.02), id="small"),
        pytest.param(*drawn(7, 400, 5, scale=150.0, temperature=95.0), id="near the bound"),
        pytest.param(drawn(8, 400, 5)[0] + 1e6, drawn(8, 400, 5)[1], id="far from 0"),
        pytest.param(
            drawn(9, 400, 5)[0] * np.geomspace(1e-3, 10, 400)[:, None],
            drawn(9, 400, 5)[1],
            id="each row on its own scale",
        ),
        pytest.param(
            np.vstack([drawn(10, 400, 5)[0], np.tile([1e30, 0, 0, 0, -1e30], (40, 1))]),
            np.concatenate([drawn(10, 400, 5)[1], np.zeros(40, int)]),
            id="some rows certain at any temperature",
        ),
    ],
)
def test_ill_scaled_logits_are_fitted_as_exactly(logits, labels, objective):
    agrees(Scores(logits=logits, labels=labels), logits, labels, objective)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
def test_probabilities_are_fitted_as_the_logits_behind_them(objective):
    logits, labels = drawn(11, 500, 6)
    p = np.array([reference.probabilities_at(list(row), 1.0) for row in logits])
    agrees(Scores(probabilities=p, labels=labels), np.log(p), labels, objective)


@pytest.mark.parametrize("objective", ROOTS)
def test_a_binary_column_is_fitted_as_two_classes(objective):
    logits, labels = drawn(12, 500, 2)
    p = np.array([reference.probabilities_at(list(row), 1.0)[1] for row in logits])
    agrees(Scores(probabilities=p, labels=labels), np.log(np.c_[1 - p, p]), labels, objective)


def test_one_row_can_have_an_inner_optimum():
    logits, labels = [[3.0, 2.0, 0.0]], [1]
    agrees(Scores(logits=logits, labels=labels), logits, labels, "nll")


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("margin", [0.5, 2.0, 12.0])
def test_rows_of_one_margin_have_a_temperature_in_closed_form(margin, objective):
    # sigmoid(margin / T) = accuracy, for all three objectives alike.
    scores = Scores(logits=[[margin, 0.0]] * 10, labels=[0] * 8 + [1] * 2)
    expected = margin / math.log(0.8 / 0.2)
    fit = fit_temperature(scores, objective, WIDE)
    assert fit.temperature == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("each_kernel")
def test_a_single_precision_start_at_the_optimum_does_not_move_it():
    # The sample has the optimum of all rows, so the first look at all rows is at the optimum,
    # where float32 cannot tell the sign of the slope.
    n = 2048 * 1025
    logits = np.broadcast_to(np.array([60, 0], np.float32), (n, 2))
    scores = Scores(logits=logits, labels=(np.arange(n) // 1025) % 4 == 0)
    fit = fit_temperature(scores, "nll", WIDE)
    assert fit.temperature == pytest.approx(60 / math.log(3), rel=0, abs=1e-6)


@given(
    factor=st.floats(0.2, 5.0),
    seed=st.integers(0, 2**32 - 1),
    objective=st.sampled_from(ROOTS),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_logits_times_a_factor_have_the_temperature_times_that_factor(factor, seed, objective):
    logits, labels = drawn(seed, 60, 3)
    once = fit_temperature(Scores(logits=logits, labels=labels), objective, WIDE)
    times = fit_temperature(Scores(logits=logits * factor, labels=labels), objective, WIDE)
    assert times.temperature == pytest.approx(factor * once.temperature, rel=1e-6, abs=2e-6)


def ece_fit_is_no_worse_than_a_grid(n, seed):
    logits, labels = drawn(seed, n, 4)
    correct = (logits.argmax(axis=1) == labels).tolist()

    def ece_at(temperature):
        shares = softmax(logits / temperature, axis=1)
        return reference.ece(shares.max(axis=1).tolist(), correct, 15)

    fit = fit_temperature(Scores(logits=logits, labels=labels), "ece")
    assert fit.value == pytest.approx(ece_at(fit.temperature), abs=1e-12)
    return fit.value <= min(ece_at(t) for t in np.geomspace(0.05, 20, 300)) + 1e-12


@pytest.mark.parametrize(("n", "seed"), [(30, 1), (120, 0), (300, 6), (1000, 0), (1000, 1)])
def test_the_ece_fit_is_no_worse_than_a_dense_grid(n, seed):
    assert ece_fit_is_no_worse_than_a_grid(n, seed)


def test_the_ece_fit_of_few_rows_is_no_worse_than_a_dense_grid():
    assert all(ece_fit_is_no_worse_than_a_grid(60, seed) for seed in range(10))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("margin", [0.1, 1.0])
def test_when_all_rows_are_right_the_best_temperature_lies_below(margin, objective):
    scores = Scores(logits=[[margin + 1, 1.0]] * 3, labels=[0] * 3)
    with pytest.warns(OutsideBounds, match=r"lies below the bound 0\.05"):
        fit = fit_temperature(scores, objective)
    assert (fit.temperature, fit.outside) == (0.05, "below")


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", ROOTS)
@pytest.mark.parametrize("margin", [10.0, 50.0])
def test_when_all_rows_are_clearly_right_the_best_temperature_lies_below(margin, objective):
    scores = Scores(logits=[[margin, 0.0]] * 3, labels=[0] * 3)
    with pytest.warns(OutsideBounds, match=r"lies below the bound 0\.05"):
        fit = fit_temperature(scores, objective)
    assert (fit.temperature, fit.outside) == (0.05, "below")


@pytest.mark.usefixtures("each_kernel")
def test_an_optimum_far_down_an_exponential_slope_is_found():
    # 100·exp(−100/T) = 1e-6·(1 − p): the slope is nearly flat long before its root.
    logits, labels = [[100.0, 0.0], [0.0, 1e-6]], [0, 0]
    expected = reference.best_temperature("nll", np.array(logits), labels, (0.05, 20))
    fit = fit_temperature(Scores(logits=logits, labels=labels))
    assert fit.temperature == pytest.approx(expected, abs=1e-6)


def test_a_curvature_that_vanishes_by_chance_does_not_stop_the_fit_early():
    logits = [
        [-0.17630429988190974, -1.195589435823061, 0.45136038668262357],
        [-0.8359411347502024, 0.5192053385981863, 2.956291256836124],
    ]
    agrees(Scores(logits=logits, labels=[2, 1]), np.array(logits), [2, 1], "accuracy")


@pytest.mark.usefixtures("each_kernel")
@given(seed=st.integers(0, 2**32 - 1), objective=st.sampled_from(ROOTS))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_slope_changes_sign_within_the_tolerance_of_every_fit(seed, objective):
    rng = np.random.default_rng(seed)
    n, m = rng.integers(1, 6), rng.integers(2, 5)
    scores = Scores(
        logits=rng.normal(size=(n, m)) * rng.uniform(0.2, 6), labels=rng.integers(0, m, n)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = fit_temperature(scores, objective, WIDE)
    if fit.outside is None:
        if objective == "accuracy":
            target = scores.correct.mean()
            near = [
                FAST.confidence(scores.outputs, fit.temperature + d).mean() for d in (-1e-6, 1e-6)
            ]
            assert near[0] >= target >= near[1]
        else:
            nearby = fit.temperature * np.array([0.999, 1.001])
            assert FAST.nll(scores, fit.temperature).mean() <= min(
                FAST.nll(scores, t).mean() for t in nearby
            )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("margin", [0.1, 3.0, 50.0])
def test_when_all_rows_are_wrong_the_best_temperature_lies_above(margin, objective):
    scores = Scores(logits=[[margin, 0.0]] * 3, labels=[1] * 3)
    with pytest.warns(OutsideBounds, match="lies above the bound 20"):
        fit = fit_temperature(scores, objective)
    assert (fit.temperature, fit.outside) == (20.0, "above")


@pytest.mark.parametrize("objective", ROOTS)
@pytest.mark.parametrize(("bounds", "side"), [((0.05, 0.11), "above"), ((49.0, 60.0), "below")])
def test_an_optimum_beyond_a_bound_gives_exactly_that_bound(bounds, side, objective):
    # 1/(1/0.11) is below 0.11 and 1/(1/49) above 49: a detour through 1/T would show.
    logits, labels = drawn(13, 2000, 3)
    scores = Scores(logits=logits, labels=labels)
    with pytest.warns(OutsideBounds, match=side):
        fit = fit_temperature(scores, objective, bounds)
    assert fit.outside == side
    assert fit.temperature == (bounds[1] if side == "above" else bounds[0])


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_class_leaves_nothing_to_fit(objective):
    scores = Scores(logits=[[1.0], [-7.0]], labels=[0, 0])
    with pytest.warns(OutsideBounds, match="nothing to fit"):
        fit = fit_temperature(scores, objective)
    assert (fit.temperature, fit.value, fit.outside) == (1.0, 0.0, "flat")


CONSTANT = {"logits": np.full((4, 3), 7.0), "labels": [0, 1, 2, 0]}


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ("nll", math.log(3)),
        ("accuracy", 1 / 2 - 1 / 3),
        ("ece", 1 / 2 - 1 / 3),
    ],
)
def test_constant_logits_leave_nothing_to_fit(objective, value):
    with pytest.warns(OutsideBounds):
        fit = fit_temperature(Scores(**CONSTANT), objective)
    assert fit.outside == "flat"
    assert fit.value == pytest.approx(value, rel=1e-12)


def test_a_flat_fit_stays_inside_its_bounds():
    with pytest.warns(OutsideBounds):
        fit = fit_temperature(Scores(**CONSTANT), "nll", (2.0, 20.0))
    assert fit.temperature == 2.0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_rows_cannot_be_fitted(objective):
    with pytest.raises(InputError, match="no rows"):
        fit_temperature(Scores(logits=np.empty((0, 3)), labels=[]), objective)


def test_an_unknown_objective_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="one of nll, accuracy, ece, not 'brier'"):
        fit_temperature(Scores(**CONSTANT), "brier")


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0), (2.0, 1.0), (0.001, 1.0), (1.0, 101.0), (math.nan, 1.0), (0.0, math.inf)]
)
def test_bounds_must_be_two_rising_temperatures_within_the_limits(bounds):
    with pytest.raises(InputError, match=r"bounds|temperature"):
        fit_temperature(Scores(**CONSTANT), "nll", bounds)


GRID = np.geomspace(0.01, 100, 60)


def labelled(draw):
    n, m = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    # Bounded so that rounding stays far below the tolerance; ties and zeros are likely.
    logit = st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1.0, -50.0, 50.0]))
    logits = draw(hnp.arrays(np.float64, (n, m), elements=logit))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, m - 1)))
    return Scores(logits=logits, labels=labels)


def falls_then_rises(values):
    # Each value is a mean of float64 numbers of its own size, so 1e-12 is thousands of roundings.
    slack = 1e-12 * (1 + np.maximum(values[1:], values[:-1]))
    rises = np.flatnonzero(np.diff(values) > slack)
    falls = np.flatnonzero(np.diff(values) < -slack)
    return not len(rises) or not len(falls) or falls[-1] < rises[0]


@given(scores=st.composite(labelled)())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_mean_log_loss_has_one_valley_over_temperature(scores):
    assert falls_then_rises(np.array([FAST.nll(scores, t, threads=1).mean() for t in GRID]))


@given(scores=st.composite(labelled)())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_gap_between_accuracy_and_mean_confidence_has_one_valley_over_temperature(scores):
    accuracy = scores.correct.mean()
    means = np.array([FAST.confidence(scores.outputs, t, threads=1).mean() for t in GRID])
    assert falls_then_rises(np.abs(accuracy - means))
