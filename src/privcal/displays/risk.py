"""Calibration curves of a risk: how often it was so, against how often it was foretold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from privcal.displays.diagram import Diagram, binned, estimated
from privcal.errors import InputError
from privcal.evaluation import Evaluation, evaluate
from privcal.maps import CurveMap, Map, RiskMap
from privcal.risks import RiskMeasures
from privcal.scores import Scores
from privcal.sketch.evaluation import Estimate
from privcal.sketch.risk import RiskEvaluation
from privcal.sketch.sketch import Sketch


@dataclass(eq=False, repr=False)
class RiskDisplay(Diagram):
    """The calibration curve of the risk of one class: observed against predicted.

    Make one with `from_scores` for rows one may look at, or with `from_sketch` for rows nobody may;
    `plot` draws it with observed/expected, calibration intercept and slope, `frame` gives its numbers.

    Measured rows are put into groups of equally many, from low risk to high, as risks are often small.
    Limits are as those of `ReliabilityDisplay`, for each group by itself.

    Attributes
    ----------
    foretold, observed, low, high, share
        Arrays, one entry for each point: mean risk, how often it was so, its limits, and the share of
        all rows there.
    rows
        The number of rows at each point; None of an estimate.
    after
        Of an estimate: what is foretold at each point after the map.
    level, epsilon
        Of the limits; and of an estimate, the most ε that a source was charged.
    summary, informative
        The measures in words; False where noise drowned the data.
    event
        The class whose risk it is.
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.1, 0.2, 0.4, 0.7], labels=[0, 1, 0, 1])
    >>> display = privcal.RiskDisplay.from_scores(scores, event=1, bins=2)
    >>> display
    RiskDisplay(observed / expected 1.43, intercept 0.81, slope 0.92, AUROC 0.750, measured)
    >>> display.frame()["observed"].to_list()
    [0.5, 0.5]
    """

    foretold_name = "risk"
    observed_name = "observed"
    open_ends = (True, True)

    event: int = field(default=1, kw_only=True)

    @property
    def what(self) -> str:
        """What was observed, in words."""
        return f"how often it was class {self.event}"

    @classmethod
    def from_scores(
        cls,
        scores: Scores,
        map: Map | None = None,
        *,
        event: int | None = None,
        bins: int = 10,
        level: float = 0.95,
    ) -> Self:
        """Of rows one may look at, after `map` where one is given; exact, so nothing is private.

        `event` is the class, by default the one that `map` is about; `bins` groups of rows, `level`
        of the interval of each.
        """
        if event is None and not isinstance(map, RiskMap):
            raise InputError("say which class the risk is of, with event=")
        return cls.from_evaluation(evaluate(scores, map, event=event), bins=bins, level=level)

    @classmethod
    def from_sketch(
        cls, sketch: Sketch, public: Scores | None = None, map: CurveMap | None = None
    ) -> Self:
        """Of hidden rows, as a sketch of an event estimates them: no further cost in privacy.

        `public` and `map` are those of `Sketch.evaluate`.
        """
        evaluation = sketch.evaluate(public, map)
        if not isinstance(evaluation, RiskEvaluation):
            raise InputError("this sketch is about being right; use ReliabilityDisplay")
        return cls.from_evaluation(evaluation, epsilon=sketch.epsilon)

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation | RiskEvaluation,
        *,
        bins: int = 10,
        level: float = 0.95,
        epsilon: float | None = None,
    ) -> Self:
        """Of an evaluation that is there already; a private one needs the `epsilon` it rests on.

        `bins` and `level` are those of measured rows; an estimate has 0.95.
        """
        if isinstance(evaluation, Evaluation):
            if (risk := evaluation.risk) is None:
                raise InputError("no risk was measured; evaluate with event=")
            points = binned(risk.rows.reliability(bins), level)
            return cls(**points, summary=_summary(risk), event=risk.event)
        band, e = evaluation.band, evaluation
        return cls(
            foretold=band.risk,
            observed=band.outcome,
            **estimated(band, epsilon),
            summary=(
                _estimated(
                    "before", e.observed_expected_before, e.intercept_before, e.slope_before
                ),
                _estimated("after", e.observed_expected_after, e.intercept_after, e.slope_after),
            ),
            informative=e.informative,
            event=e.event,
        )


def _summary(risk: RiskMeasures) -> tuple[str, ...]:
    return (
        f"observed / expected {risk.observed_expected:.2f}",
        f"intercept {risk.intercept:z.2f}",
        f"slope {risk.slope:.2f}",
        f"AUROC {risk.auroc:.3f}",
    )


def _estimated(when: str, ratio: Estimate, intercept: Estimate, slope: Estimate) -> str:
    return (
        f"{when}: O/E {ratio.value:.2f}, intercept {intercept.value:z.2f}, slope {slope.value:.2f}"
    )
