"""Which answers are believed: the gate against a slow reference, honest sources, and liars."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration.campaign import Campaign, Recorded
from privcal.calibration.loop import SourceDropped
from privcal.calibration.metrics import ece
from privcal.data.datasets import cifar10c, shifts
from privcal.data.panels import LocalPanel
from privcal.data.plausible import (
    BY_CHANCE,
    ENOUGH,
    FEWEST,
    JUMP,
    MAX_SITE_ROWS,
    beyond,
    implausible,
    impossible,
)
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import (
    GRID,
    BinnedGap,
    CellHistogram,
    Gap,
    Hats,
    Histogram,
    Nll,
    Query,
)
from privcal.trusted.question import Question
from privcal.trusted.scores import FloatArray
from privcal.trusted.source import Answer
from tests.support.builders import a_source

COUNTS = (Histogram, CellHistogram, Hats)
HATS = Hats(knots=(-4.0, -2.2, -0.7, 0.8, 2.5, 5.0, 12.0))
EVERY = [HATS, CellHistogram(15), Histogram(15), Gap(1.5), Nll(1.5), BinnedGap(1.5, 15)]
quiet = pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")


def question(query: Query, nano_epsilon: int = NANO) -> Question:
    return Question("c", 0, 0, nano_epsilon, query)


def odd(answers: FloatArray, query: Query, epsilon: float = 1.0) -> list[int]:
    found = implausible([answers], [question(query, int(epsilon * NANO))])
    return np.flatnonzero(found).tolist()


# --- a slow, obvious reference ------------------------------------------------------------------


def reference(
    answers: Sequence[FloatArray], asked: Sequence[Question], rows: int, numbers: int
) -> list[bool]:
    count = len(answers[-1])
    if count < FEWEST:
        return [False] * count
    newest = asked[-1]
    chance = BY_CHANCE / numbers / 2
    scale = rows * newest.query.sensitivity / (newest.nano_epsilon / 1e9)
    tables = [
        distances(a.tolist(), isinstance(one.query, COUNTS))
        for a, one in list(zip(answers, asked, strict=True))[-2:]
    ]
    found = beyond_the_gap(tables[-1], scale, chance)
    if len(tables) == 2:
        length = newest.query.length
        both = [[min(t[i][k] for t in tables) for k in range(length)] for i in range(count)]
        twice = beyond_the_gap(both, scale / 2, chance)
        found = [a or b for a, b in zip(found, twice, strict=True)]
    return found


def distances(answers: list[list[float]], counts: bool) -> list[list[float]]:
    length = len(answers[0])
    centre = [middle([row[k] for row in answers]) for k in range(length)]
    if not counts:
        return [[abs(row[k] - centre[k]) for k in range(length)] for row in answers]
    for _ in range(3):
        shape = [max(c, 0.0) for c in centre]
        found = []
        for row in answers:
            n = size(row, shape)
            found.append([abs(v - n * s) for v, s in zip(row, shape, strict=True)])
        limit = sorted(max(one) for one in found)[math.ceil(0.75 * len(answers)) - 1]
        near = [row for row, one in zip(answers, found, strict=True) if max(one) <= limit]
        centre = [math.fsum(row[k] for row in near) / len(near) for k in range(length)]
    return found


def size(row: list[float], shape: list[float]) -> float:
    """By trying every ratio: the one with the least sum of distances."""

    def total(n: float) -> float:
        return math.fsum(abs(v - n * s) for v, s in zip(row, shape, strict=True))

    ratios = sorted(v / s for v, s in zip(row, shape, strict=True) if s > 1e-9)
    return max(0.0, min(ratios, key=total, default=0.0))


def middle(values: list[float]) -> float:
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def beyond_the_gap(table: list[list[float]], scale: float, chance: float) -> list[bool]:
    worst = [max(row) for row in table]
    ordered = sorted(worst)
    count, length = len(table), len(table[0])
    excess = 0.0
    for j in range(1, count):
        part = (j - 1 + 0.5) / count
        noise = -scale * math.log(1 - part ** (1 / length))
        excess += ordered[j - 1] ** 2 - noise**2
        few = max(1.0, ENOUGH / j)
        limit = (scale * math.log(1 / chance)) ** 2 * few
        limit += JUMP**2 * few**3 * max(0.0, excess / j)
        suspected = j >= math.ceil(0.75 * count)
        if suspected and ordered[j] > ordered[j - 1] and ordered[j] ** 2 > limit:
            return [w > ordered[j - 1] for w in worst]
    return [False] * count


def drawn(query: Query, rng: np.random.Generator, sources: int) -> FloatArray:
    """Answers of any kind: sizes, shapes and sides that differ, and sometimes somebody absurd."""
    n = np.exp(rng.normal(3, rng.uniform(0, 2), (sources, 1)))
    shape = rng.dirichlet(np.full(query.length, rng.uniform(0.2, 3)))
    answers = n * shape * (1 if isinstance(query, COUNTS) else rng.normal(0, 1, (sources, 1)))
    answers += rng.laplace(0, rng.uniform(0.1, 10), answers.shape)
    for _ in range(rng.integers(0, 3)):
        answers[rng.integers(sources), rng.integers(query.length)] += 10.0 ** rng.uniform(0, 12)
    return np.asarray(answers)


@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
def test_the_gate_decides_as_a_slow_obvious_one_does(query: Query) -> None:
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(120):
        sources, questions = int(rng.integers(1, 40)), int(rng.integers(1, 4))
        asked = [question(query, int(rng.uniform(0.05, 20) * NANO))] * questions
        answers = [drawn(query, rng, sources) for _ in asked]
        rows, numbers = int(rng.integers(1, 4)), int(rng.integers(1, 100))
        found = implausible(answers, asked, rows, numbers)
        assert found.tolist() == reference(answers, asked, rows, numbers)
        decided += found.any()
    assert 20 < decided < 120


# --- edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
@pytest.mark.parametrize("sources", [1, 2, 7])
def test_with_fewer_than_eight_nobody_can_be_told_from_the_others(
    query: Query, sources: int
) -> None:
    answers = np.zeros((sources, query.length))
    answers[0] = 1e12
    assert odd(answers, query) == []


@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
def test_with_eight_an_absurd_one_is_found(query: Query) -> None:
    answers = np.zeros((8, query.length))
    answers[3, 0] = 1e6
    assert odd(answers, query) == [3]
    assert odd(-answers, query) == [3]


@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
@pytest.mark.parametrize("value", [0.0, 1.0, -5.0, 4e12])
def test_equal_answers_are_all_believed(query: Query, value: float) -> None:
    assert odd(np.full((20, query.length), value), query) == []


@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
def test_where_all_are_liars_most_are_believed_all_the_same(query: Query) -> None:
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(0, 12, (40, query.length))
    assert len(odd(size * rng.choice([-1, 1], size.shape), query)) <= 10


def test_a_large_source_of_the_common_shape_is_believed() -> None:
    rng = np.random.default_rng(0)
    shape = rng.dirichlet(np.ones(HATS.length))
    rows = np.array([30.0] * 20 + [600.0])[:, None]
    answers = rng.poisson(rows * shape) + rng.laplace(0, 1, (21, HATS.length))
    assert odd(answers, HATS) == []
    answers[-1, 0] += 300
    assert odd(answers, HATS) == [20]


def test_a_small_lie_told_to_every_question_is_found_in_the_second() -> None:
    rng = np.random.default_rng(0)
    asked = [question(Gap(t), NANO // 6) for t in (1.4, 2.0)]
    answers = [np.append(rng.laplace(0, 6, 30), -60.0)[:, None] for _ in asked]
    assert not implausible(answers[:1], asked[:1], 1, 6).any()
    assert np.flatnonzero(implausible(answers, asked, 1, 6)).tolist() == [30]


def test_noise_for_persons_of_many_rows_is_no_lie() -> None:
    answers = np.append(np.zeros(39), 40.0)[:, None]
    assert implausible([answers], [question(Gap())], rows_per_person=1).any()
    assert not implausible([answers], [question(Gap())], rows_per_person=50).any()


anything = st.floats(-4e12, 4e12) | st.integers(-3, 3).map(float)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_it_never_fails_believes_half_and_knows_no_order(data: st.DataObject) -> None:
    query = data.draw(st.sampled_from([Gap(), Hats(), CellHistogram(2), Nll()]))
    sources = data.draw(st.integers(1, 24))
    asked = [question(query, data.draw(st.sampled_from([1, NANO, 1000 * NANO])))]
    asked *= data.draw(st.integers(1, 3))
    row = st.lists(anything, min_size=query.length, max_size=query.length)
    table = st.lists(row, min_size=sources, max_size=sources)
    answers = [np.array(data.draw(table)) for _ in asked]
    found = implausible(answers, asked)
    assert 2 * found.sum() <= sources
    order = np.array(data.draw(st.permutations(range(sources))))
    assert (implausible([a[order] for a in answers], asked) == found[order]).all()


@pytest.mark.parametrize("point", [10**300, -(10**300), 2**62, -(2**62)])
def test_what_no_sum_on_the_grid_can_be_is_impossible(point: int) -> None:
    assert impossible([0, point])
    assert not impossible([0, 2**62 - 1, 1 - 2**62])


def test_an_answer_beyond_its_rows_and_its_noise_is_found() -> None:
    asked = question(HATS)
    values = [0] * (HATS.length - 1)
    assert not beyond([*values, 300 * GRID], 300, 1, asked)
    assert beyond([*values, 330 * GRID], 300, 1, asked)
    assert not beyond([*values, 330 * GRID], 300, 10, asked)  # ten times the noise
    assert beyond([2 * MAX_SITE_ROWS * GRID], MAX_SITE_ROWS, 1, question(Gap()))


# --- honest sources ----------------------------------------------------------------------------


def honest(
    query: Query, sources: int, rng: np.random.Generator, *, alike: bool
) -> tuple[list[FloatArray], list[Query]]:
    """Exact sums at one temperature, or the six of a search, of hospitals that are alike or not."""
    sums: list[list[FloatArray]] = []
    asked: list[Query] = (
        [query]
        if isinstance(query, COUNTS)
        else [query.at(t) for t in (1.45, 2.05, 2.4, 1.8, 2.2, 1)]
    )
    one = TABLES[int(rng.integers(len(TABLES)))]
    for _ in range(sources):
        rows = 30 if alike else int(30 * math.exp(rng.normal()))
        scores = one if alike else TABLES[int(rng.integers(len(TABLES)))]
        own = scores.take(rng.integers(0, len(scores), rows))
        sums.append([q.contributions(own).sum(q.length) / GRID for q in asked])
    return [np.array(answers) for answers in zip(*sums, strict=True)], asked


TABLES = [cifar10c(shift).take(slice(0, 3000)) for shift in shifts()[::3]]


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "each its own shift and size"])
@pytest.mark.parametrize("query", EVERY, ids=lambda q: q.kind)
def test_an_honest_source_is_hardly_ever_left_out(query: Query, alike: bool) -> None:
    """Fewer than 3 in 1000 over a run; a test at 10⁻⁶ of that, of 2880 sources."""
    rng = np.random.default_rng(7)
    left = total = 0
    for sources, draws in ((20, 4), (60, 2)):
        for _ in range(draws):
            sums, queries = honest(query, sources, rng, alike=alike)
            for epsilon in (0.1, 1.0, 10.0):
                for _ in range(2):
                    asked = [question(q, int(epsilon * NANO / len(queries))) for q in queries]
                    scale = query.sensitivity * len(queries) / epsilon
                    noisy = [s + rng.laplace(0, scale, s.shape) for s in sums]
                    numbers = sum(q.length for q in queries)
                    out = np.zeros(sources, bool)
                    for i in range(len(asked)):
                        out |= implausible(noisy[: i + 1], asked[: i + 1], 1, numbers)
                    left += int(out.sum())
                    total += sources
    mean = 0.003 * total
    tail = 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(left))
    assert tail > 1e-6


# --- liars in a calibration ---------------------------------------------------------------------


class Liar:
    """A source that says whatever it likes."""

    def __init__(self, name: str, lie: Callable[[Query], FloatArray]) -> None:
        self.name, self.lie, self.asked = name, lie, 0

    def answer(self, question: Question, asker: str) -> Answer:
        self.asked += 1
        points = tuple(round(v * GRID) for v in self.lie(question.query).tolist())
        return Answer(points, question, "ab" * 16)


def claims(rows: float) -> Callable[[Query], FloatArray]:
    """So many rows, all of them wrong where the others are sure."""

    def lie(query: Query) -> FloatArray:
        values = np.zeros(query.length)
        values[query.length // 2 - 1 if isinstance(query, Hats) else 0] = rows
        return values if isinstance(query, Hats) else -values

    return lie


MOTION = cifar10c("motion_blur")


def hospitals(count: int, rows: int = 30) -> list[privcal.Source]:
    order = np.random.default_rng(0).permutation(len(MOTION))
    return [
        a_source(MOTION.take(part), name=f"h{i}", epsilon=100.0)
        for i, part in enumerate(np.split(order[: count * rows], count))
    ]


def error(result: privcal.Result) -> float:
    return float(ece(result.map.confidence(MOTION), MOTION.correct))


@quiet
@pytest.mark.parametrize("method", ["sketch", "acc-t"])
@pytest.mark.parametrize(
    "lie",
    [
        *(claims(n) for n in (300, 10**6, 4e12, 1e300, -1e300)),
        lambda query: np.full(query.length, -1e6),
        lambda query: np.where(np.arange(query.length) == 0, 1e6, 0.0),
    ],
    ids=["300", "million", "most", "1e300", "-1e300", "minus everywhere", "lowest knot"],
)
@pytest.mark.slow
def test_a_liar_among_21_is_left_out_by_name_and_changes_nothing(
    method: str, lie: Callable[[Query], FloatArray]
) -> None:
    liar = Liar("liar", lie)
    sources = [*hospitals(20), liar]
    result = privcal.calibrate(sources, method, 1.0)
    assert "liar" in result.left_out
    assert result.dropped["liar"] == "implausible"
    assert result.map.provenance["left_out"] == len(result.left_out)
    assert "liar" not in str(result.map.provenance)
    assert all("liar" not in asked.answers for asked in result.rounds)
    assert liar.asked == 1
    assert result.spent[-1] == pytest.approx(1.0 if method == "sketch" else 1 / 5, abs=1e-8)
    # The answers of the others are stored: without the liar the map is the same to the last bit.
    honest_ones = [s for s in sources[:-1] if s.name not in result.left_out]
    alone = privcal.calibrate(honest_ones, method, 1.0, campaign=result.campaign)
    assert str(alone.map.confidence(MOTION).tolist()) == str(result.map.confidence(MOTION).tolist())


@quiet
def test_two_that_claim_three_times_their_rows_cost_a_sketch_nothing() -> None:
    sources = [*hospitals(48), Liar("one", claims(90)), Liar("two", claims(90))]
    result = privcal.calibrate(sources, "sketch", 1.0)
    assert set(result.left_out) >= {"one", "two"}
    assert result.sketch is not None
    assert {"one", "two"}.isdisjoint(entry.source for entry in result.sketch.answers)
    assert len(result.sketch.answers) == 50 - len(result.left_out)
    assert error(result) < 0.07


@quiet
def test_an_impossible_answer_is_left_out_where_nobody_can_be_compared() -> None:
    result = privcal.calibrate([*hospitals(2), Liar("liar", claims(1e300))], "sketch", 1.0)
    assert result.left_out == ("liar",)
    assert result.map.provenance["left_out"] == 1


class Namesake:
    """A source that answers as it should, and calls another's ledger its own."""

    def __init__(self, source: privcal.Source, ledger: str, name: str = "liar") -> None:
        self.source, self.ledger, self.name = source, ledger, name

    def answer(self, question: Question, asker: str) -> Answer:
        return replace(self.source.answer(question, asker), ledger=self.ledger)


