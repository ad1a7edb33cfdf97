"""Which output of a model holds its classes' scores: told by the graph, or asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

from privcal.errors import InputError  # noqa: E402
from privcal.maps import TemperatureMap  # noqa: E402
from privcal.onnx import append  # noqa: E402
from privcal.onnx.outputs import (  # noqa: E402
    ClassScores,
    check_model,
    find_scores,
    read_model,
    without_zipmaps,
)
from tests.onnx.run import run_model  # noqa: E402


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
        ("logits = Neg(x)", "float[N, 4] logits", ClassScores("logits", "logits", 4)),
        (
            "logits = Neg(x) label = ArgMax <axis = 1> (x) y = Exp(x)",
            "float[N, 4] logits, int64[N, 1] label, float[N, 4] y",
            ClassScores("logits", "logits", 4),
        ),
        (
            "Probabilities = Exp(x)",
            "float[N, 4] Probabilities",
            ClassScores("Probabilities", "probabilities", 4),
        ),
        (
            "s = ReduceSum <keepdims = 1> (x) y = Sigmoid(s)",
            "float[N, 1] y",
            ClassScores("y", "probabilities", 2, column=True),
        ),
    ],
)
def test_an_operator_or_a_name_that_fits_it_tells(
    body: str, outputs: str, found: ClassScores
) -> None:
    assert find_scores(graph(body, outputs)) == found


@pytest.mark.parametrize(
    ("body", "outputs", "said"),
    [
        ("y = Neg(x)", "float[N, 4] y", "operator Neg; say with --as logits or --as"),
        (
            "probabilities = Neg(x)",
            "float[N, 4] probabilities",
            "operator Neg, though its name says probabilities; say with --as",
        ),
        (
            "logits = Softmax(x)",
            "float[N, 4] logits",
            "which makes probabilities, though its name says logits; say with --as",
        ),
        ("y = Softmax <axis = 0> (x)", "float[N, 4] y", "say with --as"),
        ("y = Sigmoid(x)", "float[N, 4] y", "a Sigmoid of 4 columns, each class by itself"),
        ("y = Exp(x) z = Neg(x)", "float[N, 4] y, float[N, 4] z", "(y, z); say with --output"),
        (
            "logits = Neg(x) probabilities = Softmax(x)",
            "float[N, 4] logits, float[N, 4] probabilities",
            "say with --output",
        ),
        ("y = ArgMax <axis = 1> (x)", "int64[N, 1] y", "no output with scores of classes, only y"),
        (
            "i = Unsqueeze(x, a) y = Softmax(i)",
            "float[N, 4, 1] y",
            "has 3 dimensions, not rows and classes",
        ),
    ],
)
def test_what_is_not_unmistakable_is_asked_for_by_its_flag(
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


@pytest.mark.parametrize("weights", [(0.25, 0.75, 0.9, 0.1), (0.25, 0.75, 0.9, 0.3)])
def test_trees_give_probabilities_where_every_leaf_has_shares_of_one(
    weights: tuple[float, ...],
) -> None:
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "probabilities"], domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[0, 0, 0],
        nodes_values=[0.0, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[0, 0, 0], nodes_hitrates=[1.0, 1.0, 1.0],
        class_treeids=[0] * 4, class_nodeids=[1, 1, 2, 2], class_ids=[0, 1, 0, 1],
        class_weights=list(weights), classlabels_strings=["no", "yes"], post_transform="NONE",
    )  # fmt: skip
    model = graph("y = Softmax(x)", "float[N, 2] probabilities")
    model.graph.node[0].CopyFrom(node)
    if sum(weights) == 2:
        found = find_scores(model)
        assert found == ClassScores("probabilities", "probabilities", 2, names=("no", "yes"))
    else:
        with pytest.raises(InputError, match="say with --as"):
            find_scores(model)


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
@pytest.mark.parametrize("name", ["logistic", "forest", "boosting", "bayes", "network", "bag"])
def test_probabilities_of_scikit_learn_are_found_with_the_names_of_classes(
    name: str, classes: int, texts: bool
) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    estimator, x = fitted(name, classes, texts)
    model = skl2onnx.to_onnx(estimator, x[:1])
    found = find_scores(model)
    names = tuple(estimator.classes_.tolist())
    assert found == ClassScores("output_probability", "probabilities", classes, names=names)
    plain = without_zipmaps(model)
    onnx.checker.check_model(plain)
    assert find_scores(plain) == found
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
    with pytest.raises(InputError, match="though its name says probabilities; say with --as"):
        find_scores(model)
    assert find_scores(model, kind="logits").kind == "logits"


# --- models that are refused -----------------------------------------------------------------------


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    w = np.ones((4, 300), np.float32)
    model = graph("logits = MatMul(x, w)", "float[N, 300] logits", w=w)
    onnx.save(model, tmp_path / "whole.onnx")
    assert find_scores(read_model(tmp_path / "whole.onnx")).classes == 300
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
        ("n = RandomNormalLike(x) logits = Add(x, n)", "RandomNormalLike draws random numbers"),
        ("n = Multinomial(x) logits = Cast <to = 1> (n)", "Multinomial draws random numbers"),
        ("logits = Dropout(x, r, t)", "Dropout draws random numbers"),
        ("logits = com.microsoft.Gelu(x)", "Gelu is from com.microsoft, and only"),
    ],
)
def test_operators_that_are_not_run_here_are_named(body: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_model(graph(body, "float[N, 4] logits", r=0.5, t=1))


def test_a_dropout_that_is_off_is_fine() -> None:
    check_model(graph("logits = Dropout(x)", "float[N, 4] logits"))
    check_model(graph("logits = Dropout(x, r, t)", "float[N, 4] logits", r=0.5, t=0))


def test_a_dropout_that_may_be_switched_on_is_refused() -> None:
    model = graph("logits = Dropout(x, r, t)", "float[N, 4] logits", r=0.5)
    model.graph.input.append(helper.make_tensor_value_info("t", TensorProto.BOOL, []))
    with pytest.raises(InputError, match="Dropout draws random numbers"):
        check_model(model)


def with_function(domain: str, name: str, *nodes: Any) -> Any:
    """A model that calls a function of its own."""
    model = graph("logits = Identity(x)", "float[N, 4] logits", r=0.5, t=0)
    versions = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function(domain, name, ["a"], ["b"], nodes, versions))
    model.graph.node[0].CopyFrom(helper.make_node(name, ["x"], ["logits"], domain=domain))
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def test_a_dropout_in_a_function_is_not_switched_off_by_a_name_outside() -> None:
    """Were it allowed, the runtime would give the same row other scores each time."""
    on = helper.make_tensor("on", TensorProto.BOOL, [], [True])
    half = helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
    model = with_function(
        "mine",
        "Same",
        helper.make_node("Constant", [], ["t"], value=on),
        helper.make_node("Constant", [], ["r"], value=half),
        helper.make_node("Dropout", ["a", "r", "t"], ["b"]),
    )
    with pytest.raises(InputError, match="Dropout draws random numbers"):
        check_model(model)


def test_a_function_cannot_take_the_name_of_an_operator_that_is_not_run_here() -> None:
    """The runtime runs its own operator of that name, whatever the function says."""
    same = helper.make_node("Identity", ["a"], ["b"])
    check_model(with_function("mine", "Sampling", same))
    with pytest.raises(InputError, match=r"Sampling is from com\.microsoft"):
        check_model(with_function("com.microsoft", "Sampling", same))


def test_a_constant_without_a_value_is_none() -> None:
    model = graph("logits = Dropout(x, r, t)", "float[N, 4] logits", r=0.5)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["t"]))
    with pytest.raises(InputError, match="Dropout draws random numbers"):
        check_model(model)


def test_a_random_operator_is_found_inside_a_branch_too() -> None:
    model = graph("y = Softmax(x)", "float[N, 4] y")
    inner = helper.make_graph([helper.make_node("Bernoulli", ["x"], ["r"])], "branch", [], [])
    model.graph.node.append(
        helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)
    )
    with pytest.raises(InputError, match="Bernoulli draws random numbers"):
        check_model(model)


def test_a_file_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"not a model at all")
    (tmp_path / "b.onnx").write_bytes(b"")
    for name in ("a", "b"):
        with pytest.raises(InputError, match="is not an ONNX model"):
            read_model(tmp_path / f"{name}.onnx")
    with pytest.raises(InputError, match="cannot read model"):
        read_model(tmp_path / "c.onnx")
