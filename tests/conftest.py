from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line, as a person uses it: exit code, standard output, standard error."""
    from privcal.cli.app import main

    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["privcal", *map(str, args)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return invoke


@pytest.fixture
def scores() -> privcal.Scores:
    return random_scores(30)


def random_scores(rows: int, classes: int = 5, seed: int = 0, **more: object) -> privcal.Scores:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, classes)).astype(np.float32)
    noisy = logits + rng.gumbel(0, 2, (rows, classes))
    return privcal.Scores(logits=logits, labels=noisy.argmax(axis=1), **more)


NOT_CORE = {"integration", "federation", "study", "simulate", "advise", "audit", "datasets",
            "images", "corruptions", "training"}  # fmt: skip
"""Folders whose tests `make quick` leaves out; what is slow in the others is marked there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {Path(__file__).parent / name for name in NOT_CORE}
    for item in items:
        if folders & set(item.path.parents):
            item.add_marker("slow")
