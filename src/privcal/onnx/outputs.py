"""Which output of an ONNX model holds the scores of its classes, and whether they are logits.

Decided by the graph alone, never by values: by the operator that makes an output first, then by the
output's name. A name alone proves little (skl2onnx calls decision values `probabilities` too), so one
that says probabilities counts only where the graph shows that no number can be negative. What is not
unmistakable is an InputError that names the flags which settle it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from privcal.errors import InputError

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
OTHERS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch")
"""How domains begin in which runtimes have operators of their own: these run, whatever function of the
same name a model brings along."""
RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli"),
}
Kind = Literal["logits", "probabilities"]
"""What a model gives for each class; a confidence alone is not enough for a graph."""

CALIBRATED = "calibrated_probabilities"
"""What a map behind a model gives for each class (see `privcal.onnx.append`)."""

NAMES: dict[str, Kind] = {
    **dict.fromkeys(("logits", "logit"), "logits"),
    **dict.fromkeys(
        ("probabilities", "probability", "output_probability", "probs", "proba"), "probabilities"
    ),
}
"""What the name of an output says about it."""

CARRIED = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "ZipMap"}
"""Operators that hand their first input on, in another shape or type."""

NEVER_NEGATIVE = {
    *(
        "Softmax",
        "Sigmoid",
        "Exp",
        "Relu",
        "Abs",
        "Sqrt",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    ),
    *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or", "OneHot"),
}
"""Operators that make no negative number of anything (OneHot of anything it is used for here)."""

KEEP_SIGN = {
    *CARRIED,
    *("Concat", "Slice", "Gather", "Transpose", "Expand", "Add", "Mul", "Div", "Sum", "Mean"),
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "MatMul", "ArrayFeatureExtractor"),
}
"""Operators that make no negative number where none is among what they work on."""

PARAMETERS = {"Reshape", "Slice", "Squeeze", "Unsqueeze", "Expand", "Gather", "ReduceSum"}
"""Those whose later inputs say how, and are not worked on."""


@dataclass(frozen=True)
class ClassScores:
    """The output of a model that holds the scores of its classes.

    Parameters
    ----------
    output
        Its name.
    kind
        What it holds.
    classes
        How many classes; None where the file does not say.
    column
        Whether it is one column or a vector, about class 1 of two: its probability, or its log-odds.
    names
        The classes' own names, where the file has them.
    """

    output: str
    kind: Kind
    classes: int | None
    column: bool = False
    names: tuple[str, ...] | tuple[int, ...] | None = None


def read_model(path: str | Path) -> onnx.ModelProto:
    """The model in a file, if it is all in that file and always gives the same (see `check_model`)."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read model {path}: {error.strerror or error}") from None
    return parse_model(content, path)


