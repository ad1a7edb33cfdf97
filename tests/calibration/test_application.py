"""What `apply` gives back: all that went in but the outputs, and what the map makes of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.calibration import application
from privcal.calibration.application import apply_map, batches, beside, check_written
from privcal.data.columns import AS_NAMED, Layout
from privcal.data.readers import read_scores
from privcal.trusted.errors import InputError
from tests.support.builders import a_table

N, M = 40, 3
LOGITS = np.random.default_rng(3).normal(0, 2, (N, M))
LABELS = np.random.default_rng(4).integers(0, M, N)
NAMES = ("cat", "dog", "eel")
MAP = privcal.TemperatureMap(2.0)
CURVE = privcal.CurveMap(1.0, (-5.0, 5.0), (-3.0, 2.0))


@pytest.fixture(autouse=True)
def _many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "NUMBERS", 50)


def table(named: bool = False) -> pl.DataFrame:
    names = NAMES if named else range(M)
    labels = [NAMES[y] for y in LABELS] if named else LABELS
    return pl.DataFrame(
        {"visit": [f"00{i}" for i in range(N)], "label": labels, "ward": ["ä,b", None] * (N // 2)}
        | {f"logit_{name}": LOGITS[:, j] for j, name in enumerate(names)}
    )


def applied(map: privcal.Map, given: Any, out: Path, **options: Any) -> Path:
    layout = Layout.of(options.pop("columns", None), options.pop("class_names", None))
    parts = batches(map, given, layout, options.get("probabilities", False))
    rows, _ = application.write(out, parts, lambda _: None)
    assert rows == N
    return out


@pytest.mark.parametrize("given", [".csv", ".parquet", ".feather", "frame", "pandas", "arrow"])
def test_all_other_columns_are_kept_in_their_order(tmp_path: Path, given: str) -> None:
    frame: Any = table()
    if given in ("pandas", "arrow"):
        frame = getattr(frame, f"to_{given}")()
    elif given != "frame":
        frame = a_table(tmp_path / f"x{given}", frame)
    out = apply_map(MAP, frame)
    assert out.columns == ["visit", "label", "ward", "predicted", "correct", "confidence"]
    kept = out.select("visit", "ward", pl.col("label").cast(pl.Int64))
    assert kept.equals(table().select("visit", "ward", "label"))
    assert out["confidence"].to_list() == MAP.confidence(LOGITS).tolist()
    assert out["predicted"].to_list() == LOGITS.argmax(1).tolist()
    assert out["correct"].to_list() == (LOGITS.argmax(1) == LABELS).astype(int).tolist()


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz", ".npy"])
@pytest.mark.parametrize("given", [".csv", ".parquet"])
def test_what_was_written_is_read_back_as_scores(
    tmp_path: Path, given: str, ending: str, named: bool, probabilities: bool
) -> None:
    if ending == ".npy" and not probabilities:
        pytest.skip("a .npy file holds probabilities")
    path = a_table(tmp_path / f"x{given}", table(named))
    out = applied(MAP, path, tmp_path / f"probabilities{ending}", probabilities=probabilities)
    classes = NAMES if named and ending == ".npy" else None
    again = privcal.evaluate(read_scores(out, class_names=classes)).to_dict()
    scores = privcal.Scores(logits=LOGITS, labels=LABELS)
    direct = privcal.evaluate(scores, MAP).to_dict()
    assert again == pytest.approx({name: direct[name] for name in again})
    assert ("nll" in again) == probabilities


def test_probabilities_are_called_after_their_classes() -> None:
    out = apply_map(MAP, table(named=True), probabilities=True)
    assert out.columns[-3:] == ["probability_cat", "probability_dog", "probability_eel"]
    assert out.select("^probability_.*$").to_numpy().tolist() == MAP.predict_proba(LOGITS).tolist()
    assert out["predicted"].to_list() == [NAMES[j] for j in LOGITS.argmax(1)]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("form", ["npz", "compressed", "npy"])
def test_arrays_are_read_in_batches(tmp_path: Path, form: str, order: str) -> None:
    logits = np.asarray(LOGITS, np.float16, order=order)  # type: ignore[call-overload]
    ids = np.array([f"p{i}" for i in range(N)])
    if form == "npy":
        for name, array in (("logits", logits), ("labels", LABELS), ("person", ids)):
            np.save(tmp_path / f"{name}.npy", array)
        path = tmp_path
    else:
        path = tmp_path / "x.npz"
        write = np.savez if form == "npz" else np.savez_compressed
        write(path, logits=logits, labels=LABELS, person=ids, other=np.eye(2))
    parts = list(batches(MAP, path, AS_NAMED, False))
    assert len(parts) > 1 or (form != "npy" and order == "F")
    out = pl.concat([part.table() for part in parts])
    assert out["confidence"].to_list() == MAP.confidence(logits).tolist()
    assert out["person"].to_list() == ids.tolist()
    assert out["label"].to_list() == LABELS.tolist()
    assert "other" not in out.columns


def test_a_damaged_file_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, logits=LOGITS, labels=LABELS)
    data = bytearray(path.read_bytes())
    data[data.index(b"logits.npy") + 700] ^= 255  # in the logits themselves
    for content in (data, data[:200]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable"):
            applied(MAP, path, tmp_path / "out.npz")
        assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_no_rows_give_no_rows(tmp_path: Path) -> None:
    empty = table().clear()
    for path in (a_table(tmp_path / "x.csv", empty), a_table(tmp_path / "x.parquet", empty)):
        assert apply_map(MAP, path).columns[-2:] == ["correct", "confidence"]
        assert apply_map(MAP, path).height == 0


def test_a_malformed_row_is_named_by_its_place_in_the_whole_file(tmp_path: Path) -> None:
    logits = LOGITS.copy()
    logits[33, 1] = np.nan
    np.savez(tmp_path / "x.npz", logits=logits)
    with pytest.raises(InputError, match=r"x\.npz: logits row 33, column 1 is nan"):
        apply_map(MAP, tmp_path / "x.npz")
    path = a_table(tmp_path / "x.csv", table())
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:34], text[34].rpartition(",")[0] + ",x", *text[35:]]))
    with pytest.raises(InputError, match="logit_2 of row 33 is 'x', not a number"):
        applied(MAP, path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_label_that_is_no_class_leaves_open_whether_a_row_is_right() -> None:
    frame = table().with_columns(label=pl.Series(["7", None, "x", *map(str, LABELS[3:])]))
    correct = apply_map(MAP, frame)["correct"].to_list()
    assert correct[:3] == [None] * 3
    assert correct[3:] == (LOGITS.argmax(1) == LABELS).astype(int).tolist()[3:]


def test_a_confidence_is_replaced_and_its_row_kept() -> None:
    frame = pl.DataFrame({"id": ["a", "b"], "sure": [0.2, 0.9], "correct": [0, 1]})
    out = apply_map(CURVE, frame, columns={"confidence": "sure"})
    expected = CURVE.confidence(privcal.Scores(confidence=[0.2, 0.9], correct=[0, 1]))
    assert out.rows() == [("a", 0, expected[0]), ("b", 1, expected[1])]
    with pytest.raises(InputError, match="needs the outputs of all classes"):
        apply_map(CURVE, frame, columns={"confidence": "sure"}, probabilities=True)


def test_a_risk_is_given_beside_what_it_predicts() -> None:
    map = privcal.RiskMap(1.0, (-2.0, 2.0), (-1.0, 3.0), event=1)
    out = apply_map(map, pl.DataFrame({"probability": [0.1, 0.4, 0.9]}))
    assert out["risk"].round(3).to_list() == [0.235, 0.644, 0.96]
    assert out["predicted"].to_list() == [0, 1, 1]


def test_a_column_is_not_written_over() -> None:
    with pytest.raises(InputError, match="there is a column predicted already"):
        apply_map(MAP, table().with_columns(predicted=pl.lit(1)))


def test_a_npy_file_holds_probabilities_and_is_called_so(tmp_path: Path) -> None:
    for name, probabilities in (("probabilities.npy", False), ("out.npy", True)):
        with pytest.raises(InputError, match="the probabilities"):
            check_written(tmp_path / name, probabilities)
    assert [p.name for p in beside(tmp_path / "x_probabilities.npy")] == [
        "x_labels.npy",
        "x_person.npy",
    ]
