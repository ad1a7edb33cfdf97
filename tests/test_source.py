"""The source decides: by its own policy, its own sensitivity, and never by its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privcal
from privcal.queries import GRID, CellHistogram, Gap, Histogram, Nll
from privcal.source import rows_kept
from tests.conftest import random_scores


def refusal(
    source: privcal.Source, query: object = None, epsilon: float = 0.5, **more: object
) -> str:
    with pytest.raises(privcal.Refused) as refused:
        source.answer(query or Gap(), epsilon, "r", **more)
    return refused.value.code


def test_answers_lie_on_the_grid(scores: privcal.Scores) -> None:
    answer = privcal.Source(scores, ledger=None).answer(Histogram(), 0.25, "r1")
    assert answer.values.shape == (30,)
    assert np.array_equal(answer.values * GRID, np.round(answer.values * GRID))
    assert answer.epsilon == 0.25
    assert str(answer.key) == "r1/0/0"


@pytest.mark.parametrize(
    ("policy", "more", "code"),
    [
        ({"askers": ("acme",)}, {"asker": "eve"}, "asker"),
        ({"queries": ("nll",)}, {}, "query"),
        ({"epsilon": 2, "epsilon_per_request": 0.4}, {}, "over_request_limit"),
        ({"epsilon": 0.4}, {}, "over_request_limit"),
        ({"model": "v1"}, {"model": "v2"}, "model"),
    ],
)
def test_the_policy_refuses_with_its_code_and_nothing_is_charged(
    policy: dict[str, object], more: dict[str, object], code: str, scores: privcal.Scores
) -> None:
    source = privcal.Source(scores, privcal.Policy(**policy), ledger=None)
    assert refusal(source, **more) == code
    assert source.spent == 0


def test_refusals_do_not_depend_on_rows() -> None:
    requests: list[dict[str, object]] = [
        {"asker": "eve"},
        {"query": Nll()},
        {"epsilon": 0.9},
        {"query": "gap"},
        {"query": None, "epsilon": 0.5, "model": "other"},
    ]
    policy = privcal.Policy(
        epsilon=1, epsilon_per_request=0.6, queries=("gap",), askers=("local",), model="v1"
    )
    for request in requests:
        codes = {
            refusal(privcal.Source(random_scores(n, seed=n), policy, ledger=None), **request)
            for n in (0, 1, 50)
        }
        assert len(codes) == 1


def test_a_query_with_forged_parameters_is_a_bad_request(scores: privcal.Scores) -> None:
    source = privcal.Source(scores, ledger=None)
    forged = Gap()
    object.__setattr__(forged, "temperature", 1e9)
    assert refusal(source, forged) == "bad_request"
    assert refusal(source, "not a query") == "bad_request"


def test_a_query_that_lies_about_its_sensitivity_is_answered_by_our_own_copy(
    scores: privcal.Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Liar(Nll):
        sensitivity = 1e-6
        bound = 1

    seen: list[int] = []
    monkeypatch.setattr(
        "privcal.source.add_noise", lambda total, bound, nano: seen.append(bound) or [0]
    )
    privcal.Source(scores, ledger=None).answer(Liar(), 0.5, "r")
    assert seen == [10 * GRID]


def test_nothing_that_leaves_carries_the_number_of_rows() -> None:
    source = privcal.Source(random_scores(324), name="clinic", ledger=None)
    assert "324" not in repr(source)
    for code in privcal.errors.REFUSALS:
        assert not any(ch.isdigit() for ch in str(privcal.Refused(code)))
    # What does leave is a closed list of fields, and none of them is a count of rows.
    answer = source.answer(Histogram(), 0.1, "r")
    assert set(vars(answer)) == {"values", "nano_epsilon", "key", "ledger"}
    result = privcal.calibrate([source], "acc-t", 0.5, model="m")
    assert {name for asked in result.rounds for name in vars(asked)} == {
        "round", "query", "epsilon", "answers",
    }  # fmt: skip
    assert set(result.map.provenance) == {
        "method", "epsilon_per_source", "sources", "answered", "campaign", "model", "created",
        "privcal",
    }  # fmt: skip


def test_a_source_of_any_size_answers_what_another_would() -> None:
    for rows in (0, 1, 2, 50):
        source = privcal.Source(random_scores(rows), privcal.Policy(epsilon=1), ledger=None)
        assert source.answer(Gap(), 0.5, "r").values.shape == (1,)
        assert source.spent == 0.5


def test_a_memory_map_cut_short_after_opening_is_unavailable(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", np.zeros((5000, 10), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(5000, int))
    source = privcal.Source(privcal.read_scores(tmp_path), ledger=None)
    with open(tmp_path / "logits.npy", "r+b") as file:
        file.truncate(1000)
    assert refusal(source) == "unavailable"


def test_at_most_so_many_rows_of_a_person_count() -> None:
    person = ["a"] * 5 + ["b"] * 2 + ["c"]
    for limit in (1, 2, 3):
        kept = rows_kept(person, limit, b"secret")
        names = [person[i] for i in kept]
        assert {n: names.count(n) for n in "abc"} == {
            "a": min(limit, 5),
            "b": min(limit, 2),
            "c": 1,
        }


def test_which_rows_count_does_not_depend_on_anybody_else() -> None:
    rng = np.random.default_rng(0)
    person = [f"p{i}" for i in rng.integers(0, 20, 100)]
    whole = {(person[i], i) for i in rows_kept(person, 2, b"k")}
    for who in set(person):
        rest = [i for i, p in enumerate(person) if p != who]
        without = rows_kept([person[i] for i in rest], 2, b"k")
        assert {(person[rest[i]], rest[i]) for i in without} == {w for w in whole if w[0] != who}


def test_a_limit_changed_meanwhile_holds_for_rows_and_noise_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three rows of a person under noise for one would break the promise."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "privcal.source.add_noise",
        lambda total, bound, nano: seen.append((int(total.sum()), bound)) or total.tolist(),
    )
    scores = random_scores(9, person=["a"] * 9)
    source = privcal.Source(scores, privcal.Policy(rows_per_person=3), ledger=None)
    alive = privcal.Source(scores, ledger=source.ledger)
    for round, limit in enumerate((3, 1, 2, 3)):
        source.ledger.set_policy(privcal.Policy(rows_per_person=limit))
        alive.answer(CellHistogram(), 0.1, f"r/{round}/0")
        assert seen[-1] == (limit * GRID, limit * GRID)


def test_the_choice_of_rows_differs_from_person_to_person() -> None:
    # Were it a matter of the place alone, everybody's same row would count.
    person = [str(who) for who in range(200) for _ in range(5)]
    kept = rows_kept(person, 1, b"k")
    assert (np.bincount(kept % 5, minlength=5) > 15).all()


def test_the_choice_of_rows_is_secret_and_even() -> None:
    # Over many secrets each of five rows is kept equally often: the order of rows means nothing.
    times = np.bincount(
        [rows_kept(["a"] * 5, 1, bytes([i, j]))[0] for i in range(50) for j in range(40)]
    )
    assert len(times) == 5
    assert np.abs(times / 2000 - 0.2).max() < 0.045  # five standard errors


def test_the_choice_of_rows_stays_the_same_for_a_durable_ledger(tmp_path: Path) -> None:
    privcal.Ledger.create(tmp_path / "s.db", unit="person")
    scores = random_scores(40, person=[str(i % 6) for i in range(40)])
    first, second = (
        privcal.Source(scores, None, ledger=tmp_path / "s.db").counted_rows() for _ in range(2)
    )
    assert first.tolist() == second.tolist()
    other = privcal.Source(scores, ledger=None).counted_rows()
    assert other.tolist() != first.tolist()


def test_a_row_limit_needs_person_ids(scores: privcal.Scores) -> None:
    with pytest.raises(privcal.InputError, match="no person ids"):
        privcal.Source(scores, privcal.Policy(rows_per_person=2), ledger=None)


def test_scores_of_another_model_do_not_fit_the_policy() -> None:
    with pytest.raises(privcal.InputError, match="model 'v1'"):
        privcal.Source(random_scores(3, model="v2"), privcal.Policy(model="v1"), ledger=None)


def test_a_policy_is_a_small_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        'epsilon = 2.5\nqueries = ["gap", "nll"]\nrows_per_person = 3\naskers = ["acme"]\n'
    )
    policy = privcal.Policy.load(file)
    assert policy == privcal.Policy(
        epsilon=2.5, queries=("gap", "nll"), rows_per_person=3, askers=("acme",)
    )
    assert policy.nano_per_request == policy.nano_total == 2_500_000_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epsilom = 1", "no setting 'epsilom'"),
        ("epsilon = 0", "must be above 0"),
        ("epsilon = -1", "must be above 0"),
        ("epsilon = nan", "must be a finite number"),
        ("epsilon = [", "not valid TOML"),
        ("queries = ['sum']", "unknown kind 'sum'"),
        ("queries = 'gap'", "must be a list"),
        ("rows_per_person = 0", "rows_per_person"),
        ("rows_per_person = 1.5", "rows_per_person"),
        ("askers = [1]", "must be a list"),
        ("queries = 5", "must be a list"),
    ],
)
def test_a_wrong_policy_is_told_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(privcal.InputError, match=says) as error:
        privcal.Policy.load(file)
    assert "\n" not in str(error.value)
