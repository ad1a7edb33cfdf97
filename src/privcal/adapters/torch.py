"""A map as a module of PyTorch: it runs, trains on and ships with the model. Needs the extra `torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privcal.calibration.maps import (
    MOST_ODDS,
    TOLD_APART,
    BinsMap,
    CurveMap,
    Map,
    OffsetsMap,
    RiskMap,
    TemperatureMap,
)
from privcal.trusted.errors import InputError
from privcal.trusted.scores import LEAST, Kind

__all__ = ["MapModule"]


class MapModule(nn.Module):  # type: ignore[misc]
    """A map as a module: scores of classes in, calibrated probabilities of all classes out.

    Takes half, bfloat16, single and double precision; works in double precision and gives it, as
    `Map.predict_proba` does, and the same numbers. What the map consists of are buffers: they are in
    `state_dict`, move with `to(device)`, and stay double when the model is made half. Gradients pass to
    the scores (of bins none: they are level). Nothing is checked: a row with NaN gives NaN.

    Works under `torch.export`, `torch.compile`, and `torch.jit.script` where torch still has it. A map
    goes to ONNX by `privcal onnx`, with or without a model.

    Parameters
    ----------
    map
        The map.
    kind
        What the module is given: `logits` (n, m), or `probabilities` (n, m) or (n,) of class 1. By
        default logits; for a map that was made from probabilities it must be said.

    Examples
    --------
    >>> import torch
    >>> from privcal.torch import MapModule
    >>> module = MapModule(privcal.TemperatureMap(2.0))
    >>> module(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).numpy().round(3).tolist()
    [[0.731, 0.269], [0.378, 0.622]]
    >>> list(module.state_dict())
    ['map.temperature']
    """

    def __init__(self, map: Map, *, kind: Kind | None = None) -> None:
        super().__init__()
        kind = map.kind_given(kind)
        maker = _MODULES.get(type(map))
        if maker is None:
            raise InputError(
                f"a map of kind {map.kind!r} has no form as a module; the kinds that have one are "
                f"{', '.join(cls.kind for cls in _MODULES)}"
            )
        self.probabilities = kind == "probabilities"
        # A script knows a module's own numbers and defaults, but none of its file's.
        self.least, self.farthest = LEAST, float(np.finfo(np.float64).min)
        self.map = maker(map)

    def forward(self, scores: Tensor) -> Tensor:
        """Calibrated probabilities (n, m) of all classes."""
        return self._both(scores)[0]

    @torch.jit.export  # type: ignore[untyped-decorator]
    def confidence(self, scores: Tensor) -> Tensor:
        """The calibrated probability (n,) that the predicted class is right; see `Map.predict_proba`."""
        return self._both(scores)[1]

    def _both(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        x = scores.double()
        if self.probabilities:
            if x.dim() == 1:
                x = x.unsqueeze(1)
            if x.size(1) == 1:
                x = torch.cat([1 - x, x], dim=1)
        classes = torch.arange(x.size(1), device=x.device)
        predicted = x.argmax(dim=1, keepdim=True) == classes
        logits = x.clamp(min=self.least).log() if self.probabilities else x
        top = torch.where(predicted, logits, torch.zeros_like(logits)).sum(dim=1, keepdim=True)
        z = (logits - top).clamp(min=self.farthest)
        p, confidence = self.map(z, logits, predicted)
        return p, confidence

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # To another device, never to another type: half a digit of a knot would be another map.
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


# --- kinds of maps: from logits less the top one, logits, and which class is predicted -------------------


class _Kind(nn.Module):  # type: ignore[misc]
    numbers: tuple[str, ...] = ("temperature", "scores", "log_odds")
    """What of a map becomes buffers."""

    def __init__(self, map: Map) -> None:
        super().__init__()
        for name in self.numbers:
            self.register_buffer(name, _double(getattr(map, name)))


class _Temperature(_Kind):
    numbers = ("temperature",)

    def forward(self, z: Tensor, logits: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(z / self.temperature, dim=1)
        confidence = _at(p, predicted)
        return _on_top(p, confidence, predicted), confidence


class _Bins(nn.Module):  # type: ignore[misc]
    def __init__(self, map: BinsMap) -> None:
        super().__init__()
        values = [np.nan if value is None else value for value in map.values]
        self.register_buffer("values", _double(values))

    def forward(self, z: Tensor, logits: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        own = 1 / z.exp().sum(dim=1)
        bins = self.values.size(0)
        binned = self.values[(own.detach() * bins).long().clamp(max=bins - 1)]
        return _spread(logits, torch.where(binned.isnan(), own, binned), predicted)


class _Curve(_Kind):
    def forward(self, z: Tensor, logits: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        s = _compress(_log_odds(z, predicted, self.temperature), self.scores[-1])
        return _spread(logits, torch.sigmoid(_lines(s, self.scores, self.log_odds)), predicted)


class _Risk(_Kind):
    def __init__(self, map: RiskMap) -> None:
        super().__init__(map)
        self.register_buffer("event", torch.tensor(map.event))

    def forward(self, z: Tensor, logits: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        event = (torch.arange(z.size(1), device=z.device) == self.event).expand_as(z)
        s = _log_odds(z, event, self.temperature) + _at(z, event) / self.temperature
        s = _compress(_told_apart(s), self.scores[-1])
        s = -_compress(-s, -self.scores[0])
        risk = torch.sigmoid(_lines(s, self.scores, self.log_odds))
        share = torch.softmax(logits.masked_fill(event, -torch.inf), dim=1)
        rest = (1 - risk).unsqueeze(1)
        p = torch.where(event, risk.unsqueeze(1), share * rest)
        return p, p.amax(dim=1)


class _Offsets(_Kind):
    numbers = (*_Kind.numbers, "offsets", "corrected", "corrected_log_odds")

    def forward(self, z: Tensor, logits: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        s = _log_odds(z, predicted, self.temperature)
        s = torch.minimum(torch.maximum(s, self.scores[0]), self.scores[-1])
        offset = (predicted.double() * self.offsets).sum(dim=1)
        s = _lines(s, self.scores, self.log_odds) + offset
        s = _compress(s, self.corrected[-1])
        odds = _lines(s, self.corrected, self.corrected_log_odds)
        return _spread(logits, torch.sigmoid(odds), predicted)


_MODULES: dict[type[Map], Callable[[Any], nn.Module]] = {
    TemperatureMap: _Temperature,
    BinsMap: _Bins,
    CurveMap: _Curve,
    RiskMap: _Risk,
    OffsetsMap: _Offsets,
}


# --- pieces of maps; `privcal.maps` says why ------------------------------------------------------------------


def _double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _at(x: Tensor, chosen: Tensor) -> Tensor:
    """The value of the chosen class of each row."""
    return torch.where(chosen, x, torch.zeros_like(x)).sum(dim=1)


def _log_odds(z: Tensor, chosen: Tensor, temperature: Tensor) -> Tensor:
    """Less the logarithm of the other classes' sum; infinite where there are none."""
    others = (z / temperature).masked_fill(chosen, -torch.inf)
    return _told_apart(-torch.logsumexp(others, dim=1))


