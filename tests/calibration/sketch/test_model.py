"""The model behind a sketch, against a forward model and a sampler written separately."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.calibration.kernel import FAST
from privcal.calibration.maps import LEFT_ALONE, PRIOR_ONLY
from privcal.calibration.sketch import Estimate, SketchReader, evaluate_privately, prior
from privcal.calibration.sketch import model as model_module
from privcal.calibration.sketch.evaluation import _ece, _finer
from privcal.calibration.sketch.model import (
    MAPPED,
    Averages,
    Fit,
    Mixture,
    Model,
    Posterior,
    _flat_beyond,
    rising,
)
from privcal.calibration.sketch.prior import Case
from privcal.data.scores import Scores
from privcal.secure.round import NoiseLaw
from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import InputError


def public(scale: float = 1.0, rows: int = 400, classes: int = 5, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.standard_normal((rows, classes))
    logits[np.arange(rows), labels] += 2
    return Scores(logits=1.7 * scale * logits, labels=labels)


READERS = {
    "alone": SketchReader.of(unchanged=0.25),
    "public": SketchReader.of(public()),
    "public, two hats": SketchReader.of(public(), knots=prior.COARSE_KNOTS),
    "event": SketchReader.of(event=1),
}
MODELS = {
    "alone": READERS["alone"].mixture.models[0],
    "public": READERS["public"].mixture.models[0],  # with drift
    "unchanged": READERS["public"].mixture.models[-1],  # with a base and a density of its own
    "event": READERS["event"].mixture.models[1],
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> SketchReader:
    return READERS[request.param]


def alone(model: Model) -> Mixture:
    """A mixture of this model only."""
    return Mixture(model.frame, [Case(model.prior, 1.0)])


def fit(model: Model, averages: np.ndarray, answers: int, noise_variance: float) -> Fit:
    return model.fit(Averages.of(averages, answers, noise_variance))


# --- references ------------------------------------------------------------------------------


def slowly(model: Model, z: np.ndarray, rows: float) -> tuple[list[float], list[list[float]]]:
    """The expected sketch and the covariance of one source's rows, in plain loops."""
    prior, knots = model.prior, model.frame.knots
    bends, shapes = model.bend.shape[1], model.shape.shape[1]
    density = [
        math.exp(
            model.log_density[g]
            + math.fsum(z[2 + bends + k] * model.shape[g, k] for k in range(shapes))
        )
        for g in range(len(model.grid))
    ]
    density = [d / math.fsum(density) for d in density]
    drift = 0.0
    if prior.clean is not None:
        below = prior.clean - math.fsum(d * s for d, s in zip(density, model.grid, strict=True))
        drift = math.log1p(math.exp(2 * below)) / 2
    alpha = prior.slope[0] + prior.slope_drift * math.tanh(drift) + prior.slope[1] * z[0]
    unit = prior.correlation * z[0] + math.sqrt(1 - prior.correlation**2) * z[1]
    b = prior.level[0] + prior.level_drift[0] * drift
    b += (prior.level[1] + prior.level_drift[1] * drift) * unit
    length = 2 * len(knots)
    mean = [0.0] * length
    covariance = [[0.0] * length for _ in range(length)]
    for g, s in enumerate(model.grid):
        base = s if prior.base is None else prior.base[g]
        f = math.fsum(z[2 + k] * model.bend[g, k] for k in range(bends))
        p = 1 / (1 + math.exp(-(math.exp(alpha) * base + b + f)))
        shares = [hat(s, knots, k) for k in range(len(knots))]
        for correct, weight in ((0, 1 - p), (1, p)):
            for i, share in enumerate(shares):
                mean[correct * len(knots) + i] += rows * density[g] * weight * share
                for j, other in enumerate(shares):
                    covariance[correct * len(knots) + i][correct * len(knots) + j] += (
                        rows * density[g] * weight * share * other
                    )
    return mean, covariance


def hat(s: float, knots: tuple[float, ...], k: int) -> float:
    s = min(max(s, knots[0]), knots[-1])
    if k > 0 and knots[k - 1] <= s <= knots[k]:
        return (s - knots[k - 1]) / (knots[k] - knots[k - 1])
    if k + 1 < len(knots) and knots[k] <= s <= knots[k + 1]:
        return (knots[k + 1] - s) / (knots[k + 1] - knots[k])
    return 1.0 if s == knots[k] else 0.0


def slowly_vectorised(model: Model, z: np.ndarray, rows: float) -> tuple[np.ndarray, np.ndarray]:
    """`slowly` with arrays, for the thousands of calls of a random walk."""
    prior, bends = model.prior, model.bend.shape[1]
    weights = np.exp(model.log_density + model.shape @ z[2 + bends : -1])
    density = weights / weights.sum()
    drift = 0.0
    if prior.clean is not None:
        drift = math.log1p(math.exp(2 * (prior.clean - density @ model.grid))) / 2
    alpha = prior.slope[0] + prior.slope_drift * math.tanh(drift) + prior.slope[1] * z[0]
    unit = prior.correlation * z[0] + math.sqrt(1 - prior.correlation**2) * z[1]
    b = prior.level[0] + prior.level_drift[0] * drift
    b += (prior.level[1] + prior.level_drift[1] * drift) * unit
    base = model.grid if prior.base is None else prior.base
    p = 1 / (1 + np.exp(-(math.exp(alpha) * base + b + model.bend @ z[2 : 2 + bends])))
    both = [rows * density * (1 - p), rows * density * p]
    k = model.hats.shape[1]
    covariance = np.zeros((2 * k, 2 * k))
    for c, part in enumerate(both):
        place = slice(c * k, (c + 1) * k)
        covariance[place, place] = (model.hats * part[:, None]).T @ model.hats
    return np.concatenate([model.hats.T @ part for part in both]), covariance


