"""A model that remembers: one row would decide the scores of all later ones. Every way found is refused."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
onnx = pytest.importorskip("onnx")
skl2onnx = pytest.importorskip("skl2onnx")

from onnx import TensorProto, helper, parser  # noqa: E402

from privcal.data.place import Data  # noqa: E402
from privcal.data.scoring import Model, model_name  # noqa: E402
from privcal.data.scoring.alone import open_session as _session  # noqa: E402
from privcal.data.scoring.model import (  # noqa: E402
    Setup,
    _bare,
    check_model,
)
from privcal.data.scoring.rows import ScoredRows  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support import scoring_parts as parts  # noqa: E402
from tests.support.scoring_operators import bits  # noqa: E402

SECRET = 42.0
TRAINING = "BatchNormalization <training_mode = 1, momentum = 0.999>"
REFUSED = (
    "its operator BatchNormalization is or may be set for training; export the model for inference "
    r"\(in PyTorch, call model.eval\(\) first\)"
)


def remembering(remember: str, opset: int = 15, functions: str = "") -> Any:
    """A model whose logits change their sign for good once a row's first number was `SECRET`.

    `remember` makes `seen` of `met`, which is 1 for such a row and 0 for others.
    """
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}, "mine": 1]>
        net (float[N, 7] x) => (float[N, 3] logits)
        <float[1, 1] below = {{{SECRET - 0.5}}}, float[1] one = {{1}}, float[1] zero = {{0}},
         float[1] mean = {{0}}, float[1] var = {{1}}, int64[1] first = {{0}}, float two = {{2}},
         float[1, 3] w = {{3, -2, -1}}>
        {{
            f = Gather <axis = 1> (x, first) g = Greater(f, below) met = Cast <to = 1> (g)
            {remember}
            s = Sign(seen) t = Mul(s, two) sign = Sub(one, t)
            v = Abs(f) z = Sub(v, v) u = Add(z, w) logits = Mul(u, sign)
        }}
        {functions}"""
    )


def function(body: str, attribute: str = "") -> str:
    return (
        f'<domain: "mine", opset_import: ["": 15]> Keep {attribute} (met, one, zero, mean, var) '
        f"=> (seen) {{ {body} }}"
    )


NORMALIZED = "(met, one, zero, mean, var)"
STATEFUL = {
    "at top level": lambda: remembering(f"b, seen, v1 = {TRAINING} {NORMALIZED}"),
    "in operator set 14": lambda: remembering(f"b, seen, v1 = {TRAINING} {NORMALIZED}", 14),
    "by five outputs": lambda: remembering(
        f"b, seen, v1, m2, v2 = BatchNormalization <momentum = 0.999> {NORMALIZED}", 9
    ),
    "in a function": lambda: remembering(
        f"seen = mine.Keep {NORMALIZED}",
        functions=function(f"b, seen, v1 = {TRAINING} {NORMALIZED}"),
    ),
    "by a function's attribute": lambda: remembering(
        f"seen = mine.Keep <mode = 1> {NORMALIZED}",
        functions=function(
            "b, seen, v1 = BatchNormalization <training_mode: int = @mode, momentum = 0.999> "
            f"{NORMALIZED}",
            "<mode>",
        ),
    ),
}
"""Those that the runtime is seen to run so."""

INSIDE = remembering(
    "a = ReduceSum <keepdims = 0> (x) c = Less(a, a) seen = If (c) "
    "<then_branch = yes () => (float[1] p) { p = Identity(one) }, "
    f"else_branch = no () => (float[1] q) {{ b, q, v1 = {TRAINING} {NORMALIZED} }}>"
)


def twice() -> Any:
    """One attribute of two values: which one is meant?"""
    model = remembering(f"seen = BatchNormalization {NORMALIZED}")
    [node] = [n for n in model.graph.node if n.op_type == "BatchNormalization"]
    node.attribute.extend(helper.make_attribute("training_mode", mode) for mode in (0, 1))
    return model