def test_whoever_calls_anothers_ledger_its_own_does_not_stop_the_run() -> None:
    *honest, one, other = hospitals(5)
    liars = [Namesake(one, honest[0].ledger.id), Namesake(other, "h0", "another")]
    sketch = privcal.calibrate([*honest, *liars], "sketch", 1.0).sketch
    assert sketch is not None
    told = {answer.source: answer.ledger for answer in sketch.answers}
    ids = {source.name: source.ledger.id for source in honest[1:]}
    assert told == {**ids, "h0": "", "liar": "", "another": ""}
    assert sketch.nano_spent == dict.fromkeys(told, 10**9)


def test_one_ledger_behind_two_names_is_still_noticed() -> None:
    *honest, one = hospitals(3)
    with pytest.raises(privcal.InputError, match="there twice"):
        privcal.calibrate([*honest, one, Namesake(one, one.ledger.id, "again")], "sketch", 1.0)


def test_where_nobody_can_be_compared_the_map_does_not_say_that_nobody_lied() -> None:
    assert "left_out" not in privcal.calibrate(hospitals(7), "acc-t", 1.0).map.provenance


@quiet
def test_where_everybody_is_believed_the_map_says_so() -> None:
    result = privcal.calibrate(hospitals(9, rows=5), "one-hot-binning", 50.0)
    assert result.map.provenance["left_out"] == len(result.left_out) == 0


