"""Maps as ONNX: a calibration that runs wherever a model does, alone or behind it. Needs the extra `onnx`.

Files are checked against the map before they are kept. Every kind of map becomes operators that give the
numbers of `Map.predict_proba`, to 1e-6.

Only operators of ai.onnx are used, those that all runtimes have, and in versions that the model's
operator set has. All of it is worked and given in double precision, as in Python: in single precision
rows that a map tells apart would become equal.

What `numpy.searchsorted` does is a count of comparisons here. Where `privcal.maps` lifts a predicted
class by one last bit above a rival that rounding made equal, it gets 2⁻⁵² of the rival's more: at
most two bits. A row whose confidence is within about 1e-15 of an edge between two bins of a `BinsMap`
may fall into the other one, because exp is not the same to the last bit everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from privcal.calibration.maps import (
    MOST_ODDS,
    TOLD_APART,
    BinsMap,
    CurveMap,
    Map,
    OffsetsMap,
    RiskMap,
    TemperatureMap,
)
from privcal.data.columns import Kind
from privcal.data.files import digest, replacing
from privcal.data.scoring.alone import first_line
from privcal.data.scoring.model import check_model, read_model
from privcal.data.scoring.outputs import ClassScores, find_scores, without_zipmaps
from privcal.trusted.errors import InputError
from privcal.trusted.scores import LEAST
from privcal.version import __version__

__all__ = [
    "ClassScores",
    "append",
    "export",
    "find_scores",
    "read_model",
    "save",
    "without_zipmaps",
]

LEAST_OPSET = 9
"""Before, there is no operator Where."""

PREFIX = "privcal_"
"""How the names of all tensors and nodes begin that belong to a map."""

LARGEST = float(np.finfo(np.float64).max)
LAST_BIT = 2.0**-52

Holds = Literal["logits", "probabilities", "log-odds of class 1", "probability of class 1"]


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
    kind: Kind | None = None,
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
        input called `uncalibrated`. By default logits; for a map that was made from probabilities it
        must be said.
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
    kind = map.kind_given(kind)
    classes = _agreed(map, 2 if column else classes)
    if precision not in _TYPES:
        raise InputError(f"precision must be one of {', '.join(_TYPES)}, not {precision!r}")
    name = "uncalibrated" if kind == "probabilities" else kind
    part, holds = Part(OPSET), _holds(kind, column)
    results = write(map, part, name, holds, classes)
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
        `probabilities`, where its last operator leaves that open (see `privcal.onnx.find_scores`).

    Returns
    -------
    onnx.ModelProto
        With outputs `calibrated_probabilities`, `calibrated_confidence`, `calibrated_predicted` and, of
        a map of a risk, `calibrated_risk`: as `export` has them.

    Examples
    --------
    >>> from onnx import parser
    >>> net = parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     net (float[N, 3] x) => (float[N, 3] y) { y = Softmax(x) }''')
    >>> model = privcal.onnx.append(privcal.TemperatureMap(2.0), net)
    >>> [output.name for output in model.graph.output]
    ['y', 'calibrated_probabilities', 'calibrated_confidence', 'calibrated_predicted']
    """
    check_model(model)
    if any(fact.key == DIGEST for fact in model.metadata_props):
        raise InputError("this model has a map behind it already; take the model as it was before")
    found = find_scores(model, output=output, kind=kind)
    classes = _agreed(map, found.classes)
    calibrated = onnx.ModelProto()
    calibrated.CopyFrom(model)
    part, holds = Part(_opset(calibrated)), _holds(found.kind, found.column)
    results = write(map, part, _scores_tensor(model, found), holds, classes)
    _place(calibrated.graph, part, results, classes, "calibrated_")
    _sign(calibrated, map, holds)
    try:
        onnx.checker.check_model(calibrated)
    except onnx.checker.ValidationError as error:
        raise InputError(f"the model is not valid ONNX: {first_line(error)}") from None
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


