"""Reliability and risk diagrams: the numbers behind them, and what is drawn of them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import privcal
from privcal import InputError, ReliabilityDisplay, RiskDisplay
from privcal.calibration.binomial import interval
from privcal.calibration.evaluation import RiskMeasures
from privcal.report.diagram import together
from tests.support.builders import a_source, python

RNG = np.random.default_rng


def binary(rows: int = 400, seed: int = 0) -> privcal.Scores:
    """A model whose high risks are too high."""
    rng = RNG(seed)
    s = rng.normal(-1, 2, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-0.6 * s))).astype(int)
    return privcal.Scores(probabilities=1 / (1 + np.exp(-s)), labels=labels)


def sketch(event: int | None = None) -> privcal.Sketch:
    source = a_source(binary(), name="clinic")
    options = {} if event is None else {"event": event}
    found = privcal.calibrate([source], "sketch", epsilon=1.0, **options).sketch
    assert found is not None
    return found


def drawn(display: Any) -> Any:
    return display.plot(Figure().add_subplot(), name="a name").ax_


# --- intervals -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(1, 0), (1, 1), (7, 3), (40, 40), (2000, 1999)])
def test_the_interval_is_clopper_and_pearsons(n: int, k: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(0.9, method="exact")
    assert interval(n, k, 0.9) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_each_interval_covers_the_accuracy_of_its_bin_as_often_as_it_says() -> None:
    """Rows of a bin have probabilities of their own; covered is their mean."""
    level, trials, rows = 0.8, 400, 60
    c = np.linspace(0.5, 1, rows, endpoint=False)
    truth = c**2  # over-confident
    each = [np.mean(part) for part in np.split(truth, 3)]
    rng, covered, widths = RNG(1), np.zeros(3), np.zeros(3)
    for _ in range(trials):
        right = rng.random(rows) < truth
        scores = privcal.Scores(
            probabilities=np.stack([c, 1 - c], axis=1), labels=np.where(right, 0, 1)
        )
        display = ReliabilityDisplay.from_scores(scores, bins=6, level=level)
        covered += (display.low <= each) & (each <= display.high)
        widths += display.high - display.low
    assert (covered / trials >= level - 0.05).all()
    assert (widths / trials < 0.45).all()  # and not by being as wide as can be


def test_a_level_is_a_share() -> None:
    for level in (0, 1, -0.5, 95):
        with pytest.raises(InputError, match="level must be"):
            ReliabilityDisplay.from_scores(binary(), level=level)


# --- measured ------------------------------------------------------------------------------


def test_the_frame_of_measured_rows_has_every_bin_with_rows_as_a_loop_finds_it() -> None:
    scores, bins = binary(), 7
    c, y = privcal.TemperatureMap(1.0).confidence(scores), scores.correct
    frame = ReliabilityDisplay.from_scores(scores, bins=bins).frame()
    expected = []
    for b in range(bins):
        inside = [i for i in range(len(c)) if min(int(c[i] * bins), bins - 1) == b]
        if inside:
            expected.append((len(inside), np.mean(c[inside]), np.mean(y[inside])))
    found = frame.select("rows", "confidence", "accuracy").rows()
    assert np.allclose(found, expected)
    assert frame["share"].sum() == pytest.approx(1)
    assert (frame["low"] <= frame["accuracy"]).all()
    assert (frame["accuracy"] <= frame["high"]).all()


def test_the_map_is_applied_before_rows_are_put_into_bins() -> None:
    scores, map = binary(), privcal.TemperatureMap(3.0)
    display = ReliabilityDisplay.from_scores(scores, map)
    assert display.share @ display.foretold == pytest.approx(map.confidence(scores).mean())
    assert display.foretold.max() < ReliabilityDisplay.from_scores(scores).foretold.max()


def test_a_risk_is_put_into_groups_of_equally_many_rows() -> None:
    display = RiskDisplay.from_scores(binary(), event=0, bins=4)
    frame = display.frame()
    assert frame["rows"].to_list() == [100] * 4
    assert frame["risk"].is_sorted()
    assert "class 0" in display.what
    with pytest.raises(InputError, match="event="):
        RiskDisplay.from_scores(binary())
    with pytest.raises(InputError, match="event must be"):
        RiskDisplay.from_scores(binary(), event=2)


# --- the measures of a risk ----------------------------------------------------------------


def slow(risk: np.ndarray, outcome: np.ndarray) -> dict[str, float]:
    """O/E, intercept, slope and AUROC by their definitions: pairs, and a search for the maximum."""
    from scipy import optimize

    odds = np.log(risk / (1 - risk))

    def loss(a: float, b: float) -> float:
        z = a + b * odds
        return float(np.sum(np.log1p(np.exp(z)) - outcome * z))

    pairs = [(x, z) for x in risk[outcome] for z in risk[~outcome]]
    return {
        "observed_expected": outcome.sum() / risk.sum(),
        "intercept": optimize.minimize_scalar(lambda a: loss(a, 1.0)).x,
        "slope": optimize.minimize(lambda v: loss(*v), [0, 1], tol=1e-10).x[1],
        "auroc": np.mean([(x > z) + 0.5 * (x == z) for x, z in pairs]),
        "prevalence": outcome.mean(),
        "risk": risk.mean(),
        "brier_risk": np.mean((risk - outcome) ** 2),
    }


@pytest.mark.parametrize("places", [2, 17])
def test_the_measures_of_a_risk_are_those_of_their_definitions(places: int) -> None:
    scores = binary()
    risk = np.clip(scores.outputs.array[:, 0].round(places), 0.001, 0.999)
    scores = privcal.Scores(probabilities=risk, labels=scores.labels)
    found = privcal.evaluate(scores, event=1).risk
    assert found is not None
    for name, value in slow(risk, scores.labels == 1).items():
        assert getattr(found, name) == pytest.approx(value, abs=2e-5), name


def test_what_rows_cannot_tell_of_a_risk_is_nan_and_not_a_large_number() -> None:
    def measured(risk: list[float], labels: list[int]) -> RiskMeasures:
        found = privcal.evaluate(privcal.Scores(probabilities=risk, labels=labels), event=1).risk
        assert found is not None
        return found

    parted = measured([0.1, 0.2, 0.2, 0.9], [0, 0, 1, 1])  # but for a tie
    assert np.isnan(parted.slope)
    assert np.isfinite(parted.intercept)
    assert np.isnan(measured([0.5, 0.5], [0, 1]).slope)
    alone = measured([0.1, 0.2], [0, 0])
    assert np.isnan([alone.slope, alone.intercept, alone.auroc]).all()
    assert alone.observed_expected == 0
    assert np.isfinite(measured([0.0, 1.0, 0.3, 0.6], [1, 0, 0, 1]).slope)


# --- estimated -----------------------------------------------------------------------------


def test_an_estimate_is_a_band_and_says_that_nothing_was_measured() -> None:
    found = sketch()
    display = ReliabilityDisplay.from_sketch(found)
    evaluation = found.evaluate()
    assert display.frame().columns == ["confidence", "after", "accuracy", "low", "high", "share"]
    assert np.array_equal(display.low, evaluation.band.low)
    assert np.array_equal(display.high, evaluation.band.high)
    axes = drawn(display)
    assert "nothing here was measured" in axes.get_title()
    assert not axes.containers  # no error bars, which would look counted
    with pytest.raises(InputError, match="use ReliabilityDisplay"):
        RiskDisplay.from_sketch(found)


def test_a_sketch_of_an_event_gives_its_risk() -> None:
    found = sketch(event=1)
    display = RiskDisplay.from_sketch(found)
    assert display.event == 1
    assert np.array_equal(display.observed, found.evaluate().band.observed)
    assert "class 1" in drawn(display).get_ylabel()
    with pytest.raises(InputError, match="use RiskDisplay"):
        ReliabilityDisplay.from_sketch(found)


# --- drawing -------------------------------------------------------------------------------


def test_plot_draws_where_it_is_told_and_gives_the_display_back() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    display = ReliabilityDisplay.from_scores(binary())
    assert display.plot(right, name="mine") is display
    assert display.ax_ is right
    assert display.figure_ is figure
    assert right.get_title() == "mine"
    assert not left.lines


def test_without_axes_a_figure_of_pyplot_is_made() -> None:
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    pyplot.close("all")  # whatever another test left open
    display = RiskDisplay.from_scores(binary(), event=1).plot()
    assert pyplot.get_fignums() == [display.figure_.number]
    pyplot.close(display.figure_)


@pytest.mark.parametrize("columns", [1, 3])
def test_no_labels_of_neighbouring_panels_meet_and_none_is_cut_off(columns: int) -> None:
    panels = [(f"panel {i}", ReliabilityDisplay.from_scores(binary(seed=i))) for i in range(4)]
    figure = together(panels, "a title", columns=columns)
    figure.savefig(io.BytesIO())
    places = []
    for axes in [a for top in figure.axes for a in (top, *top.child_axes)]:
        for axis in (axes.xaxis, axes.yaxis):
            shown = [tick.label1 for tick in axis.get_major_ticks() if tick.label1.get_visible()]
            texts = [text for text in (*shown, axis.label) if text.get_text()]
            places += [text.get_window_extent() for text in texts]
    assert len(places) > 20
    for axes in figure.axes[: len(panels)]:  # the others are empty
        [strip] = axes.child_axes
        assert not axes.xaxis.label.get_window_extent().overlaps(strip.patch.get_window_extent())
        for tick in strip.xaxis.get_major_ticks():  # within their own panel, wherever others are
            box, panel = tick.label1.get_window_extent(), axes.patch.get_window_extent()
            assert panel.x0 - 2 <= box.x0
            assert box.x1 <= panel.x1 + 2
    whole = figure.bbox
    for i, box in enumerate(places):
        assert (whole.min <= box.min).all()
        assert (box.max <= whole.max).all()
        assert not any(box.overlaps(other) for other in places[:i])


def test_a_display_is_made_without_loading_what_draws() -> None:
    code = (
        "import sys, privcal\n"
        "s = privcal.Scores(probabilities=[0.2, 0.8], labels=[0, 0])\n"
        "privcal.ReliabilityDisplay.from_scores(s)\n"
        "privcal.RiskDisplay.from_scores(s, event=1)\n"
        "print({'matplotlib', 'polars'} & set(sys.modules))"
    )
    assert python(code).stdout.strip() == "set()"
