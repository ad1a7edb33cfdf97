"""All metrics of a confidence, in one pass over blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privcal import metrics
from privcal.checks import whole
from privcal.errors import InputError
from privcal.maps import Map, RiskMap, TemperatureMap
from privcal.metrics import AllRows, ClassWise, Mean, Reliability
from privcal.risks import RiskMeasures, measure_risk
from privcal.scores import FloatArray, Scores

_BLOCK = 1 << 20


@dataclass(frozen=True, repr=False)
class Evaluation:
    """All metrics of some labelled scores; what `evaluate` returns.

    The values are exact, so this is only for data one may look at.

    Attributes
    ----------
    rows
        The number of rows.
    accuracy, mean_confidence, ece, mce, brier, brier_multiclass, aurc, nll
        As the functions of the same names in `privcal.metrics`.
    ece_equal_mass, ece_debiased, ece_classwise
        As `equal_mass_ece`, `debiased_ece` and `classwise_ece`. This last, `brier_multiclass` and `nll`
        need the outputs of all classes: NaN where only a confidence is known.
    reliability
        The `privcal.metrics.Reliability` behind the binned metrics, as diagrams draw it.
    risk
        Where an event is given: how good its risk is (`privcal.risks.RiskMeasures`): prevalence,
        mean risk, observed over expected, calibration intercept and slope, Brier score, AUROC.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.25, 0.75], labels=[0, 0])
    >>> privcal.evaluate(scores).to_dict()["accuracy"]
    0.5
    """

    rows: int
    accuracy: float
    mean_confidence: float
    ece: float
    ece_equal_mass: float
    ece_debiased: float
    ece_classwise: float
    mce: float
    brier: float
    brier_multiclass: float
    aurc: float
    nll: float
    reliability: Reliability
    risk: RiskMeasures | None = None

    def to_dict(self) -> dict[str, float | int]:
        """The values by name, those that there are, without the reliability: what `--json` prints."""
        own = {k: v for k, v in vars(self).items() if k not in ("reliability", "risk")}
        known = {name: value for name, value in own.items() if not math.isnan(value)}
        return known if self.risk is None else {**known, **self.risk.to_dict()}

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.rows} rows: accuracy {self.accuracy:.4f}, ECE {self.ece:.4f}, "
            f"Brier {self.brier:.4f})"
        )

    def _repr_html_(self) -> str:
        from privcal.notebook import fragment

        values = {name.replace("_", " "): value for name, value in self.to_dict().items()}
        return fragment("Evaluation", values, "Exact: for data one may look at.")


def evaluate(
    scores: Scores,
    map: Map | None = None,
    bins: int = 15,
    *,
    event: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """All metrics of the confidence of `scores`, after `map` where one is given.

    Parameters
    ----------
    scores
        n labelled rows. No rows are an `InputError`.
    map
        The map whose confidence is measured; by default the model's own (temperature 1). A row is
        correct where the class that the map predicts is the true one.
    bins
        The number of bins of the binned metrics, from 1 to 1,000.
    event
        A class whose risk is measured as well; by default the one that `map` is about, if any.
    progress
        Called with the number of rows that are done, and of all.

    Returns
    -------
    Evaluation
        Exact: nothing here is private.

    Examples
    --------
    >>> logits = np.log([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.25, 0.75]])
    >>> scores = privcal.Scores(logits=logits, labels=[0, 0, 1, 1])
    >>> before = privcal.evaluate(scores)
    >>> round(before.accuracy, 6), round(before.ece, 6), round(before.brier, 6)
    (0.75, 0.0, 0.1875)
    >>> after = privcal.evaluate(scores, privcal.TemperatureMap(0.5))
    >>> round(after.ece, 6), after.aurc == before.aurc
    (0.15, True)
    """
    if len(scores) == 0:
        raise InputError("there are no rows to measure")
    map = map or TemperatureMap(1.0)
    if event is None and isinstance(map, RiskMap):
        event = map.event
    if event is not None:
        if scores.outputs.kind == "confidence":
            raise InputError(
                "the risk of a class needs the outputs of all classes, not a confidence"
            )
        whole("event", event, 0, scores.classes - 1)
    risk: list[FloatArray] = []
    reliability = Reliability.of([], np.array([], bool), bins)
    rows = AllRows.of([], np.array([], bool))
    classwise: ClassWise | None = None
    brier = multiclass = nll = Mean(0.0, 0)
    step = max(1, _BLOCK // scores.classes)
    for start in range(0, len(scores), step):
        block = scores.take(slice(start, start + step))
        confidence = map.confidence(block)
        correct = map.predict(block) == block.labels
        reliability += Reliability.of(confidence, correct, bins)
        rows += AllRows.of(confidence, correct)
        brier += Mean.of((confidence - correct) ** 2)
        if progress is not None:
            progress(min(start + step, len(scores)), len(scores))
        if scores.outputs.kind == "confidence":
            continue
        p = map.predict_proba(block)
        state = ClassWise.of(p, block.labels, bins)
        classwise = state if classwise is None else classwise + state
        multiclass += Mean.of(metrics.brier_multiclass_rows(p, block.labels))
        if event is not None:
            risk.append(p[:, event].copy())
        with np.errstate(divide="ignore"):
            nll += Mean.of(-np.log(p[np.arange(len(block)), block.labels]))
    return Evaluation(
        rows=len(scores),
        accuracy=float(reliability.correct.sum() / len(scores)),
        mean_confidence=float(reliability.confidence.sum() / len(scores)),
        ece=reliability.ece,
        ece_equal_mass=rows.reliability(bins).ece,
        ece_debiased=reliability.debiased_ece,
        ece_classwise=math.nan if classwise is None else classwise.ece,
        mce=reliability.mce,
        brier=brier.value,
        brier_multiclass=math.nan if classwise is None else multiclass.value,
        aurc=rows.aurc,
        nll=math.nan if classwise is None else nll.value,
        reliability=reliability,
        risk=None
        if event is None
        else measure_risk(np.concatenate(risk), scores.labels == event, event),
    )
