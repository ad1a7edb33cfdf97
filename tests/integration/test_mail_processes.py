"""Campaigns by mail with real processes: every command in one of its own, as people run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from tests.support.builders import random_scores

# Whoever runs no server has neither of these libraries.
BASE = "import sys; sys.modules['nvflare'] = sys.modules['cryptography'] = None\n"
MAIN = "from privcal.cli.app import main; main()"


def start(*args: object, marks: Path, cwd: Path, code: str = MAIN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PRIVCAL_MARKS": str(marks / "marks.db"), "PYTHONUNBUFFERED": "1"},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def command(*args: object, marks: Path, cwd: Path, code: str = MAIN) -> str:
    return done(start(*args, marks=marks, cwd=cwd, code=code))


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Six folders, each with data of the same name and marks of its own."""
    folders = []
    for number in range(6):
        folder = tmp_path / f"hospital-{number}"
        folder.mkdir()
        scores = random_scores(40, seed=number)
        np.savez(folder / "data.npz", logits=scores.outputs.array, labels=scores.labels)
        monkeypatch.setenv("PRIVCAL_MARKS", str(folder / "marks.db"))
        privcal.create_ledgers(folder / "data.npz", privcal.Policy(2.0), per_row=True)
        folders.append(folder)
    return folders


@pytest.mark.parametrize(
    "options", [("sketch",), ("acc-t", "--option", "iterations=2")], ids=["sketch", "acc-t"]
)
def test_six_owners_answer_from_their_own_folders_with_the_base_package_alone(
    tmp_path: Path, owners: list[Path], options: tuple[str, ...]
) -> None:
    lab = tmp_path / "lab"
    (lab / "answers").mkdir(parents=True)

    def ours(*args: object) -> dict[str, Any]:
        text = command(*args, "--json", marks=lab, cwd=lab, code=BASE + MAIN)
        return dict(json.loads(text))

    begun = ours("campaign", "new", "--sources", 6, "--out", "q.json", "--method", *options)
    for round in range(begun["rounds"]):
        name = "q.json" if round == 0 else f"q-{round + 1}.json"
        processes = []
        for owner in owners:
            out = lab / "answers" / f"{owner.name}-{round}.json"
            args = ("source", "answer", "data.npz", lab / name, "--out", out, "--yes")
            processes.append(start(*args, marks=owner, cwd=owner, code=BASE + MAIN))
            if len(processes) % 2 == 0:  # two at a time, as there are cores
                for process in processes[-2:]:
                    done(process)
        files = sorted((lab / "answers").glob("*.json"))
        result = ours("calibrate", "--answers", *files, "--out", "map.json")
    assert set(result["spent"].values()) == {1.0}
    assert len(result["spent"]) == 6
    assert privcal.load_map(lab / "map.json").provenance["campaign"] == begun["campaign"]