# --- graphs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """The names of what a map's part of a graph gives; a number for each row has shape (n, 1)."""

    probabilities: str
    confidence: str
    predicted: str
    risk: str | None = None


class Part:
    """The operators of a map, as they are written one after the other."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One operator; the name of its output."""
        name = f"{PREFIX}{len(self.nodes)}_{kind.lower()}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def number(self, value: Any, dtype: Any = np.float64) -> str:
        """A constant: a number, or a list of them."""
        name = f"{PREFIX}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def cast(self, x: str, to: int) -> str:
        return self.op("Cast", x, to=to)

    def along_row(self, kind: str, x: str) -> str:
        """A reduction of each row to one number, of shape (n, 1)."""
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.op(kind, x, self.number([1], np.int64), keepdims=1)
        return self.op(kind, x, axes=[1], keepdims=1)

    def vector(self, x: str) -> str:
        """(n, 1) as (n,)."""
        return self.op("Reshape", x, self.number([-1], np.int64))

    def column(self, x: str) -> str:
        """(n,) or (n, 1) as (n, 1)."""
        return self.op("Reshape", x, self.number([-1, 1], np.int64))

    def not_less(self, x: str, y: str) -> str:
        return self.op("Not", self.op("Less", x, y))

    def within(self, x: str, low: str, high: str) -> str:
        return self.op("Max", self.op("Min", x, high), low)


class Rows:
    """What all maps start from: the logits of each row less the top one, and the predicted class."""

    def __init__(self, part: Part, tensor: str, holds: Holds, classes: int | None) -> None:
        self.part = part
        x = part.cast(tensor, TensorProto.DOUBLE)
        if holds == "logits":
            logits, compared = x, x
        elif holds == "probabilities":
            logits, compared = _log(part, x), x
        else:
            logits, compared = _two_columns(part, part.column(x), holds)
        largest = part.along_row("ReduceMax", compared)
        on_top = part.cast(part.not_less(compared, largest), TensorProto.FLOAT)
        self.predicted = part.op("ArgMax", on_top, axis=1, keepdims=1)  # of equal ones the first
        if classes is None:  # as many as there are columns, without Range, which came with set 11
            count = part.op("Gather", part.op("Shape", logits), part.number([1], np.int64))
            one = numpy_helper.from_array(np.ones(1, np.int64))
            self.classes = part.op("NonZero", part.op("ConstantOfShape", count, value=one))
        else:
            self.classes = part.number([range(classes)], np.int64)
        self.is_predicted = part.op("Equal", self.classes, self.predicted)
        self.logits = logits
        z = part.op("Sub", logits, part.along_row("ReduceMax", logits))
        self.z = part.op("Max", z, part.number(-LARGEST))  # a difference beyond the largest number

    def exp(self, temperature: float) -> str:
        scaled = self.z
        if temperature != 1:
            scaled = self.part.op("Mul", scaled, self.part.number(1.0 / temperature))
        return self.part.op("Exp", scaled)

    def without(self, chosen: str, x: str) -> str:
        """x with 0 for the chosen class of each row."""
        return self.part.op("Where", chosen, self.part.number(0.0), x)

    def log_odds(self, temperature: float) -> str:
        """The score of each row: `privcal.maps.log_odds`."""
        e = self.without(self.is_predicted, self.exp(temperature))
        return self.told_apart(self.part.op("Neg", self.log_sum(e)))

    def log_odds_of(self, event: str, is_event: str, temperature: float) -> str:
        """The same of one class."""
        own = self.part.op("Gather", self.z, event, axis=1)
        own = self.part.op("Mul", own, self.part.number(1.0 / temperature))
        e = self.without(is_event, self.exp(temperature))
        return self.told_apart(self.part.op("Sub", own, self.log_sum(e)))

    def log_sum(self, e: str) -> str:
        return self.part.op("Log", self.part.along_row("ReduceSum", e))

    def told_apart(self, s: str) -> str:
        far = self.part.op("Less", self.part.number(TOLD_APART), s)
        return self.part.op("Where", far, self.part.number(np.inf), s)

    def others(self, chosen: str) -> tuple[str, str]:
        """`privcal.maps._others`: the classes beside the strongest one but the chosen, and their sum."""
        z = self.part.op("Where", chosen, self.part.number(-LARGEST), self.logits)
        z = self.part.op("Sub", z, self.part.along_row("ReduceMax", z))
        p = self.without(chosen, self.part.op("Exp", z))
        return p, self.part.along_row("ReduceSum", p)


