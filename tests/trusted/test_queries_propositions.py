"""What the paper proves about its objectives, what clipping and bins do to that, and two claims refuted."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privcal.calibration.kernel import FAST
from privcal.data.scores import Scores
from privcal.trusted.kernel import bin_index
from privcal.trusted.queries import GRID, BinnedGap, Gap, Nll
from tests.support import reference

Floats = npt.NDArray[np.float64]

ALL = np.geomspace(0.05, 20, 90)
SEARCHED = np.linspace(0.5, 3, 101)
"""The paper's range."""


def hill(values: Floats) -> float:
    """How high the highest hill between two valleys is; a unimodal function has none.

    The middle one of any three points may be no higher than the higher of the other two.
    """
    before = np.minimum.accumulate(values)[:-2]
    after = np.minimum.accumulate(values[::-1])[::-1][2:]
    return float((values[1:-1] - np.maximum(before, after)).max())


def test_a_hill_is_seen_and_a_valley_is_none() -> None:
    x = np.linspace(-2, 2, 41)
    assert hill(x**2) <= 0
    assert hill(x) <= 0
    assert hill(np.zeros(5)) == 0
    assert hill((x**2 - 1) ** 2) == pytest.approx(1)
    assert hill(np.array([3.0, 1, 2, 1.5, 4])) == 0.5


