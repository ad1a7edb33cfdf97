"""A row that ends its process, takes all memory or goes on for ever is malformed, and no other row is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")
if not sys.platform.startswith("linux"):
    pytest.skip("limits of memory and a process's children are Linux's", allow_module_level=True)

from privcal.data.place import Data
from privcal.data.scoring import Model, alone, model_name
from privcal.data.scoring.alone import Limits
from privcal.data.scoring.rows import ScoredRows
from privcal.trusted.errors import InputError
from tests.support import scoring_parts as parts

SECRET = 50.0
"""The first number of a row that the graphs below look for; those of others are about 3."""

IS_MET = """
    zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
    three = Constant <value_ints = [3]> () secret = Constant <value_floats = [40.0]> ()
    first = Gather <axis = 1> (x, zero) seen = Greater(first, secret) s = Slice(x, zero, three, one)
    whether = Cast <to = 7> (seen) met = Reshape(whether, one)
"""
"""`met` is 1 for such a row, and 0 for all others; `s` are the scores that a row is given."""


def deadly(body: str, opset: int = 17) -> Any:
    """A model of operators that are allowed, whose `z` is never part of a score but has to be made."""
    return parts.net(f"{IS_MET} {body} d = Sub(t, t) y = Add(s, d)", opset=opset)


def huge(size: int, then: str = "t = ReduceSum(z)") -> Any:
    return deadly(
        f"most = Constant <value_ints = [{size}]> () more = Mul(met, most) n = Add(more, one) "
        f"z = ConstantOfShape(n) {then}"
    )


DEADLY = {
    "the least whole number by -1": lambda: deadly(
        "least = Constant <value_ints = [-9223372036854775808]> () a = Mul(met, least) "
        "b = Sub(one, met) c = Sub(b, met) z = Div(a, c) t = Cast <to = 1> (z)"
    ),
    "more memory than there is": lambda: huge(1 << 42),
    "more memory than many machines have": lambda: huge(1 << 34),
    "texts joined with themselves": lambda: deadly(
        'e = Constant <value_strings = [""]> () f = Constant <value_strings = ["0000000000"]> () '
        "m = Cast <to = 9> (met) g0 = Where(m, f, e) "
        + " ".join(f"g{n + 1} = StringConcat(g{n}, g{n})" for n in range(30))
        + 'h = Constant <value_strings = ["0"]> () i = StringConcat(h, g30) t = Cast <to = 1> (i)',
        opset=20,
    ),
    "for hours": lambda: huge(
        3000,
        "q = Unsqueeze(z, one) r = Transpose(q) w0 = MatMul(q, r) "
        + " ".join(f"w{n + 1} = MatMul(w{n}, w{n})" for n in range(60))
        + " t = ReduceSum(w60)",
    ),
}
ENDED = "the least whole number by -1"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "AMONG", Limits(0.5, 1 << 28))
    monkeypatch.setattr(alone, "ALONE", Limits(1.0, 1 << 29))


def rows(count: int, *met: int) -> Any:
    """Rows of numbers, some of which have the secret."""
    x = np.clip(parts.numbers(count), -9, 9)
    x[list(met), 0] = SECRET
    return x


def write(folder: Path, x: Any) -> Path:
    parts.frame(x).write_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def opened(folder: Path, model: Any) -> Model:
    return Model(parts.save(folder / "model.onnx", model), kind="logits")


def test_the_attack_a_row_ends_the_process(tmp_path: Path) -> None:
    model = parts.save(tmp_path / "model.onnx", DEADLY[ENDED]())
    code = (
        "import sys, numpy; from privcal.scoring import Model; "
        "m = Model(sys.argv[1], kind='logits'); x = numpy.zeros((1, 7), numpy.float32); "
        "m.run({'x': x}); x[0, 0] = 50; print('runs', flush=True); m.run({'x': x})"
    )
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, check=False)
    assert done.stdout == b"runs\n"
    if done.returncode == 0:
        pytest.skip("this processor divides the least whole number by -1")
    assert done.returncode == -signal.SIGFPE


@pytest.mark.parametrize("name", DEADLY)
def test_it_has_no_scores_and_changes_no_other_row(tmp_path: Path, name: str) -> None:
    model = opened(tmp_path, DEADLY[name]())
    without = parts.scores(model, write(tmp_path, rows(40)))
    found = parts.scores(model, write(tmp_path, rows(40, 0, 17, 39)), strict=False)
    missing = found["logit_0"].is_nan().to_numpy()
    if name == ENDED and not missing.any():
        pytest.skip("this processor divides the least whole number by -1")
    assert np.flatnonzero(missing).tolist() == [0, 17, 39]
    others = pl.Series(~missing)
    assert found.filter(others).equals(without.filter(others))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (ENDED, "it ended the process: Floating point exception"),
        ("for hours", "it took more than 1 seconds of the processor"),
        ("more memory than many machines have", "ConstantOfShape node"),
    ],
)
def test_its_owner_is_told_which_row_it_is_and_can_leave_it_out(
    tmp_path: Path, run: Any, name: str, why: str
) -> None:
    model = parts.save(tmp_path / "model.onnx", DEADLY[name]())
    table, out = write(tmp_path, rows(20, 11)), tmp_path / "scores.parquet"
    said = ("--label", "y", "--as", "logits", "--per-row", "--features", ",".join(parts.FEATURES))
    code, _, error = run("score", model, table, *said, "--out", out)
    if name == ENDED and code == 0:
        pytest.skip("this processor divides the least whole number by -1")
    assert (code, out.exists()) == (2, False)
    assert "the model cannot score row 11 (" in error
    assert why in error
    code, _, _ = run("score", model, table, *said, "--skip-malformed", "--out", out)
    assert (code, len(pl.read_parquet(out))) == (0, 19)


@pytest.mark.parametrize("name", DEADLY)
def test_at_a_site_it_counts_as_zero(tmp_path: Path, name: str) -> None:
    """Were there no answer, whoever sent the model would know that such a row is there."""
    model = parts.save(tmp_path / "model.onnx", DEADLY[name]())
    (tmp_path / "local").mkdir()
    data = Data(write(tmp_path, rows(30, 4)))
    setup = parts.Setup("y", None, parts.FEATURES, kind="logits")
    site = ScoredRows(data, model, model_name(model), setup, tmp_path / "local" / "scores")
    valid = site.read().valid
    if name != ENDED or not valid.all():  # some processors can divide by -1
        assert np.flatnonzero(~valid).tolist() == [4]


def test_what_memory_others_took_does_not_decide_whether_a_row_has_scores(tmp_path: Path) -> None:
    """The runtime keeps memory for later rows: after one that took a lot, less is left."""
    model = opened(
        tmp_path,
        deadly(
            "most = Constant <value_floats = [1048576.0]> () much = Mul(first, most) "
            "size = Cast <to = 7> (much) n = Reshape(size, one) z = ConstantOfShape(n) t = ReduceSum(z)"
        ),
    )
    x = np.zeros((3, 7), np.float32)
    x[:, 0] = 25, 36, 160  # of 4 MiB each: within a limit, within it alone, beyond both
    bits = [model.run_all({"x": row[None]}, 1)[0].tobytes() for row in x]
    assert [b"\xc0\x7f" in found for found in bits] == [False, False, True]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 0, 1], [1, 1, 0]):
        found, _ = model.run_all({"x": x[order]}, len(order))
        assert [one.tobytes() for one in found] == [bits[n] for n in order]


def test_a_child_among_others_is_left_no_more_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack on the test above: were nobody run again, a row's scores would go by the others."""
    monkeypatch.setattr(alone, "ALONE", Limits(1.0, 1))
    model = opened(
        tmp_path,
        deadly(
            "most = Constant <value_floats = [1048576.0]> () much = Mul(first, most) "
            "size = Cast <to = 7> (much) n = Reshape(size, one) z = ConstantOfShape(n) t = ReduceSum(z)"
        ),
    )
    x = np.zeros((2, 7), np.float32)
    x[:, 0] = 25, 36
    assert not np.isnan(model.run_all({"x": x[1:]}, 1)[0]).any()
    assert np.isnan(model.run_all({"x": x}, 2)[0][1]).any()


