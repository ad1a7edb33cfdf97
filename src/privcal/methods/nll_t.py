"""NLL-T: the temperature of least (clipped) negative log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from privcal.checks import number
from privcal.methods.base import Batch, Rounds, register
from privcal.methods.search import TemperatureSearch
from privcal.queries import Nll


@register("nll-t", order=5)
@dataclass(frozen=True)
class NllT(TemperatureSearch):
    """Asks for the log loss, each row's clipped at `clip`, and makes it small."""

    clip: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clip", Nll(clip=number("clip", self.clip)).clip)

    def run(self, batch: Batch) -> Rounds:
        return (yield from self.least(batch, Nll(clip=self.clip), lambda nll: nll[:, 0]))
