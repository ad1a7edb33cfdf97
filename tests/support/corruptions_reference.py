"""The corruptions written the slow and obvious way: one image at a time, in float64.

A function takes one image (side, side, 3) of uint8, its random numbers and the constants, and
returns levels before they are cut to whole numbers. The numbers come from the package's own
counters, in the same order; nothing else does, the constants included.
"""

import colorsys
import io
import math

import numpy as np
from PIL import Image
from scipy import ndimage, signal, stats

CONSTANTS = {
    "gaussian_noise": ["0.04 0.06 0.08 0.09 0.1", "0.04 0.08 0.12 0.15 0.18"],
    "shot_noise": ["500 250 100 75 50", "250 100 50 30 15"],
    "impulse_noise": ["0.01 0.02 0.03 0.05 0.07", "0.01 0.02 0.05 0.08 0.14"],
    "defocus_blur": [
        "0.3,0.4 0.4,0.5 0.5,0.6 1,0.2 1.5,0.1",
        "0.5,0.6 1,0.1 1.5,0.1 2.5,0.01 3,0.1",
    ],
    "glass_blur": [
        "0.05,1,1 0.25,1,1 0.4,1,1 0.25,1,2 0.4,1,2",
        "0.1,1,1 0.5,1,1 0.6,1,2 0.7,2,1 0.9,2,2",
    ],
    "motion_blur": ["6,1 6,1.5 6,2 8,2 9,2.5", "10,1 10,1.5 10,2 10,2.5 12,3"],
    "zoom_blur": ["1.06 1.11 1.16 1.21 1.26", "1.06 1.11 1.16 1.21 1.26"],
    "snow": [
        "0.1,0.2,1,0.6,8,3,0.95 0.1,0.2,1,0.5,10,4,0.9 0.15,0.3,1.75,0.55,10,4,0.9 "
        "0.25,0.3,2.25,0.6,12,6,0.85 0.3,0.3,1.25,0.65,14,12,0.8",
        "0.1,0.2,1,0.6,8,3,0.8 0.1,0.2,1,0.5,10,4,0.8 0.15,0.3,1.75,0.55,10,4,0.7 "
        "0.25,0.3,2.25,0.6,12,6,0.65 0.3,0.3,1.25,0.65,14,12,0.6",
    ],
    "frost": [
        "1,0.2 1,0.3 0.9,0.4 0.85,0.4 0.75,0.45",
        "1,0.3 0.9,0.4 0.8,0.45 0.75,0.5 0.7,0.55",
    ],
    "fog": ["0.2,3 0.5,3 0.75,2.5 1,2 1.5,1.75", "0.4,3 0.7,3 1,2.5 1.5,2 2,1.75"],
    "brightness": ["0.05 0.1 0.15 0.2 0.3", "0.1 0.2 0.3 0.4 0.5"],
    "contrast": ["0.75 0.5 0.4 0.3 0.15", "0.4 0.3 0.2 0.1 0.05"],
    "elastic_transform": [
        "0,0,0.08 0.05,0.2,0.07 0.08,0.06,0.06 0.1,0.04,0.05 0.1,0.03,0.03",
        "0,0,0.08 0.05,0.3,0.06 0.1,0.08,0.06 0.1,0.03,0.03 0.16,0.03,0.02",
    ],
    "pixelate": ["0.95 0.9 0.85 0.75 0.65", "0.9 0.8 0.7 0.6 0.5"],
    "jpeg_compression": ["80 65 58 50 40", "65 58 50 40 25"],
}


def constants(name, severity, side):
    text = CONSTANTS[name][0 if side == 32 else 1].split()
    assert len(text) == 5
    return [float(c) for c in text[severity - 1].split(",")]


def taken(draw):
    """A draw for one image."""
    return draw.numpy()[0]


def cut(levels):
    return np.floor(np.clip(levels + 1 / 1024, 0, 255))


def gaussian_noise(image, rng, c):
    return (image / 255 + c * taken(rng.normal(*image.shape))) * 255


def shot_noise(image, rng, c):
    return stats.poisson.ppf(taken(rng.uniform(*image.shape)), image / 255 * c) / c * 255


def impulse_noise(image, rng, c):
    u, out = taken(rng.uniform(*image.shape)), image.astype(float)
    out[u < c] = 255
    out[u < c / 2] = 0
    return out


def defocus_blur(image, rng, radius, alias):
    x, y = np.meshgrid(np.arange(-8, 9), np.arange(-8, 9))
    disk = (x**2 + y**2 <= radius**2).astype(float)
    tap = np.exp(-(np.array([-1.0, 0, 1]) ** 2) / (2 * alias**2))
    bell = np.outer(tap / tap.sum(), tap / tap.sum())
    kernel = signal.convolve2d(disk / disk.sum(), bell, mode="same")
    return ndimage.correlate(image.astype(float), kernel[:, :, None], mode="mirror")


def bell_blur(image, sigma):
    return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)


def glass_blur(image, rng, sigma, delta, iterations):
    x, side, delta = cut(bell_blur(image.astype(float), sigma)), len(image), int(delta)
    for _ in range(int(iterations)):
        count = side - 2 * delta
        steps = taken(rng.whole(-delta, delta, 2, count, count))
        for h in range(side - delta, delta, -1):
            for w in range(side - delta, delta, -1):
                dy, dx = steps[:, h - delta - 1, w - delta - 1]
                x[h, w] = x[h + dy, w + dx]
    return bell_blur(x, sigma)


