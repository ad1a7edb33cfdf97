"""Every kind of map as operators of ONNX: the numbers that `Map.predict_proba` gives, to 1e-6.

Only operators of ai.onnx are used, and those in versions that the model's operator set has. All of
it is worked and given in double precision, as in Python: in single precision rows that a map tells
apart would become equal.

What `numpy.searchsorted` does is a count of comparisons here. Where `privcal.maps` lifts a predicted
class by one last bit above a rival that rounding made equal, it gets 2⁻⁵² of the rival's more: at
most two bits. A row whose confidence is within about 1e-15 of an edge between two bins of a `BinsMap`
may fall into the other one, because exp is not the same to the last bit everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from privcal.errors import InputError
from privcal.maps import (
    MOST_ODDS,
    TOLD_APART,
    BinsMap,
    CurveMap,
    Map,
    OffsetsMap,
    RiskMap,
    TemperatureMap,
)
from privcal.scores import LEAST

LEAST_OPSET = 9
"""Before, there are no operators Where and OneHot."""

PREFIX = "privcal_"
"""How the names of all tensors and nodes begin that belong to a map."""

LARGEST = float(np.finfo(np.float64).max)
LAST_BIT = 2.0**-52

Holds = Literal["logits", "probabilities", "log-odds of class 1", "probability of class 1"]


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

    def __init__(self, part: Part, tensor: str, holds: Holds) -> None:
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
        shape = part.op("Shape", logits)
        self.classes = part.op("Gather", shape, part.number([1], np.int64))
        self.is_predicted = self.one_hot(part.vector(self.predicted))
        self.logits = logits
        z = part.op("Sub", logits, part.along_row("ReduceMax", logits))
        self.z = part.op("Max", z, part.number(-LARGEST))  # a difference beyond the largest number

    def one_hot(self, classes: str) -> str:
        """Whether each class of each row is that one."""
        values = self.part.number([0, 1], np.float32)
        chosen = self.part.op("OneHot", classes, self.classes, values)
        return self.part.cast(chosen, TensorProto.BOOL)

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
    return _spread(rows, _sigmoid(rows.part, _lines(rows.part, slowed, map)))


def _offsets(rows: Rows, map: Map) -> Results:
    assert isinstance(map, OffsetsMap)
    part, x = rows.part, map.scores
    s = rows.log_odds(map.temperature)
    s = part.within(s, part.number(x[0]), part.number(x[-1]))
    left = _knot(part, x, s)
    steps, rises = np.diff(x), np.diff(map.log_odds)
    share = part.op("Sub", s, part.op("Gather", part.number(x[:-1]), left))
    share = part.op("Div", share, part.op("Gather", part.number(steps), left))
    rise = part.op("Mul", share, part.op("Gather", part.number(rises), left))
    line = part.op("Add", part.op("Gather", part.number(map.log_odds), left), rise)
    offset = part.op("Gather", part.number(map.offsets), rows.predicted)
    corrected = part.op("Add", line, offset)
    second = CurveMap(1.0, map.corrected, map.corrected_log_odds)
    slowed = _compress(part, corrected, second.scores[-1])
    return _spread(rows, _sigmoid(part, _lines(part, slowed, second)))


def _risk(rows: Rows, map: Map) -> Results:
    assert isinstance(map, RiskMap)
    part = rows.part
    event = part.number([map.event], np.int64)
    is_event = rows.one_hot(event)  # (1, m): the same for all rows
    s = rows.log_odds_of(event, is_event, map.temperature)
    slowed = part.op("Neg", _compress(part, s, map.scores[-1]))
    slowed = part.op("Neg", _compress(part, slowed, -map.scores[0]))
    risk = _sigmoid(part, _lines(part, slowed, map))
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


def write(map: Map, part: Part, tensor: str, holds: Holds) -> Results:
    """Write the operators of `map` over the scores of classes in `tensor`."""
    writer = WRITERS.get(type(map))
    if writer is None:
        raise InputError(
            f"a map of kind {map.kind!r} has no form as ONNX; the kinds that have one are "
            f"{', '.join(kind.kind for kind in WRITERS)}"
        )
    return writer(Rows(part, tensor, holds), map)


# --- pieces of maps -----------------------------------------------------------------------------


def _compress(part: Part, s: str, last: float) -> str:
    """`privcal.maps.compress_tail`."""
    end = part.number(last)
    beyond = part.op("Sub", s, end)
    beyond = part.within(beyond, part.number(0.0), part.number(MOST_ODDS))
    slow = part.op("Log", part.op("Add", beyond, part.number(1.0)))
    return part.op("Where", part.op("Less", end, s), part.op("Add", end, slow), s)


def _lines(part: Part, s: str, map: CurveMap) -> str:
    """Log-odds on the lines through a curve's points."""
    left = _knot(part, map.scores, s)
    x, y = np.array(map.scores), np.array(map.log_odds)
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
