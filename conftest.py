"""What tests and the examples in docstrings and pages have in common."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Every worker has a core; threads of its own would wait for each other's, and burn time doing so.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

import privcal

EXTRAS = {
    "corruptions": "torch",
    "training": "torch",
    "federation": "nvflare",
    "torch.py": "torch",
    "sklearn.py": "sklearn",
    "secure": "cryptography",
    "onnx": "onnx",
    "scoring": "onnxruntime",
    "serving.md": "torch",
}
"""Packages that cannot be imported, and pages that cannot be run, without an optional library."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without examples, so that none is imported for nothing, and missing extras."""
    name, parts = collection_path.name, collection_path.parts
    if name.startswith("test_") or collection_path.suffix not in (".py", ".md"):
        return None
    absent = any(
        package in parts and find_spec(library) is None for package, library in EXTRAS.items()
    )
    return absent or ">>>" not in collection_path.read_text("utf-8") or None


@pytest.fixture(autouse=True)
def _marks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the marks of whoever runs it."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "elsewhere" / "marks.db"))


@pytest.fixture(autouse=True)
def _examples(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples know `np` and `privcal`, and write their files into a folder of their own."""
    if isinstance(request.node, pytest.DoctestItem):
        names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
        names |= {"np": np, "privcal": privcal}
        monkeypatch.chdir(tmp_path)
