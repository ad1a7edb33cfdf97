"""Class offsets: two rounds, an offset for each predicted class, and what they are worth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.loop import SourceDropped
from privcal.calibration.maps import OFFSETS, OffsetsMap, load_map
from privcal.calibration.methods.base import Ask, Batch, History, drive, plan
from privcal.calibration.sketch import SketchReader
from privcal.calibration.sketch.offsets import (
    TRUSTS,
    CurveAtOffset,
    OffsetsReader,
    class_offsets,
    costs,
    shifted_curve,
)
from privcal.planning.simulate import answers
from privcal.planning.simulate.measure import measure
from privcal.planning.simulate.splits import Resampled, Splits
from privcal.trusted.epsilon import NANO
from privcal.trusted.errors import Refused
from privcal.trusted.queries import GRID, ClassHats, Hats, OffsetHats
from tests.support.builders import a_source

CLASSES = 4


def biased_scores(rows: int, seed: int, bias: float = 0.0) -> privcal.Scores:
    """Calibrated scores of four classes; then `bias` is added to class 0, which is said too often."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2.5, (rows, CLASSES))
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    logits[:, 0] += bias
    return privcal.Scores(logits=logits, labels=np.minimum(labels, CLASSES - 1))


@pytest.fixture(scope="module")
def public() -> privcal.Scores:
    return biased_scores(1000, 1)


@pytest.fixture(scope="module")
def reader(public: privcal.Scores) -> OffsetsReader:
    return OffsetsReader.of(SketchReader.of(public), 200.0)


# --- offsets from counts ---------------------------------------------------------------------


def slow_offsets(
    counts: np.ndarray, answers: int, noise: float, expected: np.ndarray, p: Any
) -> tuple[list[float], list[float]]:
    """Rows and offset of each class by plain sums over a finer grid, one class at a time."""
    ratios, offsets = np.arange(-5, 5.5, 0.02), np.arange(-5, 5, 0.04)
    evidence = dict.fromkeys(TRUSTS, 0.0)
    means: dict[tuple[float, float], list[tuple[float, float]]] = {pair: [] for pair in TRUSTS}
    accuracy = np.array([p(u) for u in offsets])
    for k, before in enumerate(expected):
        for kappa, tau in TRUSTS:
            total = mean_u = mean_n = 0.0
            for r in ratios:
                n = before * math.exp(r)
                weight = math.exp(-0.5 * (r + 0.5) ** 2) * np.exp(
                    -0.5 * ((offsets + kappa * r) / tau) ** 2
                )
                weight /= tau  # the normal density of u, but for a constant
                for seen, mean in (
                    (counts[0, k], n * (1 - accuracy)),
                    (counts[1, k], n * accuracy),
                ):
                    variance = mean / answers + noise
                    weight = weight * np.exp(-0.5 * (seen - mean) ** 2 / variance) / variance**0.5
                total += weight.sum()
                mean_u += (weight * offsets).sum()
                mean_n += weight.sum() * n
            evidence[kappa, tau] += math.log(total)
            means[kappa, tau].append((mean_n / total, mean_u / total))
    top = max(evidence.values())
    weights = {pair: math.exp(value - top) for pair, value in evidence.items()}
    both = [
        [
            sum(w * means[pair][k][i] for pair, w in weights.items()) / sum(weights.values())
            for k in range(len(expected))
        ]
        for i in (0, 1)
    ]
    return both[0], both[1]


