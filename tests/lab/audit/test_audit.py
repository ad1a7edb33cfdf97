"""The audit passes what is sound, and notices what is not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

import privcal
from privcal import InputError
from privcal.calibration.binomial import lower_limit, upper_tail
from privcal.calibration.methods.base import Batch
from privcal.data.ledger import Ledger
from privcal.data.scores import Outputs
from privcal.lab.audit import Audit, audit, audit_data, names, pairs
from privcal.lab.audit import run as run_module
from privcal.lab.audit.pairs import EDGE_CLASSES, both_sums, cases, edge_pair, edge_row, play
from privcal.lab.audit.run import epsilon_bound, learn, p_value
from privcal.secure import participant
from privcal.trusted import kernel, queries, source
from privcal.trusted.epsilon import NANO
from privcal.trusted.kernel import bin_index
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import FAMILY, GRID, CellHistogram, Query
from tests.support.builders import a_clinic, random_scores

EDGES = ["cell-histogram-edge", "histogram-edge"]
SEARCHES = ["acc-t", "nll-t", "ece-t"]
WAYS = ["gap-budgets", "gap-on-disk", "gap-secure-sum"]
"""What is asked end to end alone."""
SOUND = [name for name in names() if name not in (*EDGES, *WAYS)]


def quick(*only: str, draws: int = 8000) -> Audit:
    """The mechanism alone, so often that a factor of 2 is not overlooked in a lifetime."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ANSWERS", 100)
        patch.setattr(pairs, "FEWER_ANSWERS", 100)
        found = audit(only=only, epsilons=[1.0], draws=draws)
    return replace(found, rows=tuple(row for row in found.rows if not row.end_to_end))


