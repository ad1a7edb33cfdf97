"""Every metric against plain loops, at its edges, merged from parts, and against its peers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from privcal.calibration import metrics
from privcal.calibration.metrics import AllRows, ClassWise, Mean, Reliability
from privcal.trusted.errors import InputError
from tests.support import reference

BINNED = ("ece", "equal_mass_ece", "mce", "debiased_ece", "debiased_rms")
TABLE = ("classwise_ece", "brier_multiclass", "nll")
NUMBERS = ("count", "correct", "confidence")

# Values and references differ by the order of sums of at most a few hundred numbers ≤ 1; a
# root-mean-square near 0 is the square root of such a difference.
CLOSE = {"rel": 1e-12, "abs": 1e-12}
ROOT = {"rel": 1e-12, "abs": 1e-7}

# Multiples of 2⁻²⁰ add up exactly in any order; ties, both ends and bin edges are likely.
DYADIC = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 1 << 20).map(lambda k: k / 2**20)
)
CONFIDENCE = st.one_of(
    DYADIC, st.floats(0, 1), st.integers(0, 15).map(lambda k: k / 15), st.just(math.nextafter(1, 0))
)
BINS = st.sampled_from([1, 2, 3, 10, 15, 1000])


def rows(confidence, min_size=0):
    return st.lists(st.tuples(confidence, st.booleans()), min_size=min_size, max_size=40)


def split(pairs):
    return [c for c, _ in pairs], [y for _, y in pairs]


@st.composite
def tables(draw, classes=None, min_size=1):
    m = classes or draw(st.integers(1, 5))
    n = draw(st.integers(min_size, 12))
    weights = draw(
        st.lists(st.lists(st.integers(0, 8), min_size=m, max_size=m), min_size=n, max_size=n)
    )
    # Shares of 64: probabilities that sum to exactly 1, zeros and ones among them.
    p = [[w / 64 for w in row[:-1]] + [1 - sum(row[:-1]) / 64] for row in weights]
    return p, draw(st.lists(st.integers(0, m - 1), min_size=n, max_size=n))


def some_rows(n=600, power=1.5):
    """Rows whose confidence is right at power 1, too high above it."""
    rng = np.random.default_rng(0)
    c = rng.uniform(0.02, 0.98, n)
    return c, rng.random(n) < c**power


def some_table(n=600, m=4):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(m), n)
    return p, np.array([rng.choice(m, p=row) for row in p])


@pytest.mark.parametrize("name", BINNED)
@given(pairs=rows(CONFIDENCE, min_size=1), bins=BINS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_binned_metric_is_what_plain_loops_say(name, pairs, bins):
    expected = getattr(reference, name)(*split(pairs), bins)
    tolerance = ROOT if name == "debiased_rms" else CLOSE
    assert getattr(metrics, name)(*split(pairs), bins) == pytest.approx(expected, **tolerance)


@pytest.mark.parametrize("name", BINNED)
def test_a_binned_metric_of_many_rows_is_what_plain_loops_say(name):
    c, y = some_rows(5000)
    expected = getattr(reference, name)(c.tolist(), y.tolist(), 15)
    assert getattr(metrics, name)(c, y) == pytest.approx(expected, **CLOSE)


@given(pairs=rows(CONFIDENCE, min_size=1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_brier_accuracy_and_mean_confidence_are_plain_means(pairs):
    c, y = split(pairs)
    assert metrics.brier(c, y) == pytest.approx(reference.brier(c, y), **CLOSE)
    assert metrics.aurc(c, y) == pytest.approx(reference.aurc(c, y), **CLOSE)
    assert metrics.accuracy(y) == pytest.approx(reference.mean(y), **CLOSE)
    assert metrics.mean_confidence(c) == pytest.approx(reference.mean(c), **CLOSE)


@given(table=tables(), bins=BINS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_metric_of_all_classes_is_what_plain_loops_say(table, bins):
    expected = reference.classwise_ece(*table, bins)
    assert metrics.classwise_ece(*table, bins) == pytest.approx(expected, **CLOSE)
    expected = reference.brier_multiclass(*table)
    assert metrics.brier_multiclass(*table) == pytest.approx(expected, **CLOSE)
    assert metrics.nll(*table) == pytest.approx(reference.nll(*table), **CLOSE)


def test_ece_by_hand():
    # Bin 1 of 4: one right of two at 0.3; bin 3: two right at 0.8 and 1. |½ − 0.3|, |1 − 0.9|.
    c, y = [0.3, 0.3, 0.8, 1.0], [True, False, True, True]
    assert metrics.ece(c, y, 4) == pytest.approx((0.2 + 0.1) / 2, **CLOSE)
    assert metrics.mce(c, y, 4) == pytest.approx(0.2, **CLOSE)


def test_a_confidence_of_one_falls_in_the_last_bin():
    # Together with 0.95: |1 right − 1.95| / 2. Apart in a bin of its own it would be 1.05 / 2.
    assert metrics.ece([1.0, 0.95], [False, True], 10) == pytest.approx(0.475, **CLOSE)
    assert Reliability.of([1.0, 0.95], [False, True], 10).count.tolist() == [0] * 9 + [2]


@pytest.mark.parametrize("bins", [2, 4, 8, 64])
def test_a_confidence_on_an_edge_falls_in_the_bin_above(bins):
    edges = np.arange(bins) / bins
    assert metrics.bin_index(edges, bins).tolist() == list(range(bins))
    assert metrics.bin_index(np.nextafter(edges[1:], 0), bins).tolist() == list(range(bins - 1))


def test_the_bin_is_found_in_double_precision_whatever_comes_in():
    # 10 · 0.7 is 7 in float64; the float32 next to 0.7 is 0.69999999.
    for c, expected in ((0.7, 7), (np.float32(0.7), 6)):
        assert Reliability.of(np.array([c]), [True], 10).count.argmax() == expected


def test_empty_bins_count_for_nothing():
    c, y = [0.02, 0.99], [False, True]
    assert metrics.ece(c, y, 1000) == pytest.approx((0.02 + 0.01) / 2, **CLOSE)
    mean, accuracy, share = Reliability.of(c, y, 1000).curve()
    assert (mean.tolist(), accuracy.tolist(), share.tolist()) == (c, [0, 1], [0.5, 0.5])


@pytest.mark.parametrize("name", BINNED)
def test_one_row_is_a_bin_of_its_own(name):
    assert getattr(metrics, name)([0.7], [True]) == pytest.approx(0.3, **CLOSE)


def test_a_constant_equal_to_the_accuracy_has_no_ece_but_a_brier_score():
    c, y = [0.75] * 4, [True, True, True, False]
    assert metrics.ece(c, y) == 0
    assert metrics.brier(c, y) == 0.75 * 0.25


def test_aurc_by_hand():
    # The most confident row is right, the next wrong, the last right: 0, 1/2 and 1/3.
    assert metrics.aurc([0.6, 0.9, 0.7], [True, True, False]) == pytest.approx(5 / 18, **CLOSE)
    assert metrics.aurc([0.3], [False]) == 1.0
    assert metrics.aurc([0.3], [True]) == 0.0
    assert metrics.aurc([0.3, 0.4, 0.4], [True] * 3) == 0.0
    assert metrics.aurc([0.3, 0.4, 0.4], [False] * 3) == pytest.approx(1.0, **CLOSE)


def test_aurc_of_ties_is_the_mean_over_their_orders():
    c, y = [0.5, 0.9, 0.5, 0.2, 0.5, 0.2], [True, False, False, True, True, False]
    areas = []
    for tied in itertools.permutations((0, 2, 4)):
        for last in itertools.permutations((3, 5)):
            order = [1, *tied, *last]
            wrong = [not y[i] for i in order]
            areas.append(reference.mean([sum(wrong[:k]) / k for k in range(1, 7)]))
    assert metrics.aurc(c, y) == pytest.approx(reference.mean(areas), **CLOSE)


def test_aurc_of_many_rows_is_what_plain_loops_say():
    c, y = some_rows(300)
    c = np.round(c, 2)
    expected = reference.aurc(c.tolist(), y.tolist())
    assert metrics.aurc(c, y) == pytest.approx(expected, **CLOSE)


@given(pairs=rows(CONFIDENCE, min_size=1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_aurc_knows_the_order_of_confidences_alone(pairs):
    c, y = split(pairs)
    places = {value: (i + 1) / 50 for i, value in enumerate(sorted(set(c)))}
    assert metrics.aurc([places[v] for v in c], y) == metrics.aurc(c, y)


def test_debiasing_takes_the_folded_normal_excess_from_the_plain_error():
    # One bin on target, gap 0: E|N(0, s)| = s·√(2/π) with s² = ¼/n.
    n = 100
    c, y = [0.5] * n, [True, False] * (n // 2)
    expected = -math.sqrt(0.25 / n) * math.sqrt(2 / math.pi)
    assert metrics.debiased_ece(c, y) == pytest.approx(expected, **CLOSE)


def test_equal_confidences_share_a_bin_of_equal_mass():
    # Ranks 0 1 1 1 1 5 of 6 rows in 3 bins: the four at 0.5 stay in bin 0 with 0.1.
    state = AllRows.of([0.5, 0.1, 0.5, 0.9, 0.5, 0.5], [True] * 6)
    assert state.reliability(3).count.tolist() == [5, 0, 1]


def test_bins_of_equal_mass_hold_equal_numbers_of_distinct_rows():
    c, y = some_rows(600)
    assert AllRows.of(c, y).reliability(15).count.tolist() == [40] * 15


@given(pairs=rows(DYADIC, min_size=1), bins=BINS, seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_equal_mass_ece_does_not_depend_on_the_order_of_rows(pairs, bins, seed):
    shuffled = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
    assert metrics.equal_mass_ece(*split(shuffled), bins) == metrics.equal_mass_ece(
        *split(pairs), bins
    )


def same(left, right, names):
    for name in names:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@given(a=rows(DYADIC), b=rows(DYADIC), bins=BINS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_reliability_of_two_parts_adds_up_to_that_of_both(a, b, bins):
    both = Reliability.of(*split(a + b), bins)
    same(Reliability.of(*split(a), bins) + Reliability.of(*split(b), bins), both, NUMBERS)


@given(a=rows(DYADIC), b=rows(DYADIC, min_size=1), bins=BINS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_equal_mass_of_two_parts_adds_up_to_that_of_both(a, b, bins):
    both = AllRows.of(*split(a)) + AllRows.of(*split(b))
    parts = both.reliability(bins)
    same(parts, AllRows.of(*split(a + b)).reliability(bins), NUMBERS)
    assert both.aurc == AllRows.of(*split(a + b)).aurc


@given(
    pair=st.integers(1, 4).flatmap(lambda m: st.tuples(tables(m), tables(m))),
    bins=st.sampled_from([1, 3, 15]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_class_wise_states_of_two_parts_add_up_to_that_of_both(pair, bins):
    (p, y), (q, z) = pair
    both = ClassWise.of(p + q, y + z, bins)
    parts = ClassWise.of(p, y, bins) + ClassWise.of(q, z, bins)
    same(parts, both, ("count", "members", "probability", "rows"))
    assert parts.ece == both.ece


@given(a=st.lists(DYADIC), b=st.lists(DYADIC, min_size=1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_means_of_two_parts_add_up_to_that_of_both(a, b):
    assert Mean.of(a) + Mean.of(b) == Mean.of(a + b)
    assert (Mean.of(a) + Mean.of(b)).value == Mean.of(a + b).value


def test_states_of_different_shapes_do_not_add():
    with pytest.raises(InputError, match="3 bins to 4 bins"):
        Reliability.of([0.5], [True], 3) + Reliability.of([0.5], [True], 4)
    with pytest.raises(InputError, match=r"\(2, 15\) and \(3, 15\)"):
        ClassWise.of([[0.5, 0.5]], [0]) + ClassWise.of([[0.5, 0.5, 0.0]], [0])


@pytest.mark.parametrize("name", [*BINNED, "brier", "aurc"])
def test_no_rows_have_no_value(name):
    with pytest.raises(InputError, match="no rows"):
        getattr(metrics, name)([], [])


@pytest.mark.parametrize("name", TABLE)
def test_a_table_of_no_rows_has_no_value(name):
    with pytest.raises(InputError, match="no rows"):
        getattr(metrics, name)(np.empty((0, 3)), [])


@pytest.mark.parametrize("name", ["accuracy", "mean_confidence"])
def test_the_mean_of_no_rows_has_no_value(name):
    with pytest.raises(InputError, match="no rows"):
        getattr(metrics, name)([])


@pytest.mark.parametrize("name", [*BINNED, "brier", "aurc"])
@pytest.mark.parametrize("wrong", [math.nan, -1e-9, 1.0000001, math.inf])
def test_a_confidence_that_is_no_probability_is_named_by_its_row(name, wrong):
    with pytest.raises(InputError, match=f"confidence of row 2 is {wrong}"):
        getattr(metrics, name)([0.5, 1.0, wrong, wrong], [True] * 4)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_a_probability_that_is_none_is_named_by_its_row(name, wrong):
    with pytest.raises(InputError, match="row 1"):
        getattr(metrics, name)([[0.5, 0.5], [wrong, 0.5]], [0, 1])


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_a_probability_that_is_none_is_refused(name, wrong):
    with pytest.raises(InputError, match=r"in \[0, 1\]"):
        getattr(metrics, name)([[0.5, 0.5], [wrong, 0.5]], [0, 1])


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("label", [2, -1, 0.5])
def test_a_label_that_is_no_class_is_refused(name, label):
    with pytest.raises(InputError, match="whole numbers from 0 to 1"):
        getattr(metrics, name)([[0.5, 0.5], [0.5, 0.5]], [0, label])


@pytest.mark.parametrize("name", TABLE)
def test_a_label_that_is_no_number_is_refused(name):
    with pytest.raises(InputError, match="whole numbers from 0 to 1"):
        getattr(metrics, name)([[0.5, 0.5], [0.5, 0.5]], [0, math.nan])


@pytest.mark.parametrize("wrong", [2, 0.5, math.nan, -1])
def test_correct_is_true_or_false(wrong):
    with pytest.raises(InputError, match="true or false"):
        metrics.ece([0.5, 0.5], [1, wrong])


@pytest.mark.parametrize("wrong", [2, 0.5, math.nan, -1])
def test_accuracy_too_wants_true_or_false(wrong):
    with pytest.raises(InputError, match="true or false"):
        metrics.accuracy([1, wrong])


@pytest.mark.parametrize("name", [*BINNED, "brier", "aurc"])
def test_confidences_and_correct_of_different_lengths_are_refused(name):
    with pytest.raises(InputError, match=r"\(2,\) but correct has \(3,\)"):
        getattr(metrics, name)([0.5, 0.5], [True] * 3)


@pytest.mark.parametrize("name", TABLE)
def test_probabilities_and_labels_of_different_lengths_are_refused(name):
    with pytest.raises(InputError, match=r"\(1, 2\) but labels have \(3,\)"):
        getattr(metrics, name)([[0.5, 0.5]], [0, 0, 1])


@pytest.mark.parametrize("bins", [0, -1, 1001, 15.0, True, None])
@pytest.mark.parametrize("name", BINNED)
def test_bins_are_a_whole_number_up_to_a_thousand(name, bins):
    with pytest.raises(InputError, match="from 1 to 1,000"):
        getattr(metrics, name)([0.5], [True], bins)


def test_bins_may_be_a_narrow_numpy_integer():
    p, y = [[0.005] * 200], [0]
    assert metrics.classwise_ece(p, y, np.int8(100)) == metrics.classwise_ece(p, y, 100)


def test_a_label_of_probability_zero_has_infinite_log_loss():
    assert metrics.nll([[0.0, 1.0], [0.5, 0.5]], [0, 0]) == math.inf


# Peers. Random continuous confidences lie on no bin edge and below 1, where their rules differ
# from ours and from each other: relplot puts a confidence of exactly 1 in a bin beyond the last
# one, uncertainty-calibration puts an edge in the bin below.


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_agrees_with_relplot(bins):
    relplot = pytest.importorskip("relplot")
    c, y = some_rows()
    assert metrics.ece(c, y, bins) == pytest.approx(relplot.metrics.binnedECE(c, y, bins), **CLOSE)


@pytest.fixture
def peer():
    return pytest.importorskip("calibration")


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_agrees_with_uncertainty_calibration(peer, bins):
    c, y = some_rows()
    expected = peer.get_ece(c, y.astype(int), num_bins=bins)
    assert metrics.ece(c, y, bins) == pytest.approx(expected, **CLOSE)


def test_top_label_and_class_wise_ece_agree_with_uncertainty_calibration(peer):
    p, y = some_table()
    top = metrics.ece(p.max(axis=1), p.argmax(axis=1) == y)
    assert top == pytest.approx(peer.get_ece(p, y), **CLOSE)
    expected = peer.get_ece(p, y, mode="marginal")
    assert metrics.classwise_ece(p, y) == pytest.approx(expected, **CLOSE)


def test_equal_mass_ece_agrees_with_uncertainty_calibration(peer):
    # 600 rows in 15 bins: where the bins do not divide the rows, it puts the odd rows in the
    # first bins and we spread them.
    c, y = some_rows(600)
    expected = peer.get_ece_em(c, y.astype(int), num_bins=15)
    assert metrics.equal_mass_ece(c, y, 15) == pytest.approx(expected, **CLOSE)


def test_debiased_rms_agrees_with_uncertainty_calibration(peer):
    # Every bin has many rows; a bin with one it counts as without error, we as it stands.
    c, y = some_rows()
    expected = peer.lower_bound_scaling_ce(
        c, y.astype(int), p=2, debias=True, num_bins=15, binning_scheme=peer.get_equal_prob_bins
    )
    assert metrics.debiased_rms(c, y, 15) == pytest.approx(expected, **CLOSE)


def test_debiased_ece_is_the_limit_of_uncertainty_calibrations_resampling(peer):
    c, y = some_rows(power=1)
    data = list(zip(c, y.astype(float), strict=True))
    binned = peer.bin(data, peer.get_equal_prob_bins(c, 15))
    resamples = 20_000
    np.random.seed(0)  # noqa: NPY002  the generator it draws from
    expected = peer.normal_debiased_ce(binned, resamples=resamples)
    # Σ share·|accuracy redrawn − confidence| has a standard deviation of at most ½/√n.
    error = 0.5 / math.sqrt(len(c)) / math.sqrt(resamples)
    assert metrics.debiased_ece(c, y, 15) == pytest.approx(expected, rel=0, abs=5 * error)
    assert metrics.ece(c, y, 15) - expected > 50 * error  # so the bias itself is in sight


def test_brier_scores_agree_with_uncertainty_calibration(peer):
    p, y = some_table()
    c, correct = p.max(axis=1), p.argmax(axis=1) == y
    assert metrics.brier(c, correct) == pytest.approx(peer.eval_top_mse(c, p, y), **CLOSE)
    # It halves the sum over classes.
    expected = 2 * peer.eval_marginal_mse(p, p, y)
    assert metrics.brier_multiclass(p, y) == pytest.approx(expected, **CLOSE)


def test_brier_score_and_log_loss_agree_with_scikit_learn():
    c, y = some_rows()
    assert metrics.brier(c, y) == pytest.approx(brier_score_loss(y, c), **CLOSE)
    p, labels = some_table()
    assert metrics.nll(p, labels) == pytest.approx(log_loss(labels, p), **CLOSE)
