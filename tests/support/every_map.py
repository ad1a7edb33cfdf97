"""A map of every kind, and rows that are hard on all of them."""

from __future__ import annotations

import numpy as np

from privcal.calibration.maps import BinsMap, CurveMap, Map, OffsetsMap, RiskMap, TemperatureMap

X = (-2.0, -0.5, 0.0, 1.0, 4.0, 11.0)
Y = (-1.5, -1.0, 0.1, 0.3, 2.0, 2.2)


def every_map(classes: int) -> dict[str, Map]:
    """One or more of each kind, for a model with so many classes (at least 2)."""
    offsets = tuple(np.linspace(-1.0, 1.5, classes).tolist())
    return {
        "cold": TemperatureMap(0.01),
        "unchanged": TemperatureMap(1.0),
        "warm": TemperatureMap(1.7),
        "hot": TemperatureMap(100.0),
        "bins": BinsMap((None, 0.2, 0.7, 0.0, None, 0.9, 1.0)),
        "curve": CurveMap(1.3, X, Y),
        "doubting curve": CurveMap(1.0, (0.0, 2.0), (-3.0, -2.9), ((0.1, 0.2),)),
        "steep curve": CurveMap(0.5, (-1e-3, 0.0, 1e-3), (-500.0, 0.0, 500.0)),
        "left alone": CurveMap(1.0, (-745.0, -1.0, 745.0), (-745.0, -1.0, 745.0)),
        "risk": RiskMap(1.2, X, Y, event=classes - 1),
        "steep risk": RiskMap(0.2, (-1.0, 1.0), (-90.0, 90.0), event=0),
        "offsets": OffsetsMap(0.8, X, (-1.0, -1.0, 0.0, 0.5, 0.5, 3.0), offsets, X, Y),
    }


def hard_logits(classes: int, dtype: type = np.float32) -> np.ndarray:
    """Ordinary rows; ties; rows far apart, very far, and as far as the type goes; all equal."""
    rng = np.random.default_rng(classes)
    rows = rng.normal(0, 1, (300, classes)) * 10 ** rng.uniform(-3, 3.5, (300, 1))
    rows[:30] = rows[:30].round()
    rows[30:40] = 0
    rows[40:50, 0] = rows[40:50, -1] = rows[40:50].max(axis=1)
    most = min(1e30, float(np.finfo(dtype).max))
    rows[50:60] = rng.choice([-most, most, 0.0, 1.0], (10, classes))
    rows[60:70] = rows[60:70].argsort(axis=1) * 300.0  # exp(−300) is a number, exp(−900) is not
    rows[70] = -most
    rows[71] = most
    # Scores of about 690 to 760: where the share of the others ceases to be a number.
    rows[72:142] = 0
    rows[72:142, 0] = np.linspace(690, 760, 70)
    return np.clip(rows, -most, most).astype(dtype)


def hard_probabilities(classes: int) -> np.ndarray:
    logits = hard_logits(classes).astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray((p / p.sum(axis=1, keepdims=True)).astype(np.float32))