def test_too_few_left_stop_the_run() -> None:
    sources = [*hospitals(9), Liar("liar", claims(1e6))]
    with (
        pytest.warns(SourceDropped, match="liar left in round 1: its answer is implausible"),
        pytest.raises(privcal.CalibrationError, match=r"only 9 of 10 .*liar: implausible"),
    ):
        privcal.calibrate(sources, "acc-t", 100.0, min_sources=10)


@quiet
def test_a_liar_that_begins_late_leaves_the_earlier_rounds_too() -> None:
    def late(query: Query) -> FloatArray:
        return np.array([-1e6 if liar.asked > 3 else 0.0])

    liar = Liar("liar", late)
    result = privcal.calibrate([*hospitals(20), liar], "acc-t", 60.0)
    assert result.dropped == {"liar": "implausible"}
    assert [len(asked.answers) for asked in result.rounds] == [21, 21, 21, 20, 20]
    assert result.map.provenance["sources"] == 20


class Interrupted:
    """A panel whose process dies after some questions."""

    def __init__(self, panel: LocalPanel, after: int) -> None:
        self._panel, self._left = panel, after
        self.names, self.asker, self.rows_per_person = panel.names, panel.asker, 1
        self.sources, self.rows_per_source = panel.sources, panel.rows_per_source

    def release(self) -> None: ...

    def refusals(self, questions: Sequence[Question]) -> dict[str, str]:
        return {}

    def ask(
        self, names: Sequence[str], question: Question
    ) -> Iterator[tuple[str, Answer | Exception]]:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._panel.ask(names, question)


