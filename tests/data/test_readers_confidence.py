"""Data that hold only the confidence in each answer, and whether it was right."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration import metrics
from privcal.calibration.kernel import FAST
from privcal.data import opening
from privcal.data.place import Data
from privcal.data.readers import read_scores
from privcal.data.scores import content_digest
from privcal.report.explain import explain
from privcal.trusted.errors import InputError, Refused
from privcal.trusted.queries import (
    FAMILY,
    BinnedGap,
    CellHistogram,
    ClassHats,
    EventHats,
    Gap,
    Hats,
    Histogram,
    Nll,
    OffsetHats,
    Query,
)
from tests.support import reference
from tests.support.builders import a_file, a_source, a_table, sentence, sharing

ODD = [0.0, 1.0, 0.5, 1e-300, 5e-324, 1 - 2**-53, 2**-53, 1 / 3]
CONFIDENCE = st.sampled_from(ODD) | st.floats(0, 1)
MALFORMED = [math.nan, math.inf, -math.inf, -1e-9, 1.0000001, -1.0, 1e300]
KNOTS = (-3.0, -1.0, 0.5, 4.0)
ANSWERED: list[Query] = [
    Gap(),
    BinnedGap(1.0, 7),
    Histogram(15),
    CellHistogram(1000),
    Hats(1.0, KNOTS),
]
REFUSED: list[Query] = [
    Gap(1.5),
    Nll(),
    BinnedGap(0.5),
    Hats(2.0, KNOTS),
    EventHats(event=0),
    EventHats(event=1),
    ClassHats(classes=2),
    OffsetHats(),
]


def made(n: int = 300, seed: int = 0) -> privcal.Scores:
    """Answers that are right less often than they are said to be."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0, 1, n)
    return privcal.Scores(confidence=c, correct=rng.uniform(size=n) < c**2)


