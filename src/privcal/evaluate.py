"""Everything we measure about a confidence, in one pass over blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privcal import metrics
from privcal.errors import InputError
from privcal.maps import Map, TemperatureMap
from privcal.metrics import ClassWise, EqualMass, Mean, Reliability
from privcal.scores import Scores

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Evaluation:
    """Exact figures of some labelled scores. Nothing private: only for data one may look at."""

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

    def to_dict(self) -> dict[str, float | int]:
        return {k: v for k, v in vars(self).items() if k != "reliability"}


def evaluate(scores: Scores, map: Map | None = None, bins: int = 15) -> Evaluation:
    """Measure the confidence of `scores`, after `map` where one is given."""
    if len(scores) == 0:
        raise InputError("there are no rows to measure")
    map = map or TemperatureMap(1.0)
    reliability = Reliability.of([], np.array([], bool), bins)
    equal_mass = EqualMass.of([], np.array([], bool))
    classwise: ClassWise | None = None
    brier = multiclass = nll = Mean(0.0, 0)
    step = max(1, _BLOCK // scores.classes)
    for start in range(0, len(scores), step):
        block = scores.take(slice(start, start + step))
        confidence = map.confidence(block)
        p = map.predict_proba(block)
        reliability += Reliability.of(confidence, block.correct, bins)
        equal_mass += EqualMass.of(confidence, block.correct)
        here = ClassWise.of(p, block.labels, bins)
        classwise = here if classwise is None else classwise + here
        brier += Mean.of((confidence - block.correct) ** 2)
        multiclass += Mean.of(metrics.brier_multiclass_rows(p, block.labels))
        with np.errstate(divide="ignore"):
            nll += Mean.of(-np.log(p[np.arange(len(block)), block.labels]))
    assert classwise is not None
    return Evaluation(
        rows=len(scores),
        accuracy=float(reliability.correct.sum() / len(scores)),
        mean_confidence=float(reliability.confidence.sum() / len(scores)),
        ece=reliability.ece,
        ece_equal_mass=equal_mass.reliability(bins).ece,
        ece_debiased=reliability.debiased_ece,
        ece_classwise=classwise.ece,
        mce=reliability.mce,
        brier=brier.value,
        brier_multiclass=multiclass.value,
        aurc=equal_mass.aurc,
        nll=nll.value,
        reliability=reliability,
    )
