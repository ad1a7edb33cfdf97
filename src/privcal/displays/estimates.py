"""What a sketch estimates, in words: for the terminal, for pages and for figures alike."""

from __future__ import annotations

from privcal.displays.reliability import ReliabilityDisplay
from privcal.displays.risk import RiskDisplay
from privcal.maps import unchanged_in_words
from privcal.sketch.evaluation import Estimate, PrivateEvaluation
from privcal.sketch.risk import RiskEvaluation

Estimated = PrivateEvaluation | RiskEvaluation

DROWNED = (
    "The noise drowned the data: the map and these figures are only what was believed beforehand. "
    "More sources or a larger epsilon would help."
)


def display_of(evaluation: Estimated, epsilon: float) -> ReliabilityDisplay | RiskDisplay:
    """The picture of what a sketch estimates."""
    if isinstance(evaluation, RiskEvaluation):
        return RiskDisplay.from_evaluation(evaluation, epsilon=epsilon)
    return ReliabilityDisplay.from_evaluation(evaluation, epsilon=epsilon)


def unchanged(evaluation: Estimated) -> str:
    """How probable it is that nothing changed, and what came of it."""
    assert evaluation.unchanged is not None
    assert evaluation.unchanged_before is not None
    words = unchanged_in_words(evaluation.unchanged, evaluation.unchanged_before)
    left = " The model was left as it is." if evaluation.left_alone else ""
    return f"{words[0].upper()}{words[1:]}.{left}"


def in_words(evaluation: RiskEvaluation) -> str:
    """What was wrong with the model's own risk, as far as the intervals can tell."""
    ratio, slope = evaluation.observed_expected_before, evaluation.slope_before
    said = []
    if not ratio.low <= 1 <= ratio.high:
        said.append(
            f"The model's own risk is too {'low' if ratio.value > 1 else 'high'} on the whole: for "
            f"every 100 expected there were about {100 * ratio.value:.0f}."
        )
    if not slope.low <= 1 <= slope.high:
        wrong = ("too high", "too low") if slope.value < 1 else ("too low", "too high")
        said.append(f"Its high risks are {wrong[0]} and its low ones {wrong[1]}.")
    return " ".join(said or ["As far as this can tell, the model's own risk fits."])


def measures(evaluation: Estimated) -> list[tuple[str, Estimate, Estimate | None]]:
    """(measure, before, after); one value where the map changes nothing."""
    if isinstance(evaluation, RiskEvaluation):
        e = evaluation
        shown = [("AUROC", e.auroc, None)] if e.auroc is not None else []
        return [
            (f"how often it was class {e.event}", e.prevalence, None),
            ("mean risk", e.risk_before, e.risk_after),
            (
                "observed / expected (1 is right)",
                e.observed_expected_before,
                e.observed_expected_after,
            ),
            ("calibration intercept (0 is right)", e.intercept_before, e.intercept_after),
            ("calibration slope (1 is right)", e.slope_before, e.slope_after),
            ("Brier", e.brier_before, e.brier_after),
            *shown,
        ]
    # No prediction changes, so accuracy has one value.
    return [
        ("accuracy", evaluation.accuracy, None),
        ("mean confidence", evaluation.confidence_before, evaluation.confidence_after),
        ("ECE", evaluation.ece_before, evaluation.ece_after),
        ("Brier", evaluation.brier_before, evaluation.brier_after),
    ]
