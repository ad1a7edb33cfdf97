"""Which output of a model holds its classes' scores: told by its last operator, or asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

from privcal.adapters.onnx import append  # noqa: E402
from privcal.calibration.maps import TemperatureMap  # noqa: E402
from privcal.data.scoring.model import check_model, read_model  # noqa: E402
from privcal.data.scoring.outputs import ClassScores, find_scores, without_zipmaps  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support.onnx_run import run_model  # noqa: E402


def graph(body: str, outputs: str, opset: int = 17, **weights: Any) -> Any:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": 3]>\n'
        f"net (float[N, 4] x) => ({outputs}) {{ {body} }}"
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in weights.items()
    )
    return model


# --- which output, and what it holds --------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "outputs", "found"),
    [
        ("y = Softmax(x)", "float[N, 4] y", ClassScores("y", "probabilities", 4)),
        ("y = Softmax <axis = 1> (x)", "float[N, 4] y", ClassScores("y", "probabilities", 4)),
        ("y = LogSoftmax(x)", "float[N, 4] y", ClassScores("y", "logits", 4)),
        (
            "y = Softmax(x) z = Identity(y)",
            "float[N, 4] z",
            ClassScores("z", "probabilities", 4),
        ),
        (
            "y = Softmax(x) label = ArgMax <axis = 1> (x)",
            "float[N, 4] y, int64[N, 1] label",
            ClassScores("y", "probabilities", 4),
        ),
        ("logits = Softmax(x)", "float[N, 4] logits", ClassScores("logits", "probabilities", 4)),
        (
            'y = ai.onnx.ml.Normalizer <norm = "L1"> (x)',
            "float[N, 4] y",
            ClassScores("y", "probabilities", 4),
        ),
        (
            "s = ReduceSum <keepdims = 1> (x) y = Sigmoid(s)",
            "float[N, 1] y",
            ClassScores("y", "probabilities", 2, column=True),
        ),
    ],
)
def test_the_last_operator_tells(body: str, outputs: str, found: ClassScores) -> None:
    assert find_scores(graph(body, outputs)) == found


@pytest.mark.parametrize(
    ("body", "outputs", "said"),
    [
        ("y = Neg(x)", "float[N, 4] y", "output 'y' comes from operator Neg, which can"),
        (
            "probabilities = Neg(x)",
            "float[N, 4] probabilities",
            "--as logits or --as probabilities (in Python, kind=) is required",
        ),
        ("logits = Neg(x)", "float[N, 4] logits", "operator Neg, which can make logits"),
        ("y = Exp(x)", "float[N, 4] y", "operator Exp, which can make"),
        ("y = Identity(x)", "float[N, 4] y", "comes from an input, which can make"),
        (
            'y = ai.onnx.ml.Normalizer <norm = "L2"> (x)',
            "float[N, 4] y",
            "operator Normalizer, which can make",
        ),
        ("y = Softmax <axis = 0> (x)", "float[N, 4] y", "operator Softmax, which can make"),
        ("y = Sigmoid(x)", "float[N, 4] y", "a Sigmoid of 4 columns, each class by itself"),
        ("y = Exp(x) z = Neg(x)", "float[N, 4] y, float[N, 4] z", "(y, z); --output is required"),
        (
            "logits = Neg(x) probabilities = Softmax(x)",
            "float[N, 4] logits, float[N, 4] probabilities",
            "--output is required",
        ),
        ("y = ArgMax <axis = 1> (x)", "int64[N, 1] y", "no output with scores of classes, only y"),
        (
            "i = Unsqueeze(x, a) y = Softmax(i)",
            "float[N, 4, 1] y",
            "has 3 dimensions, not rows and classes",
        ),
    ],
)
def test_what_the_last_operator_leaves_open_is_asked_for_by_its_flag(
    body: str, outputs: str, said: str
) -> None:
    with pytest.raises(InputError) as error:
        find_scores(graph(body, outputs))
    assert said in str(error.value)


def test_a_flag_settles_what_the_graph_leaves_open() -> None:
    model = graph("y = Exp(x) z = Neg(x)", "float[N, 4] y, float[N, 4] z")
    assert find_scores(model, output="z", kind="logits") == ClassScores("z", "logits", 4)
    with pytest.raises(InputError, match="no output 'w'; it has y, z"):
        find_scores(model, output="w")


def test_of_a_model_with_a_map_behind_it_one_says_whether_before_or_after() -> None:
    model = append(TemperatureMap(2.0), graph("y = Softmax(x)", "float[N, 4] y"))
    with pytest.raises(
        InputError, match="say --output calibrated_probabilities for the scores after"
    ):
        find_scores(model)
    assert find_scores(model, output="y") == ClassScores("y", "probabilities", 4)
    after = find_scores(model, output="calibrated_probabilities")
    assert after == ClassScores("calibrated_probabilities", "probabilities", 4)


def test_a_softmax_of_before_opset_13_runs_over_all_axes_from_the_first_on() -> None:
    assert find_scores(graph("y = Softmax(x)", "float[N, 4] y", 11)).kind == "probabilities"


def test_a_shape_that_the_file_does_not_say_is_inferred() -> None:
    model = graph("y = Softmax(x)", "float[N, 4] y")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert find_scores(model).classes == 4


# --- what scikit-learn's models become -----------------------------------------------------------


def fitted(name: str, classes: int, texts: bool) -> tuple[Any, np.ndarray]:
    from sklearn import ensemble, linear_model, naive_bayes, neural_network

    makers: dict[str, Any] = {
        "logistic": lambda: linear_model.LogisticRegression(),
        "forest": lambda: ensemble.RandomForestClassifier(3, random_state=0),
        "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=2, random_state=0),
        "bayes": lambda: naive_bayes.GaussianNB(),
        "network": lambda: neural_network.MLPClassifier((4,), max_iter=5, random_state=0),
        "bag": lambda: ensemble.BaggingClassifier(n_estimators=2, random_state=0),
        "sgd": lambda: linear_model.SGDClassifier(random_state=0),
        "ridge": lambda: linear_model.RidgeClassifier(),
    }
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (60, 4)).astype(np.float32)
    y = (x[:, 0] * 2 + rng.normal(0, 1, 60)).round().astype(int) % classes
    return makers[name]().fit(x, np.array(["a", "b", "c"])[y] if texts else y), x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ["logistic", "boosting", "forest", "bayes", "network", "bag"])
def test_probabilities_of_scikit_learn_are_found_or_asked_for_with_the_names_of_classes(
    name: str, classes: int, texts: bool
) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    estimator, x = fitted(name, classes, texts)
    model = skl2onnx.to_onnx(estimator, x[:1])
    found = find_scores(model, kind="probabilities")
    if name in ("logistic", "boosting") or (name, classes) == ("network", 3):
        assert find_scores(model) == found
    else:
        with pytest.raises(InputError, match="which can make logits as well as probabilities"):
            find_scores(model)
    names = tuple(estimator.classes_.tolist())
    assert found == ClassScores("output_probability", "probabilities", classes, names=names)
    plain = without_zipmaps(model)
    onnx.checker.check_model(plain)
    assert find_scores(plain, kind="probabilities") == found
    given = run_model(plain, [found.output], {"X": x})[0]
    np.testing.assert_allclose(given, estimator.predict_proba(x), atol=2e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ["sgd", "ridge", "logistic", "boosting"])
def test_decision_values_that_skl2onnx_calls_probabilities_are_not_taken_for_them(
    name: str, classes: int
) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    estimator, x = fitted(name, classes, False)
    raw = {"raw_scores": True}
    model = skl2onnx.to_onnx(estimator, x[:1], options={id(estimator): raw})
    with pytest.raises(InputError, match="--as logits or --as probabilities"):
        find_scores(model)
    assert find_scores(model, kind="logits").kind == "logits"


# --- models that are refused -----------------------------------------------------------------------


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    w = np.ones((4, 300), np.float32)
    model = graph("logits = MatMul(x, w)", "float[N, 300] logits", w=w)
    onnx.save(model, tmp_path / "whole.onnx")
    assert find_scores(read_model(tmp_path / "whole.onnx"), kind="logits").classes == 300
    onnx.save(
        model, tmp_path / "parted.onnx", save_as_external_data=True, size_threshold=0,
        location="weights",
    )  # fmt: skip
    with pytest.raises(InputError, match="weights are in other files, which its digest does not"):
        read_model(tmp_path / "parted.onnx")


def test_weights_in_another_file_are_refused_inside_a_branch_too() -> None:
    model = graph("y = Softmax(x)", "float[N, 4] y")
    away = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    away.data_location = TensorProto.EXTERNAL
    inner = helper.make_graph([], "branch", [], [], [away])
    model.graph.node.append(
        helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)
    )
    with pytest.raises(InputError, match="weights are in other files"):
        check_model(model)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "n = RandomNormalLike(x) logits = Add(x, n)",
            "RandomNormalLike is not known to score each row",
        ),
        ("n = Multinomial(x) logits = Cast <to = 1> (n)", "Multinomial is not known"),
        ("logits = Dropout(x, r, t)", "Dropout is or may be set for training"),
        ("logits = com.microsoft.Gelu(x)", "Gelu of com.microsoft is not known"),
    ],
)
def test_operators_that_are_not_run_here_are_named(body: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_model(graph(body, "float[N, 4] logits", r=0.5, t=1))


def test_a_dropout_without_a_switch_is_off() -> None:
    check_model(graph("logits = Dropout(x)", "float[N, 4] logits"))
    check_model(graph("logits = Dropout(x, r)", "float[N, 4] logits", r=0.5))


def with_function(domain: str, name: str, *nodes: Any) -> Any:
    """A model that calls a function of its own."""
    model = graph("logits = Identity(x)", "float[N, 4] logits", r=0.5, t=0)
    versions = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function(domain, name, ["a"], ["b"], nodes, versions))
    model.graph.node[0].CopyFrom(helper.make_node(name, ["x"], ["logits"], domain=domain))
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def test_a_function_cannot_take_the_name_of_an_operator_that_is_not_run_here() -> None:
    """The runtime runs its own operator of that name, whatever the function says."""
    same = helper.make_node("Identity", ["a"], ["b"])
    check_model(with_function("mine", "Sampling", same))
    with pytest.raises(InputError, match=r"Sampling of com\.microsoft is not known"):
        check_model(with_function("com.microsoft", "Sampling", same))


def test_a_random_operator_is_found_inside_a_branch_too() -> None:
    model = graph("y = Softmax(x)", "float[N, 4] y")
    inner = helper.make_graph([helper.make_node("Bernoulli", ["x"], ["r"])], "branch", [], [])
    model.graph.node.append(
        helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)
    )
    with pytest.raises(InputError, match="Bernoulli is not known"):
        check_model(model)


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"not a model at all")
    (tmp_path / "b.onnx").write_bytes(b"")
    for name in ("a", "b"):
        with pytest.raises(InputError, match="is not an ONNX model"):
            read_model(tmp_path / f"{name}.onnx")
    with pytest.raises(InputError, match="cannot read model"):
        read_model(tmp_path / "c.onnx")
