"""Maps: the result of a calibration. Logits in, confidence out; one small JSON file.

`confidence` is authoritative. `predict_proba` gives the predicted class that confidence and
shares the rest among the other classes in proportion; where the predicted class would no longer
be on top, its probability is raised by the least that keeps it there. Rows sum to 1 and the
argmax never changes.

A map of the risk of one class (`RiskMap`) is the other way round: the risk is authoritative, and the
class that it makes most probable is predicted, which may be another than the classifier's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import gt, lt, sub
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
)

import numpy as np

from privcal.calibration import plugins
from privcal.calibration.kernel import FAST
from privcal.calibration.target import Target
from privcal.data.columns import Layout, find_roles, holds_scores, listed
from privcal.data.files import read_document, write_document
from privcal.data.scores import Outputs, Scores, as_array
from privcal.data.wording import other_classes
from privcal.trusted import records
from privcal.trusted.checks import short
from privcal.trusted.errors import InputError
from privcal.trusted.kernel import MAX_BINS, Temperature, bin_index, for_blocks
from privcal.trusted.queries import MAX_CLASS, corrected_score
from privcal.trusted.records import Between
from privcal.trusted.scores import BoolArray, FloatArray, IntArray, Kind, row_sums

FORMAT = "privcal-map"
VERSION = 1
MAX_POINTS = 1000
MAX_DIRECTIONS = 100
MAX_SHIFT = 1000.0
"""Log-odds: what a direction or an offset may move a curve by. More means nothing."""

MOST_ODDS = 745.0
"""Log-odds beyond which the other classes' share is zero in double precision."""

TOLD_APART = 700.0
"""Log-odds above which a row's score counts as infinite: the other classes' share, e⁻⁷⁰⁰, is about to
leave the range of doubles (2⁻¹⁰²², e⁻⁷⁰⁸), and kernels and runtimes differ in what they make of it there."""

PRIOR_ONLY = "the noisy total is not clearly positive: the map is what was believed beforehand"
"""The note in the provenance of a map for which the noise drowned the data."""

OFFSETS = (
    "each predicted class has an offset: confidence tells right from wrong better (a lower Brier "
    "score), for a slightly larger calibration error; no sketch is kept, so nothing is estimated "
    "of the hidden rows"
)
"""The note of a map with an offset for each predicted class."""

LEFT_ALONE = "nothing speaks clearly for a change: the model is left as it is"
"""The note in the provenance of a map that leaves a model in use alone."""


def unchanged_in_words(after: float, before: float) -> str:
    """How probable it is that nothing changed, after the answers and before.

    >>> unchanged_in_words(0.812, 0.5)
    'the probability that nothing changed is 81 % (believed beforehand: 50 %)'
    """
    return (
        f"the probability that nothing changed is {percent(after)} "
        f"(believed beforehand: {percent(before)})"
    )


def percent(p: float) -> str:
    """Never certainty: nobody has that."""
    return "below 1 %" if p < 0.01 else "above 99 %" if p > 0.99 else f"{100 * p:.0f} %"


ONE_KNOT = (
    "nearly all rows have scores around one knot, where the map hardly tells them apart; for such a "
    "model one-hot-binning is as good and assumes less"
)
"""The note in the provenance of a map for a model that gives nearly all rows the same score."""


