"""`privcal score`, as its users type it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")

import privcal
from privcal.data.scoring import model_name
from tests.data.scoring.test_model import PLAIN
from tests.support import scoring_parts as parts

FEATURES = ("--features", ",".join(parts.FEATURES))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return parts.save(tmp_path / "model.onnx", parts.net(PLAIN))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = parts.frame(parts.numbers(25), np.arange(25) % 3)
    rows.with_columns(hospital=pl.lit("Süd")).write_parquet(tmp_path / "visits.parquet")
    return tmp_path / "visits.parquet"


def test_a_table_becomes_scores_that_a_calibration_reads(
    run: Any, model: Path, table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    args = ("score", model, table, "--label", "y", "--person", "pid", *FEATURES)
    said = run.json(*args, "--keep", "hospital", "--out", out)
    assert said == {
        "model": model_name(model),
        "kind": "probabilities",
        "classes": ["0", "1", "2"],
        "tables": [{"table": str(table), "out": str(out), "rows": 25, "left_out": 0}],
    }
    assert pl.read_parquet(out)["hospital"].unique().to_list() == ["Süd"]
    result = tmp_path / "map.json"
    run.ok(
        *("calibrate", out, "--new-ledger", "--person", "person", "--method", "sketch"),
        *("--epsilon", 1, "--out", result),
    )
    assert privcal.load_map(result).provenance["model"] == model_name(model)


@pytest.mark.parametrize("name", ["scores.parquet", "scores.csv"])
def test_scores_are_their_owners_alone(
    run: Any, model: Path, table: Path, tmp_path: Path, name: str
) -> None:
    out, before = tmp_path / name, os.umask(0o022)
    try:
        args = ("score", model, table, "--label", "y", "--per-row", *FEATURES, "--out", out)
        run.ok(*args)
        run.ok(*args)  # in the place of another
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("said", "unit"), [(("--person", "pid"), "person"), (("--per-row",), "row")]
)
def test_a_new_ledger_protects_whom_the_scores_record(
    run: Any, model: Path, table: Path, tmp_path: Path, said: tuple[str, ...], unit: str
) -> None:
    scores, other = tmp_path / "scores.parquet", tmp_path / "other.parquet"
    for out in (scores, other):
        args = ("score", model, table, "--label", "y", *said, *FEATURES, "--out", out)
        run.ok(*args)
    rehearsed = run.json("calibrate", scores, "--rehearse")
    assert rehearsed["unit"] == unit
    assert privcal.create_ledgers(scores)[0].unit == unit
    pl.read_parquet(other).write_parquet(other)  # now it records nothing
    with pytest.raises(privcal.InputError, match="a new ledger says whom it protects"):
        privcal.create_ledgers(other)


def test_a_person_is_no_feature(run: Any, model: Path, table: Path, tmp_path: Path) -> None:
    args = ("score", model, table, "--label", "y", "--person", parts.FEATURES[0], *FEATURES)
    code, _, err = run(*args, "--out", tmp_path / "s.parquet")
    assert (code, "so it cannot be the label or a feature too" in err) == (2, True)


def test_scores_of_another_model_are_not_mapped(
    run: Any, model: Path, table: Path, tmp_path: Path
) -> None:
    """Also where rows are read batch by batch, and labels are not looked at."""
    scores, map = tmp_path / "scores.parquet", tmp_path / "map.json"
    args = ("score", model, table, "--label", "y", "--per-row", *FEATURES, "--out", scores)
    run.ok(*args)
    for name, code in ((model_name(model), 0), ("another", 2)):
        privcal.TemperatureMap(2.0, provenance={"model": name}).save(map)
        for command in (
            ("apply", map, scores, "--out", tmp_path / "m.csv"),
            ("thresholds", map, scores),
        ):
            found, _, err = run(*command)
            assert found == code, err
            assert ("this map is of model another" in err) == (code == 2)


def test_several_tables_go_into_a_folder(
    run: Any, model: Path, table: Path, tmp_path: Path
) -> None:
    pl.read_parquet(table).write_csv(tmp_path / "ward.csv")
    args = ("score", model, table, tmp_path / "ward.csv", "--label", "y", "--per-row", *FEATURES)
    code, _, err = run(*args, "--out", tmp_path / "scores.parquet")
    assert (code, "the scores of 2 tables need a folder" in err) == (2, True)
    assert not (tmp_path / "scores.parquet").exists()
    run.ok(*args, "--out", tmp_path / "scores")
    one, other = (pl.read_parquet(tmp_path / "scores" / f"{n}.parquet") for n in ("visits", "ward"))
    assert one.equals(other)
    code, _, err = run(*args[:2], table, table, *args[4:], "--out", tmp_path / "scores")
    assert (code, "would be written twice" in err) == (2, True)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--out", "visits.parquet"), "is an input; choose another name for the output"),
        (("--out", "model.onnx"), "is an input; choose another name for the output"),
        (("--out", "scores.xlsx"), "has an unknown ending; use .parquet or .csv"),
        (("--out", "s.csv", "--person", "pid"), "say whom a row is about"),
        (("--out", "s.csv", "--keep", "y2"), "has no column y2; it has f0"),
        (("--out", "s.csv", "--as", "odds"), "--as must be one of logits, probabilities"),
        (("--out", "s.csv", "--output", "z"), "the model has no output 'z'; it has y"),
        (
            ("--out", "s.csv", "--classes", "a,b,c"),
            "y of row 0 is '0', not one of the classes a, b, c",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing_behind(
    run: Any,
    model: Path,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    err = run.fails(
        "score", "model.onnx", "visits.parquet", "--label", "y", "--per-row", *FEATURES, *more
    )
    assert sentence in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_malformed_rows_stop_it_or_are_left_out_and_counted(
    run: Any, model: Path, table: Path, tmp_path: Path
) -> None:
    rows = pl.read_parquet(table)
    rows.with_columns(y=pl.when(pl.int_range(25) == 3).then(8).otherwise("y")).write_parquet(table)
    args = ("score", model, table, "--label", "y", "--per-row", *FEATURES, "--out")
    err = run.fails(*args, tmp_path / "s.csv")
    assert "visits.parquet: y of row 3 is '8', not one of the classes 0, 1, 2" in err
    said, err = run.ok(*args, tmp_path / "s.csv", "--skip-malformed")
    assert "24 rows written to" in said
    assert "1 malformed row left out" in said
    assert "a CSV cannot say which model its scores are of" in err
    assert len(privcal.read_scores(tmp_path / "s.csv")) == 24


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate",),
        ("source", "check"),
        ("calibrate", "--new-ledger", "--per-row", "--epsilon", "1", "--out", "map.json"),
    ],
)
def test_a_table_of_features_is_to_be_scored_first(
    run: Any, table: Path, command: tuple[str, ...]
) -> None:
    assert "run privcal score MODEL.onnx TABLE first" in run.fails(*command, table)
