"""The example for MLflow runs without MLflow, and logs to it where it is there."""

from __future__ import annotations

import json
import math
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

EXAMPLE = Path(__file__).parent.parent / "examples" / "mlflow_example.py"


@pytest.fixture(autouse=True)
def _no_window() -> Any:
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


def test_without_mlflow_the_numbers_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert said["epsilon"] == "1"
    assert float(said["ece_after"]) < float(said["ece_before"])
    assert 0 < float(said["test_ece"]) < 0.15


def test_with_mlflow_numbers_figure_and_map_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, Any] = {}
    fake: Any = ModuleType("mlflow")

    @contextmanager
    def start_run(run_name: str) -> Any:
        logged["run"] = run_name
        yield

    fake.start_run = start_run
    fake.log_params = lambda params: logged.update(params=params)
    fake.log_metrics = lambda metrics: logged.update(metrics=metrics)
    fake.log_figure = lambda figure, name: logged.update(figure=figure)
    fake.log_dict = lambda document, name: logged.update(document=document)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert logged["run"] == "spring"
    assert logged["params"]["method"] == "sketch"
    assert all(math.isfinite(value) for value in logged["metrics"].values())
    assert isinstance(logged["figure"], Figure)
    assert json.loads(json.dumps(logged["document"]))["kind"] == "curve"