def random_in_it(mean: np.ndarray, rows: np.ndarray, answers: int, noise: float) -> np.ndarray:
    """The covariance of an average answer: rows, noise, and a model that is never quite right."""
    inexact = 0.01 * mean + 0.001 * mean.sum()
    return rows / answers + np.diag(inexact**2 + noise)


def simulate(
    model: Model, sources: int, samples: int, epsilon: float, runs: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden rows as the prior imagines them: true log-odds, density, and their noisy sketch."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((runs, model.size))
    z[:, -1] = 0
    state = model.state(z, np.full(runs, np.log(samples)))
    rest = rng.standard_normal((runs, model.unfitted_bend.shape[1])) @ model.unfitted_bend.T
    eta = state.eta + rest
    counts = np.stack([rng.multinomial(sources * samples, d) for d in state.density])
    correct = rng.binomial(counts, 1 / (1 + np.exp(-eta)))
    sketch = np.concatenate([(counts - correct) @ model.hats, correct @ model.hats], axis=1)
    noise = rng.laplace(scale=1 / epsilon, size=(sources, *sketch.shape)).sum(axis=0)
    return eta, state.density, (sketch + noise) / sources


# --- the forward model -----------------------------------------------------------------------


def test_the_expected_sketch_is_that_of_plain_loops(model: Model) -> None:
    z = np.random.default_rng(0).standard_normal((3, model.size))
    z[:, -1] *= 0.1
    expected, _, sampling = model._expect(z, np.log(np.full(3, 20.0)))
    for run in range(3):
        mean, covariance = slowly(model, z[run], 20.0 * math.exp(10 * z[run, -1]))
        np.testing.assert_allclose(expected[run], mean, rtol=1e-10)
        np.testing.assert_allclose(sampling[run], covariance, rtol=1e-10, atol=1e-12)


def test_the_two_references_agree(model: Model) -> None:
    z = np.random.default_rng(7).standard_normal(model.size)
    for one, other in zip(slowly(model, z, 3.0), slowly_vectorised(model, z, 3.0), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-10, atol=1e-13)


def test_the_derivative_is_that_of_finite_differences(model: Model) -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((4, model.size)) * 0.7
    z[:, -1] *= 0.1
    rows = np.log(np.full(4, 20.0))
    _, jacobian, _ = model._expect(z, rows)
    for k in range(model.size):
        step = np.zeros(model.size)
        step[k] = 1e-5
        up, down = (model._expect(z + sign * step, rows)[0] for sign in (1, -1))
        np.testing.assert_allclose(jacobian[:, :, k], (up - down) / 2e-5, rtol=2e-5, atol=1e-6)


def test_the_bend_varies_as_believed_and_more_freely_where_rows_beyond_are_counted(
    model: Model,
) -> None:
    x, (deviation, length) = model.frame.x, model.prior.bend
    expected = deviation**2 * np.exp(-((x[:, None] - x) ** 2) / (2 * length**2))
    expected[0, 0] += model.prior.end_bends[0] ** 2
    expected[-1, -1] += model.prior.end_bends[1] ** 2
    found = model.bend @ model.bend.T + model.unfitted_bend @ model.unfitted_bend.T
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_density_is_free_at_the_ends_only_where_it_is_said_to_be(model: Model) -> None:
    free = [deviation for deviation in model.prior.ends if deviation > 0]
    last = model.shape[:, -len(free) :]
    np.testing.assert_array_equal(last[1:-1], 0)
    found = np.sqrt((last[[0, -1]] ** 2).sum(axis=1))
    np.testing.assert_allclose(found, model.prior.ends)


# --- fits ------------------------------------------------------------------------------------


def test_a_fit_balances_prior_and_data_and_knows_how_well(model: Model) -> None:
    """Where steps end, another by the reference's own J and C leads nowhere, and the covariance
    is (1 + Jᵀ C⁻¹ J)⁻¹."""
    _, _, sketches = simulate(model, 50, 20, 0.5, 5, seed=11)
    noise = 2 / (0.5**2 * 50)
    found = fit(model, sketches, 50, noise)
    for run, sketch in enumerate(sketches):
        rows = math.exp(found.seen.log_rows[run])

        def at(z: np.ndarray, rows: float = rows) -> tuple[np.ndarray, np.ndarray]:
            return slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))

        z = found.mean[run]
        mean, covariance = at(z)
        j = derivative(lambda z: at(z)[0], z)
        weight = np.linalg.inv(random_in_it(mean, covariance, 50, noise))
        expected = np.linalg.inv(np.eye(model.size) + j.T @ weight @ j)
        step = expected @ j.T @ weight @ (sketch - mean + j @ z) - z
        np.testing.assert_allclose(step, 0, atol=1e-2)
        np.testing.assert_allclose(found.covariance[run], expected, atol=1e-2)


