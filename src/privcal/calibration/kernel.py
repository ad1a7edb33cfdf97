"""The kernel where no privacy depends on it: in C where that is built, and with the derivatives that fits need.

With the moments S1 = Σ z·exp(βz) and S2 = Σ z²·exp(βz) beside S0 (`privcal.trusted.kernel`), the derivatives
of the log-likelihood in β are S1/S0 and S2/S0 − (S1/S0)².

Here too a row's value is a function of that row alone, to the last bit. NumPy's proof is in
`privcal.trusted.kernel`; the two kernels may differ in last bits. Which one works is decided by what is
installed and by PRIVCAL_KERNEL, never by rows.

*C* (`compiled.c`). exp is written out in +, −, · and operations on bits, and the compiler may neither
reorder them nor contract two into one. With up to 32 columns a row is added up in a lane of its own, from
the first column to the last; a lane never meets another, and lanes without a row are not read. With
more, column j is added in lane j mod 16 (of double: 8), lanes without a column get exactly 0, and
the lanes are added in a fixed tree. So the number of columns alone decides the order, and the
instruction set nothing at all. ∎
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from privcal.calibration import compiled
from privcal.trusted.kernel import Kernel, Scratch, for_blocks
from privcal.trusted.scores import FloatArray, IntArray, Outputs, row_sums

_FLOOR = -1e30
"""Stands for −∞ in z, so that z·exp(βz) is −0 rather than NaN."""


class Fast(Kernel):
    """The sums along a row in C where that is built, and else by NumPy."""

    def scratches(self, outputs: Outputs, dtype: np.dtype[Any]) -> int:
        """None where C reads the rows where they lie."""
        in_c = compiled.in_use() == "c" and outputs.kind == "logits"
        return 0 if in_c and compiled.reads(outputs.array, dtype) else 1

    def sums(
        self,
        outputs: Outputs,
        rows: slice,
        beta: float,
        without: IntArray | None,
        dtype: np.dtype[Any],
        *scratch: Scratch,
    ) -> Scratch:
        """S0 of each row of a block."""
        if compiled.in_use() == "numpy":
            return super().sums(outputs, rows, beta, without, dtype, *scratch)
        return np.asarray(_in_c(1, outputs, rows, beta, without, dtype, *scratch)[0])

    def moments(
        self, outputs: Outputs, beta: float, dtype: Any = np.float64, threads: int | None = None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S0 of each row, and the mean and variance of z there (see `for_moments`)."""
        s0, mean, variance = (np.empty(outputs.rows) for _ in range(3))

        def keep(rows: slice, *values: Scratch) -> None:
            s0[rows], mean[rows], variance[rows] = values

        self.for_moments(outputs, beta, keep, dtype, threads)
        return s0, mean, variance

    def for_moments(
        self,
        outputs: Outputs,
        beta: float,
        collect: Callable[..., None],
        dtype: Any = np.float64,
        threads: int | None = None,
    ) -> None:
        """Call `collect(rows, S0, mean, variance)` for every block of rows.

        The mean is S1/S0 = d(log S0)/dβ, the variance S2/S0 − (S1/S0)² = d²(log S0)/dβ².
        """

        def divide(rows: slice, s0: Scratch, s1: Scratch, s2: Scratch) -> None:
            mean = s1 / s0
            collect(rows, s0, mean, s2 / s0 - mean**2)

        dtype = np.dtype(dtype)
        outputs.need_all_classes("this")
        by_numpy = compiled.in_use() == "numpy"

        def work(rows: slice, *scratch: Scratch) -> None:
            divide(rows, *_moments(outputs, rows, beta, dtype, *scratch))

        scratches = 2 if by_numpy else self.scratches(outputs, dtype)
        for_blocks(outputs, work, dtype, scratches, threads)


FAST = Fast()


def _moments(
    outputs: Outputs,
    rows: slice,
    beta: float,
    dtype: np.dtype[Any],
    z: Scratch | None = None,
    e: Scratch | None = None,
) -> FloatArray | tuple[Scratch, ...]:
    """S0, S1 and S2 of each row of a block: by NumPy where there are two scratch arrays."""
    if z is None or e is None:
        return _in_c(3, outputs, rows, beta, None, dtype, z)
    outputs.shifted(rows, z)
    if outputs.kind == "probabilities" or outputs.array.dtype.itemsize >= z.itemsize:
        np.maximum(z, _FLOOR, out=z)
    np.multiply(z, beta, out=e)
    np.exp(e, out=e)
    s0, s1 = row_sums(e), row_sums(e, z)
    np.multiply(e, z, out=e)
    return s0, s1, row_sums(e, z)


def _in_c(
    lines: int,
    outputs: Outputs,
    rows: slice,
    beta: float,
    without: IntArray | None,
    dtype: np.dtype[Any],
    z: Scratch | None = None,
) -> FloatArray:
    """S0 of each row of a block, or S0, S1 and S2."""
    sums = np.empty((lines, rows.stop - rows.start))
    if z is None:
        compiled.sums(outputs.array[rows], dtype, beta, sums, outputs.top[rows], without)
    else:
        outputs.shifted(rows, z)
        compiled.sums(z, dtype, beta, sums, None, without)
    return sums
