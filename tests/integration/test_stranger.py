"""A stranger adds one file with a method, and it is everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl

import privcal
from tests.support.builders import COMMAND, NEW, a_clinic, an_archive, python

METHOD = '''
from dataclasses import dataclass

import numpy as np

from privcal.maps import TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, Method, Rounds, register
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
    (package / "calibration" / "methods" / "stranger.py").write_text(METHOD)
    an_archive(tmp_path / "tiny.npz", clean=1, fog=1.6, snow=2)
    a_clinic(tmp_path / "clinic.npz", 300, seed=3)
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
        done = python(COMMAND, *args, folder=tmp_path, PYTHONPATH=str(tmp_path / "lib"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ("--grid", "grid.toml", "--trials", "4", "--jobs", "1", "--out", "s")
    run("study", "run", "tiny.npz", *options)
    assert "stranger" in set(pl.read_parquet(tmp_path / "s" / "results.parquet")["method"])
    assert "stranger" in run("study", "table", "s")
    run("study", "figures", "s")
    drawn = list((tmp_path / "s" / "figures").rglob("*.svg"))
    assert drawn
    assert all("stranger" in picture.read_text() for picture in drawn)
    run("study", "report", "s")
    assert "stranger" in (tmp_path / "s" / "report.html").read_text()
    said = run(
        *("calibrate", "clinic.npz", *NEW, "--method", "stranger", "--out", "map.json", "--json"),
        *("--option", "warm=3", "--option", "looks=1.5,2"),
    )
    assert json.loads(said)["map"]["temperature"] in (1.5, 3.0)
    assert json.loads(said)["rounds"][0]["query"]["temperature"] == 1.5
