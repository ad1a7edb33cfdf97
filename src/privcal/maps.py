"""Maps: the result of a calibration. Logits in, confidence out; one small JSON file.

`confidence` is authoritative. `predict_proba` gives the predicted class that confidence and
shares the rest among the other classes in proportion; where the predicted class would no longer
be on top, its probability is raised by the least that keeps it there. Rows sum to 1 and the
argmax never changes.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from operator import lt
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from privcal.errors import InputError
from privcal.files import replacing
from privcal.kernel import check_temperature, exp_sums, for_blocks, log_odds
from privcal.metrics import bin_index, check_bins
from privcal.scores import FloatArray, IntArray, Outputs, Scores

FORMAT = "privcal-map"
VERSION = 1
MAX_POINTS = 1000
MOST_ODDS = 745.0
"""Log-odds beyond which the other classes' share is zero in double precision."""


@dataclass(frozen=True)
class Map(ABC):
    """What every map can do. `private` is False for a map fitted without noise."""

    kind: ClassVar[str]

    @abstractmethod
    def _confidence(self, outputs: Outputs) -> FloatArray: ...

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """The map's own entries of the JSON file."""

    @classmethod
    @abstractmethod
    def _read(cls, document: dict[str, Any], **common: Any) -> Self:
        """From the JSON file, checked."""

    private: bool = field(default=True, kw_only=True)
    provenance: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def confidence(self, logits: Any = None, *, probabilities: Any = None) -> FloatArray:
        """The calibrated probability that the predicted class of each row is right.

        Takes logits, `probabilities=`, or a `Scores`.
        """
        return self._confidence(_outputs(logits, probabilities))

    def predict_proba(self, logits: Any = None, *, probabilities: Any = None) -> FloatArray:
        """Calibrated probabilities (n, m) of all classes."""
        outputs = _outputs(logits, probabilities)
        return self._probabilities(outputs)

    def _probabilities(self, outputs: Outputs) -> FloatArray:
        return spread(outputs, self._confidence(outputs))

    def describe(self) -> str:
        """The map in a few words, for people."""
        return f"a map of kind {self.kind}"

    def with_provenance(self, **facts: Any) -> Self:
        return replace(self, provenance={**self.provenance, **facts})

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            **self._values(),
            "private": self.private,
            "provenance": self.provenance,
        }

    def save(self, path: str | Path) -> None:
        """Write the map as JSON; the file is whole or not there."""
        with replacing(path) as part:
            text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
            part.write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TemperatureMap(Map):
    """softmax(logits / temperature). Strictly increasing in the score."""

    kind = "temperature"
    temperature: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", check_temperature(self.temperature))

    def describe(self) -> str:
        return f"temperature {self.temperature:.4f}"

    def _confidence(self, outputs: Outputs) -> FloatArray:
        return _softmax_top(outputs, self.temperature)

    def _probabilities(self, outputs: Outputs) -> FloatArray:
        # The rule of this module gives the softmax; directly, it is exact for tiny shares too.
        result = np.empty((outputs.rows, outputs.classes))

        def work(rows: slice, p: FloatArray) -> None:
            outputs.shifted(rows, p)
            np.multiply(p, 1.0 / self.temperature, out=p)
            np.exp(p, out=p)
            np.divide(p, p.sum(axis=1, keepdims=True), out=result[rows])
            _keep_on_top(result[rows], outputs.predicted[rows])

        for_blocks(outputs, work, np.dtype(np.float64), 1)
        return result

    def _values(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    @classmethod
    def _read(cls, document: dict[str, Any], **common: Any) -> Self:
        return cls(_number(document, "temperature"), **common)


@dataclass(frozen=True)
class BinsMap(Map):
    """The confidence of a bin for every row in it: histogram binning.

    `values[b]` replaces the confidence (at T = 1) of bin b of equal width; None keeps each
    row's own. Not increasing, alone among maps: the paper defines it so.
    """

    kind = "bins"
    values: tuple[float | None, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        check_bins(len(self.values))
        for b, value in enumerate(self.values):
            if value is not None and not 0 <= value <= 1:
                raise InputError(f"value of bin {b} must be in [0, 1], not {value}")

    def describe(self) -> str:
        return "one value for each bin"

    def _confidence(self, outputs: Outputs) -> FloatArray:
        own = _softmax_top(outputs, 1.0)
        table = np.array([math.nan if v is None else v for v in self.values])
        binned = table[bin_index(own, len(table))]
        return np.where(np.isnan(binned), own, binned)

    def _values(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    @classmethod
    def _read(cls, document: dict[str, Any], **common: Any) -> Self:
        values = document.get("values")
        if not isinstance(values, list):
            raise InputError("values must be a list of numbers or null")
        numbers = [v if v is None else _number({"values": v}, "values") for v in values]
        return cls(tuple(numbers), **common)


@dataclass(frozen=True)
class CurveMap(Map):
    """An increasing curve from score to confidence, both as log-odds.

    The score s of a row is the log-odds of its confidence at `temperature`; the result's
    log-odds are read off the straight lines through the points (`scores`, `log_odds`). Both
    lists rise strictly, hence so does the map. The first line goes on below; above, the curve
    rises ever more slowly, as log(1 + s − last score): a confidence that was rounded to 1 has
    s = ∞ and must not be taken for certainty.
    """

    kind = "curve"
    temperature: float
    scores: tuple[float, ...]
    log_odds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", check_temperature(self.temperature))
        for name in ("scores", "log_odds"):
            values = tuple(map(float, getattr(self, name)))  # a study makes many: no arrays here
            if not 2 <= len(values) <= MAX_POINTS:
                raise InputError(f"{name} of a curve must be 2 to {MAX_POINTS} numbers")
            if not all(map(math.isfinite, values)) or not all(map(lt, values, values[1:])):
                raise InputError(f"{name} of a curve must be finite and rise strictly")
            object.__setattr__(self, name, values)
        if len(self.scores) != len(self.log_odds):
            raise InputError("scores and log_odds of a curve must be equally many")

    def at(self, s: FloatArray) -> FloatArray:
        """The log-odds of the result where the score is `s`."""
        x, y = np.array(self.scores), np.array(self.log_odds)
        slope = np.diff(y) / np.diff(x)
        s = slowing(s, x[-1])
        left = np.clip(np.searchsorted(x, s, side="right") - 1, 0, len(x) - 2)
        return np.asarray(y[left] + slope[left] * (s - x[left]))

    def describe(self) -> str:
        return "an increasing curve"

    def _confidence(self, outputs: Outputs) -> FloatArray:
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-self.at(log_odds(outputs, self.temperature)))))

    def _values(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "scores": list(self.scores),
            "log_odds": list(self.log_odds),
        }

    @classmethod
    def _read(cls, document: dict[str, Any], **common: Any) -> Self:
        lists = []
        for name in ("scores", "log_odds"):
            values = document.get(name)
            if not isinstance(values, list):
                raise InputError(f"{name} must be a list of numbers")
            lists.append(tuple(_number({name: v}, name) for v in values))
        return cls(_number(document, "temperature"), *lists, **common)


