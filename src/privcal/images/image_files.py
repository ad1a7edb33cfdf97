"""Image files, decoded when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privcal.errors import InputError
from privcal.images.sets import Rows, missing_file
from privcal.threads import default_threads

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """An image set of files of any size, each cut to `side` as classifiers of ImageNet expect."""

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    files: tuple[Path, ...]
    side: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files without their folders."""
        return tuple(file.name for file in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        import PIL.Image  # noqa: F401  (once, before the threads ask for it all together)

        wanted = np.arange(len(self.files))[rows]
        images = np.empty((len(wanted), self.side, self.side, 3), np.uint8)
        with ThreadPoolExecutor(default_threads()) as pool:  # decoding leaves Python's lock alone
            decoded = pool.map(lambda row: decode(self.files[row], self.side), wanted.tolist())
            for index, image in enumerate(decoded):
                images[index] = image
        return images


@contextmanager
def open_image(file: Path, formats: tuple[str, ...] = ("JPEG", "PNG")) -> Iterator[Image]:
    """An image file, opened; no decoder but those of `formats` meets it, as some run programs.

    What counts is inside the file: some .JPEG of ImageNet are PNG.
    """
    from PIL import Image

    try:
        with Image.open(file, formats=formats) as image:
            yield image
    except FileNotFoundError:
        raise missing_file(file) from None
    except Exception as error:  # decoders raise all kinds, for images too large as well
        kind, reason = " or ".join(formats), str(error).partition("\n")[0] or type(error).__name__
        if str(file) in reason:  # "cannot identify image file '…'" says no more than we do
            reason = f"no {kind}"
        raise InputError(
            f"{file} is not a readable {kind} file, or is cut short ({reason})"
        ) from None


def decode(file: Path, side: int) -> NDArray[np.uint8]:
    """The image in a file, (side, side, 3) RGB."""
    with open_image(file) as image:
        return np.asarray(_cut_square(image.convert("RGB"), side))


def image_size(file: Path) -> tuple[int, int]:
    """Width and height, from the first bytes alone."""
    with open_image(file) as image:
        return image.size


def list_image_files(folder: Path, suffixes: tuple[str, ...] = (".jpeg", ".jpg")) -> list[str]:
    """Names of the image files in a folder, sorted."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                e.name
                for e in entries
                # Archivers of some systems leave ._x.JPEG beside x.JPEG.
                if e.name.lower().endswith(suffixes) and not e.name.startswith(".")
            )
    except OSError as error:
        raise InputError(f"cannot list folder {folder}: {error.strerror}") from None


def _cut_square(image: Image, side: int) -> Image:
    """The middle of an image whose short side was scaled to 256 for 224, in proportion for others."""
    from PIL import Image

    if image.size == (side, side):
        return image
    width, height = image.size
    short = side * 256 // 224
    scaled = (
        (short, short * height // width) if width <= height else (short * width // height, short)
    )
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - side) / 2), round((scaled[1] - side) / 2)
    return image.crop((left, top, left + side, top + side))
