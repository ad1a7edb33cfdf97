"""Miniature archives, each in the exact layout of a published one."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from privcal.lab.images.sets import CIFAR10, CIFAR100, CORRUPTIONS

WNIDS = ("n01443537", "n01629819", "n02085620")


def random_images(rows, classes, *, seed=0, side=32):
    """Noise, and labels in no order, each of them there where there are enough rows."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (rows, side, side, 3), np.uint8)
    return pixels, rng.permutation(np.arange(rows) % classes)


# --- CIFAR for Python: pickles that Python 2 wrote ------------------------------------------------


def python2_pickle(value):
    """Protocol 2 with the byte strings and the array layout of Python 2."""
    return b"\x80\x02" + _item(value) + b"."


def _item(value):
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_item, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_item(k) + _item(v) for k, v in value.items()) + b"u"
    kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(map(_item, value.shape)) + b"t"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
    return empty + b"(K\x01" + shape + kind + b"\x89" + _item(value.tobytes()) + b"tb"


def cifar10(parent: Path, train, test) -> Path:
    folder = parent / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels, labels = train
    for i, rows in enumerate(np.array_split(np.arange(len(labels)), 5), 1):
        _batch(folder / f"data_batch_{i}", pixels[rows], labels[rows], b"labels")
    _batch(folder / "test_batch", *test, b"labels")
    names = [name.encode() for name in CIFAR10]
    meta = {b"num_cases_per_batch": 10000, b"label_names": names, b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2_pickle(meta))
    (folder / "readme.html").write_text("<html>")
    return folder


def cifar100(parent: Path, train, test) -> Path:
    folder = parent / "cifar-100-python"
    folder.mkdir(parents=True)
    _batch(folder / "train", *train, b"fine_labels")
    _batch(folder / "test", *test, b"fine_labels")
    names = [name.encode() for name in CIFAR100]
    meta = {b"fine_label_names": names, b"coarse_label_names": [b"aquatic_mammals"]}
    (folder / "meta").write_bytes(python2_pickle(meta))
    (folder / "file.txt~").write_text("")
    return folder


def _batch(path, pixels, labels, key):
    rows = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), 3072)
    names = [b"some_%d.png" % i for i in range(len(rows))]
    batch = {
        b"batch_label": b"training batch 1 of 5",
        key: labels.tolist(),
        b"data": rows,
        b"filenames": names,
    }
    if key == b"fine_labels":
        batch[b"coarse_labels"] = (labels // 5).tolist()
    path.write_bytes(python2_pickle(batch))


def packed(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as tar:
        tar.add(folder, folder.name)
    return to


def packed_members(to: Path, members: dict[str, bytes]) -> Path:
    """A packed archive with these names, however strange."""
    with tarfile.open(to, "w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return to


# --- CIFAR-10 as rows of PNGs ---------------------------------------------------------------------


def png_rows(folder: Path, train, test) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = train
    for i, rows in enumerate(np.array_split(np.arange(len(labels)), 5), 1):
        _png(folder / f"data_batch_{i}.png", pixels[rows])
    _png(folder / "test_batch.png", test[0])
    (folder / "train_lables.json").write_text(json.dumps(labels.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(test[1].tolist()))
    (folder / "package.json").write_text("{}")
    return folder


def _png(path, pixels):
    Image.fromarray(pixels.reshape(len(pixels), 1024, 3)).save(path)


# --- Image files ----------------------------------------------------------------------------------


def jpeg(path: Path, seed, size=(224, 224), mode="RGB", kind="JPEG") -> Path:
    """A smooth image of its own, in some mode."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (7, 7, 3), np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    small.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, kind)
    return path


def imagenet(root: Path, each=2, size=(260, 240)) -> Path:
    for seed, wnid in enumerate(WNIDS):
        for i in reversed(range(each)):
            jpeg(root / "train" / wnid / f"{wnid}_{i}.JPEG", (1, seed, i), size)
            # Numbers run against the classes: the order of rows is by class first.
            jpeg(root / "val" / wnid / f"ILSVRC2012_val_{9 - seed}{i}.JPEG", (2, seed, i), size)
    return root


def tiny(parent: Path, each=2) -> Path:
    root = parent / "tiny-imagenet-200"
    lines = []
    for seed, wnid in enumerate(WNIDS):
        for i in range(each):
            mode = "L" if i == 0 else "RGB"
            jpeg(
                root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (3, seed, i), (64, 64), mode
            )
            name = f"val_{9 - seed + 10 * i}.JPEG"
            jpeg(root / "val" / "images" / name, (4, seed, i), (64, 64), mode)
            lines.append(f"{name}\t{wnid}\t0\t32\t44\t62\n")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(WNIDS)))
    (root / "val" / "val_annotations.txt").write_text("".join(sorted(lines)))
    return root


# --- Corrupted ------------------------------------------------------------------------------------


def cifar_c(folder: Path, labels, names=CORRUPTIONS, seed=0) -> dict[str, np.ndarray]:
    """All severities of the same labels; the pixels of each corruption."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    arrays = {}
    for name in names:
        arrays[name] = rng.integers(0, 256, (5 * len(labels), 32, 32, 3), np.uint8)
        np.save(folder / f"{name}.npy", arrays[name])
    return arrays


def imagenet_c(root: Path, names=("snow", "gaussian_noise"), size=(224, 224), groups=()) -> Path:
    """With `groups`, each corruption is in the folder that is published with it."""
    for a, name in enumerate(names):
        above = root / groups[a] if groups else root
        for severity in range(1, 6):
            for b, wnid in enumerate(WNIDS):
                for i in range(2):
                    file = f"ILSVRC2012_val_{9 - b}{i}.JPEG"
                    place = above / name / str(severity) / wnid / file
                    jpeg(place, (5, a, severity, b, i), size)
    return root
