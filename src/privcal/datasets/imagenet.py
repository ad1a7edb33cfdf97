"""ImageNet and Tiny-ImageNet as published: folders of pictures, one for each class."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from privcal.datasets.pictures import Pictures, pictures_in
from privcal.errors import InputError

WNID = re.compile(r"n\d{8}")
FOLDER = {"train": "train", "test": "val"}  # the labels of the true test split are kept secret
SIDE = 224
TINY_SIDE = 64


def is_tiny(folder: Path) -> bool:
    return (folder / "wnids.txt").is_file() or (folder / "val" / "val_annotations.txt").is_file()


def is_imagenet(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in FOLDER.values())


def read_imagenet(folder: Path, split: str) -> Pictures:
    at = folder / FOLDER[split]
    here = class_folders(at)
    if not here:
        raise InputError(
            f"{at} holds no folders of classes (such as n01440764); "
            "sort its pictures into one folder for each class"
        )
    # Labels are places in the list of classes, so both splits must have the same list.
    if (folder / "train").is_dir():
        check_same(at, here, folder / "train", class_folders(folder / "train"))
    return by_class("ImageNet", [at / wnid for wnid in here], SIDE)


def read_tiny(folder: Path, split: str) -> Pictures:
    classes = _wnids(folder / "wnids.txt")
    if split == "train":
        at = folder / "train"
        check_same(at, class_folders(at), folder / "wnids.txt", classes)
        folders = [at / wnid / "images" for wnid in classes]
        return by_class("Tiny-ImageNet", folders, TINY_SIDE, classes)
    at = folder / "val" / "images"
    wnid_of = _annotations(folder / "val" / "val_annotations.txt", classes)
    names = pictures_in(at)
    for name in names:
        if name not in wnid_of:
            raise InputError(
                f"{folder / 'val' / 'val_annotations.txt'} does not say what {name} shows; "
                "it may be cut short"
            )
    for name in sorted(wnid_of.keys() - set(names)):
        raise InputError(f"there is no file {at / name}; the archive is not whole")
    if not names:
        raise InputError(f"{at} holds no pictures")
    rows = sorted((wnid_of[name], name) for name in names)
    place = {wnid: i for i, wnid in enumerate(classes)}
    labels = np.array([place[wnid] for wnid, _ in rows], np.int64)
    files = tuple(at / name for _, name in rows)
    return Pictures("Tiny-ImageNet", tuple(classes), labels, files, TINY_SIDE)


def by_class(
    name: str, folders: Iterable[Path], side: int, classes: Sequence[str] = ()
) -> Pictures:
    """All pictures of one folder for each class; the classes are called as their folders."""
    files: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    for place, folder in enumerate(folders):
        found = pictures_in(folder)
        if not found:
            raise InputError(f"{folder} holds no pictures; the archive is not whole")
        files += [folder / file for file in found]
        labels += [place] * len(found)
        names.append(folder.name)
    return Pictures(name, tuple(classes or names), np.array(labels, np.int64), tuple(files), side)


def class_folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if WNID.fullmatch(e.name) and e.is_dir())
    except FileNotFoundError:
        raise InputError(f"there is no folder {folder}; the archive is not whole") from None
    except OSError as error:
        raise InputError(f"cannot list folder {folder}: {error.strerror}") from None


def check_same(here: Path, found: Sequence[str], there: Path, expected: Sequence[str]) -> None:
    for wnid in sorted(set(expected) - set(found)):
        raise InputError(f"{here} has no folder {wnid}, but {there} has that class")
    for wnid in sorted(set(found) - set(expected)):
        raise InputError(f"{here} has a folder {wnid}, but {there} has no such class")


def _wnids(path: Path) -> list[str]:
    found = _lines(path)
    for number, line in enumerate(found, 1):
        if not WNID.fullmatch(line):
            raise InputError(
                f"{path}: line {number} is no class (such as n01443537); it may be cut short"
            )
    if len(set(found)) != len(found) or not found:
        raise InputError(f"{path} must name each class once")
    return sorted(found)


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
        raise InputError(f"there is no file {path}; the archive is not whole") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a readable text file ({error})") from None
