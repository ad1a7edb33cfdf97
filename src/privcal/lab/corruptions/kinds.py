"""The fifteen corruptions: noise, blur, weather with its frost, and what a computer does to images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privcal.lab.corruptions.filters import (
    NUDGE,
    CounterRng,
    border_index,
    directional_blur,
    gather_pixels,
    gaussian_blur,
    gaussian_weights,
    sample_bilinear,
    truncate_levels,
    zoom_centre,
)
from privcal.lab.images.sets import list_image_files, open_image
from privcal.trusted.errors import InputError

# --- Gaussian, shot and impulse noise -------------------------------------------------------------


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


# --- Defocus, frosted glass, motion and zoom ------------------------------------------------------


def _disk(radius: float, softness: float) -> npt.NDArray[np.float64]:
    """A flat disk on the grid −4 to 4, its rim softened by a Gaussian three pixels wide."""
    grid = np.arange(-4, 5)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float64)
    disk /= disk.sum()
    before, middle, after = gaussian_weights(softness, 1)
    for axis in (0, 1):  # a radius is at most 3, so only zeros are rolled around
        disk = before * np.roll(disk, -1, axis) + middle * disk + after * np.roll(disk, 1, axis)
    return disk


def defocus_blur(x: Tensor, rng: CounterRng, radius: float, softness: float) -> Tensor:
    kernel, side = _disk(radius, softness), x.shape[1]
    reach = border_index(torch.arange(-4, side + 4, device=x.device), side, "mirror")
    wide = x.index_select(1, reach).index_select(2, reach)
    total = torch.zeros_like(x)
    for row, column in zip(*np.nonzero(kernel), strict=True):
        weight = float(kernel[row, column])
        total += wide[:, row : row + side, column : column + side] * weight
    return total


def glass_blur(x: Tensor, rng: CounterRng, sigma: float, reach: float, passes: float) -> Tensor:
    x = truncate_levels(gaussian_blur(x, sigma, 4.0, "edge"))
    for _ in range(int(passes)):
        x = gather_pixels(x, *_copy_sources(x, rng, int(reach)))
    return gaussian_blur(x, sigma, 4.0, "edge")


def _copy_sources(x: Tensor, rng: CounterRng, reach: int) -> tuple[Tensor, Tensor]:
    """Row and column that each pixel's colour comes from in one pass of copying.

    Pixels are taken one after another, from the lower right to the upper left, and each copies
    one near it: as it was, or as an earlier copy left it. That makes chains. Rather than walk
    them, every pixel points at what it copies, and pointers are followed twice as far each time.
    """
    n, side = x.shape[:2]
    pixels = side * side
    low, high = reach + 1, side - reach + 1  # the rows and columns that copy
    step = rng.whole(-reach, reach, 2, high - low, high - low)
    grid = torch.arange(low, high, device=x.device)
    pointer = torch.arange(pixels, device=x.device).reshape(side, side).repeat(n, 1, 1)
    own = pointer[:, low:high, low:high].clone()
    source = (grid[:, None] + step[:, 0]) * side + grid + step[:, 1]
    # Below `pixels` a pointer is to a pixel as copied, from there on to one before the pass.
    pointer += pixels
    pointer[:, low:high, low:high] = torch.where(source > own, source, source + pixels)
    pointer = pointer.reshape(n, pixels)
    if reach > 1:  # a reach of 1 is up and left only: nothing there has been copied to yet
        for _ in range(math.ceil(math.log2(pixels))):
            further = pointer.gather(1, pointer.clamp(max=pixels - 1))
            pointer = torch.where(pointer < pixels, further, pointer)
    origin = (pointer - pixels).reshape(n, side, side)
    return torch.div(origin, side, rounding_mode="floor"), torch.remainder(origin, side)


def motion_blur(x: Tensor, rng: CounterRng, radius: float, sigma: float) -> Tensor:
    return directional_blur(x, radius, sigma, rng.between(-math.pi / 4, math.pi / 4))


def zoom_blur(x: Tensor, rng: CounterRng, stop: float) -> Tensor:
    factors = np.arange(1.0, stop, 0.01)
    n, side = x.shape[:2]
    # As one image of many channels: rows and columns are then copied in long runs.
    x = x.permute(1, 2, 0, 3).reshape(1, side, side, 3 * n)
    total = x.clone()
    for factor in factors:
        total += zoom_centre(x, float(factor))
    total *= 1.0 / (len(factors) + 1)
    return total.reshape(side, side, n, 3).permute(2, 0, 1, 3)


# --- Snow, fog, and too much light ----------------------------------------------------------------


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


# --- Contrast, elastic warps and coarse pixels ----------------------------------------------------


def contrast(x: Tensor, rng: CounterRng, left: float) -> Tensor:
    pixels = x.shape[1] * x.shape[2]
    # A sum of whole numbers has no rounding, whatever its order.
    mean = (x.long().sum(dim=(1, 2), keepdim=True).double() * (1.0 / pixels)).float()
    return (x - mean) * left + mean


def elastic_transform(
    x: Tensor, rng: CounterRng, strength: float, smoothness: float, shift: float
) -> Tensor:
    side = x.shape[1]
    grid = torch.arange(side, dtype=torch.float64, device=x.device)
    rows, columns = grid[:, None].expand(side, side), grid.expand(side, side)
    x = sample_bilinear(x, *_affine(rng, side, shift * side, rows, columns), "mirror")
    if strength == 0:
        return x
    field = rng.between(-1.0, 1.0, side, side, 2)
    field = gaussian_blur(field, smoothness * side, 3.0, "reflect") * (strength * side)
    return sample_bilinear(x, rows + field[..., 1], columns + field[..., 0], "reflect")


def _affine(
    rng: CounterRng, side: int, shift: float, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions that each output pixel reads, if three points move by up to `shift` each way."""
    centre, s = side // 2, side // 3
    old = torch.tensor(
        [[centre + s, centre + s], [centre + s, centre - s], [centre - s, centre - s]],
        dtype=torch.float64,
        device=rows.device,
    )  # (x, y) each
    new = old + rng.between(-shift, shift, 3, 2)
    # In the basis of the new points' sides a pixel has coordinates (a, b); the old point with
    # the same coordinates in the basis of the old sides is what it reads.
    x0, y0 = (new[:, 0, i, None, None] for i in (0, 1))
    x1, y1 = (new[:, 1, i, None, None] - new[:, 0, i, None, None] for i in (0, 1))
    x2, y2 = (new[:, 2, i, None, None] - new[:, 0, i, None, None] for i in (0, 1))
    area = x1 * y2 - x2 * y1
    right, down = columns - x0, rows - y0
    a = (right * y2 - down * x2) / area
    b = (down * x1 - right * y1) / area
    # The old sides: from the first point, straight up by 2s, and up and left by 2s.
    return old[0, 1] - (a + b) * (2 * s), old[0, 0] - b * (2 * s)


