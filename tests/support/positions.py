"""Whether a row's values depend on where it lies: in which block, beside which rows, laid out how.

`python -m tests.support.positions` says so for a few sizes in a process of its own, so that NumPy can be
started there without some of its SIMD loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np

from privcal.calibration import compiled
from privcal.calibration.kernel import FAST
from privcal.data.scores import Scores
from privcal.trusted import kernel

Form = tuple[str, type]

FORMS: tuple[Form, ...] = (
    ("logits", np.float16),
    ("logits", np.float32),
    ("logits", np.float64),
    ("probabilities", np.float32),
    ("probabilities", np.float64),
)
TEMPERATURE = 0.37


def table(form: Form, n: int, m: int, seed: int = 0) -> np.ndarray:
    """Rows with ties, deep tails and shares that vanish; one column of probabilities is binary."""
    kind, dtype = form
    rng = np.random.default_rng([seed, n, m])
    values = rng.standard_normal((n, m), np.float32)
    if kind == "probabilities" and m == 1:
        return (1 / (1 + np.exp(values))).astype(dtype)
    if kind == "probabilities":
        weights = np.exp(values.astype(np.float64))
        weights[:, 1::7] = 0.0
        return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)
    values *= 4
    values[:, 3::5] = 1.5
    values[1::3] *= 50
    return values.astype(dtype)


def bits(form: Form, array: np.ndarray, threads: int | None = None) -> np.ndarray:
    """Everything the kernel says of each row, as the bits of float64."""
    classes = 2 if form[0] == "probabilities" and array.shape[1] == 1 else array.shape[1]
    # A function of the row, as its values must be.
    labels = (np.abs(array[:, 0].astype(np.float64)) * 1000).astype(np.int64) % classes
    scores = Scores(**{form[0]: array}, labels=labels)
    outputs = scores.outputs
    outputs.remembered = {}  # one pass for the first three
    values = (
        FAST.exp_sums(outputs, TEMPERATURE, threads),
        FAST.confidence(outputs, TEMPERATURE, threads),
        FAST.nll(scores, TEMPERATURE, threads),
        FAST.log_odds(outputs, TEMPERATURE, threads),
        FAST.log_odds(outputs, TEMPERATURE, threads, of=0),
        FAST.log_odds(outputs, TEMPERATURE, threads, of=classes - 1),
        *FAST.moments(outputs, 1 / TEMPERATURE, outputs.dtype, threads),
    )
    return np.stack(values, axis=1).view(np.uint64)


def heights(form: Form, m: int) -> set[int]:
    """Rows in a block, in the precision the form is worked in and in double precision."""
    classes = 2 if form[0] == "probabilities" and m == 1 else m
    # Rows that C reads where they lie are worked in larger blocks.
    in_place = compiled.in_use() == "c" and form in FORMS[1:3]
    size = 4 * kernel.BLOCK if in_place else kernel.BLOCK
    wide = max(1, size // (2 * classes))
    narrow = max(1, size // classes)
    return {wide} if form[0] == "probabilities" or form[1] is np.float64 else {wide, narrow}


def by_height(form: Form, m: int) -> Iterator[str]:
    """Every number of rows that fills one block, one row more, and two blocks and a row."""
    counts = {1, 2} | {c for h in heights(form, m) for c in (h, h + 1, 2 * h + 1)}
    array = table(form, max(counts), m)
    whole = bits(form, array)
    for count in sorted(counts):
        for what, rows in (("first", slice(count)), ("last", slice(len(array) - count, None))):
            if not np.array_equal(bits(form, array[rows]), whole[rows]):
                yield f"{form[0]} {form[1].__name__}, {m} classes: the {what} {count} rows alone"


def elementwise() -> Iterator[str]:
    """What the proof leans on: exp and log of a number do not depend on its neighbours."""
    rng = np.random.default_rng(0)
    deep = -np.abs(rng.standard_normal(9000)) * rng.choice([1, 30, 900], 9000)
    deep[::50], deep[7::50], deep[11::50] = -np.inf, -1e30, 0.0
    sums = np.exp(rng.standard_normal(9000) * rng.choice([0.01, 1, 9], 9000))
    sums[::50], sums[7::50] = 1.0, 0.0
    functions: dict[str, tuple[Callable[..., np.ndarray], np.ndarray]] = {
        "exp, single precision": (np.exp, deep.astype(np.float32)),
        "exp, double precision": (np.exp, deep),
        "log": (np.log, sums),
    }
    with np.errstate(all="ignore"):
        for name, (function, numbers) in functions.items():
            whole = function(numbers)
            for length in (*range(1, 68), 127, 1001, 8191, 8193):
                for start in (0, 1, 5, 8, 333):
                    part = numbers[start : start + length].copy()
                    function(part, out=part)
                    if part.tobytes() != whole[start : start + length].tobytes():
                        yield f"{name}: {length} numbers from place {start} on"


if __name__ == "__main__":
    features = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if left := set(features) & set(os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()):
        print(f"not disabled: {left}")
    for problem in elementwise():
        print(problem)
    for form in FORMS:
        for m in (1, 3, 129, 4097, 10_000):
            for problem in by_height(form, m):
                print(problem)
