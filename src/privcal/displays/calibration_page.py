"""A calibration as a page: the correction, what it means, who was asked, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privcal.calibrate import Result
from privcal.displays import parts
from privcal.displays.estimates import Estimated
from privcal.displays.sketch_page import said
from privcal.maps import Map, OffsetsMap, RiskMap
from privcal.pages import (
    Axis,
    Chart,
    Html,
    Section,
    Series,
    facts,
    join,
    lines,
    page,
    paragraphs,
    table,
)
from privcal.plausible import REASONS
from privcal.scores import Outputs
from privcal.wording import plural


def calibration_page(
    result: Result, names: Sequence[str], evaluation: Estimated | None, unit: str
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
    asked = dict.fromkeys(asked.query.describe() for asked in result.rounds)
    sections = [
        *found,
        Section("The correction", _correction(result.map)),
        Section("What left each source", parts.what_left(*asked, together=secure)),
        Section("What it cost", parts.cost(epsilon, unit, result.alone)),
        Section("Who was asked", _who(result, names)),
        Section("How it was done", _how(result)),
    ]
    return page("A correction from private data", lead, sections)


def _correction(map: Map) -> Html:
    notes = [f"{map.note[0].upper()}{map.note[1:]}."] if map.note else []
    if isinstance(map, OffsetsMap):
        return paragraphs(f"The correction is {map.describe()}.", *notes)
    own = np.linspace(0.001, 0.999, 81) if isinstance(map, RiskMap) else np.linspace(0.5, 0.999, 61)
    claim, event = "confidence", 1
    if isinstance(map, RiskMap):
        claim, event = "risk", min(map.event, 1)
    p = np.stack([1 - own, own] if event == 1 else [own, 1 - own], axis=1)
    after = (
        map.risk(probabilities=p)
        if isinstance(map, RiskMap)
        else map.apply(Outputs(probabilities=p))
    )
    x = tuple(own.tolist())
    chart = Chart(
        "From the claim to the corrected claim",
        f"What a {claim} of the model becomes, drawn for a model of two classes. On the dashed line "
        "nothing would change.",
        Axis(f"the model's own {claim}", low=x[0] if claim == "confidence" else 0.0, high=1.0),
        Axis(f"corrected {claim}", low=0.0, high=1.0),
        (
            Series("unchanged", (0.0, 1.0), (0.0, 1.0), kind="guide"),
            Series("corrected", x, tuple(after.tolist()), look=2, strong=True, marked=False),
        ),
        values=False,
    )
    return join(paragraphs(*notes), lines(chart))


def _who(result: Result, names: Sequence[str]) -> Html:
    rows = []
    for name, spent in zip(names, result.spent, strict=True):
        why = result.dropped.get(name)
        state = "answered" if why is None else f"left out: {REASONS.get(why, 'it failed')}"
        rows.append((name, state, f"{spent:g}", parts.odds(spent)))
    header = ("source", "state", "ε charged", "what somebody may come to believe of one person")
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