def a_curve() -> CurveAtOffset:
    grid = np.linspace(-3, 6, 19)
    density = np.exp(-0.5 * ((grid - 1) / 2) ** 2)
    return CurveAtOffset(0.7 * grid - 0.4, density / density.sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_offsets_are_the_posterior_means_that_a_finer_grid_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curve = a_curve()
    expected = np.array([6.0, 8.0, 2.0, 4.0])
    truth = rng.normal(0, 1, 4)
    rows = expected * np.exp(-truth)
    accuracy = curve.accuracy(truth)
    counts = np.stack([rows * (1 - accuracy), rows * accuracy]) + rng.normal(0, 0.3, (2, 4))
    found = class_offsets(counts, 50, 0.09, expected, curve)
    slow = slow_offsets(
        counts, 50, 0.09, expected, lambda u: float(curve.accuracy(np.array([u]))[0])
    )
    assert found.rows == pytest.approx(slow[0], rel=0.01)
    assert found.offset == pytest.approx(slow[1], abs=0.03)


def test_many_rows_without_noise_tell_each_classs_offset() -> None:
    curve, truth = a_curve(), np.array([-1.5, 0.0, 0.8, 2.0] * 20)  # more than are worked at once
    expected = np.full(len(truth), 3.0)
    rows = expected * np.exp([1.0, 0.0, -0.5, -1.0] * 20)
    accuracy = curve.accuracy(truth)
    counts = np.stack([rows * (1 - accuracy), rows * accuracy])
    found = class_offsets(counts, 2000, 1e-5, expected, curve)
    assert found.offset == pytest.approx(truth, abs=0.1)
    assert found.rows == pytest.approx(rows, rel=0.05)


def test_a_class_of_which_noise_hides_everything_is_judged_by_the_others_alone() -> None:
    curve = a_curve()
    counts = np.zeros((2, 3))
    found = class_offsets(counts, 50, 1e6, np.full(3, 5.0), curve)
    assert found.offset == pytest.approx(found.offset[0])
    assert np.abs(found.offset).max() < 0.3
    assert found.rows == pytest.approx(5.0, rel=0.1)  # e^r is 1 on average


@pytest.mark.parametrize("answer", [-1e9, 0.0, 1e12])
def test_whatever_is_answered_offsets_are_finite(answer: float) -> None:
    found = class_offsets(np.full((2, 3), answer), 2, 0.5, np.full(3, 5.0), a_curve())
    assert np.isfinite(found.rows).all()
    assert np.isfinite(found.offset).all()
    assert (found.rows > 0).all()


def test_with_offsets_the_curve_says_the_same_of_all_rows_together() -> None:
    rng = np.random.default_rng(3)
    curve = np.sort(rng.normal(0, 8, 65))
    for spread in (0.0, 0.3, 3.0):
        offsets, shares = rng.normal(0, spread, 7), rng.dirichlet(np.ones(7))
        shifted = shifted_curve(curve, offsets, shares)
        assert (np.diff(shifted) > 0).all()
        for eta, new in zip(curve, shifted, strict=True):
            whole = sum(s / (1 + math.exp(-new - u)) for s, u in zip(shares, offsets, strict=True))
            assert whole == pytest.approx(1 / (1 + math.exp(-eta)), rel=1e-8)
    assert shifted_curve(curve, np.zeros(3), np.full(3, 1 / 3)) == pytest.approx(curve, abs=1e-9)


# --- the two rounds --------------------------------------------------------------------------


def exact_averages(query: Any, scores: privcal.Scores, sources: int) -> np.ndarray:
    return query.contributions(scores).sum(query.length)[None, :] / (GRID * sources)


def test_what_is_said_too_often_is_trusted_less_and_the_second_round_asks_so(
    reader: OffsetsReader,
) -> None:
    shifted = biased_scores(3000, 2, bias=3.0)
    assert reader.query == ClassHats(reader.reader.temperature, (-2.0, 4.0), CLASSES)
    [asked] = reader.corrected(exact_averages(reader.query, shifted, 50), 50, 1e-3)
    assert isinstance(asked, OffsetHats)
    assert asked.classes == CLASSES
    assert asked.offsets[0] < min(asked.offsets[1:]) - 1.0
    [map] = reader.maps([asked], exact_averages(asked, shifted, 50), 50, 1e-3)
    plain = SketchReader.of(reader.reader.public)
    posterior = plain.read(exact_averages(plain.query, shifted, 50), 50, 1e-3)
    [without] = plain.maps(posterior)
    fresh = biased_scores(6000, 3, bias=3.0)
    brier = {
        name: float(((m.confidence(fresh) - fresh.correct) ** 2).mean())
        for name, m in (("offsets", map), ("without", without))
    }
    assert brier["offsets"] < 0.85 * brier["without"]
    assert abs(float(map.confidence(fresh).mean() - fresh.correct.mean())) < 0.02


def test_a_run_of_a_batch_is_the_run_alone(reader: OffsetsReader) -> None:
    rng = np.random.default_rng(4)
    data = [biased_scores(1500, seed, bias=seed - 5.0) for seed in (5, 6, 7)]
    first = np.concatenate([exact_averages(reader.query, d, 50) for d in data])
    first += rng.laplace(0, 0.2, first.shape)
    together = reader.corrected(first, 50, 0.08)
    second = np.concatenate([exact_averages(q, d, 50) for q, d in zip(together, data, strict=True)])
    maps = reader.maps(together, second, 50, 0.08)
    for run, map in enumerate(maps):
        [asked] = reader.corrected(first[[run]], 50, 0.08)
        assert asked.offsets == pytest.approx(together[run].offsets, abs=1e-6)
        assert asked.log_odds == pytest.approx(together[run].log_odds, abs=1e-6)
        [alone] = reader.maps([asked], second[[run]], 50, 0.08)
        assert alone.corrected_log_odds == pytest.approx(map.corrected_log_odds, abs=1e-4)
    assert len({q.offsets for q in together}) == 3


def hospitals(count: int, rows: int, epsilon: float = 1.0) -> list[privcal.Source]:
    return [
        a_source(biased_scores(rows, 100 + i, bias=3.0), name=f"h{i}", epsilon=epsilon)
        for i in range(count)
    ]


def test_a_real_run_asks_twice_charges_exactly_epsilon_and_gives_offsets(
    public: privcal.Scores, tmp_path: Path
) -> None:
    sources = hospitals(50, 60, 0.7)
    result = privcal.calibrate(sources, "sketch", 0.7, public=public, class_offsets=True)
    assert [asked.query.kind for asked in result.rounds] == ["class-hats", "offset-hats"]
    assert all(source.ledger.nano_spent == 700_000_000 for source in sources)
    assert result.spent == (0.7,) * 50
    map = result.map
    assert isinstance(map, OffsetsMap)
    assert map.offsets[0] == min(map.offsets)
    assert result.sketch is None
    assert map.note == result.note == OFFSETS
    assert map.provenance["options"]["class_offsets"] is True
    map.save(tmp_path / "map.json")
    assert load_map(tmp_path / "map.json") == map


def test_a_source_that_leaves_between_the_rounds_is_in_neither_average(
    public: privcal.Scores,
) -> None:
    class Leaves:
        name = "leaves"

        def __init__(self) -> None:
            self.source = hospitals(1, 60)[0]

        def answer(self, question: Any, asker: str) -> Any:
            if question.round:
                raise Refused("unavailable")
            return self.source.answer(question, asker)

    with pytest.warns(SourceDropped, match="leaves left in round 2"):
        result = privcal.calibrate(
            [*hospitals(30, 40)[1:], Leaves()], "sketch", 1.0, public=public, class_offsets=True
        )
    assert [len(asked.answers) for asked in result.rounds] == [30, 29]
    assert isinstance(result.map, OffsetsMap)


@pytest.mark.parametrize("nano", [1_000_000_000, 7, 333_333_333])
def test_the_rounds_cost_all_of_epsilon_together(nano: int) -> None:
    first, second = costs(nano)
    assert first + second == nano
    assert abs(second - 0.6 * nano) <= 1


def test_below_a_resolution_of_100_nobody_is_asked(public: privcal.Scores) -> None:
    sources = hospitals(20, 60)  # 30 rows are guessed: 30 · 1 · √10 = 95
    with pytest.raises(privcal.InputError, match=r"needs a resolution of 100.*has 95"):
        privcal.calibrate(sources, "sketch", 1.0, public=public, class_offsets=True)
    assert all(source.ledger.nano_spent == 0 for source in sources)
    known = methods.make("sketch", public=public, class_offsets=True, rows_per_source=60)
    kinds = [ask.query.kind for _, _, ask in plan(known, NANO, sources=20)]
    assert kinds == ["class-hats", "offset-hats"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs public rows"),
        ({"public": "two classes"}, "for 3 to 1,000 classes, not 2"),
        ({"public": "four classes", "event": 1}, "together with event"),
        ({"public": "four classes", "hats": 2}, "together with hats"),
        ({"public": "four classes", "leave_alone": True}, "together with leave_alone"),
    ],
)
def test_what_offsets_cannot_do_is_said_when_the_method_is_made(
    options: dict[str, Any], why: str, public: privcal.Scores
) -> None:
    p = np.linspace(0.05, 0.95, 80)
    two = privcal.Scores(probabilities=p, labels=np.random.default_rng(0).random(80) < p)
    given = {"two classes": two, "four classes": public}
    options = {k: given.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(privcal.InputError, match=why):
        methods.make("sketch", class_offsets=True, **options)


# --- runs that ask different things ----------------------------------------------------------


def test_simulated_sources_answer_each_runs_own_question() -> None:
    scores = biased_scores(400, 8, bias=1.0)
    queries = [OffsetHats(offsets=(0.5 * run, 0.0, -1.0, 0.0)) for run in range(5)]
    ask = Ask.of_runs(queries, NANO)
    splits = Splits.alike(scores, [60, 150], 5, np.random.SeedSequence(0))
    drawn = Resampled(scores).draw(np.random.default_rng(0), 5, 300)
    of_split, of_draws = splits.at(150).sums(ask), drawn.sums(ask)
    for run, query in enumerate(queries):
        assert ask.for_run(run) == query
        mine = scores.take(splits.order[run, :150])
        assert of_split[run].tolist() == query.contributions(mine).sum(query.length).tolist()
        often = np.repeat(np.arange(len(scores)), drawn.counts[run].astype(int))
        mine = scores.take(often)
        assert of_draws[run].tolist() == query.contributions(mine).sum(query.length).tolist()


def test_a_study_runs_it_like_any_method(public: privcal.Scores) -> None:
    method = methods.make("sketch", public=public, class_offsets=True)
    splits = Splits.alike(biased_scores(3000, 9, bias=2.0), [1500], 3, np.random.SeedSequence(0))
    rng = np.random.default_rng(0)
    maps = answers.run(method, splits.at(1500), 50, 1.0, rng, rows_per_source=30)
    assert len({map.offsets for map in maps if isinstance(map, OffsetsMap)}) == 3
    assert (measure(maps, splits.at(1500)).ece < 0.15).all()


def test_zeros_from_everybody_leave_the_prior_and_no_offsets(public: privcal.Scores) -> None:
    method = methods.make("sketch", public=public, class_offsets=True)
    history = History(sources=50)

    def answer(asks: Any) -> History:
        history.extend(np.zeros((1, ask.query.length)) for ask in asks)
        return history

    batch = Batch(1, NANO, np.random.default_rng(0), sources=50, rows_per_source=30)
    [map] = drive(method.run(batch), answer)
    assert isinstance(map, OffsetsMap)
    assert set(map.offsets) == {0.0}
    assert map.informative is False


# --- the map ---------------------------------------------------------------------------------

LINE = (-6.0, 6.0)


def test_the_map_is_a_curve_an_offset_and_a_second_curve() -> None:
    map = OffsetsMap(2.0, (-1.0, 5.0), (-2.0, 1.0), (0.5, -1.5, 0.0), LINE, (-3.0, 3.0))
    data = biased_scores(50, 10)
    data = privcal.Scores(logits=data.outputs.array[:, :3], labels=np.zeros(50, int))
    s = FAST.log_odds(data.outputs, 2.0)
    score = np.interp(s, (-1, 5), (-2, 1)) + np.array([0.5, -1.5, 0.0])[data.outputs.predicted]
    assert map.confidence(data) == pytest.approx(1 / (1 + np.exp(-score / 2)))
    probabilities = map.predict_proba(data)
    assert (probabilities.argmax(axis=1) == data.outputs.predicted).all()
    assert probabilities.sum(axis=1) == pytest.approx(1)
    top = probabilities[np.arange(50), data.outputs.predicted]
    assert (top >= map.confidence(data) - 1e-12).all()


def test_the_map_corrects_the_very_score_that_the_second_round_asks_about() -> None:
    data = biased_scores(300, 11, bias=1.0)
    asked = OffsetHats(1.3, (-1.0, 0.0, 4.0), (-1.0, 0.5, 2.0), (0.3, 0.0, -0.4, 1.0), LINE)
    map = OffsetsMap(1.3, asked.scores, asked.log_odds, asked.offsets, LINE, LINE)
    # With knots as wide as this a row's share of the upper hat is its score.
    rows = asked.contributions(data)
    upper = rows.values[:, 1] / GRID
    score = LINE[0] + upper * (LINE[1] - LINE[0])
    assert map.confidence(data) == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-4)


