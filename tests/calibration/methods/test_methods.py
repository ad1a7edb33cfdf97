"""The paper's methods, as generators over batches of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privcal
from privcal.calibration import methods
from privcal.calibration.fit import fit_local
from privcal.calibration.maps import Map, TemperatureMap
from privcal.calibration.methods.base import Ask, Batch, History, Rounds, drive
from privcal.secure.round import NoiseLaw
from privcal.trusted.epsilon import NANO
from privcal.trusted.queries import GRID, Gap, Query
from privcal.trusted.scores import FloatArray
from tests.support.builders import a_source, random_scores

EPSILON = 3 * NANO + 5


def batch(runs: int = 1) -> Batch:
    return Batch(runs, EPSILON, np.random.default_rng(0))


def golden_section_as_written(
    f: Callable[[float], float], lo: float, hi: float, shrinkages: int
) -> tuple[float, list[float]]:
    """The paper's listing, one run at a time: the midpoint, and where f was asked."""
    r = (math.sqrt(5) - 1) / 2
    t0, t1 = hi - r * (hi - lo), lo + r * (hi - lo)
    v0, v1 = f(t0), f(t1)
    asked = [t0, t1]
    for k in range(shrinkages):
        last = k == shrinkages - 1
        if v0 >= v1:
            lo, t0, v0 = t0, t1, v1
            t1 = lo + r * (hi - lo)
            if not last:
                v1 = f(t1)
                asked.append(t1)
        else:
            hi, t1, v1 = t1, t0, v0
            t0 = hi - r * (hi - lo)
            if not last:
                v0 = f(t0)
                asked.append(t0)
    return (lo + hi) / 2, asked


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.3, 3.5), min_size=1, max_size=6),
    st.integers(1, 12),
    st.sampled_from(["valley", "flat", "steps"]),
)
def test_golden_section_is_the_papers_listing_in_every_run_of_a_batch(
    optima: list[float], shrinkages: int, shape: str
) -> None:
    def objective(optimum: float) -> Callable[[float], float]:
        return {
            "valley": lambda t: abs(t - optimum),
            "flat": lambda t: 0.0,  # ties everywhere: the lower end moves
            "steps": lambda t: math.floor(4 * abs(t - optimum)),
        }[shape]

    asked: list[np.ndarray] = []
    history: list[np.ndarray] = []

    def answer(asks: Sequence[Ask]) -> list[np.ndarray]:
        for ask in asks:
            assert ask.temperatures is not None
            asked.append(ask.temperatures)
            history.append(
                np.array([[objective(o)(t)] for o, t in zip(optima, ask.temperatures, strict=True)])
            )
        return history

    method = methods.make("nll-t", iterations=shrinkages)
    found = drive(method.run(batch(len(optima))), answer)
    for run, optimum in enumerate(optima):
        expected, where = golden_section_as_written(objective(optimum), 0.5, 3.0, shrinkages)
        assert found[run].temperature == pytest.approx(expected, abs=1e-12)
        assert [t[run] for t in asked] == pytest.approx(where, abs=1e-12)
    assert len(asked) == shrinkages + 1


@pytest.mark.parametrize("name", [n for n in methods.names() if n != "one-source"])
@pytest.mark.parametrize("epsilon", [EPSILON, NANO, 10**8 + 1])
def test_the_questions_of_a_method_cost_exactly_epsilon(name: str, epsilon: int) -> None:
    shares: list[int] = []
    history = History(sources=1)

    def answer(asks: Sequence[Ask]) -> History:
        for ask in asks:
            shares.append(ask.nano_epsilon)
            history.append(np.zeros((1, ask.query.length)))
        return history

    drive(methods.make(name).run(Batch(1, epsilon, np.random.default_rng(0))), answer)
    assert sum(shares) == (0 if name == "uncalibrated" else epsilon)
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("name", [n for n in methods.names() if n != "one-source"])
@pytest.mark.parametrize("rows_per_person", [None, 2])
def test_the_ledgers_add_up_to_exactly_epsilon_after_every_method(
    name: str, rows_per_person: int | None
) -> None:
    person = None if rows_per_person is None else [str(i % 7) for i in range(20)]
    policy = privcal.Policy(epsilon=1.0, rows_per_person=rows_per_person or 1)
    sources = [
        privcal.Source(random_scores(20, seed=i, person=person), policy, ledger=None)
        for i in range(3)
    ]
    result = privcal.calibrate(sources, name, 0.700000003)  # no whole number of parts divides it
    cost = 0 if name == "uncalibrated" else 700_000_003
    assert [s.ledger.nano_spent for s in sources] == [cost] * 3
    assert result.spent == (cost / NANO,) * 3


