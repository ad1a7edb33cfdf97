"""Maps as ONNX: what onnxruntime gives is what the map gives."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import privcal  # noqa: E402
import privcal.adapters.onnx  # noqa: E402
from privcal.adapters.onnx import DIGEST, WRITERS, verify  # noqa: E402
from privcal.calibration.maps import KINDS, CurveMap, Map, RiskMap, TemperatureMap  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support.every_map import every_map, hard_logits, hard_probabilities  # noqa: E402
from tests.support.onnx_run import run_model  # noqa: E402

NAMES = sorted(every_map(2))


def test_every_kind_of_this_package_has_a_form_as_onnx() -> None:
    assert {kind.kind for kind in WRITERS} == set(KINDS)
    assert {type(map) for map in every_map(3).values()} == set(WRITERS)


def agree(map: Map, given: dict[str, Any], **scores: Any) -> None:
    """What a graph gave is what the map gives; and nowhere is a rival on a par."""
    p = given["probabilities"]
    np.testing.assert_allclose(p, map.predict_proba(**scores), rtol=0, atol=1e-6)
    np.testing.assert_allclose(given["confidence"], map.confidence(**scores), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(given["predicted"], map.predict(**scores))
    if isinstance(map, RiskMap):
        np.testing.assert_allclose(given["risk"], map.risk(**scores), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(p.argmax(axis=1), given["predicted"])
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)


def run(model: Any, values: Any) -> dict[str, Any]:
    names = [output.name for output in model.graph.output]
    found = run_model(model, names, {model.graph.input[0].name: values})
    return dict(zip((n.removeprefix("calibrated_") for n in names), found, strict=True))


def run_twice(model: Any, values: Any) -> dict[str, Any]:
    """What onnxruntime gives; onnx's own evaluator gives the same."""
    found = run(model, values)
    with np.errstate(all="ignore"):
        others = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: values})
    for one, other in zip(found.values(), others, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("classes", "dtype"), [(2, np.float32), (7, np.float16), (7, np.float64)])
def test_logits_give_what_the_map_gives(name: str, classes: int, dtype: type) -> None:
    map = every_map(classes)[name]
    model = privcal.onnx.export(map, precision=np.dtype(dtype).name)
    logits = hard_logits(classes, dtype)
    for rows in (logits, logits[:1], logits[:0]):
        given = run_twice(model, rows)
        assert len(given["probabilities"]) == len(rows)
        if len(rows):
            agree(map, given, logits=rows)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_give_what_the_map_gives(name: str) -> None:
    map, p = every_map(5)[name], hard_probabilities(5)
    agree(map, run_twice(privcal.onnx.export(map, kind="probabilities"), p), probabilities=p)


@pytest.mark.parametrize("name", NAMES)
def test_one_column_is_about_class_one_of_two(name: str) -> None:
    map = every_map(2)[name]
    p = np.concatenate([[0, 1, 0.5, 1e-30, 0.5 + 1e-7], hard_probabilities(2)[:, 1]])
    column = p.astype(np.float32)[:, None]
    model = privcal.onnx.export(map, kind="probabilities", column=True)
    agree(map, run_twice(model, column), probabilities=column)
    odds = hard_logits(2)[:, :1]
    model = privcal.onnx.export(map, column=True)
    agree(map, run_twice(model, odds), logits=np.hstack([0 * odds, odds]))


@pytest.mark.parametrize("name", [n for n in NAMES if "risk" not in n and n != "offsets"])
def test_a_model_of_one_class_is_sure_of_it(name: str) -> None:
    map, logits = every_map(2)[name], np.array([[3.0], [-1e30]], np.float32)
    agree(map, run_twice(privcal.onnx.export(map), logits), logits=logits)