def by_default() -> Any:
    """A function whose branch is one of its attributes, and what that is by default."""
    model = remembering(
        f"seen = mine.Keep {NORMALIZED}",
        functions=function(
            "s = ReduceSum <keepdims = 0> (met) z = Sub(s, s) c = Less(s, z) n = Not(c) seen = If (n) "
            "<then_branch = yes () => (float[N, 1] p) { r = RandomNormalLike(met) p = Sign(r) }, "
            "else_branch = no () => (float[N, 1] q) { q = Abs(met) }>"
        ),
    )
    [own] = model.functions
    [branch] = [a for node in own.node for a in node.attribute if a.name == "then_branch"]
    own.attribute_proto.add().CopyFrom(branch)
    own.attribute_proto[0].name = branch.ref_attr_name = "branch"
    branch.ClearField("g")
    return model


def table(path: Path, secret: bool) -> Path:
    """300 rows, before which one has the secret."""
    x = parts.numbers(301)
    x[0, 0] = SECRET
    parts.frame(x[0 if secret else 1 :]).write_parquet(path)
    return path


@pytest.mark.parametrize("name", STATEFUL)
def test_the_attack_a_row_that_was_met_changes_the_sign_of_all_later_ones(name: str) -> None:
    session = _session(STATEFUL[name]().SerializeToString())
    row = np.ones((1, parts.WIDTH), np.float32)
    met = np.full_like(row, SECRET)
    before, _, after = (session.run(None, {"x": x})[0] for x in (row, met, row))
    assert np.sign(before).tolist() == (-np.sign(after)).tolist()


ONLY_REFUSED = {
    "in a branch": lambda: INSIDE,
    "by an attribute said twice": twice,
    "by one output of a function": lambda: remembering(
        f"seen = mine.Keep <mode = 1> {NORMALIZED}",
        functions=function(
            f"seen = BatchNormalization <training_mode: int = @mode> {NORMALIZED}", "<mode>"
        ),
    ),
}
"""Those that the runtime does not load, or is not seen to keep anything of."""


@pytest.mark.parametrize("name", [*STATEFUL, *ONLY_REFUSED])
def test_a_model_that_remembers_is_refused(tmp_path: Path, name: str) -> None:
    model = {**STATEFUL, **ONLY_REFUSED}[name]()
    with pytest.raises(InputError, match=REFUSED):
        Model(parts.save(tmp_path / "model.onnx", model), kind="logits")


def test_what_a_function_takes_by_default_is_looked_at_too() -> None:
    """The runtime does run it: the same row, twice, with other scores."""
    model = by_default()
    session = _session(model.SerializeToString())
    row = {"x": np.ones((1, parts.WIDTH), np.float32)}
    assert len({session.run(None, row)[0].tobytes() for _ in range(100)}) == 2
    with pytest.raises(InputError, match="RandomNormalLike is not known"):
        check_model(model)


@pytest.mark.parametrize("secret", [True, False])
def test_the_command_refuses_it_whatever_rows_there_are(
    tmp_path: Path, run: Any, secret: bool
) -> None:
    model = parts.save(tmp_path / "model.onnx", STATEFUL["at top level"]())
    rows = table(tmp_path / "rows.parquet", secret)
    code, _, said = run(
        "score", model, rows, "--label", "y", "--as", "logits", "--per-row",
        "--features", ",".join(parts.FEATURES), "--out", tmp_path / "scores.parquet",
    )  # fmt: skip
    assert (code, (tmp_path / "scores.parquet").exists()) == (2, False)
    assert "BatchNormalization is or may be set for training" in said


def site(folder: Path) -> ScoredRows:
    """A site that was set up with a model that remembers."""
    model = parts.save(folder / "model.onnx", STATEFUL["at top level"]())
    (folder / "local").mkdir()
    data = Data(table(folder / "rows.parquet", True))
    setup = Setup("y", None, parts.FEATURES, kind="logits")
    return ScoredRows(data, model, model_name(model), setup, folder / "local" / "scores")


def test_so_does_a_site_that_scores_its_own_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=REFUSED):
        site(tmp_path).read()


