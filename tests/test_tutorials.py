"""Every block of the tutorials runs, in order, in an empty folder, and leads where the page says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from tests.support.pages import PAGES, blocks

pytestmark = pytest.mark.slow

COMMAND = "from privcal.cli.app import main; main()"


@pytest.fixture
def follow(tmp_path: Path) -> Any:
    """Do what a tutorial says, and give the folder in which that was done."""

    def run(name: str) -> Path:
        folder, tools = tmp_path / "empty", tmp_path / "tools"
        folder.mkdir()
        tools.mkdir()
        script(tools / "privcal", f"exec {sys.executable} -c '{COMMAND}' \"$@\"")
        script(tools / "python", f'exec {sys.executable} "$@"')
        environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(privcal.__file__).parent.parent),
            "PRIVCAL_MARKS": str(tmp_path / "marks.db"),
        }
        page = f"docs/tutorials/{name}.md"
        for block in blocks(page, PAGES[page]):
            if block.language not in ("sh", "python") or block.marked:
                continue
            shell = ["bash", "-euo", "pipefail", "-c", block.code]
            done = subprocess.run(
                shell if block.language == "sh" else [sys.executable, "-c", block.code],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{block}:\n{block.code}\n{done.stdout}\n{done.stderr}"
        return folder

    return run


def script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_a_vision_model_under_corruption(follow: Any) -> None:
    folder = follow("vision")
    test = privcal.read_scores(folder / "test.npz")
    before = privcal.evaluate(test).ece
    assert before > 0.15
    for name in ("map.json", "own-map.json"):
        assert privcal.evaluate(test, privcal.load_map(folder / name)).ece < before / 2
    assert json.loads((folder / "map.json").read_text())["private"]
    assert (folder / "private.png").stat().st_size > 10_000
    assert (folder / "calibrated.parquet").exists()


def test_a_risk_model_across_hospitals(follow: Any) -> None:
    """Thirty tables and a scikit-learn model become a calibrated ONNX file and a page, in nine commands."""
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: pip install skl2onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'privcal[onnx]'")
    assert sum(line.startswith("privcal ") for line in shell_lines("icu")) < 10
    folder = follow("icu")
    assert len([*(folder / "hospitals").glob("*.parquet")]) == 30

    map = privcal.load_map(folder / "risk.json")
    truth = privcal.read_scores(folder / "truth-scores.parquet")
    before, after = (privcal.evaluate(truth, m, event=1).risk for m in (None, map))
    assert before.observed_expected < 0.7
    assert 0.85 < after.observed_expected < 1.15
    assert after.brier_risk < before.brier_risk

    rows = pl.read_parquet(folder / "truth.parquet").head(500)
    session = onnxruntime.InferenceSession(str(folder / "calibrated.onnx"))
    given = {i.name: rows[i.name].to_numpy()[:, None] for i in session.get_inputs()}
    [risk] = session.run(["calibrated_risk"], given)
    expected = map.predict_proba(truth.take(np.arange(500)))[:, 1]
    assert np.allclose(np.ravel(risk), expected, atol=1e-6)

    for page in ("office.html", "result.html", "ledger.html"):
        text = (folder / page).read_text("utf-8")
        assert "Content-Security-Policy" in text
    assert "ann@lab.org" in (folder / "office.html").read_text("utf-8")


def shell_lines(name: str) -> list[str]:
    page = f"docs/tutorials/{name}.md"
    found = [block for block in blocks(page, PAGES[page]) if block.language == "sh"]
    return [line.strip() for block in found for line in block.code.splitlines()]


def test_the_confidence_of_a_language_model(follow: Any) -> None:
    folder = follow("language")
    truth = privcal.read_scores(folder / "truth.csv")
    before = privcal.evaluate(truth).ece
    assert before > 0.15
    assert privcal.evaluate(truth, privcal.load_map(folder / "map.json")).ece < before / 2
    told = pl.read_csv(folder / "told.csv")
    assert {"confidence", "correct", "user"} <= {*told.columns}


def test_the_same_by_mail(follow: Any) -> None:
    folder = follow("mail")
    assert len([*(folder / "answers").glob("*.json")]) == 8
    map = privcal.load_map(folder / "risk.json")
    assert map.provenance["sources"] == 8
    table = pl.concat([pl.read_csv(path) for path in folder.glob("hospital-*.csv")])
    scores = privcal.Scores(probabilities=table["probability"], labels=table["label"])
    before, after = (privcal.evaluate(scores, m, event=1).risk for m in (None, map))
    assert abs(np.log(after.observed_expected)) < abs(np.log(before.observed_expected)) / 2
