"""The risk of a class from the command line: asked, shown, read, judged, applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import privcal
from privcal.calibration import default, methods
from tests.support.builders import NEW, a_table

ESTIMATES = {
    "prevalence", "risk_before", "risk_after", "observed_expected_before",
    "observed_expected_after", "intercept_before", "intercept_after", "slope_before",
    "slope_after", "brier_before", "brier_after",
}  # fmt: skip
SHARES = {"prevalence", "risk_before", "risk_after", "brier_before", "brier_after"}


def table(path: Path, seed: int, rows: int = 400) -> Path:
    """A single column of probabilities, of a model whose risk of class 1 is much too low."""
    rng = np.random.default_rng(seed)
    s = rng.normal(-1, 2, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-s - 1.5))).astype(int)
    return a_table(path, {"probability": 1 / (1 + np.exp(-s)), "label": labels})


@pytest.fixture
def clinics(tmp_path: Path) -> list[Path]:
    return [table(tmp_path / f"clinic-{i}.csv", i) for i in range(3)]


@pytest.fixture
def taken(run: Any, clinics: list[Path], tmp_path: Path) -> tuple[dict[str, Any], str]:
    """A sketch of the risk in s.json and its map in map.json: what was said."""
    stdout, stderr = run.ok(
        "calibrate", *clinics, *NEW, "--method", "sketch", "--event", 1, "--json",
        "--out", tmp_path / "map.json", "--sketch", tmp_path / "s.json",
        "--plot", tmp_path / "risk.png",
    )  # fmt: skip
    return json.loads(stdout), stderr


def test_a_risk_is_asked_for_read_again_and_judged(
    run: Any, taken: tuple[dict[str, Any], str], clinics: list[Path], tmp_path: Path
) -> None:
    said, stderr = taken
    assert "this corrects the risk of class 1; without --event" in stderr
    assert said["map"]["kind"] == "risk"
    assert said["map"]["event"] == 1
    assert [asked["query"]["kind"] for asked in said["rounds"]] == ["event-hats"]
    evaluation = said["evaluation"]
    assert evaluation["measured"] is False
    assert evaluation["event"] == 1
    for name in ESTIMATES:
        found = evaluation[name]
        assert found["low"] <= found["value"] <= found["high"], name
        if name in SHARES:
            assert 0 <= found["low"] <= found["high"] <= 1, name
    assert evaluation["observed_expected_before"]["low"] > 1
    assert (tmp_path / "risk.png").read_bytes()[:4] == b"\x89PNG"

    stdout, _ = run.ok("sketch", "show", tmp_path / "s.json")
    assert "other classes" in stdout
    assert "class 1" in stdout
    assert "wrong" not in stdout
    shown = run.json("sketch", "show", tmp_path / "s.json")
    assert set(shown["noisy_totals"]) == {"other classes", "class 1"}

    stdout, _ = run.ok("sketch", "fit", tmp_path / "s.json", "--out", tmp_path / "again.json")
    assert "an increasing curve of the risk of class 1" in stdout
    assert "too low on the whole" in stdout
    again, first = (privcal.load_map(tmp_path / f"{n}.json") for n in ("again", "map"))
    assert again.to_dict()["log_odds"] == first.to_dict()["log_odds"]

    again_said = run.json(
        "evaluate", tmp_path / "s.json", "--private", "--map", tmp_path / "map.json"
    )
    assert {name: again_said[name] for name in ESTIMATES} == {
        name: evaluation[name] for name in ESTIMATES
    }


def test_a_risk_is_applied_and_correctness_is_that_of_the_class_it_predicts(
    run: Any, taken: tuple[dict[str, Any], str], clinics: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    run.ok("apply", tmp_path / "map.json", clinics[0], "--out", out, "--probabilities")
    found = pl.read_csv(out)
    own = pl.read_csv(clinics[0]).drop("probability").columns
    made = ["predicted", "confidence", "correct", "risk", "probability_0", "probability_1"]
    assert sorted(found.columns) == sorted({*own, *made})
    risk, predicted = found["risk"].to_numpy(), found["predicted"].to_numpy()
    assert np.array_equal(risk, found["probability_1"].to_numpy())
    assert np.array_equal(predicted, (risk > 0.5).astype(int))
    assert found["confidence"].to_numpy() == pytest.approx(np.maximum(risk, 1 - risk))

    labels = pl.read_csv(clinics[0])["label"].to_numpy()
    measured = run.json("evaluate", clinics[0], "--map", tmp_path / "map.json")
    assert measured["after"]["accuracy"] == pytest.approx((predicted == labels).mean())
    assert measured["after"]["accuracy"] > measured["before"]["accuracy"]


@pytest.mark.parametrize(
    ("method", "kind", "other"),
    [("sketch", "curve", "--event 1"), ("acc-t", "temperature", "--method sketch --event 1")],
)
def test_a_single_column_of_probabilities_is_told_what_else_could_be_corrected(
    run: Any, clinics: list[Path], tmp_path: Path, method: str, kind: str, other: str
) -> None:
    out = tmp_path / "map.json"
    _, stderr = run.ok("calibrate", *clinics, *NEW, "--method", method, "--out", out)
    assert f"how far the predicted class can be trusted; {other} corrects" in stderr
    assert privcal.load_map(out).kind == kind


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--method", "acc-t", "--event", 1], "--event is for methods like sketch, not for acc-t"),
        (
            ["--method", "sketch", "--event", 1, "--option", "event=1"],
            "event is given twice: with --event and with --option",
        ),
        (
            ["--method", "sketch", "--event", 2],
            "clinic-0.csv has scores of 2 classes, 0 to 1: there is no class 2 to ask about",
        ),
        (["--method", "sketch", "--event", -1], "event must be a whole number from 0"),
    ],
)
def test_an_event_that_cannot_be_is_refused_before_anything_is_charged(
    run: Any, clinics: list[Path], tmp_path: Path, options: list[Any], says: str
) -> None:
    run.ok("ledger", "create", clinics[0], "--per-row")
    assert says in run.fails("calibrate", clinics[0], *options, "--out", tmp_path / "map.json")
    assert not (tmp_path / "map.json").exists()
    assert run.json("ledger", "show", clinics[0])["spent"] == 0


def test_a_sketch_of_a_risk_judges_no_map_of_trust(
    run: Any, taken: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    privcal.CurveMap(1.0, (0.0, 1.0), (0.0, 1.0)).save(tmp_path / "trust.json")
    stderr = run.fails(
        "evaluate", tmp_path / "s.json", "--private", "--map", tmp_path / "trust.json"
    )
    assert "this sketch is about class 1 and the map about being right" in stderr


@pytest.mark.parametrize("rehearse", [False, True])
def test_a_risk_is_not_explained_by_what_is_expected_of_confidence(
    run: Any, clinics: list[Path], tmp_path: Path, rehearse: bool
) -> None:
    more = ["--rehearse"] if rehearse else [*NEW, "--out", tmp_path / "map.json"]
    stdout, stderr = run.ok("calibrate", *clinics, *more, "--event", 1)
    assert "sketch, the only one that corrects the risk of a class" in stdout + stderr
    assert "expected ECE" not in stdout + stderr


def test_only_the_default_method_corrects_a_risk() -> None:
    takes = [m for m in methods.names() if "event" in methods.find(m).__dataclass_fields__]
    assert takes == [default.METHOD]


def test_a_map_of_a_risk_is_measured_on_rows_by_what_clinicians_ask(
    run: Any, taken: tuple[dict[str, Any], str], tmp_path: Path
) -> None:
    mine, picture = table(tmp_path / "mine.csv", 9, rows=2000), tmp_path / "risk.svg"
    arguments = ("evaluate", mine, "--map", tmp_path / "map.json")
    said = run.json(*arguments, "--plot", picture)
    before, after = said["before"], said["after"]
    assert before["event"] == after["event"] == 1
    assert before["prevalence"] == after["prevalence"]
    assert before["auroc"] == pytest.approx(after["auroc"])
    assert before["observed_expected"] > 1.3
    assert abs(after["observed_expected"] - 1) < 0.15
    assert abs(after["intercept"]) < 0.3 < before["intercept"]
    assert abs(after["slope"] - 1) < 0.35
    assert picture.stat().st_size
    stdout, _ = run.ok(*arguments)
    assert "observed_expected" in stdout
    assert "│ event" not in stdout
    assert "auroc" not in run.json("evaluate", mine)["before"]