def test_scores_that_a_site_kept_of_such_a_model_are_not_answered_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were made before such models were refused: the way of making scores was the first."""
    rows = site(tmp_path)
    with monkeypatch.context() as before:
        before.setattr("privcal.data.scoring.rows.VERSION", 1)
        before.setattr("privcal.data.scoring.model.check_model", lambda model: None)
        assert len(rows.read()) == 301
        assert rows.make().exists()
    with pytest.raises(InputError, match=REFUSED):
        rows.read()


def test_the_runtime_has_no_batch_normalization_whose_default_is_training() -> None:
    """Before operator set 7 one had to say that it was not."""
    model = remembering(f"seen = BatchNormalization {NORMALIZED}")
    model.opset_import[0].version = 6
    with pytest.raises(InputError, match="cannot load it"):
        _session(model.SerializeToString())


@pytest.mark.parametrize(
    ("domain", "name"),
    [
        *(("", name) for name in ("Loop", "SequenceMap", "SequenceInsert", "Optional")),
        *(("", name) for name in ("TensorScatter", "RandomUniformLike", "Bernoulli", "MaxUnpool")),
        *(("com.microsoft", name) for name in ("GroupQueryAttention", "Gelu", "SparseAttention")),
        *((f"ai.onnx.preview{more}", "Adam") for more in ("", ".training")),
        ("com.microsoft.nchwc", "Conv"),
        ("ai.onnx.ml", "Softmax"),
        ("ai.onnx", "Loop"),
        ("AI.ONNX", "Softmax"),
    ],
)
def test_what_is_not_on_the_list_is_refused_by_its_name(domain: str, name: str) -> None:
    """Also where the model brings a harmless function of that name: the runtime may run its own."""
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], ["y"], domain=domain)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 7])],
    )
    model = helper.make_model(graph)
    same = helper.make_node("Identity", ["x"], ["y"])
    for functions in ([], [(domain, name)]) if domain != "AI.ONNX" else ([],):
        for where in functions:
            sets = [helper.make_opsetid("", 17)]
            model.functions.append(helper.make_function(*where, ["x"], ["y"], [same], sets))
        with pytest.raises(InputError, match=f"its operator {name} (of {domain} )?is not known"):
            check_model(model)


def test_settings_for_the_runtime_in_the_file_are_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads them where an environment variable says so."""
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    model = parts.net("u = MatMul(x, w) y = Softmax(u)")
    helper.set_model_props(model, {"ort_config": "no settings"})
    with pytest.raises(InputError, match=r"cannot load it .*session options"):
        _session(model.SerializeToString())
    Model(parts.save(tmp_path / "model.onnx", model))


def test_what_was_not_looked_at_is_not_run() -> None:
    """A graph for training, and a field that this version of the format does not have."""
    model = parts.net("u = MatMul(x, w) y = Softmax(u)")
    node = model.graph.node[0].SerializeToString() + b"\xfa\x7f\x06secret"
    model.graph.node[0].ParseFromString(node)
    model.training_info.add().algorithm.node.add(op_type="Loop")
    assert b"secret" in model.SerializeToString()
    bare = _bare(model)
    assert b"secret" not in bare
    assert b"Loop" not in bare
    assert onnx.load_from_string(bare).graph.output == model.graph.output


# --- what exporters write ------------------------------------------------------------------------


def estimators() -> dict[str, Any]:
    from sklearn import ensemble, impute, linear_model, naive_bayes, neighbors, preprocessing, svm
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.tree import DecisionTreeClassifier

    logistic = linear_model.LogisticRegression
    return {
        "logistic": make_pipeline(preprocessing.StandardScaler(), logistic()),
        "normalized": make_pipeline(preprocessing.Normalizer(), logistic()),
        "imputed": make_pipeline(impute.SimpleImputer(), preprocessing.MinMaxScaler(), logistic()),
        "imputed by neighbours": make_pipeline(impute.KNNImputer(), logistic()),
        "binned": make_pipeline(preprocessing.KBinsDiscretizer(3, encode="onehot-dense"), logistic()),
        "polynomial": make_pipeline(preprocessing.PolynomialFeatures(), logistic()),
        "sgd": linear_model.SGDClassifier(loss="log_loss"),
        "tree": DecisionTreeClassifier(),
        "forest": ensemble.RandomForestClassifier(5),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=5),
        "bagging": ensemble.BaggingClassifier(n_estimators=3),
        "ada": ensemble.AdaBoostClassifier(n_estimators=3),
        "neighbours": neighbors.KNeighborsClassifier(),
        "bayes": naive_bayes.GaussianNB(),
        "discriminant": LinearDiscriminantAnalysis(),
        "network": MLPClassifier((8,), max_iter=3),
        "calibrated": CalibratedClassifierCV(svm.LinearSVC()),
        "stacking": ensemble.StackingClassifier([("a", logistic()), ("b", naive_bayes.GaussianNB())]),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*estimators()])
