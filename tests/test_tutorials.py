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