def without_noise(name: str, scores: privcal.Scores, **options: object) -> privcal.Map:
    history = History(sources=1)

    def answer(asks: Sequence[Ask]) -> History:
        for ask in asks:
            query = ask.for_run(0)
            history.append(query.contributions(scores).sum(query.length)[None, :] / GRID)
        return history

    return drive(methods.make(name, **options).run(batch()), answer)[0]


@pytest.mark.parametrize(
    ("name", "objective", "near"), [("acc-t", "accuracy", 0.005), ("nll-t", "nll", 0.02)]
)
def test_without_noise_a_long_search_finds_the_exact_fit(
    name: str, objective: str, near: float
) -> None:
    # (The private NLL is clipped at 10 for each row; none of these comes near it.)
    scores = random_scores(3000, seed=4)
    exact = privcal.fit_temperature(scores, objective, (0.5, 3.0)).temperature
    found = without_noise(name, scores, iterations=20)
    assert found.temperature == pytest.approx(exact, abs=near)


def test_without_noise_ece_t_finds_a_low_calibration_error() -> None:
    scores = random_scores(3000, seed=4)
    exact = privcal.fit_temperature(scores, "ece", (0.5, 3.0)).value
    found = without_noise("ece-t", scores, iterations=20)
    assert privcal.ece(found.confidence(scores), scores.correct) < exact + 0.02


@pytest.mark.parametrize("name", ["histogram-binning", "one-hot-binning"])
def test_without_noise_binning_gives_each_bin_its_accuracy(name: str) -> None:
    scores = random_scores(400, seed=5)
    own = TemperatureMap(1.0).confidence(scores)
    found = without_noise(name, scores, bins=10)
    for b in range(10):
        inside = np.minimum(np.floor(own * 10), 9) == b
        if inside.any():
            assert found.values[b] == pytest.approx(scores.correct[inside].mean())
        else:
            assert found.values[b] is None


def test_a_bin_without_a_positive_noisy_total_keeps_each_samples_confidence() -> None:
    answer = np.array([[5.0, 3.0, 2.0, -1.0, 1.0, -3.0, 0.0, 2.0]])  # 4 correct, 4 total
    rounds = methods.make("histogram-binning", bins=4).run(batch())
    [found] = drive(rounds, lambda asks: History([answer], sources=1))
    assert found.values == (1.0, None, None, 0.0)  # 5/1 clipped; −3 and 0 unknown; −1/2 clipped
    logits = np.log([[0.3, 0.3, 0.4], [0.9, 0.05, 0.05], [0.6, 0.3, 0.1]])
    assert found.confidence(logits) == pytest.approx([0.4, 0.0, 0.6])


def test_histogram_binning_asks_once_with_all_of_epsilon() -> None:
    for name in ("histogram-binning", "one-hot-binning"):
        [ask] = next(methods.make(name).run(batch()))
        assert ask.nano_epsilon == EPSILON


def test_one_source_cannot_be_asked_for_from_afar(scores: privcal.Scores) -> None:
    source = a_source(scores)
    with pytest.raises(privcal.InputError, match=r"--bounds 0\.5 3"):
        privcal.calibrate([source], "one-source")
    assert source.spent == 0


