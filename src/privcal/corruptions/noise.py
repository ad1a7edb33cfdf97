"""Gaussian, shot and impulse noise."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from privcal.corruptions.random import CounterRng


def gaussian_noise(x: Tensor, rng: CounterRng, deviation: float) -> Tensor:
    return x + (rng.normal(*x.shape[1:]) * (255.0 * deviation)).float()


@lru_cache(maxsize=16)
def poisson_table(photons: float) -> Tensor:
    """Row v: P(at most 0, 1, 2, ... photons) at level v, in float64 on the CPU."""
    most = math.ceil(photons + 10.0 * math.sqrt(photons) + 20.0)
    rate = torch.arange(256, dtype=torch.float64)[:, None] * (photons / 255.0)
    count = torch.arange(most + 1, dtype=torch.float64)
    log = torch.xlogy(count, rate) - rate - torch.lgamma(count + 1.0)
    table = log.exp().cumsum(dim=1).clamp_(max=1.0)
    table[:, -1] = 1.0
    return table


def shot_noise(x: Tensor, rng: CounterRng, photons: float) -> Tensor:
    """Photon counts by inversion: of 256 levels only, so one search in all their tables, end to end."""
    table = poisson_table(photons)
    each = table.shape[1]
    table = (table + torch.arange(256, dtype=torch.float64)[:, None]).reshape(-1).to(x.device)
    # Short of 1, or the sum with the level could round up into the next level's table.
    uniform = rng.uniform(*x.shape[1:]).clamp_(max=1.0 - 2.0**-40)
    count = torch.searchsorted(table, uniform.add_(x), right=True) - x.long() * each
    return count.float() * (255.0 / photons)


def impulse_noise(x: Tensor, rng: CounterRng, share: float) -> Tensor:
    uniform = rng.uniform(*x.shape[1:])
    return x.masked_fill(uniform < share, 255.0).masked_fill(uniform < share / 2.0, 0.0)
