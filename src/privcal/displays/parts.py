"""Parts that several pages have: pictures, what figures mean, and what ε means to one person.

A page is read by people who know nothing of calibration, a data protection officer first of all. So
sentences come before figures, and every figure says whether it was measured or estimated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from privcal.displays.diagram import Diagram
from privcal.displays.estimates import DROWNED, Estimated, in_words, measures, unchanged
from privcal.evaluation import Evaluation
from privcal.metrics import bin_index
from privcal.pages import Cell, Html, Series, items, join, paragraphs, reliability, table
from privcal.privacy.epsilon import as_odds
from privcal.scores import FloatArray, IntArray
from privcal.sketch.evaluation import Estimate
from privcal.sketch.risk import RiskEvaluation

UNIT = "person, or row where a source has no person ids"
"""Whom ε protects at sources of which nobody knows more."""

SEALED = (
    "The sums of one source were opened by nobody. They left it in sealed pieces, of which whoever asked "
    "could only put together the total of many sources. So each added but a share of the noise, and the "
    "total has about the noise of one."
)
"""What is different in a secure sum."""

_POINTS = 80
"""Of a smooth curve: more would be seen by nobody, and make the page large."""

MEANINGS = {
    "accuracy": "the share of rows for which the model's answer is right",
    "mean confidence": "how often the model claims to be right, on average",
    "ECE": "how far the claim is from the truth, on average over rows: 0 is perfect",
    "Brier": "the mean squared error of the claim: smaller is better",
    "mean risk": "the risk that the model gives, on average",
    "observed / expected (1 is right)": "how often it happened, for each time it was expected",
    "calibration intercept (0 is right)": "below 0, risks are too high on the whole; above, too low",
    "calibration slope (1 is right)": "below 1, high risks are too high and low ones too low",
    "AUROC": "how well the model tells who is at risk: 0.5 is guessing, 1 is perfect",
}


def picture(display: Diagram, title: str) -> Html:
    """A diagram as a page shows it."""
    return _points(display, title) if display.epsilon is None else _band(display, title)


def _points(display: Diagram, title: str) -> Html:
    assert display.rows is not None
    name, what = display.foretold_name, display.what
    points = _series(display, what, np.arange(len(display.share)), kind="points")
    counts = Series("rows", points.x, tuple(display.rows.tolist()), kind="bars", look=1)
    about = (
        f"Each point is a group of rows: how often the model claims ({name}), and how often it was "
        f"so. Whiskers are {100 * display.level:g} % intervals of each group by itself."
    )
    return reliability(title, about, [points], counts, x=name, y=what)


def _band(display: Diagram, title: str) -> Html:
    assert display.after is not None
    name, what = display.foretold_name, display.what
    [drawn] = np.nonzero(display.drawn)
    drawn = drawn[:: max(1, len(drawn) // _POINTS)]
    estimate = _series(display, "estimate", drawn, strong=True, marked=False)
    after = Series(
        f"{name} after the correction",
        estimate.x,
        tuple(display.after[drawn].tolist()),
        look=2,
        dashed=True,
        marked=False,
    )
    shares = np.bincount(bin_index(display.foretold, 20), display.share, minlength=20)
    centres = tuple((np.arange(20) / 20 + 0.025).tolist())
    where = Series(
        "share of rows (estimated)", centres, tuple(shares.tolist()), kind="bars", look=1
    )
    about = (
        f"Estimated from noisy answers (ε = {display.epsilon:g}); nothing here was measured. The line is "
        f"how often it is so where the model claims a {name}, the band its 95 % interval at each point."
    )
    return reliability(title, about, [estimate, after], where, x=f"the model's own {name}", y=what)


def _series(display: Diagram, name: str, rows: IntArray, **more: Any) -> Series:
    def column(values: FloatArray) -> tuple[float, ...]:
        return tuple(values[rows].tolist())

    x, y = column(display.foretold), column(display.observed)
    return Series(name, x, y, column(display.low), column(display.high), look=1, **more)


def estimates(evaluation: Estimated) -> Html:
    """All estimates with their intervals, and what each says."""
    rows = [
        (name, _said(before), "" if after is None else _said(after), meaning(name))
        for name, before, after in measures(evaluation)
    ]
    return table(
        "In brackets: the range in which the true value lies with a probability of 95 %. All of it is "
        "computed from the answers already given, at no further cost in privacy.",
        ("", "before", "after the correction", "what it says"),
        rows,
        sortable=False,
    )


def meaning(measure: str) -> str:
    """What a measure says, in a few words."""
    if measure.startswith("how often it was class"):
        return "the share of rows of that class"
    return MEANINGS[measure]


def _said(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def findings(evaluation: Estimated) -> list[str]:
    """What a sketch found, for people who do not know calibration."""
    if not evaluation.informative:
        return [DROWNED]
    said = [_risk(evaluation)] if isinstance(evaluation, RiskEvaluation) else _trust(evaluation)
    return said if evaluation.unchanged is None else [*said, unchanged(evaluation)]


def _risk(evaluation: RiskEvaluation) -> str:
    after = evaluation.observed_expected_after
    return (
        f"{in_words(evaluation)} After the correction, for every 100 cases that are expected there are "
        f"about {100 * after.value:.0f} (somewhere from {100 * after.low:.0f} to {100 * after.high:.0f})."
    )


def _trust(evaluation: Estimated) -> list[str]:
    assert not isinstance(evaluation, RiskEvaluation)
    claimed, right = evaluation.confidence_before.value, evaluation.accuracy.value
    how = "it claims too much" if claimed > right else "it claims too little"
    if abs(claimed - right) < 0.01:
        how = "its claim is about right"
    before, after = evaluation.ece_before, evaluation.ece_after
    return [
        f"On the hidden rows the model claims to be right {100 * claimed:.0f} times in 100, and is right "
        f"about {100 * right:.0f} times: {how}.",
        f"Its claims are off by about {100 * before.value:.0f} points in 100 before the correction, and "
        f"by about {100 * after.value:.0f} after it ({100 * after.low:.0f} to {100 * after.high:.0f}).",
    ]


def cost(epsilon: float, unit: str, alone: float | None = None) -> Html:
    """What ε means to one person, in odds; `alone` is the ε of a secure sum if all others collude."""
    sealed = (
        f"So much holds against whoever asked, the server and as many of the sources as the owners agreed "
        f"on, working together. Should more of them do so, or the seals be broken, it is ε = {alone or 0:g} at "
        "most."
    )
    return paragraphs(
        f"The privacy that a source gave up is measured by ε (epsilon): here {epsilon:g} at most. Smaller "
        "is more private; 0 would be nothing learnt at all.",
        f"What that means for one {unit}: {as_odds(epsilon)}. That holds for everything that can ever be "
        f"made of these answers{', by anybody' if alone is None else ''}, with any other knowledge.",
        *([] if alone is None else [sealed]),
        "It is per source: somebody whose data are at two sources is exposed to both.",
    )


def odds(epsilon: float) -> str:
    """The odds behind ε, for a table."""
    if epsilon <= 0:
        return ""
    most = round(100 / (1 + math.exp(-epsilon)))
    return f"50 → at most {most} of 100" if most < 100 else "no promise: more than 99 of 100"


def what_left(*queries: str, together: bool = False) -> Html:
    """What leaves a source at its answers, in plain words; `together` where only totals were opened."""
    asked = paragraphs(f"Each source was asked: {queries[0]}.") if len(queries) == 1 else None
    if len(queries) > 1:
        asked = join(paragraphs("Each source was asked, one after the other:"), items(queries))
    return join(
        asked,
        paragraphs(
            "What left a source: these sums over all its rows, each with random noise added on its own "
            "machine before anything was sent. No row, no label, no score, no name and no exact number "
            "of rows left it.",
            *([SEALED] if together else []),
        ),
    )


def measured(results: dict[str, Evaluation]) -> Html:
    """All measures of rows one may look at, before and after."""
    values = {when: result.to_dict() for when, result in results.items()}
    names = [name for name in values["before"] if name not in ("rows", "event")]
    rows: list[list[Cell]] = [
        [name.replace("_", " "), *(float(v[name]) for v in values.values())] for name in names
    ]
    return table(
        "Measured exactly, on rows that one may look at.", ("", *values), rows, sortable=False
    )
