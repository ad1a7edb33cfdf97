"""Strength of each corruption: its constants at severities 1 to 5, for each image size.

They are those of the published CIFAR-10-C (32 pixels) and Tiny-ImageNet-C (64 pixels).
"""

from __future__ import annotations

Constants = tuple[float, ...]
SIDES = (32, 64)


def _each(*values: float) -> tuple[Constants, ...]:
    return tuple((value,) for value in values)


_SNOW = (
    (0.1, 0.2, 1.0, 0.6, 8, 3),
    (0.1, 0.2, 1.0, 0.5, 10, 4),
    (0.15, 0.3, 1.75, 0.55, 10, 4),
    (0.25, 0.3, 2.25, 0.6, 12, 6),
    (0.3, 0.3, 1.25, 0.65, 14, 12),
)


def _snow(*mixes: float) -> tuple[Constants, ...]:
    """Constants of snow; only how much of the image shows through depends on the size."""
    return tuple((*rest, mix) for rest, mix in zip(_SNOW, mixes, strict=True))


TABLE: dict[str, tuple[tuple[Constants, ...], tuple[Constants, ...]]] = {
    # standard deviation
    "gaussian_noise": (
        _each(0.04, 0.06, 0.08, 0.09, 0.10),
        _each(0.04, 0.08, 0.12, 0.15, 0.18),
    ),
    # photons at full brightness
    "shot_noise": (_each(500, 250, 100, 75, 50), _each(250, 100, 50, 30, 15)),
    # share of values replaced
    "impulse_noise": (
        _each(0.01, 0.02, 0.03, 0.05, 0.07),
        _each(0.01, 0.02, 0.05, 0.08, 0.14),
    ),
    # radius of the disk, standard deviation that softens its rim
    "defocus_blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    ),
    # standard deviation, reach, passes
    "glass_blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    ),
    # radius, standard deviation
    "motion_blur": (
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    ),
    # where the zoom factors end
    "zoom_blur": (_each(1.06, 1.11, 1.16, 1.21, 1.26), _each(1.06, 1.11, 1.16, 1.21, 1.26)),
    # mean, standard deviation, zoom, threshold, radius, its standard deviation, share of the image
    "snow": (_snow(0.95, 0.9, 0.9, 0.85, 0.8), _snow(0.8, 0.8, 0.7, 0.65, 0.6)),
    # weight of the image, weight of the frost
    "frost": (
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    ),
    # thickness, decay of the detail
    "fog": (
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    ),
    # added value
    "brightness": (_each(0.05, 0.1, 0.15, 0.2, 0.3), _each(0.1, 0.2, 0.3, 0.4, 0.5)),
    # contrast left
    "contrast": (_each(0.75, 0.5, 0.4, 0.3, 0.15), _each(0.4, 0.3, 0.2, 0.1, 0.05)),
    # displacement, its smoothness, shift of the three points; all in units of the side
    "elastic_transform": (
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
    ),
    # size left
    "pixelate": (_each(0.95, 0.9, 0.85, 0.75, 0.65), _each(0.9, 0.8, 0.7, 0.6, 0.5)),
    # quality
    "jpeg_compression": (_each(80, 65, 58, 50, 40), _each(65, 58, 50, 40, 25)),
}


def constants(name: str, severity: int, side: int) -> Constants:
    return TABLE[name][SIDES.index(side)][severity - 1]