def test_order_stays_within_a_predicted_class_and_changes_between_classes() -> None:
    map = OffsetsMap(1.0, LINE, LINE, (-2.0, 0.0), LINE, LINE)
    c = map.confidence([[3.0, 0.0], [2.0, 0.0], [0.0, 2.5], [0.0, 1.5]])
    assert c[0] > c[1]
    assert c[2] > c[3] > c[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"offsets": ()}, "offsets must be a list"),
        ({"offsets": (0.0, math.inf)}, "offsets must be a number"),
        ({"log_odds": (1.0, 0.0)}, "must not fall"),
        ({"log_odds": (1.0, 2.0, 3.0)}, "as many as scores"),
        ({"scores": (1.0, 0.0)}, "rise strictly"),
        ({"corrected_log_odds": (1.0, 1.0)}, "rise strictly"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(change: dict[str, Any], why: str) -> None:
    whole = {
        "temperature": 1.0,
        **dict.fromkeys(("scores", "log_odds", "corrected", "corrected_log_odds"), LINE),
        "offsets": (0.0, 0.0),
    }
    OffsetsMap(**whole)
    with pytest.raises(privcal.InputError, match=why):
        OffsetsMap(**{**whole, **change})


def test_a_map_of_other_classes_is_refused() -> None:
    map = OffsetsMap(1.0, LINE, LINE, (0.0, 0.0, 0.0), LINE, LINE)
    with pytest.raises(privcal.InputError, match="3 classes, and the scores have 2"):
        map.confidence([[2.0, 0.0]])


def test_a_sketch_is_never_of_these_questions() -> None:
    for query in (ClassHats(), OffsetHats()):
        assert not isinstance(query, Hats)
