"""What every reader of images returns: sets that are one array or files, and names that archives do not carry."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError
from privcal.trusted.threads import default_threads

# --- Names and sizes that the archives do not carry themselves ------------------------------------

CIFAR_SIDE = 32
"""Height and width of an image in pixels."""

CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle",
    "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The fifteen corruptions of the published -C archives, in the order of their tables."""

SEVERITIES = (1, 2, 3, 4, 5)


# --- Sets -----------------------------------------------------------------------------------------

Rows = slice | NDArray[np.intp]


class ImageSet(Protocol):
    """Labelled square RGB images, any rows of which can be taken."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""

    @property
    def labels(self) -> NDArray[np.int64]: ...

    @property
    def side(self) -> int:
        """Height and width in pixels of what take() returns."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        """A new (rows, side, side, 3) array."""


@dataclass(frozen=True, eq=False)
class ImageArray:
    """An image set that is one (n, side, side, 3) array, in memory or a memory map."""

    name: str
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    pixels: NDArray[np.uint8]

    @property
    def side(self) -> int:
        return int(self.pixels.shape[1])

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Rows) -> NDArray[np.uint8]:
        # A slice is a view, and what is done to it would be done to the images themselves.
        return np.array(self.pixels[rows]) if isinstance(rows, slice) else self.pixels[rows]


def missing_file(path: Path) -> InputError:
    return InputError(f"there is no file {path}; the archive is not whole")


def check_labels(path: Path, values: Any, classes: int) -> NDArray[np.int64]:
    """Labels from a list or an array of a stranger's file."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise InputError(
                f"{path} must hold one whole number for each image, "
                f"not an array of shape {values.shape} and type {values.dtype}"
            )
        values = values.tolist()
    if not isinstance(values, list):
        raise InputError(f"{path} must hold a list of labels, not {type(values).__name__}")
    for row, value in enumerate(values):
        if type(value) is not int or not 0 <= value < classes:  # fast: there may be a million
            whole(f"{path}: the label of row {row}", value, 0, classes - 1)
    return np.array(values, np.int64)


def check_every_class(
    path: Path, labels: NDArray[np.int64], classes: Sequence[str], split: str
) -> None:
    """Refuse training images that lack a class: the archive is damaged."""
    if not len(labels):
        raise InputError(f"{path} holds no images")
    if split == "train":
        missing = np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
        if len(missing):
            raise InputError(
                f"{path} has no training image of class {classes[int(missing[0])]!r}; "
                "the archive is not whole"
            )


# --- Image files, decoded when they are asked for -------------------------------------------------

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
