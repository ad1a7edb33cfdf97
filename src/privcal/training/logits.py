"""Logit archives: what a network says about images, clean and under each corruption."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import privcal
from privcal.corruptions import corrupt
from privcal.datasets.images import Corrupted, Images
from privcal.errors import InputError
from privcal.files import replacing
from privcal.simulate.archive import CLEAN
from privcal.training.checkpoint import Checkpoint
from privcal.training.networks import Network


def network_logits(
    network: Network,
    images: Images,
    device: str,
    change: Callable[[Tensor, int], Tensor] | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> NDArray[np.float32]:
    """Logits (rows, classes); `change` is told the pixels and the number of their first row."""
    network.eval()
    found = []
    with torch.inference_mode():
        for first in range(0, len(images), size := _batch(images.side, device)):
            pixels = torch.from_numpy(images.take(slice(first, first + size))).to(device)
            if change is not None:
                pixels = change(pixels, first)
            found.append(network(pixels).float().cpu().numpy())
            progress(len(pixels))
    return np.concatenate(found)


def _batch(side: int, device: str) -> int:
    """Images at a time, so that what lies between the layers fits into memory."""
    return max(16, (200_000 if device == "cpu" else 2_000_000) // side**2)


def digest(images: Images) -> str:
    """Tells one set of images from another: its labels, and the pixels of some of them."""
    some = np.unique(np.linspace(0, len(images) - 1, 64).astype(np.intp))
    found = hashlib.sha256(np.ascontiguousarray(images.labels, dtype="<i8").tobytes())
    found.update(np.ascontiguousarray(images.take(some)).tobytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Making:
    """What an archive is made of."""

    checkpoint: Checkpoint
    images: Images
    """The clean test images."""
    severity: int
    corrupted: Corrupted | None = None
    """A published archive of corrupted images; without one they are made here."""
    frost: Sequence[Tensor] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        model, images = self.checkpoint, self.images
        if len(images.classes) != len(model.classes) or images.name != model.recipe.data:
            raise InputError(
                f"the network was trained on {model.recipe.data} with {len(model.classes)} "
                f"classes; these images are {images.name} with {len(images.classes)}"
            )
        if images.classes != model.classes:
            raise InputError("the network was trained with classes of other names than these")
        if images.side != model.side:
            raise InputError(
                f"the network was trained on images of {model.side} pixels a side; "
                f"these have {images.side}"
            )
        there = self._published()
        if there is not None and (there.side != images.side or not same_rows(there, images)):
            raise InputError(
                f"{there.name} has other images than the clean test set; rows must line up"
            )

    def _published(self) -> Images | None:
        """One corruption of the published archive, which has the same rows for each."""
        if self.corrupted is None:
            return None
        return self.corrupted.images(self.corrupted.corruptions[0], self.severity)

    def logits(
        self, shift: str, network: Network, device: str, progress: Callable[[int], None]
    ) -> NDArray[np.float16]:
        images, change = self.images, None
        if shift != CLEAN and self.corrupted is not None:
            images = self.corrupted.images(shift, self.severity)
        elif shift != CLEAN:

            def change(pixels: Tensor, first: int) -> Tensor:
                return corrupt(
                    pixels, shift, self.severity, seed=self.seed, first=first, frost=self.frost
                )

        with np.errstate(over="ignore"):
            found = network_logits(network, images, device, change, progress).astype(np.float16)
        if not np.isfinite(found).all():
            raise InputError(
                f"the network's logits under {shift} are not all finite numbers below 65,504; "
                "it cannot be used"
            )
        return found

    def identity(self) -> dict[str, Any]:
        """All that the logits depend on: parts of an interrupted run must agree in it."""
        weights = hashlib.sha256()
        for name, value in self.checkpoint.weights.items():
            weights.update(name.encode() + value.cpu().numpy().tobytes())
        there = self._published()
        frost: str | None = "procedural" if there is None else None
        if self.frost is not None:
            pictures = hashlib.sha256(b"".join(p.cpu().numpy().tobytes() for p in self.frost))
            frost = pictures.hexdigest()[:16]
        return {
            "dataset": f"{self.images.name}-C",
            "severity": self.severity,
            "rows": len(self.images),
            "network": self.checkpoint.recipe.network,
            "weights": weights.hexdigest()[:16],
            "images": digest(self.images),
            "corrupted": "made by privcal"
            if there is None
            else f"published archive {digest(there)}",
            "frost": frost,
            "recipe": self.checkpoint.recipe.to_dict(),
            "epochs": self.checkpoint.epochs,
            "seeds": {
                "training": self.checkpoint.recipe.seed,
                "corruptions": self.seed if there is None else None,
            },
            "versions": {
                "privcal": privcal.__version__,
                "numpy": np.__version__,
                "torch": str(torch.__version__),
                "torch in training": self.checkpoint.torch,
            },
        }


def same_rows(one: Images, other: Images) -> bool:
    names = [getattr(images, "names", None) for images in (one, other)]
    return np.array_equal(one.labels, other.labels) and (None in names or names[0] == names[1])


def make_archive(
    making: Making,
    shifts: Sequence[str],
    out: Path,
    *,
    device: str = "cpu",
    progress: Callable[[str, int], None] = lambda shift, rows: None,
) -> dict[str, Any]:
    """Write `out`, an archive that a study reads, unless it is there; returns its provenance.

    Finished shifts wait in a folder beside it, so an interrupted run goes on where it stopped.
    Another archive, which may have taken hours, is not replaced.
    """
    identity = making.identity()
    if out.exists():
        done = _done(out, identity, shifts)
        if done is None:
            raise InputError(f"{out} is there and another archive; delete it, or rename --out")
        for shift in shifts:
            progress(shift, len(making.images))
        return done
    parts = out.with_name(out.name + ".parts")
    about = parts / "about.json"
    if any(parts.glob("*.npy")) and _about(about) != identity:
        raise InputError(f"{parts} holds parts of another archive; delete it, or rename --out")
    parts.mkdir(exist_ok=True)
    with replacing(about) as part:
        part.write_text(json.dumps(identity), encoding="utf-8")
    network = making.checkpoint.network(device)
    entries: dict[str, Any] = {}
    accuracy: dict[str, float] = {}
    for shift in shifts:
        path = parts / f"{shift}.npy"
        found = _part(path)
        if found is not None:
            progress(shift, len(making.images))
        else:
            found = making.logits(shift, network, device, lambda rows: progress(shift, rows))  # noqa: B023
            with replacing(path) as part:
                np.save(part, found)
        entries[shift] = found
        right = found.argmax(1) == making.images.labels
        accuracy[shift] = round(float(right.mean()), 4)
    meta = {**identity, "accuracy": accuracy}
    labels = making.images.labels.astype(np.int16)
    with replacing(out) as part:
        np.savez_compressed(part, meta=np.array(json.dumps(meta)), labels=labels, **entries)
    shutil.rmtree(parts)
    return meta


def _about(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):  # parts that nobody knows the origin of
        return None


def _part(path: Path) -> Any:
    """Logits of an earlier run; None where there are none, or they cannot be read."""
    try:
        return np.load(path, allow_pickle=False)
    except Exception:  # NumPy raises all kinds on damaged files
        return None


def _done(out: Path, identity: dict[str, Any], shifts: Sequence[str]) -> dict[str, Any] | None:
    """The provenance of the archive in `out`, if it is the one that is asked for."""
    try:
        with np.load(out, allow_pickle=False) as found:
            meta: dict[str, Any] = json.loads(str(found["meta"]))
            same = identity == {k: v for k, v in meta.items() if k != "accuracy"}
            return meta if same and set(found.files) == {"meta", "labels", *shifts} else None
    except Exception:  # something else, or damaged
        return None
