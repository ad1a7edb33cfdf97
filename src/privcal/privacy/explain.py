"""Explanations for a data owner: what can leave a source, and what its ε means, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privcal.privacy.epsilon import as_odds, from_nano
from privcal.privacy.mechanism import noise_scale
from privcal.privacy.policy import Policy
from privcal.queries import FAMILY, GRID, Query
from privcal.scores import Scores
from privcal.source import Source
from privcal.wording import plural


@dataclass(frozen=True)
class Explanation:
    """Sentences for the owner's own terminal, and the queries that may be asked."""

    unit: str
    """Whom privacy protects here: a row, or a person."""
    lines: list[str]
    queries: list[dict[str, Any]]


def _what(scores: Scores) -> str:
    right = f"right in {scores.correct.mean():.1%} of rows."
    if scores.outputs.kind == "confidence":
        return f"The confidence in each answer, without classes; the answer is {right}"
    return (
        f"{scores.classes} classes, given as {scores.outputs.kind}; the predicted class is {right}"
    )


def explain(source: Source, examples: Mapping[str, Query | None] | None = None) -> Explanation:
    """What may leave this source; `examples` are the queries to describe, by their kinds."""
    scores, policy, unit = source.scores, source.policy, source.unit
    people = f"{plural(len(scores), 'row')}, no person ids: each row counts as one person."
    if scores.person is not None:
        people = (
            f"{plural(len(scores), 'row')} of {plural(len(set(scores.person)), 'person')}; of each "
            f"person at most {plural(policy.rows_per_person, 'row')} count, "
            f"{len(source.counted_rows()):,} in all."
        )
    per_request = policy.nano_per_request
    whose = "on each person" if policy.budget == "person" else "on everybody together"
    lines = [
        people,
        _what(scores) if len(scores) else "There are no rows.",
        "",
        "What leaves: only sums over rows, with random noise added on this machine. Never a row, "
        "a label, a score, or a count.",
        f"How much in all: epsilon {policy.epsilon:g} {whose}, over all askers, for ever; one "
        f"request may cost from {policy.minimum_epsilon:g} to {from_nano(per_request):g}.",
        f"What that means for one {unit}: at epsilon {policy.epsilon:g}, {as_odds(policy.epsilon)}.",
        "It is per source: someone whose data are also elsewhere is exposed there as well.",
        f"Who may ask: {'anyone who can reach this source' if policy.askers is None else ', '.join(policy.askers)}.",
        *(
            f"Of that, {asker} may spend at most {epsilon:g}."
            for asker, epsilon in (policy.epsilon_by_asker or {}).items()
        ),
        *(
            []
            if policy.requests_per_hour is None
            else [f"How often: at most {policy.requests_per_hour:,} requests an hour."]
        ),
        *(
            []
            if policy.rows is None
            else [
                f"What whoever may ask is told besides: about {policy.rows:,} rows, as you wrote."
            ]
        ),
        *(["Nothing is answered before you approve the campaign."] if policy.approve else []),
        *([] if policy.model is None else [f"About which model: {policy.model}."]),
    ]
    allowed = tuple(FAMILY) if policy.queries is None else policy.queries
    described = []
    for kind in allowed:
        query = (examples or {}).get(kind) or FAMILY[kind]()
        if query.all_classes and source.only_confidence:
            continue
        sensitivity = source.sensitivity(query)
        described.append(
            {
                "kind": kind,
                "asks": query.describe(),
                "length": query.length,
                "sensitivity": sensitivity / GRID,
                "noise": math.sqrt(2) * noise_scale(sensitivity, per_request) / GRID,
            }
        )
    return Explanation(unit, lines, described)


def promise(policy: Policy, unit: str) -> list[str]:
    """An owner's ε in words: whom it protects, and what it means for them."""
    whom = "one row; someone with several rows has no more than that promised for each"
    if unit == "person":
        whom = "one person, with all their rows"
    budget = "each person's own" if policy.budget == "person" else "one for all"
    return [
        f"Protected: {whom}. Budget: epsilon {policy.epsilon:g}, {budget}.",
        f"At epsilon {policy.epsilon:g}, {as_odds(policy.epsilon)}.",
    ]


def remaining(facts: dict[str, Any]) -> str:
    """The rest of a population's budget in words, from its `total` and what `remains`."""
    if facts["remains"] < 0:
        return f"the total is {facts['total']:g}, less than that: nothing more is answered"
    return f"{facts['remains']:g} remains of {facts['total']:g}"