@pytest.mark.parametrize("objective", ["accuracy", "nll"])
def test_one_source_is_the_owners_exact_fit_within_the_papers_range(objective: str) -> None:
    scores = random_scores(200, seed=6)
    exact = privcal.fit_temperature(scores, objective, (0.5, 3.0))
    assert fit_local(scores, objective) == exact
    perfect = privcal.Scores(logits=np.eye(3) * 4, labels=[0, 1, 2])
    assert fit_local(perfect, objective).temperature == 0.5


def test_the_defaults() -> None:
    """Of the search our own (`python -m benchmarks ranges`), of the rest the paper's."""
    for name, search in {
        "acc-t": (4, (0.5, 6.0), "log"),
        "nll-t": (3, (0.5, 3.0), "linear"),
        "ece-t": (3, (0.5, 3.0), "linear"),
    }.items():
        method = methods.make(name)
        assert (method.iterations, method.bounds, method.spacing) == search
        assert method.search == "golden"
    assert methods.make("nll-t").clip == 10
    assert methods.make("ece-t").bins == methods.make("histogram-binning").bins == 15


def test_every_method_of_the_paper_is_there() -> None:
    assert methods.names()[:6] == [
        "uncalibrated",
        "one-source",
        "histogram-binning",
        "ece-t",
        "nll-t",
        "acc-t",
    ]


