"""When to answer at all, read off a map on rows without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration.maps import BinsMap, TemperatureMap
from tests.support.every_map import every_map


@pytest.mark.parametrize("name", sorted(every_map(4)))
def test_what_is_answered_and_expected_is_counted_one_row_at_a_time(name: str) -> None:
    rng = np.random.default_rng(0)
    map, logits = every_map(4)[name], rng.normal(0, 3, (200, 4))
    confidence = map.confidence(logits).tolist()
    for t, found in zip(
        (0, 0.5, 1), privcal.abstention(map, logits, thresholds=(0, 0.5, 1)), strict=True
    ):
        answered = [c for c in confidence if c >= t]
        assert (found.confidence, found.rows) == (t, len(answered))
        assert found.answered == len(answered) / 200
        if answered:
            error = sum(1 - c for c in answered) / len(answered)
            assert found.expected_error == pytest.approx(error)
        else:
            assert found.expected_error is None
            assert found.deviation is None


def test_where_the_map_is_right_the_errors_come_true_within_their_deviation() -> None:
    """Labels drawn from the map's own confidence, many times: the shares have that mean and spread."""
    rng = np.random.default_rng(1)
    logits, map = rng.normal(0, 2, (400, 3)), TemperatureMap(1.5)
    [row] = privcal.abstention(map, logits, thresholds=[0.6])
    confidence = map.confidence(logits)
    kept = confidence[confidence >= 0.6]
    wrong = (rng.random((20_000, len(kept))) >= kept).mean(axis=1)
    assert wrong.mean() == pytest.approx(
        row.expected_error, abs=4 * row.deviation / np.sqrt(20_000)
    )
    assert wrong.std() == pytest.approx(row.deviation, rel=0.03)


def test_no_rows_and_a_threshold_that_is_none() -> None:
    [row] = privcal.abstention(TemperatureMap(1.0), np.empty((0, 3)), thresholds=[0.5])
    assert (row.rows, row.answered, row.expected_error, row.deviation) == (0, None, None, None)
    with pytest.raises(privcal.InputError, match="threshold must be"):
        privcal.abstention(TemperatureMap(1.0), [[2.0, 0.0]], thresholds=[1.5])


def test_the_command_prints_a_table_and_json(tmp_path: Path, run: Any) -> None:
    BinsMap((0.25, 0.75)).save(tmp_path / "map.json")
    np.savez(tmp_path / "scores.npz", probabilities=[[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    at = ("thresholds", tmp_path / "map.json", tmp_path / "scores.npz", "--at", "0.5,0.8")
    out, _ = run.ok(*at)
    assert "25.0 % ± 25.0" in " ".join(out.split())
    assert "of 3 rows, by one value for each bin" in out
    half, most = run.json(*at)["thresholds"]
    assert half["expected_error"] == 0.25
    assert (most["rows"], most["expected_error"]) == (0, None)
    assert "--at must be numbers" in run.fails(*at[:-1], "half")


def test_the_command_reads_columns_by_the_names_they_have(tmp_path: Path, run: Any) -> None:
    TemperatureMap(1.0).save(tmp_path / "map.json")
    (tmp_path / "visits.csv").write_text("risk\n0.9\n0.6\n")
    at = ("thresholds", tmp_path / "map.json", tmp_path / "visits.csv", "--at", "0.8")
    assert run(*at)[0] == 2
    said = run.json(*at, "--columns", "probability=risk")
    assert [row["rows"] for row in said["thresholds"]] == [1]