def test_rows_that_a_map_tells_apart_stay_apart() -> None:
    """In single precision many of these would be equal."""
    for map in (CurveMap(1.0, (0.0, 5.0), (0.0, 20.0)), TemperatureMap(0.5)):
        logits = np.zeros((200, 2), np.float32)
        logits[:, 0] = np.linspace(4.0, 8.0, 200)
        confidence = map.confidence(logits)
        assert (np.diff(confidence) > 0).all()
        assert len(np.unique(confidence.astype(np.float32))) < 180
        given = run(privcal.onnx.export(map), logits)
        assert (np.diff(given["confidence"]) > 0).all()
        assert (np.diff(given["probabilities"][:, 0]) > 0).all()


def test_logits_in_double_precision_are_not_rounded_to_single() -> None:
    logits = np.zeros((100, 2))
    logits[:, 0] = 1 + 1e-9 * np.arange(100)
    assert len(np.unique(logits[:, 0].astype(np.float32))) < 5
    for name in ("curve", "warm", "risk"):
        given = run(privcal.onnx.export(every_map(2)[name], precision="float64"), logits)
        assert len(np.unique(given["probabilities"][:, 0])) == 100


def test_a_kind_of_another_package_says_that_it_has_no_form() -> None:
    @dataclass(frozen=True)
    class Own(CurveMap):
        pass

    with pytest.raises(InputError, match=r"a map of kind 'curve' has no form as ONNX; .* risk"):
        privcal.onnx.export(Own(1.0, (0.0, 1.0), (0.0, 1.0)))


def test_a_number_of_classes_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="3 classes, and this one has 4"):
        privcal.onnx.export(every_map(3)["offsets"], classes=4)
    with pytest.raises(InputError, match="there is no class 3: the model has 3"):
        privcal.onnx.export(every_map(4)["risk"], classes=3)
    with pytest.raises(InputError, match="precision must be one of float16, float32, float64"):
        privcal.onnx.export(TemperatureMap(2.0), precision="int8")


# --- behind a model ------------------------------------------------------------------------------


def network(outputs: str, body: str, opset: int = 17) -> Any:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]>\n'
        f"net (float[N, 3] x) => ({outputs}) {{ {body} }}"
    )


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 21])
@pytest.mark.parametrize("name", ["bins", "risk", "offsets", "warm"])
def test_a_model_gets_a_map_in_its_own_operator_set(name: str, opset: int) -> None:
    map, x = every_map(3)[name], hard_logits(3)
    model = network(
        "float[N, 3] logits, float[N, 3] other", "logits = Neg(x) other = Abs(x)", opset
    )
    before = model.SerializeToString()
    calibrated = privcal.onnx.append(map, model, output="logits", kind="logits")
    assert model.SerializeToString() == before
    assert [o.version for o in calibrated.opset_import] == [opset]
    given = run_twice(calibrated, x)
    agree(map, given, logits=-x)
    np.testing.assert_array_equal(given["logits"], -x)
    np.testing.assert_array_equal(given["other"], np.abs(x))
    assert calibrated.graph.input[0].name == "x"


def test_the_models_own_outputs_stay_and_those_of_the_map_are_called_calibrated() -> None:
    model = network("float[N, 3] probabilities", "probabilities = Softmax(x)")
    calibrated = privcal.onnx.append(TemperatureMap(2.0), model)
    names = [output.name for output in calibrated.graph.output]
    assert names[0] == "probabilities"
    assert names[1:] == [f"calibrated_{n}" for n in ("probabilities", "confidence", "predicted")]
    x = hard_logits(3)[:20]
    own, ours = run_model(calibrated, names[:2], {"x": x})
    expected = TemperatureMap(2.0).predict_proba(probabilities=own)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_a_vector_of_one_sigmoid_is_a_model_of_two_classes() -> None:
    model = network("float[N] y", "s = ReduceSum <keepdims = 0, axes = [1]> (x) y = Sigmoid(s)", 11)
    map = every_map(2)["risk"]
    given = run(privcal.onnx.append(map, model), hard_logits(3)[80:300] / 100)
    y = given.pop("y")
    agree(map, given, probabilities=y)


