"""The kernels that are here, each to be chosen for a while."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from privcal.calibration import compiled

NAMES = {"c": "C kernel", "numpy": "NumPy kernel"}


def kernels() -> tuple[str, ...]:
    """The C kernel, where it is built, and NumPy's."""
    return ("c", "numpy") if compiled.instruction_sets() else ("numpy",)


@contextmanager
def using(kernel: str) -> Iterator[None]:
    with patch.dict(os.environ, PRIVCAL_KERNEL=kernel):
        yield


def by_kernel(kernel: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, made with that kernel."""

    def made() -> Any:
        with using(kernel):
            return call()

    return made
