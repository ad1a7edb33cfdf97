from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import privcal
from privcal.calibration import compiled


@dataclass(frozen=True)
class Run:
    """The command line, as a person uses it: exit code, standard output, standard error."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    before: tuple[object, ...] = ("privcal",)

    def __call__(self, *args: object) -> tuple[int, str, str]:
        from privcal.cli.app import main

        self.monkeypatch.setattr(sys, "argv", [*map(str, (*self.before, *args))])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        output = self.capsys.readouterr()
        return code, output.out, output.err

    def ok(self, *args: object) -> tuple[str, str]:
        """Where nothing goes wrong: what it prints."""
        code, out, err = self(*args)
        assert code == 0, err
        return out, err

    def fails(self, *args: object, code: int = 2) -> str:
        """Where something is wrong: what is said of it, and no result is printed."""
        found, out, err = self(*args)
        assert (found, out if code == 2 else "") == (code, ""), err
        return err

    def json(self, *args: object) -> Any:
        return json.loads(self.ok(*args, "--json")[0])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    return Run(capsys, monkeypatch)


@pytest.fixture(scope="module", params=["c", "numpy"])
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs with both kernels; with C only where it is built."""
    if request.param == "c" and not compiled.instruction_sets():
        pytest.skip("the kernel in C is not built here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVCAL_KERNEL", request.param)
        yield request.param


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers and secure sums leave as they are, exact."""
    names = ["trusted.source.add_noise"]
    names += ["secure.participant.add_noise_share"] if find_spec("cryptography") else []
    for name in names:
        monkeypatch.setattr(f"privcal.{name}", lambda total, *_: [int(value) for value in total])


@pytest.fixture
def scores() -> privcal.Scores:
    from tests.support.builders import random_scores  # here: a mutant may be what it imports

    return random_scores(30)


NOT_CORE = {
    "integration",
    "transport",
    "planning",
    "lab",
    "report",
    "adapters/test_onnx.py",
    "data/scoring",
}
"""Where tests are that `make quick` leaves out; what is slow in the others is marked there."""


FOLDERS = {Path(__file__).parent / name for name in NOT_CORE}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDERS & {item.path, *item.path.parents}:
            item.add_marker("slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are not wanted, what only they need is not imported either."""
    return True if config.option.markexpr == "not slow" and collection_path in FOLDERS else None
