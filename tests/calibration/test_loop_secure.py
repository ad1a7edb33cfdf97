"""A calibration by secure sums: the same map as by answers, with less noise, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="secure sums need cryptography: privcal[secure]")

import privcal
from privcal import CalibrationError, InputError, Source
from privcal.calibration.loop import Progress, SourceDropped, Stopped
from privcal.data.datasets import cifar10c
from privcal.secure.local import LocalWay
from privcal.secure.panel import Secure, SecurePanel
from privcal.trusted.policy import SecureRules
from privcal.trusted.queries import GRID
from tests.support.builders import a_source, python, random_scores
from tests.support.odd_way import GONE, OddWay, gone, make_sources, only

METHODS = [name for name in privcal.methods.names() if name not in ("uncalibrated", "one-source")]


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_every_method_gets_the_averages_and_the_map_it_gets_from_answers(
    no_noise: None, method: str
) -> None:
    # The sketch asks more finely where there is less noise, so its hats are fixed.
    options: dict[str, Any] = {"hats": 6} if method == "sketch" else {}
    each = privcal.calibrate(make_sources(5), method, 1.0, seed=0, **options)
    secure = privcal.calibrate(
        make_sources(5), method, 1.0, seed=0, aggregation="secure", **options
    )
    assert len(secure.rounds) == len(each.rounds)
    for ours, theirs in zip(secure.rounds, each.rounds, strict=True):
        assert ours.question.query == theirs.question.query
        assert ours.total is not None
        assert np.allclose(
            ours.total.average, np.mean(list(theirs.answers.values()), axis=0), rtol=1e-12, atol=0
        )
    scores = random_scores(50, seed=99)
    if method != "sketch":  # whose map goes by the law of the noise, too
        assert np.allclose(secure.map.confidence(scores), each.map.confidence(scores))
    assert secure.spent == each.spent == (1.0,) * 5


def test_the_noise_in_the_averages_is_what_the_law_says() -> None:
    squares = []
    for _ in range(12):
        sources = make_sources(8, epsilon=10)
        [asked] = privcal.calibrate(sources, "one-hot-binning", 2.0, aggregation="secure").rounds
        assert asked.total is not None
        exact = sum(source._exact(asked.query) for source in sources) / GRID / 8
        squares += list((asked.total.average - exact) ** 2 / asked.total.variance)
    # 360 numbers with tails like Laplace's: the mean of squares is 1 within about .12, and would
    # be 4.8 with the noise of each source.
    assert 0.6 < np.mean(squares) < 1.5


def test_with_many_sources_it_comes_nearer_to_the_truth_than_answers() -> None:
    scores = cifar10c("motion_blur")
    rows = np.random.default_rng(0).permutation(len(scores))[: 20 * 40]
    parts = np.split(rows, 20)

    def off(aggregation: str) -> float:
        sources = [a_source(scores.take(part)) for part in parts]
        found = privcal.calibrate(sources, "one-hot-binning", 0.2, aggregation=aggregation)
        [asked] = found.rounds
        exact = sum(source._exact(asked.query) for source in sources) / GRID / 20
        got = (
            np.mean(list(asked.answers.values()), axis=0)
            if asked.total is None
            else asked.total.average
        )
        return float(np.sqrt(np.mean((got - exact) ** 2)))

    assert off("secure") < 0.6 * off("each")


def test_the_result_says_who_answered_and_what_it_cost_against_whom() -> None:
    result = privcal.calibrate(make_sources(8), "sketch", 0.5, aggregation="secure")
    assert result.spent == (0.5,) * 8
    assert result.alone == 5.0
    assert result.answered == 8
    [asked] = result.rounds
    assert asked.answers == {}
    assert asked.total is not None
    assert result.noise == asked.total.noise
    facts = result.map.provenance
    assert facts["aggregation"] == "secure"
    assert (facts["colluding"], facts["honest"], facts["alone"]) == (2, 5, 10)
    assert facts["answered"] == [8]
    assert result.metrics()["epsilon_alone"] == 5.0
    assert "against all others together" in result._repr_html_()
    assert result.sketch is not None
    assert result.sketch.totals[0].noise == asked.total.noise


def test_of_answers_it_says_nothing_of_that_kind() -> None:
    result = privcal.calibrate(make_sources(3), "one-hot-binning", 0.5)
    assert (result.noise, result.alone) == (None, None)
    assert "aggregation" not in result.map.provenance
    assert "epsilon_alone" not in result.metrics()
    assert "all others" not in result._repr_html_()


def test_a_named_campaign_asked_again_replays_its_totals_for_free() -> None:
    sources = make_sources(5)
    asked: Any = {"epsilon": 1.0, "campaign": "spring", "aggregation": "secure"}
    first = privcal.calibrate(sources, "acc-t", **asked)
    again = privcal.calibrate(sources, "acc-t", **asked)
    assert [one.total for one in first.rounds] == [one.total for one in again.rounds]
    assert [source.spent for source in sources] == [1.0] * 5


def test_a_source_that_cannot_pay_is_left_out_before_anybody_is_charged() -> None:
    sources = [*make_sources(8), *make_sources(9, epsilon=0.3)[8:]]
    with pytest.warns(SourceDropped, match="s08 is not asked: over_request_limit"):
        result = privcal.calibrate(sources, "sketch", 0.5, aggregation="secure")
    assert result.dropped == {"s08": "over_request_limit"}
    assert result.spent == (0.5,) * 8 + (0.0,)


def test_a_source_that_fails_is_dropped_and_may_have_been_charged() -> None:
    way = OddWay(make_sources(10), share=only("s03", then=gone))
    with pytest.warns(SourceDropped, match="s03 left in round 1"):
        result = privcal.calibrate(SecurePanel(way), "sketch", 0.5)
    assert result.dropped == {"s03": "absent"}
    assert result.spent == (0.5,) * 10
    assert result.map.provenance["sources"] == 9


def test_a_run_that_cannot_finish_says_what_it_cost() -> None:
    way = OddWay(make_sources(10), open=lambda *_: GONE)
    with pytest.raises(CalibrationError) as e:
        privcal.calibrate(SecurePanel(way), "sketch", 0.5, campaign="spring")
    said = str(e.value)
    assert "it cost epsilon 0.5 at 10 sources, and 10 times that against all others" in said
    assert "ask again as campaign spring" in said
    assert e.value.spent == (0.5,) * 10


def test_a_sum_that_nobody_can_have_any_more_ends_its_campaign_and_says_so_by_a_code() -> None:
    way = OddWay(make_sources(10), open=lambda *_: GONE)
    with pytest.raises(Stopped) as e:
        privcal.calibrate(SecurePanel(way), "sketch", 0.5)
    assert (e.value.codes, e.value.final) == (frozenset({"absent"}), False)
    way = OddWay(make_sources(10))
    way.max_rows = -(10**9)  # fewer than nobody has
    with pytest.raises(Stopped, match="a new one is charged anew") as e:
        privcal.calibrate(SecurePanel(way), "sketch", 0.5)
    assert (e.value.codes, e.value.final) == (frozenset(), True)


def test_a_search_that_loses_a_source_ends_before_the_next_charge() -> None:
    sources = make_sources(10)

    class Leaving(OddWay):
        def offer(self, terms: Any, questions: Any) -> dict[str, str]:
            refused = super().offer(terms, questions)
            return refused | ({"s04": "over_budget"} if self.sent else {})

    with pytest.raises(CalibrationError, match=r"s04 does not take part .over_budget.; nobody was"):
        privcal.calibrate(SecurePanel(Leaving(sources)), "acc-t", 1.0)
    [spent] = {source.spent for source in sources}
    assert 0 < spent <= 0.2 + 1e-9


def test_too_few_sources_are_refused_for_nothing() -> None:
    sources = make_sources(2)
    with pytest.raises(InputError, match="at least 3 sources, and there are 2"):
        privcal.calibrate(sources, "sketch", aggregation="secure")
    poor = make_sources(5, epsilon=0.1)[2:]
    with pytest.raises(CalibrationError, match="nobody was asked and nothing charged"):
        privcal.calibrate([*sources, *poor], "sketch", aggregation="secure")
    assert {source.spent for source in sources} == {0.0}


def test_min_sources_holds_for_totals_too() -> None:
    way = OddWay(make_sources(10), share=only("s03", then=gone))
    with (
        pytest.warns(SourceDropped),
        pytest.raises(CalibrationError, match="only 9 of 10 sources are left"),
    ):
        privcal.calibrate(SecurePanel(way), "sketch", 0.5, min_sources=10)


def test_progress_tells_the_stage() -> None:
    steps: list[Progress] = []
    privcal.calibrate(make_sources(4), "sketch", aggregation="secure", progress=steps.append)
    assert [step.stage for step in steps] == ["share"] * 4 + ["check"] * 4 + ["open"] * 4
    assert [step.answered for step in steps] == [1, 2, 3, 4] * 3
    assert {step.sources for step in steps} == {4}


def test_sources_of_persons_are_protected_by_the_largest_number_of_their_rows() -> None:
    def source(number: int, rows: int) -> Source:
        scores = random_scores(20, seed=number, person=[f"p{i // 4}" for i in range(20)])
        policy = privcal.Policy(rows_per_person=rows)
        return Source(scores, policy, ledger=None, name=f"s{number}")

    sources = [source(number, rows) for number, rows in enumerate([1, 3, 2, 1])]
    result = privcal.calibrate(sources, "sketch", aggregation="secure")
    assert result.noise is not None
    assert result.noise.rows_per_person == 3
    assert result.map.provenance["rows_per_person"] == 3


@pytest.mark.filterwarnings("ignore::privcal.calibration.loop.SourceDropped")
def test_owners_who_want_secure_sums_alone_are_asked_in_them() -> None:
    rules = SecureRules(colluding=1, required=True)
    sources = make_sources(5, secure=rules)
    with pytest.raises(CalibrationError, match="nothing leave but in secure sums"):
        privcal.calibrate(sources, "sketch")
    assert privcal.calibrate(sources, "sketch", aggregation="secure").answered == 5


@pytest.mark.parametrize("aggregation", ["all", None, 3, "Secure"])
def test_what_is_no_aggregation_is_refused(aggregation: Any) -> None:
    with pytest.raises(InputError, match="aggregation must be one of each, secure"):
        privcal.calibrate(make_sources(3), "sketch", aggregation=aggregation)


def test_panels_without_secure_sums_are_refused() -> None:
    class Only:
        names, asker, rows_per_person, sources = ("a",), "local", 1, 1
        rows_per_source = None

        def ask(self, names: Any, question: Any) -> Any: ...

    with pytest.raises(InputError, match="take no part in secure sums"):
        privcal.calibrate(Only(), "sketch", aggregation="secure")  # type: ignore[arg-type]


def test_a_way_is_asked_by_secure_sums() -> None:
    way: Any = LocalWay(make_sources(4))
    result = privcal.calibrate(way, "sketch", aggregation=Secure(needed=4))
    assert result.noise is not None
    assert result.noise.honest == 3


def test_without_cryptography_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import privcal, numpy as np\n"
        "scores = privcal.Scores(logits=np.eye(3), labels=[0, 1, 1])\n"
        "sources = [privcal.Source(scores, ledger=None, name=n) for n in 'abc']\n"
        "print(privcal.calibrate(sources, 'acc-t').answered)\n"
        "try:\n"
        "    privcal.calibrate(sources, 'acc-t', aggregation='secure')\n"
        "except privcal.InputError as error:\n"
        "    print(error)\n"
    )
    assert python(code).stdout.splitlines() == [
        "3",
        "letters and secure sums need one more package: pip install 'privcal[secure]'",
    ]
