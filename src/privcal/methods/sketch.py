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
from privcal.methods.base import Answered, Ask, Batch, Method, Rounds, register
from privcal.scores import Scores
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

    def __post_init__(self) -> None:
        _ = self.reader  # fits the public rows: whatever is wrong with them is said now

    @cached_property
    def reader(self) -> SketchReader:
        return SketchReader.of(self.public)

    def run(self, batch: Batch) -> Rounds:
        reader = self.reader
        history = yield [Ask(reader.query, batch.nano_epsilon)]
        variance = noise_variance([(batch.nano_epsilon, batch.rows_per_person)] * history.sources)
        posterior = reader.read(history[0], history.sources, variance)
        maps: list[Map] = list(posterior.maps(reader.temperature))
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
