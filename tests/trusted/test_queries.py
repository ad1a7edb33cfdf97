"""Sensitivity is tested, not argued: removing a row moves the integer sums by at most the bound."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration.kernel import FAST
from privcal.trusted import kernel, scores
from privcal.trusted.kernel import bin_index
from privcal.trusted.queries import (
    FAMILY,
    GRID,
    HATS_SHARE,
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
    parse,
)
from privcal.trusted.source import Source
from tests.support import reference
from tests.support.builders import a_source, outcome

HUGE = [1e30, -1e30, 3e38, -3e38]
LOGITS = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, -1.0, 88.0, -104.0, 1e-40]),
    st.floats(-50, 50, width=32),
)


@st.composite
def any_query(draw: st.DrawFn) -> Query:
    temperature = draw(st.sampled_from([0.01, 0.5, 1.0, 3.0, 100.0]) | st.floats(0.01, 100))
    bins = draw(st.sampled_from([1, 2, 15, 1000]))
    clip = draw(st.sampled_from([1e-6, 0.1, 10.0, 1000.0]))
    start = draw(st.floats(-100, 50))
    steps = draw(st.lists(st.sampled_from([0.011, 0.5, 1.0, 7.0]), min_size=1, max_size=7))
    knots = tuple(np.cumsum([start, *steps]).tolist())
    curve = tuple(np.linspace(start, start + 9, len(knots)).tolist())
    offsets = tuple(draw(st.lists(st.floats(-100, 100), min_size=2, max_size=4)))
    return draw(
        st.sampled_from(
            [
                Gap(temperature),
                Nll(temperature, clip),
                BinnedGap(temperature, bins),
                Histogram(bins),
                CellHistogram(bins),
                Hats(temperature, knots),
                Hats(temperature),
                ClassHats(temperature, knots, draw(st.sampled_from([2, 3, 1000]))),
                OffsetHats(temperature, knots, curve, offsets, knots),
                EventHats(temperature, knots, event=draw(st.integers(0, 3))),
                EventHats(temperature),
            ]
        )
    )


@st.composite
def adversarial_scores(draw: st.DrawFn, max_rows: int = 9) -> privcal.Scores:
    n, m = draw(st.integers(1, max_rows)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["float16", "float32", "float64", "probabilities", "column"]))
    labels = draw(st.lists(st.integers(0, max(m - 1, 0)), min_size=n, max_size=n))
    if kind == "column":
        p = draw(
            st.lists(
                st.sampled_from([0.0, 0.5, 1.0, 1e-300]) | st.floats(0, 1), min_size=n, max_size=n
            )
        )
        return privcal.Scores(probabilities=p, labels=[y % 2 for y in labels])
    values = LOGITS
    if kind == "float32":
        values = LOGITS | st.sampled_from(HUGE)
    if kind == "float64":
        values = LOGITS | st.sampled_from([*HUGE, 1e308, -1e308])
    row = st.lists(values, min_size=m, max_size=m)
    table = np.array(draw(st.lists(row, min_size=n, max_size=n)), np.float64).reshape(n, m)
    if kind == "probabilities" and m > 1:
        p = np.exp(np.clip(table - table.max(axis=1, keepdims=True), -800, 0))
        return privcal.Scores(probabilities=p / p.sum(axis=1, keepdims=True), labels=labels)
    return privcal.Scores(
        logits=table.astype(kind if "float" in kind else "float64"), labels=labels
    )


@pytest.mark.usefixtures("each_kernel")
@settings(max_examples=400, deadline=None)
@given(adversarial_scores(), any_query(), st.data())
def test_removing_any_row_moves_the_sums_by_at_most_the_bound(
    data: privcal.Scores, query: Query, draw: st.DataObject
) -> None:
    gone = draw.draw(st.sampled_from(sorted({0, len(data) // 2, len(data) - 1})))
    rest = data.take(np.delete(np.arange(len(data)), gone))
    whole, less = query.contributions(data), query.contributions(rest)
    moved = whole.sum(query.length) - less.sum(query.length)
    assert np.abs(moved).sum() <= query.bound
    # The other rows did not change by a single grid point.
    others = whole.take(np.delete(np.arange(len(data)), gone))
    assert np.array_equal(others.values, less.values)
    assert np.array_equal(others.cells, less.cells)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("kind", FAMILY)
def test_the_bound_holds_across_block_edges(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "BLOCK", 64)
    monkeypatch.setattr(kernel, "BLOCK", 64)
    rng = np.random.default_rng(1)
    query = FAMILY[kind]()
    for n, m in ((7, 8), (8, 8), (9, 8), (64, 8), (65, 8), (7, 200), (33, 333)):
        logits, labels = rng.normal(0, 9, (n, m)).astype(np.float32), rng.integers(0, m, n)
        whole = query.contributions(privcal.Scores(logits=logits, labels=labels)).sum(query.length)
        for gone in (0, n // 2, n - 1):
            keep = np.delete(np.arange(n), gone)
            less = privcal.Scores(logits=logits[keep], labels=labels[keep])
            moved = whole - query.contributions(less).sum(query.length)
            alone = privcal.Scores(logits=logits[[gone]], labels=labels[[gone]])
            # Exactly that row's own integers: no other row changed by a single bit.
            assert moved.tolist() == query.contributions(alone).sum(query.length).tolist()
            assert np.abs(moved).sum() <= query.bound


def on_a_bins_edge(bins: int, classes: int = 10_000, tries: int = 500) -> np.ndarray:
    """Logits whose confidence falls into one bin or its neighbour, as the order of summation is:
    all columns in one go, or the first 8,192 (NumPy's buffer) and then the others."""
    rng = np.random.default_rng(0)
    for _ in range(tries):
        row = rng.standard_normal((1, classes), np.float32)
        row[0, 0] = 0
        edge = rng.integers(bins // 4, bins) / bins
        rest = np.exp(row[:, 1:].astype(np.float64)).sum()
        row[0, 0] = np.log(rest * edge / (1 - edge))  # on the edge, were it not for rounding
        e = np.exp(row - row[0, 0])
        pair = np.concatenate([e, e])
        orders = (
            np.einsum("ij->i", pair)[0],
            (np.einsum("ij->i", pair[:, :8192]) + np.einsum("ij->i", pair[:, 8192:]))[0],
        )
        if len(set(bin_index(1.0 / np.array(orders, np.float64), bins).tolist())) == 2:
            return row
    raise AssertionError(f"none of {tries} rows lies near enough to the edge of a bin")


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("kind", FAMILY)
def test_with_many_classes_too_no_row_carries_another_over_a_bins_edge(kind: str) -> None:
    query = FAMILY[kind]()
    moving = on_a_bins_edge(15)
    rng = np.random.default_rng(1)
    height = kernel.BLOCK // moving.shape[1]
    # Without its first row it is alone; or it was alone in the last block and no longer is.
    for n in (2, height + 1):
        others = rng.standard_normal((n - 1, moving.shape[1]), np.float32)
        logits = np.concatenate([others, moving])
        for label in (0, 1):
            labels = np.array([*[0] * (n - 1), label])
            whole = query.contributions(privcal.Scores(logits=logits, labels=labels))
            less = query.contributions(privcal.Scores(logits=logits[1:], labels=labels[1:]))
            assert np.array_equal(whole.cells[1:], less.cells)
            assert np.array_equal(whole.values[1:], less.values)
            moved = whole.sum(query.length) - less.sum(query.length)
            assert np.abs(moved).sum() <= query.bound


@pytest.mark.usefixtures("each_kernel")
@settings(max_examples=150, deadline=None)
@given(adversarial_scores(), any_query(), st.integers(1, 3), st.data())
def test_removing_a_person_moves_the_sums_by_at_most_rows_per_person_bounds(
    data: privcal.Scores, query: Query, limit: int, draw: st.DataObject
) -> None:
    ids = draw.draw(st.lists(st.sampled_from("abc"), min_size=len(data), max_size=len(data)))
    who = draw.draw(st.sampled_from(sorted(set(ids))))
    policy = privcal.Policy(rows_per_person=limit)
    data = _with_persons(data, ids)
    rest = data.take(np.array([person != who for person in ids]))
    ledger = privcal.Ledger.in_memory(policy, unit="person")  # one secret for both
    source, without = Source(data, policy, ledger=ledger), Source(rest, policy, ledger=ledger)
    moved = source._exact(query) - without._exact(query)
    assert np.abs(moved).sum() <= source.sensitivity(query) == limit * query.bound


def _with_persons(data: privcal.Scores, ids: list[str]) -> privcal.Scores:
    table = {data.outputs.kind: data.outputs.array}
    return privcal.Scores(**table, labels=data.labels, person=ids)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0])
