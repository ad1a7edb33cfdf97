"""Models and tables for tests of scoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from onnx import numpy_helper, parser

from privcal.data.scoring import Model
from privcal.data.scoring.model import Setup
from privcal.data.scoring.run import scored

FEATURES = tuple(f"f{n}" for n in range(7))
SETUP = Setup("y", "pid", FEATURES)
WIDTH = len(FEATURES)


def numbers(rows: int, seed: int = 0, width: int = WIDTH) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (rows, width)).astype(np.float32)


def frame(x: npt.NDArray[Any], labels: Any = None) -> pl.DataFrame:
    """A table of features, labels and persons."""
    columns: dict[str, Any] = {f"f{n}": x[:, n] for n in range(x.shape[1])}
    columns["y"] = np.zeros(len(x), np.int64) if labels is None else labels
    return pl.DataFrame(columns).with_columns(pid=pl.Series([f"p{n}" for n in range(len(x))]))


def net(body: str, classes: int = 3, opset: int = 17, given: str = "float[N, 7] x") -> Any:
    """A model from its text; `w` is a matrix of weights with a column for each class."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": 3]>\n'
        f"net ({given}) => (float[N, {classes}] y) {{ {body} }}"
    )
    if "w" in body:
        weights = np.random.default_rng(5).normal(size=(WIDTH, classes)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def save(path: Path, model: Any) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def scores(model: Model, table: Path, setup: Setup = SETUP, **more: Any) -> pl.DataFrame:
    return pl.concat(scored(model, table, setup, **more))
