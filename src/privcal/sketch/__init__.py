"""The sketch: one private release; the map, its uncertainty and an evaluation are computed from it."""

from privcal.sketch.evaluation import Estimate, PrivateEvaluation, evaluate_privately
from privcal.sketch.model import Posterior
from privcal.sketch.reading import Reading

__all__ = ["Estimate", "Posterior", "PrivateEvaluation", "Reading", "evaluate_privately"]
