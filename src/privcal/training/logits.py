"""Logit archives: a network's logits for an image set, clean and under each corruption."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privcal.corruptions import corrupt
from privcal.documents import read_json, write_document
from privcal.errors import InputError
from privcal.files import replacing
from privcal.images import CorruptedArchive, ImageSet
from privcal.simulate.archive import CLEAN, DRAWN_FROST, MADE_HERE
from privcal.training.networks import Network
from privcal.version import __version__


def network_logits(
    network: Network,
    images: ImageSet,
    device: str,
    corruption: Callable[[Tensor, int], Tensor] | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> NDArray[np.float32]:
    """Logits (rows, classes); `corruption` takes a batch and the index of its first row in the set."""
    network.eval()
    batches = []
    with torch.inference_mode():
        for first in range(0, len(images), size := _batch_size(images.side, device)):
            pixels = torch.from_numpy(images.take(slice(first, first + size))).to(device)
            if corruption is not None:
                pixels = corruption(pixels, first)
            batches.append(network(pixels).float().cpu().numpy())
            progress(len(pixels))
    return np.concatenate(batches)


def _batch_size(side: int, device: str) -> int:
    """Number of images at a time, such that the values between the layers fit into memory."""
    return max(16, (200_000 if device == "cpu" else 2_000_000) // side**2)


def digest(images: ImageSet) -> str:
    """A hash of the labels and of the pixels of some images, to tell image sets apart."""
    some = np.unique(np.linspace(0, len(images) - 1, 64).astype(np.intp))
    sha = hashlib.sha256(np.ascontiguousarray(images.labels, dtype="<i8").tobytes())
    sha.update(np.ascontiguousarray(images.take(some)).tobytes())
    return sha.hexdigest()[:16]


class Model(Protocol):
    """A trained network: what `privcal data train` wrote, or weights from elsewhere."""

    @property
    def trained_on(self) -> str:
        """Name of the image set."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def side(self) -> int:
        """Height and width in pixels of its images."""

    @property
    def weights(self) -> dict[str, Any]: ...

    def network(self, device: str) -> Network: ...

    def about(self) -> dict[str, Any]:
        """Its part of an archive's provenance; `seed` and `torch` are those of the training."""