def derivative(f, z: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    steps = 1e-5 * np.eye(len(z))
    return np.stack([(f(z + step) - f(z - step)) / 2e-5 for step in steps], axis=1)


def test_without_noise_many_rows_tell_the_curve(model: Model) -> None:
    eta, density, sketch = simulate(model, 100, 10_000, 1e6, 40, seed=2)
    mean, _ = fit(model, sketch, 100, 2e-14).log_odds
    eta, density = eta[:, MAPPED], density[:, MAPPED]
    error = np.abs(1 / (1 + np.exp(-mean)) - 1 / (1 + np.exp(-eta)))
    assert (error * density).sum(axis=1).mean() / density.sum(axis=1).mean() < 0.015


@pytest.mark.parametrize("scores", [(0.0, 0.3), (-7.0, -6.0), (-4.0, -2.0), (30.0, 40.0)])
@pytest.mark.parametrize("accuracy", [0.1, 0.7, 0.99])
def test_a_million_rows_that_the_prior_did_not_expect_are_fitted(
    scores: tuple[float, float], accuracy: float
) -> None:
    model = MODELS["alone"]
    knots = model.frame.knots
    rows = np.linspace(*scores, 1000)
    hats = np.mean([[hat(s, knots, k) for k in range(len(knots))] for s in rows], axis=0)
    sketch = 5000 * np.concatenate([(1 - accuracy) * hats, accuracy * hats])
    fitted = fit(model, sketch[None], 200, 1e-4)
    expected, _, _ = model._expect(fitted.mean, fitted.seen.log_rows)
    right = expected[0, len(knots) :].sum() / expected.sum()
    assert right == pytest.approx(accuracy, abs=0.005)


def test_where_noise_drowns_the_data_the_prior_speaks(reader: SketchReader) -> None:
    length = reader.query.length
    noise = 4.0
    below, above = 1.9 * math.sqrt(length * noise), 2.1 * math.sqrt(length * noise)
    averages = np.zeros((4, length))
    averages[1, -1], averages[2, -1], averages[3, 0] = below, above, -1000.0
    posterior = reader.read(averages, 10, noise)
    assert posterior.informative.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(posterior.curve[0], posterior.curve[1])
    np.testing.assert_array_equal(posterior.curve[0], posterior.curve[3])
    assert (posterior.curve[0] != posterior.curve[2]).any()
    weights = [case.weight for case in reader.mixture.cases]
    np.testing.assert_allclose(posterior.weights[0], weights)
    notes = [map.provenance.get("note") for map in reader.maps(posterior)]
    assert notes == [PRIOR_ONLY, PRIOR_ONLY, None, PRIOR_ONLY]


# --- evidence --------------------------------------------------------------------------------


def test_where_everything_is_nearly_linear_the_evidence_is_exact() -> None:
    """Then the sketch is normal around its expectation, with covariance J Jᵀ + C."""
    spike = MODELS["unchanged"]
    model = Model(
        replace(
            spike.prior,
            slope=(0.0, 0.01),
            level=(0.0, 0.01),
            bend=(0.01, 1.5),
            roughness=(0.01, 1.5),
            ends=(0.01, 0.01),
            end_bends=(0.01, 0.01),
        ),
        spike.frame,
    )
    rng = np.random.default_rng(3)
    noise, rows = 0.02, 60.0
    nothing = np.zeros(model.size)
    mean, covariance = slowly_vectorised(model, nothing, rows)
    sketches = mean + rng.standard_normal((4, len(mean))) * 0.2
    sketches *= rows / sketches.sum(axis=1, keepdims=True)  # so that log n starts where it ends
    found = fit(model, sketches, 50, noise).log_evidence
    j = derivative(lambda z: slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))[0], nothing)
    total = j @ j.T + random_in_it(mean, covariance, 50, noise)
    miss = sketches - mean
    distance = (miss * np.linalg.solve(total, miss.T).T).sum(axis=1)
    expected = -0.5 * (distance + np.linalg.slogdet(total)[1])
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_the_evidence_is_the_integral_of_likelihood_times_prior() -> None:
    """By importance sampling, for every case with public rows: differences between cases count."""
    reader = READERS["public, two hats"]
    [_, _, sketches] = simulate(reader.mixture.models[1], 20, 20, 1.0, 3, seed=4)
    noise = 2 / 20
    posterior = reader.read(sketches, 20, noise)
    rng = np.random.default_rng(0)
    for run, sketch in enumerate(sketches):
        rows = math.exp(posterior.seen.log_rows[run])
        found, expected = [], []
        for fitted in posterior.fits:
            model = fitted.model
            root = np.linalg.cholesky(1.3 * fitted.covariance[run] + 1e-9 * np.eye(model.size))
            unit = rng.standard_normal((1500, model.size))
            log_weight = []
            for u in unit:
                z = fitted.mean[run] + root @ u
                mean, covariance = slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))
                total = random_in_it(mean, covariance, 20, noise)
                miss = sketch - mean
                likelihood = -0.5 * (
                    miss @ np.linalg.solve(total, miss) + np.linalg.slogdet(total)[1]
                )
                log_weight.append(likelihood - 0.5 * z @ z + 0.5 * u @ u)
            top = max(log_weight)
            integral = top + math.log(np.mean(np.exp(np.array(log_weight) - top)))
            expected.append(integral + np.log(np.diag(root)).sum())
            found.append(fitted.log_evidence[run])
        likely = np.array(found) > max(found) - 10  # others were not followed to the end
        assert np.ptp((np.array(found) - expected)[likely]) < 0.3


def test_cases_are_weighed_by_prior_probability_times_evidence(reader: SketchReader) -> None:
    _, _, sketch = simulate(reader.mixture.models[0], 20, 20, 1.0, 4, seed=5)
    posterior = reader.read(sketch, 20, 0.1)
    for run in range(4):
        top = max(fitted.log_evidence[run] for fitted in posterior.fits)
        products = [
            case.weight * math.exp(fitted.log_evidence[run] - top)
            for case, fitted in zip(reader.mixture.cases, posterior.fits, strict=True)
        ]
        np.testing.assert_allclose(posterior.weights[run], np.array(products) / sum(products))


