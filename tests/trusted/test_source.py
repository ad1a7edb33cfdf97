"""The source decides: by its own policy, its own sensitivity, and never by its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration.loop import SourceDropped
from privcal.data.ledger import Ledger
from privcal.data.panels import LocalPanel
from privcal.data.place import Data
from privcal.secure.participant import share_noisy_sums
from privcal.secure.terms import Terms
from privcal.trusted.epsilon import NANO, from_nano
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import FAMILY, GRID, CellHistogram, Gap, Histogram, Nll
from privcal.trusted.question import Question
from privcal.trusted.source import rows_kept
from tests.support.builders import a_file, a_source, forged, outcome, random_scores, sentence


def refusal(
    source: privcal.Source, query: object = None, epsilon: float = 0.5, **more: object
) -> str:
    asker = more.pop("asker", "local")
    question = Question.of(query or Gap(), epsilon, "r", **more)
    code = outcome(source.answer, question, asker)
    assert code != "answered"
    return code


def test_answers_lie_on_the_grid(scores: privcal.Scores) -> None:
    answer = a_source(scores).answer(Question.of(Histogram(), 0.25, "r1"))
    assert answer.values.shape == (30,)
    assert {type(point) for point in answer.points} == {int}
    assert tuple(answer.values * GRID) == answer.points
    assert answer.epsilon == 0.25
    assert answer.question == Question.of(Histogram(), 0.25, "r1")


@pytest.mark.parametrize(
    ("policy", "more", "code"),
    [
        ({"askers": ("acme",)}, {"asker": "eve"}, "asker"),
        ({"queries": ("nll",)}, {}, "query"),
        ({"epsilon": 2, "epsilon_per_request": 0.4}, {}, "over_request_limit"),
        ({"epsilon": 0.4}, {}, "over_request_limit"),
        ({"model": "v1"}, {"model": "v2"}, "model"),
        ({"minimum_epsilon": 0.501}, {}, "under_minimum"),
        ({}, {"epsilon": 0.000999999}, "under_minimum"),
        ({"epsilon_by_asker": {"acme": 0.4}}, {"asker": "acme"}, "over_budget"),
        ({"approve": True}, {}, "awaiting_approval"),
    ],
)
def test_the_policy_refuses_with_its_code_and_nothing_is_charged(
    policy: dict[str, object], more: dict[str, object], code: str, scores: privcal.Scores
) -> None:
    source = a_source(scores, **policy)
    assert refusal(source, **more) == code
    assert source.spent == 0


def test_refusals_do_not_depend_on_rows() -> None:
    requests: list[dict[str, object]] = [
        {"asker": "eve"},
        {"query": Nll()},
        {"epsilon": 0.9},
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


@pytest.mark.parametrize("odd", ["nan,0.5,1", "0.5,0.5,no class", "0.5", "0.5,0.5,"])
def test_a_malformed_row_changes_no_refusal(odd: str, tmp_path: Path) -> None:
    """Not before the charge, nor after it: its row counts as zero, whoever asks and whatever is left."""
    good = ["0.2,0.8,1", "0.9,0.1,0", "0.7,0.3,1"]
    policy = privcal.Policy(epsilon=1, epsilon_per_request=0.6, askers=("local",), model="v1")
    said = []
    for name, rows in (("good", good), ("odd", [*good[:1], odd, *good[1:]])):
        table = a_file(
            tmp_path / f"{name}.csv", "\n".join(["probability_0,probability_1,label", *rows])
        )
        ledger = privcal.Ledger.in_memory(policy)
        source = privcal.Source(Data.at(table, model="v1"), ledger=ledger)
        codes = [
            refusal(source, asker="eve"),
            refusal(source, epsilon=0.7),
            refusal(source, model="other"),
            source.offer([Question.of(Gap(), 0.6, "a")]),
        ]
        assert source.answer(Question.of(Gap(), 0.6, "a")).epsilon == 0.6
        said.append([*codes, refusal(source)])
    assert said[0] == said[1] == ["asker", "over_request_limit", "model", None, "over_budget"]


def test_a_query_with_forged_parameters_is_a_bad_request(scores: privcal.Scores) -> None:
    source = a_source(scores)
    wrong = Gap()
    object.__setattr__(wrong, "temperature", 1e9)
    assert refusal(source, wrong) == "bad_request"


def test_a_query_that_lies_about_its_sensitivity_is_answered_by_our_own_copy(
    scores: privcal.Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Liar(Nll):
        sensitivity = 1e-6
        bound = 1

    seen: list[int] = []
    monkeypatch.setattr(
        "privcal.trusted.source.add_noise", lambda total, bound, nano: seen.append(bound) or [0]
    )
    a_source(scores).answer(Question.of(Liar(), 0.5, "r"))
    assert seen == [10 * GRID]


def test_nothing_that_leaves_carries_the_number_of_rows() -> None:
    source = a_source(324, name="clinic")
    assert "324" not in repr(source)
    for code in privcal.trusted.errors.REFUSALS:
        assert not any(ch.isdigit() for ch in str(privcal.Refused(code)))
    # What does leave is a closed list of fields, and none of them is a count of rows.
    answer = source.answer(Question.of(Histogram(), 0.1, "r"))
    assert set(vars(answer)) == {"points", "question", "ledger"}
    result = privcal.calibrate([source], "acc-t", 0.5, model="m")
    assert {name for asked in result.rounds for name in vars(asked)} == {
        "question", "answers", "noise", "ledgers", "total",
    }  # fmt: skip
    assert all(asked.total is None for asked in result.rounds)  # nor of their number
    assert set(vars(answer.question)) == {
        "campaign", "round", "index", "nano_epsilon", "query", "model",
    }  # fmt: skip
    assert set(result.map.provenance) == {
        "method", "epsilon_per_source", "sources", "answered", "campaign", "model", "classes", "created",
        "privcal", "made_from",
    }  # fmt: skip


def test_a_source_of_any_size_answers_what_another_would() -> None:
    for rows in (0, 1, 2, 50):
        source = a_source(rows, epsilon=1)
        assert source.answer(Question.of(Gap(), 0.5, "r")).values.shape == (1,)
        assert source.spent == 0.5


def test_a_memory_map_cut_short_after_opening_is_unavailable(tmp_path: Path) -> None:
    np.save(tmp_path / "logits.npy", np.zeros((5000, 10), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(5000, int))
    source = a_source(privcal.read_scores(tmp_path))
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
        "privcal.trusted.source.add_noise",
        lambda total, bound, nano: seen.append((int(total.sum()), bound)) or total.tolist(),
    )
    scores = random_scores(9, person=["a"] * 9)
    source = a_source(scores, rows_per_person=3)
    alive = privcal.Source(scores, ledger=source.ledger)
    for round, limit in enumerate((3, 1, 2, 3)):
        Ledger.of(source.ledger).set_policy(privcal.Policy(rows_per_person=limit))
        alive.answer(Question.of(CellHistogram(), 0.1, "r", round=round))
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
    other = a_source(scores).counted_rows()
    assert other.tolist() != first.tolist()


def test_a_row_limit_needs_person_ids(scores: privcal.Scores) -> None:
    with pytest.raises(privcal.InputError, match="no person ids"):
        a_source(scores, rows_per_person=2)


def test_scores_of_another_model_do_not_fit_the_policy() -> None:
    with pytest.raises(privcal.InputError, match="model 'v1'"):
        a_source(random_scores(3, model="v2"), model="v1")


def test_a_policy_is_a_small_toml_file(tmp_path: Path) -> None:
    file = a_file(
        tmp_path / "policy.toml",
        'epsilon = 2.5\nqueries = ["gap", "nll"]\nrows_per_person = 3\naskers = ["acme"]\n',
    )
    policy = privcal.Policy.load(file)
    assert policy == privcal.Policy(
        epsilon=2.5, queries=("gap", "nll"), rows_per_person=3, askers=("acme",)
    )
    assert policy.nano_per_request == policy.nano_total == 2_500_000_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epsilom = 1", "has no 'epsilom'; there are approve, "),
        ("epsilon = 0", "must be above 0"),
        ("epsilon = -1", "must be above 0"),
        ("epsilon = nan", "must be a finite number"),
        ("epsilon = [", "not valid TOML"),
        ("queries = ['sum']", "there is no kind of query 'sum'; there are gap, "),
        ("queries = 'gap'", "must be a list"),
        ("rows_per_person = 0", "rows_per_person"),
        ("rows_per_person = 1.5", "rows_per_person"),
        ("askers = [1]", "askers must be text, not 1"),
        ("queries = 5", "must be a list"),
        ("minimum_epsilon = 0", "must be above 0"),
        ("epsilon_by_asker = 1", "epsilon_by_asker must be an object"),
        ("[epsilon_by_asker]\nacme = -1", "epsilon_by_asker 'acme' must be above 0"),
        ("requests_per_hour = 0", "requests_per_hour"),
        ("requests_per_hour = 1.5", "requests_per_hour"),
        ("requests_per_hour = true", "requests_per_hour"),
        ("approve = 'yes'", "must be true or false"),
        ("rows = 0", "rows must be a whole number"),
        ("rows = 30.5", "rows must be a whole number"),
        ("rows = true", "rows must be a whole number"),
    ],
)
def test_a_wrong_policy_is_told_in_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    assert says in sentence(privcal.Policy.load, a_file(tmp_path / "policy.toml", text))


@pytest.mark.parametrize("said", ["by the data", "by the asker"])
def test_a_stored_answer_is_never_given_for_another_model(said: str) -> None:
    ledger = privcal.Ledger.in_memory()
    answers = {}
    for model in ("v1", "v2"):
        own, asked = (model, None) if said == "by the data" else (None, model)
        source = privcal.Source(random_scores(9, model=own), ledger=ledger)
        try:
            answers[model] = source.answer(
                Question.of(Gap(), 0.25, "spring", model=asked)
            ).values.tolist()
        except privcal.Refused as refused:
            answers[model] = refused.code
    assert answers["v2"] == "id_conflict"
    assert source.spent == 0.25


# --- what a policy can say ------------------------------------------------------------------


def test_a_policy_says_who_may_spend_how_much_how_often_and_whether_the_owner_is_asked(
    tmp_path: Path,
) -> None:
    file = a_file(
        tmp_path / "policy.toml",
        "epsilon = 2\nminimum_epsilon = 0.01\nrequests_per_hour = 60\napprove = true\n"
        '[epsilon_by_asker]\nacme = 0.5\n"St. Anna" = 1\n',
    )
    policy = privcal.Policy.load(file)
    assert (policy.nano_minimum, policy.requests_per_hour, policy.approve) == (10**7, 60, True)
    assert (policy.nano_of("acme"), policy.nano_of("St. Anna")) == (NANO // 2, NANO)
    assert policy.nano_of("somebody else") is None
    assert privcal.Policy.of(policy.to_dict(), "again") == policy
    assert hash(policy) == hash(privcal.Policy.load(file))
    path = tmp_path / "source.db"
    privcal.Ledger.create(path, policy, unit="row")
    assert privcal.Ledger(path).policy == policy


@pytest.mark.parametrize("kept", [1, 500])
def test_how_many_rows_there_are_is_the_owners_word_and_never_counted(kept: int) -> None:
    """Whatever is attached, a source tells what its policy says: neighbours tell the same."""
    silent = a_source(kept)
    assert silent.declared_rows is None
    owners = privcal.Policy(rows=30)
    telling = privcal.Source(random_scores(kept), owners, ledger=None)
    assert telling.declared_rows == 30
    assert LocalPanel([silent], "a").rows_per_source is None
    assert owners.narrowed(privcal.Policy(rows=7)).rows == 30
    assert privcal.Policy().narrowed(privcal.Policy(rows=7)).rows is None


def test_a_panel_goes_by_the_median_of_what_owners_tell() -> None:
    told = (10, None, 30, 2_000_000_000)
    sources = [a_source(name=f"s{rows}", rows=rows) for rows in told]
    panel = LocalPanel(sources, "a")
    assert (panel.sources, panel.rows_per_source) == (4, 30.0)


def test_a_policy_kept_before_there_were_these_rules_loads_with_the_defaults() -> None:
    kept = {"budget": "population", "epsilon": 1.0, "rows_per_person": 1}
    policy = privcal.Policy.of(kept, "of the ledger")
    assert policy == privcal.Policy()
    assert (policy.minimum_epsilon, policy.requests_per_hour, policy.approve) == (
        0.001,
        None,
        False,
    )


def test_the_least_epsilon_leaves_a_search_of_five_questions_a_small_total() -> None:
    source = a_source()
    assert privcal.calibrate([source], "acc-t", 0.005).spent == (0.005,)
    with (
        pytest.warns(SourceDropped, match="under_minimum"),
        pytest.raises(privcal.CalibrationError, match="nothing charged"),
    ):
        privcal.calibrate([source], "acc-t", 0.004)
    assert source.spent == 0.005


def test_a_policy_under_which_nothing_could_be_asked_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(privcal.InputError, match="nothing could be asked"):
        privcal.Ledger.create(tmp_path / "s.db", privcal.Policy(epsilon=0.0001), unit="row")
    assert not (tmp_path / "s.db").exists()
    ledger = privcal.Ledger.in_memory()
    with pytest.raises(privcal.InputError, match="nothing could be asked"):
        ledger.set_policy(privcal.Policy(epsilon_per_request=0.1, minimum_epsilon=0.2))


NAMES = ("a", "b", "c")
EPSILONS = st.integers(1, 20).map(lambda n: n / 10)


def names(of: Any) -> Any:
    return st.none() | st.lists(st.sampled_from(of), unique=True).map(tuple)


POLICIES = st.builds(
    privcal.Policy,
    epsilon=EPSILONS,
    epsilon_per_request=st.none() | EPSILONS,
    minimum_epsilon=EPSILONS,
    epsilon_by_asker=st.none() | st.dictionaries(st.sampled_from(NAMES), EPSILONS),
    requests_per_hour=st.none() | st.integers(1, 9),
    approve=st.booleans(),
    queries=names(sorted(FAMILY)),
    askers=names(NAMES),
)


@settings(max_examples=200, deadline=None)
@given(one=POLICIES, other=POLICIES)
def test_narrowing_allows_what_both_allow_and_nothing_else(
    one: privcal.Policy, other: privcal.Policy
) -> None:
    both = one.narrowed(other)

    def allows(policy: privcal.Policy, kind: str, nano: int, asker: str) -> bool:
        try:
            policy.check(Question("c", 0, 0, nano, FAMILY[kind]()), asker)
        except privcal.Refused:
            return False
        own = policy.nano_of(asker)
        return nano <= policy.nano_total and (own is None or nano <= own)

    for asker in NAMES:
        for kind in ("gap", "hats"):
            for nano in (NANO // 10, NANO // 2, NANO, 2 * NANO):
                expected = allows(one, kind, nano, asker) and allows(other, kind, nano, asker)
                assert allows(both, kind, nano, asker) == expected
    limits = [p.requests_per_hour for p in (one, other) if p.requests_per_hour is not None]
    assert both.requests_per_hour == min(limits, default=None)
    assert both.approve == (one.approve or other.approve)


class Watched:
    """Rows that remember whether anybody looked at them."""

    def __init__(self, there: bool = True) -> None:
        self.model, self.there, self.looked = "v1", there, 0

    def check_there(self) -> None:
        if not self.there:
            raise privcal.InputError("the share is not mounted")

    def read(self) -> privcal.Scores:
        self.looked += 1
        return random_scores(9, model="v1")


def test_request_policy_key_and_charge_refuse_in_this_order_and_rows_never() -> None:
    """A request with everything wrong, put right one thing at a time."""
    rules = privcal.Policy(
        epsilon=1.0,
        epsilon_per_request=0.5,
        queries=("gap",),
        askers=("acme", "other"),
        model="v1",
        approve=True,
        requests_per_hour=1,
        epsilon_by_asker={"acme": 0.5},
    )
    open_to_all = privcal.Policy(epsilon=1.0)
    ledger = privcal.Ledger.in_memory(open_to_all)
    rows = Watched(there=False)
    source = privcal.Source(rows, ledger=ledger)
    asked: dict[str, Any] = {"campaign": "a/b", "asker": "eve", "model": "v2", "epsilon": 0.6}
    asked["query"] = Nll()

    def answer() -> privcal.Answer:
        parts = dict(asked)
        asker, campaign = parts.pop("asker"), parts.pop("campaign")
        return source.answer(forged(Question.of(campaign="c", **parts), campaign=campaign), asker)

    def refused(**right: Any) -> str:
        asked.update(right)
        found = outcome(answer)
        assert rows.looked == before
        return found

    rows.there = True
    source.answer(Question.of(Gap(2.0), 0.1, "used", model="v1"), "acme")
    rows.there, before = False, rows.looked
    ledger.set_policy(rules)
    assert refused() == "bad_request"
    assert refused(campaign="used") == "asker"
    assert refused(asker="acme") == "query"
    assert refused(query=Gap()) == "model"
    assert refused(model="v1") == "over_request_limit"
    assert refused(epsilon=0.0001) == "under_minimum"
    assert refused(epsilon=0.45) == "unavailable"
    rows.there = True
    assert refused() == "id_conflict"
    assert refused(campaign="new") == "awaiting_approval"
    [(proposal, _)] = ledger.waiting()
    ledger.approve(proposal)
    assert refused() == "over_budget"  # .1 of this asker's .5 is spent
    ledger.set_policy(open_to_all)
    ledger.reserve([Question.of(Gap(), 0.5, "c")], "other", open_to_all)
    ledger.set_policy(privcal.Policy.of({"epsilon_by_asker": {"acme": 1.0}}, "", rules))
    assert refused() == "reserved"
    ledger.release("c", "other")
    assert refused() == "too_often"
    policy = privcal.Policy.of({"requests_per_hour": 2}, "", ledger.policy)
    ledger.set_policy(policy)
    assert answer().epsilon == 0.45
    assert from_nano(ledger.nano_spent) == 0.55


@pytest.mark.parametrize("way", ["answer", "share"])
def test_a_charge_is_on_disk_before_any_noise_is_drawn(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second connection to the ledger sees it at the very moment at which the noise is drawn."""
    path = tmp_path / "s.db"
    privcal.Ledger.create(
        path, privcal.Policy(epsilon=8, secure=SecureRules(colluding=0)), unit="row"
    )
    seen: list[tuple[float, bool | None]] = []

    def look(exact: Any, *_: object) -> list[int]:
        ledger = privcal.Ledger(path)
        seen.append((from_nano(ledger.nano_spent), ledger.entries()[-1].answered))
        return [int(value) for value in exact]

    monkeypatch.setattr("privcal.trusted.source.add_noise", look)
    monkeypatch.setattr("privcal.secure.participant.add_noise_share", look)
    source = privcal.Source(random_scores(9), ledger=path)
    question = Question.of(Gap(), 0.5, "spring")
    if way == "answer":
        source.answer(question)
    else:
        terms = Terms(question, "local", ("a", "b", "c"), 0, 3, 10, 1, "roster")
        share_noisy_sums(source, terms, "local", lambda numbers: "sealed")
    assert seen == [(0.5, False)]
    assert privcal.Ledger(path).entries()[-1].answered
