"""The model behind a sketch, against a forward model and a sampler written separately."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privcal.errors import InputError
from privcal.scores import Scores
from privcal.sketch import Estimate, SketchReader, evaluate_privately
from privcal.sketch.evaluation import _finer
from privcal.sketch.model import WITHOUT_PUBLIC, Model, Posterior, prior_with_public

MODELS = {"public": Model(prior_with_public(4.0)), "many classes": Model(prior_with_public(1.5))}
MODELS["alone"] = Model(WITHOUT_PUBLIC)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


def slowly(model: Model, z: np.ndarray, rows: float) -> tuple[list[float], list[list[float]]]:
    """The expected sketch and the covariance of one source's rows, in plain loops."""
    prior, knots = model.prior, model.prior.knots
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
        f = math.fsum(z[2 + k] * model.bend[g, k] for k in range(bends))
        p = 1 / (1 + math.exp(-(math.exp(alpha) * s + b + f)))
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


def test_the_expected_sketch_is_that_of_plain_loops(model: Model) -> None:
    z = np.random.default_rng(0).standard_normal((3, model.size))
    z[:, -1] *= 0.1
    expected, _, sampling = model._expect(z, np.log(np.full(3, 20.0)))
    for run in range(3):
        mean, covariance = slowly(model, z[run], 20.0 * math.exp(10 * z[run, -1]))
        np.testing.assert_allclose(expected[run], mean, rtol=1e-10)
        np.testing.assert_allclose(sampling[run], covariance, rtol=1e-10, atol=1e-12)


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


def test_without_noise_many_rows_tell_the_curve() -> None:
    for model in MODELS.values():
        eta, density, sketch = simulate(model, 100, 10_000, 1e6, 40, seed=2)
        mean, _ = model.fit(sketch, 100, 2e-14).log_odds
        error = np.abs(1 / (1 + np.exp(-mean)) - 1 / (1 + np.exp(-eta)))
        # Two hats cannot see how the curve bends: a deviation of 0.3 in log-odds, .05 or so here.
        assert (error * density).sum(axis=1).mean() < 0.03


@pytest.mark.parametrize("scores", [(0.0, 0.3), (-7.0, -6.0), (-4.0, -2.0), (30.0, 40.0)])
@pytest.mark.parametrize("accuracy", [0.1, 0.7, 0.99])
def test_a_million_rows_that_the_prior_did_not_expect_are_fitted(
    scores: tuple[float, float], accuracy: float
) -> None:
    model = MODELS["alone"]
    rows = np.linspace(*scores, 1000)
    hats = np.mean(
        [[hat(s, WITHOUT_PUBLIC.knots, k) for k in range(len(WITHOUT_PUBLIC.knots))] for s in rows],
        axis=0,
    )
    sketch = 5000 * np.concatenate([(1 - accuracy) * hats, accuracy * hats])
    fitted = model.fit(sketch[None], 200, 1e-4)
    expected, _, _ = model._expect(fitted.mean, fitted.log_rows)
    right = expected[0, len(WITHOUT_PUBLIC.knots) :].sum() / expected.sum()
    assert right == pytest.approx(accuracy, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [(10, 10, 1.0), (50, 30, 1.0)])
def test_bands_cover_as_often_as_they_say(model: Model, setting: tuple[int, int, float]) -> None:
    """Pointwise, over rows: 93 to 97.5 % (less 2 % for the chance of 150 runs)."""
    sources, samples, epsilon = setting
    eta, density, sketch = simulate(model, sources, samples, epsilon, 150, seed=3)
    covered = coverage(model.fit(sketch, sources, 2 / (epsilon**2 * sources)), eta, density)
    assert 0.91 <= covered <= 0.985


@pytest.mark.slow
def test_bands_computed_with_too_little_noise_cover_too_little() -> None:
    """The test above would notice: the same, told that the noise is three times smaller."""
    model = MODELS["alone"]
    eta, density, sketch = simulate(model, 50, 10, 0.5, 100, seed=4)
    assert coverage(model.fit(sketch, 50, 2 / (0.5**2 * 50) / 9), eta, density) < 0.9


def coverage(posterior: Posterior, eta: np.ndarray, density: np.ndarray) -> float:
    rng, total = np.random.default_rng(0), 0.0
    for run in range(len(eta)):
        z = posterior.draws(run, 300, rng)
        state = posterior.model.state(z, np.full(300, posterior.log_rows[run]))
        bend = posterior.model.unfitted_bend
        drawn = state.eta + rng.standard_normal((300, bend.shape[1])) @ bend.T
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        total += float(((low <= eta[run]) & (eta[run] <= high)) @ density[run])
    return total / len(eta)


