"""The kernel's sums along a row in C, where they were built: the loader of `compiled.c`.

The library is built when privcal is installed where there is a C compiler (`hatch_build.py`), and
absent otherwise: then NumPy does the same. PRIVCAL_KERNEL=numpy does without the library,
PRIVCAL_KERNEL=c insists on it. ctypes lets go of the GIL during a call.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privcal.trusted.errors import InputError

if TYPE_CHECKING:  # `privcal --version` asks which kernel works here, and needs no NumPy
    import numpy as np
    import numpy.typing as npt

SOURCE = Path(__file__).with_name("compiled.c")
LIBRARY = Path(__file__).with_name("libcompiled.so")
SETS = ("generic", "avx2", "avx512")
"""The instruction sets, in the order of the C file; all give the same bits."""

_TYPES = {"ff": 0, "fd": 1, "dd": 2}  # given and working precision, by NumPy's letters
_KERNELS = ("c", "numpy")


def in_use() -> str:
    """The kernel that works here: "c" or "numpy"."""
    wanted = os.environ.get("PRIVCAL_KERNEL", "")
    if wanted and wanted not in _KERNELS:
        raise InputError(f"PRIVCAL_KERNEL must be c or numpy, or not be set, not {wanted!r}")
    if wanted == "c" and _library() is None:
        raise InputError(
            "PRIVCAL_KERNEL asks for the kernel in C, which is not built here; install privcal again "
            "where there is a C compiler, or set PRIVCAL_KERNEL=numpy"
        )
    return wanted or ("numpy" if _library() is None else "c")


def reads(array: npt.NDArray[Any], work: np.dtype[Any]) -> bool:
    """Whether the library can read these rows where they lie, and work them in that precision."""
    side_by_side = array.strides[1] == array.itemsize or array.shape[1] == 1
    return side_by_side and array.dtype.isnative and _types(array, work) is not None


def sums(
    array: npt.NDArray[Any],
    work: np.dtype[Any],
    beta: float,
    out: npt.NDArray[np.float64],
    top: npt.NDArray[np.float64] | None = None,
    without: npt.NDArray[np.int64] | None = None,
    instructions: str | None = None,
) -> None:
    """Write S0 of each row into `out[0]` and, where `out` has three lines, S1 and S2 into the others.

    `top` is subtracted first; S0 may leave out the column `without` of each row.
    """
    library = _library()
    assert library is not None
    assert out.flags.c_contiguous
    first, line = out.ctypes.data, out.strides[0]
    library.privcal_sums(
        SETS.index(instructions or instruction_sets()[-1]),
        _types(array, work),
        array.ctypes.data,
        array.strides[0],
        *array.shape,
        None if top is None else top.ctypes.data,
        None if without is None else without.ctypes.data,
        beta,
        first,
        *((first + line, first + 2 * line) if len(out) == 3 else (None, None)),
    )


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those that this processor has; the last is the fastest."""
    library = _library()
    return () if library is None else SETS[: library.privcal_sets()]


def source_digest() -> str:
    """What a library must say that it was built from."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.privcal_source.restype = ctypes.c_char_p
        if library.privcal_source().decode() != source_digest():
            return None  # left over from before the C file changed
    except (OSError, AttributeError):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    library.privcal_sums.restype = None
    library.privcal_sums.argtypes = [
        *(ctypes.c_int, ctypes.c_int, pointer, size, size, size, pointer, pointer),
        *(ctypes.c_double, pointer, pointer, pointer),
    ]
    return library


def _types(array: npt.NDArray[Any], work: np.dtype[Any]) -> int | None:
    return _TYPES.get(array.dtype.char + work.char)
