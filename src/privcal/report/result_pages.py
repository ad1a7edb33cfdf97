"""Results as pages: a calibration, a sketch, an evaluation, and the parts they share.

A page is read by people who know nothing of calibration, a data protection officer first of all. So
sentences come before figures, and every figure says whether it was measured or estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privcal.calibration.evaluation import Evaluation
from privcal.calibration.loop import Result
from privcal.calibration.maps import Map, OffsetsMap, RiskMap
from privcal.calibration.sketch.answers import SketchTotal
from privcal.calibration.sketch.evaluation import (
    Estimates,
    PrivateEvaluation,
    RiskEvaluation,
)
from privcal.calibration.sketch.sketch import Sketch
from privcal.data.plausible import REASONS
from privcal.data.scores import Outputs
from privcal.data.wording import as_odds, asks, plural
from privcal.report.diagram import (
    DROWNED,
    Diagram,
    display_of,
    in_words,
    unchanged,
)
from privcal.report.pages import (
    Axis,
    Cell,
    Chart,
    Html,
    Section,
    Series,
    charts,
    facts,
    items,
    join,
    lines,
    page,
    paragraphs,
    reliability,
    table,
)
from privcal.trusted.epsilon import from_nano
from privcal.trusted.kernel import bin_index
from privcal.trusted.scores import FloatArray, IntArray

UNIT = "person, or row where a source has no person ids"
"""Whom ε protects at sources of which nobody knows more."""

SEALED = (
    "The sums of one source were opened by nobody. They left it in sealed pieces, of which whoever asked "
    "could only put together the total of many sources. So each added but a share of the noise, and the "
    "total has about the noise of one."
)
"""What is different in a secure sum."""

_BELIEF = "what somebody may come to believe of one person"

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
    corrected = tuple(display.after[drawn].tolist())
    named = f"{name} after the correction"
    after = Series(named, estimate.x, corrected, look=2, dashed=True, marked=False)
    shares = np.bincount(bin_index(display.foretold, 20), display.share, minlength=20)
    centres = tuple((np.arange(20) / 20 + 0.025).tolist())
    counted = tuple(shares.tolist())
    where = Series("share of rows (estimated)", centres, counted, kind="bars", look=1)
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


def estimates(evaluation: Estimates) -> Html:
    """All estimates with their intervals, and what each says."""
    rows = [
        (name, str(before), str(after or ""), _meaning(name))
        for name, before, after in evaluation.measures()
    ]
    return table(
        "In brackets: the range in which the true value lies with a probability of 95 %. All of it is "
        "computed from the answers already given, at no further cost in privacy.",
        ("", "before", "after the correction", "what it says"),
        rows,
        sortable=False,
    )


def _meaning(measure: str) -> str:
    """What a measure says, in a few words."""
    if measure.startswith("how often it was class"):
        return "the share of rows of that class"
    return MEANINGS[measure]


def findings(evaluation: Estimates) -> list[str]:
    """What a sketch found, for people who do not know calibration."""
    if not evaluation.informative:
        return [DROWNED]
    said = _risk(evaluation) if isinstance(evaluation, RiskEvaluation) else _trust(evaluation)
    return said if evaluation.unchanged is None else [*said, unchanged(evaluation)]


def _risk(found: RiskEvaluation) -> list[str]:
    after = found.observed_expected_after
    return [
        f"{in_words(found)} After the correction, for every 100 cases that are expected there are "
        f"about {100 * after.value:.0f} (somewhere from {100 * after.low:.0f} to {100 * after.high:.0f})."
    ]


def _trust(found: Estimates) -> list[str]:
    assert isinstance(found, PrivateEvaluation)
    claimed, right = found.confidence_before.value, found.accuracy.value
    how = "it claims too much" if claimed > right else "it claims too little"
    if abs(claimed - right) < 0.01:
        how = "its claim is about right"
    before, after = found.ece_before, found.ece_after
    return [
        f"On the hidden rows the model claims to be right {100 * claimed:.0f} times in 100, and is right "
        f"about {100 * right:.0f} times: {how}.",
        f"Its claims are off by about {100 * before.value:.0f} points in 100 before the correction, and "
        f"by about {100 * after.value:.0f} after it ({100 * after.low:.0f} to {100 * after.high:.0f}).",
    ]


def cost(epsilon: float, unit: str, alone: float | None = None) -> Html:
    """What ε means to one person, in odds; `alone` is the ε of a secure sum if all others collude."""
    sealed = (
        f"So much holds against whoever asked, the carrier and as many of the sources as the owners agreed "
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


NEEDS_PUBLIC = (
    "This sketch was taken with public rows of the calibrator. What it says can be read only with the "
    "same rows (privcal sketch show with --public)."
)


def sketch_page(sketch: Sketch, evaluation: Estimates | None, name: str) -> str:
    """The page of a sketch; without an evaluation, what is in it but not what it says."""
    secure = bool(sketch.totals)
    alone = max(sketch.alone.values()) if secure else None
    counted = {
        "sources": f"{len(sketch.nano_spent):,}",
        "answers": f"{sketch.count:,}",
        "ε at each source, at most": f"{sketch.epsilon:g}",
    }
    sections = [
        *said(evaluation, sketch.epsilon),
        Section(
            "What left each source",
            what_left(asks(sketch.query, sketch.schema.get("class_names")), together=secure),
        ),
        Section("What it cost", join(facts(counted), cost(sketch.epsilon, UNIT, alone))),
        Section("Who answered", _who(sketch)),
        Section("The noisy totals", _totals(sketch)),
    ]
    return page("What a sketch says", _lead(sketch), sections, made=f"From the sketch {name}.")


def _lead(sketch: Sketch) -> str:
    sources, model = plural(len(sketch.nano_spent), "source"), sketch.model or "a model"
    how, noisy = "each with random noise added on its own machine", "noisy answers"
    if sketch.totals and sketch.answers:
        how, noisy = (
            "by itself or in a sealed total of many, each with noise",
            f"{noisy} and totals",
        )
    elif sketch.totals:
        how, noisy = f"{how}, sealed so that only a total of many could be opened", "noisy totals"
    return (
        f"{sources} answered a question about {model}, {how}. This page shows what can be read off the "
        f"{noisy}. Reading them costs no further privacy."
    )


def said(evaluation: Estimates | None, epsilon: float) -> list[Section]:
    """What a sketch found, with its picture and its estimates."""
    if evaluation is None:
        return [Section("What it says", paragraphs(NEEDS_PUBLIC))]
    words = findings(evaluation)
    shown = picture(display_of(evaluation, epsilon), "Claimed and true")
    return [
        Section("What it says", join(paragraphs(*words), shown)),
        Section("Estimates", estimates(evaluation)),
    ]


def _who(sketch: Sketch) -> Html:
    return join(
        _answers(sketch) if sketch.answers else None, *(_total(total) for total in sketch.totals)
    )


def _answers(sketch: Sketch) -> Html:
    costs = [from_nano(a.nano_epsilon) for a in sketch.answers]
    rows = [
        (a.source, a.asker, a.campaign, f"{epsilon:g}", odds(epsilon))
        for a, epsilon in zip(sketch.answers, costs, strict=True)
    ]
    header = ("source", "asked by", "campaign", "ε", _BELIEF)
    return table("Every answer, and what it cost its source.", header, rows)


def _total(total: SketchTotal) -> Html:
    epsilon, alone = from_nano(total.nano_epsilon), from_nano(total.nano_alone)
    known = {
        "asked by": total.asker,
        "campaign": total.campaign,
        "sources in it": f"{len(total.sources):,}",
        "groups, of which the median counts": str(total.noise.groups),
        "ε at each source": f"{epsilon:g} ({odds(epsilon)})",
        "ε if all others work together": f"{alone:g} ({odds(alone)})",
        "its noise": total.noise.describe(),
    }
    if total.noise.groups == 1:
        del known["groups, of which the median counts"]
    listed = table(
        "Whose answers are in the total; nobody saw one of them.",
        ("group", "sources"),
        [(str(group), ", ".join(part.sources)) for group, part in enumerate(total.parts, 1)],
        sortable=False,
    )
    if total.noise.groups == 1:
        listed = paragraphs(f"In it: {', '.join(total.parts[0].sources)}.")
    return join(facts(known), listed)


def _totals(sketch: Sketch) -> Html:
    count, knots = sketch.count, sketch.query.knots
    deviation = count * math.sqrt(sketch.noise_variance)
    totals = sketch.average * count
    places = max(0, 1 - math.floor(math.log10(deviation)))  # more digits would be noise alone
    rows = [
        (f"{100 / (1 + math.exp(-knot)):.3g} %", float(wrong), float(right))
        for knot, wrong, right in zip(
            knots, totals[: len(knots)], totals[len(knots) :], strict=True
        )
    ]
    caption = (
        "What all answers add up to, around each claim of the model. These are no counts: each has "
        f"noise of standard deviation {deviation:.3g}, and may be negative."
    )
    return table(caption, ("claimed", *sketch.halves), rows, digits=places, sortable=False)


def aim(map: Map | None, measured: Evaluation) -> list[str]:
    """What a map of a risk is for, and which class's risk was measured."""
    aims = []
    if map is not None and map.about.event is not None:
        aims.append(
            f"This map corrects {map.about}. It may make the confidence in the "
            "predicted class worse, and the risk of another class too."
        )
    if measured.risk is not None:
        aims.append(
            f"The first measures are of {measured.about}, the others of the "
            "confidence in the predicted class."
        )
    return aims


