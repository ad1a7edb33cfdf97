"""The kernel in C: against math.exp and math.fsum, with every instruction set, and whether it is used."""

import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from privcal.calibration import compiled
from privcal.calibration.kernel import FAST
from privcal.data.scores import Outputs
from privcal.trusted import kernel
from privcal.trusted.errors import InputError
from tests.support.builders import a_file

ROOT = Path(__file__).parents[2]
built = pytest.mark.skipif(
    not compiled.instruction_sets(), reason="the kernel in C is not built here"
)
TYPES = [(np.float32, np.float32), (np.float32, np.float64), (np.float64, np.float64)]
UNIT = {np.float32: 2.0**-24, np.float64: 2.0**-53}
"""The largest relative error of one rounding."""

CLASSES = (*range(1, 70), 255, 256, 257, 511, 512, 513, 1000, 4097)
"""A lane for a row up to 32; then 16 or 8 lanes to a row, and 32 of their numbers to a run."""


def sums(array, work, beta, lines=1, **more):
    out = np.full((lines, len(array)), np.nan)
    compiled.sums(array, np.dtype(work), beta, out, **more)
    return out


def rows_of_all_kinds(m, dtype, seed=0):
    """Ordinary, deep, tied and huge logits, and one row with a class of no share."""
    rng = np.random.default_rng([seed, m])
    x = rng.standard_normal((23, m)) * np.repeat([1, 4, 60, 1e4], [8, 8, 4, 3])[:, None]
    x[::5, ::3] = 1.5
    x[7] = -np.abs(x[7])
    x[9, m // 2] = 2e38
    x[9, 0] = -2e38  # their difference is infinite in single precision
    return x.astype(dtype)


@built
@pytest.mark.parametrize(("given", "work"), TYPES)
@pytest.mark.parametrize("beta", [0.01, 0.5, 1.0, 100.0])
def test_exp_of_every_argument_is_right_to_its_last_bits(given, work, beta):
    unit, least = UNIT[work], float(np.finfo(work).tiny)
    deepest = -math.log(least)
    z = np.concatenate(
        [
            [0.0, float(np.finfo(given).smallest_subnormal), least, 1e-10],
            np.geomspace(1e-8, 2 * deepest, 4000) / beta,
            np.linspace(0, 1.1 * deepest, 4000) / beta,
        ]
    )
    z = -z.astype(given)
    # Two classes of which the first is left out: what remains is exp(βz) alone.
    pairs = np.stack([np.zeros_like(z), z], axis=1)
    [ours] = sums(pairs, work, beta, without=np.zeros(len(z), np.int64))
    for x, y in zip((beta * z.astype(np.float64)).tolist(), ours.tolist(), strict=True):
        exact = math.exp(x)
        if exact < least:
            assert y == 0
        elif y == 0:
            assert exact < 2.1 * least  # the smallest normal numbers may count as nothing too
        else:
            # log2(e), its product with β and that with z are rounded, and so is x here; 2^t is right
            # to one and a half last bits.
            assert abs(y - exact) <= (4 * abs(x) + 1.5) * unit * exact, x
    assert ours[0] == 1.0


@built
@pytest.mark.parametrize(("given", "work"), TYPES)
def test_the_sums_are_those_of_the_slow_reference_for_any_number_of_classes(given, work):
    unit, beta = UNIT[work], 0.7
    for m in CLASSES:
        x = rows_of_all_kinds(m, given)[:16]
        x[9] = x[8]  # the infinite difference has a test of its own
        top = x.max(axis=1).astype(np.float64)
        ours = sums(x, work, beta, 3, top=top).T
        for row, (s0, s1, s2) in enumerate(ours):
            z = [float(v) - float(top[row]) for v in x[row]]
            terms = [math.exp(beta * v) for v in z]
            # z, 1/T and t are rounded: 3x + 2 roundings of a term, x = |βz|, on average at most ln m;
            # then two multiplications, at most 31 additions in a lane, and those across.
            few = unit * (3 * max(math.log(m), 3) + 2 + 31 + 6)
            assert s0 == pytest.approx(math.fsum(terms), rel=few)
            assert s0 >= 1
            for power, value in ((1, s1), (2, s2)):
                parts = [v**power * e for v, e in zip(z, terms, strict=True)]
                size = math.fsum(abs(p) * (1 - beta * v) for p, v in zip(parts, z, strict=True))
                assert value == pytest.approx(math.fsum(parts), abs=few * size)


@built
@pytest.mark.parametrize(("given", "work"), TYPES)
def test_every_instruction_set_gives_the_same_bits(given, work):
    for m in CLASSES:
        x = rows_of_all_kinds(m, given)
        with np.errstate(over="ignore"):
            top = x.max(axis=1).astype(np.float64)
        predicted = x.argmax(axis=1)
        for beta in (0.01, 0.37, 1.0, 100.0):
            first, *others = [
                np.concatenate(
                    [
                        sums(x, work, beta, 3, top=top, instructions=name),
                        sums(x, work, beta, 1, top=top, instructions=name),
                        sums(x, work, beta, top=top, without=predicted, instructions=name),
                    ]
                )
                for name in compiled.instruction_sets()
            ]
            assert np.isfinite(first).all()
            np.testing.assert_array_equal(first[0], first[3])
            for other in others:
                np.testing.assert_array_equal(other.view(np.uint64), first.view(np.uint64))


@built
@pytest.mark.parametrize("m", [2, 32, 33, 1000])
@pytest.mark.parametrize(("given", "work"), TYPES)
def test_a_class_left_out_counts_as_nothing_wherever_it_stands(given, work, m):
    x = np.zeros((m, m), given)
    [ours] = sums(x, work, 1.0, without=np.arange(m))
    assert ours.tolist() == [m - 1] * m


@built
@pytest.mark.parametrize("m", [3, 40])
@pytest.mark.parametrize(("given", "work"), TYPES)
def test_what_is_not_a_number_stays_so_and_touches_no_other_row(given, work, m):
    x = np.zeros((5, m), given)
    x[1, 2], x[2, 0], x[3, 1] = np.nan, np.inf, -np.inf
    top = x.max(axis=1).astype(np.float64)
    ours = sums(x, work, 1.0, 3, top=top)
    assert np.isnan(ours[:, 1:3]).all()
    assert ours[0, [0, 3, 4]].tolist() == [m, m - 1, m]
    assert ours[1:, [0, 3, 4]].tolist() == [[0.0] * 3] * 2


AT_THE_END = """
import ctypes, mmap, sys
import numpy as np
from privcal.calibration import compiled

page, pages = mmap.PAGESIZE, 16
memory = mmap.mmap(-1, pages * page)
end = (pages - 1) * page
first = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
protect = ctypes.CDLL(None).mprotect
assert protect(ctypes.c_void_p(first + end), ctypes.c_size_t(page), 0) == 0
for m in (1, 10, 32, 33, 1000):
    for dtype, work in (("f4", "f4"), ("f4", "f8"), ("f8", "f8")):
        start = end - 3 * m * np.dtype(dtype).itemsize
        array = np.frombuffer(memory, dtype, 3 * m, start).reshape(3, m)
        for name in compiled.instruction_sets():
            out = np.empty((1, 3))
            compiled.sums(array, np.dtype(work), 1.0, out, instructions=name)
            assert out.tolist() == [[m] * 3]
"""


@built
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is protected as on Linux")
def test_no_byte_behind_the_numbers_is_read():
    # Behind them is memory that may not be read: trying would kill the process.
    subprocess.run([sys.executable, "-c", AT_THE_END], check=True, cwd=ROOT)


@built
def test_a_row_has_the_same_bits_in_many_threads_at_once_and_after_a_fork(monkeypatch):
    monkeypatch.setenv("PRIVCAL_KERNEL", "c")
    outputs = Outputs(logits=rows_of_all_kinds(1000, np.float64))
    whole = FAST.exp_sums(outputs, 0.6).tobytes()
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(FAST.exp_sums(outputs, 0.6).tobytes()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [whole] * 8
    if hasattr(os, "fork"):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, b"same" if FAST.exp_sums(outputs, 0.6).tobytes() == whole else b"other")
            os._exit(0)
        assert os.read(read, 9) == b"same"
        os.wait()


# --- which kernel -------------------------------------------------------------------------------


def test_numpy_is_used_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("PRIVCAL_KERNEL", "numpy")
    assert compiled.in_use() == "numpy"
    monkeypatch.setattr(compiled, "sums", None)  # would fail if it were called
    FAST.confidence(Outputs(logits=np.eye(3, dtype=np.float32)), 1.0)


@built
def test_c_is_used_where_it_is_built_and_does_all_sums(monkeypatch):
    monkeypatch.delenv("PRIVCAL_KERNEL", raising=False)
    assert compiled.in_use() == "c"
    monkeypatch.setattr(kernel, "row_sums", None)  # NumPy's; would fail if it were called
    for form in ({"logits": np.eye(3, dtype=np.float16)}, {"probabilities": np.eye(3)}):
        FAST.confidence(Outputs(**form), 1.0)
        FAST.log_odds(Outputs(**form), 1.0)
        FAST.moments(Outputs(**form), 1.0)


def test_where_there_is_no_library_numpy_is_used_and_c_cannot_be_had(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(compiled, "_library", compiled._library.__wrapped__)
    monkeypatch.delenv("PRIVCAL_KERNEL", raising=False)
    assert compiled.in_use() == "numpy"
    monkeypatch.setenv("PRIVCAL_KERNEL", "c")
    with pytest.raises(InputError, match="which is not built here; install privcal again where"):
        compiled.in_use()


def test_an_unknown_kernel_is_refused_with_the_known_ones(monkeypatch, run):
    monkeypatch.setenv("PRIVCAL_KERNEL", "fortran")
    error = run.fails("--version")
    assert "PRIVCAL_KERNEL must be c or numpy, or not be set, not 'fortran'" in error


@built
def test_a_library_that_is_older_than_its_text_is_not_used(monkeypatch, tmp_path):
    newer = tmp_path / "compiled.c"
    shutil.copy(compiled.SOURCE, newer)
    monkeypatch.setattr(compiled, "SOURCE", newer)
    load = compiled._library.__wrapped__
    assert load() is not None
    newer.write_text(newer.read_text("utf-8") + "/* changed */\n", "utf-8")
    assert load() is None


def test_a_library_that_is_none_is_not_used(monkeypatch, tmp_path):
    damaged = a_file(tmp_path / "damaged.so", b"not a library")
    monkeypatch.setattr(compiled, "LIBRARY", damaged)
    assert compiled._library.__wrapped__() is None
