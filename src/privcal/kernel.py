"""The hot kernel: top-class confidence, log-likelihood and their derivatives at temperature T.

With z = logit − top logit of its row and β = 1/T, everything is made of the row sums

    S0 = Σ exp(βz),   S1 = Σ z·exp(βz),   S2 = Σ z²·exp(βz):

confidence is 1/S0, the log-likelihood of label y is βz_y − log S0, and their derivatives in β
follow from S1 and S2. The top class contributes exactly 1 to S0, so nothing overflows.

Where only the confidence in an answer is known there is nothing to sum, and no temperature but 1:
confidence is the number itself, and its log-odds are taken of it alone.

Rows are worked in blocks, on a few threads, with no second (n, m) array. The sums are taken by NumPy,
or by C where that is built (`privcal.compiled`): several times as fast, and no other way of asking.

A row's value is a function of that row alone
---------------------------------------------
To the last bit, whatever block, batch or thread the row is in and wherever it lies. Privacy rests
on this. The two kernels may differ in last bits; which one works is decided by what is installed and by
PRIVCAL_KERNEL, never by rows, so neighbouring data are summed by the same one.

Proof. Elementwise +, −, ·, / and casts are rounded as IEEE 754 says; only the numbers themselves count.
So it is the same whether z is computed here, in scratch arrays, or in C. What is left are exp and log,
and the order of adding.

*NumPy: exp, and for both kernels log.* A block is worked in the first rows of scratch arrays made
here, so whatever the layout of the outputs it is aligned and C-contiguous, one row after the other, and
so is every array of one number for each row. NumPy has several exp and log, with SIMD and without.
But in a C-contiguous array one of them does all the numbers, the last few in masked registers, each
lane by itself: a number gives the same bits alone, among others and at the end.

*NumPy: sums along a row* (`row_sums`). einsum adds a contiguous run of numbers in an order that their count
decides, not their address. But it cuts a lone row where NumPy's buffer ends, after 8,192 numbers,
and the rows of a larger block nowhere. So rows are cut here, after every 4,096 columns, which leaves
it nothing to cut; the sums of those runs are summed in the same way, and what is left over is added.
The number of columns alone decides the order. (A matrix product would not do: its last bits
change with the shape.)

*C* (`compiled.c`). exp is written out in +, −, · and operations on bits, and the compiler may neither
reorder them nor contract two into one. With up to 32 columns a row is added up in a lane of its own, from
the first column to the last; a lane never meets another, and lanes without a row are not read. With
more, column j is added in lane j mod 16 (of double: 8), lanes without a column get exactly 0, and
the lanes are added in a fixed tree. So the number of columns alone decides the order, and the
instruction set nothing at all. ∎

NumPy promises neither of its two, so the tests look at the bits, with both kernels: of exp and log at all
short lengths, and of everything here for numbers of classes on both sides of each of these widths,
from one row to two blocks and a row, also with NumPy's SIMD disabled, and with each instruction set
of the C kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from privcal import compiled
from privcal.checks import number
from privcal.errors import InputError
from privcal.scores import BLOCK, LEAST, FloatArray, IntArray, Outputs, Scores, row_sums
from privcal.threads import default_threads

MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0

_FLOOR = -1e30
"""Stands for −∞ in z, so that z·exp(βz) is −0 rather than NaN."""


Scratch = npt.NDArray[Any]


def check_temperature(temperature: float) -> float:
    """`temperature` as a float within the limits that hold everywhere."""
    return number("temperature", temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)


def confidence(
    outputs: Outputs, temperature: float, threads: int | None = None, dtype: Any = None
) -> FloatArray:
    """The probability of the predicted class of each row at `temperature`, in (0, 1]."""
    if outputs.kind == "confidence":
        return _given(outputs, temperature)
    return np.asarray(1.0 / exp_sums(outputs, temperature, threads, dtype))


def _given(outputs: Outputs, temperature: float) -> FloatArray:
    """The confidence of each row as it was given, one number after the other; 0 if malformed."""
    if check_temperature(temperature) != 1.0:
        outputs.need_all_classes("a temperature")
    # A copy that lies as the proof above wants it.
    return np.where(outputs.valid, outputs.array[:, 0].astype(np.float64), 0.0)


def nll(scores: Scores, temperature: float, threads: int | None = None) -> FloatArray:
    """The negative log-likelihood of each row's label at `temperature`."""
    log_sum = np.log(exp_sums(scores.outputs, temperature, threads))
    return np.asarray(log_sum - scores.label_margin / temperature)