def evaluation_page(name: str, results: dict[str, Evaluation], map: Map | None = None) -> str:
    """The page of some labelled rows, before and (where there is a map) after it."""
    before = results["before"]
    lead = f"How far the claims of a model hold, measured on {before.rows:,} rows of {name}."
    pictures = [picture(display_of(found), when.capitalize()) for when, found in results.items()]
    sections = [
        Section(
            "What it says",
            join(paragraphs(*_findings(results), *aim(map, before)), charts(*pictures)),
        ),
        Section("All measures", measured(results)),
        Section(
            "What this page holds",
            paragraphs(
                "Exact figures of these rows: no privacy is involved. Whoever may not see the rows may "
                "not see this page."
            ),
        ),
    ]
    return page("How good a model's claims are", lead, sections)


def _findings(results: dict[str, Evaluation]) -> list[str]:
    return [
        (_claims if result.risk is None else _risks)(
            "The model by itself" if when == "before" else "After the map it", result
        )
        for when, result in results.items()
    ]


def _claims(who: str, result: Evaluation) -> str:
    return (
        f"{who} claims to be right {100 * result.mean_confidence:.0f} times in 100, and is right "
        f"{100 * result.accuracy:.0f} times. Its claims are off by {100 * result.ece:.1f} points in 100, "
        "on average (ECE)."
    )


