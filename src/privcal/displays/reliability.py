"""Reliability diagrams: accuracy against confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from privcal.displays.diagram import Diagram, binned, estimated
from privcal.errors import InputError
from privcal.evaluation import Evaluation, evaluate
from privcal.maps import CurveMap, Map
from privcal.scores import Scores
from privcal.sketch.evaluation import PrivateEvaluation
from privcal.sketch.sketch import Sketch


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(Diagram):
    """A reliability diagram: how often a model is right, by how sure it is.

    Make one with `from_scores` for rows one may look at, or with `from_sketch` for rows nobody may;
    `plot` draws it, `frame` gives its numbers.

    Of measured rows, the interval of each bin is Clopper and Pearson's: it covers the bin's true
    accuracy in at least `level` of all cases where rows are independent. It is *pointwise*: of 15
    bins at 0.95, one in 20 may miss. Of a sketch, the band is the 95 % credible interval at each
    confidence, of the model's accuracy on the hidden rows.

    Attributes
    ----------
    foretold, observed, low, high, share
        Arrays, one entry for each point: mean confidence, accuracy, its limits, and the share of all
        rows there.
    rows
        The number of rows at each point; None of an estimate.
    after
        Of an estimate: what is foretold at each point after the map.
    level, epsilon
        Of the limits; and of an estimate, the most ε that a source was charged.
    summary, informative
        The measures in words; False where noise drowned the data.
    ax_, figure_
        What `plot` drew on.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.2, 0.7, 0.8, 0.9], labels=[0, 1, 0, 1])
    >>> display = privcal.ReliabilityDisplay.from_scores(scores, bins=4)
    >>> display.frame()["rows"].to_list(), display.observed.round(2).tolist()
    ([1, 3], [1.0, 0.67])
    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> display.plot(figure.add_subplot()).figure_ is figure
    True
    """

    foretold_name = "confidence"
    observed_name = "accuracy"
    open_ends = (True, False)  # a confidence ends at certainty, where rows are

    @classmethod
    def from_scores(
        cls, scores: Scores, map: Map | None = None, bins: int = 15, level: float = 0.95
    ) -> Self:
        """Of rows one may look at, after `map` where one is given; exact, so nothing is private.

        `bins` of equal width, `level` of the interval of each.
        """
        return cls.from_evaluation(evaluate(scores, map, bins), level=level)

    @classmethod
    def from_sketch(
        cls,
        sketch: Sketch,
        public: Scores | None = None,
        map: CurveMap | None = None,
        bins: int = 15,
    ) -> Self:
        """Of hidden rows, as a sketch estimates them: no further cost in privacy.

        `public`, `map` and `bins` are those of `Sketch.evaluate`.
        """
        evaluation = sketch.evaluate(public, map, bins)
        if not isinstance(evaluation, PrivateEvaluation):
            raise InputError("this sketch is about the risk of a class; use RiskDisplay")
        return cls.from_evaluation(evaluation, epsilon=sketch.epsilon)

    @classmethod
    def from_evaluation(
        cls,
        evaluation: Evaluation | PrivateEvaluation,
        *,
        level: float = 0.95,
        epsilon: float | None = None,
    ) -> Self:
        """Of an evaluation that is there already; a private one needs the `epsilon` it rests on.

        `level` is that of measured rows; an estimate has 0.95.
        """
        if isinstance(evaluation, Evaluation):
            e = evaluation
            summary = f"ECE {e.ece:.3f}", f"Brier {e.brier:.3f}", f"AURC {e.aurc:.3f}"
            return cls(**binned(e.reliability, level), summary=summary)
        band, p = evaluation.band, evaluation
        pairs = (("before", p.ece_before, p.brier_before), ("after", p.ece_after, p.brier_after))
        return cls(
            foretold=band.confidence,
            observed=band.accuracy,
            **estimated(band, epsilon),
            summary=tuple(
                f"{when}: ECE {ece.value:.3f}, Brier {brier.value:.3f}"
                for when, ece, brier in pairs
            ),
            informative=evaluation.informative,
        )
