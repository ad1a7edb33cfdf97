from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal import compiled


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


@pytest.fixture(scope="module", params=["c", "numpy"])
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs with both kernels; with C only where it is built."""
    if request.param == "c" and not compiled.instruction_sets():
        pytest.skip("the kernel in C is not built here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_KERNEL", request.param)
        yield request.param


@pytest.fixture
def scores() -> privcal.Scores:
    return random_scores(30)


def random_scores(rows: int, classes: int = 5, seed: int = 0, **more: object) -> privcal.Scores:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, classes)).astype(np.float32)
    noisy = logits + rng.gumbel(0, 2, (rows, classes))
    return privcal.Scores(logits=logits, labels=noisy.argmax(axis=1), **more)


NOT_CORE = {"integration", "federation", "study", "simulate", "advise", "audit", "datasets",
            "images", "corruptions", "training", "mail", "onnx", "scoring", "displays", "pages"}  # fmt: skip
"""Folders whose tests `make quick` leaves out; what is slow in the others is marked there."""


FOLDERS = {Path(__file__).parent / name for name in NOT_CORE}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDERS & set(item.path.parents):
            item.add_marker("slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are not wanted, what only they need is not imported either."""
    return True if config.option.markexpr == "not slow" and collection_path in FOLDERS else None