def test_following_hopeless_cases_to_the_end_changes_nothing(
    reader: SketchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (reader.mixture.models[0], reader.mixture.models[-1]):
        for samples, epsilon in ((10, 0.5), (100, 4.0)):
            _, _, sketch = simulate(model, 50, samples, epsilon, 20, seed=6)
            noise = 2 / (50 * epsilon**2)
            short = reader.read(sketch, 50, noise)
            with monkeypatch.context() as patch:
                patch.setattr(model_module, "_HOPELESS", math.inf)
                whole = reader.read(sketch, 50, noise)
            p, q = (1 / (1 + np.exp(-posterior.curve)) for posterior in (short, whole))
            np.testing.assert_allclose(p, q, atol=1e-3)


def test_a_change_is_told_from_none_and_clean_rows_keep_their_curve() -> None:
    """Rows as the public ones are: probably nothing changed; of a third of the confidence: not."""
    reader = READERS["public"]
    spike = reader.mixture.models[-1]
    z = np.zeros((1, spike.size))
    state = spike.state(z, np.log([90.0]))
    for drop, low, high in ((0.0, 0.9, 1.0), (2.0, 0.0, 0.01)):
        p = 1 / (1 + np.exp(-(state.eta[0] - drop)))
        density = state.density[0] * 90
        sketch = np.concatenate([density * (1 - p) @ spike.hats, density * p @ spike.hats])
        posterior = reader.read(sketch[None], 50, 2 / (16 * 50))
        assert posterior.unchanged is not None
        assert low <= posterior.unchanged[0] <= high
        found = 1 / (1 + np.exp(-posterior.curve[0]))
        error = np.abs(found - p[MAPPED]) @ state.density[0][MAPPED] * 2
        assert error < 0.02


# --- whatever the answer ---------------------------------------------------------------------


def extreme(length: int, runs: int, rng: np.random.Generator) -> np.ndarray:
    """Averages of up to 10¹² rows: of one side only, in one place, of random or falling curves."""
    knots = length // 2
    found = []
    for _ in range(runs):
        share = rng.dirichlet(np.full(knots, 10 ** rng.uniform(-1.5, 1)))
        p = [
            rng.uniform(size=knots),
            np.sort(rng.uniform(size=knots)),
            np.sort(rng.uniform(size=knots))[::-1],
            np.full(knots, rng.integers(0, 2)),
            rng.integers(0, 2, knots),
        ][rng.integers(5)]
        mean = 10 ** rng.uniform(-1, 12) * np.concatenate([share * (1 - p), share * p])
        if rng.uniform() < 0.2:
            mean *= rng.choice([-1, 1, 1], size=length)
        found.append(mean)
    return np.array(found)


@pytest.mark.parametrize("sources", [2, 50, 10_000])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_extreme_answers_give_finite_rising_maps_and_steps_that_end(
    reader: SketchReader, sources: int, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(sources)
    averages = extreme(reader.query.length, 12, rng)
    averages += rng.laplace(scale=1 / epsilon, size=averages.shape) / math.sqrt(sources)
    posterior, steps = counted(reader, averages, sources, 2 / (epsilon**2 * sources), monkeypatch)
    assert steps < model_module._STEPS
    assert posterior.informative.any()
    check_maps(reader, posterior)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(READERS)),
    st.integers(1, 10_000),
    st.floats(1e-12, 1e12),
    st.lists(st.floats(-1e12, 1e12), min_size=18, max_size=18),
)
@pytest.mark.slow
def test_whatever_the_answer_the_map_rises_and_is_finite(
    name: str, answers: int, noise: float, values: list[float]
) -> None:
    reader = READERS[name]
    averages = np.array([values[: reader.query.length]])
    with pytest.MonkeyPatch.context() as patch:
        posterior, steps = counted(reader, averages, answers, noise, patch)
    assert steps < model_module._STEPS
    check_maps(reader, posterior)


def test_extreme_answers_can_be_judged(reader: SketchReader) -> None:
    averages = extreme(reader.query.length, 3, np.random.default_rng(1))
    posterior = reader.read(averages, 20, 0.1)
    for run in range(len(averages)):
        found = evaluate_privately(posterior, reader, run=run)
        for name, estimate in found.estimates().items():
            assert 0 <= estimate.low <= estimate.high <= 1, name
            assert 0 <= estimate.value <= 1, name


def counted(
    reader: SketchReader,
    averages: np.ndarray,
    answers: int,
    noise_variance: float,
    patch: pytest.MonkeyPatch,
) -> tuple[Posterior, int]:
    """What the averages say, and the steps that the slowest model took."""
    steps = dict.fromkeys(reader.mixture.models, 0)
    plain = Model._expect

    def counting(self: Model, z: np.ndarray, log_rows: np.ndarray) -> tuple[np.ndarray, ...]:
        steps[self] += 1
        return plain(self, z, log_rows)

    patch.setattr(Model, "_expect", counting)
    return reader.read(averages, answers, noise_variance), max(steps.values())


def check_maps(reader: SketchReader, posterior: Posterior) -> None:
    np.testing.assert_allclose(posterior.weights.sum(axis=1), 1)
    for map in reader.maps(posterior, directions=True):
        assert np.isfinite(map.log_odds).all()
        assert np.isfinite(map.directions).all()
        assert (np.diff(map.log_odds) > 0).all()


