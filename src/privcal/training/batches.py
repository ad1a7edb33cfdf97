"""Training images, shuffled and augmented on the device.

The order of an epoch and how each of its images is changed are functions of the seed and the
epoch alone, so that a run that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privcal.images import ImageSet

RESIDENT = 8 << 30
"""Bytes of pixels that are kept on the device for the whole training; larger sets are read as needed."""


class Batches:
    """Batches of an image set, epoch by epoch."""

    def __init__(self, images: ImageSet, batch: int, augment: str, seed: int, device: str) -> None:
        self.images, self.size, self.seed, self.device = images, batch, seed, device
        self.augment = _shift if augment == "shift" else _resized_crop
        self.labels = torch.from_numpy(images.labels).to(device)
        self.resident: Tensor | None = None
        if len(images) * images.side**2 * 3 <= RESIDENT:
            self.resident = torch.from_numpy(images.take(slice(None))).to(device)

    def __len__(self) -> int:
        """Number of batches in an epoch; the few images left over are others in every epoch."""
        return max(1, len(self.images) // self.size)

    def epoch(self, number: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from the `first` one on: pixels and labels."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.images), generator=random)
        draws = torch.rand((len(self.images), 5), generator=random).to(self.device)
        pieces = list(order.split(self.size))[first : len(self)]
        for rows, pixels in zip(pieces, self._pixels(pieces), strict=True):
            index = rows.to(self.device)
            yield self.augment(pixels, draws[index]), self.labels[index]

    def _pixels(self, pieces: list[Tensor]) -> Iterator[Tensor]:
        if self.resident is not None:
            for rows in pieces:
                yield self.resident[rows.to(self.device)]
            return
        # A few batches ahead of the device, no more: an epoch may be larger than memory.
        with ThreadPoolExecutor(1) as pool:
            ahead: deque[Future[NDArray[np.uint8]]] = deque()
            for rows in pieces:
                ahead.append(pool.submit(self.images.take, rows.numpy().astype(np.intp)))
                if len(ahead) > 3:
                    yield torch.from_numpy(ahead.popleft().result()).to(self.device)
            while ahead:
                yield torch.from_numpy(ahead.popleft().result()).to(self.device)


def _mirror(rows: Tensor, draw: Tensor) -> Tensor:
    """The images, those with a draw of 1/2 or more mirrored."""
    return torch.where((draw < 0.5)[:, None, None, None], rows, rows.flip(2))


def _shift(rows: Tensor, draws: Tensor) -> Tensor:
    """Each image moved by up to an eighth of its side in both directions, black beyond its edge."""
    count, side = rows.shape[0], rows.shape[1]
    most = side // 8
    wide = F.pad(rows, (0, 0, most, most, most, most))
    grid = torch.arange(side, device=rows.device)
    down = (draws[:, 0] * (2 * most + 1)).long()[:, None] + grid
    right = (draws[:, 1] * (2 * most + 1)).long()[:, None] + grid
    image = torch.arange(count, device=rows.device)[:, None, None]
    return _mirror(wide[image, down[:, :, None], right[:, None, :]], draws[:, 2])


def _resized_crop(rows: Tensor, draws: Tensor) -> Tensor:
    """A part of each image, of 1/4 to all of its area and 3:4 to 4:3, at 7/8 of its side."""
    side = rows.shape[1]
    area = 0.25 + 0.75 * draws[:, 0]
    ratio = torch.exp(math.log(4 / 3) * (2 * draws[:, 1] - 1))
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros((len(rows), 2, 3), device=rows.device)
    theta[:, 0, 0], theta[:, 1, 1] = width, height
    theta[:, 0, 2] = (1 - width) * (2 * draws[:, 3] - 1)
    theta[:, 1, 2] = (1 - height) * (2 * draws[:, 4] - 1)
    small = side * 7 // 8
    grid = F.affine_grid(theta, [len(rows), 3, small, small], align_corners=False)
    parts = F.grid_sample(
        rows.permute(0, 3, 1, 2).float(), grid, padding_mode="border", align_corners=False
    )
    return _mirror(parts.round().to(torch.uint8).permute(0, 2, 3, 1), draws[:, 2])