def exp_sums(
    outputs: Outputs, temperature: float, threads: int | None = None, dtype: Any = None
) -> FloatArray:
    """S0 of each row, in the outputs' own working precision or the one given."""
    beta = 1.0 / check_temperature(temperature)
    kept = outputs.remembered if dtype is None else None
    if kept is not None and temperature in kept:
        return kept[temperature]
    sums = np.empty(outputs.rows)

    def keep(rows: slice, s0: Scratch) -> None:
        sums[rows] = s0

    _for_sums(outputs, beta, keep, np.dtype(dtype or outputs.dtype), threads, "S0")
    if kept is not None:
        kept[temperature] = sums
    return sums


def log_odds(
    outputs: Outputs, temperature: float, threads: int | None = None, *, of: int | None = None
) -> FloatArray:
    """log(c / (1 − c)) of each row's confidence c at `temperature`, in double precision.

    With `of`, c is the probability of that class, whether it is the predicted one or not. It comes
    from the sum over the other classes, so that it keeps telling rows apart where c rounds to 1; it
    is infinite only where nothing is left for the others, or for that class: of logits far apart,
    never of probabilities or confidences (see `privcal.scores.LEAST`).
    """
    if outputs.kind == "confidence":
        if of is not None:
            outputs.need_all_classes("the probability of a class")
        c = np.clip(_given(outputs, temperature), LEAST, 1 - LEAST)
        return np.asarray(np.log(c) - np.log1p(-c))
    beta = 1.0 / check_temperature(temperature)
    others = np.empty(outputs.rows)
    classes = outputs.predicted if of is None else np.full(outputs.rows, _class(outputs, of))

    def keep(rows: slice, s0: Scratch) -> None:
        others[rows] = s0

    _for_sums(outputs, beta, keep, np.dtype(np.float64), threads, "S0", classes)
    with np.errstate(all="ignore"):
        odds = -np.log(others)
        # The class's own term, exp(βz), as its exponent: z is exactly 0 where it is on top.
        return odds if of is None else np.asarray((outputs.at(classes) - outputs.top) * beta + odds)


def _class(outputs: Outputs, of: int) -> int:
    if not 0 <= of < outputs.classes:
        raise InputError(f"there is no class {of}: the model has {outputs.classes}")
    return of