def slowing(s: FloatArray, last: float) -> FloatArray:
    """Scores as a curve goes by them: as they are up to its last point, then ever more slowly."""
    return np.asarray(np.where(s > last, last + np.log1p(np.clip(s - last, 0, MOST_ODDS)), s))


KINDS: dict[str, type[Map]] = {cls.kind: cls for cls in (TemperatureMap, BinsMap, CurveMap)}


def load_map(path: str | Path) -> Map:
    """Read a map; a file of a newer version or with values out of range is refused."""
    try:
        document = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read map {path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is not a map: it is not JSON, or is cut short") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path} is not a privcal map")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise InputError(f"map {path} has version {version}; this privcal reads version {VERSION}")
    if not isinstance(document.get("kind"), str) or document["kind"] not in KINDS:
        raise InputError(f"map {path} has unknown kind {document.get('kind')!r}")
    private, provenance = document.get("private"), document.get("provenance")
    if not isinstance(private, bool) or not isinstance(provenance, dict):
        raise InputError(f"map {path} does not say whether it is private, or where it comes from")
    try:
        return KINDS[document["kind"]]._read(document, private=private, provenance=provenance)
    except InputError as error:
        raise InputError(f"map {path}: {error}") from None


def _softmax_top(outputs: Outputs, temperature: float) -> FloatArray:
    return np.asarray(1.0 / exp_sums(outputs, temperature, dtype=np.float64))


def spread(outputs: Outputs, confidence: FloatArray) -> FloatArray:
    """Probabilities with `confidence` for the predicted class, the rest shared as at T = 1."""
    n, m = outputs.rows, outputs.classes
    result = np.empty((n, m))
    if m == 1:
        result[:] = 1.0
        return result

    def work(rows: slice, p: FloatArray) -> None:
        outputs.shifted(rows, p)
        np.exp(p, out=p)
        here = np.arange(len(p)), outputs.predicted[rows]
        p[here] = 0.0
        others = p.sum(axis=1)
        # A predicted class so certain that the others vanished: share among them evenly.
        lonely = others == 0
        p[lonely] = 1.0
        p[here] = 0.0
        others[lonely] = m - 1
        p /= others[:, None]
        rival = p.max(axis=1)
        c = np.maximum(confidence[rows], rival / (1 + rival))
        np.multiply(p, (1 - c)[:, None], out=result[rows])
        result[rows][here] = c
        _keep_on_top(result[rows], outputs.predicted[rows])

    for_blocks(outputs, work, np.dtype(np.float64), 1)
    return result


def _keep_on_top(p: FloatArray, predicted: IntArray) -> None:
    """Where rounding made a rival equal, lift the predicted class by one last bit."""
    [caught] = np.nonzero(p.argmax(axis=1) != predicted)
    p[caught, predicted[caught]] = np.nextafter(p[caught].max(axis=1), 2)


def _outputs(logits: Any, probabilities: Any) -> Outputs:
    if isinstance(logits, Scores):
        return logits.outputs
    return (
        logits
        if isinstance(logits, Outputs)
        else Outputs(logits=logits, probabilities=probabilities)
    )


def _number(document: dict[str, Any], name: str) -> float:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is out of range") from None
