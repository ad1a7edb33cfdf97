"""The paper's networks: Wide ResNets (CIFAR) and ResNet-50 (ImageNet), on raw pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privcal.errors import InputError

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
