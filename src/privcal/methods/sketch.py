"""Sketch: one question, all of ε; a Bayesian model turns the answer into an increasing curve.

With `public`, the calibrator's own clean labelled scores, the prior knows where confidence was
right before the shift. Those rows get no privacy: the map depends on them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from privcal.maps import PRIOR_ONLY, Map
from privcal.methods.base import Answered, Ask, Batch, History, Method, Rounds, register
from privcal.scores import Scores
from privcal.sketch.offsets import OffsetsReader
from privcal.sketch.noise import noise_variance
from privcal.sketch.reader import SketchReader
from privcal.sketch.sketch import Sketch


@register("sketch")
@dataclass(frozen=True, eq=False)
class SketchMethod(Method):
    """Asks for a sketch, and reads it at once."""

    takes_public: ClassVar[bool] = True

    public: Scores | None = None
    """At least 50 clean labelled scores of the calibrator's own, which get no privacy."""

    class_offsets: bool = False
    """Whether each predicted class gets an offset of its own, asked for in two rounds."""

    def __post_init__(self) -> None:
        _ = self.reader  # fits the public rows: whatever is wrong with them is said now
        if self.class_offsets:
            _ = self.offsets

    @cached_property
    def offsets(self) -> OffsetsReader:
        return OffsetsReader.of(self.reader)

    @cached_property
    def reader(self) -> SketchReader:
        return SketchReader.of(self.public)

    def run(self, batch: Batch) -> Rounds:
        if self.class_offsets:
            return (yield from self._with_offsets(batch))
        reader = self.reader
        history = yield [Ask(reader.query, batch.nano_epsilon)]
        variance = noise_variance([(batch.nano_epsilon, batch.rows_per_person)] * history.sources)
        posterior = reader.read(history[0], history.sources, variance)
        maps: list[Map] = list(posterior.maps(reader.temperature))
        for run in (~posterior.informative).nonzero()[0]:
            maps[run] = maps[run].with_provenance(note=PRIOR_ONLY)
        return maps

    def _with_offsets(self, batch: Batch) -> Rounds:
        reader, half = self.offsets, batch.nano_epsilon // 2
        costs = batch.nano_epsilon - half, half

        def noise(round: int, history: History) -> tuple[int, float]:
            answers = [(costs[round], batch.rows_per_person)] * history.sources
            return history.sources, noise_variance(answers)

        history = yield [Ask(reader.query, costs[0])]
        queries = reader.correct(history[0], *noise(0, history))
        history = yield [Ask.of_runs(queries, costs[1])]
        posterior = reader.read(history[1], *noise(1, history))
        maps: list[Map] = list(reader.maps(queries, posterior))
        for run in (~posterior.informative).nonzero()[0]:
            maps[run] = maps[run].with_provenance(note=PRIOR_ONLY)
        return maps

    def sketch(self, answered: Sequence[Answered], **terms: Any) -> Sketch:
        [only] = answered
        return Sketch.of(
            self.reader.query,
            only.answers,
            nano_epsilon=only.nano_epsilon,
            reader=self.reader,
            **terms,
        )
