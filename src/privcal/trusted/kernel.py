"""The hot kernel: top-class confidence and log-likelihood at temperature T.

With z = logit − top logit of its row and β = 1/T, everything is made of the row sums S0 = Σ exp(βz):
confidence is 1/S0, and the log-likelihood of label y is βz_y − log S0. The top class contributes
exactly 1 to S0, so nothing overflows.

Where only the confidence in an answer is known there is nothing to sum, and no temperature but 1:
confidence is the number itself, and its log-odds are taken of it alone.

Rows are worked in blocks, on a few threads, with no second (n, m) array. `NUMPY` takes the sums with
NumPy, and sources use no other. Where no privacy depends on it (fits, studies, maps),
`privcal.calibration.kernel.FAST` takes them in C, several times as fast.

A row's value is a function of that row alone
---------------------------------------------
To the last bit, whatever block, batch or thread the row is in and wherever it lies. Privacy rests
on this.

Proof. Elementwise +, −, ·, / and casts are rounded as IEEE 754 says; only the numbers themselves count.
What is left are exp and log, and the order of adding.

*exp and log.* A block is worked in the first rows of scratch arrays made
here, so whatever the layout of the outputs it is aligned and C-contiguous, one row after the other. (The two
logarithms of a binary probability are written two apart, `Outputs.shifted`: the same holds there, by the tests
alone.) NumPy has several exp and log, with SIMD and without.
But in a C-contiguous array one of them does all the numbers, the last few in masked registers, each
lane by itself: a number gives the same bits alone, among others and at the end.

*Sums along a row* (`row_sums`). einsum adds a contiguous run of numbers in an order that their count
decides, not their address. But it cuts a lone row where NumPy's buffer ends, after 8,192 numbers,
and the rows of a larger block nowhere. So rows are cut here, after every 4,096 columns, which leaves
it nothing to cut; the sums of those runs are summed in the same way, and what is left over is added.
The number of columns alone decides the order. (A matrix product would not do: its last bits
change with the shape.) ∎

NumPy promises neither of its two, so the tests look at the bits: of exp and log at all short lengths, and
of everything here for numbers of classes on both sides of each of these widths, from one row to two
blocks and a row, also with NumPy's SIMD disabled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from privcal.trusted.checks import number, whole
from privcal.trusted.errors import InputError
from privcal.trusted.records import Between
from privcal.trusted.scores import BLOCK, LEAST, FloatArray, IntArray, Outputs, Scores, row_sums
from privcal.trusted.threads import default_threads

MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0
MAX_BINS = 1000

Scratch = npt.NDArray[Any]


Temperature = Annotated[float, Between(MIN_TEMPERATURE, MAX_TEMPERATURE)]
Bins = Annotated[int, Between(1, MAX_BINS)]


def check_temperature(temperature: float) -> float:
    """`temperature` as a float within the limits that hold everywhere."""
    return number("temperature", temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)


def check_bins(bins: int) -> int:
    """`bins` as an int from 1 to `MAX_BINS`."""
    return whole("bins", bins, 1, MAX_BINS)


def bin_index(confidence: FloatArray, bins: int) -> IntArray:
    """The equal-width bin of each confidence in [0, 1]: min(⌊bins·confidence⌋, bins − 1)."""
    return np.minimum((confidence * bins).astype(np.int64), bins - 1)


class Kernel:
    """The sums along a row by NumPy, and all that is made of them."""

    def confidence(
        self, outputs: Outputs, temperature: float, threads: int | None = None, dtype: Any = None
    ) -> FloatArray:
        """The probability of the predicted class of each row at `temperature`, in (0, 1]."""
        if outputs.kind == "confidence":
            return _given(outputs, temperature)
        return np.asarray(1.0 / self.exp_sums(outputs, temperature, threads, dtype))

    def nll(self, scores: Scores, temperature: float, threads: int | None = None) -> FloatArray:
        """The negative log-likelihood of each row's label at `temperature`."""
        log_sum = np.log(self.exp_sums(scores.outputs, temperature, threads))
        return np.asarray(log_sum - scores.label_margin / temperature)

    def exp_sums(
        self, outputs: Outputs, temperature: float, threads: int | None = None, dtype: Any = None
    ) -> FloatArray:
        """S0 of each row, in the outputs' own working precision or the one given."""
        beta = 1.0 / check_temperature(temperature)
        kept = outputs.remembered if dtype is None else None
        if kept is not None and temperature in kept:
            return kept[temperature]
        sums = np.empty(outputs.rows)

        def keep(rows: slice, s0: Scratch) -> None:
            sums[rows] = s0

        self._for_sums(outputs, beta, keep, np.dtype(dtype or outputs.dtype), threads)
        if kept is not None:
            kept[temperature] = sums
        return sums

    def log_odds(
        self,
        outputs: Outputs,
        temperature: float,
        threads: int | None = None,
        *,
        of: int | None = None,
    ) -> FloatArray:
        """log(c / (1 − c)) of each row's confidence c at `temperature`, in double precision.

        With `of`, c is the probability of that class, whether it is the predicted one or not. It comes
        from the sum over the other classes, so that it keeps telling rows apart where c rounds to 1; it
        is infinite only where nothing is left for the others, or for that class: of logits far apart,
        never of probabilities or confidences (see `privcal.trusted.scores.LEAST`).
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

        self._for_sums(outputs, beta, keep, np.dtype(np.float64), threads, classes)
        with np.errstate(all="ignore"):
            odds = -np.log(others)
            # The class's own term, exp(βz), as its exponent: z is exactly 0 where it is on top.
            return (
                odds
                if of is None
                else np.asarray((outputs.at(classes) - outputs.top) * beta + odds)
            )

    def _for_sums(
        self,
        outputs: Outputs,
        beta: float,
        collect: Callable[[slice, Scratch], None],
        dtype: np.dtype[Any],
        threads: int | None,
        without: IntArray | None = None,
    ) -> None:
        """Call `collect(rows, S0)` for every block of rows; S0 may leave out one class of each row."""
        outputs.need_all_classes("this")

        def work(rows: slice, *scratch: Scratch) -> None:
            left_out = None if without is None else without[rows]
            collect(rows, self.sums(outputs, rows, beta, left_out, dtype, *scratch))

        for_blocks(outputs, work, dtype, self.scratches(outputs, dtype), threads)

    def scratches(self, outputs: Outputs, dtype: np.dtype[Any]) -> int:
        """How many scratch arrays of a block's shape `sums` works in."""
        return 1

    def sums(
        self,
        outputs: Outputs,
        rows: slice,
        beta: float,
        without: IntArray | None,
        dtype: np.dtype[Any],
        *scratch: Scratch,
    ) -> Scratch:
        """S0 of each row of a block, without one class of each where `without` names it."""
        z = scratch[0]
        outputs.shifted(rows, z)
        np.multiply(z, beta, out=z)
        np.exp(z, out=z)
        if without is not None:
            z[np.arange(len(z)), without] = 0.0
        return row_sums(z)


NUMPY = Kernel()
"""What sources use."""


def _given(outputs: Outputs, temperature: float) -> FloatArray:
    """The confidence of each row as it was given, one number after the other; 0 if malformed."""
    if check_temperature(temperature) != 1.0:
        outputs.need_all_classes("a temperature")
    # A copy that lies as the proof above wants it.
    return np.where(outputs.valid, outputs.array[:, 0].astype(np.float64), 0.0)


def _class(outputs: Outputs, of: int) -> int:
    if not 0 <= of < outputs.classes:
        raise InputError(f"there is no class {of}: the model has {outputs.classes}")
    return of


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