# --- bands and draws -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("setting", [(10, 10, 1.0), (50, 30, 1.0)])
def test_bands_cover_as_often_as_they_say(model: Model, setting: tuple[int, int, float]) -> None:
    """Pointwise, over rows: 93 to 97.5 % (less 3 % for the chance of 150 runs)."""
    sources, samples, epsilon = setting
    eta, density, sketch = simulate(model, sources, samples, epsilon, 150, seed=3)
    posterior = alone(model).fit(sketch, sources, 2 / (epsilon**2 * sources))
    assert 0.90 <= coverage(posterior, eta, density) <= 0.985


@pytest.mark.slow
def test_bands_computed_with_too_little_noise_cover_too_little() -> None:
    """The test above would notice: the same, told that the noise is three times smaller."""
    model = MODELS["alone"]
    eta, density, sketch = simulate(model, 50, 10, 0.5, 100, seed=4)
    posterior = alone(model).fit(sketch, 50, 2 / (0.5**2 * 50) / 9)
    assert coverage(posterior, eta, density) < 0.9


@pytest.mark.slow
def test_bands_of_a_mixture_cover_whichever_case_is_true() -> None:
    reader = READERS["alone"]
    for model in reader.mixture.models[:2]:  # bent a little, or much
        eta, density, sketch = simulate(model, 50, 30, 1.0, 100, seed=12)
        assert coverage(reader.read(sketch, 50, 2 / 50), eta, density) > 0.9


def coverage(posterior: Posterior, eta: np.ndarray, density: np.ndarray) -> float:
    rng, total = np.random.default_rng(0), 0.0
    for run in range(len(eta)):
        drawn, _ = posterior.curves(run, 300, rng)
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        total += float(((low <= eta[run]) & (eta[run] <= high)) @ density[run])
    return total / len(eta)


@pytest.mark.parametrize("name", ["public", "alone"])
def test_the_posterior_is_that_of_a_random_walk(name: str) -> None:
    """Metropolis steps on the log-posterior as the plain loops define it; slow and obvious."""
    model = MODELS[name]
    [_, _, [sketch]] = simulate(model, 50, 20, 1.0, 1, seed=5)
    noise = 2 / 50
    posterior = fit(model, sketch[None], 50, noise)
    rows = math.exp(posterior.seen.log_rows[0])

    def log_posterior(z: np.ndarray) -> float:
        mean, covariance = slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))
        total = random_in_it(mean, covariance, 50, noise)
        miss = sketch - mean
        _, log_det = np.linalg.slogdet(total)
        return float(-0.5 * (miss @ np.linalg.solve(total, miss) + log_det + z @ z))

    rng = np.random.default_rng(6)
    root = np.linalg.cholesky(posterior.covariance[0] + 1e-9 * np.eye(model.size))
    z, here = posterior.mean[0], log_posterior(posterior.mean[0])
    walked = []
    for _ in range(8_000):
        there = z + 2.2 / math.sqrt(model.size) * root @ rng.standard_normal(model.size)
        value = log_posterior(there)
        if math.log(rng.uniform()) < value - here:
            z, here = there, value
        walked.append(z)
    walk = np.array(walked[1000:])
    ours = posterior.draws(0, 4000, rng)
    for draws, close in ((ours, 0.012), (posterior.mean, 0.03)):
        log_rows = np.full(len(draws), posterior.seen.log_rows[0])
        p = model.state(draws, log_rows).p.mean(axis=0)
        reference = model.state(walk, np.full(len(walk), posterior.seen.log_rows[0]))
        weight = reference.density.mean(axis=0)
        assert np.abs(p - reference.p.mean(axis=0)) @ weight < close


def test_draws_are_of_every_case_as_often_as_it_is_probable() -> None:
    """Two cases that agree on nothing: all rows right, or all wrong, and equally probable."""
    frame, slab = READERS["alone"].mixture.frame, MODELS["alone"].prior
    sure = replace(slab, slope=(-5.0, 0.01), bend=(0.01, 1.5), end_bends=(0.01, 0.01))
    cases = [Case(replace(sure, level=(b, 0.01)), w) for b, w in ((4.0, 0.3), (-4.0, 0.7))]
    nothing = Mixture(frame, cases).fit(np.zeros((1, 2 * len(frame.knots))), 10, 1.0)
    drawn, _ = nothing.curves(0, 2000, np.random.default_rng(0))
    assert (drawn[:, 30] > 0).mean() == pytest.approx(0.3, abs=0.04)


def test_a_run_gets_the_same_curve_alone_and_in_a_batch(reader: SketchReader) -> None:
    _, _, sketch = simulate(reader.mixture.models[0], 20, 20, 1.0, 30, seed=8)
    together = reader.read(sketch, 20, 0.1)
    for run in range(0, 30, 7):
        alone = reader.read(sketch[run : run + 1], 20, 0.1)
        np.testing.assert_allclose(alone.curve[0], together.curve[run], atol=1e-9)
        np.testing.assert_allclose(alone.weights[0], together.weights[run], atol=1e-9)


def test_directions_are_the_largest_part_of_what_is_not_known(reader: SketchReader) -> None:
    _, _, sketch = simulate(reader.mixture.models[0], 20, 20, 1.0, 1, seed=13)
    posterior = reader.read(sketch, 20, 0.1)
    [map] = posterior.maps(1.0, directions=True)
    weights = posterior.weights[0]
    means, variances = zip(*(fitted.log_odds for fitted in posterior.fits), strict=True)
    mean = sum(w * m[0] for w, m in zip(weights, means, strict=True))
    whole = sum(
        w * (v[0] + (m[0] - mean) ** 2) for w, m, v in zip(weights, means, variances, strict=True)
    )
    told = (np.array(map.directions)[:, 1:-1] ** 2).sum(axis=0)
    assert (told / whole).max() < 1 + 1e-9
    assert told.sum() / np.sum(whole) > 0.9


