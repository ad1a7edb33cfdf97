"""The baselines: nothing, and one source (the paper has both, but does not say how it fits one)."""

from __future__ import annotations

from dataclasses import dataclass

from privcal.calibration.maps import TemperatureMap
from privcal.calibration.methods.base import Batch, Method, Rounds, register
from privcal.trusted.errors import InputError


@register("uncalibrated", order=1)
@dataclass(frozen=True)
class Uncalibrated(Method):
    """Asks nothing, changes nothing."""

    def run(self, batch: Batch) -> Rounds:
        yield from ()
        return [TemperatureMap(1.0)] * batch.runs


@register("one-source", order=2)
@dataclass(frozen=True)
class OneSource(Method):
    """The owner's own exact fit; it sends nothing, so no calibrator can ask for it."""

    def __post_init__(self) -> None:
        raise InputError(
            "one-source is an owner's exact fit on its own rows and never leaves it; "
            "the owner runs privcal fit with --bounds 0.5 3"
        )

    def run(self, batch: Batch) -> Rounds:
        raise NotImplementedError