def _log(part: Part, p: str) -> str:
    return part.op("Log", part.op("Max", p, part.number(LEAST)))


def _two_columns(part: Part, x: str, holds: Holds) -> tuple[str, str]:
    """From one column about class 1: logits of two classes, and what decides which is predicted."""
    if holds == "log-odds of class 1":
        both = part.op("Concat", part.op("Mul", x, part.number(0.0)), x, axis=1)
        return both, both
    one = part.number(1.0)
    rest = part.op("Sub", one, part.op("Min", x, part.number(1 - LEAST)))
    logits = part.op("Concat", part.op("Log", rest), _log(part, x), axis=1)
    return logits, part.op("Concat", part.op("Sub", one, x), x, axis=1)


# --- what maps do ----------------------------------------------------------------------------------


def _temperature(rows: Rows, map: Map) -> Results:
    assert isinstance(map, TemperatureMap)
    part = rows.part
    e = rows.exp(map.temperature)
    p = part.op("Div", e, part.along_row("ReduceSum", e))
    confidence = part.along_row("ReduceMax", p)
    return Results(_on_top(rows, p, confidence), confidence, rows.predicted)


def _bins(rows: Rows, map: Map) -> Results:
    assert isinstance(map, BinsMap)
    part, bins = rows.part, len(map.values)
    own = part.op("Div", part.number(1.0), part.along_row("ReduceSum", rows.exp(1.0)))
    place = part.op("Mul", own, part.number(float(bins)))
    index = part.op("Min", part.op("Floor", place), part.number(bins - 1.0))
    index = part.cast(index, TensorProto.INT64)
    kept = [value is None for value in map.values]
    values = [0.0 if value is None else value for value in map.values]
    keeps = part.op("Gather", part.number(kept, np.bool_), index)
    binned = part.op("Gather", part.number(values), index)
    return _spread(rows, part.op("Where", keeps, own, binned))


def _curve(rows: Rows, map: Map) -> Results:
    assert isinstance(map, CurveMap)
    slowed = _compress(rows.part, rows.log_odds(map.temperature), map.scores[-1])
    return _spread(rows, _sigmoid(rows.part, _lines(rows.part, slowed, map.scores, map.log_odds)))


def _offsets(rows: Rows, map: Map) -> Results:
    assert isinstance(map, OffsetsMap)
    part, x = rows.part, map.scores
    s = part.within(rows.log_odds(map.temperature), part.number(x[0]), part.number(x[-1]))
    line = _lines(part, s, x, map.log_odds)
    offset = part.op("Gather", part.number(map.offsets), rows.predicted)
    corrected = part.op("Add", line, offset)
    slowed = _compress(part, corrected, map.corrected[-1])
    odds = _lines(part, slowed, map.corrected, map.corrected_log_odds)
    return _spread(rows, _sigmoid(part, odds))


def _risk(rows: Rows, map: Map) -> Results:
    assert isinstance(map, RiskMap)
    part = rows.part
    event = part.number([map.event], np.int64)
    is_event = part.op("Equal", rows.classes, event)  # (1, m): the same for all rows
    s = rows.log_odds_of(event, is_event, map.temperature)
    slowed = part.op("Neg", _compress(part, s, map.scores[-1]))
    slowed = part.op("Neg", _compress(part, slowed, -map.scores[0]))
    risk = _sigmoid(part, _lines(part, slowed, map.scores, map.log_odds))
    p, others = rows.others(is_event)
    share = part.op("Div", part.op("Sub", part.number(1.0), risk), others)
    p = part.op("Where", is_event, risk, part.op("Mul", p, share))
    confidence = part.along_row("ReduceMax", p)
    most = part.cast(part.not_less(p, confidence), TensorProto.FLOAT)
    return Results(p, confidence, part.op("ArgMax", most, axis=1, keepdims=1), risk)


