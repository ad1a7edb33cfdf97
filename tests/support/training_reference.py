"""The networks again, written slowly and separately in float64 from their papers' tables."""

from __future__ import annotations

from typing import Any

import numpy as np


def convolve(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    size = kernel.shape[2]
    edge = size // 2
    wide = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    high = (x.shape[2] + 2 * edge - size) // stride + 1
    out = np.zeros((x.shape[0], kernel.shape[0], high, high))
    for i in range(high):
        for j in range(high):
            top, left = i * stride, j * stride
            patch = wide[:, :, top : top + size, left : left + size]
            out[:, :, i, j] = np.tensordot(patch, kernel, ((1, 2, 3), (1, 2, 3)))
    return out


class Layers:
    """Takes the weights of each kind in the order in which they were made."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def conv(self, x: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        return convolve(x, self.weights[f"{name}.weight"], stride)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean, var, gain, bias = (
            self.weights[f"{name}.{part}"][None, :, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(var + 1e-5) * gain + bias

    def head(self, x: np.ndarray) -> np.ndarray:
        pooled = x.mean((2, 3))
        return pooled @ self.weights["head.weight"].T + self.weights["head.bias"]


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def wide_resnet(weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """16 layers, twice as wide: two blocks in each of three groups, the second and third halving."""
    net = Layers(weights)
    x = net.conv(x, "stem")
    for block in range(6):
        name = f"groups.{block}"
        stride = 2 if block in (2, 4) else 1
        ready = relu(net.norm(x, f"{name}.norm1"))
        y = net.conv(ready, f"{name}.conv1", stride)
        y = net.conv(relu(net.norm(y, f"{name}.norm2")), f"{name}.conv2")
        x = y + (net.conv(ready, f"{name}.pass_on", stride) if block in (0, 2, 4) else x)
    return net.head(relu(net.norm(x, "norm")))


def resnet50(weights: dict[str, Any], x: np.ndarray) -> np.ndarray:
    net = Layers(weights)
    small = weights["stem.0.weight"].shape[2] == 3
    x = relu(net.norm(net.conv(x, "stem.0", 1 if small else 2), "stem.1"))
    if not small:
        wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        high = x.shape[2] // 2
        pooled = [
            [wide[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((2, 3)) for j in range(high)]
            for i in range(high)
        ]
        x = np.array(pooled).transpose(2, 3, 0, 1)
    for block in range(16):
        name = f"groups.{block}"
        stride = 2 if block in (3, 7, 13) else 1
        y = relu(net.norm(net.conv(x, f"{name}.conv1"), f"{name}.norm1"))
        y = relu(net.norm(net.conv(y, f"{name}.conv2", stride), f"{name}.norm2"))
        y = net.norm(net.conv(y, f"{name}.conv3"), f"{name}.norm3")
        if block in (0, 3, 7, 13):
            x = net.norm(net.conv(x, f"{name}.pass_on.0", stride), f"{name}.pass_on.1")
        x = relu(x + y)
    return net.head(x)
