"""The kernel against plain loops, at its edges, and bit for bit."""

import math
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.calibration.kernel import FAST
from privcal.data.scores import Outputs, Scores
from privcal.trusted import kernel
from privcal.trusted import scores as scores_module
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import for_blocks
from tests.support import positions, reference

pytestmark = pytest.mark.usefixtures("each_kernel")

ROOT = Path(__file__).parents[2]

TEMPERATURES = (0.01, 0.37, 1.0, 2.5, 100.0)
AWKWARD = (1, 2, 3, 7, 8, 9, 127, 128, 129, 1000)
DTYPES = (np.float16, np.float32, np.float64)

# With x = |z|/T, a term exp(−x) carries a relative error of at most (3x + 2)u: z, 1/T and their
# product are each rounded once and exp to about 2u. Weighted by the terms themselves x averages
# at most ln m, and pairwise summation adds at most 16 + 2 log2(m/128) roundings. At m = 1000 that
# is (3·6.9 + 2 + 22)u < 45u: 2.7e-6 in float32 (u = 6e-8), 5e-15 in float64.
# A log-probability is rounded relative to |log p| ≤ |z| + ln m before 1/T multiplies it, by up
# to 100: 100 · 2 ln 1000 · u < 2e-13.
LOGIT_TOLERANCE = {np.float16: 3e-6, np.float32: 3e-6, np.float64: 1e-14}
PROBABILITY_TOLERANCE = 1e-12


def random_logits(rng, n, m, dtype=np.float64):
    return (rng.normal(size=(n, m)) * 4).astype(dtype)


def random_probabilities(rng, n, m, dtype=np.float64):
    weights = np.exp(rng.normal(size=(n, m)))  # none so small that float16 makes it 0
    return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)