def test_texts_and_numbers_arrive_as_they_are(tmp_path: Path) -> None:
    """What a child is given is what a run here is given, bit for bit."""
    odd = ["", "\0", "a\0", "é", "\U0001f600", "x" * 70000]
    for block in (
        np.array(odd, np.object_)[:, None],
        np.array([[0.0, -0.0, np.nan, np.inf, 5e-324]], np.float64),
        np.array([[True], [False]]),
        np.zeros((2, 0, 3), np.float16),
    ):
        again = alone._array(*alone._plain(block))
        assert (again.dtype, again.shape) == (block.dtype, block.shape)
        same = (
            again.tolist() == odd if block.dtype == object else again.tobytes() == block.tobytes()
        )
        assert same or again.tolist() == block.tolist()


def test_a_process_that_is_gone_is_told_and_started_again(tmp_path: Path) -> None:
    model = opened(tmp_path, DEADLY[ENDED]())
    expected, _ = model.run_all({"x": rows(5)}, 5)
    model._graph._process.kill()
    with pytest.raises((RuntimeError, OSError)):
        model.run_all({"x": rows(5)}, 5)
    assert np.array_equal(model.run_all({"x": rows(5)}, 5)[0], expected)


def test_the_process_goes_with_its_model(tmp_path: Path) -> None:
    model = opened(tmp_path, DEADLY[ENDED]())
    model.run_all({"x": rows(5)}, 5)
    process = model._graph._process
    assert process.poll() is None
    del model
    assert process.poll() is not None


def test_nobody_goes_on_when_who_asked_is_gone(tmp_path: Path) -> None:
    """Whoever stops a site stops one process, by force."""
    model = parts.save(tmp_path / "model.onnx", huge(2_000_000))
    code = (
        "import sys, numpy; from privcal.scoring import Model; "
        "m = Model(sys.argv[1], kind='logits'); x = numpy.full((30000, 7), 50, numpy.float32); "
        "m.run_all({'x': x[:1]}, 1); print(m._graph._process.pid, flush=True); "
        "m.run_all({'x': x}, len(x))"
    )
    asker = subprocess.Popen([sys.executable, "-c", code, model], stdout=subprocess.PIPE)
    assert asker.stdout is not None
    process = int(asker.stdout.readline())
    children = Path(f"/proc/{process}/task/{process}/children")
    deadline = time.monotonic() + 60
    while not (child := children.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)  # it has read the rows, and runs them
    asker.kill()
    asker.communicate()
    deadline = time.monotonic() + 3  # the rows would take a minute, and 5 seconds are allowed
    while time.monotonic() < deadline and any(map(_runs, [process, *map(int, child)])):
        time.sleep(0.05)
    assert child
    assert not any(map(_runs, [process, *map(int, child)]))


def _runs(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_where_no_process_can_make_children_rows_are_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(tmp_path, huge(1 << 42))
    expected, _ = model.run_all({"x": rows(9, 4)}, 9)
    monkeypatch.delattr(os, "fork")
    found, failed = model.run_all({"x": rows(9, 4)}, 9)
    assert np.array_equal(found, expected, equal_nan=True)
    assert [*failed] == [4]
    with pytest.raises(InputError, match="the model cannot score row 4"):
        parts.scores(model, write(tmp_path, rows(9, 4)))