@pytest.mark.parametrize("name", ["public", "alone"])
def test_the_posterior_is_that_of_a_random_walk(name: str) -> None:
    """Metropolis steps on the log-posterior as the plain loops define it; slow and obvious."""
    model = MODELS[name]
    [_, _, [sketch]] = simulate(model, 50, 20, 1.0, 1, seed=5)
    noise = 2 / 50
    posterior = model.fit(sketch[None], 50, noise)
    rows = math.exp(posterior.log_rows[0])

    def log_posterior(z: np.ndarray) -> float:
        mean, covariance = slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))
        total = covariance / 50 + noise * np.eye(len(sketch))
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
        log_rows = np.full(len(draws), posterior.log_rows[0])
        p = model.state(draws, log_rows).p.mean(axis=0)
        reference = model.state(walk, np.full(len(walk), posterior.log_rows[0]))
        weight = reference.density.mean(axis=0)
        assert np.abs(p - reference.p.mean(axis=0)) @ weight < close


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
    p = 1 / (1 + np.exp(-(math.exp(alpha) * model.grid + b + model.bend @ z[2 : 2 + bends])))
    both = [rows * density * (1 - p), rows * density * p]
    k = model.hats.shape[1]
    covariance = np.zeros((2 * k, 2 * k))
    for c, part in enumerate(both):
        place = slice(c * k, (c + 1) * k)
        covariance[place, place] = (model.hats * part[:, None]).T @ model.hats
    return np.concatenate([model.hats.T @ part for part in both]), covariance


def test_a_fit_balances_prior_and_data_and_knows_how_well(model: Model) -> None:
    """Where steps end, another by the reference's own J and C leads nowhere, and the covariance
    is (1 + Jᵀ C⁻¹ J)⁻¹."""
    _, _, sketches = simulate(model, 50, 20, 0.5, 5, seed=11)
    noise = 2 / (0.5**2 * 50)
    posterior = model.fit(sketches, 50, noise)
    for run, sketch in enumerate(sketches):
        rows = math.exp(posterior.log_rows[run])

        def at(z: np.ndarray, rows: float = rows) -> tuple[np.ndarray, np.ndarray]:
            return slowly_vectorised(model, z, rows * math.exp(10 * z[-1]))

        z = posterior.mean[run]
        mean, covariance = at(z)
        steps = 1e-5 * np.eye(model.size)
        j = np.stack([(at(z + s)[0] - at(z - s)[0]) / 2e-5 for s in steps], axis=1)
        weight = np.linalg.inv(covariance / 50 + noise * np.eye(len(sketch)))
        expected = np.linalg.inv(np.eye(model.size) + j.T @ weight @ j)
        step = expected @ j.T @ weight @ (sketch - mean + j @ z) - z
        np.testing.assert_allclose(step, 0, atol=2e-3)
        np.testing.assert_allclose(posterior.covariance[run], expected, atol=5e-3)


def test_the_two_references_agree(model: Model) -> None:
    z = np.random.default_rng(7).standard_normal(model.size)
    for one, other in zip(slowly(model, z, 3.0), slowly_vectorised(model, z, 3.0), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-10, atol=1e-13)


def test_a_run_gets_the_same_curve_alone_and_in_a_batch(model: Model) -> None:
    _, _, sketch = simulate(model, 20, 20, 1.0, 30, seed=8)
    together = model.fit(sketch, 20, 0.1)
    for run in range(0, 30, 7):
        alone = model.fit(sketch[run : run + 1], 20, 0.1)
        np.testing.assert_allclose(alone.curve[0], together.curve[run], atol=1e-9)
        np.testing.assert_allclose(alone.covariance[0], together.covariance[run], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(MODELS)),
    st.integers(1, 300),
    st.floats(1e-12, 1e12),
    st.lists(st.floats(-1e9, 1e9), min_size=14, max_size=14),
)
@pytest.mark.slow
def test_whatever_the_answer_the_curve_rises_and_is_finite(
    name: str, answers: int, noise: float, values: list[float]
) -> None:
    model = MODELS[name]
    averages = np.array([values[: 2 * len(model.prior.knots)]])
    posterior = model.fit(averages, answers, noise)
    assert np.isfinite(posterior.curve).all()
    assert (np.diff(posterior.curve) > 0).all()
    posterior.maps(1.0)


