"""Maps in files of ONNX: alone, or behind a model; checked against the map before they are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from privcal.documents import digest
from privcal.errors import InputError
from privcal.files import replacing
from privcal.maps import Map, RiskMap
from privcal.onnx.graph import LEAST_OPSET, PREFIX, Holds, Part, Results, write
from privcal.onnx.outputs import ClassScores, Kind, check_model, find_scores
from privcal.version import __version__

OPSET = 17
_IR = 8
"""What a stand-alone graph needs: runtimes since 2022 have it."""

Precision = Literal["float16", "float32", "float64"]
_TYPES: dict[str, int] = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}
DIGEST = "privcal.map.sha256"
"""Under which a model's metadata name the map that is in it."""

READS = "privcal.map.reads"
"""Under which they say what that map is given."""

TOLERANCE = 1e-6

MAX_CLASSES = 1 << 20
"""A map is tried on rows of as many numbers: a file that claims more would take all memory there is."""


def export(
    map: Map,
    *,
    kind: Kind = "logits",
    classes: int | None = None,
    column: bool = False,
    precision: Precision = "float32",
) -> onnx.ModelProto:
    """A map as a graph of ONNX by itself.

    Parameters
    ----------
    map
        The map.
    kind
        What the graph is given: `logits`, which is then its input's name, or `probabilities`, in an
        input called `uncalibrated`.
    classes
        The number of classes; where neither this nor the map says it, any number will do.
    column
        Whether it is given one column, about class 1 of two: its log-odds, or its probability.
    precision
        The type of the input. Results are float64 always.

    Returns
    -------
    onnx.ModelProto
        Gives `probabilities` (n, m), `confidence` (n,), `predicted` (n,) and, of a map of a risk,
        `risk` (n,): what `Map.predict_proba`, `Map.confidence`, `Map.predict` and `RiskMap.risk` give,
        to 1e-6.

    Examples
    --------
    >>> model = privcal.onnx.export(privcal.TemperatureMap(2.0), classes=10)
    >>> [output.name for output in model.graph.output]
    ['probabilities', 'confidence', 'predicted']
    """
    classes = _agreed(map, 2 if column else classes)
    if precision not in _TYPES:
        raise InputError(f"precision must be one of {', '.join(_TYPES)}, not {precision!r}")
    name = "uncalibrated" if kind == "probabilities" else kind
    part, holds = Part(OPSET), _holds(kind, column)
    results = write(map, part, name, holds)
    shape = [None, 1 if column else classes]
    value = helper.make_tensor_value_info(name, _TYPES[precision], shape)
    graph = helper.make_graph([], "privcal", [value], [])
    _place(graph, part, results, classes)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR,
        producer_name="privcal",
        producer_version=__version__,
    )
    _sign(model, map, holds)
    onnx.checker.check_model(model, full_check=True)
    return model


def append(
    map: Map, model: onnx.ModelProto, *, output: str | None = None, kind: Kind | None = None
) -> onnx.ModelProto:
    """A model with a map behind it: its inputs and outputs stay, the map's are added.

    Parameters
    ----------
    map
        The map.
    model
        The model; this one is not changed.
    output, kind
        Which of its outputs holds the scores of classes, and whether they are `logits` or
        `probabilities`, where the graph leaves that open (see `privcal.onnx.find_scores`).

    Returns
    -------
    onnx.ModelProto
        With outputs `calibrated_probabilities`, `calibrated_confidence`, `calibrated_predicted` and, of
        a map of a risk, `calibrated_risk`: as `export` has them.

    Examples
    --------
    >>> from onnx import parser
    >>> net = parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     net (float[N, 3] x) => (float[N, 3] logits) { logits = Neg(x) }''')
    >>> model = privcal.onnx.append(privcal.TemperatureMap(2.0), net)
    >>> [output.name for output in model.graph.output]
    ['logits', 'calibrated_probabilities', 'calibrated_confidence', 'calibrated_predicted']
    """
    check_model(model)
    if any(fact.key == DIGEST for fact in model.metadata_props):
        raise InputError("this model has a map behind it already; take the model as it was before")
    found = find_scores(model, output=output, kind=kind)
    classes = _agreed(map, found.classes)
    calibrated = onnx.ModelProto()
    calibrated.CopyFrom(model)
    part, holds = Part(_opset(calibrated)), _holds(found.kind, found.column)
    results = write(map, part, _scores_tensor(model, found), holds)
    _place(calibrated.graph, part, results, classes, "calibrated_")
    _sign(calibrated, map, holds)
    try:
        onnx.checker.check_model(calibrated)
    except onnx.checker.ValidationError as error:
        raise InputError(f"the model is not valid ONNX: {_first_line(error)}") from None
    return calibrated


def save(path: str | Path, model: onnx.ModelProto, map: Map) -> None:
    """Write a model that `export` or `append` made; the file is whole and right, or not there.

    Before it gets its name it is read back, and the part that is the map's is run beside the map on
    a few hundred rows, some of them extreme. One with a map that stays at home is its owner's alone.
    """
    with replacing(path, private=map.stays_at_home) as part:
        part.write_bytes(model.SerializeToString())
        verify(onnx.load(str(part), load_external_data=False), map)


