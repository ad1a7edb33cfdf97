"""A sketch as a value and a file: kept, merged and read again without asking anybody."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privcal
from privcal.calibration.loop import SourceDropped
from privcal.calibration.maps import LEFT_ALONE, PRIOR_ONLY
from privcal.calibration.sketch import (
    Sketch,
    SketchAnswer,
    SketchReader,
    evaluate_privately,
    merge,
    reader,
)
from privcal.data.ledger import Ledger
from privcal.trusted.noise import add_noise
from privcal.trusted.queries import GRID, Gap, Hats
from privcal.trusted.question import Question
from tests.support.builders import a_file, a_source, random_scores, save
from tests.support.damaged import DAMAGED

NANO = 10**9
QUERY = SketchReader.of().query


def entry(source: str = "a", seed: int = 0, **more: Any) -> SketchAnswer:
    values = np.random.default_rng(seed).integers(-GRID, 50 * GRID, QUERY.length) / GRID
    facts = {"asker": "acme", "campaign": "spring", "nano_epsilon": NANO, **more}
    return SketchAnswer(source, values=tuple(values.tolist()), **facts)


def sketch(*names: str, query: Hats = QUERY, model: str | None = None, **more: Any) -> Sketch:
    """One entry for each name, all with different values."""
    entries = (entry(name, seed=sum(map(ord, name)), **more) for name in names)
    return Sketch(query, tuple(entries), model)


def sources(count: int, rows: int = 40, **policy: Any) -> list[privcal.Source]:
    person = [f"p{j // 3}" for j in range(rows)] if "rows_per_person" in policy else None
    each = (random_scores(rows, seed=i, person=person) for i in range(count))
    return [a_source(one, name=f"s{i}", **{"epsilon": 2, **policy}) for i, one in enumerate(each)]


@pytest.fixture(scope="module")
def public() -> privcal.Scores:
    return random_scores(400, seed=99)


# --- from a calibration, through a file, to the same map ------------------------------------


@pytest.mark.parametrize("with_public", [False, True])
@pytest.mark.parametrize("rows_per_person", [1, 3])
@pytest.mark.parametrize("epsilon", [0.7, 2.0])
def test_a_saved_sketch_gives_the_very_map_of_the_calibration(
    with_public: bool, rows_per_person: int, epsilon: float, public: privcal.Scores, tmp_path: Path
) -> None:
    options = {"public": public} if with_public else {}
    asked = sources(7, rows_per_person=rows_per_person)
    result = privcal.calibrate(asked, "sketch", epsilon, campaign="c", model="m", **options)
    assert result.sketch is not None
    result.sketch.save(tmp_path / "s.json")
    again = privcal.Sketch.load(tmp_path / "s.json")
    assert again == result.sketch
    fitted = again.fit(public if with_public else None)
    assert fitted.map.log_odds == result.map.log_odds
    assert fitted.map.scores == result.map.scores
    assert fitted.map.temperature == result.map.temperature
    assert [e.rows_per_person for e in again.answers] == [rows_per_person] * 7
    assert {(e.asker, e.campaign, e.nano_epsilon) for e in again.answers} == {
        ("local", "c", int(epsilon * 10) * NANO // 10)
    }
    assert again.model == "m"


def test_other_methods_leave_no_sketch() -> None:
    for method in ("acc-t", "one-hot-binning", "uncalibrated"):
        assert privcal.calibrate(sources(2), method, 1.0).sketch is None


def test_the_map_tells_where_it_comes_from(public: privcal.Scores) -> None:
    asked = sources(3)
    with_public = privcal.calibrate(asked, "sketch", 0.5, public=public, model="net").sketch
    again = privcal.calibrate(asked, "sketch", 0.25, public=public, model="net").sketch
    assert with_public is not None
    assert again is not None
    facts = merge(with_public, again).fit(public).map.provenance
    assert 0 < facts["unchanged"] < 1
    assert facts["unchanged_before"] == 0.3
    assert {
        k: v for k, v in facts.items() if k not in ("note", "unchanged", "unchanged_before")
    } == {
        "method": "sketch",
        "options": {"public": "400 rows"},
        "epsilon_per_source": 0.75,
        "sources": 3,
        "answers": 6,
        "model": "net",
        "classes": 5,
        "made_from": "logits",
        "privcal": privcal.__version__,
    }


def test_a_source_that_refuses_is_left_out_and_the_rest_is_there() -> None:
    asked = sources(4)
    Ledger.of(asked[1].ledger).set_policy(privcal.Policy(epsilon=0.1))
    with pytest.warns(SourceDropped, match="s1 is not asked"):
        result = privcal.calibrate(asked, "sketch", 1.0)
    assert result.sketch is not None
    assert [e.source for e in result.sketch.answers] == ["s0", "s2", "s3"]
    assert result.sketch.spent == {"s0": 1.0, "s2": 1.0, "s3": 1.0}
    assert result.sketch.fit().map.log_odds == result.map.log_odds


def test_one_source_with_one_row_is_drowned_and_said_to_be() -> None:
    source = a_source(1, name="only", epsilon=0.01)
    values = tuple(source.answer(Question.of(QUERY, 0.01, "r")).values.tolist())
    # Noise of standard deviation 141 in 18 numbers; whatever came out, its sum is no signal.
    quiet = tuple(v - sum(values) / len(values) for v in values)
    small = Sketch(QUERY, (SketchAnswer("only", "acme", "r", NANO // 100, quiet),))
    fitted = small.fit()
    assert not fitted.informative
    assert fitted.map.provenance["note"] == PRIOR_ONLY
    assert not fitted.evaluate().informative
    # What comes back is the prior's map, the same whatever the noise.
    other = Sketch(QUERY, (SketchAnswer("only", "acme", "r", NANO // 100, quiet[::-1]),))
    assert other.fit().map.log_odds == fitted.map.log_odds
    result = privcal.calibrate([a_source(1, name="only")], "sketch", 1.0)
    assert result.sketch is not None
    assert result.sketch.spent == {"only": 1.0}


def test_a_sketch_carries_no_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All that may depend on rows goes through the noise. With it replaced by constants, files of
    # 3 and of 300 rows must be equal to the last byte.
    monkeypatch.setattr(
        "privcal.trusted.source.add_noise", lambda total, sensitivity, nano: list(range(len(total)))
    )
    files = []
    for rows in (3, 300):
        with monkeypatch.context() as same:  # the ledger's id is random, and no count
            same.setattr("secrets.token_hex", lambda length: "0" * 2 * length)
            one = a_source(rows, rows, name="clinic")
        result = privcal.calibrate([one], "sketch", 1.0, campaign="c")
        assert result.sketch is not None
        result.sketch.save(tmp_path / f"{rows}.json")
        result.sketch.fit().map.save(tmp_path / f"map-{rows}.json")
        files.append([(tmp_path / f"{name}{rows}.json").read_bytes() for name in ("", "map-")])
    assert files[0] == files[1]


# --- averages, noise and ε ------------------------------------------------------------------


def test_the_average_of_a_merged_sketch_is_the_mean_of_all_answers() -> None:
    a, b = sketch("a", "b", "c"), sketch("d", "e", nano_epsilon=3 * NANO)
    merged = merge(a, b)
    values = [e.values for e in (*a.answers, *b.answers)]
    exact = [sum(map(Fraction, column)) / 5 for column in zip(*values, strict=True)]
    # The sums are exact in double precision; only the division by 5 rounds.
    assert merged.average.tolist() == [float(mean) for mean in exact]


def test_the_noise_of_answers_with_different_epsilons_and_persons() -> None:
    asked = [(NANO, 1), (NANO // 2, 1), (3 * NANO, 4), (123_456_789, 2), (NANO, 1)]
    entries = (
        entry(str(i), seed=i, nano_epsilon=nano, rows_per_person=rows)
        for i, (nano, rows) in enumerate(asked)
    )
    exact = sum(2 * Fraction(rows * NANO, nano) ** 2 for nano, rows in asked) / 25
    assert Sketch(QUERY, tuple(entries)).noise_variance == pytest.approx(float(exact), rel=1e-14)


def test_the_noise_is_that_of_the_mechanism() -> None:
    asked = [(NANO, 1), (NANO // 2, 1), (NANO, 3)]
    draws = [
        np.array(add_noise(np.zeros(20_000, np.int64), rows * GRID, nano)) / GRID
        for nano, rows in asked
    ]
    # The relative deviation of this estimate is below √(5/20000) = 1.6 %: 10 % is six of them.
    entries = (
        entry(str(i), seed=i, nano_epsilon=nano, rows_per_person=rows)
        for i, (nano, rows) in enumerate(asked)
    )
    said = Sketch(QUERY, tuple(entries)).noise_variance
    assert np.mean(draws, axis=0).var() == pytest.approx(said, rel=0.1)


def test_epsilon_adds_up_exactly_at_each_source() -> None:
    parts = [
        sketch("a", "b", nano_epsilon=NANO // 10, campaign=str(i)).answers[: 2 - i // 2]
        for i in range(3)
    ]
    entries = tuple(
        SketchAnswer(e.source, e.asker, e.campaign, e.nano_epsilon, (float(i), *e.values[1:]))
        for i, e in enumerate(itertools.chain(*parts))
    )
    whole = Sketch(QUERY, entries)
    assert 0.1 + 0.1 + 0.1 != 0.3  # so floats would not do
    assert whole.spent == {"a": 0.3, "b": 0.2}
    assert whole.nano_spent == {"a": 3 * NANO // 10, "b": 2 * NANO // 10}
    assert whole.epsilon == 0.3


def test_rows_that_answered_twice_are_not_counted_as_twice_as_many() -> None:
    assert sketch("a", "b", "c").independent_answers == 3
    twice = Sketch(QUERY, (*sketch("a", "b").answers, *sketch("a", "b", campaign="2").answers))
    assert twice.independent_answers == 2
    # Weights 2/3 and 1/3: variance (4 + 1)/9 of one answer's, a little less than one answer's.
    assert (
        Sketch(QUERY, (*sketch("a", "b").answers, entry("a", campaign="2"))).independent_answers
        == 1
    )
    four = sketch("a", "b", "c", "d", nano_epsilon=1000 * NANO)
    names = [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    same = Sketch(
        QUERY,
        tuple(
            SketchAnswer(name, "acme", campaign, 1000 * NANO, e.values)
            for (name, campaign), e in zip(names, four.answers, strict=True)
        ),
    )
    assert same.average.tolist() == four.average.tolist()
    less, more = (s.evaluate().accuracy for s in (same, four))
    assert less.high - less.low > 1.2 * (more.high - more.low)


# --- merging --------------------------------------------------------------------------------


def test_the_order_of_merging_does_not_matter(tmp_path: Path) -> None:
    again = Sketch(QUERY, (entry("a", seed=7, campaign="autumn"),))
    parts = [sketch("z", "a"), sketch("m", nano_epsilon=5), again]
    whole = merge(*parts)
    whole.save(tmp_path / "whole.json")
    for order in itertools.permutations(parts):
        assert merge(*order) == merge(merge(*order[:2]), order[2]) == whole
        merge(*order).save(tmp_path / "other.json")
        assert (tmp_path / "other.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert merge(parts[0]) == parts[0]


def test_an_answer_is_merged_once() -> None:
    a, b = sketch("a", "b"), sketch("b", "c")
    with pytest.raises(privcal.InputError, match=r"answer of 'b' .* campaign 'spring' is already"):
        merge(a, b)
    with pytest.raises(privcal.InputError, match="is already merged"):
        merge(a, a)
    with pytest.raises(privcal.InputError, match="is already merged"):
        merge(merge(a, sketch("d")), sketch("d"))
    # Under one name with other numbers, too: a source answers a request once.
    with pytest.raises(privcal.InputError, match=r"campaign 'spring' is already merged$"):
        merge(a, Sketch(QUERY, (entry("b", seed=5),)))


@pytest.mark.parametrize("change", [{"source": "b"}, {"asker": "eve"}, {"campaign": "autumn"}])
def test_an_answer_under_another_name_is_the_same_answer(change: dict[str, str]) -> None:
    one = entry("a")
    renamed = SketchAnswer(**{**vars(one), **change})
    with pytest.raises(privcal.InputError, match="equal to the last digit"):
        merge(Sketch(QUERY, (one,)), Sketch(QUERY, (renamed,)))


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (Hats(1.5, QUERY.knots), r"temperature is 1\.0 in one and 1\.5 in the other"),
        (
            Hats(1.0, (*QUERY.knots[:-1], 11.0)),
            r"knots is \[.*12\.0\] in one and \[.*11\.0\] in the other; sketches that shall be "
            r"merged are taken with equally many hats \(--option hats=N\)$",
        ),
    ],
)
def test_other_questions_do_not_merge(query: Hats, says: str) -> None:
    with pytest.raises(privcal.InputError, match=says):
        merge(sketch("a"), sketch("b", query=query))


def test_other_models_do_not_merge_and_no_name_is_no_wildcard() -> None:
    with pytest.raises(privcal.InputError, match="'net' and the other 'tree'"):
        merge(sketch("a", model="net"), sketch("b", model="tree"))
    with pytest.raises(privcal.InputError, match="'net' and the other no model's name"):
        merge(sketch("a", model="net"), sketch("b"))
    assert merge(sketch("a", model="net"), sketch("b", model="net")).model == "net"
    assert merge(sketch("a"), sketch("b")).model is None
    with pytest.raises(privcal.InputError, match="no sketches"):
        merge()


# --- public scores --------------------------------------------------------------------------


def test_a_sketch_is_read_with_the_public_scores_it_was_taken_with(public: privcal.Scores) -> None:
    taken = privcal.calibrate(sources(3), "sketch", 1.0, public=public).sketch
    assert taken is not None
    with pytest.raises(privcal.InputError, match="was taken with public scores"):
        taken.fit()
    with pytest.raises(privcal.InputError, match="not taken with these public scores: its temp"):
        taken.fit(random_scores(400, seed=98))
    with pytest.raises(privcal.InputError, match="taken without public scores"):
        sketch("a").fit(public)


@pytest.mark.parametrize(("rows", "hats"), [(None, 2), (10, 2), (1000, 7)])
def test_sources_are_asked_as_finely_as_pays_by_what_their_owners_tell(
    public: privcal.Scores, rows: int | None, hats: int
) -> None:
    asked = sources(3)
    for source in asked:
        Ledger.of(source.ledger).set_policy(privcal.Policy(epsilon=2, rows=rows))
    taken = privcal.calibrate(asked, "sketch", 0.2, public=public).sketch
    assert taken is not None
    assert len(taken.query.knots) == hats
    guessed = privcal.calibrate(asked, "sketch", 0.2, public=public, rows_per_source=1000).sketch
    assert guessed is not None
    assert len(guessed.query.knots) == 7  # the calibrator's own guess goes before
    if hats == 2:
        with pytest.raises(privcal.InputError, match=r"equally many hats \(--option hats=N\)$"):
            merge(taken, guessed)


def test_a_model_in_use_that_is_right_is_left_alone_and_that_is_said(
    public: privcal.Scores,
) -> None:
    """Rows from the very population of the public ones, plenty of them."""
    here = random_scores(4000, seed=50)
    right = privcal.Scores(logits=here.outputs.array, labels=drawn_labels(here))
    source = a_source(right, name="s", epsilon=50)
    result = privcal.calibrate([source], "sketch", 10.0, leave_alone=True)
    assert result.sketch is not None
    assert result.unchanged == result.map.unchanged == result.map.provenance["unchanged"]
    assert result.unchanged is not None
    assert result.unchanged > 0.5
    said = f"the probability that nothing changed is {100 * result.unchanged:.0f} % "
    said = (
        "the probability that nothing changed is above 99 % " if result.unchanged > 0.99 else said
    )
    assert result.note == said + f"(believed beforehand: 50 %); {LEFT_ALONE}"
    own = privcal.TemperatureMap(1.0).confidence(right)
    assert np.abs(result.map.confidence(right) - own).max() < 1e-6
    # What is believed beforehand is a matter of reading: never, and nothing is said of it.
    never = result.sketch.fit(unchanged=0.0, leave_alone=False)
    assert (never.map.unchanged, never.map.note) == (None, None)
    assert never.evaluate().unchanged is None
    judged = result.sketch.evaluate()
    assert (judged.unchanged, judged.unchanged_before) == (result.unchanged, 0.5)
    assert judged.left_alone
    assert not result.sketch.evaluate(unchanged=0.5, leave_alone=False).left_alone
    assert privcal.calibrate([source], "acc-t", 1.0).unchanged is None


def drawn_labels(scores: privcal.Scores) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Labels for which the model's own probabilities are true."""
    logits = scores.outputs.array
    return (logits + np.random.default_rng(5).gumbel(size=logits.shape)).argmax(axis=1)


