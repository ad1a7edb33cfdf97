"""Calibrated confidence from private data."""

from privcal import audit, methods, metrics, queries, sketch, study
from privcal.advise import Plan, advise
from privcal.calibrate import Result, calibrate
from privcal.errors import CalibrationError, InputError, Refused
from privcal.evaluation import Evaluation, evaluate
from privcal.fit import Fit, fit_temperature
from privcal.maps import BinsMap, CurveMap, Map, OffsetsMap, RiskMap, TemperatureMap, load_map
from privcal.metrics import (
    accuracy,
    aurc,
    brier,
    brier_multiclass,
    classwise_ece,
    debiased_ece,
    debiased_rms,
    ece,
    equal_mass_ece,
    mce,
    mean_confidence,
    nll,
)
from privcal.privacy.ledger import Ledger
from privcal.privacy.policy import Policy
from privcal.question import Question
from privcal.readers import read_scores
from privcal.refinement import refine
from privcal.scores import Scores
from privcal.sketch import Sketch
from privcal.source import Answer, Source
from privcal.sources import attach_data, create_ledgers, open_sources
from privcal.thresholds import Threshold, abstention
from privcal.version import __version__ as __version__

__all__ = [
    "abstention",
    "accuracy",
    "advise",
    "Answer",
    "audit",
    "attach_data",
    "aurc",
    "BinsMap",
    "brier",
    "brier_multiclass",
    "calibrate",
    "CalibrationError",
    "classwise_ece",
    "create_ledgers",
    "CurveMap",
    "debiased_ece",
    "debiased_rms",
    "ece",
    "equal_mass_ece",
    "evaluate",
    "Evaluation",
    "Fit",
    "fit_temperature",
    "InputError",
    "Ledger",
    "load_map",
    "Map",
    "mce",
    "mean_confidence",
    "methods",
    "metrics",
    "nll",
    "OffsetsMap",
    "open_sources",
    "Plan",
    "Policy",
    "queries",
    "Question",
    "read_scores",
    "refine",
    "Refused",
    "Result",
    "RiskMap",
    "Scores",
    "sketch",
    "Sketch",
    "Source",
    "study",
    "TemperatureMap",
    "Threshold",
]
