"""A method answered by arithmetic: the sums and the noise that real sources would give."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

import privcal
from privcal.calibration import methods
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, Method, Rounds
from privcal.calibration.sketch import SketchReader
from privcal.planning.simulate.answers import average_noise, exactly, prior_map, run
from privcal.planning.simulate.variants import ONE_SOURCE, epsilon_share, noise_law, pays_from
from privcal.secure.round import NoiseLaw
from privcal.secure.shares import add_noise_share
from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import InputError
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import GRID, CellHistogram, Nll
from privcal.trusted.scores import FloatArray
from tests.support.builders import a_source, random_scores


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


UNIT = Ask(CellHistogram(1), NANO)
"""A question of sensitivity 1 at ε = 1."""


def drawn(sources: int, noise: NoiseLaw, n: int, ask: Ask = UNIT) -> FloatArray:
    """The noise in n averages, in multiples of Δ/ε, times the number of sources."""
    made = average_noise(np.random.default_rng(3), sources, ask, (n,), noise)
    return made * sources / (ask.query.bound / GRID * NANO / ask.nano_epsilon)


def far_from(
    noise: FloatArray, sources: int, honest: float, alone: float, rows: float = 1.0
) -> float:
    """By how many standard errors its characteristic function is off that of a sum of so many
    shares and floors: of `sources` hats of Laplace's, 1/(1 + u²), to the power of 1/honest each."""
    worst = 0.0
    for u in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0):
        v = u * rows
        expected = (1 + v**2) ** (-sources / honest) * (1 + (v / alone) ** 2) ** -sources
        seen = np.cos(u * noise)
        worst = max(worst, abs(seen.mean() - expected) / (seen.std() / math.sqrt(len(seen))))
    return worst


@pytest.mark.parametrize(("sources", "honest"), [(3, 2), (20, 14), (50, 35), (87, 61)])
def test_the_noise_of_a_secure_sum_is_that_of_its_shares_and_floors(
    sources: int, honest: int
) -> None:
    law = noise_law("secure", sources)
    assert law.honest == honest
    noise = drawn(sources, law, 200_000)
    assert far_from(noise, sources, honest, 10) < 5
    # A tenth more or fewer honest sources, or another floor, would be another law.
    assert far_from(noise, sources, 1.1 * honest, 10) > 5
    assert far_from(noise, sources, honest / 1.1, 10) > 5
    assert far_from(noise, sources, honest, 6) > 5
    assert noise.var() == pytest.approx(law.variance(NANO, sources) * sources**2, rel=0.03)


def test_the_noise_has_the_law_of_real_shares_summed() -> None:
    """On a grid of 2⁻¹⁰, which is quicker to draw on than the real one, and fine enough."""
    sources, honest, alone, grid, n = 6, 4, 3, 1 << 10, 2_500
    shares = add_noise_share(np.zeros(sources * n, np.int64), grid, NANO, honest, alone)
    real = np.reshape(np.array(shares, np.float64), (n, sources)).sum(axis=1) / grid
    simulated = drawn(sources, NoiseLaw(honest=honest, alone=alone), 200_000)
    for noise in (real, simulated):
        assert far_from(noise, sources, honest, alone) < 5
        assert far_from(noise, sources, 2 * honest, alone) > 5


def test_all_honest_shares_together_are_one_laplace_variable() -> None:
    noise = drawn(12, NoiseLaw(honest=12, alone=1000), 100_000)
    assert stats.kstest(noise, stats.laplace.cdf).pvalue > 1e-6
    assert stats.kstest(1.05 * noise, stats.laplace.cdf).pvalue < 1e-6


def test_noise_of_several_rows_a_person_is_so_many_times_as_large() -> None:
    law = NoiseLaw(3, honest=4, alone=10)
    ask = Ask(Nll(), NANO // 3)
    assert far_from(drawn(6, law, 100_000, ask), 6, 4, 10, rows=3) < 5
    assert far_from(drawn(6, law, 100_000, ask), 6, 4, 10) > 5


def test_groups_are_not_simulated() -> None:
    """Only sums over all sources are there."""
    with pytest.raises(InputError, match="not in groups"):
        drawn(60, NoiseLaw(honest=40, alone=10, groups=3), 2)


def test_a_method_is_told_the_law_of_the_noise() -> None:
    told = []

    class Listens(Method):
        def run(self, batch: Batch) -> Rounds:
            history = yield [Ask(CellHistogram(1), batch.nano_epsilon)]
            told.extend([batch.noise, history.noise])
            return [TemperatureMap(1.0)] * batch.runs

    law = noise_law("secure", 20)
    for noise in (law, None):
        run(Listens(), _Nothing(), 20, 1.0, np.random.default_rng(0), noise)
    assert told == [law, law, NoiseLaw(), NoiseLaw()]


class _Nothing:
    """Sources without rows."""

    trials = 2

    def sums(self, ask: Ask) -> FloatArray:
        return np.zeros((self.trials, ask.query.length))


def test_the_share_of_epsilon_is_that_of_equal_noise() -> None:
    for sources in (3, 8, 50, 300):
        law, share = noise_law("secure", sources), epsilon_share(sources)
        with_less = law.variance(round(share * NANO), sources)
        assert with_less == pytest.approx(NoiseLaw().variance(NANO, sources), rel=1e-6)


def test_secure_sums_take_less_than_half_from_eight_sources_on() -> None:
    assert pays_from() == 8
    assert epsilon_share(7) > 0.5
    assert all(epsilon_share(n) < 0.5 for n in range(8, 1000))


def test_two_sources_have_no_secure_sum() -> None:
    with pytest.raises(InputError, match="at least 3 sources"):
        noise_law("secure", 2)
    assert noise_law("each", 1) == NoiseLaw()


@pytest.mark.parametrize("name", [n for n in methods.names() if n != ONE_SOURCE])
def test_exactly_is_what_one_source_without_noise_gives(name: str) -> None:
    """An ε of a million is next to no noise; a map is then off by next to nothing."""
    scores = random_scores(2000, seed=4)
    source = a_source(scores, epsilon=1e6)
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