@st.composite
def samples(draw: st.DrawFn) -> Scores:
    rows, classes = draw(st.integers(1, 12)), draw(st.integers(2, 5))
    size = draw(st.sampled_from([0.125, 3.0, 30.0]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    logit = st.floats(-size, size, width=32)
    logits = draw(hnp.arrays(np.float32, (rows, classes), elements=logit)).astype(dtype)
    return Scores(logits=logits, labels=draw(hnp.arrays(int, rows, elements=st.integers(0, 1))))


def reference_nll(logits: list[float], label: int, t: float) -> float:
    top = max(logits)
    return math.log(math.fsum(math.exp((z - top) / t) for z in logits)) - (logits[label] - top) / t


def rounding(scores: Scores, values: Floats) -> float:
    """What rounding may add to a sum over rows, in the kernel's own precision."""
    unit = np.finfo(scores.outputs.dtype).eps
    return 30 * float(unit) * (len(scores) + float(np.abs(values).max()))


@given(samples())
@settings(deadline=None, max_examples=60)
def test_proposition_1_the_log_likelihood_is_unimodal_in_t(scores: Scores) -> None:
    logits, labels = scores.outputs.array.tolist(), scores.labels.tolist()
    slowly = np.array(
        [
            math.fsum(reference_nll(z, y, t) for z, y in zip(logits, labels, strict=True))
            for t in ALL[::3]
        ]
    )
    assert hill(slowly) <= 1e-12 * (1 + slowly.max())
    kernels = np.array([FAST.nll(scores, t).sum() for t in ALL])
    assert kernels[::3] == pytest.approx(slowly, rel=1e-5, abs=1e-5 * len(scores))
    assert hill(kernels) <= rounding(scores, kernels)


@given(samples())
@settings(deadline=None, max_examples=60)
def test_proposition_2_the_gap_of_accuracy_and_confidence_is_unimodal_in_t(scores: Scores) -> None:
    logits, correct = scores.outputs.array.tolist(), scores.correct.tolist()
    gaps = np.array(
        [
            math.fsum(
                y - reference.confidence_at(z, t) for z, y in zip(logits, correct, strict=True)
            )
            for t in ALL[::3]
        ]
    )
    assert (
        np.diff(gaps) >= -1e-12 * len(scores)
    ).all()  # it rises, where the paper's proof has it fall
    assert hill(np.abs(gaps)) <= 1e-12 * len(scores)
    kernels = np.array([(scores.correct - FAST.confidence(scores.outputs, t)).sum() for t in ALL])
    assert kernels[::3] == pytest.approx(gaps, abs=1e-5 * len(scores))
    assert hill(np.abs(kernels)) <= rounding(scores, kernels)


@given(samples())
@settings(deadline=None, max_examples=40)
def test_what_acc_t_asks_sources_is_unimodal_but_for_the_grid(scores: Scores) -> None:
    asked = np.array([_exact(Gap(t), scores)[0] for t in SEARCHED[::4]])
    assert hill(np.abs(asked)) <= 2 * len(scores)  # in grid points: one for each row, either way


def _exact(query: Gap | Nll | BinnedGap, scores: Scores) -> npt.NDArray[np.int64]:
    return query.contributions(scores).sum(query.length)


# --- what the propositions do not cover --------------------------------------------------


def test_clipping_the_nll_can_make_two_minima_of_one() -> None:
    """Ten rows are right and want a low T; one is wrong by so much that it is clipped below T = 1.5."""
    logits = np.array([[2.0, 0.0]] * 10 + [[15.0, 0.0]])
    scores = Scores(logits=logits, labels=[0] * 10 + [1])
    clipped, whole = (
        np.array([np.clip(FAST.nll(scores, t), 0, clip).sum() for t in SEARCHED])
        for clip in (10, math.inf)
    )
    assert hill(whole) <= 0
    assert hill(clipped) > 0.5
    asked = np.array([_exact(Nll(t, 10.0), scores)[0] for t in SEARCHED]) / GRID
    assert asked == pytest.approx(clipped, abs=1e-4)


def wrong_and_sure(seed: int) -> Scores:
    """A random sample of an overconfident network, as under a severe shift."""
    rng = np.random.default_rng(seed)
    rows, classes = int(rng.integers(10, 60)), int(rng.integers(2, 11))
    logits = rng.normal(0, rng.uniform(1, 5), (rows, classes))
    noisy = logits / rng.uniform(1, 5) + rng.gumbel(size=logits.shape)
    return Scores(logits=logits, labels=noisy.argmax(axis=1))


def share_with_a_hill(seen: int, objective: str, clip: float = 10.0) -> float:
    count = 0
    for seed in range(seen):
        scores = wrong_and_sure(seed)
        if objective == "ece":
            sums = [np.abs(_exact(BinnedGap(t, 15), scores)).sum() / GRID for t in SEARCHED]
        else:
            sums = [np.clip(FAST.nll(scores, t), 0, clip).sum() for t in SEARCHED]
        count += hill(np.array(sums)) > 1e-3
    return count / seen


def test_at_the_papers_clip_two_minima_are_rare_and_at_a_lower_one_less_so() -> None:
    unclipped, ten, four = (share_with_a_hill(150, "nll", clip) for clip in (math.inf, 10.0, 4.0))
    assert unclipped == 0
    assert ten < 0.05
    assert four > max(ten, 0.05)


def test_the_ece_objective_is_hardly_ever_unimodal() -> None:
    assert share_with_a_hill(60, "ece") > 0.9


def test_bins_of_equal_numbers_of_rows_do_not_ensure_unimodality() -> None:
    """Two bins of 24 rows, whose order no temperature changes: 17 are right in one, 22 in the other."""
    margin = np.repeat([0.5, 6.0], 24)
    correct = np.concatenate([np.arange(24) < 17, np.arange(24) < 22])
    values = []
    for t in SEARCHED:
        confidence = 1 / (1 + np.exp(-margin / t))
        assert (np.diff(confidence) >= 0).all()
        gaps = (correct - confidence).reshape(2, 24).sum(axis=1)
        values.append(np.abs(gaps).sum())
    assert hill(np.array(values)) > 0.1


def test_acc_ts_sensitivity_is_no_smaller_than_ece_ts() -> None:
    assert Gap().sensitivity == BinnedGap(bins=15).sensitivity == 1
    assert Nll().sensitivity == 10


def test_rows_that_change_bin_are_what_makes_the_ece_jump() -> None:
    scores = wrong_and_sure(3)
    bins = np.array([bin_index(FAST.confidence(scores.outputs, t), 15) for t in SEARCHED])
    sums = np.array([np.abs(_exact(BinnedGap(t, 15), scores)).sum() / GRID for t in SEARCHED])
    stayed = (np.diff(bins, axis=0) == 0).all(axis=1)
    assert np.abs(np.diff(sums))[stayed].max() < np.abs(np.diff(sums))[~stayed].max()