def test_a_second_map_an_old_operator_set_and_endless_classes_are_refused() -> None:
    model = network("float[N, 3] logits", "logits = Neg(x)")
    once = privcal.onnx.append(TemperatureMap(2.0), model, kind="logits")
    with pytest.raises(InputError, match="has a map behind it already"):
        privcal.onnx.append(TemperatureMap(2.0), once)
    old = network("float[N, 3] y", "y = Softmax <axis = 1> (x)", 8)
    with pytest.raises(InputError, match="operator set 8, and a map needs 9"):
        privcal.onnx.append(TemperatureMap(2.0), old)
    wide = network("float[N, 1000000000] logits", "logits = Neg(x)")
    with pytest.raises(InputError, match="there can be 1,048,576 classes at most"):
        privcal.onnx.append(TemperatureMap(2.0), wide, kind="logits")
    with pytest.raises(InputError, match="there can be 1,048,576 classes at most"):
        privcal.onnx.export(TemperatureMap(2.0, provenance={"classes": 10**30}))
    with pytest.raises(InputError, match="with 4 classes, and this one has 3: it is another model"):
        privcal.onnx.append(TemperatureMap(2.0, provenance={"classes": 4}), model, kind="logits")


# --- files ------------------------------------------------------------------------------------------


def spoil_a_constant(model: Any) -> None:
    constant = next(
        c for c in model.graph.initializer if c.dims == [5]
    )  # a curve's slopes or values
    constant.raw_data = bytes(len(constant.raw_data))


def swap_an_operator(model: Any) -> None:
    next(node for node in model.graph.node if node.op_type == "Exp").op_type = "Abs"


@pytest.mark.parametrize("spoil", [spoil_a_constant, swap_an_operator])
def test_a_file_that_is_not_right_is_not_written(
    spoil: Callable[[Any], None], tmp_path: Path
) -> None:
    map = every_map(3)["curve"]
    model = privcal.onnx.export(map, classes=3)
    privcal.onnx.save(tmp_path / "good.onnx", model, map)
    spoil(model)
    with pytest.raises(RuntimeError, match="of the graph are not those of the map"):
        privcal.onnx.save(tmp_path / "bad.onnx", model, map)
    assert [path.name for path in tmp_path.iterdir()] == ["good.onnx"]


@pytest.mark.parametrize("name", NAMES)
def test_every_map_passes_its_own_check(name: str) -> None:
    map = every_map(2)[name]
    for column in (False, True):
        for kind in ("logits", "probabilities"):
            verify(privcal.onnx.export(map, kind=kind, classes=2, column=column), map)


def test_a_file_names_its_map_by_digest_and_stays_at_home_with_it(tmp_path: Path) -> None:
    map = CurveMap(1.0, (0.0, 1.0), (0.0, 1.0), provenance={"stays_at_home": True}, private=False)
    privcal.onnx.save(tmp_path / "own.onnx", privcal.onnx.export(map), map)
    assert stat.S_IMODE((tmp_path / "own.onnx").stat().st_mode) == 0o600
    map.save(tmp_path / "map.json")
    facts = {f.key: f.value for f in onnx.load(tmp_path / "own.onnx").metadata_props}
    import hashlib

    assert facts[DIGEST] == hashlib.sha256((tmp_path / "map.json").read_bytes()).hexdigest()


# --- from scikit-learn to a calibrated file -----------------------------------------------------------