@quiet
def test_a_resumed_campaign_comes_to_the_same_decision(tmp_path: Path) -> None:
    def panel() -> LocalPanel:
        return LocalPanel([*sources, Liar("liar", claims(300))], "me")

    sources = hospitals(20)
    whole = privcal.calibrate(panel(), "acc-t", 1.0, campaign="c")
    for after in range(5):
        folder = tmp_path / str(after)
        with pytest.raises(KeyboardInterrupt):
            privcal.calibrate(
                Recorded(Interrupted(panel(), after), Campaign.start(folder, {})),
                "acc-t",
                1.0,
                campaign="c",
            )
        record = Campaign.resume(folder)
        again = privcal.calibrate(Recorded(panel(), record), "acc-t", 1.0, campaign="c")
        assert again.dropped == whole.dropped
        assert [asked.query for asked in again.rounds] == [asked.query for asked in whole.rounds]


@quiet
def test_the_order_of_sources_plays_no_part() -> None:
    sources = [*hospitals(20), Liar("liar", claims(10**6))]
    first = privcal.calibrate(sources, "sketch", 1.0, campaign="c")
    again = privcal.calibrate(sources[::-1], "sketch", 1.0, campaign="c")
    assert set(first.left_out) == set(again.left_out)


def test_an_honest_run_is_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        privcal.calibrate(hospitals(8, rows=5), "one-hot-binning", 50.0)


