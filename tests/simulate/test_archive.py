"""Logit archives: in one part or several, damaged or whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.simulate.archive import read_archive
from tests.conftest import random_scores


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    scores = random_scores(300, seed=3)
    np.savez(
        tmp_path / "tiny.npz",
        labels=scores.labels,
        clean=scores.outputs.array,
        fog=scores.outputs.array * 1.7,
        snow=scores.outputs.array * 0.6,
        meta=json.dumps({"dataset": "tiny", "severity": 3}),
    )
    return tmp_path / "tiny.npz"


def test_an_archive_may_come_in_parts(archive: Path, tmp_path: Path) -> None:
    labels = np.load(archive)["labels"]
    np.savez(tmp_path / "more.npz", labels=labels, rain=np.zeros((300, 5)))
    both = read_archive([archive, tmp_path / "more.npz"])
    assert both.shifts == ["fog", "rain", "snow", "clean"]
    assert (both.dataset, both.severity) == ("tiny", 3)
    (tmp_path / "night").mkdir()
    for part in ("a", "b"):
        np.savez(tmp_path / "night" / f"{part}.npz", labels=labels, **{part: np.zeros((300, 5))})
    assert read_archive(sorted((tmp_path / "night").iterdir())).dataset == "night"
    assert read_archive([tmp_path / "more.npz"]).dataset == "more"
    with pytest.raises(privcal.InputError, match=r"'clean' is in .*tiny\.npz and again in"):
        read_archive([archive, archive])
    np.savez(tmp_path / "other.npz", labels=labels[::-1], hail=np.zeros((300, 5)))
    with pytest.raises(privcal.InputError, match="has other labels"):
        read_archive([archive, tmp_path / "other.npz"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short"])
def test_a_damaged_archive_is_told_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(privcal.InputError, match=r"bad\.npz"):
        read_archive([tmp_path / "bad.npz"])