def moments(
    outputs: Outputs, beta: float, dtype: Any = np.float64, threads: int | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """S0 of each row, and the mean and variance of z there (see `for_moments`)."""
    s0, mean, variance = (np.empty(outputs.rows) for _ in range(3))

    def keep(rows: slice, *values: Scratch) -> None:
        s0[rows], mean[rows], variance[rows] = values

    for_moments(outputs, beta, keep, dtype, threads)
    return s0, mean, variance


def for_moments(
    outputs: Outputs,
    beta: float,
    collect: Callable[..., None],
    dtype: Any = np.float64,
    threads: int | None = None,
) -> None:
    """Call `collect(rows, S0, mean, variance)` for every block of rows; exact fits need these.

    The mean is S1/S0 = d(log S0)/dβ, the variance S2/S0 − (S1/S0)² = d²(log S0)/dβ².
    """

    def divide(rows: slice, s0: Scratch, s1: Scratch, s2: Scratch) -> None:
        mean = s1 / s0
        collect(rows, s0, mean, s2 / s0 - mean**2)

    _for_sums(outputs, beta, divide, np.dtype(dtype), threads, "moments")


Sums = Literal["S0", "moments"]
"""S0; or S0, S1 and S2."""


def _for_sums(
    outputs: Outputs,
    beta: float,
    collect: Callable[..., None],
    dtype: np.dtype[Any],
    threads: int | None,
    which: Sums,
    without: IntArray | None = None,
) -> None:
    """Call `collect(rows, *sums)` for every block of rows, by the kernel in use.

    S0 may leave out one class of each row, `without`.
    """

    outputs.need_all_classes("this")

    def left_out(rows: slice) -> IntArray | None:
        return None if without is None else without[rows]

    if compiled.in_use() == "numpy":

        def work(rows: slice, *scratch: Scratch) -> None:
            collect(rows, *_numpy_sums(outputs, rows, beta, left_out(rows), *scratch))

        scratches = 2 if which == "moments" else 1
    else:
        in_place = outputs.kind == "logits" and compiled.reads(outputs.array, dtype)

        def work(rows: slice, *scratch: Scratch) -> None:
            left = left_out(rows)
            collect(rows, *_compiled_sums(outputs, rows, beta, which, left, dtype, *scratch))

        scratches = 0 if in_place else 1
    for_blocks(outputs, work, dtype, scratches, threads)


def _numpy_sums(
    outputs: Outputs,
    rows: slice,
    beta: float,
    without: IntArray | None,
    z: Scratch,
    e: Scratch | None = None,
) -> tuple[Scratch, ...]:
    outputs.shifted(rows, z)
    if e is None:
        np.multiply(z, beta, out=z)
        np.exp(z, out=z)
        if without is not None:
            z[np.arange(len(z)), without] = 0.0
        return (row_sums(z),)
    if outputs.kind == "probabilities" or outputs.array.dtype.itemsize >= z.itemsize:
        np.maximum(z, _FLOOR, out=z)
    np.multiply(z, beta, out=e)
    np.exp(e, out=e)
    s0, s1 = row_sums(e), row_sums(e, z)
    np.multiply(e, z, out=e)
    return s0, s1, row_sums(e, z)


def _compiled_sums(
    outputs: Outputs,
    rows: slice,
    beta: float,
    which: Sums,
    without: IntArray | None,
    dtype: np.dtype[Any],
    z: Scratch | None = None,
) -> FloatArray:
    sums = np.empty((3 if which == "moments" else 1, rows.stop - rows.start))
    if z is None:
        compiled.sums(outputs.array[rows], dtype, beta, sums, outputs.top[rows], without)
    else:
        outputs.shifted(rows, z)
        compiled.sums(z, dtype, beta, sums, None, without)
    return sums


def for_blocks(
    outputs: Outputs,
    work: Callable[..., None],
    dtype: np.dtype[Any],
    scratches: int,
    threads: int | None = None,
) -> None:
    """Call `work(rows, *scratch)` once for every block of rows, on up to `threads` threads.

    Threads are made for the call: a pool kept between calls would hang after a fork, and
    starting a thread costs less than one block.
    """
    # As many bytes in double precision as in single: half as many rows. Where no scratch has to stay
    # in cache a block may be larger.
    height = (4 if scratches else 16) * BLOCK // (outputs.classes * dtype.itemsize)
    height = max(1, height)
    height = min(outputs.rows, height)
    starts = iter(range(0, outputs.rows, max(1, height)))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def loop() -> None:
        scratch = [np.empty((height, outputs.classes), dtype) for _ in range(scratches)]
        with np.errstate(all="ignore"):
            while not failures:
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                rows = slice(start, min(start + height, outputs.rows))
                try:
                    work(rows, *(s[: rows.stop - rows.start] for s in scratch))
                except BaseException as failure:
                    failures.append(failure)

    outputs.top  # noqa: B018  computed once, before the threads need it
    # A thread for less than four blocks costs more than it brings.
    wanted = min(threads or default_threads(), outputs.rows // (4 * max(1, height)))
    helpers = [threading.Thread(target=loop, daemon=True) for _ in range(wanted - 1)]
    for helper in helpers:
        helper.start()
    loop()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
