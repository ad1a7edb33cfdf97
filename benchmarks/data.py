"""Synthetic logits whose right temperature is known to be about 2."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TEMPERATURE = 2.0


@lru_cache(maxsize=1)  # the large table is shared by two benchmarks; two of them would not pay
def synthetic(rows: int, classes: int) -> tuple[Logits, Labels]:
    """Normal logits with one raised class in each row; labels drawn from softmax(logits/2)."""
    rng = np.random.default_rng(rows + classes)
    logits = rng.standard_normal((rows, classes), np.float32)
    logits *= 2
    raised = rng.integers(classes, size=rows)
    logits[np.arange(rows), raised] += rng.uniform(0, 20, rows).astype(np.float32)
    labels = np.empty(rows, np.int64)
    for lo in range(0, rows, 1000):
        part = slice(lo, lo + 1000)
        cumulated = np.exp(logits[part] / TEMPERATURE, dtype=np.float64).cumsum(axis=1)
        drawn = rng.random(len(cumulated)) * cumulated[:, -1]
        labels[part] = (cumulated < drawn[:, None]).sum(axis=1)
    return logits, labels
