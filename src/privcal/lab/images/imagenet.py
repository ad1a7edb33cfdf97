"""ImageNet and Tiny-ImageNet as published: folders of image files, one for each class."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from privcal.lab.images.sets import ImageFiles, list_image_files, missing_file
from privcal.trusted.errors import InputError

WNID = re.compile(r"n\d{8}")
IMAGENET_SIDE, TINY_SIDE = 224, 64
"""Height and width of an image in pixels, as it is given to a network."""
SPLIT_FOLDERS = {
    "train": "train",
    "test": "val",
}  # the labels of the true test split are kept secret


def is_tiny(folder: Path) -> bool:
    return (folder / "wnids.txt").is_file() or (folder / "val" / "val_annotations.txt").is_file()


def is_imagenet(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in SPLIT_FOLDERS.values())


def read_imagenet(folder: Path, split: str) -> ImageFiles:
    split_folder = folder / SPLIT_FOLDERS[split]
    classes = class_folders(split_folder)
    if not classes:
        raise InputError(
            f"{split_folder} holds no folders of classes (such as n01440764); "
            "sort its image files into one folder for each class"
        )
    # Labels are indices into the list of classes, so both splits must have the same list.
    if (folder / "train").is_dir():
        check_classes(split_folder, classes, folder / "train", class_folders(folder / "train"))
    return read_classes("ImageNet", [split_folder / wnid for wnid in classes], IMAGENET_SIDE)


def read_tiny(folder: Path, split: str) -> ImageFiles:
    classes = _wnids(folder / "wnids.txt")
    if split == "train":
        train = folder / "train"
        check_classes(train, class_folders(train), folder / "wnids.txt", classes)
        folders = [train / wnid / "images" for wnid in classes]
        return read_classes("Tiny-ImageNet", folders, TINY_SIDE, classes)
    images, annotations = folder / "val" / "images", folder / "val" / "val_annotations.txt"
    wnid_of = _annotations(annotations, classes)
    names = list_image_files(images)
    for name in names:
        if name not in wnid_of:
            raise InputError(f"{annotations} does not say what {name} shows; it may be cut short")
    for name in sorted(wnid_of.keys() - set(names)):
        raise missing_file(images / name)
    if not names:
        raise InputError(f"{images} holds no image files")
    rows = sorted((wnid_of[name], name) for name in names)
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    labels = np.array([label_of[wnid] for wnid, _ in rows], np.int64)
    files = tuple(images / name for _, name in rows)
    return ImageFiles("Tiny-ImageNet", tuple(classes), labels, files, TINY_SIDE)


def read_classes(
    name: str, folders: Iterable[Path], side: int, classes: Sequence[str] = ()
) -> ImageFiles:
    """All image files of one folder for each class; a class is called as its folder."""
    files: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    for label, folder in enumerate(folders):
        in_folder = list_image_files(folder)
        if not in_folder:
            raise InputError(f"{folder} holds no image files; the archive is not whole")
        files += [folder / file for file in in_folder]
        labels += [label] * len(in_folder)
        names.append(folder.name)
    return ImageFiles(name, tuple(classes or names), np.array(labels, np.int64), tuple(files), side)


def class_folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if WNID.fullmatch(e.name) and e.is_dir())
    except FileNotFoundError:
        raise InputError(f"there is no folder {folder}; the archive is not whole") from None
    except OSError as error:
        raise InputError(f"cannot list folder {folder}: {error.strerror}") from None


def check_classes(folder: Path, classes: list[str], other: Path, expected: list[str]) -> None:
    """Refuse a folder whose classes are not those of another."""
    for wnid in sorted(set(expected) - set(classes)):
        raise InputError(f"{folder} has no folder {wnid}, but {other} has that class")
    for wnid in sorted(set(classes) - set(expected)):
        raise InputError(f"{folder} has a folder {wnid}, but {other} has no such class")


def _wnids(path: Path) -> list[str]:
    wnids = _lines(path)
    for number, line in enumerate(wnids, 1):
        if not WNID.fullmatch(line):
            raise InputError(
                f"{path}: line {number} is no class (such as n01443537); it may be cut short"
            )
    if len(set(wnids)) != len(wnids) or not wnids:
        raise InputError(f"{path} must name each class once")
    return sorted(wnids)


def _annotations(path: Path, classes: Sequence[str]) -> dict[str, str]:
    known = set(classes)
    wnid_of: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 6 or not all(field.isdecimal() for field in fields[2:]):
            raise InputError(
                f"{path}: line {number} is not a name, a class and four numbers between tabs; "
                "it may be cut short"
            )
        name, wnid = fields[:2]
        if wnid not in known:
            raise InputError(f"{path}: line {number} names class {wnid}, which wnids.txt does not")
        if name in wnid_of:
            raise InputError(f"{path}: line {number} names {name} a second time")
        wnid_of[name] = wnid
    return wnid_of


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise missing_file(path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable text file ({error})") from None