def rows_of(array):
    return [[float(v) for v in row] for row in array]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("m", [1, 2, 10, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_give_the_softmax_confidence_and_log_loss(dtype, m, temperature):
    rng = np.random.default_rng(m)
    logits, labels = random_logits(rng, 12, m, dtype), rng.integers(0, m, 12)
    scores = Scores(logits=logits, labels=labels)
    expected = [reference.confidence_at(row, temperature) for row in rows_of(logits)]
    losses = [
        reference.row_nll(row, y, temperature)
        for row, y in zip(rows_of(logits), labels, strict=True)
    ]
    rtol = LOGIT_TOLERANCE[dtype]
    np.testing.assert_allclose(FAST.confidence(scores.outputs, temperature), expected, rtol=rtol)
    # log S0 is off by the relative error of S0; the label's own logit is worked in float64.
    np.testing.assert_allclose(FAST.nll(scores, temperature), losses, rtol=1e-14, atol=rtol)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("m", [1, 2, 10, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_act_as_the_logits_they_are_the_softmax_of(dtype, m, temperature):
    rng = np.random.default_rng(m)
    p = rng.random((12, 1)).astype(dtype) if m == 1 else random_probabilities(rng, 12, m, dtype)
    labels = rng.integers(0, max(m, 2), 12)
    scores = Scores(probabilities=p, labels=labels)
    logits = [reference.logits_of(row) for row in rows_of(p)]
    expected = [reference.confidence_at(row, temperature) for row in logits]
    losses = [reference.row_nll(row, y, temperature) for row, y in zip(logits, labels, strict=True)]
    ours = FAST.confidence(scores.outputs, temperature)
    np.testing.assert_allclose(ours, expected, rtol=PROBABILITY_TOLERANCE)
    np.testing.assert_allclose(
        FAST.nll(scores, temperature),
        losses,
        rtol=PROBABILITY_TOLERANCE,
        atol=PROBABILITY_TOLERANCE,
    )


# The same terms as the confidence's, in float64 whatever the logits are; the logarithm turns a
# relative error of the sum into an absolute one.
LOG_ODDS_TOLERANCE = 1e-12


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("m", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_odds_are_those_of_the_confidence(dtype, m, temperature):
    logits = random_logits(np.random.default_rng(m), 12, m, dtype)
    p = random_probabilities(np.random.default_rng(m), 12, m, dtype)
    for given_as, rows in (
        ({"logits": logits}, rows_of(logits)),
        ({"probabilities": p}, [reference.logits_of(row) for row in rows_of(p)]),
    ):
        expected = [reference.log_odds_at(row, temperature) for row in rows]
        ours = FAST.log_odds(Outputs(**given_as), temperature)
        np.testing.assert_allclose(ours, expected, rtol=LOG_ODDS_TOLERANCE, atol=LOG_ODDS_TOLERANCE)


def test_log_odds_tell_rows_apart_where_the_confidence_rounds_to_one():
    outputs = Outputs(logits=[[50.0, 0.0], [60.0, 0.0], [700.0, 0.0]])
    assert FAST.confidence(outputs, 1.0).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(FAST.log_odds(outputs, 1.0), [50.0, 60.0, 700.0], rtol=1e-14)
    # With two classes they are the difference of the logits over T.
    np.testing.assert_allclose(FAST.log_odds(outputs, 4.0), [12.5, 15.0, 175.0], rtol=1e-14)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_odds_are_infinite_only_where_nothing_is_left(temperature):
    lonely = Outputs(logits=[[-3.0], [1e308]])
    assert FAST.log_odds(lonely, temperature).tolist() == [math.inf, math.inf]
    assert FAST.log_odds(Outputs(logits=np.empty((0, 3))), temperature).shape == (0,)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_probability_of_one_is_as_certain_as_a_double_can_say(temperature):
    """Its rivals have 2⁻⁵³ each, so a temperature makes it less certain like any other row."""
    most = 53 * math.log(2) / temperature
    expected = most if most < 746 else math.inf  # exp(−746) is 0
    column = Outputs(probabilities=[0.0, 1.0, 0.5])
    np.testing.assert_allclose(
        FAST.log_odds(column, temperature), [expected, expected, 0.0], rtol=1e-12
    )
    sure = Outputs(probabilities=[[0.0, 1.0, 0.0], [1e-300, 1.0, 0.0]])
    np.testing.assert_allclose(
        FAST.log_odds(sure, temperature), [expected - math.log(2)] * 2, rtol=1e-12
    )
    np.testing.assert_allclose(
        FAST.confidence(column, temperature), [1 / (1 + math.exp(-most))] * 2 + [0.5], rtol=1e-12
    )
    right, wrong = FAST.nll(Scores(probabilities=[1.0, 1.0], labels=[1, 0]), temperature)
    assert right == pytest.approx(math.log1p(math.exp(-most)), rel=1e-9, abs=1e-15)
    assert wrong == pytest.approx(most + math.log1p(math.exp(-most)), rel=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_odds_of_a_binary_column_are_its_logit_over_t(temperature):
    p = np.array([1e-12, 0.01, 0.3, 0.5, 0.75, 0.999])
    # Of the predicted class, hence never negative.
    exact = [abs(math.log(x) - math.log1p(-x)) / temperature for x in p.tolist()]
    # Beyond the smallest float, exp(−745), nothing is left for the other class.
    expected = [math.inf if s > 746 else s for s in exact]
    ours = FAST.log_odds(Outputs(probabilities=p), temperature)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("m", [2, 3, 10, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_log_odds_of_a_class_are_those_of_its_probability(dtype, m, temperature):
    logits = random_logits(np.random.default_rng(m), 12, m, dtype)
    p = random_probabilities(np.random.default_rng(m), 12, m, dtype)
    for given_as, rows in (
        ({"logits": logits}, rows_of(logits)),
        ({"probabilities": p}, [reference.logits_of(row) for row in rows_of(p)]),
    ):
        for k in {0, 1, m // 2, m - 1}:
            exact = [reference.class_log_odds_at(row, temperature, k) for row in rows]
            expected = [math.inf if s > 746 else s for s in exact]  # exp(−746) is 0
            ours = FAST.log_odds(Outputs(**given_as), temperature, of=k)
            np.testing.assert_allclose(
                ours, expected, rtol=LOG_ODDS_TOLERANCE, atol=100 * LOG_ODDS_TOLERANCE
            )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_odds_of_the_predicted_class_are_exactly_those_of_the_confidence(temperature):
    logits = random_logits(np.random.default_rng(0), 300, 3)
    logits[:100, 1] = logits[:100, 0]  # ties: the first is predicted
    outputs = Outputs(logits=logits)
    own = FAST.log_odds(outputs, temperature)
    for k in range(3):
        mine = outputs.predicted == k
        of = FAST.log_odds(outputs, temperature, of=k)
        assert np.array_equal(of[mine], own[mine])
        assert (of[~mine] <= 0).all()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_odds_of_a_class_at_the_edges(temperature):
    column = Outputs(probabilities=[0.0, 1.0, 0.5])
    most = 53 * math.log(2) / temperature
    certain = most if most < 746 else math.inf
    for k, sign in ((1, -1), (0, 1)):
        expected = [certain if sign > 0 else -most, certain if sign < 0 else -most, 0.0]
        np.testing.assert_allclose(FAST.log_odds(column, temperature, of=k), expected, rtol=1e-12)
    tied = Outputs(logits=[[7.0, 7.0, 7.0]])
    for k in range(3):
        assert FAST.log_odds(tied, temperature, of=k)[0] == pytest.approx(-math.log(2), rel=1e-15)
    lonely = Outputs(logits=[[-3.0], [1e308]])
    assert FAST.log_odds(lonely, temperature, of=0).tolist() == [math.inf, math.inf]
    assert FAST.log_odds(Outputs(logits=np.empty((0, 3))), temperature, of=2).shape == (0,)
    # Far below the predicted class: no underflow, however cold.
    behind = Outputs(logits=[[1000.0, 0.0]])
    assert FAST.log_odds(behind, temperature, of=1)[0] == pytest.approx(
        -1000 / temperature, rel=1e-14
    )


def test_log_odds_of_a_class_that_is_not_there_are_refused():
    for k in (-1, 2):
        with pytest.raises(InputError, match=f"there is no class {k}: the model has 2"):
            FAST.log_odds(Outputs(probabilities=[0.5]), 1.0, of=k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_temperature_one_the_confidence_is_the_largest_probability(dtype):
    p = random_probabilities(np.random.default_rng(0), 50, 6, dtype)
    wide = p.astype(np.float64)
    expected = wide.max(axis=1) / wide.sum(axis=1)
    ours = FAST.confidence(Outputs(probabilities=p), 1.0)
    np.testing.assert_allclose(ours, expected, rtol=PROBABILITY_TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_moments_are_the_mean_and_variance_of_the_shifted_logits(dtype, temperature):
    logits = random_logits(np.random.default_rng(1), 20, 9, dtype)
    expected = [reference.moments_at(row, temperature) for row in rows_of(logits)]
    ours = FAST.moments(Outputs(logits=logits), 1 / temperature)
    # The variance is a difference of squares: its error is relative to the largest z² ≈ 1e3.
    np.testing.assert_allclose(np.transpose(ours), expected, rtol=1e-12, atol=1e-12)


def test_moments_of_a_class_of_probability_zero_are_those_of_the_least_one():
    ours = FAST.moments(Outputs(probabilities=[[0.75, 0.25, 0.0], [0.75, 0.25, 1e-300]]), 0.5)
    least = FAST.moments(Outputs(probabilities=[[0.75, 0.25, 2.0**-53]]), 0.5)
    np.testing.assert_array_equal(np.array(ours), np.repeat(least, 2, axis=1))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tied_classes_share_the_confidence_and_the_first_is_predicted(dtype, temperature):
    outputs = Outputs(logits=np.array([[5, 5, -6e4], [-6e4, 5, 5], [1, 1, 1]], dtype))
    assert FAST.confidence(outputs, temperature).tolist() == [1 / 2, 1 / 2, 1 / 3]
    assert outputs.predicted.tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_certain_row_has_confidence_exactly_one_and_loss_zero(temperature):
    scores = Scores(logits=[[1e5, 0.0]], labels=[0])
    assert FAST.confidence(scores.outputs, temperature).tolist() == [1.0]
    assert FAST.nll(scores, temperature).tolist() == [0.0]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("values", [[[-3.0]], [[1e308], [-1e308], [0.0]]])
def test_one_class_is_always_certain(values, temperature):
    scores = Scores(logits=values, labels=[0] * len(values))
    assert FAST.confidence(scores.outputs, temperature).tolist() == [1.0] * len(values)
    assert FAST.nll(scores, temperature).tolist() == [0.0] * len(values)


def test_no_rows_have_no_confidences():
    scores = Scores(logits=np.empty((0, 3)), labels=[])
    assert FAST.confidence(scores.outputs, 1.0).shape == (0,)
    assert FAST.nll(scores, 1.0).shape == (0,)
    assert [part.shape for part in FAST.moments(scores.outputs, 1.0)] == [(0,)] * 3


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    ("dtype", "huge"),
    [
        (np.float16, 6e4),
        (np.float32, 1e30),
        (np.float32, 3e38),
        (np.float64, 1e30),
        (np.float64, 1e308),
    ],
)
def test_huge_logits_give_exact_confidences_and_finite_losses(dtype, huge, temperature):
    logits = np.array([[huge, -huge, 0], [huge, huge, -huge], [-huge, -huge, -huge]], dtype)
    scores = Scores(logits=logits, labels=[1, 2, 2])
    ours = FAST.confidence(scores.outputs, temperature)
    assert ours[:2].tolist() == [1.0, 0.5]
    assert ours[2] == pytest.approx(1 / 3, rel=1e-15)
    losses = FAST.nll(scores, temperature)
    assert np.isfinite(losses).all()
    # 2·huge/T, short of the largest that is told apart.
    assert (losses[:2] >= min(huge, 1e300) / temperature).all()
    assert losses[2] == pytest.approx(math.log(3), rel=1e-15)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_class_of_probability_zero_has_the_least_share(temperature):
    scores = Scores(probabilities=[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], labels=[0, 2])
    behind = 52 * math.log(2) / temperature
    both = 2 + math.exp(-behind)
    np.testing.assert_allclose(
        FAST.confidence(scores.outputs, temperature), [1 / both] * 2, rtol=1e-14
    )
    expected = [math.log(both), math.log(both) + behind]
    np.testing.assert_allclose(FAST.nll(scores, temperature), expected, rtol=1e-14)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_binary_column_equals_its_two_columns(temperature):
    # Multiples of 2⁻¹⁰, so that 1 − p is exact in the two-column form.
    p = np.arange(1025)[:, None] / 1024
    column = Outputs(probabilities=p)
    both = Outputs(probabilities=np.hstack([1 - p, p]))
    assert column.predicted.tolist() == both.predicted.tolist()
    np.testing.assert_allclose(
        FAST.confidence(column, temperature),
        FAST.confidence(both, temperature),
        rtol=PROBABILITY_TOLERANCE,
    )


@pytest.mark.parametrize(
    "temperature", [0.00999, 100.001, 0.0, -1.0, math.nan, math.inf, -math.inf]
)
def test_a_temperature_outside_its_limits_is_refused(temperature):
    scores = Scores(logits=[[1.0, 0.0]], labels=[0])
    with pytest.raises(InputError, match=r"temperature must be a number from 0\.01 to 100"):
        FAST.confidence(scores.outputs, temperature)
    with pytest.raises(InputError, match=r"temperature must be a number from 0\.01 to 100"):
        FAST.nll(scores, temperature)


def table(rng, kind, dtype, n, m):
    """Rows with everything that makes last bits differ: ties, tiny and huge values, zeros."""
    if kind == "probabilities":
        p = rng.random((n, 1)) if m == 1 else random_probabilities(rng, n, m)
        p[rng.random(n) < 0.2] = 1 / m if m > 1 else 0.5
        certain = rng.random(n) < 0.1
        p[certain] = 0.0
        p[certain, 0] = 1.0
        return p.astype(dtype)
    logits = random_logits(rng, n, m)
    logits[rng.random(n) < 0.2] *= 1000
    logits[rng.random((n, m)) < 0.1] = 1.5
    logits[rng.random((n, m)) < 0.02] = 6e4 if dtype is np.float16 else 1e30
    return logits.astype(dtype)


@given(
    n=st.sampled_from(AWKWARD),
    m=st.sampled_from(AWKWARD),
    kind=st.sampled_from(["logits", "probabilities"]),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from("CF"),
    temperature=st.sampled_from(TEMPERATURES),
    block=st.sampled_from([1, 5, 64, 1000, 8192, 1 << 16]),
    threads=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_row_has_the_same_bits_in_any_place_block_thread_and_batch(
    n, m, kind, dtype, order, temperature, block, threads, seed
):
    rng = np.random.default_rng(seed)
    array = table(rng, kind, dtype, n, m)
    classes = 2 if kind == "probabilities" and m == 1 else m
    labels = rng.integers(0, classes, n)

    def bits(rows, order="C", **threaded):
        scores = Scores(**{kind: np.asarray(array[rows], order=order)}, labels=labels[rows])
        values = [
            FAST.confidence(scores.outputs, temperature, **threaded),
            FAST.nll(scores, temperature, **threaded),
            FAST.log_odds(scores.outputs, temperature, **threaded),
            FAST.log_odds(scores.outputs, temperature, **threaded, of=classes // 2),
        ]
        return np.stack(values, axis=1).view(np.uint64)

    whole = bits(slice(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores_module, "BLOCK", block)
        patch.setattr(kernel, "BLOCK", block)
        np.testing.assert_array_equal(bits(slice(None), order, threads=threads), whole)
    places = {0, n // 2, n - 1, int(rng.integers(n))}
    for row in places:
        np.testing.assert_array_equal(bits([row])[0], whole[row])
        others = np.delete(np.arange(n), row)
        np.testing.assert_array_equal(bits(others), whole[others])
    shuffled = rng.permutation(n)
    np.testing.assert_array_equal(bits(shuffled), whole[shuffled])


SIZES = (
    *(1, 2, 3, 7, 8, 9, 127, 128, 129, 333, 1000, 4095, 4096, 4097, 8191, 8192, 8193),
    *(10_000, 16_385, 21_841, 65_537, 131_073),
)
"""Classes on both sides of every width at which NumPy or a block of rows changes its way."""


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("form", positions.FORMS)
@pytest.mark.slow
def test_a_row_has_the_same_bits_in_a_block_of_any_height(form, m):
    assert list(positions.by_height(form, m)) == []


@pytest.mark.parametrize("m", [3, 333, 8193, 10_000, 131_073])
@pytest.mark.parametrize("form", positions.FORMS)
def test_a_row_has_the_same_bits_on_any_thread(monkeypatch, form, m):
    array = positions.table(form, 29, m)
    whole = positions.bits(form, array, threads=1)
    monkeypatch.setattr(scores_module, "BLOCK", m)  # a block is one row, and 29 rows bring helpers
    monkeypatch.setattr(kernel, "BLOCK", m)
    for threads in (1, 2, 7):
        np.testing.assert_array_equal(positions.bits(form, array, threads), whole)


def strided(array):
    wide = np.zeros((len(array), 3 * array.shape[1]), array.dtype)
    wide[:, 1::3] = array
    return wide[:, 1::3]


def misaligned(array):
    raw = bytearray(array.nbytes + 1)
    moved = np.frombuffer(raw, array.dtype, array.size, offset=1).reshape(array.shape)
    moved[:] = array
    return moved


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "strided": strided,
    "upside down": lambda array: array[::-1].copy()[::-1],
    "mirrored": lambda array: array[:, ::-1].copy()[:, ::-1],
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "misaligned": misaligned,
}


LAID_OUT = {(form, layout) for form in positions.FORMS for layout in LAYOUTS}


@pytest.mark.parametrize("m", [1, 2, 3, 129, 4097, 10_000])
@pytest.mark.parametrize(("form", "layout"), sorted(LAID_OUT, key=str))
def test_a_row_has_the_same_bits_in_any_layout(form, layout, m):
    lay_out = LAYOUTS[layout]
    array = positions.table(form, 15, m)
    whole = positions.bits(form, array)
    np.testing.assert_array_equal(positions.bits(form, lay_out(array)), whole)
    for row in range(15):
        alone = positions.bits(form, lay_out(array[row : row + 1]))
        np.testing.assert_array_equal(alone[0], whole[row])


def test_exp_and_log_of_a_number_do_not_depend_on_its_neighbours():
    assert list(positions.elementwise()) == []


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_row_has_the_same_bits_everywhere_on_a_machine_with_less_simd(share):
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    without = features[len(features) - math.ceil(share * len(features)) :]  # the newest come last
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(without)}
    command = [sys.executable, "-m", "tests.support.positions"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
@pytest.mark.parametrize("n", [0, 1, 9, 1000])
def test_every_row_is_worked_exactly_once(monkeypatch, n, block):
    monkeypatch.setattr(scores_module, "BLOCK", block)
    monkeypatch.setattr(kernel, "BLOCK", block)
    outputs = Outputs(logits=np.zeros((n, 3), np.float32))
    visits = np.zeros(n, int)

    def work(rows, scratch):
        assert scratch.shape == (rows.stop - rows.start, 3)
        visits[rows] += 1

    for_blocks(outputs, work, outputs.dtype, 1, threads=4)
    assert visits.tolist() == [1] * n


def test_threads_take_turns_at_the_blocks():
    outputs = Outputs(logits=np.zeros((40, 2)))

    def slow_blocks():
        for row in range(40):
            time.sleep(0.0005)  # a second thread asking meanwhile would break the generator
            yield slice(row, row + 1)

    outputs.blocks = slow_blocks
    worked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "BLOCK", 2)
        for_blocks(outputs, lambda rows, _: worked.append(rows.start), outputs.dtype, 1, threads=4)
    assert sorted(worked) == list(range(40))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("logits", np.float16),
        ("logits", np.float32),
        ("logits", np.float64),
        ("probabilities", np.float32),
    ],
)
def test_no_second_array_of_all_rows_and_classes_is_made(kind, dtype):
    rng = np.random.default_rng(0)
    n, m = 20_000, 200
    array = (random_logits if kind == "logits" else random_probabilities)(rng, n, m, dtype)
    labels = rng.integers(0, m, n)
    tracemalloc.start()
    try:
        scores = Scores(**{kind: array}, labels=labels)
        FAST.confidence(scores.outputs, 1.5, threads=2)
        FAST.nll(scores, 1.5, threads=2)
        FAST.moments(scores.outputs, 0.5, threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The narrowest copy of all rows, one byte for each number, would be n·m.
    assert peak < n * m


def test_an_exception_in_a_worker_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK", 1)
    monkeypatch.setattr(kernel, "BLOCK", 1)
    outputs = Outputs(logits=np.zeros((50, 2)))
    before = threading.active_count()
    failed = threading.Event()

    def work(rows, scratch):
        if threading.current_thread() is threading.main_thread():
            assert failed.wait(30)  # so that a helper surely gets a block
        else:
            failed.set()
            raise ZeroDivisionError("in a helper")

    with pytest.raises(ZeroDivisionError, match="in a helper"):
        for_blocks(outputs, work, outputs.dtype, 1, threads=3)
    assert threading.active_count() == before


def test_after_a_failure_no_further_block_is_worked(monkeypatch):
    monkeypatch.setattr(scores_module, "BLOCK", 1)
    monkeypatch.setattr(kernel, "BLOCK", 1)
    outputs = Outputs(logits=np.zeros((50, 2)))
    worked = []

    def work(rows, scratch):
        worked.append(rows.start)
        if rows.start == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        for_blocks(outputs, work, outputs.dtype, 1, threads=1)
    assert worked == [0, 1, 2, 3]