# --- the curve -------------------------------------------------------------------------------


def test_the_priors_curve_is_its_mean_share_of_correct_rows() -> None:
    """Without data everything has a formula: log-odds e^α·s + b + f, each of them normal."""
    reader = SketchReader.of()
    nothing = reader.read(np.zeros((1, 18)), 1, 1.0)
    s = reader.mixture.frame.grid[MAPPED]
    unit = (np.arange(4000) + 0.5) / 4000
    normal = np.array([NormalDist().inv_cdf(u) for u in unit])
    share = np.zeros(len(s))
    for case, fitted in zip(reader.mixture.cases, nothing.fits, strict=True):
        believed = case.prior
        slope = math.exp(believed.slope[0])
        mean, variance = fitted.log_odds
        np.testing.assert_allclose(mean[0], slope * s + believed.level[0])
        expected = (slope * believed.slope[1] * s) ** 2
        expected += believed.level[1] ** 2 + believed.bend[0] ** 2
        expected[-1] += believed.end_bends[1] ** 2
        np.testing.assert_allclose(variance[0], expected)
        log_odds = mean[0] + np.sqrt(variance[0]) * normal[:, None]
        share += case.weight * (1 / (1 + np.exp(-log_odds))).mean(axis=0)
    found = 1 / (1 + np.exp(-nothing.curve[0]))
    error = np.abs(found - share) * nothing.density[0, MAPPED]
    assert error.sum() / nothing.density[0, MAPPED].sum() < 0.02


def test_falls_are_pooled_as_the_minimax_formula_says() -> None:
    """Weighted isotonic regression: the largest over a ≤ i of the least over b ≥ i of the mean of
    a to b."""
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(20, 12)), rng.uniform(0.01, 2, (20, 12))
    values[0] = np.sort(values[0])
    found = rising(values, weights)
    for run in range(20):

        def mean(a: int, b: int, run: int = run) -> float:
            return float(np.average(values[run, a : b + 1], weights=weights[run, a : b + 1]))

        expected = [
            max(min(mean(a, b) for b in range(i, 12)) for a in range(i + 1)) for i in range(12)
        ]
        np.testing.assert_allclose(found[run], expected, atol=1e-9)


def test_beyond_the_last_rows_a_curve_stays_where_it_was() -> None:
    values = np.arange(6.0)[None]
    shares = np.array([[0.0005, 0.0005, 0.6, 0.3975, 0.001, 0.0005]])
    np.testing.assert_array_equal(_flat_beyond(values, shares), [[2, 2, 2, 3, 3, 3]])
    whole = np.full((1, 6), 1 / 6)
    np.testing.assert_array_equal(_flat_beyond(values, whole), values)


def test_a_map_does_not_go_on_rising_where_nobody_was() -> None:
    """All rows are around a score of 0 and half of them right: none is promised 99 % elsewhere."""
    reader = READERS["alone"]
    knots = np.array(reader.mixture.frame.knots)
    hats = np.array([hat(0.0, tuple(knots), k) for k in range(len(knots))])
    posterior = reader.read(np.tile(40 * hats, 2)[None], 100, 1e-3)
    [map] = reader.maps(posterior)
    assert map.at(np.array([8.0]))[0] < 2.5
    assert map.at(np.array([-6.0]))[0] > -2.5


# --- what is believed ------------------------------------------------------------------------


def test_resolution_is_rows_over_noise() -> None:
    """50 sources of 30 rows: 1,500 rows; the noise of one number, over all: √(50 · 2) / ε."""
    assert prior.resolution(30, NoiseLaw().variance(NANO // 2, 50)) == pytest.approx(
        1500 / (math.sqrt(100) / 0.5)
    )


def test_more_hats_where_they_pay_and_as_many_as_asked_for() -> None:
    assert prior.knots(True, False, 0.99 * prior.FINE) == prior.COARSE_KNOTS
    assert prior.knots(True, False, prior.FINE) == prior.FINE_KNOTS
    assert prior.knots(True, False) == prior.FINE_KNOTS
    for count, found in ((2, prior.COARSE_KNOTS), (7, prior.FINE_KNOTS)):
        assert prior.knots(True, False, 1e9, hats=count) == found
        assert prior.knots(True, False, 0.0, hats=count) == found
    assert prior.knots(False, False, 0.99 * prior.FINE) == prior.WIDE_COARSE_KNOTS
    assert prior.knots(False, False) == prior.WIDE_FINE_KNOTS
    assert prior.knots(False, True, 0.0) == prior.knots(True, True) == prior.EVENT_KNOTS
    with pytest.raises(InputError, match="hats must be 2 or 7 for such a sketch, not 5"):
        prior.knots(True, False, hats=5)


def test_a_reader_at_other_knots_believes_the_same() -> None:
    fine, coarse = READERS["public"], READERS["public"].at(prior.COARSE_KNOTS)
    assert coarse.query == READERS["public, two hats"].query
    assert coarse.query.length == 4
    _, _, sketch = simulate(coarse.mixture.models[0], 20, 20, 1.0, 2, seed=14)
    ours, theirs = (r.read(sketch, 20, 0.1) for r in (coarse, READERS["public, two hats"]))
    np.testing.assert_allclose(ours.curve, theirs.curve)
    assert [case.weight for case in fine.mixture.cases] == [
        case.weight for case in coarse.mixture.cases
    ]


@pytest.mark.parametrize(
    ("options", "unchanged"),
    [
        ({}, 0),
        ({"unchanged": 0.2}, 0.2),
        ({"leave_alone": True}, 0.5),
        ({"leave_alone": True, "unchanged": 0.2}, 0.2),
        ({"event": 1}, 0.25),
        ({"event": 1, "unchanged": 0.0}, 0),
        ({"public": public()}, 0.3),
        ({"public": public(), "unchanged": 0.0}, 0),
    ],
)
def test_how_probable_no_change_is_beforehand(options: dict, unchanged: float) -> None:
    reader = SketchReader.of(**options)
    assert reader.mixture.unchanged == pytest.approx(unchanged)
    assert sum(case.weight for case in reader.mixture.cases) == pytest.approx(1)
    posterior = reader.read(np.zeros((1, reader.query.length)), 1, 1.0)
    if unchanged:
        assert posterior.unchanged is not None
        assert posterior.unchanged[0] == pytest.approx(unchanged)
    else:
        assert posterior.unchanged is None


def test_impossible_beliefs_are_refused() -> None:
    for unchanged in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match="unchanged must be a probability from 0 to below 1"):
            SketchReader.of(unchanged=unchanged)
    with pytest.raises(InputError, match="leave_alone needs unchanged above 0"):
        SketchReader.of(unchanged=0.0, leave_alone=True)


