"""Sketch: one question, all of ε; a Bayesian model turns the answer into an increasing curve.

With `public`, the calibrator's own clean labelled scores, the prior knows where confidence was
right before the shift. Those rows get no privacy: the map depends on them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from privcal.errors import InputError
from privcal.maps import Map
from privcal.methods.base import Ask, Batch, Rounds, register
from privcal.scores import Scores
from privcal.sketch.noise import UNCLEAR, noise_variance
from privcal.sketch.reading import Reading


@register("sketch")
@dataclass(frozen=True, eq=False)
class Sketch:
    public: Scores | None = None
    rows_per_person: int = 1
    """What the sources' policies say; their noise grows with it."""

    def __post_init__(self) -> None:
        rows = self.rows_per_person
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise InputError(f"rows_per_person must be a whole number of at least 1, not {rows!r}")

    @cached_property
    def reading(self) -> Reading:
        return Reading.of(self.public)

    def run(self, batch: Batch) -> Rounds:
        reading = self.reading
        history = yield [Ask(reading.query, batch.nano_epsilon)]
        variance = noise_variance([(batch.nano_epsilon, self.rows_per_person)] * history.sources)
        posterior = reading.read(history[0], history.sources, variance)
        maps: list[Map] = list(posterior.maps(reading.temperature))
        for run in (~posterior.clear).nonzero()[0]:
            maps[run] = maps[run].with_provenance(note=UNCLEAR)
        return maps
