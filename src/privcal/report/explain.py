"""Explanations for a data owner: what can leave a source, and what its ε means, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privcal.data.ledger import Entry, Ledger
from privcal.data.wording import as_odds, asks, plural
from privcal.trusted.epsilon import from_nano
from privcal.trusted.noise import noise_scale
from privcal.trusted.policy import Policy
from privcal.trusted.queries import FAMILY, GRID, Query
from privcal.trusted.scores import Scores
from privcal.trusted.source import Source


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
    if source.persons is not None:
        most = policy.rows_per_person
        people = (
            f"{plural(len(scores), 'row')} of {plural(len(set(source.persons)), 'person')}; of each "
            f"person at most {plural(most, 'row')} {'counts' if most == 1 else 'count'}, "
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
        *([] if policy.secure is None else in_secure_sums(policy)),
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
                "asks": asks(query),
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
        *([] if policy.secure is None else in_secure_sums(policy)),
    ]


def in_secure_sums(policy: Policy) -> list[str]:
    """What a policy with rules for secure sums promises for answers in them."""
    assert policy.secure is not None
    lines = [
        "In secure sums this holds against whoever asks, the carrier and up to "
        f"{plural(policy.secure.colluding, 'other hospital')} together. If more of them work together, "
        f"or the encryption is broken, epsilon {from_nano(policy.nano_total_alone):g} still holds."
    ]
    if policy.secure.required:
        lines.append("Nothing leaves but in secure sums.")
    return lines


def budget_of(ledger: Ledger) -> dict[str, Any]:
    """The ε of a ledger: in all, spent, and what remains (None where each person has a budget).

    `alone` has the same of the total against everybody else together; None where there never was,
    and may not be, a secure sum: then the two totals are one.
    """
    policy, spent = ledger.policy, ledger.spent
    common = policy.budget == "population"

    def facts(spent: int, total: int) -> dict[str, Any]:
        remains = from_nano(total - spent) if common else None
        return {"total": from_nano(total), "spent": from_nano(spent), "remains": remains}

    two = policy.secure is not None or spent.alone != spent.nano
    alone = facts(spent.alone, policy.nano_total_alone) if two else None
    return {**facts(spent.nano, policy.nano_total), "alone": alone}


def balance(facts: dict[str, Any]) -> list[str]:
    """What is spent of a population's budget and what remains, from `budget_of`: a line for each total."""
    lines = [f"epsilon spent: {facts['spent']:g}; {remaining(facts)}"]
    if (alone := facts["alone"]) is not None:
        lines.append(
            "against everybody else together, however many collude: epsilon "
            f"{alone['spent']:g} spent; {remaining(alone)}"
        )
    return lines


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a policy, those about secure sums as `secure.colluding` and so on.

    >>> flat({"epsilon": 1.0, "secure": {"colluding": 2, "required": False}})
    {'epsilon': 1.0, 'secure.colluding': 2, 'secure.required': False}
    """
    secure = settings.get("secure") or {}
    rest = {name: value for name, value in settings.items() if name != "secure"}
    return rest | {f"secure.{name}": value for name, value in secure.items()}


def written_off_in_words(entry: Entry) -> str:
    """Why budget was written off, and how much alone where that is more than its ε."""
    if not entry.what.startswith("{"):
        return entry.what
    return f"{json.loads(entry.what)['why']} ({entry.alone:.6g} alone)"


def remaining(facts: dict[str, Any]) -> str:
    """The rest of a population's budget in words, from its `total` and what `remains`."""
    if facts["remains"] < 0:
        return f"the total is {facts['total']:g}, less than that: nothing more is answered"
    return f"{facts['remains']:g} remains of {facts['total']:g}"