def _risks(who: str, result: Evaluation) -> str:
    risk = result.risk
    assert risk is not None
    return (
        f"{who} expects {100 * risk.risk:.1f} cases of class {risk.about.event_name} in 100 rows, and there are "
        f"{100 * risk.prevalence:.1f}: {risk.observed_expected:.2f} for each that is expected. The "
        f"calibration slope is {risk.slope:.2f} (1 is right)."
    )


def calibration_page(
    result: Result, names: Sequence[str], evaluation: Estimates | None, unit: str
) -> str:
    """The page of a run; `names` are the sources in the order of `Result.spent`."""
    epsilon = max(result.spent, default=0.0)
    model = result.map.provenance.get("model")
    secure = result.noise is not None
    together = ", sealed so that only the total of all could be opened" if secure else ""
    lead = [
        f"A model{f' ({model})' if model else ''} says how sure it is of each answer. This run corrected "
        f"that, from data of {plural(len(names), 'source')} that nobody else may see.",
        f"Each source answered {plural(len(result.rounds), 'question')} with random noise added on its "
        f"own machine{together}. {result.answered:,} of {len(names):,} answered; the correction is "
        f"{result.map.describe()}.",
    ]
    found = [] if evaluation is None else said(evaluation, epsilon)
    asked = dict.fromkeys(asks(asked.query, result.map.class_names) for asked in result.rounds)
    sections = [
        *found,
        Section("The correction", _correction(result.map)),
        Section("What left each source", what_left(*asked, together=secure)),
        Section("What it cost", cost(epsilon, unit, result.alone)),
        Section("Who was asked", _everyone(result, names)),
        Section("How it was done", _how(result)),
    ]
    return page("A correction from private data", lead, sections)


def _correction(map: Map) -> Html:
    notes = [f"{map.note[0].upper()}{map.note[1:]}."] if map.note else []
    if isinstance(map, OffsetsMap):
        return paragraphs(f"The correction is {map.describe()}.", *notes)
    claim, low, points = map.about.claim, *((0.001, 81) if isinstance(map, RiskMap) else (0.5, 61))
    own = np.linspace(low, 0.999, points)
    p = np.stack([1 - own, own], axis=1)
    after = (
        replace(map, event=1, provenance={}).risk(probabilities=p)
        if isinstance(map, RiskMap)
        else map.apply(Outputs(probabilities=p))
    )
    x = tuple(own.tolist())
    chart = Chart(
        "From the claim to the corrected claim",
        f"What a {claim} of the model becomes, drawn for a model of two classes. On the dashed line "
        "nothing would change.",
        Axis(f"the model's own {claim}", low=x[0] if map.about.event is None else 0.0, high=1.0),
        Axis(f"corrected {claim}", low=0.0, high=1.0),
        (
            Series("unchanged", (0.0, 1.0), (0.0, 1.0), kind="guide"),
            Series("corrected", x, tuple(after.tolist()), look=2, strong=True, marked=False),
        ),
        values=False,
    )
    return join(paragraphs(*notes), lines(chart))


def _everyone(result: Result, names: Sequence[str]) -> Html:
    rows = []
    for name, spent in zip(names, result.spent, strict=True):
        why = result.dropped.get(name)
        state = "answered" if why is None else f"left out: {REASONS.get(why, 'it failed')}"
        rows.append((name, state, f"{spent:g}", odds(spent)))
    header = ("source", "state", "ε charged", _BELIEF)
    return table("Everyone who was asked.", header, rows)


def _how(result: Result) -> Html:
    provenance = result.map.provenance
    known = {
        "method": result.method,
        "campaign": result.campaign,
        "questions to each source": str(len(result.rounds)),
        "model": str(provenance.get("model", "not said")),
        "its noise": "" if result.noise is None else result.noise.describe(),
        "made": str(provenance.get("created", ""))[:16].replace("T", " "),
    }
    return facts({name: value for name, value in known.items() if value})
