from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privcal


@pytest.fixture(autouse=True)
def _marks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the marks of whoever runs it."""
    monkeypatch.setenv("PRIVCAL_MARKS", str(tmp_path / "elsewhere" / "marks.db"))


@pytest.fixture
def scores() -> privcal.Scores:
    return random_scores(30)


def random_scores(rows: int, classes: int = 5, seed: int = 0, **more: object) -> privcal.Scores:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, classes)).astype(np.float32)
    noisy = logits + rng.gumbel(0, 2, (rows, classes))
    return privcal.Scores(logits=logits, labels=noisy.argmax(axis=1), **more)
