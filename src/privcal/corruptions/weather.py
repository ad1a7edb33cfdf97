"""Snow, fog, and too much light."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privcal.corruptions.filters import directional_blur, truncate_levels, zoom_centre
from privcal.corruptions.random import CounterRng


def snow(
    x: Tensor,
    rng: CounterRng,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    share: float,
) -> Tensor:
    side = x.shape[1]
    layer = (rng.normal(side, side, 1) * deviation + mean).float()
    layer = zoom_centre(layer, zoom)
    layer = truncate_levels(layer.masked_fill(layer < threshold, 0.0) * 255.0)
    layer = directional_blur(layer, radius, sigma, rng.between(-0.75 * math.pi, -0.25 * math.pi))
    grey = x[..., 0:1] * 0.299 + x[..., 1:2] * 0.587 + x[..., 2:3] * 0.114
    pale = torch.maximum(x, grey * 1.5 + 127.5)
    return x * share + pale * (1.0 - share) + layer + layer.flip(1, 2)


def plasma(rng: CounterRng, side: int, decay: float) -> Tensor:
    """Clouds (n, side, side) in [0, 1], without seams: midpoints displaced, finer each time.

    A point is the mean of the four around it plus noise; the centres of squares come first,
    then the middles of their sides. Every point but the first is made once, so each takes its
    noise from its own place in one field.
    """
    noise = rng.between(-1.0, 1.0, side, side)
    cloud = torch.zeros_like(noise)
    step, wibble = side, 100.0
    while step >= 2:
        half, strength = step // 2, wibble * wibble
        corner = cloud[:, ::step, ::step]
        beside, below = corner.roll(-1, 2), corner.roll(-1, 1)
        around = corner + beside + below + beside.roll(-1, 1)
        centre = around * 0.25 + noise[:, half::step, half::step] * strength
        top = (corner + beside + centre + centre.roll(1, 1)) * 0.25
        left = (corner + below + centre + centre.roll(1, 2)) * 0.25
        cloud[:, half::step, half::step] = centre
        cloud[:, ::step, half::step] = top + noise[:, ::step, half::step] * strength
        cloud[:, half::step, ::step] = left + noise[:, half::step, ::step] * strength
        step, wibble = half, wibble / decay
    cloud -= cloud.amin(dim=(1, 2), keepdim=True)
    return cloud / cloud.amax(dim=(1, 2), keepdim=True)


def fog(x: Tensor, rng: CounterRng, thickness: float, decay: float) -> Tensor:
    cloud = plasma(rng, x.shape[1], decay).float()[..., None]
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    scale = brightest / (brightest + 255.0 * thickness)
    return (x + cloud * (255.0 * thickness)) * scale


def brightness(x: Tensor, rng: CounterRng, added: float) -> Tensor:
    """Hue and saturation stay, so a colour grows as its largest channel does; black turns grey."""
    value = x.amax(dim=3, keepdim=True)
    brighter = (value + 255.0 * added).clamp(max=255.0)
    return torch.where(value > 0.0, x * (brighter / value.clamp(min=1.0)), brighter)
