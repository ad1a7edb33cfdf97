"""A stranger adds one file with a method, and it is everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

import privcal
from tests.conftest import random_scores

METHOD = '''
from dataclasses import dataclass

import numpy as np

from privcal.maps import TemperatureMap
from privcal.methods.base import Ask, Batch, Method, Rounds, register
from privcal.queries import Gap


@register("stranger")
@dataclass(frozen=True)
class Stranger(Method):
    """Twice as warm where the first look says overconfident."""

    warm: float = 2.0
    looks: tuple[float, ...] = (1.0,)

    def run(self, batch: Batch) -> Rounds:
        [gap] = yield [Ask(Gap(), batch.nano_epsilon, np.full(batch.runs, self.looks[0]))]
        return [TemperatureMap(t) for t in np.where(gap[:, 0] < 0, self.warm, self.warm / 2)]
'''


def test_one_file_puts_a_method_into_every_table_figure_and_command(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "privcal"
    shutil.copytree(
        Path(privcal.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "methods" / "stranger.py").write_text(METHOD)
    scores = random_scores(300, seed=3)
    arrays = {
        name: scores.outputs.array * by for name, by in (("clean", 1), ("fog", 1.6), ("snow", 2))
    }
    np.savez(tmp_path / "tiny.npz", labels=scores.labels, **arrays)
    np.savez(tmp_path / "clinic.npz", logits=scores.outputs.array, labels=scores.labels)
    (tmp_path / "grid.toml").write_text(
        "".join(
            f"[{sweep}]\nvalues = {values}\n{rest}\n"
            for sweep, values, rest in (
                ("sources", "[2, 4]", "samples = 5\nepsilon = 1.0"),
                ("samples", "[5, 10]", "sources = 4\nepsilon = 1.0"),
                ("epsilon", "[0.5, 2.0]", "sources = 4\nsamples = 10"),
            )
        )
    )

    def run(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from privcal.cli.app import main; main()", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(
        "study",
        "run",
        "tiny.npz",
        "--grid",
        "grid.toml",
        "--trials",
        "4",
        "--jobs",
        "1",
        "--out",
        "s",
    )
    assert "stranger" in set(pl.read_parquet(tmp_path / "s" / "results.parquet")["method"])
    assert "stranger" in run("study", "table", "s")
    run("study", "figures", "s")
    drawn = list((tmp_path / "s" / "figures").rglob("*.svg"))
    assert drawn
    assert all("stranger" in picture.read_text() for picture in drawn)
    run("study", "report", "s")
    assert "stranger" in (tmp_path / "s" / "report.html").read_text()
    said = run(
        "calibrate",
        "clinic.npz",
        "--new-ledger",
        "--per-row",
        "--method",
        "stranger",
        "--option",
        "warm=3",
        "--option",
        "looks=1.5,2",
        "--out",
        "map.json",
        "--json",
    )
    assert json.loads(said)["map"]["temperature"] in (1.5, 3.0)
    assert json.loads(said)["rounds"][0]["query"]["temperature"] == 1.5
