"""Sketch: one question, all of ε; a Bayesian model turns the answer into an increasing curve.

With `public`, the calibrator's own clean labelled scores, the prior knows where confidence was
right before the shift. Those rows get no privacy: the map depends on them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from privcal.calibration.maps import CurveMap, Map, OffsetsMap, RiskMap
from privcal.calibration.methods.base import (
    Ask,
    Batch,
    History,
    Method,
    Plan,
    Rounds,
    register,
)
from privcal.calibration.sketch import prior
from privcal.calibration.sketch.offsets import OffsetsReader, costs
from privcal.calibration.sketch.reader import SketchReader
from privcal.calibration.sketch.sketch import Sketch
from privcal.data.scores import Scores
from privcal.secure.round import Round
from privcal.trusted.errors import InputError


@register("sketch")
@dataclass(frozen=True, eq=False)
class SketchMethod(Method):
    """Asks for a sketch, and reads it at once."""

    takes_public: ClassVar[bool] = True

    public: Scores | None = None
    """At least 50 clean labelled scores of the calibrator's own, which get no privacy."""
    event: int | None = None
    """A class: the map then corrects the risk of that class, not the trust in the predicted one."""
    rows_per_source: float | None = None
    """A guess of how many rows a source has; with it, ε and the number of sources it is decided how
    finely to ask. By default what is publicly known, else 30."""
    hats: int | None = None
    """How finely to ask, whatever the guess: so many hats. Only sketches of equally many merge."""
    unchanged: float | None = None
    """How probable it is, before anybody is asked, that nothing changed: 0 is never. By default 0.3
    with public rows, 0.25 for an event, 0.5 with leave_alone, otherwise 0."""
    leave_alone: bool = False
    """For a model in use: keep it as it is where it may well be that nothing changed."""
    class_offsets: bool = False
    """Whether each predicted class gets an offset of its own, asked for in two rounds. Under a shift
    the Brier score falls, by a sixth with ten classes, and the ECE rises by about .005. Needs public
    rows and a resolution of 100 (rows of a source, times ε, times the root of half the sources)."""

    def __post_init__(self) -> None:
        if self.rows_per_source is not None and not self.rows_per_source > 0:
            raise InputError(f"rows_per_source must be above 0, not {self.rows_per_source}")
        self._knots(0.0)
        _ = self._finest  # fits the public rows: whatever is wrong with them is said now
        if self.class_offsets:
            self._check_offsets()

    @cached_property
    def _finest(self) -> SketchReader:
        return SketchReader.of(
            self.public,
            event=self.event,
            unchanged=self.unchanged,
            leave_alone=self.leave_alone,
        )

    @cached_property
    def _readers(self) -> dict[tuple[float, ...], SketchReader]:
        """By their knots: a study asks hundreds of times at the same ones."""
        return {self._finest.query.knots: self._finest}

    def _knots(self, resolution: float) -> tuple[float, ...]:
        kind = self.public is not None, self.event is not None
        return prior.knots(*kind, resolution, self.hats)

    def _resolution(self, batch: Batch) -> float:
        rows = self.rows_per_source or batch.rows_per_source or prior.ROWS_PER_SOURCE
        return prior.resolution(rows, batch.noise.variance(batch.nano_epsilon, batch.sources))

    def reader(self, batch: Batch) -> SketchReader:
        """What asks and reads: as finely as pays, by what is publicly known."""
        return self._at(self._knots(self._resolution(batch)))

    def _at(self, knots: tuple[float, ...]) -> SketchReader:
        if knots not in self._readers:
            self._readers[knots] = self._finest.at(knots)
        return self._readers[knots]

    def plan(self, batch: Batch) -> Plan:
        if self.class_offsets:
            offsets = OffsetsReader.of(self._finest, self._resolution(batch))
            first, second = costs(batch.nano_epsilon)
            asks = [Ask(offsets.query, first)], [Ask(offsets.unchanged, second)]
            return Plan(asks, (OffsetsMap,))
        made = CurveMap if self.event is None else RiskMap
        return Plan([[Ask(self.reader(batch).query, batch.nano_epsilon)]], (made,))

    def run(self, batch: Batch) -> Rounds:
        if self.class_offsets:
            return (yield from self._with_offsets(batch))
        reader = self.reader(batch)
        history = yield [Ask(reader.query, batch.nano_epsilon)]
        variance = history.variance(batch.nano_epsilon)
        posterior = reader.reread(history[0], history.independent, variance)
        maps: list[Map] = list(reader.maps(posterior, directions=batch.runs == 1))
        return maps

    def _check_offsets(self) -> None:
        given = {"event": self.event, "hats": self.hats, "leave_alone": self.leave_alone or None}
        for name, value in given.items():
            if value is not None:
                raise InputError(f"class_offsets cannot be had together with {name}")
        OffsetsReader.check(self._finest)

    def _with_offsets(self, batch: Batch) -> Rounds:
        reader = OffsetsReader.of(self._finest, self._resolution(batch))
        first, second = costs(batch.nano_epsilon)

        def noise(cost: int, history: History) -> tuple[int, float]:
            return history.independent, history.variance(cost)

        history = yield [Ask(reader.query, first)]
        queries = reader.corrected(history[0], *noise(first, history))
        history = yield [Ask.of_runs(queries, second)]
        # Whoever left in between is gone from the first averages too, but what they led to is asked.
        return reader.maps(queries, history[1], *noise(second, history))

    def sketch(self, answered: Sequence[Round], **terms: Any) -> Sketch | None:
        if self.class_offsets:
            return None  # the score is this run's own: no other sketch asks the same
        [only] = answered
        assert isinstance(only.query, type(self._finest.query))
        return Sketch.of(
            only.query,
            only.answers,
            nano_epsilon=only.question.nano_epsilon,
            total=only.total,
            reader=self._at(only.query.knots),
            **terms,
        )
