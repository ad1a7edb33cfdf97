"""A sketch as a value and a file: the noisy answers of many sources to one question.

It left the sources through their noise, so it can be kept, sent, merged with others and read
again, at no further cost in privacy. It holds answers only, never a number of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from privcal import queries
from privcal.checks import whole
from privcal.documents import read_document, write_document
from privcal.errors import InputError
from privcal.maps import CurveMap
from privcal.privacy.epsilon import MAX_EPSILON, NANO, from_nano
from privcal.privacy.policy import MAX_ROWS_PER_PERSON
from privcal.queries import GRID, Hats
from privcal.question import check_asker, check_campaign
from privcal.scores import FloatArray, Scores
from privcal.sketch.evaluation import PrivateEvaluation, evaluate_privately
from privcal.sketch.model import Posterior
from privcal.sketch.noise import noise_variance
from privcal.sketch.reader import SketchReader
from privcal.sketch.risk import RiskEvaluation, evaluate_risk
from privcal.version import __version__

FORMAT = "privcal-sketch"
VERSION = 2

_SAME_KNOTS = "; sketches that shall be merged are taken with equally many hats (--option hats=N)"

_SAME_TEMPERATURE = 1e-5
"""Relative difference of equal temperatures: a fit is good to 1e-6, and its last digits depend on
the machine."""


@dataclass(frozen=True)
class SketchAnswer:
    """One source's noisy answer, and what it was asked under."""

    source: str
    """The source's name."""
    asker: str
    """The name of whoever asked."""
    campaign: str
    """The name of the run in which it was asked."""
    nano_epsilon: int
    """The nano-ε that the source was charged."""
    values: tuple[float, ...]
    """The noisy numbers, as they left the source."""
    rows_per_person: int = 1
    """The most rows of one person that count at the source; the noise grows with it."""
    ledger: str = ""
    """The random id of the ledger that was charged: whose answer this is, whatever the name."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise InputError(f"an answer's source must be a name, not {self.source!r}")
        what = f"the answer of {self.source!r}"
        if not isinstance(self.ledger, str):
            raise InputError(f"{what}: its ledger must be an id, not {self.ledger!r}")
        try:
            check_asker(self.asker)
            check_campaign(self.campaign)
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
        for name, most in (
            ("nano_epsilon", MAX_EPSILON * NANO),
            ("rows_per_person", MAX_ROWS_PER_PERSON),
        ):
            object.__setattr__(self, name, whole(f"{what}: {name}", getattr(self, name), 1, most))
        if not isinstance(self.values, (list, tuple)):
            raise InputError(f"{what}: values must be a list of numbers")
        object.__setattr__(self, "values", tuple(_value(what, v) for v in self.values))

    @property
    def who(self) -> str:
        """The people behind it: one ledger is one population. Without one, the name must do."""
        return self.ledger or self.source

    @property
    def key(self) -> tuple[str, str, str]:
        return self.who, self.asker, self.campaign

    def __str__(self) -> str:
        return f"the answer of {self.source!r} to {self.asker!r} in campaign {self.campaign!r}"


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a sketch says: the map, and the posterior it comes from."""

    map: CurveMap
    posterior: Posterior
    reader: SketchReader

    @property
    def informative(self) -> bool:
        """False where the noise drowned the data, and the map is the prior's."""
        return bool(self.posterior.informative[0])

    def evaluate(
        self, map: CurveMap | None = None, bins: int = 15
    ) -> PrivateEvaluation | RiskEvaluation:
        """How good confidence is before and after `map` (this one, by default), estimated.

        Of a sketch of an event: how good its risk is.
        """
        if self.reader.event is not None:
            return evaluate_risk(self.posterior, self.reader, map or self.map)
        return evaluate_privately(self.posterior, self.reader, map or self.map, bins)


