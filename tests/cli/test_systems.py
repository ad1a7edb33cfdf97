"""The core runs on Linux, macOS and Windows, as far as that can be seen on Linux."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import privcal
from tests.support.builders import NEW, a_clinic, an_archive

SOURCE = Path(privcal.__file__).parents[1]
WINDOWS = Path(__file__).parents[1] / "support" / "windows.py"  # not to be imported here

MANY = """
import json, sys
from privcal.cli.app import main

ended = []
for command in json.load(open("commands.json", encoding="utf-8")):
    sys.argv = ["privcal", *command]
    try:
        main()
        ended.append(0)
    except SystemExit as stop:
        ended.append(stop.code or 0)
json.dump(ended, open("ended.json", "w", encoding="utf-8"))
"""


def on_windows(folder: Path, commands: list[tuple[str, ...]]) -> tuple[list[int], str]:
    """Exit codes of these commands, in one process on a played Windows, and what it printed."""
    (folder / "path").mkdir()
    (folder / "path" / "sitecustomize.py").write_text(WINDOWS.read_text("utf-8"))
    (folder / "commands.json").write_text(json.dumps(commands))
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "path"), str(SOURCE)]),
            "PYTHONWARNDEFAULTENCODING": "1",
            "PYTHONIOENCODING": "cp1252",  # of a pipe on Windows; it has no ε
        },
        capture_output=True,
        check=False,
    )
    said = done.stdout.decode("utf-8") + done.stderr.decode("utf-8")
    assert done.returncode == 0, said
    return json.loads((folder / "ended.json").read_text()), said


CORE: list[tuple[str, ...]] = [
    ("--version",),
    ("--help",),
    ("calibrate", "--help"),
    ("source", "check", "a.npz"),
    ("ledger", "create", "a.npz", "--per-row", "--epsilon", "4"),
    ("ledger", "create", "icu.csv", "--source-column", "hospital", "--person", "patient"),
    ("ledger", "policy", "a.npz", "--epsilon", "3"),
    ("ledger", "attach", "a.npz", "week.npz"),
    ("calibrate", "a.npz", "b.npz", *NEW, "--option", "hats=6", "--out", "map.json"),
    ("calibrate", "a.npz", "c.npz", *NEW, "--method", "sketch", "--public", "clean.npz",
     "--sketch", "sketch.json", "--plot", "sketch.png", "--out", "curve.json", "--json"),
    ("ledger", "show", "a.npz"),
    ("ledger", "waiting", "a.npz"),
    ("ledger", "reconcile", "a.npz"),
    ("ledger", "export", "a.npz", "--out", "ledger.jsonl"),
    ("sketch", "merge", "sketch.json", "--out", "all.json"),
    ("sketch", "show", "all.json"),
    ("sketch", "fit", "all.json", "--public", "clean.npz", "--out", "fitted.json"),
    ("apply", "map.json", "b.npz", "--out", "applied.parquet"),
    ("apply", "map.json", "b.npz", "--out", "applied.csv"),
    ("evaluate", "b.npz", "--map", "map.json", "--plot", "reliability.svg"),
    ("evaluate", "sketch.json", "--private", "--public", "clean.npz"),
    ("fit", "b.npz", "--out", "exact.json"),
    ("demo", "--sources", "2", "--samples", "8", "--out", "demo"),
    ("demo", "--sources", "2", "--samples", "8", "--out", "demo"),  # over the first
    ("audit", "--only", "gap", "--draws", "1000"),
    ("audit", "b.npz", "--only", "gap"),
    ("advise", "--sources", "3", "--samples", "5", "--trials", "2", "--shifts", "fog"),
    ("study", "run", "tiny.npz", "--grid", "grid.toml", "--trials", "3", "--jobs", "2",
     "--methods", "acc-t", "--out", "study"),
    ("study", "table", "study"),
    ("study", "report", "study"),
    ("data", "--help"),
    ("data", "check", "tiny.npz"),
]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a", "b", "c", "week")):
        a_clinic(tmp_path / f"{name}.npz", seed=seed)
    a_clinic(tmp_path / "clean.npz", rows=200, seed=9)
    (tmp_path / "icu.csv").write_text(
        "hospital,patient,probability,label\n" + "A,p,0.5,1\nB,q,0.25,0\n" * 5
    )
    an_archive(tmp_path / "tiny.npz", 60, seed=0, clean=1, fog=2)
    (tmp_path / "grid.toml").write_text("[sources]\nvalues = [2]\nsamples = 5\nepsilon = 1.0\n")
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="played on Linux alone")
def test_every_command_of_the_core_runs_without_what_only_posix_has(files: Path) -> None:
    ended, said = on_windows(files, CORE)
    assert [command for command, code in zip(CORE, ended, strict=True) if code] == [], said
    assert privcal.load_map(files / "curve.json").private


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="played on Linux alone")
def test_a_federation_without_posix_is_one_sentence(tmp_path: Path) -> None:
    commands: list[tuple[str, ...]] = [
        ("federation", "demo"),
        ("site", "status", "hospital-1"),
        (
            *("federation", "calibrate", "--as", "me", "--mailbox", "box"),
            "--model",
            "m",
            "--out",
            "m",
        ),
    ]
    ended, said = on_windows(tmp_path, commands)
    assert ended == [2, 2, 2]
    assert said == 3 * (
        "error: a federation needs Linux; on Windows that is the Windows Subsystem for Linux\n"
    )
