"""What a probability is of, in numbers and in words."""

from __future__ import annotations

import numpy as np

import privcal
from privcal.calibration.target import Target

SCORES = privcal.Scores(probabilities=[[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]], labels=[0, 0, 1])


def test_an_outcome_is_that_the_prediction_is_right_or_that_the_event_came() -> None:
    assert Target().outcome(SCORES).tolist() == [True, False, False]
    assert Target(1).outcome(SCORES).tolist() == [False, False, True]


def test_two_targets_are_one_where_their_event_is_whatever_it_is_called() -> None:
    assert Target.of(1, ("well", "ill")) == Target.of(1)
    assert Target.of(1, ("well", "ill")).event_name == "ill"
    assert Target.of(1).event_name == "1"
    assert len({Target.of(None, ("well", "ill")), Target(), Target(0), Target(1)}) == 3


def test_maps_and_sketches_and_evaluations_say_what_they_are_about() -> None:
    risk = privcal.RiskMap(1.0, scores=(-2.0, 2.0), log_odds=(-1.0, 3.0), event=1)
    assert risk.about == privcal.evaluate(SCORES, risk).about == Target(1)
    curve = privcal.CurveMap(1.0, scores=(-2.0, 2.0), log_odds=(-1.0, 3.0))
    assert curve.about == privcal.TemperatureMap(2.0).about == Target()
    assert privcal.evaluate(SCORES, curve).about == Target()
    assert np.array_equal(risk.target(SCORES), Target(1).outcome(SCORES))


def test_no_word_of_the_one_is_a_word_of_the_other() -> None:
    words = ("claim", "observed", "of_class", "curve", "diagram", "__str__")
    right, ill = (
        [str(t) if w == "__str__" else getattr(t, w) for w in words]
        for t in (Target(), Target(1, "ill"))
    )
    assert not set(right) & set(ill)
    assert [word for word in ill if "class ill" in word] == [
        "how often it was class ill",
        " of class ill",
        "the risk of class ill",
    ]
