"""A sketch as a value and a file: the noisy answers of many sources to one question.

It left the sources through their noise, so it can be kept, sent, merged with others and read
again, at no further cost in privacy. It holds answers only, never a number of rows.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from privcal import queries
from privcal.errors import InputError
from privcal.files import replacing
from privcal.maps import CurveMap
from privcal.privacy.epsilon import MAX_EPSILON, NANO, from_nano
from privcal.privacy.policy import MAX_ROWS_PER_PERSON
from privcal.queries import GRID, Hats
from privcal.question import check_asker, check_campaign
from privcal.scores import FloatArray, Scores
from privcal.sketch.evaluation import PrivateEvaluation, evaluate_privately
from privcal.sketch.model import Posterior
from privcal.sketch.noise import UNCLEAR, noise_variance
from privcal.sketch.reading import Reading

FORMAT = "privcal-sketch"
VERSION = 2

_SAME_TEMPERATURE = 1e-5
"""Relative: a fitted temperature is good to 1e-6, and its last digits depend on the machine."""


@dataclass(frozen=True)
class Entry:
    """One source's answer, and what it was asked under."""

    source: str
    asker: str
    campaign: str
    nano_epsilon: int
    values: tuple[float, ...]
    """Noisy, as they left the source."""
    rows_per_person: int = 1
    ledger: str = ""
    """The random id of the ledger that was charged: whose answer this is, whatever the name."""

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source:
            raise InputError(f"an answer's source must be a name, not {self.source!r}")
        said = f"the answer of {self.source!r}"
        if not isinstance(self.ledger, str):
            raise InputError(f"{said}: its ledger must be an id, not {self.ledger!r}")
        try:
            check_asker(self.asker)
            check_campaign(self.campaign)
        except InputError as error:
            raise InputError(f"{said}: {error}") from None
        _whole(said, "nano_epsilon", self.nano_epsilon, MAX_EPSILON * NANO)
        _whole(said, "rows_per_person", self.rows_per_person, MAX_ROWS_PER_PERSON)
        if not isinstance(self.values, (list, tuple)):
            raise InputError(f"{said}: values must be a list of numbers")
        object.__setattr__(self, "values", tuple(_value(said, v) for v in self.values))

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
    reading: Reading

    @property
    def clear(self) -> bool:
        """False where the noise drowned the data, and the map is the prior's."""
        return bool(self.posterior.clear[0])

    def evaluate(self, map: CurveMap | None = None, bins: int = 15) -> PrivateEvaluation:
        """How good confidence is before and after `map` (this one, by default), estimated."""
        return evaluate_privately(self.posterior, self.reading, map or self.map, bins)