def test_where_noise_drowns_the_data_the_prior_speaks(model: Model) -> None:
    length = 2 * len(model.prior.knots)
    noise = 4.0
    below, above = 1.9 * math.sqrt(length * noise), 2.1 * math.sqrt(length * noise)
    averages = np.zeros((4, length))
    averages[1, -1], averages[2, -1], averages[3, 0] = below, above, -1000.0
    posterior = model.fit(averages, 10, noise)
    assert posterior.informative.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(posterior.curve[0], posterior.curve[1])
    np.testing.assert_array_equal(posterior.curve[0], posterior.curve[3])
    assert (posterior.curve[0] != posterior.curve[2]).any()


def public(scale: float = 1.0, rows: int = 400, classes: int = 5, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.standard_normal((rows, classes))
    logits[np.arange(rows), labels] += 2
    return Scores(logits=1.7 * scale * logits, labels=labels)


def test_the_priors_curve_is_its_mean_share_of_correct_rows() -> None:
    """Without data everything has a formula: log-odds e^α·s + b + f, each of them normal."""
    model = MODELS["alone"]
    prior = model.fit(np.zeros((1, 14)), 1, 1.0)
    s = model.grid
    slope = math.exp(WITHOUT_PUBLIC.slope[0])
    mean, variance = prior.log_odds
    np.testing.assert_allclose(mean[0], slope * s + WITHOUT_PUBLIC.level[0])
    expected = (
        (slope * WITHOUT_PUBLIC.slope[1] * s) ** 2
        + WITHOUT_PUBLIC.level[1] ** 2
        + WITHOUT_PUBLIC.bend[0] ** 2
    )
    np.testing.assert_allclose(variance[0], expected)
    unit = (np.arange(4000) + 0.5) / 4000
    normal = np.array([NormalDist().inv_cdf(u) for u in unit])
    log_odds = mean[0] + np.sqrt(variance[0]) * normal[:, None]
    share = (1 / (1 + np.exp(-log_odds))).mean(axis=0)
    np.testing.assert_allclose(1 / (1 + np.exp(-prior.curve[0])), share, atol=0.02)


def test_scaling_all_logits_changes_nothing_where_public_rows_are_known() -> None:
    hidden = public(seed=1, rows=3000)
    found = []
    for scale in (1.0, 0.4, 2.5, 17.0):
        reader = SketchReader.of(public(scale))
        scores = Scores(logits=scale * hidden.outputs.array, labels=hidden.labels)
        query = reader.query
        sketch = query.contributions(scores).sum(query.length)[None] / 2**20 / 100
        posterior = reader.read(sketch, 100, 2 / 100)
        [curve] = posterior.maps(reader.temperature)
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
    with pytest.raises(InputError, match="must be Scores"):
        SketchReader.of(np.zeros((100, 3)))  # type: ignore[arg-type]


def test_own_confidence_is_close_on_the_public_rows_themselves() -> None:
    some = public(rows=5000)
    reader = SketchReader.of(some)
    from privcal.kernel import confidence, log_odds

    s = log_odds(some.outputs, reader.temperature)
    own = confidence(some.outputs, 1.0)
    said = np.interp(s, reader.model.grid, reader.own_confidence)
    assert abs((said - own).mean()) < 0.005
    assert np.abs(said - own).mean() < 0.03


@pytest.mark.parametrize("rows", [20, 2000])
@pytest.mark.parametrize("name", ["public", "alone"])
@pytest.mark.slow
def test_private_evaluation_covers_the_truth_it_estimates(name: str, rows: int) -> None:
    """Accuracy, mean confidence and ECE of hidden rows drawn from the model."""
    model = MODELS[name]
    own = 1 / (1 + np.exp(-1.5 * model.grid))
    reader = SketchReader(model, 1.0, own)
    runs = 40
    eta, density, sketch = simulate(model, 50, rows, 1.0, runs, seed=9)
    posterior = model.fit(sketch, 50, 2 / 50)
    p = 1 / (1 + np.exp(-eta))
    truth = {"accuracy": (density * p).sum(axis=1), "confidence_before": density @ own}
    truth["brier_before"] = (density * (p * (1 - own) ** 2 + (1 - p) * own**2)).sum(axis=1)
    inside = dict.fromkeys(truth, 0)
    after = []
    for run in range(runs):
        found = evaluate_privately(posterior, reader, run=run)
        for measure, values in truth.items():
            estimate = getattr(found, measure)
            inside[measure] += estimate.low <= values[run] <= estimate.high
        curve = 1 / (1 + np.exp(-posterior.curve[run]))
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
