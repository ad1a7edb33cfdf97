"""Calibrated confidence from private data."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from privcal.version import __version__ as __version__

if TYPE_CHECKING:
    from privcal import audit, methods, metrics, queries, sketch, study
    from privcal.advise import Plan, advise
    from privcal.application import apply_map
    from privcal.calibrate import Result, calibrate
    from privcal.displays.plan import PlanDisplay
    from privcal.displays.reliability import ReliabilityDisplay
    from privcal.displays.risk import RiskDisplay
    from privcal.displays.study import StudyDisplay
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
    from privcal.privacy.policy import Policy, SecureRules
    from privcal.question import Question
    from privcal.readers import read_scores
    from privcal.refinement import refine
    from privcal.scores import Scores
    from privcal.secure.panel import Secure
    from privcal.sketch import Sketch
    from privcal.source import Answer, Source
    from privcal.sources import attach_data, create_ledgers, open_sources
    from privcal.thresholds import Threshold, abstention
    from privcal.totals import Total


__all__ = [
    "abstention",
    "accuracy",
    "advise",
    "Answer",
    "apply_map",
    "attach_data",
    "audit",
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
    "PlanDisplay",
    "Policy",
    "queries",
    "Question",
    "read_scores",
    "refine",
    "Refused",
    "ReliabilityDisplay",
    "Result",
    "RiskDisplay",
    "RiskMap",
    "Scores",
    "Secure",
    "SecureRules",
    "Sketch",
    "sketch",
    "Source",
    "study",
    "StudyDisplay",
    "TemperatureMap",
    "Threshold",
    "Total",
]

# Where each name is; a module is imported when somebody asks for a name in it.
_MODULES = ("audit", "methods", "metrics", "queries", "sketch", "study")
_NAMES = {
    "advise": "Plan advise",
    "application": "apply_map",
    "calibrate": "Result calibrate",
    "displays.plan": "PlanDisplay",
    "displays.reliability": "ReliabilityDisplay",
    "displays.risk": "RiskDisplay",
    "displays.study": "StudyDisplay",
    "errors": "CalibrationError InputError Refused",
    "evaluation": "Evaluation evaluate",
    "fit": "Fit fit_temperature",
    "maps": "BinsMap CurveMap Map OffsetsMap RiskMap TemperatureMap load_map",
    "metrics": "accuracy aurc brier brier_multiclass classwise_ece debiased_ece debiased_rms ece "
    "equal_mass_ece mce mean_confidence nll",
    "privacy.ledger": "Ledger",
    "privacy.policy": "Policy SecureRules",
    "question": "Question",
    "readers": "read_scores",
    "refinement": "refine",
    "scores": "Scores",
    "secure.panel": "Secure",
    "sketch": "Sketch",
    "source": "Answer Source",
    "sources": "attach_data create_ledgers open_sources",
    "thresholds": "Threshold abstention",
    "totals": "Total",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """Keep the function where a module of the same name, such as `calibrate`, is imported."""
        hides = name in _WHERE and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if hides else value)


sys.modules[__name__].__class__ = _Package