def test_every_query_is_either_answered_or_refused() -> None:
    assert {type(query) for query in (*ANSWERED, *REFUSED)} == set(FAMILY.values())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(CONFIDENCE | st.sampled_from(MALFORMED), st.integers(0, 1)), min_size=1),
    st.sampled_from(ANSWERED),
    st.sampled_from(["float16", "float32", "float64"]),
    st.data(),
)
def test_removing_any_row_moves_the_sums_by_at_most_the_bound(
    rows: list[tuple[float, int]], query: Query, dtype: str, draw: st.DataObject
) -> None:
    with np.errstate(over="ignore"):
        c = np.array([c for c, _ in rows]).astype(dtype)
    scores = privcal.Scores(confidence=c, correct=[y for _, y in rows], strict=False)
    gone = draw.draw(st.sampled_from(sorted({0, len(rows) // 2, len(rows) - 1})))
    keep = np.delete(np.arange(len(rows)), gone)
    whole, less = query.contributions(scores), query.contributions(scores.take(keep))
    moved = whole.sum(query.length) - less.sum(query.length)
    assert np.abs(moved).sum() <= query.bound
    assert np.array_equal(whole.values[keep], less.values)
    assert np.array_equal(whole.cells[keep], less.cells)
    assert not whole.values[~scores.valid].any()
    well_formed = (c >= 0) & (c <= 1)
    assert scores.valid.tolist() == well_formed.tolist()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("order", ["C", "strided"])
def test_a_row_has_the_same_score_to_the_last_bit_wherever_it_is(n: int, order: str) -> None:
    c = np.random.default_rng(n).uniform(0, 1, n)
    table = c if order == "C" else np.stack([c, c], axis=1)[:, :1]
    together = FAST.log_odds(privcal.Scores(confidence=table, correct=[1] * n).outputs, 1.0)
    for row in {0, n // 2, n - 1}:
        alone = FAST.log_odds(privcal.Scores(confidence=c[[row]], correct=[1]).outputs, 1.0)
        assert together[row] == alone[0]


def test_the_score_is_the_log_odds_of_the_confidence_and_may_be_negative() -> None:
    scores = privcal.Scores(confidence=[0.2, 0.5, 0.9, 0.0, 1.0], correct=[0, 1, 1, 0, 1])
    odds = FAST.log_odds(scores.outputs, 1.0)
    assert odds[:3] == pytest.approx([math.log(0.2 / 0.8), 0.0, math.log(0.9 / 0.1)])
    assert odds[3] == pytest.approx(-odds[4])
    assert np.isfinite(odds).all()
    assert scores.correct.tolist() == [False, True, True, False, True]


def test_the_metrics_are_those_of_the_numbers_themselves() -> None:
    scores = made()
    c, correct = scores.outputs.array[:, 0], scores.correct
    measured = privcal.evaluate(scores).to_dict()
    assert measured["ece"] == pytest.approx(reference.ece(c, correct, 15))
    assert measured["brier"] == pytest.approx(np.mean((c - correct) ** 2))
    assert measured["aurc"] == pytest.approx(metrics.aurc(c, correct))
    assert measured["mean_confidence"] == pytest.approx(c.mean())
    assert not {"nll", "brier_multiclass", "ece_classwise"} & set(measured)


@pytest.mark.parametrize("method", ["sketch", "histogram-binning", "one-hot-binning"])
def test_methods_that_ask_for_confidence_alone_calibrate_it(method: str) -> None:
    scores = made(1200)
    found = privcal.calibrate(sharing(scores, 6, epsilon=5.0), method, epsilon=5.0).map
    before, after = (privcal.evaluate(scores, map).ece for map in (None, found))
    assert before > 0.1
    assert after < before / 2


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("acc-t", {}),
        ("nll-t", {}),
        ("ece-t", {}),
        ("sketch", {"event": 1}),
        ("sketch", {"event": 0}),
    ],
)
def test_methods_that_need_all_classes_say_so_before_anything_is_charged(
    method: str, options: dict[str, int]
) -> None:
    sources = [a_source(made(seed=seed)) for seed in (0, 1)]
    said = sentence(privcal.calibrate, sources, method, **options)
    assert "needs the outputs of all classes" in said
    assert [source.spent for source in sources] == [0, 0]


@pytest.mark.parametrize("query", REFUSED, ids=lambda query: query.canonical())
def test_a_source_refuses_what_it_cannot_answer_without_a_charge(query: Query) -> None:
    source = a_source(made())
    with pytest.raises(Refused) as caught:
        source.answer(privcal.Question.of(query, 0.5, "spring"))
    assert caught.value.code == "model"
    assert source.spent == 0
    with pytest.raises(InputError, match="all classes"):
        query.contributions(made())


def test_a_file_that_is_still_closed_refuses_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "answers.csv", made())
    [ledger] = privcal.create_ledgers(path, per_row=True)
    [note] = map(Data.noted, ledger.notes())
    monkeypatch.setattr(Data, "read", lambda *_: pytest.fail("the rows were looked at"))
    source = privcal.Source(note, ledger=ledger)
    assert source.offer([privcal.Question.of(Nll(), 0.5, "spring")]) == "model"
    with pytest.raises(Refused) as caught:
        source.answer(privcal.Question.of(Nll(), 0.5, "spring"))
    assert caught.value.code == "model"
    assert ledger.nano_spent == 0


def written(path: Path, scores: privcal.Scores) -> Path:
    columns = {"confidence": scores.outputs.array[:, 0], "correct": scores.labels}
    return a_table(path, columns)


def test_sources_of_confidences_and_of_all_classes_are_asked_apart(tmp_path: Path) -> None:
    binary = privcal.Scores(probabilities=np.linspace(0, 1, 30), labels=[0, 1] * 15)
    sources = [a_source(made()), a_source(binary)]
    with pytest.raises(InputError, match="ask them apart"):
        privcal.calibrate(sources, "sketch")
    assert [source.spent for source in sources] == [0, 0]
    one = written(tmp_path / "one.csv", made())
    other = tmp_path / "other.csv"
    pl.DataFrame({"label": [0, 1], "probability": [0.2, 0.7]}).write_csv(other)
    with pytest.raises(
        InputError,
        match=r"one\.csv has only the confidence .*other\.csv outputs of all classes: ask them apart",
    ):
        privcal.open_sources([one, other], new_ledgers=True, per_row=True)
    assert not list(tmp_path.glob("*.ledger"))


@pytest.mark.parametrize(
    "use",
    [
        lambda scores: privcal.TemperatureMap(2.0).confidence(scores),
        lambda scores: privcal.TemperatureMap(1.0).predict_proba(scores),
        lambda scores: privcal.CurveMap(1.0, (0.0, 1.0), (0.0, 1.0)).predict_proba(scores),
        lambda scores: privcal.CurveMap(2.0, (0.0, 1.0), (0.0, 1.0)).confidence(scores),
        lambda scores: privcal.RiskMap(1.0, (0.0, 1.0), (0.0, 1.0), event=1).risk(scores),
        lambda scores: privcal.OffsetsMap(1.0, *[(0.0, 1.0)] * 5).confidence(scores),
        lambda scores: privcal.fit_temperature(scores),
        lambda scores: privcal.evaluate(scores, event=1),
        lambda scores: privcal.methods.make("sketch", public=scores),
    ],
)
def test_what_needs_all_classes_says_so(use: object) -> None:
    with pytest.raises(InputError, match="needs the outputs of all classes"):
        use(made())  # type: ignore[operator]


def test_the_owner_is_told_of_the_queries_that_can_be_answered_and_can_audit_them() -> None:
    told = explain(a_source(made()))
    kinds = {query.kind for query in ANSWERED}
    assert {query["kind"] for query in told.queries} == kinds
    assert "without classes" in " ".join(told.lines)
    result = privcal.audit.audit_data(made(20))
    assert result.ok
    assert {row.name for row in result.rows} == kinds


def test_curves_and_bins_take_a_confidence() -> None:
    scores = privcal.Scores(confidence=[0.2, 0.9], correct=[0, 1])
    straight = privcal.CurveMap(1.0, (-5.0, 5.0), (-4.0, 6.0))  # one more in log-odds
    odds = [0.2 / 0.8 * math.e, 0.9 / 0.1 * math.e]
    assert straight.confidence(scores) == pytest.approx([x / (1 + x) for x in odds])
    assert privcal.BinsMap((0.1, None)).confidence(scores).tolist() == [0.1, 0.9]


CELLS = {
    "0.5,1": True, "1,0": True, "0,true": True, " 0.25 , False ": True, "1e-3,1.0": True,
    "0.5,2": False, "0.5,": False, ",1": False, "1.5,1": False, "nan,1": False, "x,1": False,
    "0.5,yes": False, "0.5,0.5": False, "50%,1": False,
}  # fmt: skip


@pytest.mark.parametrize("line", CELLS)
@pytest.mark.parametrize("index", [0, 2, 4])
def test_an_odd_row_changes_no_other(tmp_path: Path, line: str, index: int) -> None:
    rows = ["0.9,1", "0.1,0", "0.6,1", "0.4,0"]
    path = a_file(tmp_path / "answers.csv", "confidence,correct\n" + "\n".join(rows))
    less = read_scores(path)
    path.write_text("confidence,correct\n" + "\n".join([*rows[:index], line, *rows[index:]]))
    more = read_scores(path, strict=False)
    assert more.valid[index] == CELLS[line]
    for query in ANSWERED:
        before, after = query.contributions(less), query.contributions(more)
        assert np.array_equal(np.delete(after.values, index, 0), before.values)
        assert np.array_equal(np.delete(after.cells, index, 0), before.cells)
        assert after.values[index].any() or not CELLS[line] or query.kind.endswith("gap")
    if not CELLS[line]:
        with pytest.raises(InputError, match=f"row {index}"):
            read_scores(path)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.npz", "a.feather"])
def test_confidences_are_read_from_any_file(tmp_path: Path, name: str) -> None:
    path, scores = tmp_path / name, made(20)
    columns = {"confidence": scores.outputs.array[:, 0], "correct": scores.labels}
    table = pl.DataFrame(columns)
    match path.suffix:
        case ".csv":
            table.write_csv(path)
        case ".parquet":
            table.write_parquet(path)
        case ".feather":
            table.write_ipc(path)
        case _:
            np.savez(path, **columns)
    assert content_digest(read_scores(path)) == content_digest(scores)
    assert repr(read_scores(path)) == "Scores(20 rows of confidence)"


def test_confidences_need_to_know_which_are_correct(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("confidence,label\n0.5,1\n")
    with pytest.raises(InputError, match="has no column correct"):
        read_scores(tmp_path / "a.csv")
    with pytest.raises(InputError, match="confidence go with correct="):
        privcal.Scores(confidence=[0.5], labels=[1])
    with pytest.raises(InputError, match="logits go with labels="):
        privcal.Scores(logits=[[0.5]], correct=[1])


def test_how_data_are_read_is_the_ledgers_and_no_askers(tmp_path: Path) -> None:
    path = a_file(
        tmp_path / "visits.csv",
        "risk,other,died,late,pid\n0.2,0.9,0,1,a\n0.7,0.1,1,0,b\n0.6,0.5,1,1,a\n",
    )
    said = {"probability": "risk", "label": "died", "person": "pid"}
    [ledger] = privcal.create_ledgers(path, columns=said)
    assert ledger.unit == "person"
    expected = privcal.Scores(probabilities=[0.2, 0.7, 0.6], labels=[0, 1, 1])
    for columns in (None, {"probability": "risk", "label": "died"}):
        [source] = privcal.open_sources([path], columns=columns)
        assert content_digest(source.scores) == content_digest(expected)
        assert source.scores.person.tolist() == ["a", "b", "a"]
    for columns in ({"probability": "other", "label": "died"}, {"label": "late"}):
        with pytest.raises(InputError, match=r"label=died,probability=risk.*leave --columns"):
            privcal.open_sources([path], columns=columns)
    [note] = map(Data.noted, ledger.notes())  # as a site opens it, when a question is charged
    assert content_digest(note.read()) == content_digest(expected)
    with pytest.raises(InputError, match="leave --columns"):
        opening.layout_of(Data.at(path), privcal.data.columns.Layout.of({"label": "late"}))


def test_a_file_of_other_columns_is_known_under_a_new_name(tmp_path: Path) -> None:
    path = a_file(tmp_path / "visits.csv", "risk,died\n0.2,0\n0.7,1\n")
    said = {"probability": "risk", "label": "died"}
    [ledger] = privcal.create_ledgers(path, columns=said, per_row=True)
    renamed = path.rename(tmp_path / "renamed.csv")
    [source] = privcal.open_sources([renamed])
    assert source.ledger.id == ledger.id
    assert opening.ledger_of(renamed).id == ledger.id
    with pytest.raises(InputError, match="already has the ledger"):
        privcal.create_ledgers(renamed, columns=said, per_row=True)


def test_other_weeks_are_read_as_the_first(tmp_path: Path) -> None:
    for week, p in (("a", 0.25), ("b", 0.5)):
        (tmp_path / f"{week}.csv").write_text(f"risk,died\n{p},1\n")
    said = {"probability": "risk", "label": "died"}
    [ledger] = privcal.create_ledgers(tmp_path / "a.csv", columns=said, per_row=True)
    [(_, data)] = privcal.attach_data(ledger, tmp_path / "b.csv")
    assert data.read().outputs.array.tolist() == [[0.5]]
    [source] = privcal.open_sources([tmp_path / "b.csv"])
    assert source.scores.outputs.array.tolist() == [[0.5]]