def test_a_sketch_is_read_at_the_knots_it_was_taken_at(public: privcal.Scores) -> None:
    fine = privcal.calibrate(sources(3), "sketch", 1.0, public=public, hats=7).sketch
    assert fine is not None
    assert len(fine.query.knots) == 7
    again = Sketch.of(
        fine.query,
        {a.source: a.values for a in fine.answers},
        {},
        10**9,
        asker="local",
        campaign="again",
    )
    assert again.reader is None
    assert again.fit(public).posterior.mixture.frame.knots == fine.query.knots
    assert again.fit(public).map.log_odds == fine.fit(public).map.log_odds


def test_the_last_digits_of_the_temperature_may_differ_between_machines(
    public: privcal.Scores,
) -> None:
    taken = privcal.calibrate(sources(3), "sketch", 1.0, public=public).sketch
    assert taken is not None
    near = Hats(taken.query.temperature * (1 + 1e-7), taken.query.knots)
    fitted = Sketch(near, taken.answers).fit(public)
    # The scores that were asked for are those the map is over.
    assert fitted.map.temperature == near.temperature
    assert fitted.evaluate(fitted.map).informative == fitted.informative


def test_evaluate_is_the_private_evaluation_of_what_was_fitted(public: privcal.Scores) -> None:
    taken = privcal.calibrate(sources(5), "sketch", 2.0, public=public).sketch
    assert taken is not None
    fitted = taken.fit(public)
    direct = evaluate_privately(fitted.posterior, fitted.reader, fitted.map, 10)
    assert taken.evaluate(public, bins=10).to_dict() == direct.to_dict()
    steeper = privcal.CurveMap(
        fitted.map.temperature, fitted.map.scores, tuple(3 * y for y in fitted.map.log_odds)
    )
    assert taken.evaluate(public, steeper).confidence_after != direct.confidence_after
    with pytest.raises(privcal.InputError, match="same public data"):
        taken.evaluate(public, privcal.CurveMap(9.0, (0.0, 1.0), (0.0, 1.0)))


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each fit of public rows."""
    calls: list[int] = []

    def counted(scores: privcal.Scores, *args: Any) -> privcal.Fit:
        calls.append(len(scores))
        return privcal.fit_temperature(scores, *args)

    monkeypatch.setattr(reader, "fit_temperature", counted)
    return calls


def test_the_public_rows_are_fitted_once_in_a_run_and_its_evaluation(
    fits: list[int], public: privcal.Scores
) -> None:
    taken = privcal.calibrate(sources(3), "sketch", 1.0, public=public).sketch
    assert taken is not None
    taken.evaluate(public)
    taken.fit(public)
    assert fits == [400]
    same = privcal.Scores(logits=public.outputs.array, labels=public.labels)
    taken.evaluate(same)  # other rows, as far as one can tell without looking at them
    assert fits == [400, 400]


def test_the_public_rows_are_fitted_once_by_the_command(
    fits: list[int], public: privcal.Scores, run: Any, tmp_path: Path
) -> None:
    for name, scores in (("clean", public), ("a", random_scores(40)), ("b", random_scores(30))):
        save(tmp_path / f"{name}.npz", scores)
    run.ok(
        "calibrate", tmp_path / "a.npz", tmp_path / "b.npz", "--new-ledger", "--per-row",
        "--method", "sketch", "--public", tmp_path / "clean.npz", "--out", tmp_path / "map.json",
        "--sketch", tmp_path / "sketch.json", "--plot", tmp_path / "plot.png",
    )  # fmt: skip
    assert fits == [400]


def test_another_question_is_not_read_with_what_the_run_was_made_with(
    public: privcal.Scores,
) -> None:
    taken = privcal.calibrate(sources(3), "sketch", 1.0, public=public).sketch
    assert taken is not None
    assert taken.reader is not None
    odd = replace(taken, query=Hats(1.1 * taken.query.temperature, taken.query.knots))
    with pytest.raises(privcal.InputError, match="not taken with these public scores"):
        odd.fit(public)


# --- the file -------------------------------------------------------------------------------


def damage(document: dict[str, Any], where: str, value: Any) -> None:
    *path, last = where.split(".")
    at: Any = document
    for name in path:
        at = at[int(name) if name.isdigit() else name]
    if value is ...:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("format", "privcal-map", "is not a privcal sketch"),
        ("version", 1, "has version 1; this privcal reads version 2 and 3 and 4"),
        ("version", True, "has version True"),
        ("query", None, "unknown query"),
        ("query.kind", "sum", "unknown query"),
        ("query.knots", [1.0, 0.0], "knots must each be"),
        ("query.temperature", -1, "temperature must be"),
        ("query", Gap().to_dict(), "asks a hats query, not gap"),
        ("model", 3, "model of a sketch must be a name"),
        ("answers", {}, "answers must be a list"),
        ("answers", [], "at least one answer"),
        ("answers", [1], "answer 1 must be an object, not 1"),
        ("answers.0.rows", 17, "answer 1 has no 'rows'; there are asker"),
        ("answers.1.asker", ..., "answer 2: asker is missing"),
        ("answers.0.source", "", "source must be a name"),
        ("answers.0.asker", 3, "asker must be 1 to 200 printable characters"),
        ("answers.0.campaign", "a/0/0", "cannot contain a slash"),
        ("answers.0.nano_epsilon", 0, "nano_epsilon must be a whole number from 1"),
        ("answers.0.nano_epsilon", -5, "nano_epsilon must be a whole number"),
        ("answers.0.nano_epsilon", 1.5, "nano_epsilon must be a whole number"),
        ("answers.0.nano_epsilon", True, "nano_epsilon must be a whole number"),
        ("answers.0.nano_epsilon", 10**16, "nano_epsilon must be a whole number"),
        ("answers.0.rows_per_person", 0, "rows_per_person must be a whole number"),
        ("answers.0.values", [1.0, 2.0], "has 2 numbers; the query asks for 14"),
        ("answers.0.values", "many", "values must be a list"),
        ("answers.0.values.3", float("nan"), "it is not JSON"),
        ("answers.0.values.3", float("inf"), "it is not JSON"),
        ("answers.0.values.3", 1e300, "values must be a number from -8,796,093,022,208 to"),
        ("answers.0.values.3", 10**400, "values must be a number from -8,796,093,022,208 to"),
        ("answers.0.values.3", None, "values must be a number from .*, not None"),
        ("answers.0.values.3", True, "values must be a number from .*, not True"),
        ("answers.1.source", "a", "'a' to 'acme' in campaign 'spring' is there twice"),
    ],
)
def test_a_newer_or_impossible_sketch_is_refused_by_name(
    where: str, value: Any, says: str, tmp_path: Path
) -> None:
    document = json.loads(json.dumps(sketch("a", "b").to_dict()))
    file = a_file(tmp_path / "sketch.json", json.dumps(document))
    assert Sketch.load(file) == sketch("a", "b")
    damage(document, where, value)
    file.write_text(json.dumps(document))
    with pytest.raises(privcal.InputError, match=says) as refused:
        Sketch.load(file)
    assert "sketch.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_sketch_cut_short_anywhere_is_told_by_name(tmp_path: Path) -> None:
    file = tmp_path / "sketch.json"
    sketch("a", "b").save(file)
    whole = file.read_bytes()
    for length in [*range(0, len(whole) - 2, 37), len(whole) - 2]:
        file.write_bytes(whole[:length])
        with pytest.raises(privcal.InputError, match=r"sketch\.json is not .*cut short"):
            Sketch.load(file)
    with pytest.raises(privcal.InputError, match=r"cannot read sketch .*none\.json"):
        Sketch.load(tmp_path / "none.json")


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_sketch_is_named_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    file = a_file(tmp_path / "s.json", content)
    with pytest.raises(privcal.InputError, match=r"s\.json is not a (privcal )?sketch") as refused:
        Sketch.load(file)
    assert "\n" not in str(refused.value)


def test_a_sketch_survives_its_file_to_the_last_bit(tmp_path: Path) -> None:
    values = tuple(float(v) for v in np.random.default_rng(3).normal(0, 1e3, QUERY.length) / 3)
    odd = SketchAnswer("ü/1", "acme", "spring", 333_333_333, values, 7)
    one = Sketch(Hats(1 / 3, QUERY.knots), (odd,), "модель")
    one.save(tmp_path / "s.json")
    assert Sketch.load(tmp_path / "s.json") == one
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["s.json"]