# --- what people see -----------------------------------------------------------------------------


def test_the_command_names_who_was_left_out(run: Any, tmp_path: Path) -> None:
    files = []
    for i in range(12):
        lying = i == 11
        labels = np.zeros(5000 if lying else 20, int)
        labels[: len(labels) if lying else 4] = 1
        files.append(tmp_path / f"clinic-{i:02}.npz")
        np.savez(files[-1], logits=np.tile([[3.0, 0.0]], (len(labels), 1)), labels=labels)
    out, err = run.ok(
        *("calibrate", *files, "--new-ledger", "--per-row", "--method", "acc-t"),
        *("--out", tmp_path / "map.json", "--json"),
    )
    assert "left out: clinic-11 (implausible: its answer is not believed; what it" in err
    said = json.loads(out)
    assert said["left_out"] == ["clinic-11"]
    assert said["map"]["provenance"]["left_out"] == 1
    assert 0 < said["spent"]["clinic-11"] < 1


def test_of_few_sites_the_command_says_that_none_can_be_told_from_the_others(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def near(folder: Path, box: str, campaign: Campaign, *more: Any, **settings: Any) -> Any:
        given.update(settings)
        return nullcontext(Recorded(LocalPanel(hospitals(number), "me"), campaign))

    pytest.importorskip("cryptography", reason="letters need cryptography: privcal[secure]")
    from privcal.transport.keys import Keys

    monkeypatch.setattr("privcal.transport.calibrator.distant", near)
    Keys.make(tmp_path, "me", "calibrator")
    for number, told in ((7, True), (8, False)):
        out, _ = run.ok(
            *("federation", "calibrate", "--as", tmp_path, "--mailbox", tmp_path),
            *("--model", MOTION.model, "--method", "sketch"),
            *("--out", tmp_path / f"{number}.json"),
        )
        assert ("With fewer than 8 sites a false answer cannot be told" in out) == told
    assert given["max_rows"] == MAX_SITE_ROWS
