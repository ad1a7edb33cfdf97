"""The paper's two baselines."""

from __future__ import annotations

from dataclasses import dataclass

from privcal.errors import InputError
from privcal.maps import TemperatureMap
from privcal.methods.base import Batch, Rounds, register


@register("uncalibrated")
@dataclass(frozen=True)
class Uncalibrated:
    """Asks nothing, changes nothing."""

    def run(self, batch: Batch) -> Rounds:
        yield from ()
        return [TemperatureMap(1.0)] * batch.runs


@register("one-source")
@dataclass(frozen=True)
class OneSource:
    """The owner's own exact fit; it sends nothing, so no calibrator can ask for it."""

    def run(self, batch: Batch) -> Rounds:
        raise InputError(
            "one-source is an owner's exact fit on its own rows and never leaves it; "
            "the owner runs source.fit_local(), or privcal fit with --bounds 0.5 3"
        )
