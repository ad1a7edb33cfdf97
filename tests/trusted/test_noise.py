"""The noise has exactly the law it should have."""

from __future__ import annotations

import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import privcal
from privcal.trusted import noise as mechanism
from privcal.trusted.epsilon import NANO, split, to_nano
from privcal.trusted.noise import add_noise, noise_scale
from privcal.trusted.queries import (
    GRID,
    BinnedGap,
    CellHistogram,
    ClassHats,
    EventHats,
    Gap,
    Hats,
    Histogram,
    Nll,
    OffsetHats,
    Query,
)
from privcal.trusted.question import Question
from tests.support.builders import a_source, random_scores

# Chance of a false alarm of one test, and the error in the scale that must not escape.
ALARM = 1e-7
WRONG = 1.05


def draw(n: int, sensitivity: int, nano: int) -> np.ndarray:
    return np.array(add_noise(np.zeros(n, np.int64), sensitivity, nano))


def fit_of_discrete_laplace(noise: np.ndarray, scale: float) -> float:
    """p-value of a chi-square test of P[Z = z] ∝ exp(−|z|/scale), over some 40 cells."""
    edges = np.unique(np.round(stats.laplace.ppf(np.linspace(0.0125, 0.9875, 40), scale=scale)))
    cells = [-np.inf, *(edges + 0.5), np.inf]
    observed, _ = np.histogram(noise, cells)

    def below(z: np.ndarray) -> np.ndarray:
        p = np.exp(-1 / scale)
        return np.where(z < 0, p ** (-z) / (1 + p), 1 - p ** (z + 1) / (1 + p))

    expected = np.diff([0.0, *below(edges), 1.0]) * len(noise)
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize(
    ("sensitivity", "epsilon"),
    [(1, 0.05), (1, 0.4), (3, 1.0), (GRID, 0.166666667), (10 * GRID, 2.0)],
)
@pytest.mark.slow
def test_100000_draws_follow_the_discrete_laplace_law(sensitivity: int, epsilon: float) -> None:
    noise = draw(100_000, sensitivity, to_nano(epsilon))
    scale = sensitivity / epsilon
    assert fit_of_discrete_laplace(noise, scale) > ALARM
    # The same draws would give away a scale 5 % too small or too large.
    assert fit_of_discrete_laplace(noise, scale * WRONG) < ALARM
    assert fit_of_discrete_laplace(noise, scale / WRONG) < ALARM


QUERIES = [
    Gap(2.0),
    Nll(2.0),
    Nll(2.0, clip=3.7),
    BinnedGap(2.0, 30),
    Histogram(15),
    CellHistogram(15),
    Hats(2.0),
    EventHats(2.0),
    ClassHats(2.0),
    OffsetHats(2.0),
]


@pytest.mark.parametrize("rows_per_person", [None, 1, 3])
@pytest.mark.parametrize("query", QUERIES, ids=repr)
@pytest.mark.parametrize("shrinkages", [0, 1, 5, 10])
def test_a_source_hands_its_own_sensitivity_and_the_epsilon_charged_to_the_mechanism(
    query: Query, shrinkages: int, rows_per_person: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    real = mechanism.add_noise
    monkeypatch.setattr(
        "privcal.trusted.source.add_noise",
        lambda total, sensitivity, nano: (
            seen.append((sensitivity, nano)) or real(total, sensitivity, nano)
        ),
    )
    person = None if rows_per_person is None else [f"p{i % 4}" for i in range(10)]
    policy = privcal.Policy(epsilon=1.0, rows_per_person=rows_per_person or 1)
    source = privcal.Source(random_scores(10, person=person), policy, ledger=None)
    shares = split(NANO, shrinkages + 1)
    for place, nano in enumerate(shares):
        source.answer(Question("r", 0, place, nano, query))
    unit = query.sensitivity * (rows_per_person or 1)
    assert seen == [
        (int(np.ceil(query.sensitivity * GRID)) * (rows_per_person or 1), n) for n in shares
    ]
    assert source.ledger.nano_spent == NANO
    # ... and for these two numbers the mechanism's scale is what the Laplace mechanism says.
    assert noise_scale(*seen[-1]) == pytest.approx(unit * GRID * NANO / shares[-1], rel=1e-6)


@pytest.mark.parametrize(
    "query", [BinnedGap(2.0, 1000), Histogram(1000), CellHistogram(1000)], ids=repr
)
@pytest.mark.parametrize("shrinkages", [0, 5])
@pytest.mark.slow
def test_the_noise_in_answers_has_the_right_scale(query: Query, shrinkages: int) -> None:
    # An empty source answers with pure noise.
    source = a_source(0, epsilon=1000)
    epsilon = to_nano(1) // (shrinkages + 1)
    noise = np.concatenate(
        [source.answer(Question("r", 0, i, epsilon, query)).values for i in range(30)]
    )
    scale = query.sensitivity * NANO / epsilon
    test = stats.kstest(noise, stats.laplace(scale=scale).cdf)
    assert test.pvalue > ALARM
    # |noise| is exponential: its mean tells a scale wrong by 5 % at five standard errors or more.
    error = abs(np.abs(noise).mean() / scale - 1) * np.sqrt(len(noise))
    assert error < 5 < (WRONG - 1) * np.sqrt(len(noise))


def test_cells_get_independent_noise() -> None:
    noise = np.array([draw(15, GRID, NANO) for _ in range(4000)])
    off_diagonal = np.corrcoef(noise.T)[np.triu_indices(15, 1)]
    assert np.abs(off_diagonal).max() < 6 / np.sqrt(len(noise))
    sizes = np.corrcoef(np.abs(noise).T)[np.triu_indices(15, 1)]
    assert np.abs(sizes).max() < 6 / np.sqrt(len(noise))
    # And one answer's noise says nothing about the next.
    assert abs(np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]) < 6 / np.sqrt(noise.size)


@pytest.mark.parametrize(
    "nano", [1, 7, 166_666_666, 166_666_667, 333_333_333, NANO, 3 * NANO, 10**15]
)
@pytest.mark.parametrize("sensitivity", [1, GRID, 10 * GRID, 3 * GRID + 1, 1000 * 1000 * GRID])
def test_the_mechanism_never_certifies_more_than_was_charged(sensitivity: int, nano: int) -> None:
    scale = noise_scale(sensitivity, nano)
    assert Fraction(mechanism._measurement(scale).map(sensitivity)) <= Fraction(nano, NANO)
    assert scale == pytest.approx(sensitivity * NANO / nano, rel=1e-9)  # nudged, not padded


def test_sums_beyond_32_bits_come_through() -> None:
    total = np.array([2**40, -(2**50), 2**61])
    noisy = np.array(add_noise(total, 1, 50 * NANO))
    assert np.abs(noisy - total).max() < 100


def _draws(_: int) -> list[int]:
    return add_noise(np.zeros(20, np.int64), 2**40, NANO)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_processes_never_share_a_random_stream(start: str) -> None:
    _draws(0)  # a forked child inherits whatever state there is by now
    with multiprocessing.get_context(start).Pool(4) as pool:
        drawn = [*pool.map(_draws, range(8), chunksize=2), _draws(0)]
    flat = [value for one in drawn for value in one]
    # At this scale two equal values in 180 have a chance of about 1e-8.
    assert len(set(flat)) == len(flat)
