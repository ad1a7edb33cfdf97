"""Public rows get no privacy: rows that have a ledger are refused as such, whatever reads them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from tests.support.builders import NEW, a_clinic

SKETCH = "sketch.json"
READERS = {
    "calibrate": ("calibrate", "b.npz", "--public", "{}", "--out", "new.json"),
    "rehearse": ("calibrate", "open.npz", "--rehearse", "--public", "{}"),
    "a campaign": ("campaign", "new", "--public", "{}", "--asker", "me", "--out", "q.json"),
    "a description": ("campaign", "describe", "--sources", "9", "--public", "{}", "--asker", "me"),
    "advise": ("advise", "--samples", "20", "--sources", "9", "--trials", "2", "--public", "{}",
               "--html", "plan.html"),
    "evaluate": ("evaluate", SKETCH, "--private", "--public", "{}", "--html", "e.html"),
    "show": ("sketch", "show", SKETCH, "--public", "{}", "--html", "s.html"),
    "fit": ("sketch", "fit", SKETCH, "--public", "{}", "--out", "new.json"),
    "prior": ("sketch", "prior", "--public", "{}", "--out", "new.json"),
}  # fmt: skip


@pytest.fixture
def folder(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources with ledgers, a copy of one under another name, and a sketch of both."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a.npz", "b.npz", "clean.npz", "open.npz")):
        a_clinic(tmp_path / name, rows=80, seed=seed)
    saved = ("--public", "clean.npz", "--sketch", SKETCH, "--out", "map.json")
    run.ok("calibrate", "a.npz", "b.npz", *NEW, *saved)
    shutil.copy("a.npz", "copy.npz")
    with np.load("a.npz") as a:
        frame = {f"logit_{i}": column for i, column in enumerate(a["logits"].T)}
        pl.DataFrame({**frame, "label": a["labels"]}).write_parquet("other.parquet")
    return tmp_path


@pytest.mark.parametrize("rows", ["a.npz", "copy.npz", "other.parquet"])
@pytest.mark.parametrize("reader", READERS)
def test_rows_with_a_ledger_are_public_to_nobody(
    reader: str, rows: str, run: Any, folder: Path
) -> None:
    before = sorted(folder.iterdir())
    stderr = run.fails(*(part.format(rows) for part in READERS[reader]))
    assert stderr.count("\n") == 1
    assert "public rows" in stderr
    assert "no privacy" in stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "reader",
    [
        ("advise", "--samples", 20, "--sources", 9, "--trials", 2, "--archive", "a.npz"),
        ("study", "run", "a.npz", "--trials", 2, "--out", "study"),
    ],
)
def test_nothing_is_simulated_on_rows_with_a_ledger(
    reader: tuple[object, ...], run: Any, folder: Path
) -> None:
    """A file of scores is an archive with one shift, called logits: everything would be exact."""
    assert "which has a ledger" in run.fails(*reader)
    assert not (folder / "study").exists()


def test_from_python_too(folder: Path) -> None:
    with pytest.raises(privcal.InputError, match="a simulation on them would show exact figures"):
        privcal.advise(samples=20, sources=9, trials=2, archives=["copy.npz"])
    rows = privcal.read_scores("a.npz")
    with pytest.raises(privcal.InputError, match=r"the public rows are those of .*a\.npz"):
        privcal.advise(samples=20, sources=9, trials=2, public=rows)
