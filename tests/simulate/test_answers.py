"""A method answered by arithmetic: the sums and the noise that real sources would give."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

import privcal
from privcal import methods
from privcal.maps import Map
from privcal.methods.base import Ask
from privcal.privacy.epsilon import NANO
from privcal.privacy.mechanism import add_noise
from privcal.queries import GRID, Nll
from privcal.simulate.answers import average_noise, exactly, noises, prior_map
from privcal.simulate.variants import ONE_SOURCE
from privcal.sketch import SketchReader
from privcal.source import Source
from tests.conftest import random_scores


def test_the_noise_has_the_law_of_real_sources_noise_averaged() -> None:
    sources, nano, n = 5, NANO // 3, 15_000
    noise = add_noise(np.zeros(sources * n, np.int64), Nll().bound, nano)
    real = np.reshape(noise, (n, sources)).mean(axis=1) / GRID
    drawn = average_noise(np.random.default_rng(1), sources, Ask(Nll(), nano), (n, 1))[:, 0]
    assert stats.ks_2samp(real, drawn).pvalue > 1e-6
    # Kurtosis 3 + 3/5: the two deviations agree to 5 standard errors, which is below 5 %.
    error = 5 * math.sqrt(2 * 2.6 / (4 * n))
    assert abs(math.log(real.std() / drawn.std())) < error < math.log(1.05)
    assert drawn.std() == pytest.approx(math.sqrt(2 / sources) * 30, rel=error)


def test_every_source_adds_its_own_noise() -> None:
    assert noises(7) == 7


@pytest.mark.parametrize("name", [n for n in methods.names() if n != ONE_SOURCE])
def test_exactly_is_what_one_source_without_noise_gives(name: str) -> None:
    """An ε of a million is next to no noise; a map is then off by next to nothing."""
    scores = random_scores(2000, seed=4)
    source = Source(scores, privcal.Policy(epsilon=1e6), ledger=None)
    real, found = privcal.calibrate([source], name, 1e6).map, exactly(methods.make(name), scores)
    assert type(found) is type(real)
    assert found.confidence(scores) == pytest.approx(real.confidence(scores), abs=1e-4)


def test_a_prior_is_the_map_of_a_sketch_that_was_told_nothing() -> None:
    def of(reading: SketchReader) -> Sequence[Map]:
        return reading.maps(reading.read(np.zeros((1, reading.query.length)), 1, 1.0))

    public = random_scores(300, seed=2)
    assert prior_map() == of(SketchReader.of())[0]
    assert prior_map(public) == of(SketchReader.of(public))[0]
    assert prior_map(public) != prior_map()
