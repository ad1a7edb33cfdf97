"""The sketch: one private release; the map, its uncertainty and an evaluation are computed from it."""

from privcal.sketch.answers import SketchAnswer, SketchTotal
from privcal.sketch.evaluation import Estimate, PrivateEvaluation, evaluate_privately
from privcal.sketch.model import Posterior
from privcal.sketch.reader import SketchReader
from privcal.sketch.risk import RiskEvaluation, evaluate_risk
from privcal.sketch.sketch import Fitted, Sketch, merge

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