def _told_apart(s: Tensor, most: float = TOLD_APART) -> Tensor:
    return torch.where(s > most, torch.full_like(s, torch.inf), s)


def _compress(s: Tensor, last: Tensor, most: float = MOST_ODDS) -> Tensor:
    beyond = torch.clamp(s - last, 0.0, most)
    return torch.where(s > last, last + torch.log1p(beyond), s)


def _lines(s: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Straight lines through the points (x, y); the knot is counted, which ONNX can do too."""
    left = ((s.unsqueeze(1) >= x).sum(dim=1) - 1).clamp(0, x.size(0) - 2)
    slope = torch.diff(y) / torch.diff(x)
    return y[left] + slope[left] * (s - x[left])


def _spread(logits: Tensor, confidence: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    if logits.size(1) == 1:
        return torch.ones_like(logits), confidence
    share = torch.softmax(logits.masked_fill(predicted, -torch.inf), dim=1)
    rival = share.amax(dim=1)
    c = torch.maximum(confidence, rival / (1 + rival))
    p = share * (1 - c).unsqueeze(1)
    return _on_top(p, c, predicted), confidence


def _on_top(p: Tensor, own: Tensor, predicted: Tensor, last_bit: float = 2.0**-52) -> Tensor:
    """p with `own` for the predicted class, or a last bit more than a rival that is not below it."""
    rival = p.masked_fill(predicted, 0.0).amax(dim=1)
    own = torch.where(rival < own, own, rival + rival * last_bit)
    return torch.where(predicted, own.unsqueeze(1), p)
