"""From a table through a model to scores: the same as the model gives, and sentences where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
onnx = pytest.importorskip("onnx")
skl2onnx = pytest.importorskip("skl2onnx")

from skl2onnx.common.data_types import FloatTensorType, StringTensorType  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

import privcal  # noqa: E402
from privcal.data.scoring import Model  # noqa: E402
from privcal.data.scoring.model import Setup  # noqa: E402
from privcal.data.scoring.run import score_table  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support import scoring_parts as parts  # noqa: E402
from tests.support.builders import a_source  # noqa: E402

CLASSES = np.array(["alive", "died", "lost to follow-up"])
PLAIN = "u = MatMul(x, w) y = Softmax(u)"


@pytest.fixture
def plain(tmp_path: Path) -> Model:
    return Model(parts.save(tmp_path / "plain.onnx", parts.net(PLAIN)))


def write(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize("zipmap", [False, True])
@pytest.mark.parametrize("kind", ["logistic", "forest"])
def test_an_exported_pipeline_gives_a_table_the_probabilities_it_had_in_scikit_learn(
    tmp_path: Path, kind: str, zipmap: bool, ending: str
) -> None:
    x = parts.numbers(200)
    truth = CLASSES[np.digitize(x[:, 0] + x[:, 1], [-2, 2])]
    estimator: Any = make_pipeline(StandardScaler(), LogisticRegression())
    if kind == "forest":
        estimator = RandomForestClassifier(10, random_state=0)
    estimator.fit(x, truth)
    exported = skl2onnx.to_onnx(estimator, x[:1], options=None if zipmap else {"zipmap": False})
    model = Model(parts.save(tmp_path / "model.onnx", exported), kind="probabilities")
    table = write(parts.frame(x, truth), tmp_path / f"table{ending}")
    assert score_table(model, table, tmp_path / "scores.parquet", parts.SETUP) == (200, 0)
    written = pl.read_parquet(tmp_path / "scores.parquet")
    assert written.columns[:3] == [f"probability_{name}" for name in CLASSES]
    assert written["label"].to_list() == truth.tolist()
    found = privcal.read_scores(tmp_path / "scores.parquet")
    np.testing.assert_allclose(found.outputs.array, estimator.predict_proba(x), atol=1e-6)
    assert np.array_equal(CLASSES[found.labels], truth)
    assert found.person is not None
    assert list(found.person[:2]) == ["p0", "p1"]
    assert found.model == model.name


def test_a_pipeline_that_takes_each_column_by_its_name_gets_numbers_and_texts(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    age = rng.normal(60, 10, 120).astype(np.float32)
    ward = rng.choice(["icu", "er"], 120)
    truth = CLASSES[(age + 20 * (ward == "icu") > 70).astype(int)]
    estimator = make_pipeline(
        ColumnTransformer([("n", StandardScaler(), ["age"]), ("t", OneHotEncoder(), ["ward"])]),
        LogisticRegression(),
    )
    pandas = pytest.importorskip("pandas")
    features = pandas.DataFrame({"age": age, "ward": ward})
    estimator.fit(features, truth)
    types = [("age", FloatTensorType([None, 1])), ("ward", StringTensorType([None, 1]))]
    model = Model(parts.save(tmp_path / "m.onnx", skl2onnx.to_onnx(estimator, initial_types=types)))
    frame = pl.DataFrame({"ward": ward, "died": truth, "age": age})  # in another order
    for ending in (".parquet", ".csv"):
        table = write(frame, tmp_path / f"table{ending}")
        found = parts.scores(model, table, Setup("died"))
        got = found.select(pl.selectors.starts_with("probability")).to_numpy()
        np.testing.assert_allclose(got, estimator.predict_proba(features), atol=1e-6)


def test_blank_cells_go_to_a_model_that_fills_them_in_only_where_that_is_said(
    tmp_path: Path,
) -> None:
    x = parts.numbers(60)
    x[5, 2] = np.nan
    truth = (x[:, 0] > 0).astype(int)
    estimator = make_pipeline(SimpleImputer(), LogisticRegression()).fit(x, truth)
    model = Model(parts.save(tmp_path / "m.onnx", skl2onnx.to_onnx(estimator, x[:1])))
    frame = parts.frame(x, truth).with_columns(pl.col("f2").fill_nan(None))
    for ending in (".parquet", ".csv"):
        table = write(frame, tmp_path / f"table{ending}")
        with pytest.raises(InputError, match="f2 of row 5 is missing"):
            parts.scores(model, table)
        setup = Setup("y", "pid", parts.FEATURES, missing=True)
        got = parts.scores(model, table, setup).select("probability_0", "probability_1").to_numpy()
        np.testing.assert_allclose(got, estimator.predict_proba(x), atol=1e-6)
    for word in ("?", " NA ", "NaN"):
        texts = frame.with_columns(pl.col("f2").cast(pl.String).fill_null(word))
        table = write(texts, tmp_path / "table.csv")
        with pytest.raises(InputError, match="f2 of row 5 is missing"):
            parts.scores(model, table)
        got = parts.scores(model, table, setup).select("probability_0", "probability_1").to_numpy()
        np.testing.assert_allclose(got, estimator.predict_proba(x), atol=1e-6)
    write(frame.with_columns(pl.col("f2").cast(pl.String).fill_null("x")), table)
    with pytest.raises(InputError, match="f2 of row 5 is 'x', not a number"):
        parts.scores(model, table, setup)


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("f2", None, "f2 of row 3 is missing; --allow-missing .*, --skip-malformed leaves"),
        ("y", None, "y of row 3 is missing; --skip-malformed leaves such rows out"),
        ("y", 7, "y of row 3 is '7', not one of the classes 0, 1, 2"),
        ("pid", None, "person id of row 3 is missing; every row needs one"),
    ],
)
def test_what_cannot_be_scored_is_one_sentence_with_the_row(
    tmp_path: Path, plain: Model, column: str, value: Any, sentence: str, ending: str
) -> None:
    rows = parts.frame(parts.numbers(6))
    spoiled = pl.when(pl.int_range(6) == 3).then(pl.lit(value)).otherwise(pl.col(column))
    table = write(rows.with_columns(spoiled.alias(column)), tmp_path / f"table{ending}")
    out, line = tmp_path / "scores.parquet", ", line 5" if ending == ".csv" else ""
    with pytest.raises(InputError, match=f"table{ending}{line}: {sentence}"):
        score_table(plain, table, out, parts.SETUP)
    assert not out.exists()
    assert score_table(plain, table, out, parts.SETUP, skip_malformed=True) == (5, 1)
    left = privcal.read_scores(out).outputs.array
    write(rows, table)
    everything = parts.scores(plain, table).drop("label", "person").to_numpy()
    assert np.array_equal(left, everything[[0, 1, 2, 4, 5]])


def test_a_label_may_be_written_as_any_number_that_is_its_class(
    tmp_path: Path, plain: Model
) -> None:
    table = tmp_path / "table.csv"
    header, *lines = parts.frame(parts.numbers(4)).write_csv().splitlines()
    cells = [line.split(",") for line in lines]
    for line, label in zip(cells, (" 1", "1.0", "true", "2"), strict=True):
        line[parts.WIDTH] = label
    table.write_text("\n".join([header, *map(",".join, cells)]))
    assert parts.scores(plain, table)["label"].to_list() == [1, 1, 1, 2]


def test_features_are_taken_in_the_order_that_is_said(tmp_path: Path, plain: Model) -> None:
    x = parts.numbers(5)
    table = write(parts.frame(x).select(sorted(parts.frame(x).columns)), tmp_path / "t.parquet")
    turned = Setup("y", "pid", parts.FEATURES[::-1])
    found = parts.scores(plain, table, turned).drop("label", "person").to_numpy()
    expected = [plain.run({"x": row[None, ::-1].copy()}) for row in x]
    assert np.array_equal(found, expected)
    with pytest.raises(InputError, match="takes 7 numbers as x: name their columns in order"):
        parts.scores(plain, table, Setup("y", "pid"))
    with pytest.raises(InputError, match=r"takes 7 numbers .* names 2 columns"):
        parts.scores(plain, table, Setup("y", "pid", ("f0", "f1")))
    with pytest.raises(InputError, match=r"has no column age; it has f0, "):
        parts.scores(plain, table, Setup("y", "pid", (*parts.FEATURES[1:], "age")))


def test_features_may_be_named_in_the_model_and_what_is_said_goes_before(tmp_path: Path) -> None:
    net = parts.net(PLAIN)
    onnx.helper.set_model_props(net, {"privcal.features": json.dumps(parts.FEATURES[::-1])})
    model = Model(parts.save(tmp_path / "model.onnx", net))
    table = write(parts.frame(parts.numbers(5)), tmp_path / "table.parquet")
    turned, straight = Setup("y", "pid", parts.FEATURES[::-1]), parts.SETUP
    assert parts.scores(model, table, Setup("y", "pid")).equals(parts.scores(model, table, turned))
    assert not parts.scores(model, table, straight).equals(parts.scores(model, table, turned))
    onnx.helper.set_model_props(net, {"privcal.features": "f0,f1"})
    with pytest.raises(InputError, match=r"privcal\.features must be a JSON list of names"):
        Model(parts.save(tmp_path / "model.onnx", net))


def test_images_come_from_the_array_x(tmp_path: Path) -> None:
    body = "f = Flatten(x) u = MatMul(f, w) y = Softmax(u)"
    model = Model(parts.save(tmp_path / "m.onnx", parts.net(body, given="float[N, 1, 7, 1] x")))
    x = parts.numbers(9).reshape(9, 1, 7, 1)
    path = tmp_path / "images.npz"
    np.savez(path, x=x, labels=np.arange(9) % 3)
    found = parts.scores(model, path, Setup("labels"))
    assert np.array_equal(
        found.drop("label").to_numpy(), [model.run({"x": image[None]}) for image in x]
    )
    np.savez(path, x=x[:, :, :5], labels=np.arange(9) % 3)
    with pytest.raises(InputError, match=r"x has shape \(1, 5, 1\) in each row"):
        parts.scores(model, path, Setup("labels"))
    np.savez(path, x=np.array([object()] * 9), labels=np.arange(9) % 3)
    with pytest.raises(InputError, match=r"is not a readable \.npz file"):
        parts.scores(model, path, Setup("labels"))


def test_a_file_of_scores_says_its_model_and_classes_and_a_map_says_the_model(
    tmp_path: Path, plain: Model
) -> None:
    table = write(parts.frame(parts.numbers(40)), tmp_path / "table.parquet")
    out = tmp_path / "scores.parquet"
    score_table(plain, table, out, parts.SETUP)
    facts = pl.read_parquet_metadata(out)
    assert facts["privcal.model"] == plain.name
    assert json.loads(facts["privcal.classes"]) == ["0", "1", "2"]
    source = a_source(privcal.read_scores(out))
    found = privcal.calibrate([source], "sketch", epsilon=1.0)
    assert found.map.provenance["model"] == plain.name
    assert privcal.read_scores(out, model="v3").model == "v3"


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_pieces_are_put_together_in_order_and_columns_kept(
    tmp_path: Path, plain: Model, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = parts.frame(parts.numbers(50)).with_columns(
        hospital=pl.Series([f"h{n % 3}" for n in range(50)])
    )
    table = write(rows, tmp_path / "table.parquet")
    whole, pieced = tmp_path / f"whole{ending}", tmp_path / f"pieced{ending}"
    score_table(plain, table, whole, parts.SETUP, keep=["hospital"])
    monkeypatch.setattr("privcal.data.scoring.run.PIECE", 7)
    done: list[int] = []
    score_table(plain, table, pieced, parts.SETUP, keep=["hospital"], progress=done.append)
    assert done == [*range(7, 50, 7), 50]
    read = pl.read_csv if ending == ".csv" else pl.read_parquet
    assert read(pieced).equals(read(whole))
    assert read(pieced)["hospital"].to_list() == rows["hospital"].to_list()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_table_without_rows_has_scores_without_rows(tmp_path: Path, plain: Model) -> None:
    for ending in (".parquet", ".csv"):
        table = write(parts.frame(parts.numbers(3))[:0], tmp_path / f"table{ending}")
        assert score_table(plain, table, tmp_path / "scores.parquet", parts.SETUP) == (0, 0)
        assert len(privcal.read_scores(tmp_path / "scores.parquet")) == 0
