"""NLL-T: the temperature of least (clipped) negative log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from privcal.calibration.methods.base import register
from privcal.calibration.methods.search import TemperatureSearch
from privcal.trusted.checks import number
from privcal.trusted.queries import Nll
from privcal.trusted.scores import FloatArray


@register("nll-t", order=5)
@dataclass(frozen=True)
class NllT(TemperatureSearch):
    """Asks for the log loss, each row's clipped at `clip`, and makes it small."""

    clip: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clip", Nll(clip=number("clip", self.clip)).clip)

    @property
    def query(self) -> Nll:
        return Nll(clip=self.clip)

    def value(self, average: FloatArray) -> FloatArray:
        return average[:, 0]