@dataclass(frozen=True)
class Sketch:
    """Noisy answers to one `Hats` query, one entry for each, in the order of their names."""

    query: Hats
    entries: tuple[Entry, ...]
    model: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.query, Hats):
            kind = getattr(self.query, "kind", type(self.query).__name__)
            raise InputError(f"a sketch asks a hats query, not {kind}")
        if self.model is not None and not isinstance(self.model, str):
            raise InputError(f"the model of a sketch must be a name, not {self.model!r}")
        if not self.entries:
            raise InputError("a sketch needs at least one answer")
        object.__setattr__(
            self, "entries", tuple(sorted(self.entries, key=lambda e: (e.source, e.key)))
        )
        often = Counter(entry.key for entry in self.entries)
        for entry in self.entries:
            if often[entry.key] > 1:
                raise InputError(f"{entry} is there twice")
        for entry in self.entries:
            if len(entry.values) != self.query.length:
                raise InputError(
                    f"{entry} has {len(entry.values)} numbers; the query asks for "
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
    ) -> Sketch:
        """From one run's answers and ledgers' ids by source; `privcal.calibrate` does so."""
        entries = (
            Entry(
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
        return cls(query, tuple(entries), model)

    @property
    def average(self) -> FloatArray:
        """The mean over answers; all weigh the same, so that every hidden row counts alike."""
        columns = zip(*(entry.values for entry in self.entries), strict=True)
        return np.array([math.fsum(column) for column in columns]) / len(self.entries)

    @property
    def noise_variance(self) -> float:
        """Of one number of the average."""
        return noise_variance((e.nano_epsilon, e.rows_per_person) for e in self.entries)

    @property
    def nano_spent(self) -> dict[str, int]:
        """The nano-ε each source was charged, over all its answers."""
        names: dict[str, str] = {}
        for entry in self.entries:
            names.setdefault(entry.who, entry.source)
        often = Counter(names.values())
        spent: Counter[str] = Counter()
        for entry in self.entries:
            name = names[entry.who]
            label = name if often[name] == 1 else f"{name} ({entry.who[:8]})"
            spent[label] += entry.nano_epsilon
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
        often = Counter(entry.who for entry in self.entries).values()
        return sum(often) ** 2 // sum(m * m for m in often)

    def fit(self, public: Scores | None = None) -> Fitted:
        """The map. A sketch taken with public scores must be read with the same ones."""
        reading = self._reading(public)
        posterior = reading.read(
            self.average[None, :], self.independent_answers, self.noise_variance
        )
        [map] = posterior.maps(reading.temperature)
        facts = {
            "method": "sketch",
            "options": {} if public is None else {"public": f"{len(public)} rows"},
            "epsilon_per_source": self.epsilon,
            "sources": len(self.nano_spent),
            "answers": len(self.entries),
            "model": self.model,
            "note": None if posterior.clear[0] else UNCLEAR,
            "privcal": _version(),
        }
        said = {name: fact for name, fact in facts.items() if fact not in (None, {})}
        return Fitted(map.with_provenance(**said), posterior, reading)

    def evaluate(
        self, public: Scores | None = None, map: CurveMap | None = None, bins: int = 15
    ) -> PrivateEvaluation:
        """How good confidence is on the hidden rows before and after the map: an estimate."""
        return self.fit(public).evaluate(map, bins)

    def _reading(self, public: Scores | None) -> Reading:
        alone = self.query == Reading.of().query
        if public is None:
            if not alone:
                raise InputError(
                    "this sketch was taken with public scores (at temperature "
                    f"{self.query.temperature:.6g}); read it with the same ones"
                )
            return Reading.of()
        if alone:
            raise InputError("this sketch was taken without public scores; read it without")
        reading = Reading.of(public)
        near = math.isclose(reading.temperature, self.query.temperature, rel_tol=_SAME_TEMPERATURE)
        if not near or reading.query.knots != self.query.knots:
            differ = "knots" if near else "temperature"
            raise InputError(
                f"this sketch was not taken with these public scores: its {differ} is "
                f"{getattr(self.query, differ)}, and theirs {getattr(reading.query, differ)}; "
                "read it with those it was taken with"
            )
        return replace(reading, temperature=self.query.temperature)

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "query": self.query.to_dict(),
            "model": self.model,
            "answers": [asdict(entry) for entry in self.entries],
        }

    def save(self, path: str | Path) -> None:
        """Write the sketch as JSON; the file is whole or not there."""
        with replacing(path) as part:
            text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
            part.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Sketch:
        """Read a sketch; a file of a newer version or with anything odd in it is refused."""
        try:
            document = json.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise InputError(f"cannot read sketch {path}: {error.strerror}") from None
        except (ValueError, RecursionError):  # not JSON, not text, a number of too many digits
            raise InputError(f"{path} is not a sketch: it is not JSON, or is cut short") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{path} is not a privcal sketch")
        version = document.get("version")
        if type(version) is not int or version != VERSION:
            raise InputError(
                f"sketch {path} has version {version}; this privcal reads version {VERSION}"
            )
        try:
            return cls._read(document)
        except InputError as error:
            raise InputError(f"sketch {path}: {error}") from None

    @classmethod
    def _read(cls, document: dict[str, Any]) -> Sketch:
        answers = document.get("answers")
        if not isinstance(answers, list) or not all(isinstance(a, dict) for a in answers):
            raise InputError("its answers must be a list of objects")
        names = {f.name for f in fields(Entry)}
        for place, answer in enumerate(answers, 1):
            if wrong := sorted(names ^ set(answer)):
                what = "lacks" if wrong[0] in names else "has an unknown"
                raise InputError(f"answer {place} {what} {wrong[0]}")
        query = queries.parse(document.get("query"))
        return cls(query, tuple(Entry(**a) for a in answers), document.get("model"))  # type: ignore[arg-type]


def merge(*sketches: Sketch) -> Sketch:
    """All answers of some sketches of one question about one model, in whatever order.

    An answer counts once: one that is in two sketches is refused, also under another name.
    """
    if not sketches:
        raise InputError("there are no sketches to merge")
    first = sketches[0]
    keys: set[tuple[str, str, str]] = set()
    values: dict[tuple[float, ...], Entry] = {}
    for sketch in sketches:
        _check_same_question(first, sketch)
        for entry in sketch.entries:
            if entry.key in keys:
                raise InputError(f"{entry} is already merged")
            # Noise never comes out the same twice: equal numbers are one answer, renamed.
            if entry.values in values:
                raise InputError(
                    f"{entry} is already merged, as {values[entry.values]}: "
                    "the two are equal to the last digit"
                )
        keys |= {entry.key for entry in sketch.entries}
        values |= {entry.values: entry for entry in sketch.entries}
    return Sketch(first.query, tuple(e for s in sketches for e in s.entries), first.model)


def _check_same_question(one: Sketch, other: Sketch) -> None:
    for f in fields(one.query):
        ours, theirs = getattr(one.query, f.name), getattr(other.query, f.name)
        if ours != theirs:
            raise InputError(
                f"sketches of different queries cannot be merged: {f.name} is {_said(ours)} in "
                f"one and {_said(theirs)} in the other"
            )
    if one.model != other.model:
        ours, theirs = (repr(s.model) if s.model else "no model's name" for s in (one, other))
        raise InputError(
            f"sketches of different models cannot be merged: one has {ours} and the other {theirs}"
        )


def _said(parameter: Any) -> str:
    return str(list(parameter) if isinstance(parameter, tuple) else parameter)


def _whole(said: str, name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InputError(f"{said}: {name} must be a whole number from 1 to {most}, not {value!r}")


def _value(said: str, value: Any) -> float:
    # A source's sums are 64-bit whole numbers on the grid.
    fits = isinstance(value, (int, float)) and abs(value) <= 2**63 / GRID  # NaN does not
    if isinstance(value, bool) or not fits:
        raise InputError(f"{said}: {value!r} is no number that a source can answer")
    return float(value)


def _version() -> str:
    from privcal import __version__

    return __version__
