"""`privcal study`: which grid it takes, and several studies in one table."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from tests.support.study_folder import (
    EXACT,
    THE_PAPERS,
    as_the_paper_says,
    make_study,
    tiny_archive,
)


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Two studies like the paper's and one that is not."""
    few: dict[str, Any] = {"shifts": ["fog", "clean"], "settings": THE_PAPERS["settings"][:2]}
    sets: list[dict[str, Any]] = [
        {**THE_PAPERS, "dataset": "CIFAR-10-C"},
        {**THE_PAPERS, "dataset": "CIFAR-100-C", "archive": {"classes": 100}},
        {**few, "dataset": "ImageNet-C", "archive": {"classes": 1000, "rows": 50_000}},
    ]
    return [
        make_study(tmp_path / name, as_the_paper_says, exact=EXACT, **given)
        for name, given in zip("abc", sets, strict=True)
    ]


def test_the_grid_and_why_it_was_taken_is_said_before_the_work(run: Any, tmp_path: Path) -> None:
    small = ("--methods", "uncalibrated", "--shifts", "fog", "--trials", 1, "--jobs", 1)
    stdout, stderr = run.ok("study", "run", *small, "--out", tmp_path / "s", "--json")
    assert "grid: cifar, the paper's for CIFAR-10 (--grid chooses another)" in stderr
    assert json.loads(stdout)["grid"] == "cifar"
    _, stderr = run.ok(
        "study", "run", *small, "--out", tmp_path / "s", "--grid", "cifar"
    )  # it goes on with the same study
    assert "grid:" not in stderr
    stderr = run.fails("study", "run", tiny_archive(tmp_path), "--out", tmp_path / "t")
    assert "tiny has 300 rows, too few for the paper's grids" in stderr
    assert len(stderr.strip().splitlines()) == 1


def test_several_studies_are_one_table_in_every_format(run: Any, three: list[Path]) -> None:
    ece, _, accuracy = run.json("study", "table", *three)
    acc_t = dict(zip(ece["header"], ece["rows"][-1], strict=True))
    assert acc_t["method"] == "acc-t"
    assert acc_t["CIFAR-10-C median (paper)"] == 0.0836
    assert acc_t["CIFAR-100-C mean (paper)"] == 0.0973
    assert "ImageNet-C median (paper)" not in acc_t
    assert "1 of its 15 perturbations; the settings of grid cifar (2), not of" in ece["caption"]
    assert [5, 1] in ece["best"]
    assert [5, 1] in ece["best_of_the_papers"]
    assert "ImageNet-C accuracy (paper)" not in accuracy["header"]
    stdout, _ = run.ok("study", "table", *three)
    assert stdout.count("\n### ") == 2
    assert "| acc-t | **" in stdout
    code, stdout, stderr = run("study", "table", *three, "--format", "csv")
    assert (code, stdout, "say which with --only (together," in stderr) == (2, "", True)
    code, stdout, _ = run("study", "table", *three, "--format", "csv", "--only", "together")
    rows = list(csv.reader(io.StringIO(stdout)))
    assert [row[0] for row in rows] == ["method", *(row[0] for row in ece["rows"])]
    code, stdout, _ = run("study", "table", *three, "--format", "latex")
    assert r"\multicolumn{4}{c}{CIFAR-10-C}" in stdout
    assert r"\multicolumn{2}{c}{ImageNet-C}" in stdout


def test_one_table_is_chosen_by_its_name(run: Any, three: list[Path]) -> None:
    code, stdout, _ = run("study", "table", three[0], "--only", "overall")
    assert (code, stdout.count("### ")) == (0, 1)
    code, _, stderr = run("study", "table", three[0], "--only", "best")
    assert (code, "there is no table 'best'; there are overall, " in stderr) == (2, True)


def test_on_a_terminal_a_table_is_no_wider_than_it(
    run: Any, three: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    code, stdout, stderr = run("study", "table", three[0])
    assert (code, "|" in stdout, "--only, with overall" in stderr) == (0, False, True)
    assert max(map(len, Text.from_ansi(stdout).plain.splitlines())) <= 100


def test_a_study_that_still_runs_is_read_as_far_as_it_is_done(run: Any, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[sources]\nvalues = [2, 4]\nsamples = 5\nepsilon = 1.0\n")
    small = ("--grid", tmp_path / "grid.toml", "--methods", "acc-t", "--trials", 2, "--jobs", 1)
    folder = tmp_path / "half"
    run.ok("study", "run", tiny_archive(tmp_path), *small, "--out", folder)
    whole = run.json("study", "table", folder)
    for table in ("results", "exact"):
        (folder / f"{table}.parquet").unlink()
    assert run.json("study", "table", folder) == whole
    parts = sorted((folder / "parts").iterdir())
    shift = json.loads(parts[0].read_text())[0]["shift"]
    parts[0].unlink()
    code, stdout, stderr = run("study", "table", folder, "--only", "accuracy", "--format", "csv")
    assert (code, "is not finished" in stderr) == (0, True)
    assert stdout.splitlines()[1:]
    assert not [line for line in stdout.splitlines() if line.startswith(shift)]
    for part in parts[1:]:
        part.unlink()
    assert "no shift of it is" in run.fails("study", "table", folder)


def test_a_table_of_what_is_no_study_or_twice_the_same_is_refused(
    run: Any, three: list[Path], tmp_path: Path
) -> None:
    for wrong, says in (
        (tmp_path / "none", "there is no folder"),
        (tmp_path, "holds no study"),
        (three[0], "two studies are of CIFAR-10-C, severity 5"),
    ):
        stderr = run.fails("study", "table", *three, wrong)
        assert says in stderr
        assert len(stderr.strip().splitlines()) == 1