@dataclass(frozen=True)
class Sketch:
    """Noisy answers of many sources to one question: the release that a sketch run leaves behind.

    `privcal.calibrate(..., "sketch")` makes one (`result.sketch`). It left the sources through
    their noise, so keeping, merging and reading it costs no further privacy.

    Parameters
    ----------
    query
        The question, the same for all.
    answers
        The answers, at least one; kept in the order of their sources' names. The same source,
        asker and campaign may be there once.
    model
        The name of the classifier, if it was said.

    Examples
    --------
    >>> import privcal
    >>> scores = privcal.Scores(logits=np.tile([[2.0, 0.0]], (40, 1)), labels=[0, 1] * 20)
    >>> source = privcal.Source(scores, privcal.Policy(epsilon=1), name="clinic", ledger=None)
    >>> sketch = privcal.calibrate([source], "sketch", epsilon=1.0).sketch
    >>> sketch.spent
    {'clinic': 1.0}
    >>> estimate = sketch.evaluate().accuracy  # from the answer alone, with its uncertainty
    >>> 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    True
    """

    query: Hats
    answers: tuple[SketchAnswer, ...]
    model: str | None = None
    reader: SketchReader | None = field(default=None, compare=False, repr=False)
    """What the sketch was taken with, in the process that took it: its public rows are fitted."""

    def __post_init__(self) -> None:
        if not isinstance(self.query, Hats):
            kind = getattr(self.query, "kind", type(self.query).__name__)
            raise InputError(f"a sketch asks a hats query, not {kind}")
        if self.model is not None and not isinstance(self.model, str):
            raise InputError(f"the model of a sketch must be a name, not {self.model!r}")
        if not self.answers:
            raise InputError("a sketch needs at least one answer")
        object.__setattr__(
            self, "answers", tuple(sorted(self.answers, key=lambda a: (a.source, a.key)))
        )
        often = Counter(answer.key for answer in self.answers)
        for answer in self.answers:
            if often[answer.key] > 1:
                raise InputError(f"{answer} is there twice")
        for answer in self.answers:
            if len(answer.values) != self.query.length:
                raise InputError(
                    f"{answer} has {len(answer.values)} numbers; the query asks for "
                    f"{self.query.length}"
                )

    @classmethod
    def of(
        cls,
        query: Hats,
        answers: Mapping[str, Sequence[float]],
        ledgers: Mapping[str, str],
        nano_epsilon: int,
        *,
        asker: str,
        campaign: str,
        rows_per_person: int = 1,
        model: str | None = None,
        reader: SketchReader | None = None,
    ) -> Sketch:
        """The sketch of one run, from the answers and the ids of the ledgers by source.

        Each source was charged `nano_epsilon` and counts up to `rows_per_person` rows of a person.
        `privcal.calibrate` makes its sketches so; `reader` is the one it read them with.
        """
        made = (
            SketchAnswer(
                source,
                asker,
                campaign,
                nano_epsilon,
                tuple(values),
                rows_per_person,
                ledgers.get(source, ""),
            )
            for source, values in answers.items()
        )
        return cls(query, tuple(made), model, reader)

    @property
    def average(self) -> FloatArray:
        """The mean over answers; all weigh the same, so that every hidden row counts alike."""
        columns = zip(*(answer.values for answer in self.answers), strict=True)
        return np.array([math.fsum(column) for column in columns]) / len(self.answers)

    @property
    def noise_variance(self) -> float:
        """The variance of the noise in one number of the average."""
        return noise_variance((a.nano_epsilon, a.rows_per_person) for a in self.answers)

    @property
    def nano_spent(self) -> dict[str, int]:
        """The nano-ε each source was charged, over all its answers."""
        names: dict[str, str] = {}
        for answer in self.answers:
            names.setdefault(answer.who, answer.source)
        often = Counter(names.values())
        spent: Counter[str] = Counter()
        for answer in self.answers:
            name = names[answer.who]
            label = name if often[name] == 1 else f"{name} ({answer.who[:8]})"
            spent[label] += answer.nano_epsilon
        return dict(spent)

    @property
    def spent(self) -> dict[str, float]:
        """The ε each source was charged, over all its answers; one ledger is one source."""
        return {source: from_nano(nano) for source, nano in self.nano_spent.items()}

    @property
    def epsilon(self) -> float:
        """The most that any source was charged: what the privacy of everything here costs."""
        return from_nano(max(self.nano_spent.values()))

    @property
    def independent_answers(self) -> int:
        """How many answers of different sources say as much about the hidden rows.

        A source that answered m times has its rows in the average with weight m, so the
        sampling variance of the average is Σm²/(Σm)² of one answer's.
        """
        often = Counter(answer.who for answer in self.answers).values()
        return sum(often) ** 2 // sum(m * m for m in often)

    def fit(
        self,
        public: Scores | None = None,
        *,
        unchanged: float | None = None,
        leave_alone: bool | None = None,
    ) -> Fitted:
        """The map. A sketch taken with public scores must be read with the same ones.

        `unchanged` and `leave_alone` are those of the method, by default as it was taken: what was
        believed beforehand is a matter of reading, not of asking.
        """
        reader = self._reader(public, unchanged, leave_alone)
        posterior = reader.read(
            self.average[None, :], self.independent_answers, self.noise_variance
        )
        [map] = reader.maps(posterior, directions=True)
        facts = {
            "method": "sketch",
            "options": {} if public is None else {"public": f"{len(public)} rows"},
            "epsilon_per_source": self.epsilon,
            "sources": len(self.nano_spent),
            "answers": len(self.answers),
            "model": self.model,
            "privcal": __version__,
        }
        known = {name: fact for name, fact in facts.items() if fact not in (None, {})}
        return Fitted(map.with_provenance(**known), posterior, reader)

    def evaluate(
        self,
        public: Scores | None = None,
        map: CurveMap | None = None,
        bins: int = 15,
        *,
        unchanged: float | None = None,
        leave_alone: bool | None = None,
    ) -> PrivateEvaluation | RiskEvaluation:
        """How good confidence is on the hidden rows before and after `map`: an estimate.

        Of a sketch of an event: how good its risk is (`RiskEvaluation`). `public` are the scores
        that the sketch was taken with, `unchanged` and `leave_alone` are as in `fit`; the ECE has
        `bins` bins.
        """
        fitted = self.fit(public, unchanged=unchanged, leave_alone=leave_alone)
        return fitted.evaluate(map, bins)

    def _reader(
        self, public: Scores | None, unchanged: float | None, leave_alone: bool | None
    ) -> SketchReader:
        taken_with = self.reader
        if taken_with and taken_with.reads(self.query, public, unchanged, leave_alone):
            return taken_with  # its public rows are fitted already
        without = self.query.temperature == 1.0
        if public is None and not without:
            raise InputError(
                "this sketch was taken with public scores (at temperature "
                f"{self.query.temperature:.6g}); read it with the same ones"
            )
        if public is not None and without:
            raise InputError("this sketch was taken without public scores; read it without")
        reader = SketchReader.of(
            public,
            event=self.query.event,
            knots=self.query.knots,
            unchanged=unchanged,
            leave_alone=bool(leave_alone),
        )
        theirs, ours = reader.temperature, self.query.temperature
        if not math.isclose(theirs, ours, rel_tol=_SAME_TEMPERATURE):
            raise InputError(
                f"this sketch was not taken with these public scores: its temperature is {ours}, "
                f"and theirs {theirs}; read it with those it was taken with"
            )
        return replace(reader, temperature=ours)

    def __repr__(self) -> str:
        return (
            f"Sketch({len(self.answers)} answers of {len(self.nano_spent)} sources, at most "
            f"ε = {self.epsilon:g} each)"
        )

    def _repr_html_(self) -> str:
        from privcal.notebook import Fact, fragment, some

        facts: dict[str, Fact] = {
            "question": self.query.describe(),
            "model": self.model or "not said",
            "answers": len(self.answers),
            "sources": some(list(self.nano_spent)),
            "ε charged to each, at most": self.epsilon,
        }
        note = "Noisy answers: keeping, merging and reading them costs no further privacy."
        return fragment("Sketch", facts, note)

    def to_dict(self) -> dict[str, Any]:
        """The content of the sketch's JSON file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "query": self.query.to_dict(),
            "model": self.model,
            "answers": [asdict(answer) for answer in self.answers],
        }

    def save(self, path: str | Path) -> None:
        """Write the sketch to `path` as JSON; the file is whole or not there."""
        write_document(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Sketch:
        """Read the sketch in `path`; a file of a newer version or with anything odd in it is refused."""
        document = read_document(path, "sketch", FORMAT, VERSION)
        try:
            return cls._parsed(document)
        except InputError as error:
            raise InputError(f"sketch {path}: {error}") from None

    @classmethod
    def _parsed(cls, document: dict[str, Any]) -> Sketch:
        answers = document.get("answers")
        if not isinstance(answers, list) or not all(isinstance(a, dict) for a in answers):
            raise InputError("its answers must be a list of objects")
        names = {f.name for f in fields(SketchAnswer)}
        for number, answer in enumerate(answers, 1):
            if wrong := sorted(names ^ set(answer)):
                what = "lacks" if wrong[0] in names else "has an unknown"
                raise InputError(f"answer {number} {what} {wrong[0]}")
        query = queries.parse(document.get("query"))
        return cls(query, tuple(SketchAnswer(**a) for a in answers), document.get("model"))  # type: ignore[arg-type]


def merge(*sketches: Sketch) -> Sketch:
    """All answers of some sketches of one question about one model.

    Parameters
    ----------
    sketches
        At least one, in whatever order. An answer counts once: one that is in two sketches is
        refused, also under another name. So are sketches of other questions or models.

    Returns
    -------
    Sketch
        A source that answered in several of them is charged the sum of its ε.

    Examples
    --------
    >>> from privcal.queries import Hats
    >>> def sketch(campaign, values):
    ...     answer = SketchAnswer("clinic", "lab", campaign, nano_epsilon=10**8, values=values)
    ...     return Sketch(Hats(), (answer,))
    >>> spring, autumn = sketch("spring", (1, 2, 3, 4)), sketch("autumn", (5, 6, 7, 8))
    >>> merge(spring, autumn).spent
    {'clinic': 0.2}
    >>> merge(spring, spring)
    Traceback (most recent call last):
    ...
    privcal.errors.InputError: the answer of 'clinic' to 'lab' in campaign 'spring' is already merged
    """
    if not sketches:
        raise InputError("there are no sketches to merge")
    first = sketches[0]
    keys: set[tuple[str, str, str]] = set()
    values: dict[tuple[float, ...], SketchAnswer] = {}
    for sketch in sketches:
        _check_same_question(first, sketch)
        for answer in sketch.answers:
            if answer.key in keys:
                raise InputError(f"{answer} is already merged")
            # Noise never comes out the same twice: equal numbers are one answer, renamed.
            if answer.values in values:
                raise InputError(
                    f"{answer} is already merged, as {values[answer.values]}: "
                    "the two are equal to the last digit"
                )
        keys |= {answer.key for answer in sketch.answers}
        values |= {answer.values: answer for answer in sketch.answers}
    answers = tuple(answer for sketch in sketches for answer in sketch.answers)
    return Sketch(first.query, answers, first.model, first.reader)


def _check_same_question(first: Sketch, other: Sketch) -> None:
    if first.query.event != other.query.event:
        ours, theirs = (
            "being right" if s.query.event is None else f"the risk of class {s.query.event}"
            for s in (first, other)
        )
        raise InputError(
            f"sketches of different queries cannot be merged: one is about {ours} and the other "
            f"about {theirs}"
        )
    for f in fields(first.query):
        ours, theirs = getattr(first.query, f.name), getattr(other.query, f.name)
        if ours != theirs:
            raise InputError(
                f"sketches of different queries cannot be merged: {f.name} is {_text(ours)} in "
                f"one and {_text(theirs)} in the other" + (_SAME_KNOTS if f.name == "knots" else "")
            )
    if first.model != other.model:
        ours, theirs = (repr(s.model) if s.model else "no model's name" for s in (first, other))
        raise InputError(
            f"sketches of different models cannot be merged: one has {ours} and the other {theirs}"
        )


def _text(parameter: Any) -> str:
    return str(list(parameter) if isinstance(parameter, tuple) else parameter)


def _value(what: str, value: Any) -> float:
    # A source's sums are 64-bit whole numbers on the grid.
    fits = isinstance(value, (int, float)) and abs(value) <= 2**63 / GRID  # NaN does not
    if isinstance(value, bool) or not fits:
        raise InputError(f"{what}: {value!r} is no number that a source can answer")
    return float(value)