def pixelate(x: Tensor, rng: CounterRng, left: float) -> Tensor:
    side = x.shape[1]
    small = int(side * left)
    for size in (small, side):
        x = _box_resize(x.movedim(2, 3), size).movedim(3, 2)  # Pillow's order: along the rows first
        x = _box_resize(x.movedim(1, 3), size).movedim(3, 1)
    return x.float()


def _box_resize(x: Tensor, size: int) -> Tensor:
    """The last dimension resized to `size` as Pillow does: means over boxes, in whole levels.

    Pillow's weights are multiples of 2⁻²². The products are whole numbers below 2⁵³, so this
    matrix product has no rounding.
    """
    given = x.shape[-1]
    scale = given / size
    support = 0.5 * max(scale, 1.0)
    weights = torch.zeros(given, size, dtype=torch.float64)
    for i in range(size):
        centre = (i + 0.5) * scale
        low, high = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), given)
        inside = [j for j in range(low, high) if -0.5 < (j - centre + 0.5) / max(scale, 1.0) <= 0.5]
        weights[inside, i] = float(int(0.5 + 2**22 / len(inside)))
    total = x.double() @ weights.to(x.device)
    return ((total + 2.0**21) * 2.0**-22).floor_()


# --- JPEG compression and back, as libjpeg does by default, without the lossless middle -----------
# Baseline, chroma halved both ways, integer transforms. All numbers are whole and below 2⁵³, so
# float64 holds them exactly and matrix products do not round.

