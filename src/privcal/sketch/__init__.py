"""The sketch: one private release; the map, its uncertainty and an evaluation are computed from it."""

from privcal.sketch.evaluation import Estimate, PrivateEvaluation, evaluate_privately
from privcal.sketch.model import Posterior
from privcal.sketch.reading import Reading
from privcal.sketch.saved import Entry, Fitted, Sketch, merge

__all__ = [
    "Entry",
    "Estimate",
    "Fitted",
    "Posterior",
    "PrivateEvaluation",
    "Reading",
    "Sketch",
    "evaluate_privately",
    "merge",
]
