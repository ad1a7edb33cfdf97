"""Which output of an ONNX model holds the scores of its classes, and whether they are logits.

The last operator decides, where what it makes is probabilities or logits whatever it is given: Softmax
makes probabilities. Values never decide, nor do names (skl2onnx calls decision values `probabilities`
too). Where the operator leaves it open, an InputError names the flag that settles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from privcal.data.columns import Kind
from privcal.trusted.errors import InputError

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
CALIBRATED = "calibrated_probabilities"
"""What a map behind a model gives for each class (see `privcal.onnx.append`)."""

CARRIED = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "ZipMap"}
"""Operators that hand their first input on, in another shape or type."""


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
    if len(possible) > 1:
        raise InputError(
            f"the model has several outputs of numbers ({', '.join(possible)}); --output is required, "
            "with the name of the one that holds the scores of classes"
        )
    return possible[0]


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
    maker = _maker(model, output)
    if output == CALIBRATED or (
        maker is not None and _probabilities(model, maker, column, classes)
    ):
        return "probabilities"
    if maker is not None and maker.op_type == "LogSoftmax" and _over_classes(model, maker):
        return "logits"
    by = "an input" if maker is None else f"operator {maker.op_type}"
    raise InputError(
        f"the model's output {output!r} comes from {by}, which can make logits as well as probabilities; "
        "--as logits or --as probabilities (in Python, kind=) is required"
    )


def _probabilities(
    model: onnx.ModelProto, node: onnx.NodeProto, column: bool, classes: int | None
) -> bool:
    """Whether an operator makes the probabilities of classes, whatever it is given."""
    if node.op_type == "Sigmoid" and not column and classes is not None:
        raise InputError(
            f"the model's output is a Sigmoid of {classes} columns, each class by itself; maps "
            "are for models whose classes exclude each other"
        )
    if node.op_type == "Softmax":
        return _over_classes(model, node)
    if node.op_type == "Normalizer":
        return bool(_attribute(node, "norm", b"MAX") == b"L1")
    if node.op_type in ("LinearClassifier", "TreeEnsembleClassifier", "SVMClassifier"):
        transform = _attribute(node, "post_transform", b"NONE")
        two = len(_labels(node) or ()) == 2
        fitted = node.op_type == "SVMClassifier" and bool(_attribute(node, "prob_a", ()))
        return fitted or transform == b"SOFTMAX" or (transform == b"LOGISTIC" and two)
    return node.op_type == "Sigmoid" and column


def _over_classes(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether a Softmax or LogSoftmax runs along each row."""
    return _attribute(node, "axis", 1 if _opset(model) < 13 else -1) in (1, -1)


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


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


def _opset(model: onnx.ModelProto) -> int:
    return max(
        (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")),
        default=1,
    )


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
