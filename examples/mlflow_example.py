"""A calibration in MLflow: numbers, a figure and the map, beside everything else of a model.

Run it with `python examples/mlflow_example.py`; where MLflow is not installed, it prints what it
would log. Other trackers take the same: a flat dict, a matplotlib figure, a JSON document.
"""

import numpy as np

import privcal
from privcal.datasets import cifar10c


def log(result: privcal.Result, test: privcal.Scores) -> None:
    """One run; all of `result` was released by the sources, and `test` may be looked at."""
    assert result.sketch is not None
    figure = privcal.ReliabilityDisplay.from_sketch(result.sketch).plot().figure_
    measured = {f"test_{k}": v for k, v in privcal.evaluate(test, result.map).to_dict().items()}
    try:
        import mlflow  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        for name, value in {**result.metrics(), **measured}.items():
            print(f"{name} {value:.4g}")
        return
    with mlflow.start_run(run_name=result.campaign):
        mlflow.log_params({"method": result.method, "epsilon_per_source": result.epsilon})
        mlflow.log_metrics({**result.metrics(), **measured})
        mlflow.log_figure(figure, "hidden_rows.png")
        mlflow.log_dict(result.map.to_dict(), "map.json")


def main() -> None:
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))
    sources = [
        privcal.Source(scores.take(part), ledger=None, name=f"clinic-{i}")  # a rehearsal
        for i, part in enumerate(np.split(rows[:1200], 12))
    ]
    result = privcal.calibrate(sources, "sketch", epsilon=1.0, campaign="spring")
    log(result, scores.take(rows[1200:3200]))


if __name__ == "__main__":
    main()
