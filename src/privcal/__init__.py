"""Calibrated confidence from private data."""

from importlib import import_module
from typing import TYPE_CHECKING

from privcal.version import __version__ as __version__

if TYPE_CHECKING:
    from privcal import (
        audit as audit,
        methods as methods,
        metrics as metrics,
        queries as queries,
        sketch as sketch,
        study as study,
    )
    from privcal.calibration.application import apply_map as apply_map
    from privcal.calibration.evaluation import Evaluation as Evaluation, evaluate as evaluate
    from privcal.calibration.fit import Fit as Fit, fit_temperature as fit_temperature
    from privcal.calibration.loop import Result as Result, calibrate as calibrate
    from privcal.calibration.maps import (
        BinsMap as BinsMap,
        CurveMap as CurveMap,
        Map as Map,
        OffsetsMap as OffsetsMap,
        RiskMap as RiskMap,
        TemperatureMap as TemperatureMap,
        load_map as load_map,
    )
    from privcal.calibration.metrics import (
        accuracy as accuracy,
        aurc as aurc,
        brier as brier,
        brier_multiclass as brier_multiclass,
        classwise_ece as classwise_ece,
        debiased_ece as debiased_ece,
        debiased_rms as debiased_rms,
        ece as ece,
        equal_mass_ece as equal_mass_ece,
        mce as mce,
        mean_confidence as mean_confidence,
        nll as nll,
    )
    from privcal.calibration.refinement import refine as refine
    from privcal.calibration.sketch import Sketch as Sketch
    from privcal.calibration.thresholds import Threshold as Threshold, abstention as abstention
    from privcal.data.ledger import Ledger as Ledger
    from privcal.data.readers import read_scores as read_scores
    from privcal.data.sources import (
        attach_data as attach_data,
        create_ledgers as create_ledgers,
        open_sources as open_sources,
    )
    from privcal.planning.advise import Plan as Plan, advise as advise
    from privcal.report.diagram import (
        ReliabilityDisplay as ReliabilityDisplay,
        RiskDisplay as RiskDisplay,
    )
    from privcal.report.plan import PlanDisplay as PlanDisplay
    from privcal.report.study.figures import StudyDisplay as StudyDisplay
    from privcal.secure.panel import Secure as Secure
    from privcal.secure.round import Total as Total
    from privcal.trusted.errors import (
        CalibrationError as CalibrationError,
        InputError as InputError,
        Refused as Refused,
    )
    from privcal.trusted.policy import Policy as Policy, SecureRules as SecureRules
    from privcal.trusted.question import Question as Question
    from privcal.data.scores import Scores as Scores
    from privcal.trusted.source import Answer as Answer, Source as Source

# Where each name is; a module is imported when somebody asks for a name in it.
_MODULES = ("audit", "methods", "metrics", "queries", "sketch", "study")
_BESIDE = ("datasets", "kernel", "maps", "onnx", "scoring", "sklearn", "torch")
"""Public modules that a star does not import."""
_NAMES = {
    "planning.advise": "Plan advise",
    "calibration.application": "apply_map",
    "calibration.loop": "Result calibrate",
    "report.diagram": "ReliabilityDisplay RiskDisplay",
    "report.plan": "PlanDisplay",
    "report.study.figures": "StudyDisplay",
    "trusted.errors": "CalibrationError InputError Refused",
    "calibration.evaluation": "Evaluation evaluate",
    "calibration.fit": "Fit fit_temperature",
    "calibration.maps": "BinsMap CurveMap Map OffsetsMap RiskMap TemperatureMap load_map",
    "calibration.metrics": "accuracy aurc brier brier_multiclass classwise_ece debiased_ece debiased_rms ece "
    "equal_mass_ece mce mean_confidence nll",
    "data.ledger": "Ledger",
    "trusted.policy": "Policy SecureRules",
    "trusted.question": "Question",
    "data.readers": "read_scores",
    "calibration.refinement": "refine",
    "data.scores": "Scores",
    "secure.panel": "Secure",
    "calibration.sketch": "Sketch",
    "trusted.source": "Answer Source",
    "data.sources": "attach_data create_ledgers open_sources",
    "calibration.thresholds": "Threshold abstention",
    "secure.round": "Total",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULES, *_WHERE]


def __getattr__(name: str) -> object:
    if name in (*_MODULES, *_BESIDE):
        return import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted((*__all__, *_BESIDE, "__version__"))
