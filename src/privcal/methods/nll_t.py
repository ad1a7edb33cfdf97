"""NLL-T: the temperature of least (clipped) negative log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from privcal.maps import TemperatureMap
from privcal.methods.base import Batch, Rounds, register
from privcal.methods.search import Search
from privcal.queries import Nll


@register("nll-t")
@dataclass(frozen=True)
class NllT(Search):
    clip: float = 10.0

    def run(self, batch: Batch) -> Rounds:
        found = yield from self.least(batch, Nll(clip=self.clip), lambda nll: nll[:, 0])
        return [TemperatureMap(t) for t in found]
