"""Networks as others write them: modules and names of the common public implementations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn


def normalised(channels: int) -> nn.BatchNorm2d:
    """With statistics as of a trained network: far from those of a fresh one."""
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias, std=0.3)
    norm.running_mean.normal_(0, 0.3)
    norm.running_var.uniform_(0.5, 2)
    return norm


class Bottleneck(nn.Module):
    """1×1, 3×3 (which has the stride), 1×1; the shortcut is projected where shapes differ."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = normalised(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = normalised(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = normalised(planes * 4)
        if stride != 1 or inputs != planes * 4:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, planes * 4, 1, stride=stride, bias=False), normalised(planes * 4)
            )

    def forward(self, x: Any) -> Any:
        out = self.bn1(self.conv1(x)).relu()
        out = self.bn2(self.conv2(out)).relu()
        out = self.bn3(self.conv3(out))
        return (out + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet50(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = normalised(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for number, (planes, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
            layers = []
            for block in range(blocks):
                layers.append(Bottleneck(inputs, planes, 2 if number > 1 and block == 0 else 1))
                inputs = planes * 4
            setattr(self, f"layer{number}", nn.Sequential(*layers))
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class BasicBlock(nn.Module):
    """Normalise and rectify first; a projected shortcut takes what was rectified."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = normalised(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = normalised(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        if inputs != outputs:
            self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Any) -> Any:
        active = torch.relu(self.bn1(x))
        out = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return out + (self.convShortcut(active) if hasattr(self, "convShortcut") else x)


class NetworkBlock(nn.Module):
    def __init__(self, blocks: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            *(
                BasicBlock(inputs if i == 0 else outputs, outputs, stride if i == 0 else 1)
                for i in range(blocks)
            )
        )

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class WideResNet(nn.Module):
    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block1 = NetworkBlock(blocks, 16, 16 * width, 1)
        self.block2 = NetworkBlock(blocks, 16 * width, 32 * width, 2)
        self.block3 = NetworkBlock(blocks, 32 * width, 64 * width, 2)
        self.bn1 = normalised(64 * width)
        self.fc = nn.Linear(64 * width, classes)

    def forward(self, x: Any) -> Any:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        x = nn.functional.adaptive_avg_pool2d(torch.relu(self.bn1(x)), 1)
        return self.fc(x.flatten(1))


def write_safetensors(path: Path, entries: dict[str, Any]) -> Path:
    """Written from the format's description: a length, a header, the numbers."""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    end = 0
    for name, value in entries.items():
        data = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        place = [end, end + len(data)]
        kind, shape = kinds[value.dtype], list(value.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": place}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return path
