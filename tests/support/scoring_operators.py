"""One operator in a model that takes a row, and rows that would move whatever it kept of them.

Most come from onnx's own tests of its operators: their inputs, end to end, are the row. In turn all of
them come from it, or one, and the others are constants, which is where a runtime could keep something.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, defs, helper, numpy_helper, parser
from onnx.backend.test.loader import load_model_tests

from privcal.data.scoring.alone import open_session as _session
from privcal.data.scoring.model import KNOWN, Model, all_nodes
from privcal.trusted.errors import InputError

Row = dict[str, npt.NDArray[Any]]
Operator = tuple[str, str]

OPERATORS: list[Operator] = sorted(
    (domain, name) for domain, names in KNOWN.items() if domain != "ai.onnx" for name in names
)
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
WIDTH = 6
NUMBERS = ", ".join(str((7 * n) % 11 / 4 - 1) for n in range(3 * WIDTH))

REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
TEXTS = {
    **{f"old Reduce{r}": f"r = Reduce{r} <axes = [1]> (x) logits = Add(x, r)" for r in REDUCE},
    "old Slice": "s = Slice <axes = [1], starts = [1], ends = [4]> (x) logits = Neg(s)",
    "old Pad": "logits = Pad <pads = [0, 1, 0, 2]> (x)",
    "old TopK": "logits, i = TopK <k = 3> (x)",
    "old Dropout": "d = Dropout(x) logits = Neg(d)",
    "old DepthToSpace": "f = Constant <value_ints = [1, 6, 1, 1]> () t = Reshape(x, f) "
    "d = DepthToSpace <blocksize = 1> (t) o = Constant <value_ints = [1, 6]> () logits = Reshape(d, o)",
    "old LabelEncoder": "i = Cast <to = 7> (x) s = ai.onnx.ml.LabelEncoder "
    "<classes_strings = [\"a\", \"b\"]> (i) e = ai.onnx.ml.LabelEncoder "
    "<classes_strings = [\"b\", \"a\"]> (s) logits = Cast <to = 1> (e)",
    "old Squeeze": "u = Unsqueeze <axes = [0]> (x) s = Squeeze <axes = [0]> (u) logits = Neg(s)",
    "old Upsample": "s = Constant <value_floats = [1.0, 2.0]> () logits = Upsample (x, s)",
    "older Upsample": "logits = Upsample <scales = [1.0, 2.0]> (x)",
    "old Resize": "s = Constant <value_floats = [1.0, 2.0]> () logits = Resize <mode = \"linear\"> (x, s)",
    "Resize": "s = Constant <value_floats = [1.0, 2.0]> () logits = Resize <mode = \"linear\"> (x, s, s)",
    "GroupNormalization": "three = Constant <value_ints = [1, 2, 3]> () f = Reshape(x, three) "
    "o = Constant <value_floats = [1.0]> () g = GroupNormalization <num_groups = 1> (f, o, o) "
    "flat = Constant <value_ints = [1, 6]> () logits = Reshape(g, flat)",
    "If": "s = ReduceSum <keepdims = 0> (x) z = Sub(s, s) c = Less(z, s) logits = If (c) "
    "<then_branch = yes () => (float[N, 6] a) <float[1, 6] w = {1, 2, 3, 4, 5, 6}> "
    "{ v = Identity(w) a = Add(v, x) }, "
    "else_branch = no () => (float[N, 6] b) { b = Neg(x) }>",
    "Scan": "z = ReduceSum <axes = [1], keepdims = 0> (x) t = Transpose(x) "
    "last, sums = Scan <num_scan_inputs = 1, body = step (float[N] a, float[N] b) => "
    "(float[N] c, float[N] d) { c = Add(a, b) d = Identity(c) }> (z, t) logits = Transpose(sums)",
    "CastLike": "logits = CastLike(x, x)",
    "Scaler": "logits = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)",
    "Imputer": "logits = ai.onnx.ml.Imputer <imputed_value_floats = [3.0], "
    "replaced_value_float = 0.0> (x)",
    "Normalizer": "logits = ai.onnx.ml.Normalizer <norm = \"L2\"> (x)",
    "LinearClassifier": f"label, logits = ai.onnx.ml.LinearClassifier <coefficients = [{NUMBERS}], "
    "intercepts = [1.0, 2.0, 3.0], classlabels_ints = [0, 1, 2], post_transform = \"SOFTMAX\"> (x)",
    "LinearRegressor": f"logits = ai.onnx.ml.LinearRegressor <coefficients = [{NUMBERS}], "
    "intercepts = [1.0, 2.0, 3.0], targets = 3> (x)",
    "OneHotEncoder": "i = Cast <to = 7> (x) e = ai.onnx.ml.OneHotEncoder <cats_int64s = [0, 1, 2]> (i) "
    "flat = Constant <value_ints = [1, 18]> () logits = Reshape(e, flat)",
    "FeatureVectorizer": "logits = ai.onnx.ml.FeatureVectorizer <inputdimensions = [6, 6]> (x, x)",
    "CategoryMapper": "i = Cast <to = 7> (x) s = ai.onnx.ml.CategoryMapper <cats_int64s = [0, 1], "
    "cats_strings = [\"a\", \"b\"]> (i) t = ai.onnx.ml.LabelEncoder <keys_strings = [\"a\", \"b\"], "
    "values_floats = [1.0, 2.0]> (s) logits = Neg(t)",
    **{
        f"{how} of a constant": f"w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> () v = {how} logits = Add(v, x)"
        for how in ("Identity(w)", "Unsqueeze <axes = [0]> (w)", "Flatten <axis = 0> (w)", "Dropout(w)")
    },
}  # fmt: skip
"""Operators without a case there, or with none in their older versions; and constants that one
operator hands on to another which likes to write into what it is given."""


@dataclass(frozen=True)
class Framed:
    """A model whose output is `logits`, a row for it, and other rows."""

    name: str
    model: Any
    row: Row
    others: tuple[Row, ...]


def framed(operator: Operator, version: int, most: int | None = None) -> Iterator[Framed]:
    """Models of that version of its operator set; of at most so many cases."""
    domain = operator[0]
    for case in _cases()[operator][:most]:
        for given in _given(case):
            model = _frame(case, given, domain, version)
            if model is not None:
                yield model
    written = [_written(title, text, domain, version) for title, text in TEXTS.items()]
    for model in [*written, *from_scikit_learn()]:
        if any((n.domain, n.op_type) == operator for n in all_nodes(model.model)):
            yield model


def versions(domain: str, name: str) -> list[int]:
    """Those in which the operator became another one, of those that the runtime knows; and the newest."""
    newest = _newest(domain)
    return sorted({*(v for v in _since()[domain, name] if domain or 7 <= v <= newest), newest})


def bits(model: Model, row: Row) -> bytes | None:
    """The scores of a row; None where the model fails on it."""
    try:
        return model.run(row).tobytes()
    except Exception:
        return None


def rows_that_move(row: Row, exact: npt.NDArray[Any] | None = None) -> Iterator[Row]:
    """Rows far from this one; whole numbers (`exact` names the input of each) stay near their range."""
    shuffle = np.random.default_rng(0).permutation
    floats: list[Callable[[Any], Any]] = [
        lambda b: b * -3.3, lambda b: b + 1, lambda b: b * np.nan, lambda b: b * 0 + np.inf,
        lambda b: b * 0 - np.inf, lambda b: b * 0 + 1e30, lambda b: b * 0,
        lambda b: np.where(np.arange(len(b)) % 3 == 0, np.nan, b), lambda b: b * 1e20,
        lambda b: b * 1e-42,
    ]  # fmt: skip
    whole: list[Callable[[Any], Any]] = [
        shuffle, lambda b: b[::-1], lambda b: b, lambda b: b * 0 + b[0], lambda b: -b,
        lambda b: np.maximum(b - 1, 1), lambda b: b, lambda b: b + 1, lambda b: b, shuffle,
    ]  # fmt: skip
    for f, g in zip(floats, whole, strict=True):
        other = dict(row)
        if "ROW" in row:
            values = row["ROW"][0].copy()
            kinds = np.full(len(values), -1) if exact is None else exact
            for kind in np.unique(kinds):
                change = f if kind < 0 else g
                with np.errstate(all="ignore"):
                    values[kinds == kind] = change(values[kinds == kind])
            other["ROW"] = values[None].astype(row["ROW"].dtype)
        if "WORDS" in row:
            other["WORDS"] = np.array([[word[::-1] + "z" for word in row["WORDS"][0]]], object)
        yield other


@cache
def _cases() -> dict[Operator, list[Any]]:
    found: dict[Operator, list[Any]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in load_model_tests(kind="node"):
            if "_expanded" not in case.name:
                for node in {(n.domain, n.op_type) for n in all_nodes(case.model)}:
                    found[node].append(case)
    for cases in found.values():
        cases.sort(key=lambda case: len(list(all_nodes(case.model))))
    return found


@cache
def _since() -> dict[Operator, list[int]]:
    found: dict[Operator, list[int]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].append(schema.since_version)
    return found


@cache
def _newest(domain: str) -> int:
    """The newest set of operators that both onnx and the runtime have."""
    text = (
        "y = Neg(x)"
        if domain == ""
        else "y = ai.onnx.ml.Scaler <offset = [0.0], scale = [1.0]> (x)"
    )
    for version in range(defs.onnx_opset_version() if domain == "" else 9, 0, -1):
        model = parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17, "{domain}": {version}]>\n'
            f"net (float[N, 1] x) => (float[N, 1] y) {{ {text} }}"
        )
        with suppress(InputError):
            _session(model.SerializeToString())
            return version
    raise AssertionError(domain)


def _data(case: Any) -> tuple[list[Any], list[Any]]:
    return tuple(  # type: ignore[return-value]
        [
            numpy_helper.to_array(d)
            if isinstance(d, TensorProto)
            else np.asarray(d)
            if isinstance(d, np.generic)
            else d
            for d in data
        ]
        for data in case.data_sets[0]
    )


def _given(case: Any) -> list[set[int]]:
    inputs, _ = _data(case)
    each = [{n} for n in range(len(inputs))]
    return [set(range(len(inputs))), *each] if len(inputs) > 1 else each or [set()]


def _frame(case: Any, given: set[int], domain: str, version: int) -> Framed | None:
    """The case with these of its inputs from the row and the others constant; None of another type."""
    graph, (inputs, outputs) = case.model.graph, _data(case)
    if not all(isinstance(a, np.ndarray) and a.size for a in [*inputs, *outputs]):
        return None
    if not all(v.type.HasField("tensor_type") for v in [*graph.input, *graph.output]):
        return None
    constants, nodes = list(graph.initializer), []
    pools: dict[str, list[Any]] = {"ROW": [], "WORDS": []}
    exact: list[int] = []

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(kind: str, inputs: list[str], output: str, **more: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], **more))
        return output

    for n, (value, array) in enumerate(zip(graph.input, inputs, strict=True)):
        kind = value.type.tensor_type.elem_type
        if n not in given:
            constant(value.name, array)
            continue
        pool = "WORDS" if kind == TensorProto.STRING else "ROW"
        at = constant(f"AT_{n}", np.arange(array.size) + len(pools[pool]))
        taken = op("Gather", [pool, at], f"TAKEN_{n}", axis=1)
        if pool == "ROW":
            pools[pool] += array.ravel().astype(np.float64).tolist()
            exact += [-1 if kind in FLOATS else n] * array.size
            taken = op("Cast", [taken], f"CAST_{n}", to=kind)
        else:
            pools[pool] += [_text(word) for word in array.ravel()]
        op("Reshape", [taken, constant(f"SHAPE_{n}", np.array(array.shape, np.int64))], value.name)
    nodes += graph.node
    flat, parts = constant("FLAT", [-1]), []
    for n, (value, array) in enumerate(zip(graph.output, outputs, strict=True)):
        name = value.name
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            words = sorted({*pools["WORDS"], *map(_text, array.ravel())})
            codes = [float(code) for code in range(len(words))]
            name = op(
                "LabelEncoder", [name], f"CODE_{n}",
                domain="ai.onnx.ml", keys_strings=words, values_floats=codes,
            )  # fmt: skip
        name = op("Cast", [name], f"DOUBLE_{n}", to=TensorProto.DOUBLE)
        parts.append(op("Reshape", [name, flat], f"FLAT_{n}"))
    width = max(2, sum(array.size for array in outputs))
    long = op("Concat", [*parts, constant("PAD", np.zeros(width))], "LONG", axis=0)
    short = op("Gather", [long, constant("FIRST", np.arange(width))], "SHORT", axis=0)
    op("Reshape", [short, constant("TABLE", [1, -1])], "logits")
    row: Row = {"ROW": np.array([pools["ROW"]])} if pools["ROW"] or not given else {}
    if not given:
        row["ROW"] = np.zeros((1, 1))
    row |= {"WORDS": np.array([pools["WORDS"]], object)} if pools["WORDS"] else {}
    types = {"ROW": TensorProto.DOUBLE, "WORDS": TensorProto.STRING}
    sets = {"": 17, "ai.onnx.ml": 3, **{o.domain: o.version for o in case.model.opset_import}}
    sets[""] = min(sets[""], _newest(""))
    sets[domain] = version
    made = helper.make_model(
        helper.make_graph(
            nodes,
            case.name,
            [helper.make_tensor_value_info(n, types[n], ["N", a.shape[1]]) for n, a in row.items()],
            [helper.make_tensor_value_info("logits", TensorProto.DOUBLE, ["N", width])],
            constants,
        ),
        opset_imports=[helper.make_opsetid(d, v) for d, v in sets.items()],
        ir_version=10,
    )
    name = f"{case.name} at {version}, {given} from the row"
    return Framed(name, made, row, tuple(rows_that_move(row, np.array(exact))))


def _written(title: str, text: str, domain: str, version: int) -> Framed:
    sets = {"": 12 if domain else version, "ai.onnx.ml": version if domain else 3}
    imports = ", ".join(f'"{d}": {v}' for d, v in sets.items())
    model = parser.parse_model(
        f"<ir_version: 8, opset_import: [{imports}]>\n"
        f"net (float[N, {WIDTH}] ROW) => (float[N, M] logits) {{ x = Identity(ROW) {text} }}"
    )
    row = {"ROW": np.array([[1.0, -2.0, 0.5, 3.0, 0.25, 7.0]], np.float32)}
    return Framed(f"{title} at {version}", model, row, tuple(rows_that_move(row)))


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


@cache
def from_scikit_learn() -> list[Framed]:
    """Models for the operators whose attributes are too many to write down."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.svm import SVC, SVR

    x = np.random.default_rng(0).normal(size=(60, WIDTH)).astype(np.float32)
    y = np.digitize(x[:, 0] + x[:, 1], [-1, 1])
    trees = {"n_estimators": 5, "random_state": 0}
    found = []
    for e in (SVC(), SVR(), RandomForestClassifier(**trees), RandomForestRegressor(**trees)):
        model = to_onnx(e.fit(x, y), initial_types=[("ROW", FloatTensorType([None, WIDTH]))])
        row = {"ROW": x[:1]}
        found.append(Framed(type(e).__name__, model, row, tuple(rows_that_move(row))))
    return found