def parse_model(content: bytes, path: str | Path) -> onnx.ModelProto:
    """The same, of what was read from that file."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's own, of which there are several
        raise InputError(f"{path} is not an ONNX model, or is cut short") from None
    if not model.graph.output:
        raise InputError(f"{path} is not an ONNX model: it has no outputs")
    try:
        check_model(model)
    except InputError as error:
        raise InputError(f"model {path}: {error}") from None
    return model


def check_model(model: onnx.ModelProto) -> None:
    """Refuse a model that is not all in its file, draws random numbers, or needs code of others."""
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in _tensors(model)):
        raise InputError(
            "its weights are in other files, which its digest does not cover; save it as one file"
        )
    local = {(f.domain, f.name) for f in model.functions if not f.domain.startswith(OTHERS)}
    for node in all_nodes(model):
        if node.op_type in RANDOM or _drops(model, node):
            raise InputError(
                f"its operator {node.op_type} draws random numbers, so that the same row would get "
                "other scores each time; export the model for inference"
            )
        if node.domain not in DOMAINS and (node.domain, node.op_type) not in local:
            raise InputError(
                f"its operator {node.op_type} is from {node.domain}, and only ai.onnx and ai.onnx.ml "
                "are run here; export the model without it"
            )


def find_scores(
    model: onnx.ModelProto, *, output: str | None = None, kind: Kind | None = None
) -> ClassScores:
    """The output that holds the scores of classes; `output` and `kind` settle what the graph leaves open.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     net (float[N, 4] x) => (float[N, 3] y) { y = Softmax(x) }''')
    >>> find_scores(model)
    ClassScores(output='y', kind='probabilities', classes=3, column=False, names=None)
    """
    found = _output(model, output)
    columns, column = _columns(model, found)
    names = _class_names(model, found)
    if column:
        classes: int | None = 2
    else:
        classes = columns or (None if names is None else len(names))
    if names is not None and classes is not None and len(names) != classes:
        names = None  # of something else
    kind = kind or _kind(model, found, column, classes)
    return ClassScores(found, kind, classes, column, names)


def without_zipmaps(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a table where it had a list of dictionaries, under the same output's name."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        if node.op_type != "ZipMap":
            continue
        classes = len(_labels(node) or ())
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        for output in plain.graph.output:
            if output.name == node.output[0]:
                table = helper.make_tensor_value_info(
                    output.name, TensorProto.FLOAT, [None, classes or None]
                )
                output.CopyFrom(table)
    if not any(entry.domain in ("", "ai.onnx") for entry in plain.opset_import):
        plain.opset_import.append(helper.make_opsetid("", 9))
    return plain


# --- which output ----------------------------------------------------------------------------


def _output(model: onnx.ModelProto, wanted: str | None) -> str:
    outputs: dict[str, Any] = {output.name: output for output in model.graph.output}
    if wanted is not None:
        if wanted not in outputs:
            raise InputError(f"the model has no output {wanted!r}; it has {', '.join(outputs)}")
        if not _holds_numbers(model, outputs[wanted]):
            raise InputError(f"the model's output {wanted!r} holds no table of numbers")
        return wanted
    possible = [name for name, output in outputs.items() if _holds_numbers(model, output)]
    if CALIBRATED in outputs:
        raise InputError(
            f"the model has a map behind it: say --output {CALIBRATED} for the scores after the map, or "
            f"the model's own output for those before it (it has {', '.join(possible)})"
        )
    if not possible:
        raise InputError(
            f"the model has no output with scores of classes, only {', '.join(outputs)}; export it "
            "with its logits or probabilities"
        )
    named = [name for name in possible if name.lower() in NAMES]
    if len(possible) > 1 and len(named) != 1:
        raise InputError(
            f"the model has several outputs of numbers ({', '.join(possible)}); say with --output "
            "which one holds the scores of classes"
        )
    return (named if len(possible) > 1 else possible)[0]


def _holds_numbers(model: onnx.ModelProto, output: onnx.ValueInfoProto) -> bool:
    maker = _makers(model).get(output.name)
    if maker is not None and maker.op_type == "ZipMap":
        return True
    return output.type.HasField("tensor_type") and output.type.tensor_type.elem_type in FLOATS


def _columns(model: onnx.ModelProto, output: str) -> tuple[int | None, bool]:
    """The number of columns, where it is said, and whether the output is one column or a vector."""
    maker = _makers(model).get(output)
    if maker is not None and maker.op_type == "ZipMap":
        return len(_labels(maker) or ()) or None, False
    shape = _shape(model, output)
    if shape is None:
        return None, False
    if len(shape) not in (1, 2):
        raise InputError(
            f"the model's output {output!r} has {len(shape)} dimensions, not rows and classes"
        )
    return shape[-1], len(shape) == 1 or shape[-1] == 1


def _shape(model: onnx.ModelProto, output: str) -> list[int | None] | None:
    """Sizes of an output, None for those that vary; from the file or, if it is silent, inferred."""
    shape = _said_shape(model, output)
    if shape is None or (len(shape) == 2 and shape[1] is None):
        try:
            inferred = _said_shape(onnx.shape_inference.infer_shapes(model), output)
        except Exception:  # a hint is all we ask for
            inferred = None
        shape = inferred or shape
    return shape


def _said_shape(model: onnx.ModelProto, output: str) -> list[int | None] | None:
    [value] = [value for value in model.graph.output if value.name == output]
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [d.dim_value or None for d in value.type.tensor_type.shape.dim]


# --- logits or probabilities ---------------------------------------------------------------------


def _kind(model: onnx.ModelProto, output: str, column: bool, classes: int | None) -> Kind:
    if output == CALIBRATED:
        return "probabilities"
    said = NAMES.get(output.lower())
    maker = _maker(model, output)
    made = None if maker is None else _made(model, maker, column, classes)
    if made is not None and said in (None, made):
        return made
    if made is None and said is not None and (said == "logits" or _Signs(model).good(output)):
        return said
    by = "an input" if maker is None else f"operator {maker.op_type}"
    but = f", though its name says {said}" if said and made is None else ""
    but = f", which makes {made}, though its name says {said}" if said and made else but
    raise InputError(
        f"the model's output {output!r} comes from {by}{but}; say with --as logits or --as "
        "probabilities what it holds"
    )


def _made(
    model: onnx.ModelProto, node: onnx.NodeProto, column: bool, classes: int | None
) -> Kind | None:
    """What an operator makes of whatever it is given; None where that is open."""
    transform = _attribute(node, "post_transform", b"NONE")
    if node.op_type in ("Softmax", "LogSoftmax"):
        old = _opset(model) < 13
        if _attribute(node, "axis", 1 if old else -1) not in (1, -1):
            return None
        return "probabilities" if node.op_type == "Softmax" else "logits"
    if node.op_type == "Sigmoid":
        if not column and classes is not None:
            raise InputError(
                f"the model's output is a Sigmoid of {classes} columns, each class by itself; maps "
                "are for models whose classes exclude each other"
            )
        return "probabilities" if column else None
    if node.op_type == "Normalizer" and _attribute(node, "norm", b"MAX") == b"L1":
        return "probabilities"
    if node.op_type in ("LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier"):
        two = len(_labels(node) or ()) == 2
        if transform == b"SOFTMAX" or (transform == b"LOGISTIC" and two):
            return "probabilities"
        if node.op_type == "SVMClassifier" and _attribute(node, "prob_a", ()):
            return "probabilities"
        if node.op_type == "TreeEnsembleClassifier" and transform == b"NONE" and _votes(node):
            return "probabilities"
    return None


class _Signs:
    """Which tensors of a graph hold no negative number, whatever the inputs: those it can show."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._makers = _makers(model)
        self._constants = _constants(model)
        self._known: dict[str, bool] = {}

    def good(self, tensor: str, depth: int = 0) -> bool:
        """Whether no number of this tensor can be negative."""
        if tensor not in self._known:
            self._known[tensor] = depth < 100 and self._shown(tensor, depth + 1)
        return self._known[tensor]

    def _shown(self, tensor: str, depth: int) -> bool:
        if tensor in self._constants:
            values = numpy_helper.to_array(self._constants[tensor])
            return values.dtype.kind in "fiub" and bool((values >= 0).all())
        node = self._makers.get(tensor)
        if node is None:
            return False
        if node.op_type in NEVER_NEGATIVE or _made(self._model, node, True, 2) == "probabilities":
            return True
        if node.op_type == "Sub":  # 1 − p, as for the first class of two
            first = self._constants.get(node.input[0])
            rest = _maker(self._model, node.input[1])
            one = first is not None and bool((numpy_helper.to_array(first) == 1).all())
            return one and rest is not None and rest.op_type in ("Sigmoid", "Softmax")
        inputs = node.input[:1] if node.op_type in PARAMETERS else node.input
        return node.op_type in KEEP_SIGN and all(self.good(name, depth) for name in inputs)


def _votes(node: onnx.NodeProto) -> bool:
    """Whether each tree adds shares that sum to the same at every leaf, and all trees to 1."""
    weights = _attribute(node, "class_weights", ()) or _tensor(node, "class_weights_as_tensor")
    weights = np.asarray(weights, np.float64)
    trees = np.asarray(_attribute(node, "class_treeids", ()))
    leaves = np.asarray(_attribute(node, "class_nodeids", ()))
    if not len(weights) or not len(weights) == len(trees) == len(leaves) or (weights < 0).any():
        return False
    if len(_labels(node) or ()) == 2 and len(set(_attribute(node, "class_ids", ()))) == 1:
        # Of two classes one is told, and the other is the rest.
        most = [weights[trees == tree].max() for tree in np.unique(trees)]
        return bool(sum(most) <= 1 + 1e-4)
    total = 0.0
    for tree in np.unique(trees):
        mine = trees == tree
        _, leaf = np.unique(leaves[mine], return_inverse=True)
        sums = np.bincount(leaf.ravel(), weights[mine])
        if np.ptp(sums) > 1e-4 * sums.max():
            return False
        total += sums[0]
    return bool(abs(total - 1) <= 1e-4)


# --- names of classes -----------------------------------------------------------------------------


def _class_names(model: onnx.ModelProto, output: str) -> tuple[str, ...] | tuple[int, ...] | None:
    """The classes' names: of a ZipMap, of what makes the label, or of what makes the scores."""
    makers, constants = _makers(model), _constants(model)
    nodes = [makers.get(output)]
    nodes += [_maker(model, other.name) for other in model.graph.output if other.name != output]
    scores = _maker(model, output)
    if scores is not None and scores.op_type == "Normalizer":
        scores = _maker(model, scores.input[0])
    for node in [*nodes, scores]:
        if node is None:
            continue
        if names := _labels(node):
            return names
        if node.op_type == "ArrayFeatureExtractor" and node.input[0] in constants:
            return _texts_or_whole(numpy_helper.to_array(constants[node.input[0]]).ravel())
    return None


def _texts_or_whole(values: Any) -> tuple[str, ...] | tuple[int, ...] | None:
    if values.dtype.kind in "iu":
        return tuple(int(value) for value in values)
    if values.dtype.kind in "OSU":
        return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist())
    return None


def _labels(node: onnx.NodeProto) -> tuple[str, ...] | tuple[int, ...] | None:
    texts = _attribute(node, "classlabels_strings", ())
    if texts:
        return tuple(text.decode() for text in texts)
    whole = _attribute(node, "classlabels_int64s", ()) or _attribute(node, "classlabels_ints", ())
    return tuple(int(value) for value in whole) or None


# --- walking a graph -------------------------------------------------------------------------------


def _makers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The node that makes each tensor."""
    return {name: node for node in model.graph.node for name in node.output if name}


def _maker(model: onnx.ModelProto, tensor: str) -> onnx.NodeProto | None:
    """The node that makes what is in a tensor, behind those that only hand it on."""
    makers = _makers(model)
    node = makers.get(tensor)
    while node is not None and node.op_type in CARRIED:
        node = makers.get(node.input[0])
    return node


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, also those inside others and in the model's own functions."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        for node in waiting.pop().node:
            yield node
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph, and those inside its nodes and in functions."""
    graphs = [model.graph]
    for node in all_nodes(model):
        for attribute in node.attribute:
            graphs += [attribute.g] if attribute.HasField("g") else []
            graphs += attribute.graphs
    return graphs


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All constants, wherever they are."""
    for node in all_nodes(model):
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else []
            yield from attribute.tensors
            sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for tensor in [*sparse, *attribute.sparse_tensors]:
                yield from (tensor.values, tensor.indices)
    for graph in _graphs(model):
        yield from graph.initializer
        for tensor in graph.sparse_initializer:
            yield from (tensor.values, tensor.indices)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name and attribute.type != AttributeProto.TENSOR:
            return helper.get_attribute_value(attribute)
    return default


def _tensor(node: onnx.NodeProto, name: str) -> Any:
    for attribute in node.attribute:
        if attribute.name == name and attribute.type == AttributeProto.TENSOR:
            return numpy_helper.to_array(attribute.t)
    return ()


def _opset(model: onnx.ModelProto) -> int:
    return max(
        (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")),
        default=1,
    )


def _drops(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether a Dropout is left in the state for training, or may be switched there."""
    if node.op_type != "Dropout":
        return False
    if _opset(model) < 7:
        return not _attribute(node, "is_test", 0)
    if len(node.input) < 3 or not node.input[2]:
        return False
    return not _switched_off(model, node.input[2])


def _switched_off(model: onnx.ModelProto, name: str) -> bool:
    """Whether everything of this name is a constant that says no.

    Functions and graphs inside nodes have names of their own, so it is looked for everywhere.
    """
    found = [_constant(node) for node in all_nodes(model) if name in node.output]
    for graph in _graphs(model):
        here = [tensor for tensor in graph.initializer if tensor.name == name]
        found += here
        found += [None for value in graph.input if value.name == name and not here]
        found += [None for tensor in graph.sparse_initializer if tensor.values.name == name]
    found += [None for function in model.functions if name in function.input]
    return bool(found) and all(t is not None and not numpy_helper.to_array(t).any() for t in found)


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor that a node gives, if it is a constant one."""
    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    [value] = node.attribute
    return value.t if value.HasField("t") and not value.ref_attr_name else None


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if (tensor := _constant(node)) is not None:
            constants[node.output[0]] = tensor
    return constants
