"""A plain script that calls a study: it works under a guard, and without one is told what to write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CALL = """
import privcal
{guard}print(len(privcal.study.run(
    grid="g.toml", methods=["acc-t"], shifts=["fog", "snow"], trials=2, jobs={jobs})))
"""


def script(folder: Path, guard: str, jobs: int) -> subprocess.CompletedProcess[str]:
    (folder / "g.toml").write_text("[sources]\nvalues = [2]\nsamples = 5\nepsilon = 1.0\n")
    (folder / "mine.py").write_text(CALL.format(guard=guard, jobs=jobs))
    return subprocess.run(
        [sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("guard", "jobs"), [('if __name__ == "__main__": ', 2), ("", 1)])
def test_with_a_guard_or_one_process_it_runs(guard: str, jobs: int, tmp_path: Path) -> None:
    done = script(tmp_path, guard, jobs)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_without_a_guard_it_is_told_what_to_write_and_nothing_else(tmp_path: Path) -> None:
    done = script(tmp_path, "", 2)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert 'put the call under if __name__ == "__main__": or say jobs=1' in done.stderr