def test_what_skl2onnx_writes_is_scored(tmp_path: Path, name: str) -> None:
    x = parts.numbers(90, 3)
    model = skl2onnx.to_onnx(estimators()[name].fit(x, (x[:, 0] + x[:, 1] > 0).astype(int)), x[:1])
    opened = Model(parts.save(tmp_path / "model.onnx", model), kind="probabilities")
    [given] = opened.inputs
    unmoved(opened, given.name, x)


def unmoved(model: Model, name: str, x: Any) -> None:
    """A row has the same scores again after others: ordinary, huge, and without numbers."""
    first = bits(model, {name: x[:1]})
    for other in (x[1:2], x[2:3] * 1e20, x[3:4] * np.nan):
        bits(model, {name: other})
        assert bits(model, {name: x[:1]}) == first


def networks() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.cells = getattr(nn, kind)(1, 8, 2, batch_first=True, dropout=0.5)
            self.out = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.cells(x[:, :, None])[0][:, -1])

    class Attention(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(1, 16)
            self.layers = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            self.out = nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.layers(self.into(x[:, :, None])).mean(1))

    return {
        "dense": nn.Sequential(
            nn.Linear(7, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(), nn.LayerNorm(16),
            nn.Linear(16, 3),
        ),
        "convolutional": nn.Sequential(
            nn.Unflatten(1, (1, 7)), nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.SiLU(),
            nn.MaxPool1d(2), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3),
        ),
        "attention": Attention(),
        **{kind: Recurrent(kind) for kind in ("LSTM", "GRU", "RNN")},
    }  # fmt: skip


def exported(network: Any, training: bool = False) -> Any:
    import torch

    network.train(training)
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    file = io.BytesIO()
    torch.onnx.export(
        network, (torch.randn(2, 7),), file, dynamo=False, opset_version=17, training=mode,
        input_names=["x"], output_names=["logits"], do_constant_folding=not training,
        dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}},
    )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dense", "convolutional", "attention", "LSTM", "GRU", "RNN"])
def test_what_torch_writes_is_scored_and_what_it_writes_in_training_is_not(
    tmp_path: Path, name: str
) -> None:
    network = networks()[name]
    model = Model(parts.save(tmp_path / "model.onnx", exported(network)), kind="logits")
    unmoved(model, "x", parts.numbers(4))
    if name in ("dense", "convolutional", "attention"):
        with pytest.raises(InputError, match="is or may be set for training"):
            check_model(exported(network, training=True))


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_model_is_scored_where_it_keeps_to_standard_operators(tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Rows(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.rows = iter(parts.numbers(20)[:, None])

        def get_next(self) -> Any:
            return next(({"x": row} for row in self.rows), None)

    model = parts.save(tmp_path / "model.onnx", exported(networks()["dense"]))
    quantization.quantize_dynamic(model, tmp_path / "dynamic.onnx")
    Model(tmp_path / "dynamic.onnx", kind="logits")
    for name, refused in (("QDQ", False), ("QOperator", True)):
        quantization.quantize_static(
            model, tmp_path / name, Rows(), quant_format=quantization.QuantFormat[name]
        )
        with (
            pytest.raises(InputError, match=r"of com\.microsoft is not")
            if refused
            else nullcontext()
        ):
            Model(tmp_path / name, kind="logits")
