"""`privcal data pack`: logits from elsewhere become an archive, or are refused in one sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from privcal.planning.simulate.archive import read_archive
from tests.cli.test_data import contents, refused
from tests.support.builders import a_table

ROWS, CLASSES = 12, 3
RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, CLASSES, ROWS)
CLEAN, FOG = (RNG.normal(0, 3, (ROWS, CLASSES)) for _ in range(2))


def table(path: Path, logits: Any, labels: Any = None, kind: str = "logit") -> Path:
    columns = {f"{kind}_{i}": logits[:, i] for i in range(logits.shape[1])}
    return a_table(path, columns if labels is None else {"label": labels, **columns})


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("labels.npy", LABELS)
    np.savez("labels.npz", labels=LABELS)
    pl.DataFrame({"label": LABELS, "other": "x"}).write_csv("labels.csv")
    pl.DataFrame({"label": LABELS}).write_parquet("labels.parquet")
    np.save("clean.npy", CLEAN)
    np.save("fog.npy", FOG)
    np.savez("fog.npz", logits=FOG)
    table(Path("fog.csv"), FOG)
    table(Path("fog.parquet"), FOG)
    return tmp_path


ARGS = ("--dataset", "CIFAR-10-C", "--severity", 5, "--network", "ours", "--out", "a.npz")


@pytest.mark.parametrize("labels", ["labels.npy", "labels.npz", "labels.csv", "labels.parquet"])
@pytest.mark.parametrize("fog", ["fog.npy", "fog.npz", "fog.csv", "fog.parquet"])
def test_an_archive_holds_what_was_given_and_says_so(
    run: Any, at: Path, labels: str, fog: str
) -> None:
    said = run.json("data", "pack", "clean.npy", fog, "--labels", labels, *ARGS)
    found = contents(at / "a.npz")
    np.testing.assert_array_equal(found["labels"], LABELS)
    np.testing.assert_allclose(found["clean"], CLEAN, rtol=1e-6)
    np.testing.assert_allclose(found["fog"], FOG, rtol=1e-6)
    meta = json.loads(str(found["meta"]))
    assert said == {"a.npz": meta}
    assert (meta["dataset"], meta["severity"], meta["rows"]) == ("CIFAR-10-C", 5, ROWS)
    assert meta["logits"] == "given, not computed here"
    assert meta["network"] == "ours"
    digest = hashlib.sha256((at / fog).read_bytes()).hexdigest()
    assert meta["files"]["fog"] == f"{fog}, SHA-256 {digest[:16]}"
    right = float((FOG.argmax(1) == LABELS).mean())
    assert meta["accuracy"]["fog"] == pytest.approx(right, abs=1e-4)
    archive = read_archive([at / "a.npz"])
    assert (archive.dataset, archive.severity, archive.shifts) == (
        "CIFAR-10-C",
        5,
        ["fog", "clean"],
    )
    run.ok("data", "check", "a.npz")


def test_a_packed_archive_can_be_studied(run: Any, at: Path) -> None:
    run.ok("data", "pack", "fog.npy", "--labels", "labels.npy", *ARGS)
    (at / "grid.toml").write_text("[epsilon]\nvalues = [1.0, 2.0]\nsources = 2\nsamples = 3\n")
    args = ("--grid", "grid.toml", "--trials", 2, "--methods", "acc-t", "--out", "study")
    run.ok("study", "run", "a.npz", *args)


def test_files_may_hold_their_own_labels_and_names_may_be_said(run: Any, at: Path) -> None:
    np.savez("one.npz", logits=CLEAN.astype(np.float16), labels=LABELS)
    table(Path("two.csv"), FOG, LABELS)
    args = ("data", "pack", "clean=one.npz", "fog=two.csv", "--dataset", "mine", "--out", "a.npz")
    run.ok(*args)
    found = contents(at / "a.npz")
    np.testing.assert_array_equal(found["labels"], LABELS)
    assert (found["clean"].dtype, found["fog"].dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(found["clean"], CLEAN.astype(np.float16))
    assert read_archive([at / "a.npz"]).severity is None


def spoiled(name: str, row: int, value: float) -> None:
    logits = FOG.copy()
    logits[row, 1] = value
    np.save(name, logits)


@pytest.mark.parametrize(
    ("files", "more", "says"),
    [
        (["none.npy"], {}, "there is no file none.npy"),
        (["fog.npy"], {"--labels": "none.npy"}, "there is no file none.npy"),
        (["fog.npy"], {"--labels": "fog.npy"}, "fog.npy must hold one whole number for each row"),
        (["fog.npy"], {"--labels": "halves.npy"}, "halves.npy must hold one whole number for each"),
        (
            ["fog.npy"],
            {"--labels": "fog.csv"},
            "fog.csv has no column label; it has",
        ),
        (["fog.npy"], {"--labels": "gap.csv"}, "gap.csv: label of row 1 is missing"),
        (["fog.npy"], {"--labels": "words.csv"}, "words.csv: label of row 0 is"),
        (
            ["fog.npy"],
            {"--labels": "fog.npz"},
            "fog.npz has no array labels; it has",
        ),
        (["clean.npy", "short.npy"], {}, "short.npy has 11 rows, but there are 12 labels"),
        (["clean.npy", "wide.npy"], {}, "wide.npy has 4 classes, but clean.npy has 3"),
        (["nan.npy"], {}, "nan.npy: "),
        (["huge.npy"], {}, "huge.npy holds a logit beyond what float32 can hold"),
        (["flat.npy"], {}, "flat.npy: "),
        (["cut.npy"], {}, "cut.npy is not a readable .npy file, or is cut short"),
        (["fog.txt"], {}, "fog.txt has an unknown ending"),
        (["odd.csv"], {}, "odd.csv holds probabilities, an archive logits"),
        (["fog.npy"], {"--labels": "far.npy"}, "fog.npy: "),
        (["fog.npy", "fog.csv"], {}, "shift 'fog' is given twice: fog.npy and fog.csv"),
        (["labels=fog.npy"], {}, "a shift cannot be called 'labels'"),
        (["=fog.npy"], {}, "a shift cannot be called ''"),
        (["a/b=fog.npy"], {}, "a shift cannot be called 'a/b'"),
        (["fog.npy"], {"--severity": 6}, "severity must be a whole number from 1 to 5, not 6"),
        (["fog.npy"], {"--out": "a.txt"}, "an archive's name must end in .npz, not a.txt"),
        (["fog.npz"], {"--out": "fog.npz"}, "fog.npz is an input"),
        (["fog.npy"], {"--out": "labels.npz"}, "labels.npz is there; delete it, or rename --out"),
        (["own.npz", "other.npz"], {"--labels": None}, "other.npz has other labels than own.npz"),
        (["fog.csv"], {"--labels": None}, "fog.csv has no column label"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_one_sentence(
    run: Any, at: Path, files: list[str], more: dict[str, Any], says: str
) -> None:
    np.save("short.npy", FOG[1:])
    np.save("wide.npy", np.hstack([FOG, FOG[:, :1]]))
    np.save("flat.npy", FOG[:, 0])
    np.save("halves.npy", LABELS + 0.5)
    np.save("far.npy", LABELS + 1)
    spoiled("nan.npy", 4, np.nan)
    spoiled("huge.npy", 4, 1e300)
    Path("cut.npy").write_bytes(Path("fog.npy").read_bytes()[:-9])
    Path("fog.txt").write_text("1,2,3")
    Path("gap.csv").write_text("label,x\n1,1\n,2\n" + "0,1\n" * (ROWS - 2))
    Path("words.csv").write_text("label\n" + "cat\n" * ROWS)
    table(Path("odd.csv"), np.full((ROWS, 2), 0.5), kind="probability")
    np.savez("own.npz", logits=FOG, labels=LABELS)
    np.savez("other.npz", logits=FOG, labels=LABELS[::-1])
    before = {path.name for path in at.iterdir()}
    given = {"--labels": "labels.npy", "--dataset": "X", "--out": "a.npz", **more}
    words = [word for pair in given.items() if pair[1] is not None for word in pair]
    refused(run("data", "pack", *files, *words), says)
    assert {path.name for path in at.iterdir()} == before