@pytest.mark.parametrize("event", [None, 1])
def test_a_model_that_is_left_alone_is_left_as_it_is(event: int | None) -> None:
    reader = SketchReader.of(leave_alone=True, event=event)
    [map] = reader.maps(reader.read(np.zeros((1, reader.query.length)), 10, 1.0))
    p = np.array([1e-15, 1e-6, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])
    own = np.stack([1 - p, p], axis=1)
    found = map.predict_proba(probabilities=p)
    np.testing.assert_allclose(found[:, 1], p, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found, own, rtol=1e-9, atol=1e-12)


def test_a_model_in_use_is_left_alone_unless_it_clearly_changed() -> None:
    plain, careful = SketchReader.of(unchanged=0.5), SketchReader.of(leave_alone=True)
    s = np.random.default_rng(0).normal(1.5, 2.0, 3000)
    sketches = []
    for error in (0.0, 2.0):
        right = np.random.default_rng(1).uniform(size=3000) < 1 / (1 + np.exp(-(s - error)))
        shares = np.array([[hat(v, prior.WIDE_FINE_KNOTS, k) for k in range(7)] for v in s])
        sketches.append(np.concatenate([shares[~right].sum(axis=0), shares[right].sum(axis=0)]))
    sketches.append(np.zeros(14))
    read = careful.read(np.array(sketches) / 100, 100, 2 / 100)
    assert read.left_alone.tolist() == [True, False, True]  # nobody looked: nothing is moved
    maps = careful.maps(read)
    np.testing.assert_allclose(maps[0].log_odds[1:-1], maps[0].scores[1:-1], atol=1e-9)
    np.testing.assert_allclose(maps[2].log_odds[1:-1], maps[2].scores[1:-1], atol=1e-9)
    notes = [map.provenance.get("note", "") for map in maps]
    assert [note.endswith(LEFT_ALONE) for note in notes] == [True, False, True]
    other = plain.read(np.array(sketches) / 100, 100, 2 / 100)
    assert not other.left_alone.any()
    np.testing.assert_array_equal(other.curve[1], read.curve[1])
    assert (other.curve[0] != read.curve[0]).any()


def test_the_risk_of_an_event_may_be_too_low_as_well_as_too_high() -> None:
    """Before anybody is asked, the event is thought as probable as its complement."""
    reader = READERS["event"]
    nothing = reader.read(np.zeros((1, reader.query.length)), 1, 1.0)
    middle = nothing.curve.shape[1] // 2
    assert nothing.curve[0, middle] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(nothing.curve[0], -nothing.curve[0, ::-1], atol=1e-6)


# --- public rows -----------------------------------------------------------------------------


def test_scaling_all_logits_changes_nothing_where_public_rows_are_known() -> None:
    hidden = public(seed=1, rows=3000)
    found = []
    for scale in (1.0, 0.4, 2.5, 17.0):
        reader = SketchReader.of(public(scale))
        scores = Scores(logits=scale * hidden.outputs.array, labels=hidden.labels)
        query = reader.query
        sketch = query.contributions(scores).sum(query.length)[None] / 2**20 / 100
        [curve] = reader.maps(reader.read(sketch, 100, 2 / 100))
        found.append(curve.confidence(scores))
        assert reader.temperature == pytest.approx(scale * SketchReader.of(public()).temperature)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-4)


def test_public_rows_that_say_nothing_are_refused() -> None:
    some = public()
    with pytest.raises(InputError, match="at least 50 rows, not 49"):
        SketchReader.of(some.take(np.arange(49)))
    right = some.take(np.nonzero(some.correct)[0][:60])
    with pytest.raises(InputError, match="all predicted rightly"):
        SketchReader.of(right)
    wrong = some.take(np.nonzero(~some.correct)[0][:60])
    with pytest.raises(InputError, match="all predicted wrongly"):
        SketchReader.of(wrong)
    with pytest.raises(InputError, match="must be Scores"):
        SketchReader.of(np.zeros((100, 3)))  # type: ignore[arg-type]


