"""Sketches of totals: of many sources' answers together, of which nobody saw a part."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration import methods
from privcal.calibration.methods.base import Batch, History
from privcal.calibration.sketch import Sketch, SketchAnswer, SketchReader, SketchTotal, merge
from privcal.secure.panel import Secure
from privcal.secure.round import NoiseLaw, Part, Round, Total
from privcal.trusted.queries import GRID, Hats
from privcal.trusted.question import Question
from tests.calibration.sketch.test_model import MODELS, alone, coverage, simulate
from tests.calibration.sketch.test_sketch import QUERY, damage, entry, sources
from tests.support.builders import a_file, random_scores

NANO = 10**9
LAW = NoiseLaw(1, honest=3, alone=10)


def values(seed: int, sources: int = 1, query: Hats = QUERY) -> tuple[float, ...]:
    """Sums of so many sources, as they might be opened."""
    drawn = np.random.default_rng(seed).integers(-GRID, 50 * GRID, query.length) * sources
    return tuple((drawn / GRID).tolist())


def total(
    *groups: str, campaign: str = "spring", seed: int = 0, ledgers: Any = None, **more: Any
) -> SketchTotal:
    """A total of sources with names of one letter: each group is a word of them."""
    parts = tuple(
        Part(tuple(names), values(seed + i, len(names))) for i, names in enumerate(groups)
    )
    facts = {"nano_epsilon": NANO, "noise": NoiseLaw(1, 3, 10, len(groups)), **more}
    ids = {name: f"{name}-id" for names in groups for name in names}
    asked = {"asker": "acme", "campaign": campaign, "ledgers": ids if ledgers is None else ledgers}
    return SketchTotal(parts=parts, **{**asked, **facts})


def sketch(*totals: SketchTotal, answers: Sequence[SketchAnswer] = (), **more: Any) -> Sketch:
    return Sketch(QUERY, tuple(answers), totals=totals, **more)


# --- what is read off it --------------------------------------------------------------------


def test_every_source_weighs_the_same_in_the_average() -> None:
    one, two = total("abcd"), total("efgh", "ijkl", "mnop", campaign="autumn", seed=5)
    alone = [entry("q", seed=30), entry("r", seed=31)]
    merged = sketch(one, two, answers=alone)
    middle = [
        sorted(column)[1]
        for column in zip(*([v / 4 for v in p.values] for p in two.parts), strict=True)
    ]
    exact = [
        (Fraction(a) + 12 * Fraction(m) + Fraction(x) + Fraction(y)) / 18
        for a, m, x, y in zip(
            one.parts[0].values, middle, alone[0].values, alone[1].values, strict=True
        )
    ]
    assert merged.average.tolist() == [float(mean) for mean in exact]
    assert merged.count == 18
    assert "2 answers and 2 totals of 16 answers of 18 sources" in repr(merged)


def test_the_noise_of_a_sum_of_independent_ones_adds_up() -> None:
    one, two = total("abcd", nano_epsilon=NANO // 2), total("efgh", campaign="autumn")
    alone = entry("q", seed=30, rows_per_person=2)
    exact = 4**2 * one.variance + 4**2 * two.variance + 2 * 2**2
    assert sketch(one, two, answers=[alone]).noise_variance == pytest.approx(exact / 9**2, 1e-12)
    assert sketch(one).noise_variance == one.variance
    # 2(|U|/h)/ε² and the floors' 2|U|/(alone·ε)², over |U|².
    assert one.variance == pytest.approx((2 * (4 / 3) * 4 + 2 * 4 * 4 / 100) / 16)


def test_each_source_is_charged_over_all_its_answers_and_against_all_others() -> None:
    named = entry("a", seed=9, campaign="own", ledger="a-id", nano_epsilon=NANO // 10)
    twice = sketch(
        total("abc", nano_epsilon=NANO // 10),
        total("bcd", campaign="autumn", seed=3, nano_epsilon=NANO // 5),
        answers=[named],
    )
    assert twice.spent == {"a": 0.2, "b": 0.3, "c": 0.3, "d": 0.2}
    assert twice.alone == {"a": 1.1, "b": 3.0, "c": 3.0, "d": 2.0}  # ten times, but for an answer
    assert twice.times == {"a": 2, "b": 2, "c": 2, "d": 1}
    assert twice.epsilon == 0.3


def test_one_name_at_two_ledgers_is_two_sources() -> None:
    other = total("abc", campaign="autumn", seed=3, ledgers={"a": "other-id"})
    spent = sketch(total("abc"), other).spent
    assert spent == {"a (a-id)": 1.0, "b (b-id)": 1.0, "c (c-id)": 1.0} | {
        "a (other-id)": 1.0, "b (b)": 1.0, "c (c)": 1.0,
    }  # fmt: skip


def test_rows_in_several_totals_are_not_counted_as_more() -> None:
    a, b = total("abcd"), total("abcd", campaign="autumn", seed=4)
    assert sketch(a).independent_answers == 4
    assert sketch(a, b).independent_answers == 4
    assert sketch(a, total("efgh", campaign="autumn", seed=4)).independent_answers == 8
    # Weights 2, 2, 1, 1, 1, 1 of 8: 64/12.
    half = total("abef", campaign="autumn", seed=4)
    assert sketch(a, half).independent_answers == 5
    # Of 15 sources in three groups the median says about as much as 11 in one.
    grouped = total("abcde", "fghij", "klmno")
    assert sketch(grouped).independent_answers == int(15 / 1.346) == 11
    history = History([], sources=15, noise=grouped.noise)
    assert history.independent == 11


@pytest.mark.parametrize("with_public", [False, True])
def test_the_same_numbers_and_noise_read_to_the_same_map_as_answers(
    with_public: bool, public: privcal.Scores
) -> None:
    """One total of 30 sources, and 30 answers at another ε, of equal averages and noise."""
    reader = SketchReader.of(public if with_public else None)
    query = reader.query
    law = NoiseLaw(1, honest=20, alone=10)
    names = [f"s{i}" for i in range(30)]
    sums = values(3, 30, query)
    summed = SketchTotal("acme", "c", NANO, (Part(tuple(names), sums),), law)
    # A source with noise of its own of the same variance: 2/ε² = 2(1/h + 1/alone²) at ε = 1.
    nano = round(NANO / np.sqrt(1 / 20 + 1 / 100))
    noise = np.random.default_rng(1).normal(size=(30, query.length))
    noise = np.round((noise - noise.mean(axis=0)) * GRID) / GRID
    noise[0] -= noise.sum(axis=0)
    each = np.array(sums) / 30 + noise
    answers = tuple(
        SketchAnswer(name, "acme", "c", nano, tuple(row))
        for name, row in zip(names, each.tolist(), strict=True)
    )
    one, other = Sketch(query, (), totals=(summed,)), Sketch(query, answers)
    assert one.average == pytest.approx(other.average, abs=1e-9)
    assert one.noise_variance == pytest.approx(other.noise_variance, rel=1e-8)
    clean = public if with_public else None
    a, b = one.fit(clean), other.fit(clean)
    assert a.map.log_odds == pytest.approx(b.map.log_odds, abs=1e-6)
    before, after = (fitted.evaluate().to_dict() for fitted in (a, b))
    assert before["ece_after"] == pytest.approx(after["ece_after"], abs=1e-4)
    # And with another law of noise, other bands: it is the total's own that was used.
    quiet = SketchTotal("acme", "c", NANO, summed.parts, NoiseLaw(1, 30, 1000))
    assert Sketch(query, (), totals=(quiet,)).noise_variance < 0.6 * one.noise_variance


@pytest.fixture(scope="module")
def public() -> privcal.Scores:
    return random_scores(400, seed=99)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_run_for_totals_leaves_a_sketch_that_reads_to_the_very_map_of_the_run(
    groups: int, tmp_path: Path
) -> None:
    method = methods.make("sketch", hats=7)
    law = NoiseLaw(2, honest=6, alone=7, groups=groups)
    batch = Batch(1, NANO // 3, np.random.default_rng(0), law, sources=31)
    rounds = method.run(batch)
    [ask] = next(rounds)
    names = [f"s{i}" for i in range(31)]
    parts = tuple(
        Part(tuple(names[g::groups]), values(g, len(names[g::groups]))) for g in range(groups)
    )
    question = Question("c", 0, 0, ask.nano_epsilon, ask.query)
    opened = Total(question, parts, law, {name: f"{name}-id" for name in names}, ("s3",))
    with pytest.raises(StopIteration) as stop:
        rounds.send(History([opened.average[None, :]], sources=31, noise=opened.noise))
    [found] = stop.value.value
    answered = [Round.of(opened)]
    made = method.sketch(answered, asker="acme", campaign="c", ledgers={}, rows_per_person=2)
    assert made is not None
    made.save(tmp_path / "s.json")
    again = Sketch.load(tmp_path / "s.json")
    assert again == made
    assert again.fit().map.log_odds == found.log_odds
    assert again.fit().map.provenance["answers"] == 31
    assert again.fit().map.provenance["totals"] == 1
    assert set(again.spent) == set(names)
    assert again.totals[0].ledgers == opened.ledgers


def test_a_notebook_shows_what_is_in_it_and_against_whom() -> None:
    shown = sketch(total("abc", "def", "ghi", nano_epsilon=NANO // 2))._repr_html_()
    assert "<td>9 sources (the median of 3 groups)</td>" in shown
    assert "<th>ε if everybody else works together</th><td>5</td>" in shown
    assert "everybody else" not in sketch(answers=[entry("z")])._repr_html_()


# --- merging --------------------------------------------------------------------------------


def test_the_order_of_merging_does_not_matter(tmp_path: Path) -> None:
    parts = [
        sketch(total("cab")),
        sketch(total("abc", "def", "ghi", campaign="autumn", seed=4)),
        sketch(answers=[entry("z", seed=50)]),
        sketch(total("xyz", seed=20)),  # of other sources, in the campaign of the first
    ]
    assert total("cab").parts == total("abc").parts
    whole = merge(*parts)
    whole.save(tmp_path / "whole.json")
    for order in itertools.permutations(parts):
        assert merge(*order) == merge(merge(*order[:2]), *order[2:]) == whole
        merge(*order).save(tmp_path / "other.json")
        assert (tmp_path / "other.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_an_answer_in_a_total_is_merged_once() -> None:
    one = sketch(total("abc"))
    says = r"the answer of 'a' to 'acme' in campaign 'spring', which is in a total of 3, is already"
    with pytest.raises(privcal.InputError, match=says):
        merge(one, one)
    # In another total of that campaign with other sources and other numbers, too.
    with pytest.raises(privcal.InputError, match=r"the answer of 'c' .* is already merged$"):
        merge(one, sketch(total("cde", seed=9)))
    # And by itself, before or after; a source is its ledger, whatever the name.
    by_itself = sketch(answers=[entry("renamed", seed=8, ledger="b-id")])
    with pytest.raises(privcal.InputError, match=r"the answer of 'renamed' .* is already merged$"):
        merge(one, by_itself)
    with pytest.raises(privcal.InputError, match=r"the answer of 'b' .* is already merged$"):
        merge(by_itself, one)
    with pytest.raises(privcal.InputError, match=r"the answer of 'b' .* is there twice"):
        sketch(*one.totals, answers=by_itself.answers)
    # In another campaign it is another answer.
    other = sketch(answers=[entry("b", seed=8, ledger="b-id", campaign="autumn")])
    assert merge(one, other).spent["b"] == 2.0


@pytest.mark.parametrize("grouped", [False, True])
def test_a_total_under_other_names_is_the_same_total(grouped: bool) -> None:
    one = total("abc", "def", "ghi") if grouped else total("abc")
    renamed = total(*(("jkl", "mno", "pqr") if grouped else ("xyz",)), campaign="autumn")
    with pytest.raises(privcal.InputError, match="equal to the last digit"):
        merge(sketch(one), sketch(renamed))
    last = one.parts[-1]
    as_answer = SketchAnswer("z", "acme", "autumn", NANO, last.values)
    with pytest.raises(privcal.InputError, match="equal to the last digit"):
        merge(sketch(one), sketch(answers=[as_answer]))


# --- the file -------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    made = sketch(
        total("abc", "def", "ghi"), total("abc", campaign="x", seed=7), answers=[entry("z")]
    )
    return json.loads(json.dumps(made.to_dict()))  # type: ignore[no-any-return]


def test_a_sketch_without_totals_is_written_as_before(tmp_path: Path) -> None:
    plain = sketch(answers=[entry("z")]).to_dict()
    assert plain["version"] == 2
    assert set(plain) == {"format", "version", "query", "model", "answers"}
    assert document()["version"] == 3


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("version", 2, "it has an unknown totals"),
        ("version", 5, "has version 5; this privcal reads version 2 and 3 and 4"),
        ("totals", ..., "it lacks totals"),
        ("rows", 17, "it has an unknown rows"),
        ("totals", {}, "its totals must be a list, not {}"),
        ("totals", [3], "total 1 must be an object, not 3"),
        ("totals.0.rows", 17, "total 1 has no 'rows'; there are asker"),
        ("totals.1.noise", ..., "total 2: noise is missing"),
        ("totals.0.asker", 3, "asker must be 1 to 200 printable characters"),
        ("totals.0.campaign", "a/b", "cannot contain a slash"),
        ("totals.0.campaign", ["spring"], "campaign must be 1 to 200 printable"),
        ("totals.0.nano_epsilon", 0, "nano_epsilon must be a whole number from 1"),
        ("totals.0.nano_epsilon", 1.5, "nano_epsilon must be a whole number from 1"),
        ("totals.0.parts", {}, "total 1: parts must be a list"),
        ("totals.0.parts", [], "it has 3 groups, but 0 parts"),
        ("totals.0.parts.0", 1, "total 1: parts must be an object, not 1"),
        ("totals.0.parts.0.rows", 1, "total 1: parts has no 'rows'; there are sources, values"),
        ("totals.0.parts.2.values", ..., "total 1: parts: values is missing"),
        ("totals.0.parts.0.sources", [], "the sources of a part must be names"),
        ("totals.0.parts.0.sources", "abc", "parts: sources must be a list"),
        ("totals.0.parts.0.sources.1", "", "the sources of a part must be names"),
        ("totals.0.parts.0.sources.1", 3, "sources must be text, not 3"),
        ("totals.0.parts.0.sources.1", "a", "'a' is in it twice"),
        ("totals.0.parts.0.sources.1", "i", "'i' is in it twice"),
        ("totals.0.parts.0.sources.1", "new", "it has a ledger of 'b', who is not in it"),
        ("totals.0.parts.0.values", [1.0], "its parts are of different lengths"),
        ("totals.1.parts.0.values", [1.0], "has 1 numbers; the query asks for 14"),
        ("totals.1.parts.0.values", "many", "parts: values must be a list"),
        ("totals.1.parts.0.values.3", 1e300, "values of a part must be sums that can be opened"),
        ("totals.1.parts.0.values.3", True, "values must be a number, not True"),
        ("totals.1.parts.0.values.3", None, "values must be a number, not None"),
        ("totals.0.noise", [], r"total 1: noise must be an object, not \[\]"),
        ("totals.0.noise.rows", 3, "total 1: noise has no 'rows'; there are alone"),
        ("totals.0.noise.honest", None, "total 1: noise: honest and alone are both"),
        ("totals.0.noise.honest", 0, "total 1: noise: honest must be a whole number"),
        ("totals.0.noise.honest", 4, "the honest in its noise must be a whole number from 1 to 3"),
        ("totals.0.noise.alone", 0, "total 1: noise: alone must be a whole number from 1"),
        ("totals.0.noise.rows_per_person", 10**6, "rows_per_person must be a whole number"),
        ("totals.0.noise.groups", 1, "it has 1 group, but 3 parts"),
        ("totals.1.noise.groups", 3, "it has 3 groups, but 1 parts"),
        ("totals.0.noise.groups", 4, "total 1: noise: groups must be one of"),
        ("totals.0.noise.groups", [3], "total 1: noise: groups must be a whole number"),
        ("totals.0.ledgers", [], "total 1: ledgers must be an object"),
        ("totals.0.ledgers.a", "", "ledgers 'a' must be a name"),
        ("totals.0.ledgers.a", 3, "ledgers 'a' must be text, not 3"),
        ("totals.0.ledgers.new", "id", "it has a ledger of 'new', who is not in it"),
        ("totals.0.ledgers.a", "b-id", "two of its sources have one ledger"),
        ("totals.1.campaign", "spring", "'a' to 'acme' in campaign 'spring', .* is there twice"),
    ],
)
def test_an_impossible_total_is_refused_by_name(
    where: str, value: Any, says: str, tmp_path: Path
) -> None:
    good = document()
    file = a_file(tmp_path / "sketch.json", json.dumps(good))
    assert json.dumps(Sketch.load(file).to_dict()) == json.dumps(good)
    damage(good, where, value)
    file.write_text(json.dumps(good))
    with pytest.raises(privcal.InputError, match=says) as refused:
        Sketch.load(file)
    assert "sketch.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def places(of: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ()
    return [path, *(p for name, part in inside for p in places(part, (*path, name)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_file_it_is_read_or_refused_in_a_sentence(data: Any) -> None:
    found = document()
    path = data.draw(st.sampled_from([p for p in places(found) if p]))
    at: Any = found
    for name in path[:-1]:
        at = at[name]
    if data.draw(st.booleans()):
        at[path[-1]] = data.draw(JSON)
    elif isinstance(at, dict):
        at[data.draw(st.text(max_size=5))] = at.pop(path[-1])
    else:
        at.append(data.draw(st.sampled_from(at)))
    if found.get("version") not in (2, 3):
        return  # the reader of documents refuses it
    with contextlib.suppress(privcal.InputError):  # and nothing else
        read = Sketch._parsed(found)
        assert Sketch._parsed(json.loads(json.dumps(read.to_dict()))) == read
        assert np.isfinite(read.average).all()
        assert read.noise_variance > 0


# --- from a real secure sum -----------------------------------------------------------------


def test_a_secure_calibration_leaves_a_sketch_of_its_total(tmp_path: Path, run: Any) -> None:
    pytest.importorskip("cryptography")
    asked = sources(9)
    results = [
        privcal.calibrate(asked, "sketch", 0.5, campaign=c, aggregation="secure", hats=6)
        for c in ("spring", "autumn")
    ]
    files = [tmp_path / f"{result.campaign}.json" for result in results]
    for result, file in zip(results, files, strict=True):
        assert result.sketch is not None
        result.sketch.save(file)
        again = Sketch.load(file)
        assert again == result.sketch
        assert again.fit().map.log_odds == result.map.log_odds
        assert again.answers == ()
        assert set(again.totals[0].ledgers.values()) == {s.ledger.id for s in asked}
    stdout, _ = run.ok("sketch", "merge", *files, "--out", tmp_path / "all.json")
    assert "2 totals of 18 answers of 9 sources" in stdout
    assert run("sketch", "merge", *files, files[0], "--out", tmp_path / "more.json")[0] == 2
    said = run.json("sketch", "show", tmp_path / "all.json")
    assert said["spent"] == {f"s{i}": 1.0 for i in range(9)}
    assert said["alone"] == {f"s{i}": 10.0 for i in range(9)}
    assert [t["groups"] for t in said["totals"]] == [[[f"s{i}" for i in range(9)]]] * 2
    assert {t["honest"] for t in said["totals"]} == {6}
    # What is in it, less the rows: the noise of two sums of shares, h = 6 and the floors at 10 ε.
    each = 9 * (2 / 0.5**2) * (1 / 6 + 1 / 100)
    assert said["noise_deviation"] == pytest.approx(np.sqrt(2 * each))
    stdout, _ = run.ok("sketch", "show", tmp_path / "all.json")
    assert "s0, s1, s2, s3, s4 and 4 more answered 2 times, for ε = 1 in all" in stdout
    for command in (
        ("sketch", "fit", tmp_path / "all.json", "--out", tmp_path / "map.json"),
        ("evaluate", tmp_path / "all.json", "--private"),
    ):
        run.ok(*command)


def test_a_secure_calibration_in_groups_leaves_a_sketch_of_their_median(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    given = Secure(groups=3)
    result = privcal.calibrate(sources(60, rows=10), "sketch", 0.5, aggregation=given)
    assert result.sketch is not None
    result.sketch.save(tmp_path / "s.json")
    again = Sketch.load(tmp_path / "s.json")
    assert again == result.sketch
    assert again.fit().map.log_odds == result.map.log_odds
    [opened] = again.totals
    assert [len(part.sources) for part in opened.parts] == [20, 20, 20]
    middle = np.sort([np.array(part.values) / 20 for part in opened.parts], axis=0)[1]
    assert again.average.tolist() == middle.tolist()


@pytest.mark.slow
def test_bands_cover_though_the_noise_has_heavier_tails_than_is_reckoned_with() -> None:
    """The reader takes noise for normal; here it is nearly one Laplace variable, the worst there is,
    of which 94 % are within 1.96 deviations."""
    law = NoiseLaw(honest=50, alone=1000)
    model, epsilon = MODELS["alone"], 0.1
    eta, density, averages = simulate(model, 50, 30, 1e6, 80, seed=6)
    noise = np.random.default_rng(7).laplace(scale=1 / epsilon, size=averages.shape) / 50
    stated = law.variance(NANO // 10, 50)
    assert noise.var() == pytest.approx(stated, rel=0.15)
    read = alone(model)
    assert 0.90 <= coverage(read.fit(averages + noise, 50, stated), eta, density) <= 0.985
    # And it would be noticed, were the noise said to be a third of what it is.
    assert coverage(read.fit(averages + noise, 50, stated / 9), eta, density) < 0.9
