"""Logit archives: in one part or several, damaged or whole."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.planning.simulate.archive import read_archive
from tests.support.builders import an_archive


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    about = {"dataset": "tiny", "severity": 3}
    return an_archive(tmp_path / "tiny.npz", about=about, clean=1, fog=1.7, snow=0.6)


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


def test_threads_that_read_one_archive_parse_no_two_headers_at_once(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most = 0, 0
    official = np.lib.npyio.NpzFile.__getitem__

    def watched(self: object, name: str) -> np.ndarray:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.005)  # a thread that may come in now, does
        try:
            return official(self, name)
        finally:
            at_once -= 1

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", watched)
    whole = read_archive([archive])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(whole.scores, [whole.shifts[0]] * 8))
    assert most == 1
