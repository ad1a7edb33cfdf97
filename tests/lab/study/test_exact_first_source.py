"""One source by ECE is what the real method gives on a real source that adds no noise."""

from __future__ import annotations

import numpy as np
import pytest

import privcal
from privcal.lab.study.exact import ECE_T, search_first_source
from privcal.planning.simulate.splits import Splits
from tests.support.builders import a_source, random_scores


def alike() -> Splits:
    return Splits.alike(random_scores(400, seed=3), [60, 120], 25, np.random.SeedSequence(5))


def unlike() -> Splits:
    scores = random_scores(400, seed=3)
    return Splits.unlike(scores, scores.labels, 6, 10, 1.0, 25, np.random.SeedSequence(5))


@pytest.mark.parametrize("kind", ["alike", "unlike"])
@pytest.mark.parametrize("samples", [3, 10])
@pytest.mark.usefixtures("no_noise")
def test_it_is_bit_for_bit_the_calibration_of_one_real_source_without_noise(
    kind: str, samples: int
) -> None:
    splits = alike() if kind == "alike" else unlike()
    found = search_first_source(splits, samples)
    sizes = [samples] * splits.trials if splits.first is None else splits.first.tolist()
    for trial, size in enumerate(sizes):
        rows = splits.scores.take(splits.order[trial, :size])
        source = a_source(rows, epsilon=1.0)
        assert privcal.calibrate([source], ECE_T, 1.0).map.temperature == found[trial].temperature
    assert len({map.temperature for map in found}) > 3


def test_it_has_the_papers_options_whatever_those_of_a_calibration_are() -> None:
    assert (ECE_T.iterations, ECE_T.bounds, ECE_T.bins) == (5, (0.5, 3.0), 15)
    assert ECE_T.search == "golden"


def test_other_rows_than_the_first_sources_play_no_part() -> None:
    splits = alike()
    before = search_first_source(splits, 10)
    splits.order[:, 10:] = splits.order[:, 10:][:, ::-1]
    assert search_first_source(splits, 10) == before
    assert search_first_source(splits, 11) != before
