"""Networks trained elsewhere: their weights, given as safetensors or as a state dict."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privcal.lab.images import ImageSet
from privcal.lab.training.logits import Network, ResNet50, build
from privcal.lab.training.train import Recipe, load_weights, read_recipe, recipe_names
from privcal.trusted.errors import InputError

# --- Reading .safetensors files: a length, a JSON header, then the numbers, end to end ------------
# Read here rather than by the compiled package of that name: the format is small, and nothing in such a
# file can run.

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        if start > len(data):
            raise ValueError
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        body = memoryview(data)[start:]
        return {name: _tensor(path, name, entry, body) for name, entry in header.items()}
    except InputError:
        raise
    except (AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError):
        raise InputError(
            f"{path} is not a readable .safetensors file, or is cut short; download it again"
        ) from None


def _tensor(path: Path, name: str, entry: dict[str, Any], data: memoryview) -> Tensor:
    kind, (begin, end) = entry["dtype"], entry["data_offsets"]
    shape = torch.Size([*entry["shape"]])
    if isinstance(kind, str) and kind not in TYPES:
        raise InputError(f"{path}: {name!r:.80} is of type {kind!r:.20}, which is not read here")
    inside = 0 <= begin <= end <= len(data)
    # An array without numbers may have any other axes: no more than torch can take.
    few = len(shape) <= 64 and math.prod(filter(None, shape)) < 2**62
    if not inside or not few or min(shape, default=0) < 0:
        raise ValueError
    # In memory of its own, which begins where its type may begin.
    numbers = torch.empty(0, dtype=TYPES[kind])
    if begin < end:
        numbers = torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[kind])
    return numbers.reshape(shape)


# --- Networks trained elsewhere -------------------------------------------------------------------

PREFIXES = ("module.", "model.", "_orig_mod.", "body.")
"""What wrappers put before the name of every entry."""
WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
"""Entries of a checkpoint that hold the state dict."""
COUNTER = "num_batches_tracked"
"""Of no influence on logits; some files leave it out."""
ALIASES = {
    "resnet": ((r"\.shortcut\.", ".downsample."), (r"^(linear|classifier)\.", "fc.")),
    "wide": (
        (r"^(?:layer|group)(\d)\.(\d+)\.", r"block\1.layer.\2."),
        (r"\.(?:shortcut|downsample)(?:\.0)?\.", ".convShortcut."),
        (r"^(linear|classifier)\.", "fc."),
    ),
}
"""Other names for the same entries."""


@dataclass
class Pretrained:
    """A network trained elsewhere, for the images of one data set."""

    name: str
    """Its architecture, as `build` takes it."""
    trained_on: str
    classes: tuple[str, ...]
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: dict[str, Any]
    """Under the names of our own networks."""

    def network(self, device: str) -> Network:
        network = build(self.name, len(self.classes), self.mean, self.std)
        network.body.load_state_dict(self.weights)
        network.to(device).eval()
        return network

    def about(self) -> dict[str, Any]:
        return {
            "network": self.name,
            "trained": "elsewhere; the weights were given",
            "mean": list(self.mean),
            "std": list(self.std),
        }


def load_pretrained(
    path: str | Path,
    name: str,
    images: ImageSet,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Pretrained:
    """The network of that name with the weights in a file.

    Its outputs are taken to be the classes of `images` in their order. Pixels, from 0 to 1, are
    normalised with `mean` and `std`; by default with the usual ones of the data set.
    """
    usual = _recipe_of(images.name)
    mean, std = usual.mean if mean is None else mean, usual.std if std is None else std
    body = build(name, len(images.classes), mean, std).body
    weights = _matched(Path(path), name, body, _read(Path(path)))
    return Pretrained(
        name, images.name, images.classes, images.side, tuple(mean), tuple(std), weights
    )


def _recipe_of(data: str) -> Recipe:
    return next(r for r in map(read_recipe, recipe_names()) if r.data == data)


def _read(path: Path) -> dict[str, Tensor]:
    """The entries of a file, without wrappers around them."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        content: Any = read_safetensors(path)
    else:
        try:
            content = load_weights(path)
        except Exception:
            raise InputError(
                f"{path} is no state dict that can be read without running code, or is cut short; "
                "save the network's state_dict(), or safetensors"
            ) from None
    for _ in WRAPPERS:  # not for ever: a checkpoint may hold itself
        if isinstance(content, Mapping):
            wrapped = (content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping))
            content = next(wrapped, content)
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path} holds no state dict: no entries with names")
    entries = dict(content)
    while prefix := next((p for p in PREFIXES if _all_begin(entries, p)), None):
        entries = {key.removeprefix(prefix): value for key, value in entries.items()}
    return entries


def _all_begin(entries: Mapping[str, Any], prefix: str) -> bool:
    return bool(entries) and all(key.startswith(prefix) for key in entries)


def _matched(path: Path, name: str, body: Any, entries: dict[str, Any]) -> dict[str, Tensor]:
    """The entries under our own names, in our own shapes; InputError names the first that is not."""
    kind = "resnet" if isinstance(body, ResNet50) else "wide"
    given: dict[str, str] = {}
    for key in entries:
        known = key
        for pattern, usual in ALIASES[kind]:
            known = re.sub(pattern, usual, known)
        given[known] = key
    weights: dict[str, Tensor] = {}
    for own, ours in body.state_dict().items():
        theirs = _resnet_name(own) if kind == "resnet" else _wide_name(own, len(body.groups) // 3)
        key = given.pop(theirs, "") or given.pop(own, "")
        if own.endswith(COUNTER):
            weights[own] = ours
            continue
        if not key:
            raise InputError(f"{path} has no entry {theirs}, which a {name} needs")
        value = entries[key]
        if not _plain(value) or not value.is_floating_point():
            raise InputError(f"{path}: {key} is not an array of decimal numbers")
        if value.shape != ours.shape:
            raise InputError(
                f"{path}: {key} has shape {tuple(value.shape)}, but a {name} with "
                f"{body.head.out_features} classes needs {tuple(ours.shape)}"
            )
        weights[own] = value.float()
        if not torch.isfinite(weights[own]).all():
            raise InputError(f"{path}: {key} holds a value that is not a finite number")
    for unexpected in given.values():
        raise InputError(f"{path} has an entry {unexpected!r:.80}, which a {name} does not have")
    return weights


def _plain(value: Any) -> bool:
    """Whether it is a tensor with all its numbers: not sparse, nested, or a shape alone."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_meta
    )


def _resnet_name(own: str) -> str:
    """The name of an entry in torchvision's ResNet-50."""
    own = own.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.")
    if group := re.match(r"groups\.(\d+)\.", own):
        block = int(group[1])
        for number, blocks in enumerate((3, 4, 6, 3), start=1):
            if block < blocks:
                own = f"layer{number}.{block}.{own[group.end() :]}"
                break
            block -= blocks
    own = re.sub(r"\.norm(\d)\.", r".bn\1.", own).replace("pass_on", "downsample")
    return re.sub(r"^head\.", "fc.", own)


def _wide_name(own: str, blocks: int) -> str:
    """The name of an entry in the usual Wide ResNets for PyTorch, with that many blocks a group."""
    own = own.replace("stem.", "conv1.")
    if group := re.match(r"groups\.(\d+)\.", own):
        number, block = divmod(int(group[1]), blocks)
        own = f"block{number + 1}.layer.{block}.{own[group.end() :]}"
    own = re.sub(r"\.norm(\d)\.", r".bn\1.", own).replace("pass_on", "convShortcut")
    return re.sub(r"^head\.", "fc.", re.sub(r"^norm\.", "bn1.", own))