def test_a_file_changed_after_opening_cannot_break_the_bound(
    kind: str, poison: float, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    np.save(tmp_path / "logits.npy", rng.normal(0, 3, (20, 5)).astype(np.float32))
    np.save(tmp_path / "labels.npy", rng.integers(0, 5, 20))
    data = privcal.read_scores(tmp_path)
    query = FAMILY[kind]()
    query.contributions(data)  # whatever is remembered is remembered now
    changed = np.load(tmp_path / "logits.npy", mmap_mode="r+")
    changed[3:15] = poison
    changed[16, 2] = poison
    changed.flush()
    rows = query.contributions(data)
    assert (np.abs(rows.values).sum(axis=1) <= query.bound).all()
    assert ((rows.cells >= 0) & (rows.cells < query.length)).all()


@pytest.mark.usefixtures("each_kernel")
def test_a_row_with_no_finite_contribution_counts_as_zero(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", np.zeros((2, 3)))
    np.save(tmp_path / "labels.npy", np.zeros(2, int))
    data = privcal.read_scores(tmp_path)
    before = Gap().contributions(data).values[0, 0]
    changed = np.load(tmp_path / "logits.npy", mmap_mode="r+")
    changed[1] = np.nan
    changed.flush()
    assert Gap().contributions(data).values[:, 0].tolist() == [before, 0]


@pytest.mark.usefixtures("each_kernel")
def test_answers_are_what_the_queries_say() -> None:
    logits = np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    data = privcal.Scores(logits=logits, labels=[0, 1, 1])  # right, wrong, right
    near = 1.5 * len(data)  # each row is rounded to the grid

    def sums(query: Query) -> np.ndarray:
        return query.contributions(data).sum(query.length)

    assert sums(Gap()) == pytest.approx([(2 - 2.3) * GRID], abs=near)
    nll = -np.log(0.9) - np.log(0.4) - np.log(0.8)
    assert sums(Nll()) == pytest.approx([nll * GRID], abs=near)
    assert sums(Nll(clip=0.5)) == pytest.approx(
        [(-np.log(0.9) + 0.5 - np.log(0.8)) * GRID], abs=near
    )
    gaps = sums(BinnedGap(bins=10)) / GRID
    assert gaps == pytest.approx([0, 0, 0, 0, 0, 0, -0.6, 0, 0.2, 0.1], abs=1e-5)
    histogram = sums(Histogram(bins=10)) / GRID
    assert histogram[:10].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert histogram[10:].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 1, 1]
    cells = sums(CellHistogram(bins=10)) / GRID
    assert cells[:10].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    assert cells[10:].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize(
    ("query", "sensitivity"),
    [
        (Gap(), 1),
        (Nll(), 10),
        (Nll(clip=2.5), 2.5),
        (BinnedGap(), 1),
        (Histogram(), 2),
        (CellHistogram(), 1),
        (Hats(), 1),
        (ClassHats(), 1),
        (OffsetHats(), 1),
        (EventHats(), 1),
        (EventHats(event=0), 1),
    ],
)
def test_sensitivities_are_the_declared_ones_and_are_reached(
    query: Query, sensitivity: float
) -> None:
    assert query.bound == sensitivity * GRID
    # A row certain and wrong (or certain and right, for the paper's histogram) reaches the bound.
    reached = max(
        np.abs(query.contributions(privcal.Scores(logits=[[99.0, -99.0]], labels=[y])).values).sum()
        for y in (0, 1)
    )
    assert reached == query.bound


def test_a_query_survives_json() -> None:
    for query in (
        Gap(1 / 3),
        Nll(0.7, 4.2),
        BinnedGap(2.2, 7),
        Histogram(3),
        CellHistogram(4),
        Hats(0.3, (-1 / 3, 0.1, 7)),
        ClassHats(0.3, (-1 / 3, 0.1, 7), 200),
        OffsetHats(0.3, (-1 / 3, 0.1, 7), (-1, 0, 2 / 3), (0.1,) * 1000, (0, 1)),
        EventHats(0.3, (-1 / 3, 0.1, 7), 4),
    ):
        again = parse(json.loads(json.dumps(query.to_dict())))
        assert again == query
        assert again.canonical() == query.canonical()


@pytest.mark.parametrize(
    "message",
    [
        None,
        {},
        {"kind": "sum"},
        {"kind": "gap", "code": "1"},
        {"kind": "gap", "temperature": "1"},
        {"kind": "gap", "temperature": float("nan")},
        {"kind": "gap", "temperature": 0.0},
        {"kind": "gap", "temperature": 101},
        {"kind": "gap", "temperature": True},
        {"kind": "nll", "clip": 0},
        {"kind": "nll", "clip": 1e9},
        {"kind": "binned-gap", "bins": 0},
        {"kind": "binned-gap", "bins": 1001},
        {"kind": "binned-gap", "bins": 15.0},
        {"kind": ["gap"]},
        {"kind": "gap", "temperature": 10**400},
        {"kind": "hats", "knots": 3.0},
        {"kind": "hats", "knots": "0123"},
        {"kind": "hats", "knots": []},
        {"kind": "hats", "knots": [1.0]},
        {"kind": "hats", "knots": [1.0, 0.0]},
        {"kind": "hats", "knots": [1.0, 1.0]},
        {"kind": "hats", "knots": [1.0, 1.009]},
        {"kind": "hats", "knots": [0.0, float("nan")]},
        {"kind": "hats", "knots": [0.0, float("inf")]},
        {"kind": "hats", "knots": [0.0, 100.1]},
        {"kind": "hats", "knots": [0.0, True]},
        {"kind": "hats", "knots": [0.0, "1"]},
        {"kind": "hats", "knots": [0.0, [1.0]]},
        {"kind": "hats", "knots": [0.0, 10**400]},
        {"kind": "hats", "knots": list(range(33))},
        {"kind": "class-hats", "knots": list(range(33))},
        {"kind": "class-hats", "classes": 1},
        {"kind": "class-hats", "classes": 1001},
        {"kind": "class-hats", "classes": 3.0},
        {"kind": "offset-hats", "scores": list(range(33)), "log_odds": list(range(33))},
        {"kind": "offset-hats", "log_odds": [0.0, 1.0, 2.0]},
        {"kind": "offset-hats", "log_odds": [1.0, 0.0]},
        {"kind": "offset-hats", "log_odds": [0.0, 101.0]},
        {"kind": "offset-hats", "scores": [1.0, 0.0]},
        {"kind": "offset-hats", "knots": [1.0]},
        {"kind": "offset-hats", "offsets": [0.0]},
        {"kind": "offset-hats", "offsets": [0.0] * 1001},
        {"kind": "offset-hats", "offsets": [0.0, 1e9]},
        {"kind": "offset-hats", "offsets": [0.0, float("nan")]},
        {"kind": "hats", "event": 1},
        {"kind": "event-hats", "event": -1},
        {"kind": "event-hats", "event": True},
        {"kind": "event-hats", "event": 1.0},
        {"kind": "event-hats", "event": None},
        {"kind": "event-hats", "event": 2**31},
    ],
)
def test_what_is_outside_the_family_is_no_query(message: object) -> None:
    with pytest.raises(privcal.InputError):
        parse(message)


KNOTS = (-2.0, -0.5, 0.0, 1.0, 4.0)


def added(query: Query, data: privcal.Scores) -> list[list[float]]:
    """What each row adds to each cell."""
    rows = query.contributions(data)
    return [(rows.take([i]).sum(query.length) / GRID).tolist() for i in range(len(data))]


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_hats_are_those_of_the_slow_reference(classes: int, temperature: float) -> None:
    rng = np.random.default_rng(classes)
    logits, labels = rng.normal(0, 3, (200, classes)), rng.integers(0, classes, 200)
    found = added(Hats(temperature, KNOTS), privcal.Scores(logits=logits, labels=labels))
    expected = [
        reference.hats_of(row, y, temperature, KNOTS)
        for row, y in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    # Towards zero on the grid of 2⁻²⁰.
    assert np.allclose(found, expected, rtol=0, atol=1.01 / GRID)
    assert (np.array(found) <= np.array(expected) + 1e-12).all()
    # Every row is whole, to the rounding, and on one side only.
    assert np.allclose(np.sum(found, axis=1), 1, atol=2.01 / GRID)
    assert (np.array(found)[:, :5].any(axis=1) != np.array(found)[:, 5:].any(axis=1)).all()


@pytest.mark.parametrize(
    ("score", "share"),
    [
        (-0.5, [0, 1, 0, 0, 0]),  # on a knot
        (0.0, [0, 0, 1, 0, 0]),
        (-2.0, [1, 0, 0, 0, 0]),  # on the first and the last
        (4.0, [0, 0, 0, 0, 1]),
        (-4.0, [1, 0, 0, 0, 0]),  # beyond them
        (50.0, [0, 0, 0, 0, 1]),
        (800.0, [0, 0, 0, 0, 1]),  # confidence exactly 1: the log-odds are infinite
        (-1.25, [0.5, 0.5, 0, 0, 0]),
        (3.25, [0, 0, 0, 0.25, 0.75]),
    ],
)
def test_a_row_counts_for_the_knots_on_either_side(score: float, share: list[float]) -> None:
    # With m equal rivals the log-odds are top − log m, which may be negative.
    rivals = [0.0] if score >= 0 else [0.0] * 4096
    top = score + np.log(len(rivals))
    data = privcal.Scores(logits=[[top, *rivals]] * 2, labels=[0, 1])
    right, wrong = added(Hats(1.0, KNOTS), data)
    near = 2 / GRID + 1e-9
    assert right == pytest.approx([0] * 5 + share, abs=near)
    assert wrong == pytest.approx(share + [0] * 5, abs=near)


@pytest.mark.usefixtures("each_kernel")
def test_hats_of_certain_lonely_and_tied_rows() -> None:
    query = Hats(1.0, KNOTS)
    certain = privcal.Scores(probabilities=[[1.0, 0.0]], labels=[0])
    assert added(query, certain) == [[0] * 9 + [1]]
    one_class = privcal.Scores(logits=[[3.0]], labels=[0])
    assert added(query, one_class) == [[0] * 9 + [1]]
    # Two equal classes: confidence 1/2, log-odds 0; the first of them is predicted.
    tied = privcal.Scores(logits=[[7.0, 7.0]] * 2, labels=[0, 1])
    assert added(query, tied) == [[0] * 7 + [1, 0, 0], [0, 0, 1] + [0] * 7]
    # Three: confidence 1/3, log-odds −log 2 between the knots −2 and −0.5.
    thirds = privcal.Scores(logits=[[7.0, 7.0, 7.0]], labels=[2])
    left = (np.log(2) - 0.5) / 1.5
    assert added(query, thirds)[0] == pytest.approx([left, 1 - left] + [0] * 8, abs=2 / GRID)


@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_event_hats_are_those_of_the_slow_reference(classes: int, temperature: float) -> None:
    rng = np.random.default_rng(classes)
    logits, labels = rng.normal(0, 3, (200, classes)), rng.integers(0, classes, 200)
    for event in {0, 1, classes - 1}:
        query = EventHats(temperature, KNOTS, event)
        found = added(query, privcal.Scores(logits=logits, labels=labels))
        expected = [
            reference.hats_of(row, y, temperature, KNOTS, event)
            for row, y in zip(logits.tolist(), labels.tolist(), strict=True)
        ]
        assert np.allclose(found, expected, rtol=0, atol=1.01 / GRID)
        assert np.allclose(np.sum(found, axis=1), 1, atol=2.01 / GRID)


@pytest.mark.usefixtures("each_kernel")
def test_event_hats_of_certain_lonely_tied_and_malformed_rows() -> None:
    query = EventHats(1.0, KNOTS, event=1)
    nothing, first, last = [0.0] * 5, [1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0]
    column = privcal.Scores(probabilities=[0.0, 1.0, 0.0, 1.0], labels=[0, 0, 1, 1])
    assert added(query, column) == [
        first + nothing,  # certain of another class, and it is
        last + nothing,
        nothing + first,
        nothing + last,
    ]
    tied = privcal.Scores(logits=[[7.0, 7.0]] * 2, labels=[0, 1])
    assert added(query, tied) == [[0, 0, 1, 0, 0, *nothing], [*nothing, 0, 0, 1, 0, 0]]
    odd = privcal.Scores(
        probabilities=[[0.5, 0.5], [np.nan, 0.5], [0.7, 0.7], [0.5, 0.5]],
        labels=[1, 1, 1, 7],
        strict=False,
    )
    assert [sum(row) for row in added(query, odd)] == [1, 0, 0, 0]
    # No such class: nothing to add, in whatever the model's classes are.
    one = privcal.Scores(logits=[[3.0]], labels=[0])
    assert added(query, one) == [[0] * 10]
    assert added(EventHats(1.0, KNOTS, event=0), one) == [nothing + last]


def test_event_hats_look_at_the_label_and_hats_at_the_prediction() -> None:
    # The prediction of class 0 is right, and class 1 did not happen.
    data = privcal.Scores(logits=[[2.0, 0.0]], labels=[0])
    [right], [no] = added(Hats(1.0, KNOTS), data), added(EventHats(1.0, KNOTS), data)
    assert sum(right[5:]) == pytest.approx(1, abs=2 / GRID)
    assert no == pytest.approx([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], abs=2 / GRID)


def test_a_source_without_that_class_refuses_before_it_is_charged() -> None:
    scores = privcal.Scores(probabilities=[0.3, 0.6], labels=[0, 1])
    source = a_source(scores, name="clinic")
    question = privcal.Question.of(EventHats(event=2), 0.5, "spring")
    assert source.offer([question]) == "model"
    assert outcome(source.answer, question) == "model"
    assert source.spent == 0
    assert len(source.answer(privcal.Question.of(EventHats(event=1), 0.5, "spring")).values) == 4


@dataclass(frozen=True)
class Unruly(Query):
    """Says what it likes of its rows: only the common steps stand between it and the sum."""

    kind = "unruly"
    values: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        return 4

    def __post_init__(self) -> None:
        """Whatever its values are, the common steps must do."""

    @property
    def sensitivity(self) -> float:
        return 1.0

    def _rows(self, scores: scores.Scores, kernel: object) -> tuple[np.ndarray, np.ndarray]:
        values = np.tile(self.values, (len(scores), 1))
        return np.tile(np.arange(len(self.values)), (len(scores), 1)), values


@pytest.mark.parametrize(
    ("values", "grid"),
    [
        ((1e300,), [GRID]),  # clipped before it could overflow an integer and change its sign
        ((-1e300,), [-GRID]),
        ((np.nan,), [0]),
        ((0.75, 0.75), [0, 0]),  # within each cell, but not in L1: counts as nothing
        ((0.5 - 2**-22, 0.5 + 2**-22), [GRID // 2 - 1, GRID // 2]),  # towards zero, both
        ((2**-21 * 1.5,), [1]),  # one cell: to the nearest
    ],
)
def test_the_common_steps_hold_whatever_a_query_says(
    values: tuple[float, ...], grid: list[int]
) -> None:
    rows = Unruly(values).contributions(privcal.Scores(logits=[[0.0, 1.0]], labels=[0]))
    assert rows.values[0].tolist() == grid


@pytest.mark.usefixtures("each_kernel")
def test_class_hats_divide_a_row_between_its_score_and_its_predicted_class() -> None:
    logits = np.array([[2.0, 0.0, -9.0], [0.0, 1.0, -9.0], [-9.0, 0.0, 3.0], [-9.0, 0.0, 3.0]])
    data = privcal.Scores(logits=logits, labels=[0, 0, 2, 1])
    query = ClassHats(1.0, KNOTS, 3)
    sums = query.contributions(data).sum(query.length) / GRID
    hats = Hats(1.0, KNOTS).contributions(data).sum(2 * len(KNOTS)) / GRID
    assert sums[: 2 * len(KNOTS)] == pytest.approx(HATS_SHARE * hats, abs=1e-5)
    wrong, right = sums[2 * len(KNOTS) :].reshape(2, 3) / (1 - HATS_SHARE)
    assert wrong.tolist() == [0, 1, 1]
    assert right.tolist() == [1, 0, 1]
    # A class beyond those that are counted is in no class's cell, and in its hats all the same.
    fewer = ClassHats(1.0, KNOTS, 2)
    sums = fewer.contributions(data).sum(fewer.length) / GRID
    wrong, right = sums[2 * len(KNOTS) :].reshape(2, 2) / (1 - HATS_SHARE)
    assert (wrong.tolist(), right.tolist()) == ([0, 1], [1, 0])
    assert sums[: 2 * len(KNOTS)] == pytest.approx(HATS_SHARE * hats, abs=1e-5)


@pytest.mark.usefixtures("each_kernel")
def test_offset_hats_are_the_hats_of_a_curve_plus_the_predicted_classs_offset() -> None:
    rng = np.random.default_rng(0)
    data = privcal.Scores(logits=rng.normal(0, 4, (200, 3)), labels=rng.integers(0, 3, 200))
    curve, offsets = ((-1.0, 0.5, 6.0), (-2.0, 0.0, 1.0)), (0.7, -1.2, 0.0)
    query = OffsetHats(2.0, *curve, offsets, KNOTS)
    s = FAST.log_odds(data.outputs, 2.0)
    score = np.interp(s, *curve) + np.array(offsets)[data.outputs.predicted]
    hats = [np.interp(score, KNOTS, unit) for unit in np.eye(len(KNOTS))]
    expected = [(hat * (data.correct == right)).sum() for right in (False, True) for hat in hats]
    assert query.contributions(data).sum(query.length) / GRID == pytest.approx(expected, abs=1e-3)
    # Fewer offsets than classes: the others have none.
    less = OffsetHats(2.0, *curve, offsets[:2], KNOTS)
    assert less.contributions(data).sum(less.length).tolist() == (
        query.contributions(data).sum(query.length).tolist()
    )


@pytest.mark.parametrize("wrong", [{"knots": [0.05 * i for i in range(1000)]}, {"x" * 10_000: 1}])
def test_a_query_of_too_much_is_refused_in_one_short_sentence(wrong: dict[str, object]) -> None:
    with pytest.raises(privcal.InputError) as refused:
        parse({"kind": "hats", **wrong})
    assert len(str(refused.value)) < 1000
