"""Applying a map: probabilities of all classes beside a plain softmax, here and in other runtimes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.special import softmax

from benchmarks import report
from benchmarks.data import synthetic
from benchmarks.paired import ratio, take_turns
from privcal.calibration.maps import BinsMap, CurveMap, Map, OffsetsMap, RiskMap, TemperatureMap

ROWS, CLASSES, ROUNDS = 50_000, 1000, 7
BASE = "scipy's softmax in double"
LINE = tuple(np.linspace(-6.0, 12.0, 30).tolist())


def run() -> None:
    logits, _ = synthetic(ROWS, CLASSES)
    double = logits.astype(np.float64)
    contestants: dict[str, Callable[[], Any]] = {
        BASE: lambda: softmax(double, axis=1),
        "scipy's softmax in single": lambda: softmax(logits, axis=1),
    }
    maps = every_map()
    contestants |= {name: _applied(map, logits) for name, map in maps.items()}
    contestants |= _elsewhere(maps["curve"], logits)
    seconds = take_turns(contestants, ROUNDS)
    times = {name: ratio(taken, seconds[BASE]) for name, taken in seconds.items()}
    report.table(
        f"maps: predict_proba of {ROWS:,} x {CLASSES:,} float32 logits, {ROUNDS} rounds",
        ("what", "median time", f"time / {BASE}"),
        (
            (name, report.duration(statistics.median(taken)), f"{times[name]:.2f}")
            for name, taken in seconds.items()
        ),
    )
    slowest = max(maps, key=lambda name: times[name])
    report.at_most(f"time of the slowest map, {slowest}, over {BASE}", times[slowest], 1.5, "x")


def every_map() -> dict[str, Map]:
    offsets = tuple(np.linspace(-1.0, 1.0, CLASSES).tolist())
    return {
        "temperature": TemperatureMap(1.7),
        "bins": BinsMap((None, 0.3, 0.5, 0.8, 0.9)),
        "curve": CurveMap(1.3, LINE, LINE),
        "risk": RiskMap(1.3, LINE, LINE, event=3),
        "offsets": OffsetsMap(1.3, LINE, LINE, offsets, LINE, LINE),
    }


def _applied(map: Map, logits: Any) -> Callable[[], Any]:
    return lambda: map.predict_proba(logits)


def _elsewhere(map: Map, logits: Any) -> dict[str, Callable[[], Any]]:
    """The curve in onnxruntime and in torch, where these are installed."""
    found: dict[str, Callable[[], Any]] = {}
    if find_spec("onnxruntime"):
        import onnxruntime

        from privcal.adapters.onnx import export

        session = onnxruntime.InferenceSession(export(map, classes=CLASSES).SerializeToString())
        found["curve, in onnxruntime"] = lambda: session.run(["probabilities"], {"logits": logits})
    if find_spec("torch"):
        import torch

        from privcal.adapters.torch import MapModule

        module, tensor = MapModule(map), torch.from_numpy(logits)

        def forward() -> Any:
            with torch.inference_mode():
                return module(tensor)

        found["curve, in torch"] = forward
    return found
