"""Scoring a table row by row, against the floor: a bare loop of the runtime over the same rows.

Private rows are run alone, whatever that costs: in batches a row's last bits would depend on its
neighbours. The second column says what it costs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks import report
from benchmarks.paired import ratio, take_turns

ROWS, COLUMNS, ROUNDS = 20_000, 20, 5
BATCH = 1024


def run() -> None:
    try:
        import onnxruntime  # noqa: F401
        import skl2onnx  # noqa: F401
    except ImportError:
        report.note("score is skipped: onnxruntime and skl2onnx are not installed")
        return
    rows = []
    for name, estimator in _estimators().items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append((name, *_case(Path(folder), estimator)))
    report.table(
        f"score: {ROWS:,} rows of {COLUMNS} features from a Parquet file, CPU, one thread "
        f"({ROUNDS} rounds)",
        ("model", "rows/s", "time / bare loop", f"time / batches of {BATCH:,}"),
        rows,
    )


def _estimators() -> dict[str, Any]:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "scaler, logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
        "forest of 100 trees": RandomForestClassifier(100, random_state=0),
        "network of 128, 64": MLPClassifier((128, 64), max_iter=5, random_state=0),
    }


def _case(folder: Path, estimator: Any) -> tuple[str, str, str]:
    from skl2onnx import to_onnx

    from privcal.data.scoring import Model, Setup
    from privcal.data.scoring.run import scored

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    labels = np.digitize(x[:, 0] + rng.normal(size=ROWS), [-1, 1])
    estimator.fit(x[:3000], labels[:3000])
    (folder / "model.onnx").write_bytes(to_onnx(estimator, x[:1]).SerializeToString())
    features = tuple(f"f{n}" for n in range(COLUMNS))
    table = pl.DataFrame({name: x[:, n] for n, name in enumerate(features)})
    table.with_columns(y=pl.Series(labels)).write_parquet(folder / "table.parquet")
    model = Model(folder / "model.onnx", kind="probabilities")
    setup = Setup("y", None, features)

    def loop(size: int) -> Callable[[], Any]:
        session, given = model._graph._session, model.inputs[0].name
        outputs = [model._graph._output]

        def call() -> None:
            for start in range(0, ROWS, size):
                session.run(outputs, {given: x[start : start + size]})

        return call

    seconds = take_turns(
        {
            "ours": lambda: list(scored(model, folder / "table.parquet", setup)),
            "floor": loop(1),
            "batches": loop(BATCH),
        },
        ROUNDS,
    )
    return (
        f"{ROWS / statistics.median(seconds['ours']):,.0f}",
        f"{ratio(seconds['ours'], seconds['floor']):.2f}",
        f"{ratio(seconds['ours'], seconds['batches']):.0f}",
    )
