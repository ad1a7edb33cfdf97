"""Networks and their logits for an image set, clean and under each corruption: logit archives."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privcal.data.files import read_json, replacing, write_document
from privcal.lab.corruptions import corrupt
from privcal.lab.images import CorruptedArchive, ImageSet
from privcal.planning.simulate.archive import CLEAN, DRAWN_FROST, MADE_HERE
from privcal.trusted.errors import InputError
from privcal.version import __version__

# --- The paper's networks: Wide ResNets (CIFAR) and ResNet-50 (ImageNet), on raw pixels -----------

NETWORKS = "wrn-28-10 (or wrn-DEPTH-WIDTH), resnet-50, resnet-50-64"


def build(name: str, classes: int, mean: Sequence[float], std: Sequence[float]) -> Network:
    """A fresh network by name: `wrn-28-10`, `resnet-50`, or `resnet-50-64` for small images."""
    wide = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    body: nn.Module
    if wide:
        depth, width = int(wide[1]), int(wide[2])
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise InputError(
                f"a Wide ResNet's depth is 6n + 4 and its width at least 1, not {name}"
            )
        body = WideResNet((depth - 4) // 6, width, classes)
    elif name in ("resnet-50", "resnet-50-64"):
        body = ResNet50(classes, small=name.endswith("-64"))
    else:
        raise InputError(f"there is no network {name!r}; there are {NETWORKS}")
    network = Network(body, mean, std)
    network.to(memory_format=torch.channels_last)
    return network


class Network(nn.Module):
    """Images (n, side, side, 3) as uint8 in, logits out, so that no caller has to normalise."""

    def __init__(self, body: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("scale", 1 / (255 * torch.tensor(std).view(1, 3, 1, 1)))

    def forward(self, pixels: Tensor) -> Tensor:
        # Seen channel by channel, rows of pixels are "channels last" already: nothing is copied.
        return self.body((pixels.permute(0, 3, 1, 2).float() - self.mean) * self.scale)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _initialise(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class _Wide(nn.Module):
    """Normalise, rectify, convolve, twice; the input is added to the result."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.conv2 = _convolution(outputs, outputs, 3)
        # The shortcut connection; attributes name the weights in checkpoints, so this one stays.
        self.pass_on = _convolution(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        ready = F.relu(self.norm1(x))
        x = x if self.pass_on is None else self.pass_on(ready)
        return x + self.conv2(F.relu(self.norm2(self.conv1(ready))))


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis 2016: three groups of blocks of 16, 32 and 64 times `width` channels."""

    def __init__(self, blocks: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = _convolution(3, 16, 3)
        groups, inputs = [], 16
        for group in range(3):
            for block in range(blocks):
                outputs = 16 * width * 2**group
                groups.append(_Wide(inputs, outputs, 2 if group and not block else 1))
                inputs = outputs
        self.groups = nn.Sequential(*groups)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        _initialise(self)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.groups(self.stem(x))))
        return self.head(x.mean((2, 3)))


class _Bottleneck(nn.Module):
    """Three convolutions, the middle one narrow; the input is added to the result."""

    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        self.conv1, self.norm1 = _convolution(inputs, middle, 1), nn.BatchNorm2d(middle)
        self.conv2, self.norm2 = _convolution(middle, middle, 3, stride), nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = _convolution(middle, outputs, 1), nn.BatchNorm2d(outputs)
        self.pass_on = None
        if inputs != outputs:
            self.pass_on = nn.Sequential(
                _convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.pass_on is None else self.pass_on(x)))


class ResNet50(nn.Module):
    """He et al. 2015, with the stride in the 3 x 3 convolution.

    For images of 64 x 64 (`small`) the stem keeps the resolution: the usual one would leave
    2 x 2 pixels to the last group.
    """

    def __init__(self, classes: int, small: bool) -> None:
        super().__init__()
        if small:
            self.stem = nn.Sequential(_convolution(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        else:
            self.stem = nn.Sequential(
                _convolution(3, 64, 7, 2),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.MaxPool2d(3, 2, padding=1),
            )
        groups, inputs = [], 64
        for group, blocks in enumerate((3, 4, 6, 3)):
            middle = 64 * 2**group
            for block in range(blocks):
                groups.append(_Bottleneck(inputs, middle, 2 if group and not block else 1))
                inputs = 4 * middle
        self.groups = nn.Sequential(*groups)
        self.head = nn.Linear(inputs, classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.groups(self.stem(x)).mean((2, 3)))


# --- Logit archives -------------------------------------------------------------------------------


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
            "seeds": {"training": seed, "corruptions": self.seed if published is None else None},
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