WRITERS: dict[type[Map], Callable[[Rows, Map], Results]] = {
    TemperatureMap: _temperature,
    BinsMap: _bins,
    CurveMap: _curve,
    RiskMap: _risk,
    OffsetsMap: _offsets,
}
"""What writes each kind of map. A kind of another package's has none."""


def write(map: Map, part: Part, tensor: str, holds: Holds, classes: int | None) -> Results:
    """Write the operators of `map` over the scores in `tensor`, of that many classes if that is known."""
    writer = WRITERS.get(type(map))
    if writer is None:
        raise InputError(
            f"a map of kind {map.kind!r} has no form as ONNX; the kinds that have one are "
            f"{', '.join(kind.kind for kind in WRITERS)}"
        )
    return writer(Rows(part, tensor, holds, classes), map)


# --- pieces of maps -----------------------------------------------------------------------------


def _compress(part: Part, s: str, last: float) -> str:
    """`privcal.maps.compress_tail`."""
    end = part.number(last)
    beyond = part.op("Sub", s, end)
    beyond = part.within(beyond, part.number(0.0), part.number(MOST_ODDS))
    slow = part.op("Log", part.op("Add", beyond, part.number(1.0)))
    return part.op("Where", part.op("Less", end, s), part.op("Add", end, slow), s)


def _lines(part: Part, s: str, x: tuple[float, ...], y: tuple[float, ...]) -> str:
    """Straight lines through the points (x, y)."""
    left = _knot(part, x, s)
    slope = np.diff(y) / np.diff(x)
    away = part.op("Sub", s, part.op("Gather", part.number(x[:-1]), left))
    rise = part.op("Mul", part.op("Gather", part.number(slope), left), away)
    return part.op("Add", part.op("Gather", part.number(y[:-1]), left), rise)


def _knot(part: Part, knots: tuple[float, ...], s: str) -> str:
    """The index of the last knot at or below each score, of those that another one follows."""
    reached = part.cast(part.not_less(s, part.number([knots])), TensorProto.FLOAT)
    count = part.along_row("ReduceSum", reached)
    index = part.op("Sub", count, part.number(1, np.float32))
    low, high = part.number(0, np.float32), part.number(len(knots) - 2, np.float32)
    return part.cast(part.within(index, low, high), TensorProto.INT64)


def _sigmoid(part: Part, odds: str) -> str:
    one = part.number(1.0)
    return part.op("Div", one, part.op("Add", one, part.op("Exp", part.op("Neg", odds))))


def _spread(rows: Rows, confidence: str) -> Results:
    """`privcal.maps.spread`: the confidence for the predicted class, the rest shared."""
    part = rows.part
    one = part.number(1.0)
    p, others = rows.others(rows.is_predicted)
    least = part.op("Div", one, part.op("Add", one, others))  # 1 where there are no others
    raised = part.op("Max", confidence, least)
    others = part.op("Max", others, one)
    p = part.op("Mul", p, part.op("Div", part.op("Sub", one, raised), others))
    return Results(_on_top(rows, p, raised), confidence, rows.predicted)


def _on_top(rows: Rows, p: str, confidence: str) -> str:
    """p with `confidence` for the predicted class, or more where a rival is not below it."""
    part = rows.part
    rival = part.along_row("ReduceMax", rows.without(rows.is_predicted, p))
    # Not times 1 + 2⁻⁵²: onnxruntime takes that for 1 and leaves it out.
    lifted = part.op("Add", rival, part.op("Mul", rival, part.number(LAST_BIT)))
    own = part.op("Where", part.op("Less", rival, confidence), confidence, lifted)
    return part.op("Where", rows.is_predicted, own, p)