# --- the statistics ----------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-9])
@pytest.mark.parametrize("n", [1, 2, 7, 100, 4321, 1_000_000])
def test_limits_are_clopper_and_pearsons(n: int, alpha: float) -> None:
    for k in sorted({0, 1, n // 3, n // 2, math.ceil(0.731 * n), n - 1, n}):
        expected = stats.beta.ppf(alpha, k, n - k + 1) if k else 0.0
        found = lower_limit(n, k, alpha)
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-300)
        # On the safe side of the true one, to the rounding of the tail.
        assert stats.binom.sf(k - 1, n, found) <= alpha * (1 + 1e-7) or k == 0


def test_nothing_seen_shows_nothing() -> None:
    assert lower_limit(0, 0, 0.01) == 0
    assert epsilon_bound(0, 0, 0.01) == 0
    assert p_value(0, 0, 1.0) == 1
    assert epsilon_bound(1000, 500, 0.01) == 0  # half right is no better than the coin
    assert epsilon_bound(1000, 1000, 0.01) == pytest.approx(np.log(0.01**0.001 / (1 - 0.01**0.001)))


@pytest.mark.parametrize("n", [1, 10, 1000, 1_000_000])
@pytest.mark.parametrize("p", [1e-12, 0.1, 0.5, 0.9, 1 - 1e-12])
def test_tails_are_the_binomials(n: int, p: float) -> None:
    spread = math.sqrt(n * p * (1 - p))
    for z in (-30, -5, 0, 1, 5, 12, 30):
        k = min(max(round(n * p + z * spread), 0), n + 1)
        expected = stats.binom.sf(k - 1, n, p)
        assert upper_tail(n, k, p) == pytest.approx(expected, rel=1e-7, abs=1e-290)


def ideal(rng: np.random.Generator, epsilon: float, size: int, noise: float = 1.0) -> Any:
    """Games against exact discrete Laplace noise, on integers, of `noise` times the right scale."""
    coin, step = rng.random(size) < 0.5, 100
    p = -np.expm1(-epsilon / step / noise)
    x = step * coin + rng.geometric(p, size) - rng.geometric(p, size)
    ratio = np.abs(x) - np.abs(x - step)
    return ratio[:, None].astype(float), coin


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_bounds_exceed_the_truth_no_more_often_than_they_say(epsilon: float) -> None:
    rng = np.random.default_rng(5)
    trials, above, small, bounds = 400, 0, 0, []
    for _ in range(trials):
        statistics, coin = ideal(rng, epsilon, 2000)
        score = learn(statistics[:500], coin[:500]).score(statistics[500:], coin[500:])
        bounds.append(epsilon_bound(*score, 0.05))
        above += bounds[-1] > epsilon
        small += p_value(*score, epsilon) < 0.05
    # At most 5 %: three standard deviations above it, with these seeds.
    assert max(above, small) <= 0.05 * trials + 3 * math.sqrt(0.05 * trials)
    assert above == small  # they are the same statement
    if epsilon >= 1:  # and the bound is not kept by saying nothing
        assert np.mean(bounds) > 0.75 * epsilon


def test_bounds_come_near_the_truth_with_many_games() -> None:
    rng = np.random.default_rng(6)
    for noise in (1.0, 0.5):  # with half the noise ε is twice what was claimed
        statistics, coin = ideal(rng, 1.0, 400_000, noise)
        score = learn(statistics[:100_000], coin[:100_000]).score(
            statistics[100_000:], coin[100_000:]
        )
        assert 0.97 / noise < epsilon_bound(*score, 0.01) < 1 / noise
        assert (p_value(*score, 1.0) < 1e-9) == (noise < 1)


@pytest.mark.parametrize("says_d", [True, False])
def test_a_breach_in_one_direction_is_enough(says_d: bool) -> None:
    """Some answers are possible for one of the two only; the other direction is sound."""
    rng = np.random.default_rng(7)
    coin = rng.random(2000) < 0.5
    gives_away = (coin == says_d) & (rng.random(2000) < 0.1)
    statistics = np.where(gives_away, 1.0 if says_d else -1.0, 0.0)[:, None]
    rule = learn(statistics[:500], coin[:500])
    assert rule.score(statistics[500:], coin[500:]) == (gives_away[500:].sum(),) * 2
    assert p_value(*rule.score(statistics[500:], coin[500:]), 1.0) < 1e-9


# --- the real thing ----------------------------------------------------------------------


def test_everything_is_audited_by_neighbours_that_move_by_the_whole_bound(tmp_path: Path) -> None:
    alone = {case.name: case for case in cases() if not case.answers}
    asked = {case.name: case for case in cases() if case.answers}
    silent = {"uncalibrated", "one-source"}
    wanted = {*FAMILY, *(name for name in privcal.methods.names() if name not in silent)}
    assert wanted <= set(alone)
    assert {*wanted, "gap-person", *WAYS} == set(asked)
    for case in (*alone.values(), *asked.values()):
        if case.name in EDGES:
            continue
        folder = tmp_path / f"{case.name} {case.answers}"
        folder.mkdir()
        pair = case.make(folder)
        for ask in next(case.run(Batch(1, NANO, np.random.default_rng()))):
            whole, less = pair.sums(ask.for_run(0))
            moved = np.abs(whole - less).sum()
            sensitivity = pair.whole.sensitivity(ask.query)
            assert sensitivity - 1 <= moved <= sensitivity, case  # a split row is rounded down
    split = alone["hats-split"]
    [ask] = next(split.run(Batch(1, NANO, np.random.default_rng())))
    assert np.count_nonzero(np.subtract(*split.make(tmp_path).sums(ask.query))) == 2
    for name in ("gap-person", "gap-budgets"):
        assert asked[name].make(tmp_path).whole.rows_per_person == 3
    assert asked["gap-budgets"].make(tmp_path).whole.policy.budget == "person"
    disk = asked["gap-on-disk"].make(tmp_path)
    assert disk.whole.ledger.durable
    assert disk.less.ledger is disk.whole.ledger


def test_no_promise_is_seen_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false alarm has a chance of 1e-9 for each of 56 rows."""
    monkeypatch.setattr(pairs, "ANSWERS", 400)
    monkeypatch.setattr(pairs, "FEWER_ANSWERS", 100)
    found = audit(only=[*SOUND, *WAYS], draws=2000)
    assert found.ok, [row for row in found.rows if row.exceeds]
    for end_to_end in (True, False):
        rows = [row for row in found.rows if row.end_to_end == end_to_end]
        apart = {"hats-split"} if end_to_end else set(WAYS)
        assert {row.name for row in rows} == {*SOUND, *WAYS} - apart
        assert {row.epsilon for row in rows} == ({1} if end_to_end else {0.1, 1, 4})
        # It looks: most of the ε of single answers is seen with few draws.
        seen = [row.ratio for row in rows if row.name in FAMILY and row.epsilon >= 1]
        assert np.mean(seen) > (0.3 if end_to_end else 0.7)


# --- end to end --------------------------------------------------------------------------


def test_an_answer_that_leaves_without_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a source adds or leaves out after the exact sums; the mechanism is not touched."""

    def exact(self: privcal.Source, *asked: Any) -> list[int]:
        return [int(value) for value in self.counted(*asked)]

    monkeypatch.setattr(privcal.Source, "_draw", exact)
    found = audit(only=[*FAMILY, "gap-person", *WAYS, "sketch", "acc-t"], draws=150)
    assert not found.ok
    said = {(row.name, row.end_to_end): row.exceeds for row in found.rows}
    for (name, end_to_end), exceeds in said.items():
        assert exceeds == (end_to_end and name != "gap-secure-sum"), name


def with_noise_for(bound: int, nano: int) -> Any:
    """A source whose answers get the noise of `bound` and `nano` times what they should have."""

    def draw(self: privcal.Source, question: Any, asker: str, rules: source.Rules) -> list[int]:
        exact = self.counted(question, asker, rules)
        needed = rules.sensitivity(question.query)
        return add_noise(exact, needed // bound, nano * question.nano_epsilon)

    return draw


@pytest.mark.parametrize(("bound", "nano"), [(1, 2), (2, 1)], ids=["epsilon", "sensitivity"])
def test_an_answer_with_half_the_noise_is_noticed(
    bound: int, nano: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privcal.Source, "_draw", with_noise_for(bound, nano))
    found = audit(only=["gap", "hats", "cell-histogram"], epsilons=[1], draws=2000)
    assert not found.ok
    for row in found.rows:
        assert row.measured > 1.0 if row.end_to_end else not row.exceeds, row


def test_noise_for_one_row_of_a_person_of_whom_three_count_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(privcal.Source, "_draw", with_noise_for(3, 1))
    found = audit(only=["gap-person", "gap-budgets"], draws=1000)
    assert all(row.exceeds for row in found.rows if row.end_to_end)


def test_a_source_that_declares_its_rows_has_its_noise_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = source.Source._noisy

    def quiet(self: source.Source, exact: Any, *more: Any) -> list[int]:
        return exact.tolist() if self.max_rows else real(self, exact, *more)

    monkeypatch.setattr(source.Source, "_noisy", quiet)
    assert not audit(only=["gap-on-disk"], draws=300).ok


def test_shares_that_do_not_add_up_to_the_noise_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = participant.add_noise_share
    monkeypatch.setattr(
        participant,
        "add_noise_share",
        lambda exact, bound, nano, _, alone: real(exact, bound, nano, 60, alone),
    )
    [row] = audit(only=["gap-secure-sum"], draws=300).rows
    assert row.exceeds


def test_the_audit_asks_every_question_once_and_pays_for_it(tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "gap-on-disk")
    pair = case.make(tmp_path)
    play(case, pair, NANO // 2, 8)
    assert pair.whole.spent == 4.0
    assert sum(entry.kind == "charge" for entry in Ledger.of(pair.whole.ledger).entries()) == 8


def test_half_the_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        source, "add_noise", lambda total, bound, nano: add_noise(total, bound // 2, nano)
    )
    found = quick(*(n for n in SOUND if n not in SEARCHES))
    assert all(row.exceeds and row.measured > 1 for row in found.rows)
    assert not found.ok


@pytest.mark.parametrize("method", SEARCHES)
def test_an_epsilon_that_every_answer_gets_in_full_is_noticed(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        source, "add_noise", lambda total, bound, nano: add_noise(total, bound, 6 * nano)
    )
    [row] = quick(method, draws=1000).rows
    assert row.exceeds


@pytest.mark.parametrize("kind", FAMILY)
def test_a_bound_half_as_large_as_it_should_be_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = source.Rules.sensitivity
    monkeypatch.setattr(source.Rules, "sensitivity", lambda self, query: real(self, query) // 2)
    [row] = quick(kind).rows
    assert row.exceeds


def test_a_person_of_whom_all_rows_count_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "rows_kept", lambda person, *_: np.arange(len(person)))
    [row] = quick("gap-person").rows
    assert row.exceeds


def test_noise_shared_by_the_cells_of_an_answer_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cells of one answer get one noise: their difference has none."""

    def shared(total: np.ndarray, bound: int, nano: int) -> list[int]:
        noise = np.array(add_noise(np.zeros(-(-len(total) // 2), int), bound, nano))
        return (total + np.repeat(noise, 2)[: len(total)]).tolist()

    monkeypatch.setattr(source, "add_noise", shared)
    found = quick("binned-gap", "cell-histogram", "hats", "one-hot-binning", "sketch", draws=2000)
    assert all(row.exceeds for row in found.rows)


def test_noise_in_other_cells_than_the_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(total: np.ndarray, bound: int, nano: int) -> list[int]:
        noise = np.array(add_noise(np.zeros(len(total), int), bound, nano))
        noise[::2] = 0
        return (total + noise).tolist()

    monkeypatch.setattr(source, "add_noise", elsewhere)
    found = quick(*(n for n in SOUND if n not in SEARCHES), draws=4000)
    assert all(row.exceeds for row in found.rows)


def test_no_noise_at_all_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "add_noise", lambda total, *_: total.tolist())
    found = audit(only=SOUND, epsilons=[1.0], draws=200)
    assert all(row.exceeds for row in found.rows)


# --- a kernel whose rows depend on each other --------------------------------------------


def with_sum(add: Any) -> Any:
    """The confidence of each row, as a kernel with this summation gives it."""

    def of(outputs: Outputs, temperature: float, threads: int | None = None) -> np.ndarray:
        z = np.empty((outputs.rows, outputs.classes), outputs.dtype)
        outputs.shifted(slice(None), z)
        return 1.0 / add(np.exp(z * outputs.dtype.type(1 / temperature))).astype(np.float64)

    return of


def by_einsum(z: np.ndarray) -> np.ndarray:
    return np.einsum("ij->i", z)


def row_by_row(z: np.ndarray) -> np.ndarray:
    return np.array([math.fsum(row) for row in z.tolist()])


def test_the_row_at_the_edge_lies_in_two_bins_as_one_sums() -> None:
    alone, beside = 1 / both_sums(edge_row())
    assert bin_index(np.array([alone]), 15) != bin_index(np.array([beside]), 15)
    assert len(edge_row()) == EDGE_CLASSES


@pytest.mark.parametrize(("name", "draws"), [(EDGES[0], 4000), (EDGES[1], 20_000)])
def test_a_kernel_that_sums_one_row_otherwise_than_two_is_noticed(
    name: str, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel.NUMPY, "confidence", with_sum(by_einsum))
    whole, less = edge_pair().sums(CellHistogram())
    assert np.abs(whole - less).sum() == 3 * GRID  # three times the bound
    [row] = quick(name, draws=draws).rows
    assert row.exceeds
    assert row.measured > 1.5


def test_a_kernel_that_sums_every_row_by_itself_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.NUMPY, "confidence", with_sum(row_by_row))
    assert quick(*EDGES, draws=2000).ok


def test_the_shipped_kernel_is_judged_by_what_it_does() -> None:
    """Removing the first row does not move the second."""
    whole, less = edge_pair().sums(CellHistogram())
    assert np.abs(whole - less).sum() == GRID
    assert quick(*EDGES).ok


# --- the function ------------------------------------------------------------------------


def test_claims_are_those_asked_for() -> None:
    found = audit(only=["sketch", "gap"], epsilons=[0.5, 2], draws=100)
    assert [(row.name, row.end_to_end, row.epsilon) for row in found.rows] == [
        (name, end_to_end, epsilon)
        for end_to_end in (True, False)
        for name in ("gap", "sketch")
        for epsilon in (0.5, 2)
    ]
    assert all(0 <= row.right <= row.guesses <= 75 for row in found.rows)


def test_an_error_or_an_interruption_ends_the_games(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any) -> list[int]:
        calls.append(1)
        return add_noise(*args)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "add_noise", counted)
    with pytest.raises(KeyboardInterrupt):
        audit(only=["gap"], epsilons=[1], draws=200_000, progress=interrupt)
    assert len(calls) < 500  # of 2,000, and then of 100 for 2,000 each

    def broken(*_: Any) -> list[int]:
        raise RuntimeError("no noise today")

    monkeypatch.setattr(source, "add_noise", broken)
    with pytest.raises(privcal.Refused, match="unavailable"):  # as any asker would see it
        audit(only=["gap"], draws=10_000)
    with pytest.raises(RuntimeError, match="no noise today"):
        audit(only=["hats-split"], draws=10_000)


# --- rows that are there -----------------------------------------------------------------


def test_every_removal_is_tried_and_the_largest_change_is_the_references() -> None:
    scores = random_scores(25, seed=4)
    found = audit_data(scores)
    assert (found.unit, found.tried, found.possible, found.ok) == ("row", 25, 25, True)
    for row in found.rows:
        query = FAMILY[row.name]()
        alone = [query.contributions(scores.take([i])).sum(query.length) for i in range(25)]
        assert row.largest * GRID == max(np.abs(one).sum() for one in alone)
        assert row.bound * GRID == query.bound
        assert row.others == 0


def test_with_ids_whole_persons_are_removed() -> None:
    person = [f"p{i % 6}" for i in range(25)]
    found = audit_data(random_scores(25, seed=4, person=person), rows_per_person=3)
    assert (found.unit, found.rows_per_person, found.tried, found.possible) == ("person", 3, 6, 6)
    assert found.ok
    by_kind = {row.name: row for row in found.rows}
    assert by_kind["cell-histogram"].largest == 3  # each has four or more rows
    assert by_kind["cell-histogram"].bound == 3
    one = audit_data(random_scores(25, seed=4, person=person))
    assert {row.name: row.largest for row in one.rows}["cell-histogram"] == 1


def test_a_query_that_says_too_small_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Query.contributions

    def doubled(self: Query, scores: privcal.Scores) -> queries.Contributions:
        rows = real(self, scores)
        return queries.Contributions(
            rows.cells, 2 * rows.values if self.kind == "hats" else rows.values
        )

    monkeypatch.setattr(Query, "contributions", doubled)
    found = audit_data(random_scores(20))
    assert not found.ok
    assert [row.name for row in found.rows if row.exceeds] == ["hats"]
    assert {row.name: row.others for row in found.rows}["hats"] == 0


def test_rows_that_move_when_another_goes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernel.NUMPY.confidence
    monkeypatch.setattr(
        kernel.NUMPY, "confidence", lambda outputs, t: real(outputs, t) * (1 - 1e-4 * outputs.rows)
    )
    found = {row.name: row for row in audit_data(random_scores(20)).rows}
    assert found["gap"].exceeds
    assert found["gap"].others > 0
    assert found["gap"].largest < found["gap"].bound  # seen before it does harm
    assert not found["hats"].exceeds  # it has a kernel of its own


def test_many_rows_are_sampled_by_number_or_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[int, int]] = []
    found = audit_data(
        random_scores(50), removals=7, progress=lambda done, total: said.append((done, total))
    )
    assert (found.tried, found.possible) == (7, 50)
    assert said == [(i, 7) for i in range(1, 8)]
    assert audit_data(random_scores(5), removals=70).tried == 5
    monkeypatch.setattr(run_module, "SECONDS", 0.0)
    assert audit_data(random_scores(50)).tried == 1


def test_one_row_can_be_removed_and_none_cannot() -> None:
    found = audit_data(random_scores(1))
    assert (found.tried, found.possible, found.ok) == (1, 1, True)
    with pytest.raises(InputError, match="no rows"):
        audit_data(random_scores(0))


# --- the command -------------------------------------------------------------------------


def strictly(text: str) -> Any:
    def no(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=no)


def test_the_command_prints_a_table_and_says_what_it_means(run: Any) -> None:
    code, stdout, stderr = run("audit", "--only", "gap,sketch", "--draws", 1000)
    assert (code, stderr) == (0, "")
    lines = [line.split() for line in stdout.splitlines()]
    assert [line[1:3] for line in lines if line[:1] == ["gap"]] == [
        ["1,000", "1"],
        ["1,000", "0.1"],
    ]
    assert sum(line[-1:] == ["ok"] for line in lines) == 6
    said = " ".join(stdout.split())
    assert "can show that a promise is broken, never that it is kept" in said
    assert "for lack of draws" in said
    assert "end to end: questions to real sources" in said
    assert "Not looked at: how files are read, letters and networks" in said


def test_the_commands_json_is_the_result_and_the_picture_is_drawn(run: Any, tmp_path: Path) -> None:
    picture = tmp_path / "audit.svg"
    options = ("--only", "gap,hats-split", "--epsilon", "0.5,2", "--draws", 500, "--json")
    code, stdout, stderr = run("audit", *options, "--plot", picture)
    said = strictly(stdout)
    assert code == 0
    assert said["plot"] == str(picture)
    assert (said["ok"], said["draws"], said["confidence"], said["alarm"]) == (True, 500, 0.99, 1e-9)
    assert [(row["name"], row["end_to_end"], row["epsilon"]) for row in said["rows"]] == [
        (name, end_to_end, epsilon)
        for name, end_to_end in (("gap", True), ("gap", False), ("hats-split", False))
        for epsilon in (0.5, 2)
    ]
    assert "letters and networks" in said["not_reached"]
    for row in said["rows"]:
        assert row["measured"] == epsilon_bound(row["guesses"], row["right"], 1 - 0.99)
        assert row["ratio"] == row["measured"] / row["epsilon"]
        assert row["p_value"] == p_value(row["guesses"], row["right"], row["epsilon"])
    assert not stderr
    drawn = picture.read_text("utf-8")
    assert "<svg" in drawn
    code, _, _ = run("audit", *options, "--plot", tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_a_broken_promise_ends_with_1(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        source, "add_noise", lambda total, bound, nano: add_noise(total, bound // 4, nano)
    )
    options = ("--only", "gap", "--epsilon", 1, "--draws", 1000)
    code, stdout, _ = run("audit", *options, "--plot", tmp_path / "audit.pdf")
    assert code == 1
    assert "EXCEEDS" in stdout
    assert (tmp_path / "audit.pdf").read_bytes().startswith(b"%PDF")
    code, stdout, _ = run("audit", *options, "--json")
    assert code == 1
    assert strictly(stdout)["ok"] is False


@pytest.fixture
def table(tmp_path: Path) -> Path:
    scores = random_scores(12, classes=3, seed=2)
    frame = pl.DataFrame({f"logit_{i}": scores.outputs.array[:, i] for i in range(3)})
    frame = frame.with_columns(
        label=pl.Series(scores.labels),
        person=pl.Series([f"p{i // 2}" for i in range(12)]),
        patient=pl.Series([f"0{i // 3}" for i in range(12)]),
    )
    frame.write_parquet(tmp_path / "hospital.parquet")
    frame.write_csv(tmp_path / "hospital.csv")
    return tmp_path / "hospital.parquet"


@pytest.mark.parametrize(
    ("options", "unit", "possible", "limit"),
    [
        ([], "person", 6, 1),
        (["--per-row"], "row", 12, 1),
        (["--person", "patient", "--rows-per-person", 2], "person", 4, 2),
        (["--removals", 3], "person", 6, 1),
    ],
)
@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_file_is_audited_by_removals(
    run: Any, table: Path, options: list[Any], unit: str, possible: int, limit: int, ending: str
) -> None:
    code, stdout, stderr = run("audit", table.with_suffix(ending), *options, "--json")
    said = strictly(stdout)
    assert code == 0, stderr
    assert (said["ok"], said["unit"], said["possible"]) == (True, unit, possible)
    assert said["removals"] == (3 if "--removals" in options else possible)
    assert said["rows_per_person"] == limit
    assert "never to be passed on" in " ".join(said["note"].split())
    assert [row["name"] for row in said["rows"]] == list(FAMILY)
    assert {row["name"]: row["share"] for row in said["rows"]}["cell-histogram"] == 1
    tried = f"3, at random, of the {possible}" if "--removals" in options else f"all {possible}"
    _, stdout, _ = run("audit", table.with_suffix(ending), *options)
    assert f"{tried} {unit}s removed" in " ".join(stdout.split())


def test_a_file_on_which_a_bound_fails_ends_with_1(
    run: Any, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CellHistogram, "bound", 1000)
    monkeypatch.setattr(CellHistogram, "contributions", unclipped)
    code, stdout, _ = run("audit", table, "--only", "cell-histogram,gap")
    assert code == 1
    lines = [line.split() for line in stdout.splitlines()]
    assert [line[0] for line in lines if line[-1:] == ["EXCEEDS"]] == ["cell-histogram"]
    assert [line[0] for line in lines if line[-1:] == ["ok"]] == ["gap"]


def unclipped(self: Query, scores: privcal.Scores) -> queries.Contributions:
    cells, values = self._rows(scores, kernel.NUMPY)
    return queries.Contributions(cells, (values * GRID).astype(np.int64))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--only", "gaps"], "there is nothing called 'gaps' to audit; there are gap, nll"),
        (["--only", ","], "nothing is named"),
        (["--epsilon", "one"], "must be numbers"),
        (["--epsilon", ","], "no epsilon is named"),
        (["--epsilon", "0"], "epsilon must be above 0"),
        (["--epsilon", "101"], "epsilon to audit must be at most 100, not 101"),
        (["--draws", 99], "draws must be a whole number of at least 100"),
        (["--plot", "audit.txt"], "must end in .png"),
        (["--plot", "no/where/audit.png"], "folder is missing"),
        (["--per-row"], "are for data"),
        (["--person", "patient"], "are for data"),
        (["none.npz"], "there is no file none.npz"),
        (["FILE", "--draws", 1000], "with data nothing is drawn"),
        (["FILE", "--only", "acc-t"], "there is no query 'acc-t'"),
        (["FILE", "--only", ""], "nothing is named"),
        (["FILE", "--per-row", "--person", "patient"], "not both"),
        (["FILE", "--person", "ward"], "has no column ward"),
        (["FILE", "--removals", 0], "removals must be"),
        (["FILE", "--per-row", "--rows-per-person", 2], "no person ids"),
        (["FILE", "--rows-per-person", 0], "rows_per_person must be"),
    ],
)
def test_bad_usage_ends_with_2_and_a_sentence(
    run: Any, table: Path, options: list[Any], says: str
) -> None:
    stderr = run.fails("audit", *(table if one == "FILE" else one for one in options))
    assert says in " ".join(stderr.split())


def test_a_file_is_audited_by_the_unit_of_its_ledger(run: Any, tmp_path: Path) -> None:
    file = a_clinic(tmp_path / "h.npz", 4, patient=["a", "a", "b", "c"])
    assert run.json("audit", file)["unit"] == "row"
    assert "has no array doctor" in run.fails("audit", file, "--person", "doctor")
    run("ledger", "create", file, "--person", "patient")
    said = run.json("audit", file)
    assert (said["unit"], said["possible"]) == ("person", 3)


def test_help_has_examples(run: Any) -> None:
    stdout, _ = run.ok("audit", "--help")
    assert stdout.count("privcal audit") >= 4