@pytest.mark.parametrize("texts", [False, True])
def test_a_scikit_learn_model_goes_to_onnx_with_its_map_and_says_what_map_classifier_says(
    texts: bool, tmp_path: Path, run: Any
) -> None:
    pytest.importorskip("sklearn")
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from privcal.adapters.sklearn import MapClassifier

    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (200, 4)).astype(np.float32)
    y = (x[:, 0] + rng.normal(0, 1, 200) > 0).astype(int) + (x[:, 1] > 0.5)
    y = np.array(["low", "middle", "high"])[y] if texts else y
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    every_map(3)["curve"].save(tmp_path / "map.json")
    onnx.save(skl2onnx.to_onnx(pipeline, x[:1]), tmp_path / "model.onnx")
    out, _ = run.ok(
        *("onnx", tmp_path / "map.json", "--append", tmp_path / "model.onnx"),
        *("--out", tmp_path / "calibrated.onnx", "--json"),
    )
    assert json.loads(out)["outputs"][0] == "calibrated_probabilities"
    p, predicted, label, own = run_model(
        (tmp_path / "calibrated.onnx").read_bytes(),
        ["calibrated_probabilities", "calibrated_predicted", "output_label", "output_probability"],
        {"X": x},
    )
    served = MapClassifier(pipeline, privcal.load_map(tmp_path / "map.json"))
    np.testing.assert_allclose(p, served.predict_proba(x), atol=1e-6)
    np.testing.assert_array_equal(served.classes_[predicted], served.predict(x))
    np.testing.assert_array_equal(label, pipeline.predict(x))
    assert own[0].keys() == set(pipeline.classes_.tolist())  # the model's own, as it was


def test_the_command_writes_a_map_alone_and_says_what_is_wrong(tmp_path: Path, run: Any) -> None:
    path, out = tmp_path / "map.json", tmp_path / "map.onnx"
    every_map(3)["risk"].save(path)
    said, _ = run.ok("onnx", path, "--classes", 3, "--precision", "float16", "--out", out)
    assert "it gives probabilities, confidence, predicted, risk" in said
    logits = hard_logits(3, np.float16)
    given = dict(zip(["probabilities", "risk"], run_model(
        out.read_bytes(), ["probabilities", "risk"], {"logits": logits}), strict=True))  # fmt: skip
    np.testing.assert_allclose(given["risk"], every_map(3)["risk"].risk(logits), atol=1e-6)
    onnx.save(network("float[N, 3] y", "y = Neg(x)"), tmp_path / "model.onnx")
    append = ("onnx", path, "--append", tmp_path / "model.onnx")
    for args, sentence in [
        (
            (*append, "--out", out),
            "--as logits or --as probabilities (in Python, kind=) is required",
        ),
        ((*append, "--as", "logit", "--out", out), "--as must be logits or probabilities"),
        ((*append, "--classes", 3, "--out", out), "are for a map alone, without --append"),
        ((*append, "--out", tmp_path / "model.onnx"), "is an input"),
        (("onnx", path, "--output", "y", "--out", out), "names an output of the model to --append"),
        (("onnx", path, "--append", path, "--out", out), "is not an ONNX model"),
        (("onnx", path, "--precision", "int8", "--out", out), "precision must be one of"),
    ]:
        assert sentence in run.fails(*args)
    run.ok(*append, "--as", "logits", "--out", out)
    assert onnx.load(out).graph.output[0].name == "y"


def test_a_map_goes_behind_the_model_file_that_it_names(tmp_path: Path, run: Any) -> None:
    files = []
    for operator in ("Softmax", "LogSoftmax"):
        files.append(tmp_path / f"{operator}.onnx")
        onnx.save(
            parser.parse_model(
                '<ir_version: 8, opset_import: ["": 17]>\n'
                f"net (float[N, 3] x) => (float[N, 3] y) {{ y = {operator}(x) }}"
            ),
            files[-1],
        )
    name = "sha256:" + hashlib.sha256(files[0].read_bytes()).hexdigest()
    privcal.TemperatureMap(2.0, provenance={"model": name}).save(tmp_path / "map.json")
    for file, expected in zip(files, (0, 2), strict=True):
        out = tmp_path / "out.onnx"
        code, _, err = run("onnx", tmp_path / "map.json", "--append", file, "--out", out)
        assert code == expected, err
    again = "sha256:" + hashlib.sha256(files[1].read_bytes()).hexdigest()
    assert f"not of {again}; if that is the same model exported again, record it in Python" in err
    map = privcal.load_map(tmp_path / "map.json").with_provenance(model=again)
    map.save(tmp_path / "map.json")
    run.ok("onnx", tmp_path / "map.json", "--append", files[1], "--out", out)
