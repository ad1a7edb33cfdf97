"""A sketch as a value and a file: the noisy answers of many sources to one question.

It left the sources through their noise, so it can be kept, sent, merged with others and read
again, at no further cost in privacy. It holds answers and totals of answers, never a number of rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privcal.calibration.maps import CurveMap
from privcal.calibration.sketch.answers import SketchAnswer, SketchTotal
from privcal.calibration.sketch.evaluation import (
    PrivateEvaluation,
    RiskEvaluation,
    evaluate_privately,
    evaluate_risk,
)
from privcal.calibration.sketch.model import Posterior
from privcal.calibration.sketch.reader import SketchReader
from privcal.calibration.target import Target
from privcal.data.files import read_document, write_document
from privcal.data.scores import Scores
from privcal.data.wording import asks, other_classes, plural
from privcal.secure.round import Total
from privcal.trusted import queries, records
from privcal.trusted.checks import short
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError
from privcal.trusted.queries import Hats
from privcal.trusted.scores import FloatArray
from privcal.version import __version__

FORMAT = "privcal-sketch"
VERSION = 4
TOTALS_VERSION = 3
"""The version of a sketch that does not say what scores it is of, as it was before one could."""
PLAIN_VERSION = 2
"""The version of a sketch that has answers alone, as it was before there were totals."""

Release = SketchAnswer | SketchTotal
_Release = TypeVar("_Release", SketchAnswer, SketchTotal)
Key = tuple[str, str, str]
"""Whose answer it is, who asked, and in which campaign: by these it is recognised."""

_SAME_KNOTS = "; sketches that shall be merged are taken with equally many hats (--option hats=N)"

_SAME_TEMPERATURE = 1e-5
"""Relative difference of equal temperatures: a fit is good to 1e-6, and its last digits depend on
the machine."""


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
        The answers that sources gave each for itself, in the order of their names.
    model
        The name of the classifier, if it was said.
    schema
        What the scores are that it was taken of (`privcal.trusted.scores.schema_of`), as far as it is known: a
        map of the sketch has it in its provenance.
    totals
        The totals of secure sums. There is at least one answer or total, and the same source, asker
        and campaign may be there once, by itself or in a total.

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
    totals: tuple[SketchTotal, ...] = ()
    reader: SketchReader | None = field(default=None, compare=False, repr=False)
    """What the sketch was taken with, in the process that took it: its public rows are fitted."""
    schema: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        records.read(_Schema, self.schema, "the schema of a sketch")
        if not isinstance(self.query, Hats):
            kind = getattr(self.query, "kind", type(self.query).__name__)
            raise InputError(f"a sketch asks a hats query, not {kind}")
        if self.model is not None and not isinstance(self.model, str):
            raise InputError(f"the model of a sketch must be a name, not {self.model!r}")
        if not self.answers and not self.totals:
            raise InputError("a sketch needs at least one answer")
        answers = sorted(self.answers, key=lambda a: (a.source, *_key(a, a.who)))
        totals = sorted(self.totals, key=lambda t: (t.asker, t.campaign, t.numbers))
        object.__setattr__(self, "answers", tuple(answers))
        object.__setattr__(self, "totals", tuple(totals))
        seen: set[Key] = set()
        for key, said in self._keys():
            if key in seen:
                raise InputError(f"{said} is there twice")
            seen.add(key)
        for release in self.releases:
            for values in release.numbers:
                if len(values) != self.query.length:
                    raise InputError(
                        f"{release} has {len(values)} numbers; the query asks for "
                        f"{self.query.length}"
                    )

    @property
    def releases(self) -> tuple[Release, ...]:
        """All that left the sources: the answers, and the totals."""
        return (*self.answers, *self.totals)

    def _keys(self) -> Iterator[tuple[Key, str]]:
        """Every source's answer, by itself or in a total: by what it is recognised, and in words."""
        for release in self.releases:
            for who, name in release.sources.items():
                yield _key(release, who), release.answer_of(name)

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
        total: Total | None = None,
        reader: SketchReader | None = None,
        schema: dict[str, Any] | None = None,
    ) -> Sketch:
        """The sketch of one run, from the answers and the ids of the ledgers by source.

        Each source was charged `nano_epsilon` and counts up to `rows_per_person` rows of a person.
        Where they were asked for a secure sum there are no answers, but a `total`.
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
        totals = () if total is None else (SketchTotal.of(total, asker),)
        return cls(query, tuple(made), model, totals, reader, schema or {})

    @property
    def count(self) -> int:
        """How many answers of sources are in it, each by itself or in a total."""
        return len(self.answers) + sum(len(total.sources) for total in self.totals)

    @property
    def average(self) -> FloatArray:
        """The mean over answers; all weigh the same, so that every hidden row counts alike."""
        columns = zip(*(answer.values for answer in self.answers), strict=True)
        sums = [Fraction(math.fsum(column)) for column in columns]
        sums = sums or [Fraction(0)] * self.query.length
        for total in self.totals:
            each = total.average.tolist()
            sums = [s + len(total.sources) * Fraction(v) for s, v in zip(sums, each, strict=True)]
        return np.array([float(s / self.count) for s in sums])

    @property
    def noise_variance(self) -> float:
        """The variance of the noise in one number of the average."""
        # Rounded once: neither order nor the way a sketch was merged shows in the last digit.
        alike = Counter((r.noise, r.nano_epsilon, len(r.sources)) for r in self.releases)
        of_sum = sum(
            often * sources**2 * Fraction(noise.variance(nano, sources))
            for (noise, nano, sources), often in alike.items()
        )
        return float(of_sum / self.count**2)

    @property
    def _labels(self) -> dict[str, str]:
        """What a source is called here, by whose answers they are: the ledger where names are not enough."""
        names: dict[str, str] = {}
        for release in self.releases:
            for who, name in release.sources.items():
                names.setdefault(who, name)
        often = Counter(names.values())
        return {
            who: name if often[name] == 1 else f"{name} ({who[:8]})" for who, name in names.items()
        }

    def _by_source(self, worth: Callable[[Release], int]) -> dict[str, int]:
        labels, found = self._labels, Counter[str]()
        for release in self.releases:
            found.update({labels[who]: worth(release) for who in release.sources})
        return dict(found)

    @property
    def times(self) -> dict[str, int]:
        """How often each source answered."""
        return self._by_source(lambda release: 1)

    @property
    def nano_spent(self) -> dict[str, int]:
        """The nano-ε each source was charged, over all its answers."""
        return self._by_source(lambda release: release.nano_epsilon)

    @property
    def alone(self) -> dict[str, float]:
        """The ε each source lost if everybody else worked together, over all its answers.

        More than what was `spent` where there are totals.
        """
        nano = self._by_source(lambda release: release.nano_alone)
        return {source: from_nano(spent) for source, spent in nano.items()}

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
        sampling variance of the average is Σm²/(Σm)² of one answer's. In a median of groups an
        answer's rows count for less; it is as if it had the weight of more.
        """
        weight: defaultdict[str, float] = defaultdict(float)
        for release in self.releases:
            size = len(release.sources)
            for who in release.sources:
                weight[who] += math.sqrt(size / release.noise.independent(size))
        return int(self.count**2 / math.fsum(w * w for w in weight.values()))

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
        posterior = reader.reread(
            self.average[None, :], self.independent_answers, self.noise_variance
        )
        [map] = reader.maps(posterior, directions=True)
        facts = {
            "method": "sketch",
            "options": {} if public is None else {"public": f"{len(public)} rows"},
            "epsilon_per_source": self.epsilon,
            "sources": len(self.nano_spent),
            "answers": self.count,
            "totals": len(self.totals) or None,
            "model": self.model,
            **self.schema,
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

    @property
    def about(self) -> Target:
        """What it asked about: being right, or one class."""
        return Target.of(self.query.event, self.schema.get("class_names"))

    @property
    def halves(self) -> tuple[str, str]:
        """What the rows in the two halves of an answer are."""
        if self.about.event is None:
            return "wrong", "right"
        return "other classes", f"class {self.about.event_name}"

    def describe(self) -> str:
        """What it holds: "8 answers of 8 sources", or "2 totals of 90 answers of 45 sources"."""
        each, summed = len(self.answers), self.count - len(self.answers)
        alone = [plural(each, "answer")] if each else []
        totals = [f"{plural(len(self.totals), 'total')} of {plural(summed, 'answer')}"]
        held = " and ".join(alone + (totals if self.totals else []))
        return f"{held} of {plural(len(self.nano_spent), 'source')}"

    def __repr__(self) -> str:
        return f"Sketch({self.describe()}, at most ε = {self.epsilon:g} each)"

    def _repr_html_(self) -> str:
        from privcal.data.html import Fact, fragment, some

        facts: dict[str, Fact] = {
            "question": asks(self.query, self.schema.get("class_names")),
            "model": self.model or "not said",
            "answers": len(self.answers) or None,
            "totals": ", ".join(total.describe() for total in self.totals) or None,
            "sources": some(list(self.nano_spent)),
            "ε charged to each, at most": self.epsilon,
            "ε if everybody else works together": max(self.alone.values()) if self.totals else None,
        }
        note = "Noisy answers: keeping, merging and reading them costs no further privacy."
        return fragment("Sketch", facts, note)

    def to_dict(self) -> dict[str, Any]:
        """The content of the sketch's JSON file."""
        document = {
            "format": FORMAT,
            "version": PLAIN_VERSION,
            "query": self.query.to_dict(),
            "model": self.model,
            "answers": records.write(self.answers),
        }
        if self.totals or self.schema:
            document |= {"version": TOTALS_VERSION, "totals": records.write(self.totals)}
        if self.schema:
            document |= {"version": VERSION, "schema": self.schema}
        return document

    def save(self, path: str | Path) -> None:
        """Write the sketch to `path` as JSON; the file is whole or not there."""
        write_document(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Sketch:
        """Read the sketch in `path`; a file of a newer version or with anything odd in it is refused."""
        document = read_document(path, "sketch", FORMAT, PLAIN_VERSION, TOTALS_VERSION, VERSION)
        try:
            return cls._parsed(document)
        except InputError as error:
            raise InputError(f"sketch {path}: {error}") from None

    @classmethod
    def _parsed(cls, document: dict[str, Any]) -> Sketch:
        names = {"format", "version", "query", "model", "answers"}
        if document["version"] != PLAIN_VERSION:
            names.add("totals")
        if document["version"] == VERSION:
            names.add("schema")
        if wrong := sorted(names ^ set(document)):
            raise InputError(f"it {'lacks' if wrong[0] in names else 'has an unknown'} {wrong[0]}")
        schema = document.get("schema", {})
        query = queries.parse(document["query"])
        answers = _listed(SketchAnswer, "answer", document["answers"])
        totals = _listed(SketchTotal, "total", document.get("totals", []))
        return cls(query, answers, document["model"], totals, None, schema)  # type: ignore[arg-type]


def _listed(cls: type[_Release], what: str, documents: Any) -> tuple[_Release, ...]:
    if not isinstance(documents, list):
        raise InputError(f"its {what}s must be a list, not {short(documents)}")
    each = enumerate(documents, 1)
    return tuple(records.read(cls, one, f"{what} {place}", complete=True) for place, one in each)


@dataclass(frozen=True)
class _Schema:
    """What the scores of a sketch may be said to be."""

    made_from: str | None = None
    classes: int | None = None
    class_names: tuple[str, ...] | None = None


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
    privcal.trusted.errors.InputError: the answer of 'clinic' to 'lab' in campaign 'spring' is already merged
    """
    if not sketches:
        raise InputError("there are no sketches to merge")
    first = sketches[0]
    keys: set[Key] = set()
    numbers: dict[tuple[float, ...], Release] = {}
    for sketch in sketches:
        _check_same_question(first, sketch)
        for key, said in sketch._keys():
            if key in keys:
                raise InputError(f"{said} is already merged")
        for release in sketch.releases:
            # Noise never comes out the same twice: equal numbers are one answer, renamed.
            for values in release.numbers:
                if values in numbers:
                    raise InputError(
                        f"{release} is already merged, as {numbers[values]}: the two are equal to "
                        "the last digit"
                    )
        keys |= {key for key, _ in sketch._keys()}
        numbers |= {values: release for release in sketch.releases for values in release.numbers}
    answers = tuple(answer for sketch in sketches for answer in sketch.answers)
    totals = tuple(total for sketch in sketches for total in sketch.totals)
    schema = {k: v for sketch in sketches for k, v in sketch.schema.items()}
    if any(sketch.schema.get("made_from") != schema.get("made_from") for sketch in sketches):
        schema.pop("made_from", None)
    return Sketch(first.query, answers, first.model, totals, first.reader, schema)


def _key(release: Release, who: str) -> Key:
    return who, release.asker, release.campaign


def _check_same_question(first: Sketch, other: Sketch) -> None:
    if first.about != other.about:
        raise InputError(
            f"sketches of different queries cannot be merged: one is about {first.about} and the "
            f"other about {other.about}"
        )
    for f in fields(first.query):
        ours, theirs = getattr(first.query, f.name), getattr(other.query, f.name)
        if ours != theirs:
            raise InputError(
                f"sketches of different queries cannot be merged: {f.name} is {_text(ours)} in "
                f"one and {_text(theirs)} in the other" + (_SAME_KNOTS if f.name == "knots" else "")
            )
    names, others = (s.schema.get("class_names") for s in (first, other))
    if names and others and names != others:
        raise other_classes("one sketch", names, "the other", others)
    counts = {s.schema["classes"] for s in (first, other) if "classes" in s.schema}
    if len(counts) > 1:
        raise InputError(
            "sketches of different models cannot be merged: one is of "
            f"{' classes and the other of '.join(map(str, sorted(counts)))}"
        )
    if first.model != other.model:
        ours, theirs = (repr(s.model) if s.model else "no model's name" for s in (first, other))
        raise InputError(
            f"sketches of different models cannot be merged: one has {ours} and the other {theirs}"
        )


def _text(parameter: Any) -> str:
    return str(list(parameter) if isinstance(parameter, tuple) else parameter)