# --- maps ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Map(ABC):
    """The result of a calibration: from a classifier's outputs to calibrated confidence.

    A kind of map is a frozen dataclass under `register` that says `apply`. Fields that are
    numbers, strings, booleans, None or tuples of them go to its JSON file and back by themselves;
    for others a class has `to_dict` and `from_dict` of its own.

    Parameters
    ----------
    private
        False for a map fitted without noise: the rows decide every digit of it.
    provenance
        Facts about where the map comes from, as JSON values: method, ε, sources, version. Four of them
        are looked at. A map of a model with so many `classes`, of these `class_names` or of that name
        (`model`) is refused for scores of another. `made_from` says what scores without a name are:
        `logits` or `probabilities`.

    Examples
    --------
    >>> map = TemperatureMap(2.0)
    >>> logits = [[2.0, 0.0], [0.0, 1.0]]
    >>> map.confidence(logits).round(3).tolist()
    [0.731, 0.622]
    >>> map.predict_proba(logits).round(3).tolist()
    [[0.731, 0.269], [0.378, 0.622]]
    """

    kind: ClassVar[str] = ""
    """The name under which the class is registered."""

    private: bool = field(default=True, kw_only=True)
    provenance: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def apply(self, outputs: Outputs) -> FloatArray:
        """The calibrated confidence (n,), each in [0, 1], of the predicted class of every row."""

    @property
    def about(self) -> Target:
        """What it gives the probability of: that the predicted class is right, or one class."""
        return Target()

    def predicted(self, outputs: Outputs) -> IntArray:
        """The class (n,) that is predicted for every row: the classifier's own, where nothing else is said."""
        return outputs.predicted

    def describe(self) -> str:
        """The map in a few words, for people."""
        return f"a map of kind {self.kind}"

    @property
    def note(self) -> str | None:
        """What its method wants to be known of the map, such as a search that ended at its limit.

        Where the method thought of it, also how probable it is that nothing changed.
        """
        note, before = self.provenance.get("note"), self.provenance.get("unchanged_before")
        said = [note] if isinstance(note, str) else []
        if self.unchanged is not None and isinstance(before, float):
            said.insert(0, unchanged_in_words(self.unchanged, before))
        return "; ".join(said) or None

    @property
    def unchanged(self) -> float | None:
        """The probability that nothing changed; None where the method did not think of that."""
        unchanged = self.provenance.get("unchanged")
        return unchanged if isinstance(unchanged, float) else None

    @property
    def informative(self) -> bool | None:
        """Whether the answers said more than the noise; None where the method does not tell.

        Where it is False, the map is what was believed before anything was asked.
        """
        return None

    @property
    def stays_at_home(self) -> bool:
        """Whether a source's exact rows are in the map, so that it must not leave that source."""
        return self.provenance.get("stays_at_home") is True

    def confidence(
        self, scores: Any = None, *, logits: Any = None, probabilities: Any = None
    ) -> FloatArray:
        """The calibrated probability (n,) that the predicted class of each row is right.

        Takes `logits=` (n, m), or (m,) of one row; or `probabilities=` (n, m), or (n,) of class 1.

        `scores` without such a name may be a `Scores`, which may also hold log-odds of class 1 or
        confidences; or a data frame with columns as `read_scores` knows them, whose names say what
        they are; or an array of what the map was made from (`made_from`), of logits where it does
        not say. Logits from 0 to 1 that sum to 1 in every row are refused there, as they look like
        probabilities.
        """
        return self.apply(self._read(scores, logits, probabilities))

    def predict(
        self, scores: Any = None, *, logits: Any = None, probabilities: Any = None
    ) -> IntArray:
        """The predicted class (n,) of each row: the classifier's own, or the one that a risk makes
        the most probable.

        Takes what `confidence` takes.
        """
        return self.predicted(self._read(scores, logits, probabilities))

    def predict_proba(
        self, scores: Any = None, *, logits: Any = None, probabilities: Any = None
    ) -> FloatArray:
        """Calibrated probabilities (n, m) of all classes; takes what `confidence` takes.

        The predicted class has its `confidence`, and the other classes share the rest in the
        proportions that the classifier gave them. Rows sum to 1, and the predicted class has the
        largest probability.

        That is not always possible with the confidence itself: of two classes, a predicted one that is
        right in 40 % of the cases would have 0.4, less than the other. Its probability is then raised
        by the least that keeps it on top (here to 0.5), so that the largest probability of a row may be
        more than `confidence`, never less. **Confidence is what was calibrated**: it is what to show, to
        abstain by and to evaluate; a temperature and a risk never raise, so that there the two agree.

        Examples
        --------
        >>> curve = CurveMap(1.0, scores=(0.0, 2.0), log_odds=(-1.0, 1.0))
        >>> logits = [[0.5, 0.0], [2.0, 0.0]]
        >>> curve.confidence(logits).round(3).tolist()
        [0.378, 0.731]
        >>> curve.predict_proba(logits).round(3).tolist()
        [[0.5, 0.5], [0.731, 0.269]]
        """
        return self._probabilities(self._read(scores, logits, probabilities))

    def _probabilities(self, outputs: Outputs) -> FloatArray:
        outputs.need_all_classes("predict_proba")
        return spread(outputs, self.apply(outputs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def _repr_html_(self) -> str:
        from privcal.data.html import fragment

        names = {
            "method": "method",
            "epsilon_per_source": "ε at each source",
            "sources": "sources",
            "model": "model",
        }
        given = {name: self.provenance.get(key) for key, name in names.items()}
        facts = {
            "what it is": self.describe(),
            **{name: value if value is None else str(value) for name, value in given.items()},
            "classes": self.classes if self.class_names is None else listed(self.class_names),
            "private": "yes" if self.private else "no: exact rows decide every digit of it",
            "note": self.note,
        }
        return fragment(f"Map of kind {self.kind}", facts)

    @property
    def classes(self) -> int | None:
        """The number of classes of the model that the map is of; None where nobody said."""
        classes = self.provenance.get("classes")
        if type(classes) is int:
            return classes
        return None if self.class_names is None else len(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What its classes are called, in order; None where nobody said."""
        names = self.provenance.get("class_names")
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            return None
        return tuple(names) or None

    @property
    def made_from(self) -> Kind | None:
        """What the map was made from: logits, probabilities or confidence; None where nobody said."""
        kind = self.provenance.get("made_from")
        return kind if kind in get_args(Kind) else None

    @property
    def model(self) -> str | None:
        """The name of the model that the map is of; None where nobody said."""
        model = self.provenance.get("model")
        return model if isinstance(model, str) else None

    def kind_given(self, kind: str | None) -> Literal["logits", "probabilities"]:
        """What a module or a graph of this map is given; it cannot look at what comes."""
        if kind is None and self.made_from == "probabilities":
            raise InputError(
                "this map was made from probabilities: declare what it will be given with kind='probabilities' "
                "or kind='logits' (--as)"
            )
        if kind == "probabilities":
            return "probabilities"
        if kind not in (None, "logits"):
            raise InputError(f"kind must be logits or probabilities, not {kind!r}")
        return "logits"

    def _read(self, scores: Any, logits: Any, probabilities: Any) -> Outputs:
        """What is to be mapped; refused if it is another model's."""
        if sum(given is not None for given in (scores, logits, probabilities)) != 1:
            raise InputError("give one of scores, logits= and probabilities=")
        outputs = self._outputs(scores, logits, probabilities)
        if scores is not None:
            outputs.need_logits("give them by name, as logits=")
        given = logits if scores is None else scores
        self.check_scores(outputs, given.model if isinstance(given, Scores) else None)
        return outputs

    def check_scores(self, outputs: Outputs, model: str | None) -> None:
        """Refuse what is of other classes, or of another `model` (None where nobody said which)."""
        if outputs.kind != "confidence" and self.classes not in (None, outputs.classes):
            raise InputError(
                f"this map is of a model with {self.classes} classes, and the scores have "
                f"{outputs.classes}: they are of another model"
            )
        ours, theirs = self.class_names, outputs.class_names
        if ours and theirs and ours != theirs:
            raise other_classes("this map", ours, "what it is given", theirs)
        self.check_model(model)

    def _outputs(self, scores: Any, logits: Any, probabilities: Any) -> Outputs:
        """What was given: by the name it has, by the names of columns, or as the map was made."""
        given = logits if scores is None else scores
        if isinstance(given, (Scores, Outputs)):
            return given.outputs if isinstance(given, Scores) else given
        names = [str(name) for name in getattr(scores, "columns", ())]
        if any(map(holds_scores, names)):
            return _of_frame(scores, names, self.class_names)
        if scores is not None and self.made_from == "probabilities":
            try:
                return Outputs(probabilities=scores)
            except InputError as error:
                raise InputError(
                    f"{error}; this map was made from probabilities: other scores need their name"
                ) from None
        if given is not None:
            given = as_array("logits", given)
            given = given[None] if given.ndim == 1 else given
        return Outputs(logits=given, probabilities=probabilities)

    def check_model(self, named: str | None) -> None:
        """Refuse another model; `named` is the one at hand, None where nobody said it."""
        if self.model and named and self.model != named:
            raise InputError(
                f"this map is of model {self.model}, not of {named}; if that is the same model exported "
                f"again, record it in Python: map.with_provenance(model={named!r}).save(PATH)"
            )

    def with_provenance(self, **facts: Any) -> Self:
        """The same map with these facts in its provenance, beside those already there."""
        return replace(self, provenance={**self.provenance, **facts})

    def to_dict(self) -> dict[str, Any]:
        """The content of the map's JSON file."""
        own = records.facts(self)
        common = {name: own.pop(name) for name in ("private", "provenance")}
        return {"format": FORMAT, "version": VERSION, "kind": self.kind, **own, **common}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The map whose `document` `to_dict` wrote; a value that is missing or of another type is refused."""
        own = {name: value for name, value in document.items() if name not in _COMMON}
        return records.read(cls, own, f"kind {cls.kind}", complete=True)

    def save(self, path: str | Path) -> None:
        """Write the map to `path` as JSON; the file is whole or not there.

        One that stays at home is its owner's alone.
        """
        write_document(path, self.to_dict(), private=self.stays_at_home)


KINDS: dict[str, type[Map]] = {}
"""Every kind of map that a file can be of, by name."""

_COMMON = ("format", "version", "kind")
"""What stands in every map's file beside its fields."""

_Class = TypeVar("_Class", bound=type[Map])


def register(kind: str) -> Callable[[_Class], _Class]:
    """Make a class of maps known under `kind`, which its files name.

    Examples
    --------
    >>> @register("constant")
    ... @dataclass(frozen=True)
    ... class ConstantMap(Map):
    ...     value: float
    ...
    ...     def apply(self, outputs):
    ...         return np.full(outputs.rows, self.value)
    >>> ConstantMap(0.7).confidence([[2.0, 0.0], [0.0, 1.0]]).tolist()
    [0.7, 0.7]
    >>> _ = KINDS.pop("constant")
    """

    def add(cls: _Class) -> _Class:
        if kind in KINDS:
            raise InputError(f"a map of kind {kind!r} is already registered")
        if clash := {*_COMMON} & {f.name for f in fields(cls)}:
            raise InputError(f"a map of kind {kind!r} cannot have a field {clash.pop()}")
        if cls.from_dict.__func__ is Map.from_dict.__func__:  # type: ignore[attr-defined]
            records.readers(cls)  # a field that no file can hold is said now, not after a run
        cls.kind = kind
        KINDS[kind] = cls
        return cls

    return add


@register("temperature")
@dataclass(frozen=True, repr=False)
class TemperatureMap(Map):
    """The softmax of the logits over a temperature.

    Strictly increasing in the score, so the order of rows by confidence of a binary classifier
    never changes.

    Parameters
    ----------
    temperature
        From 0.01 to 100. Above 1 the map is less confident than the classifier, below 1 more.

    Examples
    --------
    >>> TemperatureMap(2.0).confidence([[2.0, 0.0], [0.0, 1.0]]).round(3).tolist()
    [0.731, 0.622]
    >>> TemperatureMap(1.0).confidence([[2.0, 0.0], [0.0, 1.0]]).round(3).tolist()
    [0.881, 0.731]
    """

    temperature: Temperature

    def __post_init__(self) -> None:
        records.check(self)

    def describe(self) -> str:
        end = self.provenance.get("range_end")
        where = f", at the {end} end of the range searched" if end in ("lower", "upper") else ""
        return f"temperature {self.temperature:.4f}{where}"

    def apply(self, outputs: Outputs) -> FloatArray:
        return _softmax_top(outputs, self.temperature)

    def _probabilities(self, outputs: Outputs) -> FloatArray:
        outputs.need_all_classes("predict_proba")
        # The rule of this module gives the softmax; directly, it is exact for tiny shares too.
        result = np.empty((outputs.rows, outputs.classes))

        def work(rows: slice, p: FloatArray) -> None:
            outputs.shifted(rows, p)
            if self.temperature != 1:
                np.multiply(p, 1.0 / self.temperature, out=p)
            np.exp(p, out=p)
            sums = row_sums(p)
            np.multiply(p, (1 / sums)[:, None], out=result[rows])
            # Only where the sum is 2 or more is there a second class as probable as the predicted one.
            _keep_on_top(result[rows], outputs.predicted[rows], sums >= 2)

        for_blocks(outputs, work, np.dtype(np.float64), 1)
        return result


@register("bins")
@dataclass(frozen=True, repr=False)
class BinsMap(Map):
    """One confidence for all rows of a bin: histogram binning.

    Not increasing, alone among maps: the paper defines it so.

    Parameters
    ----------
    values
        For each of 1 to 1,000 bins of equal width, what replaces the confidence (at temperature
        1) of the rows in it: a number in [0, 1], or None to keep each row's own. A confidence of
        exactly 1 is in the last bin.

    Examples
    --------
    >>> map = BinsMap((None, 0.6))  # of a confidence from one half on: 0.6
    >>> map.confidence(probabilities=[[0.9, 0.1, 0.0], [0.4, 0.3, 0.3]]).round(3).tolist()
    [0.6, 0.4]
    """

    values: Annotated[tuple[Annotated[float, Between(0, 1)] | None, ...], Between(1, MAX_BINS)]

    def __post_init__(self) -> None:
        records.check(self)

    def describe(self) -> str:
        return "one value for each bin"

    def apply(self, outputs: Outputs) -> FloatArray:
        own = _softmax_top(outputs, 1.0)
        table = np.array([math.nan if v is None else v for v in self.values])
        binned = table[bin_index(own, len(table))]
        return np.where(np.isnan(binned), own, binned)


def _rising(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(map(lt, values, values[1:])):
        raise InputError(f"{name} must rise strictly")
    return values


_Rising = Annotated[tuple[float, ...], Between(2, MAX_POINTS), _rising]
_Shift = Annotated[float, Between(-MAX_SHIFT, MAX_SHIFT)]


@register("curve")
@dataclass(frozen=True, repr=False)
class CurveMap(Map):
    """An increasing curve from score to confidence, both as log-odds.

    The score s of a row is the log-odds of its confidence at `temperature`; the result's log-odds
    are read off the straight lines through the points (`scores`, `log_odds`). The first line goes
    on below. Above the last point (x, y) the curve rises ever more slowly, to y + slope · log(1 + d)
    with the slope of the last line and d = s − x, or 745 where that is more: a confidence that was rounded
    to 1 has a very large s and must not be taken for certainty.

    Parameters
    ----------
    temperature
        From 0.01 to 100: where the scores of rows are taken.
    scores, log_odds
        2 to 1,000 numbers each, equally many, rising strictly; hence so does the map.
    directions
        How the curve is uncertain: functions at the same scores. The log-odds could as well be
        `log_odds` plus each of these times a standard normal number. None are there where nobody
        knows.

    Examples
    --------
    >>> curve = CurveMap(1.0, scores=(0.0, 2.0), log_odds=(0.0, 1.0))
    >>> curve.at(np.array([-2.0, 1.0, 2.0])).tolist()
    [-1.0, 0.5, 1.0]
    >>> curve.confidence([[2.0, 0.0]]).round(3).tolist()
    [0.731]
    """

    temperature: Temperature
    scores: _Rising
    log_odds: _Rising
    directions: Annotated[tuple[tuple[_Shift, ...], ...], Between(0, MAX_DIRECTIONS)] = ()

    def __post_init__(self) -> None:
        records.check(self)
        if len(self.scores) != len(self.log_odds):
            raise InputError("scores and log_odds of a curve must be equally many")
        steps, rises = (list(map(sub, v[1:], v)) for v in (self.scores, self.log_odds))
        if not math.isfinite(max(steps)) or not math.isfinite(max(rises) / min(steps)):
            raise InputError("scores and log_odds of a curve must have finite slopes")
        if any(len(direction) != len(self.scores) for direction in self.directions):
            raise InputError("each of the directions of a curve must have a number for each score")

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        return super().from_dict({"directions": [], **document})  # older files have none

    def score(self, outputs: Outputs) -> FloatArray:
        """The score (n,) of each row, which the curve starts from."""
        return log_odds(outputs, self.temperature, of=self.about.event)

    def target(self, scores: Scores) -> BoolArray:
        """Whether what the curve gives the probability of is so, for each row."""
        return self.about.outcome(scores)

    def at(self, s: FloatArray) -> FloatArray:
        """The log-odds of the result where the score is `s`."""
        x, y = np.array(self.scores), np.array(self.log_odds)
        slope = np.diff(y) / np.diff(x)
        s = self._slowed(s)
        left = np.clip(np.searchsorted(x, s, side="right") - 1, 0, len(x) - 2)
        return np.asarray(y[left] + slope[left] * (s - x[left]))

    def _slowed(self, s: FloatArray) -> FloatArray:
        """Scores as the lines are read at them."""
        return compress_tail(s, self.scores[-1])

    def describe(self) -> str:
        return "an increasing curve"

    @property
    def informative(self) -> bool:
        return not str(self.provenance.get("note")).startswith(PRIOR_ONLY)

    def apply(self, outputs: Outputs) -> FloatArray:
        return sigmoid(self.at(self.score(outputs)))


@register("risk")
@dataclass(frozen=True, repr=False)
class RiskMap(CurveMap):
    """An increasing curve from the score of one class to its risk, both as log-odds.

    The score s of a row is the log-odds of P(`event`) at `temperature`: of that class against all
    others, predicted or not. The curve is read as that of `CurveMap`, and is slowed at both ends: a
    probability that was rounded to 0 or 1 has s far out and must not be taken for certainty.

    The order of rows by risk never changes. What may change is the class that is predicted: the
    one with the largest probability, where `event` has its risk and the others share the rest as
    they did before. `confidence` is the probability of that class.

    Parameters
    ----------
    temperature, scores, log_odds, directions
        As for `CurveMap`.
    event
        The class whose risk it is, counted from 0.

    Examples
    --------
    >>> map = RiskMap(1.0, scores=(-2.0, 2.0), log_odds=(-1.0, 3.0), event=1)
    >>> map.risk(probabilities=[0.1, 0.4, 0.9]).round(3).tolist()
    [0.235, 0.644, 0.96]
    >>> map.predict(probabilities=[0.1, 0.4, 0.9]).tolist()  # the classifier's own: 0, 0, 1
    [0, 1, 1]
    >>> map.confidence(probabilities=[0.1, 0.4, 0.9]).round(3).tolist()
    [0.765, 0.644, 0.96]
    """

    event: Annotated[int, Between(0)] = field(kw_only=True)

    @property
    def about(self) -> Target:
        return Target.of(self.event, self.class_names)

    def _slowed(self, s: FloatArray) -> FloatArray:
        return -compress_tail(-super()._slowed(s), -self.scores[0])

    def describe(self) -> str:
        return f"an increasing curve of the risk of class {self.event_name}"

    @property
    def event_name(self) -> str:
        """What `event` is called: its number, where the classes have no names."""
        return self.about.event_name

    def risk(
        self, scores: Any = None, *, logits: Any = None, probabilities: Any = None
    ) -> FloatArray:
        """The calibrated probability (n,) of `event`; takes what `confidence` takes."""
        return self._risk(self._read(scores, logits, probabilities))

    def _risk(self, outputs: Outputs) -> FloatArray:
        return super().apply(outputs)

    def apply(self, outputs: Outputs) -> FloatArray:
        return np.asarray(self._probabilities(outputs).max(axis=1, initial=0.0))

    def predicted(self, outputs: Outputs) -> IntArray:
        return np.asarray(self._probabilities(outputs).argmax(axis=1))

    def _probabilities(self, outputs: Outputs) -> FloatArray:
        risk = self._risk(outputs)
        result = np.empty((outputs.rows, outputs.classes))
        event = np.full(outputs.rows, self.event)

        def work(rows: slice, p: FloatArray) -> None:
            others = _others(outputs, rows, event[rows], p)
            np.multiply(p, ((1 - risk[rows]) / others)[:, None], out=result[rows])
            result[rows, self.event] = risk[rows]

        for_blocks(outputs, work, np.dtype(np.float64), 1)
        return result


def compress_tail(s: FloatArray, last: float) -> FloatArray:
    """Scores as a curve reads them: unchanged up to its `last` point, logarithmic beyond."""
    return np.asarray(np.where(s > last, last + np.log1p(np.clip(s - last, 0, MOST_ODDS)), s))


def check_may_leave(map: Map, what: str) -> None:
    """Raise InputError for a map that exact rows decide; `what` ends "it must not be …"."""
    if map.stays_at_home or not map.private:
        raise InputError(
            f"this map was made from exact rows (private: false) and stays where they are: it must "
            f"not be {what}"
        )


@register("offsets")
@dataclass(frozen=True, repr=False)
class OffsetsMap(Map):
    """A curve, an offset for the predicted class, and a second curve: all in log-odds.

    The score s of a row is the log-odds of its confidence at `temperature`. The corrected score is
    read off the straight lines through (`scores`, `log_odds`), level beyond both ends, plus the
    offset of the predicted class; the result's log-odds are what `correction`, a curve like that
    of `CurveMap`, gives for it. Among rows of one predicted class the order by confidence stays;
    between classes it changes. The predicted class never does.

    Parameters
    ----------
    temperature
        From 0.01 to 100: where the scores of rows are taken.
    scores, log_odds
        The first curve: 2 to 1,000 numbers each, equally many; scores rise strictly, log-odds
        never fall.
    offsets
        For each class a number from -1000 to 1000: what is added where it is the predicted one.
    corrected, corrected_log_odds
        The second curve: the same, both rising strictly.

    Examples
    --------
    >>> line = (-5.0, 5.0)
    >>> map = OffsetsMap(1.0, line, line, (-1.0, 0.0), line, line)
    >>> map.confidence([[2.0, 0.0], [0.0, 2.0]]).round(3).tolist()
    [0.731, 0.881]
    """

    temperature: Temperature
    scores: _Rising
    log_odds: Annotated[tuple[float, ...], Between(2, MAX_POINTS)]
    offsets: Annotated[tuple[_Shift, ...], Between(1, MAX_CLASS)]
    corrected: _Rising
    corrected_log_odds: _Rising

    def __post_init__(self) -> None:
        records.check(self)
        # A level stretch of the first curve is no harm: rows there have the same score.
        CurveMap(1.0, self.scores, tuple(range(len(self.scores))))
        first = self.log_odds
        if len(first) != len(self.scores) or not math.isfinite(max(first) - min(first)):
            raise InputError("log_odds must be finite numbers, as many as scores")
        if any(map(gt, first, first[1:])):
            raise InputError("log_odds of a curve must not fall")
        CurveMap(1.0, self.corrected, self.corrected_log_odds)

    def at(self, s: FloatArray, predicted: IntArray) -> FloatArray:
        """The log-odds of the result for the score `s` of rows with these predicted classes."""
        score = corrected_score(s, predicted, self.scores, self.log_odds, self.offsets)
        return CurveMap(1.0, self.corrected, self.corrected_log_odds).at(score)

    def describe(self) -> str:
        low, high = min(self.offsets), max(self.offsets)
        return (
            f"an increasing curve and offsets of {len(self.offsets)} predicted classes, from "
            f"{low:+.2f} to {high:+.2f} in log-odds"
        )

    @property
    def informative(self) -> bool:
        return self.note != PRIOR_ONLY

    @property
    def classes(self) -> int:
        return len(self.offsets)

    def apply(self, outputs: Outputs) -> FloatArray:
        outputs.need_all_classes("an offset of the predicted class")
        s = log_odds(outputs, self.temperature)
        return sigmoid(self.at(s, outputs.predicted))


def load_map(path: str | Path) -> Map:
    """Read a map that was saved.

    Parameters
    ----------
    path
        A JSON file that `Map.save`, `privcal calibrate` or `privcal fit` wrote.

    Returns
    -------
    Map
        Equal to the one that was saved, to the last bit. A file that is damaged, of a newer
        version, of a kind that is not known here, or with values out of range is an `InputError`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TemperatureMap(1.5).save(f"{folder}/map.json")
    ...     load_map(f"{folder}/map.json").describe()
    'temperature 1.5000'
    """
    document = read_document(path, "map", FORMAT, VERSION)
    kind = document.get("kind")
    cls = _registered(kind)
    if cls is None:
        raise InputError(
            f"map {path} has unknown kind {short(kind)}; the package of the method that made it may not "
            "be installed here"
        )
    try:
        return cls.from_dict(document)
    except InputError as error:
        raise InputError(f"map {path}: {error}") from None


def _registered(kind: Any) -> type[Map] | None:
    if not isinstance(kind, str):
        return None
    if kind not in KINDS:
        plugins.load()
    return KINDS.get(kind)


# --- confidence and probabilities ------------------------------------------------------------


def sigmoid(x: FloatArray) -> FloatArray:
    """The probabilities of log-odds."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def log_odds(outputs: Outputs, temperature: float, *, of: int | None = None) -> FloatArray:
    """The score (n,) of each row; that of class `of` where one is given (see `privcal.kernel`)."""
    if of is not None and outputs.classes < 2:
        raise InputError("a risk needs a model of at least two classes")
    s = FAST.log_odds(outputs, temperature, of=of)
    return np.where(s > TOLD_APART, np.inf, s)


def _softmax_top(outputs: Outputs, temperature: float) -> FloatArray:
    return FAST.confidence(outputs, temperature, dtype=np.float64)


def spread(outputs: Outputs, confidence: FloatArray) -> FloatArray:
    """Probabilities with `confidence` for the predicted class, the rest shared as at T = 1."""
    n, m = outputs.rows, outputs.classes
    result = np.empty((n, m))
    if m == 1:
        result[:] = 1.0
        return result

    def work(rows: slice, p: FloatArray) -> None:
        predicted = outputs.predicted[rows]
        others = _others(outputs, rows, predicted, p)
        # The strongest rival gets 1/others of the rest: no more than c, if c is at least this.
        c = np.maximum(confidence[rows], 1 / (1 + others))
        rest = (1 - c) / others
        np.multiply(p, rest[:, None], out=result[rows])
        result[rows][np.arange(len(p)), predicted] = c
        _keep_on_top(result[rows], predicted, rest >= c)

    for_blocks(outputs, work, np.dtype(np.float64), 1)
    return result


def _others(outputs: Outputs, rows: slice, chosen: IntArray, p: FloatArray) -> FloatArray:
    """Write into `p` how probable each class is beside the strongest one but the chosen.

    That one has 1, the chosen class 0. Returns the sums, each at least 1: however far the
    others are behind, they keep their shares among themselves.
    """
    if outputs.kind == "logits":
        np.copyto(p, outputs.array[rows], casting="same_kind")
    else:
        outputs.shifted(rows, p)
    one = np.arange(len(p)), chosen
    p[one] = -np.inf
    p -= p.max(axis=1)[:, None]
    np.exp(p, out=p)
    return np.asarray(row_sums(p))


def _of_frame(frame: Any, names: list[str], class_names: tuple[str, ...] | None) -> Outputs:
    """What a data frame's columns are by their names; with NumPy alone, as servers may have no more."""
    layout = Layout.of(class_names=class_names)
    roles = find_roles("the table", names, layout, None, labelled=False)
    columns = np.column_stack([as_array(name, frame[name]) for name in roles.scores])
    given: dict[str, Any] = {roles.kind: columns}
    return Outputs(**given, class_names=roles.class_names)


def _keep_on_top(p: FloatArray, predicted: IntArray, among: BoolArray) -> None:
    """Where rounding made a rival equal, lift the predicted class by one last bit.

    Looked for `among` these rows: in the others no rival comes near.
    """
    [rows] = np.nonzero(among)
    rows = rows[p[rows].argmax(axis=1) != predicted[rows]]
    p[rows, predicted[rows]] = np.nextafter(p[rows].max(axis=1), 2)