@dataclass(frozen=True)
class ArchiveSpec:
    """Specification of a logit archive: the network, the images and their corruptions."""

    model: Model
    images: ImageSet
    """The clean test images."""
    severity: int
    corrupted: CorruptedArchive | None = None
    """A published archive of corrupted images; without one they are made here."""
    frost: Sequence[Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        model, images = self.model, self.images
        if len(images.classes) != len(model.classes) or images.name != model.trained_on:
            raise InputError(
                f"the network was trained on {model.trained_on} with {len(model.classes)} "
                f"classes; these images are {images.name} with {len(images.classes)}"
            )
        if images.classes != model.classes:
            raise InputError("the network was trained with classes of other names than these")
        if images.side != model.side:
            raise InputError(
                f"the network was trained on images of {model.side} pixels a side; "
                f"these have {images.side}"
            )
        published = self._published()
        if published is not None and (
            published.side != images.side or not same_rows(published, images)
        ):
            raise InputError(
                f"{published.name} has other images than the clean test set; rows must line up"
            )

    def _published(self) -> ImageSet | None:
        """The first corruption of the published archive, which has the same rows for each."""
        if self.corrupted is None:
            return None
        return self.corrupted.images(self.corrupted.corruptions[0], self.severity)

    def logits(
        self, shift: str, network: Network, device: str, progress: Callable[[int], None]
    ) -> NDArray[np.float16]:
        images, corruption = self.images, None
        if shift != CLEAN and self.corrupted is not None:
            images = self.corrupted.images(shift, self.severity)
        elif shift != CLEAN:

            def corruption(pixels: Tensor, first: int) -> Tensor:
                return corrupt(
                    pixels, shift, self.severity, seed=self.seed, first=first, frost=self.frost
                )

        with np.errstate(over="ignore"):
            logits = network_logits(network, images, device, corruption, progress)
            halves = logits.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InputError(
                f"the network's logits under {shift} are not all finite numbers below 65,504; "
                "it cannot be used"
            )
        return halves

    def identity(self) -> dict[str, Any]:
        """Everything that the logits depend on; parts of an interrupted run must agree in it."""
        weights = hashlib.sha256()
        for name, value in self.model.weights.items():
            weights.update(name.encode() + value.cpu().numpy().tobytes())
        published = self._published()
        frost: str | None = DRAWN_FROST[0] if published is None else None
        if self.frost is not None:
            levels = b"".join(image.cpu().numpy().tobytes() for image in self.frost)
            frost = f"photographs {hashlib.sha256(levels).hexdigest()[:16]}"
        about = self.model.about()
        seed, version = about.pop("seed", None), about.pop("torch", None)
        return {
            "dataset": f"{self.images.name}-C",
            "severity": self.severity,
            "rows": len(self.images),
            "weights": weights.hexdigest()[:16],
            "images": digest(self.images),
            "corrupted": MADE_HERE
            if published is None
            else f"published archive {digest(published)}",
            "frost": frost,
            **about,
            "seeds": {
                "training": seed,
                "corruptions": self.seed if published is None else None,
            },
            "versions": {
                "privcal": __version__,
                "numpy": np.__version__,
                "torch": str(torch.__version__),
                "torch in training": version,
            },
        }


def same_rows(one: ImageSet, other: ImageSet) -> bool:
    """Whether two sets have the same labels, and the same file names where both have names."""
    names = [getattr(images, "names", None) for images in (one, other)]
    return np.array_equal(one.labels, other.labels) and (None in names or names[0] == names[1])


def make_archive(
    spec: ArchiveSpec,
    shifts: Sequence[str],
    out: Path,
    *,
    device: str = "cpu",
    progress: Callable[[str, int], None] = lambda shift, rows: None,
) -> dict[str, Any]:
    """Write `out`, an archive that a study reads, unless it exists; returns its provenance.

    Finished shifts wait in a folder beside it, so an interrupted run goes on where it stopped.
    Another archive, which may have taken hours, is not replaced.
    """
    identity = spec.identity()
    if out.exists():
        existing = _existing(out, identity, shifts)
        if existing is None:
            raise InputError(f"{out} is there and another archive; delete it, or rename --out")
        for shift in shifts:
            progress(shift, len(spec.images))
        return existing
    parts = out.with_name(out.name + ".parts")
    about = parts / "about.json"
    if any(parts.glob("*.npy")) and _identity_of_parts(about) != identity:
        raise InputError(f"{parts} holds parts of another archive; delete it, or rename --out")
    parts.mkdir(exist_ok=True)
    write_document(about, identity)
    network = spec.model.network(device)
    entries: dict[str, Any] = {}
    accuracy: dict[str, float] = {}
    for shift in shifts:
        path = parts / f"{shift}.npy"
        logits = _read_part(path)
        if logits is not None:
            progress(shift, len(spec.images))
        else:
            logits = spec.logits(shift, network, device, lambda rows: progress(shift, rows))  # noqa: B023
            with replacing(path) as part:
                np.save(part, logits)
        entries[shift] = logits
        right = logits.argmax(1) == spec.images.labels
        accuracy[shift] = round(float(right.mean()), 4)
    meta = {**identity, "accuracy": accuracy}
    labels = spec.images.labels.astype(np.int16)
    with replacing(out) as part:
        np.savez_compressed(part, meta=np.array(json.dumps(meta)), labels=labels, **entries)
    shutil.rmtree(parts)
    return meta


def _identity_of_parts(path: Path) -> Any:
    try:
        return read_json(path, "description of parts")
    except InputError:  # parts that nobody knows the origin of
        return None


def _read_part(path: Path) -> Any:
    """Logits of an earlier run; None where there are none, or they cannot be read."""
    try:
        return np.load(path, allow_pickle=False)
    except Exception:  # NumPy raises all kinds on damaged files
        return None


def _existing(out: Path, identity: dict[str, Any], shifts: Sequence[str]) -> dict[str, Any] | None:
    """The provenance of the archive in `out`, if it is the one that is asked for."""
    try:
        with np.load(out, allow_pickle=False) as archive:
            meta: dict[str, Any] = json.loads(str(archive["meta"]))
            same = identity == {k: v for k, v in meta.items() if k != "accuracy"}
            return meta if same and set(archive.files) == {"meta", "labels", *shifts} else None
    except Exception:  # something else, or damaged
        return None
