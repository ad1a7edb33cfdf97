"""The published archives of corrupted test images: CIFAR-10-C, CIFAR-100-C, ImageNet-C and
Tiny-ImageNet-C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.datasets.imagenet import SIDE, TINY_SIDE, by_class, check_same, class_folders
from privcal.datasets.names import CIFAR10, CIFAR100, CORRUPTIONS, GROUPS, SEVERITIES
from privcal.datasets.pictures import Pictures, size
from privcal.datasets.pixels import Images, Pixels, labels_of
from privcal.errors import InputError

FOLDERS = ("CIFAR-10-C", "CIFAR-100-C", "ImageNet-C", "Tiny-ImageNet-C")
LAYOUTS = (
    "CIFAR-10-C and CIFAR-100-C (a folder with <corruption>.npy and labels.npy), "
    "ImageNet-C and Tiny-ImageNet-C (<corruption>/<severity>/<class>/*.JPEG)"
)


@dataclass(frozen=True, eq=False)
class Corrupted:
    """The same test images under several corruptions, each at severities 1 to 5."""

    name: str
    classes: tuple[str, ...]
    corruptions: tuple[str, ...]
    """Those found of the fifteen, in the order of the published tables."""
    labels: NDArray[np.int64]
    """Of the rows of every corruption and severity."""
    find: Callable[[str, int], Images]

    def images(self, corruption: str, severity: int) -> Images:
        if corruption not in self.corruptions:
            raise InputError(
                f"{self.name} has no corruption {corruption!r}; "
                f"there are {', '.join(self.corruptions)}"
            )
        if severity not in SEVERITIES:
            raise InputError(f"severity must be a whole number from 1 to 5, not {severity!r}")
        return self.find(corruption, int(severity))


def open_corrupted(path: str | Path) -> Corrupted:
    """A published -C archive, recognised by its contents; nothing is read before it is needed."""
    path = Path(path)
    if path.is_file():
        raise InputError(f"{path} is a file; unpack the archive and give its folder")
    if not path.is_dir():
        raise InputError(f"there is no folder {path}")
    inside = [path / name for name in FOLDERS if (path / name).is_dir()]
    if len(inside) > 1:
        raise InputError(
            f"{path} holds {' and '.join(folder.name for folder in inside)}; give one of them"
        )
    for folder in (path, *inside):
        if arrays := _arrays(folder):
            return _cifar(folder, arrays)
        if folders := _folders(folder):
            return _imagenet(folders)
    raise InputError(f"{path} holds no archive of corrupted images; known are {LAYOUTS}")


def _arrays(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.npy" for name in CORRUPTIONS}
    return {name: file for name, file in files.items() if file.is_file()}


def _folders(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name in CORRUPTIONS:
        for above in (folder, *(folder / group for group in GROUPS)):
            if (above / name).is_dir():
                found.setdefault(name, above / name)
    return found


def _cifar(folder: Path, files: dict[str, Path]) -> Corrupted:
    at = folder / "labels.npy"
    if not at.is_file():
        raise InputError(f"there is no file {at}; the archive is not whole")
    labels = labels_of(str(at), np.asarray(_map(at)), len(CIFAR100))
    if not len(labels) or len(labels) % len(SEVERITIES):
        raise InputError(
            f"{at} holds {len(labels)} labels, which is not the same number for each of "
            f"{len(SEVERITIES)} severities"
        )
    each = len(labels) // len(SEVERITIES)
    by_severity = labels.reshape(len(SEVERITIES), each)
    if (by_severity != by_severity[0]).any():
        raise InputError(f"{at} holds other labels for one severity than for another")
    maps = {name: _map(file) for name, file in files.items()}
    for name, array in maps.items():
        if array.shape != (len(labels), 32, 32, 3) or array.dtype != np.uint8:
            raise InputError(
                f"{files[name]} must hold bytes of shape {(len(labels), 32, 32, 3)}, as there are "
                f"{len(labels)} labels, not {array.dtype} of shape {array.shape}"
            )
    ten = int(labels.max()) < len(CIFAR10)
    name, classes = ("CIFAR-10-C", CIFAR10) if ten else ("CIFAR-100-C", CIFAR100)
    same = by_severity[0].copy()

    def find(corruption: str, severity: int) -> Images:
        rows = slice((severity - 1) * each, severity * each)
        return Pixels(name, classes, same, maps[corruption][rows])

    return Corrupted(name, classes, tuple(files), same, find)


def _map(path: Path) -> Any:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises all kinds on damaged files
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is not a readable .npy file, or is cut short ({first})") from None
    if not isinstance(array, np.memmap):
        raise InputError(f"{path} is not a .npy file, whatever its name says")
    return array


def _imagenet(folders: dict[str, Path]) -> Corrupted:
    at = {(name, s): folder / str(s) for name, folder in folders.items() for s in SEVERITIES}
    classes = {place: class_folders(folder) for place, folder in at.items()}
    every = sorted(set().union(*classes.values()))
    # Whoever lacks a class is at fault, so each is compared with one that has it.
    for place, found in classes.items():
        for wnid in sorted(set(every) - set(found)):
            has = next(other for other, theirs in classes.items() if wnid in theirs)
            check_same(at[place], found, at[has], [wnid, *found])
    if not every:
        raise InputError(f"{next(iter(at.values()))} holds no folders of classes with pictures")
    first = next(iter(at.values()))
    side = SIDE
    name = "ImageNet-C"
    sample = by_class(name, [first / wnid for wnid in every], side)
    if size(sample.files[0]) == (TINY_SIDE, TINY_SIDE):
        name, side = "Tiny-ImageNet-C", TINY_SIDE

    def find(corruption: str, severity: int) -> Pictures:
        folder = at[corruption, severity]
        found = by_class(name, [folder / wnid for wnid in every], side)
        _check_rows(first, sample, folder, found)
        return found

    return Corrupted(name, tuple(every), tuple(folders), sample.labels, find)


def _check_rows(there: Path, theirs: Pictures, here: Path, found: Pictures) -> None:
    """Row by row the same pictures, or labels and comparisons would be of others."""
    if found.names == theirs.names and np.array_equal(found.labels, theirs.labels):
        return
    ours = {file.relative_to(here) for file in found.files}
    expected = {file.relative_to(there) for file in theirs.files}
    for missing in sorted(expected - ours):
        raise InputError(f"there is no file {here / missing}, but there is {there / missing}")
    for missing in sorted(ours - expected):
        raise InputError(f"there is no file {there / missing}, but there is {here / missing}")