# Annex K of the standard: quantisation steps of brightness and of colour at quality 50.
_BRIGHTNESS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_COLOUR = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)

# Sixteen-bit fractions: of red, green and blue in each of Y, Cb, Cr, and what is added.
_TO_YCC = (
    ((19595, 38470, 7471), 32768),
    ((-11059, -21709, 32768), (128 << 16) + 32767),
    ((32768, -27439, -5329), (128 << 16) + 32767),
)


def _steps(table: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = [[min(max((s * scale + 50) // 100, 1), 255) for s in row] for row in table]
    return torch.tensor(steps, dtype=torch.float64)


@lru_cache(maxsize=1)
def _cosines() -> Tensor:
    """The 8-point transform of Loeffler, Ligtenberg and Moschytz in 13-bit fractions.

    Their flow graph is linear, so it is a matrix; but its entries are sums of the graph's
    rounded constants, which differ in the last bit from the rounded cosines.
    """

    def fixed(constant: float) -> int:
        return round(constant * 8192)

    one, half = 8192, fixed(0.541196100)
    # From the sums of mirrored samples (0+7, 1+6, 2+5, 3+4) ...
    wide, narrow = half + fixed(0.765366865), half - fixed(1.847759065)
    even = {
        0: (one, one, one, one),
        2: (wide, half, -half, -wide),
        4: (one, -one, -one, one),
        6: (half, narrow, -narrow, -half),
    }
    # ... and from their differences (0−7, 1−6, 2−5, 3−4). `all_` is in every entry; `ends`,
    # `middle`, `near` and `far` each in those of two samples.
    all_ = fixed(1.175875602)
    ends, middle = fixed(0.899976223), fixed(2.562915447)
    near, far = fixed(1.961570560), fixed(0.390180644)
    odd = {
        1: (fixed(1.501321110) + all_ - ends - far, all_, all_ - far, all_ - ends),
        3: (all_, fixed(3.072711026) + all_ - middle - near, all_ - middle, all_ - near),
        5: (all_ - far, all_ - middle, fixed(2.053119869) + all_ - middle - far, all_),
        7: (all_ - ends, all_ - near, all_, fixed(0.298631336) + all_ - ends - near),
    }
    rows = [
        (*even[k], *even[k][::-1]) if k in even else (*odd[k], *(-v for v in odd[k][::-1]))
        for k in range(8)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _descale(x: Tensor, bits: int) -> Tensor:
    return ((x + 2.0 ** (bits - 1)) * 2.0**-bits).floor_()


def _quantise(plane: Tensor, steps: Tensor) -> Tensor:
    """A plane (n, height, width) of levels, after its 8×8 blocks were quantised and restored."""
    n, height, width = plane.shape
    forward, steps = _cosines().to(plane.device), steps.to(plane.device)
    back = forward.T.contiguous()
    blocks = plane.reshape(n, height // 8, 8, width // 8, 8).transpose(2, 3) - 128.0
    # Along rows, then columns; two bits more than whole numbers in between.
    waves = _descale(forward @ _descale(blocks @ back, 11), 15)  # eight times the transform
    whole = ((waves.abs() + steps * 4.0) / (steps * 8.0)).floor_() * waves.sign()
    waves = whole * steps
    blocks = _descale(_descale(back @ waves, 11) @ forward, 18) + 128.0
    return blocks.clamp_(0.0, 255.0).transpose(2, 3).reshape(n, height, width)


def _halve(plane: Tensor) -> Tensor:
    """Means of 2×2 pixels; halves are rounded down and up by turns, so as not to drift."""
    total = plane[:, ::2, ::2] + plane[:, 1::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, 1::2]
    turn = 1.0 + torch.arange(total.shape[2], device=plane.device) % 2
    return ((total + turn) * 0.25).floor_()


def _double(plane: Tensor) -> Tensor:
    """A plane of twice the size: three parts of the nearest sample, one of the next, each way."""
    n, height, width = plane.shape
    above = torch.cat([plane[:, :1], plane[:, :-1]], dim=1)
    below = torch.cat([plane[:, 1:], plane[:, -1:]], dim=1)
    tall = torch.stack([plane * 3.0 + above, plane * 3.0 + below], dim=2)
    tall = tall.reshape(n, 2 * height, width)
    before = torch.cat([tall[..., :1], tall[..., :-1]], dim=2)
    after = torch.cat([tall[..., 1:], tall[..., -1:]], dim=2)
    wide = torch.stack([tall * 3.0 + before + 8.0, tall * 3.0 + after + 7.0], dim=3)
    return (wide * 0.0625).floor_().reshape(n, 2 * height, 2 * width)


def jpeg_compression(x: Tensor, rng: CounterRng, quality: float) -> Tensor:
    red, green, blue = x.double().unbind(dim=3)
    y, cb, cr = (
        ((red * r + green * g + blue * b + added) * 2.0**-16).floor_()
        for (r, g, b), added in _TO_YCC
    )
    colour = _steps(_COLOUR, int(quality))
    y = _quantise(y, _steps(_BRIGHTNESS, int(quality)))
    cb = _double(_quantise(_halve(cb), colour)) - 128.0
    cr = _double(_quantise(_halve(cr), colour)) - 128.0
    red = y + _descale(cr * 91881.0, 16)
    green = y + _descale(cb * -22554.0 - cr * 46802.0, 16)
    blue = y + _descale(cb * 116130.0, 16)
    return torch.stack([red, green, blue], dim=3).clamp_(0.0, 255.0).float()


# --- Frost on a window: a crop of an image of frost laid over the image ---------------------------

SHRINKING = {32: 0.2, 64: 0.3}
"""Factor by which images of frost are shrunk, for each image size."""
FROST_IMAGES = 5
"""The published files use the first five photographs only."""


@dataclass(frozen=True)
class PackedFrost:
    """Shrunk images of frost, of several sizes, with their pixels end to end."""

    pixels: Tensor  # (all, 3) float32
    heights: Tensor
    widths: Tensor
    starts: Tensor


def read_frost(folder: Path) -> list[Tensor]:
    """The PNG and JPEG files in a folder, in the order of their names, (h, w, 3) uint8 each."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} with images of frost")
    images = []
    for name in list_image_files(folder, (".png", ".jpg", ".jpeg")):
        with open_image(folder / name) as image:
            images.append(torch.from_numpy(np.array(image.convert("RGB"))))
    if not images:
        raise InputError(f"{folder} holds no PNG or JPEG file of frost")
    return images


def shrink(image: Tensor, factor: float) -> Tensor:
    """An image of frost at `factor` of its size: bilinear samples, not smoothed first."""
    for dim in (0, 1):
        size = image.shape[dim]
        count = round(size * factor)
        position = (torch.arange(count, dtype=torch.float64) + 0.5) / factor - 0.5
        position = position.clamp(0.0, size - 1.0)
        # To a millionth, or 5i + 2 could come out a hair below and count as the pixel before.
        low = (position + 1e-6).floor().long()
        weight = (position - low).float().reshape([-1 if d == dim else 1 for d in range(3)])
        first = image.index_select(dim, low).float()
        second = image.index_select(dim, (low + 1).clamp(max=size - 1)).float()
        image = first + (second - first) * weight
    return (image + (0.5 + NUDGE)).floor()  # exact halves are common: weights are sixths


def pack_frost(images: Sequence[Tensor] | None, side: int, device: torch.device) -> PackedFrost:
    small = _shrink_drawn(side) if images is None else _shrink_given(images, side)
    sizes = torch.tensor([image.shape[:2] for image in small], device=device)
    areas = sizes[:, 0] * sizes[:, 1]
    pixels = torch.cat([image.reshape(-1, 3) for image in small]).to(device)
    return PackedFrost(pixels, sizes[:, 0], sizes[:, 1], areas.cumsum(0) - areas)


@lru_cache(maxsize=2)
def _shrink_drawn(side: int) -> list[Tensor]:
    return [shrink(image, SHRINKING[side]) for image in drawn_frost()]


def _shrink_given(images: Sequence[Tensor], side: int) -> list[Tensor]:
    if not images:
        raise InputError("frost needs at least one image; without any, leave `frost` out")
    small = []
    for number, image in enumerate(images[:FROST_IMAGES], start=1):
        if image.dim() != 3 or image.shape[2] != 3 or image.dtype != torch.uint8:
            raise InputError(f"frost image {number} must be (height, width, 3) of uint8")
        least = min(round(size * SHRINKING[side]) for size in image.shape[:2])
        if least < side:
            raise InputError(
                f"frost image {number} is {image.shape[1]} by {image.shape[0]} pixels; "
                f"shrunk by {SHRINKING[side]} it must still be {side} by {side}"
            )
        small.append(shrink(image.cpu(), SHRINKING[side]))
    return small


def frost(
    x: Tensor, rng: CounterRng, image_weight: float, frost_weight: float, images: PackedFrost
) -> Tensor:
    side = x.shape[1]
    choice, down, right = rng.uniform(3).unbind(dim=1)
    which = (choice * len(images.starts)).long()
    width = images.widths[which]
    # One offset short of the last that would fit, as published.
    top = (down * (images.heights[which] - side).clamp(min=1)).long()
    left = (right * (width - side).clamp(min=1)).long()
    grid = torch.arange(side, device=x.device)
    corner = images.starts[which] + top * width + left
    index = corner[:, None, None] + grid[:, None] * width[:, None, None] + grid
    return x * image_weight + images.pixels[index] * frost_weight


# --- Five drawn images of frost on a window, for those who have no photographs --------------------
# Ice ferns are strokes that branch at about 60 degrees, three times over; between them lies a
# rough film of ice. The images are the same everywhere: random numbers are counted, not seeded by
# a library.

HEIGHT, WIDTH = 600, 1000
LEVELS = ((131.0, 43.0), (207.0, 23.0), (207.0, 23.0), (152.0, 31.0), (123.0, 44.0))
"""Mean and standard deviation of each image's levels: those of the five published photographs."""

_DARK = (0.80, 0.98, 1.22)
_LIGHT = (0.96, 1.00, 1.03)
"""Red, green and blue relative to grey, where there is little ice and where there is much."""


@lru_cache(maxsize=1)
def drawn_frost() -> list[Tensor]:
    """Five images, (600, 1000, 3) uint8 each."""
    return [
        _draw(CounterRng("crystals", number, 0, torch.zeros(1).long()), *levels)
        for number, levels in enumerate(LEVELS)
    ]


def _draw(rng: CounterRng, mean: float, deviation: float) -> Tensor:
    cover = _clouds(rng, (2, 3))  # where the ice is thick
    film = 1.0 - (2.0 * _clouds(rng, (12, 25, 50, 100)) - 1.0).abs()  # ridges
    fine = _clouds(rng, (100, 200, 400))
    grain = rng.normal(HEIGHT, WIDTH)[0]
    ferns = _ferns(rng)
    ice = 0.9 * cover + ferns * (0.35 + 1.15 * cover) + 0.45 * (film**3) * cover + 0.35 * fine
    ice += grain * (0.05 + 0.1 * ferns)
    level = (ice - ice.mean()) * (deviation / ice.std()) + mean
    share = (level * (1 / 255.0)).clamp(0.0, 1.0)[..., None]
    tint = torch.tensor(_DARK) * (1.0 - share) + torch.tensor(_LIGHT) * share
    return (level[..., None] * tint).clamp(0.0, 255.0).to(torch.uint8)


def _clouds(rng: CounterRng, cells: tuple[int, ...]) -> Tensor:
    """Smooth noise in [0, 1]: `cells` spots across the width, each finer scale half as strong."""
    total, strength = torch.zeros(HEIGHT, WIDTH).double(), 1.0
    for across in cells:
        down = max(2, across * HEIGHT // WIDTH)
        spots = rng.uniform(down + 1, across + 1)[0]
        for dim, size in ((0, HEIGHT), (1, WIDTH)):
            position = torch.arange(size).double() * ((spots.shape[dim] - 1) / size)
            low = position.long()
            weight = position - low
            weight = weight * weight * (3.0 - 2.0 * weight)
            first, second = spots.index_select(dim, low), spots.index_select(dim, low + 1)
            spots = first + (second - first) * (weight[:, None] if dim == 0 else weight)
        total += spots * strength
        strength *= 0.6
    total -= total.min()
    return total / total.max()


def _ferns(rng: CounterRng) -> Tensor:
    """The amount of crystal at each pixel, in [0, 1]."""
    stems = int(rng.whole(45, 80))  # some windows are frosted more densely than others
    start = rng.uniform(stems, 2)[0] * torch.tensor([HEIGHT * 1.0, WIDTH * 1.0])
    angle = rng.between(-math.pi, math.pi, stems)[0]
    length = rng.between(80.0, 340.0, stems)[0]
    canvas = torch.zeros(HEIGHT, WIDTH).double()
    # For each generation: spacing and length of its branches, its own strength and thickness.
    for spacing, share, strength, thick in ((16, 0.6, 1.0, 4), (12, 0.5, 0.95, 2), (0, 0, 0.8, 1)):
        bend = rng.between(-0.006, 0.006, len(length))[0]
        steps = torch.arange(int(length.max()) + 1).double()
        heading = angle[:, None] + bend[:, None] * steps
        rows = start[:, 0, None] + heading.sin().cumsum(dim=1)
        columns = start[:, 1, None] + heading.cos().cumsum(dim=1)
        left = length[:, None] - steps  # to the tip
        inside = (left > 0) & (rows >= 0) & (rows < HEIGHT) & (columns >= 0) & (columns < WIDTH)
        shine = strength * (0.55 + 0.45 * rng.uniform(len(length), 1)[0])
        layer = torch.zeros(HEIGHT * WIDTH).double()
        pixel = (rows.long() * WIDTH + columns.long())[inside]
        layer.scatter_reduce_(0, pixel, shine.expand_as(left)[inside], "amax")
        canvas = torch.maximum(canvas, _thicken(layer.reshape(HEIGHT, WIDTH), thick))
        if not spacing:
            break
        knots = inside & (steps % spacing == spacing - 1) & (left > 4)
        angles, reach = [], []
        for turn in (-1.0, 1.0):  # a branch on either side
            wobble = rng.between(0.85, 1.2, len(length), 1)[0]
            angles.append((heading + turn * wobble * (math.pi / 3))[knots])
            vary = rng.between(0.5, 1.0, *left.shape)[0]
            reach.append((left.clamp(max=150.0) * share * vary)[knots])
        start = torch.stack([rows[knots], columns[knots]], dim=1).repeat(2, 1)
        angle, length = torch.cat(angles), torch.cat(reach)
    return canvas


def _thicken(layer: Tensor, by: int) -> Tensor:
    """A layer in which each pixel is the largest within `by`, fading outwards."""
    for _ in range(by):
        wide = layer.clone()
        for dim in (0, 1):
            size = layer.shape[dim] - 1
            before, after = layer.narrow(dim, 0, size) * 0.85, layer.narrow(dim, 1, size) * 0.85
            for start, other in ((1, before), (0, after)):
                part = wide.narrow(dim, start, size)
                part.copy_(torch.maximum(part, other))
        layer = wide
    return layer
