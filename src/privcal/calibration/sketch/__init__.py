"""The sketch: one private release; the map, its uncertainty and an evaluation are computed from it."""

from privcal.calibration.sketch.answers import SketchAnswer, SketchTotal
from privcal.calibration.sketch.evaluation import (
    Estimate,
    PrivateEvaluation,
    RiskEvaluation,
    evaluate_privately,
    evaluate_risk,
)
from privcal.calibration.sketch.model import Posterior
from privcal.calibration.sketch.reader import SketchReader
from privcal.calibration.sketch.sketch import Fitted, Sketch, merge

__all__ = [
    "Estimate",
    "Fitted",
    "Posterior",
    "PrivateEvaluation",
    "RiskEvaluation",
    "Sketch",
    "SketchAnswer",
    "SketchReader",
    "SketchTotal",
    "evaluate_privately",
    "evaluate_risk",
    "merge",
]
