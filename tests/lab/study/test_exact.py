"""The exact fits of a shift tell their temperatures, and how large the NLL gets."""

from __future__ import annotations

import numpy as np
import pytest

import privcal
from privcal.lab.study.exact import EXACT, HALVES, exact_fits
from tests.support import reference
from tests.support.builders import random_scores


def test_each_fit_has_the_mean_of_its_halves_temperatures_and_their_error() -> None:
    scores = random_scores(301, seed=1)
    rows = {row["method"]: row for row in exact_fits(scores, np.random.default_rng(4))}
    rng = np.random.default_rng(4)
    halves = [np.array_split(rng.permutation(301), 2)[0] for _ in range(HALVES)]
    for name, objective in EXACT.items():
        found = [
            1.0
            if objective is None
            else privcal.fit_temperature(scores.take(np.sort(half)), objective).temperature
            for half in halves
        ]
        assert rows[name]["temperature_mean"] == pytest.approx(np.mean(found), abs=1e-5)
        error = np.std(found, ddof=1) / np.sqrt(HALVES)
        assert rows[name]["temperature_se"] == pytest.approx(error, abs=1e-5)
        assert rows[name]["rows"] == 151


def test_the_largest_nll_is_that_of_any_row_before_recalibration() -> None:
    scores = random_scores(200, seed=2)
    logits = scores.outputs.array.tolist()
    each = [
        -np.log(reference.probabilities_at(z, 1.0)[y])
        for z, y in zip(logits, scores.labels, strict=True)
    ]
    for row in exact_fits(scores, np.random.default_rng(0)):
        assert row["largest_nll"] == pytest.approx(max(each), rel=1e-5)
