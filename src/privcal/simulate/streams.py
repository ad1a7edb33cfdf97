"""A random stream of its own for each name, whatever else runs and in whatever order."""

from __future__ import annotations

import zlib

import numpy as np


def sequence(seed: int, *names: object) -> np.random.SeedSequence:
    """The seed of one stream; names are told apart by their text."""
    key = tuple(zlib.crc32(str(name).encode()) for name in names)
    return np.random.SeedSequence(seed, spawn_key=key)


def stream(seed: int, *names: object) -> np.random.Generator:
    """The stream itself."""
    return np.random.default_rng(sequence(seed, *names))