RIGHT = privcal.Scores(logits=np.eye(60) * 5, labels=np.arange(60))
USELESS = privcal.Scores(logits=np.tile([[0.0, 9.0]], (60, 1)), labels=[0, 1] * 30)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("acct", {}, "there is no method 'acct'; there are uncalibrated"),
        (
            "acc-t",
            {"bins": 3},
            "has no option 'bins'; its options are iterations=4 bounds=0.5,6 search=golden spacing=log",
        ),
        ("uncalibrated", {"x": 1}, "it has no options"),
        ("acc-t", {"iterations": 0}, "iterations must be"),
        ("acc-t", {"iterations": 2.0}, "iterations must be"),
        ("acc-t", {"bounds": (3.0, 0.5)}, "bounds must be"),
        ("acc-t", {"bounds": (0.0, 1.0)}, "temperature must be"),
        ("acc-t", {"bounds": 2.0}, "bounds must be two temperatures"),
        ("acc-t", {"bounds": (1, 2, 3)}, "bounds must be two temperatures"),
        ("acc-t", {"bounds": ("1", "2")}, "bounds must be a number"),
        ("acc-t", {"bounds": (1.0, float("nan"))}, "bounds must be a number"),
        ("acc-t", {"search": "golden section"}, "search must be one of golden, grid"),
        ("acc-t", {"search": ["golden"]}, "search must be one of golden, grid"),
        ("acc-t", {"spacing": "sqrt"}, "spacing must be one of linear, log"),
        ("nll-t", {"clip": 0}, "clip must be above 0"),
        ("nll-t", {"clip": 1001}, "clip must be a number from 0 to 1,000"),
        ("nll-t", {"clip": "10"}, "clip must be a number"),
        ("nll-t", {"iterations": 101}, "iterations must be a whole number from 1 to 100"),
        ("ece-t", {"bins": 0}, "bins must be"),
        ("ece-t", {"bins": 15.0}, "bins must be"),
        ("ece-t", {"search": 1}, "search must be"),
        ("histogram-binning", {"bins": 1001}, "bins must be"),
        ("one-hot-binning", {"bins": True}, "bins must be"),
        ("sketch", {"public": "clean.npz"}, "public must be Scores, not str"),
        ("sketch", {"public": random_scores(49)}, "public scores must be at least 50 rows, not 49"),
        ("sketch", {"public": RIGHT}, "the public rows are all predicted rightly"),
        ("sketch", {"public": USELESS}, "calibrated by no temperature"),
        ("sketch", {"rows_per_person": 2}, "has no option 'rows_per_person'"),
        ("one-source", {}, "the owner runs privcal fit"),
    ],
)
def test_whatever_is_wrong_with_a_name_or_its_options_is_said_by_make(
    name: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(privcal.InputError, match=re.escape(says)):
        methods.make(name, **options)


def test_options_are_recorded_as_given_and_as_plain_values() -> None:
    assert methods.make("ece-t").options() == {}
    made = methods.make("ece-t", bins=np.int64(15), bounds=[1, 2])
    assert made.options() == {"bounds": [1.0, 2.0], "bins": 15}  # also where it is the default
    assert type(made)(bins=7).options() == {"bins": 7}  # however it was made
    assert methods.make("sketch", public=random_scores(60)).options() == {"public": "60 rows"}


class Thing:
    """Something that JSON does not know."""


@dataclass(frozen=True)
class Unusual(methods.Method):
    limit: float = 1.0
    sides: tuple[tuple[int, ...], ...] = ()
    thing: object = None
    steps: object = None

    def run(self, batch: Batch) -> Rounds:
        [_] = yield [Ask(Gap(1.0), batch.nano_epsilon)]
        return [TemperatureMap(1.0)] * batch.runs


def test_whatever_an_option_is_the_map_that_was_paid_for_can_be_saved(tmp_path: Path) -> None:
    unusual = Unusual(math.inf, ((1,), (1, 2)), Thing(), np.arange(2))
    source = a_source(20, epsilon=1.0)
    privcal.calibrate([source], unusual, 1.0).map.save(tmp_path / "map.json")
    assert privcal.load_map(tmp_path / "map.json").provenance["options"] == {
        "limit": "inf", "sides": [[1], [1, 2]], "thing": "Thing", "steps": [0, 1]
    }  # fmt: skip


def test_a_method_that_is_made_is_run_as_it_is() -> None:
    made = methods.make("ece-t", bins=7)
    result = privcal.calibrate([a_source()], made)
    assert result.method == "ece-t"
    assert result.rounds[0].query.bins == 7
    assert result.map.provenance["options"] == {"bins": 7}
    with pytest.raises(privcal.InputError, match=r"ece-t is made already"):
        privcal.calibrate([a_source()], made, bins=8)


def test_only_sketch_has_a_use_for_public_rows() -> None:
    assert [name for name in methods.names() if methods.find(name).takes_public] == ["sketch"]
    for name in methods.names():
        has_option = "public" in {f.name for f in fields(methods.find(name))}
        assert methods.find(name).takes_public == has_option


def test_a_class_that_cannot_be_a_method_is_refused() -> None:
    class Other:
        def run(self, batch: Batch) -> Rounds:
            raise NotImplementedError

    @dataclass(frozen=True)
    class Named(methods.Method):
        name: str = "x"

        def run(self, batch: Batch) -> Rounds:
            raise NotImplementedError

    before = methods.names()
    with pytest.raises(privcal.InputError, match=r"derived from privcal.methods.Method"):
        methods.register("other")(Other)
    with pytest.raises(privcal.InputError, match="cannot have an option name"):
        methods.register("named")(Named)
    assert methods.names() == before


def test_a_map_that_no_file_could_hold_is_refused_before_anybody_is_asked() -> None:
    class Unregistered(TemperatureMap):
        pass

    class Careless(methods.Method):
        name = "careless"

        def run(self, batch: Batch) -> Rounds:
            yield [Ask(Gap(), batch.nano_epsilon, np.ones(batch.runs))]
            return [Unregistered(1.0)] * batch.runs

    source = a_source()
    with pytest.raises(privcal.InputError, match="careless returns a Unregistered, which is no"):
        privcal.calibrate([source], Careless())
    assert source.spent == 0


def test_the_noise_that_a_sketch_reckons_with_grows_with_the_rows_of_a_person() -> None:
    """20 rows are clearly there under noise of deviation 1.4; under ten times that they are not."""
    answer = np.array([[0, 0, 0, 0, 5, 0, 0, 0, 0, 5, 10, 0.0]])
    for rows, informative in ((1, True), (10, False)):
        given = Batch(1, NANO, np.random.default_rng(0), noise=NoiseLaw(rows))
        rounds = methods.make("sketch").run(given)
        history = History([answer], sources=1, noise=NoiseLaw(rows))
        [found] = drive(rounds, lambda asks, history=history: history)
        assert found.informative is informative


def test_a_new_method_is_one_registered_class() -> None:
    @methods.register("half")
    @dataclass(frozen=True)
    class Half(methods.Method):
        def run(self, batch: Batch) -> Rounds:
            yield from ()
            return [TemperatureMap(0.5)] * batch.runs

    try:
        result = privcal.calibrate([a_source(3)], "half")
        assert result.map.temperature == 0.5
        assert "half" in methods.names()
        with pytest.raises(privcal.InputError, match="already registered"):
            methods.register("half")(Half)
    finally:
        del methods.base._METHODS["half"]


ASKING: list[tuple[str, dict[str, int]]] = [
    *((name, {}) for name in methods.names() if name not in ("uncalibrated", "one-source")),
    ("sketch", {"event": 1}),
    ("sketch", {"class_offsets": True}),
]


@pytest.mark.parametrize(("name", "options"), ASKING, ids=str)
def test_a_method_reads_averages_and_of_their_noise_the_variance_alone(
    name: str, options: dict[str, int]
) -> None:
    """Whether the average is that of a secure sum, or of answers with noise of their own, of which
    the variance is the same: 1/20 + 1/5² = 0.3², so 0.3 of the ε buys it. One map comes of both."""
    given: dict[str, Any] = dict(options)
    if "class_offsets" in given:
        given["public"] = random_scores(400, seed=99)
    rows, sources = random_scores(3000, seed=4), 30

    def averages(query: Query) -> FloatArray:
        return query.contributions(rows).sum(query.length)[None, :] / GRID / sources

    def found(noise: NoiseLaw, nano: int) -> tuple[Map, list[Query], list[int]]:
        history = History(sources=sources, noise=noise)
        asked = []

        def answer(asks: Sequence[Ask]) -> History:
            asked.extend((ask.for_run(0), ask.nano_epsilon) for ask in asks)
            history.extend(averages(ask.for_run(0)) for ask in asks)
            return history

        batch = Batch(1, nano, np.random.default_rng(0), noise, sources, rows_per_source=100)
        [map] = drive(methods.make(name, **given).run(batch), answer)
        return map, [query for query, _ in asked], [cost for _, cost in asked]

    secure, queries, costs = found(NoiseLaw(1, honest=20, alone=5), 3 * NANO)
    each, same, more = found(NoiseLaw(), 10 * NANO)
    assert queries == same
    assert (sum(costs), sum(more)) == (3 * NANO, 10 * NANO)
    ours, theirs = secure.to_dict(), each.to_dict()
    assert ours.keys() == theirs.keys()
    for field_name in ours.keys() - {"provenance"}:
        assert ours[field_name] == approx_or_equal(theirs[field_name]), field_name


PUBLIC = random_scores(400, seed=99)
SKETCHES: tuple[dict[str, Any], ...] = (
    {},
    {"hats": 6},
    {"event": 1, "unchanged": 0.1},
    {"rows_per_source": 5000.0},
    {"public": PUBLIC, "leave_alone": True},
    {"public": PUBLIC, "event": 2},
    {"public": PUBLIC, "class_offsets": True},
)


@st.composite
def any_options(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Options with which a method asks differently."""
    if name == "sketch":
        return draw(st.sampled_from(SKETCHES))
    among = {field.name for field in fields(methods.find(name))}
    options: dict[str, st.SearchStrategy[Any]] = {
        "iterations": st.integers(1, 7),
        "search": st.sampled_from(["golden", "grid"]),
        "spacing": st.sampled_from(["linear", "log"]),
        "bounds": st.sampled_from([(0.5, 3.0), (0.01, 100.0)]),
        "bins": st.integers(1, 40),
        "clip": st.sampled_from([1.0, 20.0]),
    }
    return {name: draw(values) for name, values in options.items() if name in among}


@pytest.mark.parametrize("name", [n for n in methods.names() if n != "one-source"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_plan_states_what_a_run_asks_whatever_the_answers(name: str, data: st.DataObject) -> None:
    """Kinds and costs, round by round, and all that does not depend on answers; its kind of map too."""
    method = methods.make(name, **data.draw(any_options(name)))
    batch = Batch(
        runs=1,
        nano_epsilon=data.draw(st.integers(1000, 10**12)),
        rng=np.random.default_rng(0),
        noise=data.draw(st.sampled_from([NoiseLaw(), NoiseLaw(1, honest=20, alone=5)])),
        sources=data.draw(st.integers(20, 500)),
        rows_per_source=10**6 if getattr(method, "class_offsets", False) else None,
    )
    if getattr(method, "class_offsets", False):
        batch = replace(batch, nano_epsilon=max(batch.nano_epsilon, NANO))
    rng = np.random.default_rng(data.draw(st.integers(0, 10)))
    size = data.draw(st.sampled_from([0.0, 1.0, 100.0]))
    history = History(sources=batch.sources, noise=batch.noise)
    asked: list[Sequence[Ask]] = []

    def answer(asks: Sequence[Ask]) -> History:
        asked.append(asks)
        history.extend(rng.normal(size / 3, size, (1, ask.query.length)) for ask in asks)
        return history

    def known(rounds: Sequence[Sequence[Ask]]) -> list[list[tuple[str, int]]]:
        return [[(a.for_run(0).fixed(), a.nano_epsilon) for a in asks] for asks in rounds]

    plan = method.plan(batch)
    with np.errstate(all="ignore"):
        maps = drive(method.run(batch), answer)
    assert known(plan.rounds) == known(asked)
    for stated, real in zip(plan.rounds[:1], asked, strict=False):  # nothing is answered yet
        assert [a.for_run(0) for a in stated] == [a.for_run(0) for a in real]
    assert sum(a.nano_epsilon for asks in asked for a in asks) in (0, batch.nano_epsilon)
    assert {type(map) for map in maps} <= set(plan.makes)


@pytest.mark.parametrize("name", ["acc-t", "ece-t", "nll-t", "sketch"])
@pytest.mark.parametrize("options", [{}, {"search": "grid"}], ids=str)
def test_a_stated_plan_is_the_one_that_trying_finds(name: str, options: dict[str, Any]) -> None:
    if name == "sketch" and options:
        return
    method = methods.make(name, **options)
    stated, tried = method.plan(batch()), methods.Method.plan(method, batch())
    assert stated.makes == tried.makes
    assert [[a.for_run(0) for a in asks] for asks in stated.rounds] == [
        [a.for_run(0) for a in asks] for asks in tried.rounds
    ]


def test_a_kind_of_map_that_no_file_could_hold_is_refused_where_a_plan_states_it() -> None:
    class Unregistered(TemperatureMap):
        pass

    class Planned(methods.Method):
        name = "planned"

        def plan(self, batch: Batch) -> methods.Plan:
            return methods.Plan([[Ask(Gap(), batch.nano_epsilon)]], (Unregistered,))

        def run(self, batch: Batch) -> Rounds:
            raise AssertionError("it is not tried")

    source = a_source()
    with pytest.raises(privcal.InputError, match="planned returns a Unregistered, which is no"):
        privcal.calibrate([source], Planned())
    assert source.spent == 0


def approx_or_equal(value: Any) -> Any:
    """Numbers to the digits that the last bit of a variance leaves."""
    if isinstance(value, list):
        return [approx_or_equal(part) for part in value]
    return pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
