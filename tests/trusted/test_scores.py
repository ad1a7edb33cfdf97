"""Scores in memory: the predicted class, margins, and sums that no other row plays a part in."""

import math

import numpy as np
import pytest

from privcal.data.scores import Outputs, Scores
from privcal.trusted import scores as scores_module

LOGITS = [[1.0, 2.0, 0.0], [0.0, 5.0, 5.0]]


def test_the_predicted_class_is_the_most_likely_and_of_equal_ones_the_first():
    scores = Scores(logits=LOGITS, labels=[1, 2])
    assert scores.outputs.predicted.tolist() == [1, 1]
    assert scores.correct.tolist() == [True, False]
    assert scores.label_margin.tolist() == [0.0, 0.0]


def test_the_label_margin_is_the_labels_logit_minus_the_top_one():
    scores = Scores(logits=[[1.0, 3.5]], labels=[0])
    assert scores.label_margin.tolist() == [-2.5]
    scores = Scores(probabilities=[[0.2, 0.8]], labels=[0])
    assert scores.label_margin.tolist() == [pytest.approx(math.log(0.25), rel=1e-15)]


@pytest.mark.parametrize(
    "given_as",
    [
        {"logits": np.log([[0.2, 0.8]])},
        {"probabilities": [[0.2, 0.8]]},
        {"probabilities": [0.8]},
    ],
)
def test_shifted_rows_are_each_class_relative_to_the_top_one(given_as):
    out = np.empty((1, 2))
    Outputs(**given_as).shifted(slice(0, 1), out)
    assert out.tolist() == [[pytest.approx(math.log(0.25), rel=1e-15), 0.0]]


@pytest.mark.parametrize("column", [[0.25, 0.5, 0.75, 1.0], [[0.25], [0.5], [0.75], [1.0]]])
def test_one_column_of_probabilities_is_that_of_class_one_of_two(column):
    scores = Scores(probabilities=column, labels=[0, 0, 1, 0])
    assert scores.classes == 2
    assert scores.outputs.predicted.tolist() == [0, 0, 1, 1]
    assert scores.correct.tolist() == [True, True, True, False]


def test_one_column_of_logits_is_one_class():
    assert Scores(logits=[[3.0], [4.0]], labels=[0, 0]).classes == 1


@pytest.mark.parametrize("columns", [2, 129, 4097, 8193, 20_000])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_sum_of_a_row_is_its_own_to_the_last_bit(columns, dtype, order):
    """Also where NumPy adds up a lone row in another order than several."""
    rng = np.random.default_rng(columns)
    table = rng.dirichlet(np.ones(columns), 19).astype(dtype)
    whole = scores_module.sums(np.asarray(table, order=order))
    for rows in (slice(0, 1), slice(18, 19), slice(3, 5), slice(0, 18), slice(None, None, 2)):
        for part in (table[rows], np.asfortranarray(table)[rows], table[rows].copy()):
            assert scores_module.sums(part).tolist() == whole[rows].tolist()
    assert whole == pytest.approx(table.sum(axis=1, dtype=np.float64), rel=1e-12)


def test_the_sum_decides_alike_in_whatever_block_a_row_is(monkeypatch):
    """Rows at the very edge of the tolerance, whose last bit decides."""
    columns = 10_000
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(columns), 40)
    most = 1 + Outputs(probabilities=table[:1]).tolerance
    for _ in range(30):  # bring the sums there, a bit at a time
        off = table.sum(axis=1) - most
        table[:, 0] -= off
    table[:, 0] += rng.integers(-3, 4, 40) * 2.0**-53
    table = np.abs(table)
    alone = [bool(Outputs(probabilities=row[None], strict=False).valid[0]) for row in table]
    assert 0 < sum(alone) < 40
    for block in (1, 2 * columns, 39 * columns, 1 << 17, 1 << 20):
        monkeypatch.setattr(scores_module, "BLOCK", block)
        for order in ("C", "F"):
            given = np.asarray(table, order=order)
            assert Outputs(probabilities=given, strict=False).valid.tolist() == alone


def test_a_malformed_label_is_no_place_to_look_at() -> None:
    """However it got here: a row that does not count must not stop an answer, which would tell of it."""
    outputs = scores_module.Outputs("logits", np.array(LOGITS))
    scores = scores_module.Scores(outputs, np.array([1, 99]), np.array([True, False]))
    assert scores.labels.tolist() == [1, 0]
    assert np.isfinite(scores.label_margin).all()
