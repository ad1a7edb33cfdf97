"""A row's scores are a function of that row alone, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install privcal[onnx]")
pytest.importorskip("onnx")
skl2onnx = pytest.importorskip("skl2onnx")

from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from privcal.data.scoring import Model  # noqa: E402
from privcal.data.scoring.alone import open_session as _session  # noqa: E402
from privcal.data.scoring.model import Setup  # noqa: E402
from privcal.trusted.errors import InputError  # noqa: E402
from tests.support import scoring_parts as parts  # noqa: E402

# Sums over a row, whose order may go by where the row begins; and an operator over all rows.
SUMS = "s = ReduceMean <axes = [1]> (x) z = Sub(x, s) u = MatMul(z, w) y = Softmax(u)"
ACROSS = "m = ReduceMean <axes = [0]> (x) z = Sub(x, m) v = MatMul(x, w) u = MatMul(z, w) t = Add(u, v) y = Softmax(t)"


def fitted(estimator: Any) -> Any:
    x = parts.numbers(300, 9)
    estimator.fit(x, np.digitize(x[:, 0] + x[:, 1], [-2, 2]))
    return skl2onnx.to_onnx(estimator, x[:1], options={"zipmap": False})


MODELS = {
    "logistic": lambda: fitted(make_pipeline(StandardScaler(), LogisticRegression())),
    "network": lambda: fitted(MLPClassifier((33, 17), max_iter=3, random_state=0)),
    "sums": lambda: parts.net(SUMS),
    "across": lambda: parts.net(ACROSS),
}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def in_batches(session: Any, x: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    given, out = session.get_inputs()[0].name, session.get_outputs()[-1].name
    return np.concatenate(
        [session.run([out], {given: x[i : i + size]})[0] for i in range(0, len(x), size)]
    )


def test_the_attack_removing_a_row_from_a_batch_moves_the_bits_of_others() -> None:
    """What scoring in batches would do: an ordinary pipeline, the last row removed."""
    x = parts.numbers(7 * 20 + 2)
    moved = 0
    for name in ("logistic", "network"):
        session = _session(MODELS[name]().SerializeToString())
        all_rows, one_less = in_batches(session, x, 7)[:-1], in_batches(session, x[:-1], 7)
        moved += int((all_rows != one_less).any(axis=1).sum())
        moved += int((in_batches(session, x, 64) != in_batches(session, x, 1)).any(axis=1).sum())
    if not moved:
        pytest.skip("the kernels that this processor gets add up alike in every batch")


def test_the_attack_a_row_read_where_it_lies_has_other_bits_at_another_place() -> None:
    """One at a time is not enough: a view of the table begins anywhere."""
    session = _session(MODELS["sums"]().SerializeToString())
    x = parts.numbers(400)
    there = in_batches(session, x, 1)
    elsewhere = in_batches(session, np.concatenate([x[:1], x]), 1)[1:]
    if np.array_equal(there, elsewhere):
        pytest.skip("the kernels that this processor gets add up alike at every place")


@pytest.mark.parametrize("name", MODELS)
def test_rows_moved_removed_and_added_leave_the_scores_of_others_as_they_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(parts.save(tmp_path / "model.onnx", MODELS[name]()))
    rows = parts.frame(parts.numbers(150))
    rng = np.random.default_rng(1)

    def bits(table: pl.DataFrame, piece: int) -> dict[str, bytes]:
        monkeypatch.setattr("privcal.data.scoring.run.PIECE", piece)
        table.write_parquet(tmp_path / "table.parquet")
        found = parts.scores(model, tmp_path / "table.parquet")
        values = found.drop("label", "person").to_numpy()
        return {who: row.tobytes() for who, row in zip(found["person"], values, strict=True)}

    before = bits(rows, 1000)
    assert len(set(before.values())) > 100, "rows differ, or nothing is shown"
    more = parts.frame(parts.numbers(40, 2)).with_columns(pid="new-" + pl.col("pid"))
    for table in (
        rows[rng.permutation(150).tolist()],
        rows[1:],
        rows[:-1],
        rows[:70].vstack(rows[71:]),
        rows[:1],
        more.vstack(rows),
        rows[:33].vstack(more[:1]).vstack(rows[33:]),
    ):
        after = bits(table, int(rng.integers(1, 60)))
        assert {who: after[who] for who in after if who in before} == {
            who: before[who] for who in after if who in before
        }


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_a_malformed_row_has_no_scores_and_changes_no_other(
    tmp_path: Path, broken: float | None
) -> None:
    model = Model(parts.save(tmp_path / "model.onnx", MODELS["logistic"]()))
    rows = parts.frame(parts.numbers(20))
    rows.write_parquet(tmp_path / "good.parquet")
    spoiled = rows.with_columns(
        f3=pl.when(pl.col("pid") == "p7").then(pl.lit(broken)).otherwise(pl.col("f3"))
    )
    spoiled.write_parquet(tmp_path / "bad.parquet")
    good = parts.scores(model, tmp_path / "good.parquet")
    bad = parts.scores(model, tmp_path / "bad.parquet", strict=False)
    assert np.isnan(bad.drop("label", "person").to_numpy()[7]).all()
    others = [n for n in range(20) if n != 7]
    assert bad[others].equals(good[others])


def test_a_row_that_the_model_fails_on_is_malformed_by_itself(tmp_path: Path) -> None:
    """A category that the model does not know, in an operator that refuses to go on."""
    text = "i = Cast <to = 7> (x) e = Gather <axis = 0> (w, i) u = Squeeze(e, a) y = Softmax(u)"
    model = parts.net(f"a = Constant <value_ints = [1]> () {text}", given="float[N, 1] x")
    opened = Model(parts.save(tmp_path / "model.onnx", model))
    table = tmp_path / "table.parquet"
    pl.DataFrame({"x": [0.0, 99.0, 2.0], "y": [0, 0, 0], "pid": ["a", "b", "c"]}).write_parquet(
        table
    )
    setup = Setup("y", "pid")
    found = parts.scores(opened, table, setup, strict=False)
    assert found["probability_0"].is_nan().to_list() == [False, True, False]
    with pytest.raises(InputError, match="the model cannot score row 1"):
        parts.scores(opened, table, setup)
