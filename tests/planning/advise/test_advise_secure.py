"""A plan with secure sums: what ε it takes with them and without, and what that rests on."""

from __future__ import annotations

import json
from typing import Any

import pytest

import privcal
from privcal.planning.advise.plan import Point
from privcal.planning.advise.sentences import in_secure_sums, secure_sentence
from privcal.planning.simulate.variants import epsilon_share
from privcal.trusted.errors import InputError

FOG: dict[str, Any] = {"shifts": ["fog"], "trials": 2}


@pytest.mark.slow
def test_what_a_target_takes_falls_by_the_share_that_is_said() -> None:
    """The search is a simulation; the share is arithmetic. They agree to a step of the grid."""
    given: dict[str, Any] = {"samples": 30, "sources": 50, "target_ece": 0.035}
    each, summed = (
        privcal.advise(**given, shifts=["fog"], trials=20, aggregation=aggregation)
        for aggregation in ("each", "secure")
    )
    assert each.reached
    assert summed.reached
    assert each.method == summed.method
    assert (each.aggregation, summed.aggregation) == ("each", "secure")
    assert each.secure is not None
    assert summed.secure is not None
    for said, found in (
        (each.secure.secure, summed.epsilon),
        (summed.secure.each, each.epsilon),
    ):
        assert (
            said / 1.6 < found < said * 1.6
        )  # a step is a factor of 1.25, and each search may be off
    assert summed.epsilon < each.epsilon / 3


def test_a_plan_with_secure_sums_is_about_their_noise() -> None:
    each, summed = (
        privcal.advise(samples=20, sources=20, epsilon=0.2, **FOG, aggregation=aggregation)
        for aggregation in ("each", "secure")
    )
    assert summed.point.of("sketch").ece.mean < each.point.of("sketch").ece.mean
    assert summed.point.nothing_done == each.point.nothing_done
    assert "at each of 20 sources of 20 rows in secure sums" in summed.recommendation
    assert "secure sums" not in each.recommendation
    assert "in secure sums, ε = 0.2 at each" in summed.to_html()
    assert json.loads(json.dumps(summed.to_dict(), default=str))["aggregation"] == "secure"


def test_the_sentence_says_the_other_epsilon_and_what_is_assumed() -> None:
    each, summed = Point(50, 1.0, ()), Point(50, 0.2, (), "secure")
    found, back = in_secure_sums(each), in_secure_sums(summed)
    assert found is not None
    assert back is not None
    assert found.secure == pytest.approx(epsilon_share(50))
    assert back.each == pytest.approx(0.2 / epsilon_share(50))
    assert (found.each, back.secure) == (1.0, 0.2)
    assert (found.colluding, found.needed, found.alone, found.pays_from) == (10, 45, 10, 8)
    assert found.sentence.startswith(
        "With secure sums (--aggregation secure) about ε = 0.2 brings what ε = 1 brings"
    )
    assert back.sentence.startswith(
        "Without secure sums about ε = 1 would be needed in place of 0.2"
    )
    for said in (
        *("45 of the 50 must answer", "at most 10 working with whoever asks"),
        *(
            "their keys and their record of what they opened",
            "the encryption",
            "up to 10 times the ε (2)",
        ),
    ):
        assert said in found.sentence
        assert said in back.sentence


def test_from_how_many_sources_on_it_pays_is_said_to_all() -> None:
    for sources in (7, 8, 300):
        sentence = secure_sentence(Point(sources, 1.0, ()))
        assert "from 8 sources on secure sums take less than half" in sentence
    assert in_secure_sums(Point(2, 1.0, ())) is None
    assert secure_sentence(Point(2, 1.0, ())) == "Secure sums need at least 3 sources."


def test_of_several_campaigns_it_is_about_all_of_their_epsilon() -> None:
    plan = privcal.advise(samples=20, sources=20, epsilon=1.0, **FOG, campaigns=2)
    assert plan.secure is not None
    assert plan.secure.each == 1.0
    assert plan.secure.secure == pytest.approx(epsilon_share(20))


def test_two_sources_and_unknown_words_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3 sources, not of 2"):
        privcal.advise(samples=20, sources=2, **FOG, aggregation="secure")
    with pytest.raises(InputError, match="no aggregation 'both'; there are each, secure"):
        privcal.advise(samples=20, sources=20, **FOG, aggregation="both")


def test_a_search_for_sources_and_sliders_leave_out_too_few() -> None:
    found = privcal.advise(samples=50, target_ece=0.2, **FOG, aggregation="secure")
    assert found.search is not None
    assert found.search.grid[0] == 4  # the next after 2
    around = privcal.advise(samples=5, sources=4, **FOG, aggregation="secure", around=True).around
    assert around is not None
    assert around.sources == (4, 8, 16)


def test_the_command_says_it(run: Any) -> None:
    given = ("advise", "--sources", 20, "--samples", 20, "--shifts", "fog", "--trials", 2)
    assert "With secure sums (--aggregation secure) about ε = 0.29" in run.ok(*given)[0]
    stdout, _ = run.ok(*given, "--aggregation", "secure")
    assert "20 sources of 20 rows in secure sums" in stdout
    stdout = " ".join(stdout.split())
    assert "against whoever asks, the carrier and up to 4 sources together" in stdout
    assert run.json(*given, "--aggregation", "secure")["secure"]["needed"] == 18