def verify(model: onnx.ModelProto, map: Map) -> None:
    """Raise RuntimeError unless the model loads, and its part that is the map gives what the map does."""
    _session(model)
    alone, holds, classes = _map_alone(model)
    session = _session(alone)
    names = [output.name for output in alone.graph.output]
    for rows in _test_rows(holds, classes or map.classes or 5):
        given = session.run(names, {alone.graph.input[0].name: rows})
        if holds == "log-odds of class 1":
            scores = {"logits": np.hstack([0 * rows, rows])}
        else:
            scores = {"logits" if holds == "logits" else "probabilities": rows}
        expected = [map.predict_proba(**scores), map.confidence(**scores), map.predict(**scores)]
        expected += [map.risk(**scores)] if isinstance(map, RiskMap) else []
        for name, found, wanted in zip(names, given, expected, strict=True):
            if not np.allclose(found, wanted, rtol=0, atol=TOLERANCE):
                raise RuntimeError(f"{name} of the graph are not those of the map")


# --- parts of files ----------------------------------------------------------------------------


def _agreed(map: Map, classes: int | None) -> int | None:
    if classes is not None and map.classes not in (None, classes):
        raise InputError(
            f"this map is of a model with {map.classes} classes, and this one has {classes}: it is "
            "another model"
        )
    known = map.classes if classes is None else classes
    if known is not None and known > MAX_CLASSES:
        raise InputError(f"there can be {MAX_CLASSES:,} classes at most, not {known:,}")
    if isinstance(map, RiskMap) and known is not None and map.event >= max(2, known):
        raise InputError(f"there is no class {map.event}: the model has {known}")
    return known


def _place(
    graph: onnx.GraphProto, part: Part, results: Results, classes: int | None, prefix: str = ""
) -> None:
    """Add the operators of a map to a graph, and its results as outputs."""
    wanted: list[tuple[str, str, int, list[int | None]]] = [
        ("probabilities", results.probabilities, TensorProto.DOUBLE, [None, classes]),
        ("confidence", part.vector(results.confidence), TensorProto.DOUBLE, [None]),
        ("predicted", part.vector(results.predicted), TensorProto.INT64, [None]),
    ]
    if results.risk is not None:
        wanted.append(("risk", part.vector(results.risk), TensorProto.DOUBLE, [None]))
    for name, tensor, kind, shape in wanted:
        part.nodes.append(
            helper.make_node("Identity", [tensor], [prefix + name], f"{PREFIX}{name}")
        )
        graph.output.append(helper.make_tensor_value_info(prefix + name, kind, shape))
    graph.node.extend(part.nodes)
    graph.initializer.extend(part.constants)


def _sign(model: onnx.ModelProto, map: Map, holds: Holds) -> None:
    facts = {DIGEST: digest(map.to_dict()), READS: holds, "privcal": __version__}
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=value)


def _scores_tensor(model: onnx.ModelProto, found: ClassScores) -> str:
    """The table of scores: the output itself, or what a ZipMap makes dictionaries of."""
    for node in model.graph.node:
        if node.op_type == "ZipMap" and node.output[0] == found.output:
            return str(node.input[0])
    return found.output


def _holds(kind: Kind, column: bool) -> Holds:
    if not column:
        return kind
    return "log-odds of class 1" if kind == "logits" else "probability of class 1"


def _opset(model: onnx.ModelProto) -> int:
    """The version of ai.onnx that the model asks for; ours where it asks for none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            if entry.version < LEAST_OPSET:
                raise InputError(
                    f"the model is of operator set {entry.version}, and a map needs {LEAST_OPSET}; "
                    "export it again for a newer one"
                )
            return int(entry.version)
    model.opset_import.append(helper.make_opsetid("", OPSET))
    return OPSET


# --- checking what was written --------------------------------------------------------------------


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _map_alone(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Holds, int | None]:
    """The map's part of a model as a graph by itself, what it is given, and of how many classes."""
    [holds] = [fact.value for fact in model.metadata_props if fact.key == READS]
    nodes = [node for node in model.graph.node if node.name.startswith(PREFIX)]
    ours = {name for node in nodes for name in node.output}
    outputs = [value for value in model.graph.output if value.name in ours]
    classes = outputs[0].type.tensor_type.shape.dim[1].dim_value or None
    shape = [None, 1 if holds.endswith("class 1") else classes]
    value = helper.make_tensor_value_info(nodes[0].input[0], TensorProto.FLOAT, shape)
    constants = [c for c in model.graph.initializer if c.name.startswith(PREFIX)]
    graph = helper.make_graph(nodes, "privcal", [value], outputs, constants)
    versions = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    alone = helper.make_model(graph, opset_imports=versions, ir_version=model.ir_version)
    return alone, holds, classes


def _test_rows(holds: Holds, classes: int) -> list[Any]:
    """Rows to try a map on: ordinary ones, ties, some far apart, a single one, none."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (200, classes)) * 10 ** rng.uniform(-2, 3, (200, 1))
    logits[:20] = logits[:20].round()
    logits[20:30] *= 1e25
    logits[30] = 0
    if holds == "logits":
        rows = logits
    elif holds == "log-odds of class 1":
        rows = logits[:, :1]
    else:
        rows = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
        rows = rows if holds == "probabilities" else rows[:, :1]
    single = rows.astype(np.float32)
    return [single, single[:1], single[:0]]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
