"""The examples run, on files made here in the layout of the real ones."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import privcal
from privcal.trusted.errors import InputError

EXAMPLE = Path(__file__).parent.parent / "examples" / "hospitals.py"
HOSPITALS, ROWS = 12, 8


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_hospitals", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_hospitals"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def icu(tmp_path: Path) -> Path:
    """Person p0 is in two hospitals, p1 has two rows in one; one region is blank."""
    rng = np.random.default_rng(0)
    rows = HOSPITALS * ROWS
    hospital = np.repeat(np.arange(HOSPITALS), ROWS)
    risk = rng.beta(1, 4, rows)
    person = [f"p{i}" for i in range(rows)]
    person[ROWS] = "p0"
    person[2] = "p1"
    table = pl.DataFrame(
        {
            "hospital": hospital,
            "region": [("North", "South", None)[h % 3] for h in hospital],
            "person": person,
            "probability": risk,
            "label": (rng.random(rows) < risk).astype(int),
        }
    )
    table.write_csv(tmp_path / "icu.csv")
    return tmp_path / "icu.csv"


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    """Two files as UCI has them (no header, question marks), two with a header and blanks."""
    folder = tmp_path / "heart"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name, rows, bare in (
        ("cleveland", 180, True),
        ("hungarian", 80, True),
        ("switzerland", 24, False),
        ("va", 30, False),
    ):
        age = rng.integers(30, 75, rows)
        table = pl.DataFrame(
            {
                "age": age,
                "sex": rng.integers(0, 2, rows),
                "cp": rng.integers(1, 5, rows),
                "trestbps": rng.integers(100, 180, rows),
                "chol": np.where(rng.random(rows) < 0.3, 0, rng.integers(150, 350, rows)),
                "fbs": rng.integers(0, 2, rows),
                "restecg": rng.integers(0, 3, rows),
                "thalach": rng.integers(90, 190, rows),
                "exang": rng.integers(0, 2, rows),
                "oldpeak": rng.random(rows).round(1),
                "slope": rng.integers(1, 4, rows),
                "ca": [None if rng.random() < 0.2 else 1.0 for _ in range(rows)],
                "thal": rng.choice([3, 6, 7], rows),
                "target": rng.binomial(4, 1 / (1 + np.exp(-(age - 58) / 6)) / 2),
            }
        )
        path = folder / f"processed.{name}.data"
        table.write_csv(path, include_header=not bare, null_value="?" if bare else "")
    return folder


def invoke(example: Any, *arguments: object) -> Any:
    app = typer.Typer()
    app.command()(example.hospitals)
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
def test_the_hospitals_example_runs_from_end_to_end(
    example: Any, icu: Path, heart: Path, tmp_path: Path
) -> None:
    marks = os.environ["PRIVCAL_MARKS"]
    out = tmp_path / "new" / "results"
    done = invoke(example, "--icu", icu, "--heart", heart, "--out", out, "--splits", 1)
    assert done.exit_code == 0, done.output
    for name, settings in (
        ("icu", {"hospitals", "hospitals, 3 rows per person", "regional offices"}),
        ("heart", {"three hospitals", "clinics"}),
    ):
        found = pl.read_csv(out / f"{name}-summary.csv")
        assert settings <= set(found["setting"])
        for setting in settings - {"hospitals, 3 rows per person"}:
            here = found.filter((pl.col("setting") == setting) & (pl.col("where") == "all"))
            assert set(here["method"]) >= {*privcal.methods.names()[2:], *example.VARIANTS}
            assert set(here["epsilon"]) == {0.5, 1.0, 2.0, 4.0}
            assert here["splits"].unique().to_list() == [1]
        assert (out / f"hospitals-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "| sketch |" in (out / f"{name}-tables.md").read_text("utf-8")
        estimates = pl.read_csv(out / f"{name}-estimates.csv")
        assert {"prevalence", "slope_after"} <= set(estimates["measure"])
        assert estimates["truth"].is_finite().all()
    at_home = pl.read_csv(out / "heart-summary.csv").filter(pl.col("where") == "hungarian")
    assert {"refined with own rows", "refined with 30 own rows"} <= set(at_home["method"])
    assert privcal.load_map(out / "icu-map.json").private
    assert os.environ["PRIVCAL_MARKS"] == marks
    assert not list(tmp_path.rglob("*.ledger"))

    facts = json.loads((out / "icu-facts.json").read_text("utf-8"))
    assert facts["persons"] == HOSPITALS * ROWS - 2
    assert facts["persons_in_several_hospitals"] == 1
    assert facts["rows_counted_at_1_per_person"] == HOSPITALS * ROWS - 1
    durable = facts["durable"]
    assert durable["ledgers"] == HOSPITALS
    assert durable["epsilon_in_each_ledger"] == [1.0]
    assert 0 < durable["estimated_privately"]["unchanged"] < 1
    assert durable["estimated_privately"].keys() <= {"clear", "unchanged", *durable["measured"]}
    again = durable["asked_again_under_the_same_name"]
    assert again == {"epsilon_in_each_ledger": [1.0], "same_answers": True}
    assert "only 0 of 12 sources can answer" in durable["asked_again_under_another_name"]


@pytest.mark.slow
def test_the_hospitals_may_be_asked_in_secure_sums(example: Any, icu: Path, tmp_path: Path) -> None:
    """Simulated, but for one run that is real."""
    out = tmp_path / "secure"
    given = ("--icu", icu, "--out", out, "--splits", 1)
    done = invoke(example, *given, "--aggregation", "secure")
    assert done.exit_code == 0, done.output
    found = pl.read_csv(out / "icu-summary.csv")
    here = found.filter(pl.col("setting") == "hospitals")
    assert set(here["method"]) >= {*privcal.methods.names()[2:], *example.VARIANTS}
    assert set(here["epsilon"]) == {0.1, 0.25, 0.5, 1.0}
    assert (out / "hospitals-icu.png").exists()
    assert not (out / "icu-estimates.csv").exists()
    durable = json.loads((out / "icu-facts.json").read_text("utf-8"))["durable"]
    assert durable["epsilon_in_each_ledger"] == [0.5]
    assert durable["against_everybody_else_together"] == [5.0]
    assert durable["asked_again_under_the_same_name"]["epsilon_in_each_ledger"] == [0.5]
    assert "only 0 of 12 sources can answer" in durable["asked_again_under_another_name"]
    done = invoke(example, *given, "--aggregation", "open")
    assert (done.exit_code, "there is no aggregation 'open'" in done.output) == (2, True)


def test_noise_of_secure_sums_covers_the_rows_of_a_person(
    example: Any, icu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = example.Icu.read(icu).hospitals
    seen = []

    def run(*given: Any) -> list[str]:
        seen.append(given)
        return ["map"]

    monkeypatch.setattr(example.answers, "run", run)
    for rows in (1, 3):
        assert example.in_secure_sums("sketch", hospitals, 0.5, rows) == "map"
    for (_, rows, sources, epsilon, _, noise), most in zip(seen, (1, 3), strict=True):
        assert (sources, epsilon) == (HOSPITALS, 0.5)
        assert (noise.rows_per_person, noise.honest, noise.alone) == (most, 8, 10)
        persons = [s.person for s in hospitals.values()]
        counts = [min(list(p).count(one), most) for p in persons for one in set(p)]
        assert len(rows.scores) == sum(counts)


@pytest.mark.slow
def test_splits_are_seeded_and_noise_is_not(example: Any, icu: Path) -> None:
    runs = []
    for _ in range(2):
        record = example.Record(lambda: None)
        example.Icu.read(icu).run(1, 0, record)
        runs.append({(r["setting"], r["method"], r["epsilon"]): r for r in record.runs})
    same, other = runs
    exact = (example.BESIDE, "nll-t", math.inf)
    assert same[exact]["brier"] == other[exact]["brier"]
    noisy = ("hospitals", "sketch", 1.0)
    assert same[noisy]["risk"] != other[noisy]["risk"]


def test_the_small_model_is_the_ridge_of_scikit_learn(example: Any, heart: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    table = example.Heart.read(heart).tables["cleveland"]
    ours = example.Logistic.fit(table)
    x = (ours._columns(table) - ours.centre) / ours.scale
    y = (table["target"] > 0).to_numpy().astype(int)
    theirs = linear.LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(x, y)
    p = ours.scores(table).outputs.array[:, 0]
    np.testing.assert_allclose(p, theirs.predict_proba(x)[:, 1], atol=1e-5)


def test_a_recalibration_leaves_nothing_to_recalibrate(example: Any) -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 2, 400)
    labels = (rng.random(400) < 1 / (1 + np.exp(-(0.5 * odds - 1)))).astype(int)
    intercept, slope = example.recalibration(odds, labels)
    p = 1 / (1 + np.exp(-(intercept + slope * odds)))
    # Where the likelihood is greatest, what is left over has no mean and no trend.
    assert np.mean(labels - p) == pytest.approx(0, abs=1e-9)
    assert np.mean((labels - p) * odds) == pytest.approx(0, abs=1e-9)
    assert slope == pytest.approx(0.5, abs=0.15)
    intercept, one = example.recalibration(odds, labels, free_slope=False)
    assert one == 1
    assert np.mean(labels - 1 / (1 + np.exp(-(intercept + odds)))) == pytest.approx(0, abs=1e-9)

    scores = privcal.Scores(probabilities=1 / (1 + np.exp(-odds)), labels=labels)
    risk = example.logistic(scores).predict_proba(scores)[:, 1]
    np.testing.assert_allclose(risk, p, atol=1e-9)
    found = example.risk_measures(scores, example.logistic(scores))
    assert found["observed_expected_after"] == pytest.approx(1)
    assert found["intercept_after"] == pytest.approx(0, abs=1e-6)
    assert found["slope_after"] == pytest.approx(1)
    pairs = [(a > b) + (a == b) / 2 for a in odds[labels == 1] for b in odds[labels == 0]]
    assert found["auroc"] == pytest.approx(np.mean(pairs))


def test_ties_count_half_in_the_auroc(example: Any) -> None:
    risk, labels = np.array([0.5, 0.5, 0.9]), np.array([0, 1, 1])
    assert example.auroc(risk, labels) == pytest.approx(0.75)


def test_blanks_question_marks_and_impossible_zeros_are_missing(
    example: Any, heart: Path, tmp_path: Path
) -> None:
    bare = (heart / "processed.hungarian.data").read_text()
    named = ",".join(example.FIELDS) + "\n" + bare.replace("?", "")
    (tmp_path / "processed.hungarian.data").write_text(named)
    table = example.read_heart(heart, "hungarian")
    assert table.equals(example.read_heart(tmp_path, "hungarian"))
    assert table["chol"].null_count() > 0
    assert table["ca"].null_count() > 0
    assert table["chol"].min() > 0


def test_the_calibration_curve_has_every_row_once(example: Any) -> None:
    rng = np.random.default_rng(0)
    risk = rng.random(83)
    labels = (rng.random(83) < risk).astype(int)
    scores = privcal.Scores(probabilities=risk, labels=labels)
    points = list(example.curve(scores, risk))
    assert len(points) == example.GROUPS
    assert [p["predicted"] for p in points] == sorted(p["predicted"] for p in points)
    sizes = np.bincount(np.arange(83) * example.GROUPS // 83)
    mean = np.average([p["observed"] for p in points], weights=sizes)
    assert mean == pytest.approx(labels.mean())


def test_what_is_wrong_with_the_files_is_said_in_a_sentence(
    example: Any, icu: Path, heart: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")

    def said(*arguments: object) -> str:
        done = invoke(example, *arguments, *out)
        assert done.exit_code == 2
        assert not (tmp_path / "out").exists()
        return str(done.stderr)

    assert "give --icu, --heart or both" in said()
    assert "there is no file" in said("--icu", tmp_path / "absent.csv")
    assert "processed.cleveland.data" in said("--heart", tmp_path / "absent")
    table = pl.read_csv(icu)
    for column in ("hospital", "region", "person", "probability", "label"):
        table.drop(column).write_csv(tmp_path / "less.csv")
        assert column in said("--icu", tmp_path / "less.csv")
    va = heart / "processed.va.data"
    pl.read_csv(va).drop("thal").write_csv(va)
    assert "has no column 'thal'" in said("--heart", heart)
    pl.DataFrame({name: ["x"] for name in example.FIELDS}).write_csv(va)
    assert "cannot read" in said("--heart", heart)


def test_the_numbers_of_the_real_files(example: Any) -> None:
    """Only where somebody has them: PRIVCAL_ICU names the table, PRIVCAL_HEART the folder."""
    if not {"PRIVCAL_ICU", "PRIVCAL_HEART"} <= set(os.environ):
        pytest.skip("PRIVCAL_ICU and PRIVCAL_HEART do not say where the data are")
    facts = example.Icu.read(Path(os.environ["PRIVCAL_ICU"])).facts()
    assert (facts["hospitals"], facts["rows"], facts["persons"]) == (174, 1683, 1449)
    assert facts["persons_in_several_hospitals"] == 11
    tables = example.Heart.read(Path(os.environ["PRIVCAL_HEART"])).tables
    assert [len(t) for t in tables.values()] == [303, 294, 123, 200]


def test_a_command_that_fails_is_not_taken_for_an_answer(example: Any) -> None:
    with pytest.raises(InputError, match="ended with 2"):
        example.told("ledger", "show", "absent.ledger")