def moved(image, radius, sigma, angle):
    side, width = len(image), 2 * math.ceil(radius) + 1
    kernel = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    kernel /= kernel.sum()
    out = np.zeros(image.shape)
    for i, k in enumerate(kernel):
        dx, dy = math.ceil(i * math.cos(angle) - 0.5), math.ceil(i * math.sin(angle) - 0.5)
        for y in range(side):
            row = min(max(y + dy, 0), side - 1)
            columns = [min(max(x + dx, 0), side - 1) for x in range(side)]
            out[y] += k * image[row, columns]
    return out


def motion_blur(image, rng, radius, sigma):
    return moved(image.astype(float), radius, sigma, taken(rng.between(-np.pi / 4, np.pi / 4)))


def zoomed(image, z):
    side = len(image)
    ch = math.ceil(side / z)
    top = (side - ch) // 2
    crop = image[top : top + ch, top : top + ch]
    out = ndimage.zoom(crop, (z, z, 1), order=1)
    trim = (len(out) - side) // 2
    return out[trim : trim + side, trim : trim + side]


def zoom_blur(image, rng, stop):
    x, zooms = image.astype(float), np.arange(1, stop, 0.01)
    return (x + sum(zoomed(x, z) for z in zooms)) / (len(zooms) + 1)


def snow(image, rng, loc, scale, zoom, threshold, radius, sigma, mix):
    x, side = image / 255, len(image)
    layer = zoomed(loc + scale * taken(rng.normal(side, side, 1)), zoom)
    layer[layer < threshold] = 0
    angle = taken(rng.between(-0.75 * np.pi, -0.25 * np.pi))
    layer = cut(moved(cut(np.clip(layer, 0, 1) * 255), radius, sigma, angle)) / 255
    gray = (x @ [0.299, 0.587, 0.114])[:, :, None]
    x = mix * x + (1 - mix) * np.maximum(x, gray * 1.5 + 0.5)
    return (x + layer + np.rot90(layer, 2)) * 255


def frost(image, rng, a, b, frost_images):
    side = len(image)
    factor = 0.2 if side == 32 else 0.3
    choice, down, right = taken(rng.uniform(3))
    frosted = frost_images[int(choice * min(5, len(frost_images)))].numpy().astype(float)
    height, width = (round(factor * size) for size in frosted.shape[:2])
    top, left = int(down * max(height - side, 1)), int(right * max(width - side, 1))
    ys = (np.arange(top, top + side) + 0.5) / factor - 0.5
    xs = (np.arange(left, left + side) + 0.5) / factor - 0.5
    where = np.meshgrid(ys, xs, indexing="ij")
    crop = [
        ndimage.map_coordinates(frosted[:, :, c], where, order=1, mode="nearest") for c in range(3)
    ]
    return a * image + b * cut(np.stack(crop, axis=2) + 0.5)


def plasma(noise, decay):
    side = len(noise)
    p, step, wibble = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        for y in range(0, side, step):
            for x in range(0, side, step):
                around = [p[(y + i) % side, (x + j) % side] for i in (0, step) for j in (0, step)]
                p[y + half, x + half] = np.mean(around) + wibble**2 * noise[y + half, x + half]
        for y in range(0, side, half):
            for x in range(0, side, half):
                if (y + x) // half % 2:
                    sides = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                    around = [p[i % side, j % side] for i, j in sides]
                    p[y, x] = np.mean(around) + wibble**2 * noise[y, x]
        step, wibble = half, wibble / decay
    return (p - p.min()) / (p.max() - p.min())


def fog(image, rng, a, decay):
    x, m = image / 255, image.max() / 255
    p = plasma(taken(rng.between(-1, 1, len(image), len(image))), decay)
    return (x + a * p[:, :, None]) * m / (m + a) * 255


def brightness(image, rng, c):
    out = np.empty(image.shape)
    for place in np.ndindex(*image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255))
        out[place] = colorsys.hsv_to_rgb(h, s, min(v + c, 1))
    return out * 255


def contrast(image, rng, c):
    mean = image.mean(axis=(0, 1))
    return (image - mean) * c + mean


def read(image, rows, columns, mode):
    channels = [
        ndimage.map_coordinates(image[:, :, c], [rows, columns], order=1, mode=mode)
        for c in range(3)
    ]
    return np.stack(channels, axis=2)


def elastic_transform(image, rng, alpha, sigma, affine):
    side = len(image)
    c, s = side // 2, side // 3
    old = np.array([[c + s, c + s], [c + s, c - s], [c - s, c - s]], float)
    new = old + taken(rng.between(-affine * side, affine * side, 3, 2))
    inverse = np.linalg.solve(np.column_stack([new, np.ones(3)]), old)  # rows: x, y, 1
    y, x = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    columns, rows = (np.stack([x, y, np.ones_like(x)], axis=2) @ inverse).transpose(2, 0, 1)
    warped = read(image.astype(float), rows, columns, "mirror")
    if alpha == 0:
        return warped
    field = taken(rng.between(-1, 1, side, side, 2))
    dx, dy = (
        alpha * side * ndimage.gaussian_filter(f, sigma * side, mode="reflect", truncate=3)
        for f in (field[:, :, 0], field[:, :, 1])
    )
    return read(warped, y + dy, x + dx, "reflect")


def pixelate(image, rng, c):
    small = int(len(image) * c)
    reduced = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
    return np.asarray(reduced.resize(image.shape[:2], Image.Resampling.BOX))


def jpeg_compression(image, rng, quality):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=int(quality))
    return np.asarray(Image.open(buffer))
