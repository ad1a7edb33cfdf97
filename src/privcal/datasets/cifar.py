"""CIFAR-10 and CIFAR-100 as their authors publish them, for Python."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privcal.datasets.pickles import read_pickle, text
from privcal.datasets.pixels import Pixels, check_every_class, labels_of
from privcal.errors import InputError

SIDE = 32
ROW = 3 * SIDE * SIDE
LARGEST = 2**28
"""Bytes of a member; the largest there is, the training images of CIFAR-100, has 155 million."""


@dataclass(frozen=True)
class Layout:
    """The files of one archive, and their keys."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str
    classes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, *self.test, self.meta)

    def parts(self, split: str) -> tuple[str, ...]:
        return self.train if split == "train" else self.test


TEN = Layout(
    name="CIFAR-10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    labels="labels",
    names="label_names",
    classes=10,
)
HUNDRED = Layout(
    name="CIFAR-100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
    classes=100,
)


def is_batches(folder: Path) -> Layout | None:
    """Which of the two archives a folder is, even if some of its files are missing."""
    for layout in (TEN, HUNDRED):
        if any((folder / file).is_file() for file in layout.files):
            return layout
    return None


def read_folder(folder: Path, layout: Layout, split: str) -> Pixels:
    def load(file: str) -> bytes:
        path = folder / file
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise InputError(f"there is no file {path}; the archive is not whole") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None

    return _read(layout, split, folder, load)


def read_tar(path: Path, split: str) -> Pixels:
    """From the packed archive; its members stay in memory and none is written anywhere."""
    members = _members(path, split)
    for layout in (TEN, HUNDRED):
        if any(name.startswith(f"{layout.folder}/") for name in members):
            break
    else:
        raise InputError(
            f"{path} holds neither {TEN.folder} nor {HUNDRED.folder}; "
            "packed, only cifar-10-python.tar.gz and cifar-100-python.tar.gz are read"
        )

    def load(file: str) -> bytes:
        member = f"{layout.folder}/{file}"
        if member not in members:
            raise InputError(f"there is no {member} in {path}; the archive is not whole")
        return members[member]

    return _read(layout, split, path / layout.folder, load)


def _members(path: Path, split: str) -> dict[str, bytes]:
    wanted = {
        f"{layout.folder}/{file}"
        for layout in (TEN, HUNDRED)
        for file in (*layout.parts(split), layout.meta)
    }
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in wanted or not member.isreg():
                    continue
                if member.size > LARGEST:
                    raise InputError(f"{name} in {path} is too large to be part of CIFAR")
                opened = tar.extractfile(member)
                found[name] = opened.read() if opened else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        first = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise InputError(
            f"{path} is not a readable .tar.gz file, or is cut short ({first}); download it again"
        ) from None
    return found


def _read(layout: Layout, split: str, at: Path, load: Callable[[str], bytes]) -> Pixels:
    classes = _classes(layout, at, load)
    images, labels = [], []
    for file in layout.parts(split):
        where = str(at / file)
        batch = read_pickle(where, load(file))
        rows = _key(where, batch, "data")
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != ROW:
            raise InputError(
                f"data in {where} must be an array of {ROW} bytes for each image, not "
                f"{rows.shape if isinstance(rows, np.ndarray) else type(rows).__name__}"
            )
        here = labels_of(where, _key(where, batch, layout.labels), layout.classes)
        if len(here) != len(rows):
            raise InputError(f"{where} holds {len(rows)} images but {len(here)} labels")
        # A row is all of its red, then all green, then all blue.
        images.append(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
        labels.append(here)
    together = np.concatenate(labels)
    check_every_class(str(at), together, classes, split)
    return Pixels(layout.name, classes, together, np.ascontiguousarray(np.concatenate(images)))


def _classes(layout: Layout, at: Path, load: Callable[[str], bytes]) -> tuple[str, ...]:
    where = str(at / layout.meta)
    names = _key(where, read_pickle(where, load(layout.meta)), layout.names)
    if not isinstance(names, list) or not all(isinstance(n, (bytes, str)) for n in names):
        raise InputError(f"{layout.names} in {where} must be a list of names")
    if len(names) != layout.classes:
        raise InputError(f"{where} names {len(names)} classes; {layout.name} has {layout.classes}")
    return tuple(text(n) for n in names)


def _key(where: str, batch: dict[str, Any], key: str) -> Any:
    if key not in batch:
        raise InputError(f"{where} holds no {key}; it holds {', '.join(batch) or 'nothing'}"[:300])
    return batch[key]