def test_own_confidence_is_close_on_the_public_rows_themselves() -> None:
    some = public(rows=5000)
    reader = SketchReader.of(some)
    s = FAST.log_odds(some.outputs, reader.temperature)
    own = FAST.confidence(some.outputs, 1.0)
    said = np.interp(s, reader.mixture.frame.grid, reader.own_confidence)
    assert abs((said - own).mean()) < 0.005
    assert np.abs(said - own).mean() < 0.03


def test_that_nothing_changed_means_the_curve_and_the_scores_of_the_public_rows() -> None:
    some = public(rows=5000)
    reader = SketchReader.of(some)
    spike = reader.mixture.models[-1]
    s = FAST.log_odds(some.outputs, reader.temperature)
    state = spike.state(np.zeros((1, spike.size)), np.zeros(1))
    for low, high in ((-1.0, 0.0), (0.0, 1.5), (1.5, 4.0)):
        inside, cells = (s >= low) & (s < high), (spike.grid >= low) & (spike.grid < high)
        share = state.density[0, cells].sum()
        assert share == pytest.approx(inside.mean(), abs=0.05)
        right = (state.density * state.p)[0, cells].sum() / share
        assert right == pytest.approx(some.correct[inside].mean(), abs=0.04)


# --- private evaluation ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 2000])
@pytest.mark.parametrize("name", ["public", "alone"])
@pytest.mark.slow
def test_private_evaluation_covers_the_truth_it_estimates(name: str, rows: int) -> None:
    """Accuracy, mean confidence and ECE of hidden rows drawn from the model."""
    model = MODELS[name]
    own = 1 / (1 + np.exp(-1.5 * model.grid))
    reader = SketchReader(alone(model), 1.0, own)
    runs = 40
    eta, density, sketch = simulate(model, 50, rows, 1.0, runs, seed=9)
    posterior = reader.read(sketch, 50, 2 / 50)
    p = 1 / (1 + np.exp(-eta))
    truth = {"accuracy": (density * p).sum(axis=1), "confidence_before": density @ own}
    truth["brier_before"] = (density * (p * (1 - own) ** 2 + (1 - p) * own**2)).sum(axis=1)
    inside = dict.fromkeys(truth, 0)
    after = []
    maps = reader.maps(posterior)
    for run in range(runs):
        found = evaluate_privately(posterior, reader, run=run)
        for measure, values in truth.items():
            estimate = getattr(found, measure)
            inside[measure] += estimate.low <= values[run] <= estimate.high
        curve = 1 / (1 + np.exp(-maps[run].at(model.grid)))
        cells = np.minimum((15 * curve).astype(int), 14)
        gap = np.bincount(cells, density[run] * (p[run] - curve), 15)
        after.append((found.ece_after.value, np.abs(gap).sum()))
    for measure, count in inside.items():
        assert count >= 33, measure  # 95 % of 40, less 3.5 standard deviations
    expected, true = np.mean(after, axis=0)
    assert expected == pytest.approx(true, abs=0.007)
    assert rows > 20 or expected > 0.01  # a plug-in would say nearly zero


def test_an_estimate_is_a_mean_and_the_middle_95_percent() -> None:
    found = Estimate.of(np.linspace(0, 1, 1001) ** 2)
    assert found.value == pytest.approx(1 / 3, abs=1e-3)
    assert (found.low, found.high) == pytest.approx((0.025**2, 0.975**2))


def test_values_between_points_lie_on_straight_lines() -> None:
    values = np.random.default_rng(0).normal(size=(3, 6))
    points = np.linspace(0, 5, 21)
    for row, found in zip(values, _finer(points, values), strict=True):
        np.testing.assert_allclose(found, np.interp(points, np.arange(6), row), atol=1e-12)


def test_an_ece_is_that_of_each_draw_by_itself() -> None:
    rng = np.random.default_rng(0)
    density, p, own = (
        rng.dirichlet(np.ones(9), 4),
        rng.uniform(size=(4, 9)),
        rng.uniform(size=(4, 9)),
    )
    for confidence_of in (own, np.broadcast_to(own[0], own.shape)):
        expected = []
        for d, q, c in zip(density, p, confidence_of, strict=True):
            gaps = [0.0] * 5
            for share, right, said in zip(d, q, c, strict=True):
                gaps[math.ceil(5 * said) - 1] += share * (right - said)
            expected.append(sum(map(abs, gaps)))
        np.testing.assert_allclose(_ece(density, p, confidence_of, 5), expected)
    np.testing.assert_allclose(_ece(density, p, own[0], 5), expected)


def test_what_the_model_itself_says_is_uncertain_where_rows_of_equal_score_differ() -> None:
    """With two classes the score tells the model's own confidence; with five it does not quite."""
    reader = SketchReader.of(public(scale=2.0, classes=5))
    assert SketchReader.of(public(scale=2.0, classes=2)).own_spread < 0.01 < reader.own_spread
    assert SketchReader.of().own_spread == 0
    _, _, sketch = simulate(reader.mixture.models[0], 50, 30, 1.0, 1, seed=15)
    posterior = reader.read(sketch, 50, 2 / 50)
    known = replace(reader, own_spread=0.0)
    wide, narrow = (evaluate_privately(posterior, r).confidence_before for r in (reader, known))
    assert wide.high - wide.low > narrow.high - narrow.low
    assert 0 < wide.value - narrow.value < 0.03  # the reference temperature is above 1
    sharper = SketchReader.of(public(scale=0.3, classes=5))
    assert sharper.temperature < 1
    assert sharper.own_spread < 0
