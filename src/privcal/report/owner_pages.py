"""Pages for owners: a campaign that waits for approval, and a ledger with all that ever left."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from privcal.data.ledger import Entry, Ledger
from privcal.data.place import Data
from privcal.data.wording import asks
from privcal.report.description import Description
from privcal.report.explain import budget_of, flat, promise, written_off_in_words
from privcal.report.pages import (
    Axis,
    Chart,
    Html,
    Section,
    Series,
    facts,
    items,
    join,
    lines,
    page,
    paragraphs,
    table,
    tag,
)
from privcal.report.result_pages import odds
from privcal.trusted.epsilon import from_nano
from privcal.trusted.errors import InputError
from privcal.trusted.queries import parse


def ledger_page(ledger: Ledger) -> str:
    """The page of one ledger, for its owner."""
    fixed, policy = ledger.facts, ledger.policy
    entries = [entry for entry in ledger.entries() if entry.kind != "persons"]
    charges = [entry for entry in entries if entry.asked]
    budget = budget_of(ledger)
    spent = budget["spent"]
    lead = [
        f"Everything that ever left {fixed.name}, to whom, when, and what it cost in privacy. Only sums "
        "over rows leave, each with random noise added here; never a row, a label or a count.",
        *promise(policy, fixed.unit),
    ]
    known = {
        "ε in all": f"{policy.epsilon:g}"
        + (" on each person" if policy.budget == "person" else ""),
        "protects": f"one {fixed.unit}",
        "answers that left": f"{sum(entry.answered for entry in charges):,}",
    }
    if policy.budget == "population":
        known |= {"ε spent": f"{spent:g}", "ε that remains": _left(budget)}
        if (alone := budget["alone"]) is not None:
            known |= {
                "against everybody else together, ε in all": f"{alone['total']:g}",
                "… ε spent": f"{alone['spent']:g}",
                "… ε that remains": _left(alone),
            }
    state = [f"Warning: {trouble}."] if (trouble := ledger.trouble) else []
    sections = [
        Section("Now", join(paragraphs(*state), facts(known), _meaning(budget, fixed.unit))),
        Section("Who asked what", join(_asked(charges), _opened(entries))),
        *([Section("How it was spent", _course(charges, policy.epsilon))] if charges else []),
        Section("The rules", _rules(policy.to_dict())),
        Section("What the owner did", _owner(entries)),
        Section("What this page is", paragraphs(_OWN)),
    ]
    return page(f"Ledger of {fixed.name}", lead, sections)


_OWN = (
    "It is made for the owner of the data and those who answer for them. It holds nothing of any row; "
    "but who asked, and what the rules are, is the owner's to tell."
)


def _left(budget: dict[str, Any]) -> str:
    return f"{max(0.0, budget['remains']):g}"


def _meaning(budget: dict[str, Any], unit: str) -> Html:
    spent, alone = budget["spent"], budget["alone"]
    if spent <= 0:
        return paragraphs("Nothing has left yet.")
    lines = [
        f"What has left so far, all of it together, can move what somebody believes of one {unit} from "
        f"{_odds(spent)}."
    ]
    if alone is not None and alone["spent"] > spent:
        lines.append(
            "That is where what secure sums rest on holds. Where it does not (more hospitals work together "
            f"than the rules reckon with, say, or keys are lost), from {_odds(alone['spent'])}."
        )
    return paragraphs(*lines)


def _odds(epsilon: float) -> str:
    told = odds(epsilon)
    if " → " not in told:
        return "50 of 100 to more than 99, which is no promise"
    return told.replace(" → ", " of 100 to ")


def _asked(charges: list[Entry]) -> Html:
    if not charges:
        return paragraphs("Nobody has asked anything yet.")
    secure = any(entry.kind == "share" for entry in charges)
    rows = []
    for entry in charges:
        assert entry.key is not None
        rows.append(
            (
                entry.time[:16].replace("T", " "),
                entry.key.asker,
                entry.key.campaign,
                _query(entry),
                f"{entry.epsilon:g}",
                *([f"{entry.alone:g}"] if secure else []),
                odds(entry.epsilon),
                "answered" if entry.answered else "lost: charged, and never answered",
            )
        )
    header = [
        *("time (UTC)", "who", "campaign", "what was asked", "ε"),
        *(["ε, everybody else together"] if secure else []),
        *("belief about one person", ""),
    ]
    return table("Every question that was paid for.", header, rows)


def _opened(entries: list[Entry]) -> Html | None:
    """The secure sums in whose opening this site took part."""
    keys = [(entry.time, entry.about) for entry in entries if entry.kind == "opening"]
    rows = [
        (time[:16].replace("T", " "), key.asker, key.campaign)
        for time, key in keys
        if key is not None
    ]
    if not rows:
        return None
    told = (
        "Secure sums that were opened, with the help of this site: each for one set of hospitals."
    )
    return table(told, ("time (UTC)", "for whom", "campaign"), rows)


def _query(entry: Entry) -> str:
    try:
        asked = asks(parse(entry.query))
    except (InputError, ValueError):  # of a later version: shown as it is
        asked = entry.what
    return f"{asked} (in a secure sum)" if entry.kind == "share" else asked


def _course(charges: list[Entry], total: float) -> Html:
    """ε along the questions, and who spent it."""
    running, spent = [], 0.0
    for entry in charges:
        spent += entry.epsilon
        running.append(spent)
    by = Counter[str]()
    for entry in charges:
        assert entry.key is not None
        by[entry.key.asker] += round(1e9 * entry.epsilon)  # in nano-ε, so that shares add up
    along = Chart(
        "ε spent, question by question",
        "All charges added up, whoever asked; the dashed line is what the policy allows in all.",
        Axis("question"),
        Axis("ε spent", low=0.0),
        (
            Series("spent", tuple(map(float, range(1, len(running) + 1))), tuple(running), look=1),
            Series("allowed", (), (total,), kind="level", dashed=True, look=2),
        ),
        values=False,
    )
    rows = [(asker, f"{from_nano(nano):g}", odds(from_nano(nano))) for asker, nano in by.items()]
    header = ("who", "ε in all", "belief about one person")
    listed = table("By who asked.", header, rows)
    return join(lines(along), listed) if len(charges) > 1 else listed


_RULES = {
    "epsilon": "ε in all, for ever",
    "epsilon_per_request": "ε for one question, at most",
    "minimum_epsilon": "ε for one question, at least (less is all noise)",
    "epsilon_by_asker": "ε for each who asks, at most",
    "queries": "kinds of questions",
    "askers": "who may ask",
    "model": "about which model",
    "rows_per_person": "rows of one person that count",
    "rows": "about how many rows, as the owner tells",
    "budget": "whose budget: one for all (population) or each person's own (person)",
    "requests_per_hour": "questions an hour, at most",
    "approve": "every campaign needs the owner's approval",
    "secure.colluding": "secure sums: hospitals that may work with whoever asks, at least",
    "secure.roster": "secure sums: the roster that the owner accepted",
    "secure.min_honest": "secure sums: honest hospitals whose noise is in anything opened, at least",
    "secure.alone": "secure sums: times ε that everybody else together may learn, at most",
    "secure.epsilon_alone": "ε in all that everybody else together may ever learn",
    "secure.required": "nothing leaves but in secure sums",
}


def _rules(policy: dict[str, Any]) -> Html:
    rows = [
        (_RULES.get(name, name.replace("_", " ")), _rule(v)) for name, v in flat(policy).items()
    ]
    return table("The policy in force.", ("rule", ""), rows, sortable=False)


def _rule(value: object) -> str:
    if value is None:
        return "not limited"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {v}" for name, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def _owner(entries: list[Entry]) -> Html:
    rows = [
        (entry.time[:16].replace("T", " "), entry.kind, _act(entry))
        for entry in entries
        if entry.about is None
    ]
    return table("Rules, data, approvals and write-offs.", ("time (UTC)", "what", ""), rows)


def _act(entry: Entry) -> str:
    if entry.kind == "written off":
        return written_off_in_words(entry)
    try:
        known = json.loads(entry.what)
    except ValueError:
        return entry.what
    if not isinstance(known, dict):
        return entry.what
    if entry.kind == "data":  # a page may be mailed: the name of a file, not where it is
        data = Data.noted(known)
        return (
            data.path.name
            if data.value is None
            else f"{data.path.name} ({data.split} {data.value})"
        )
    if entry.kind == "approved":
        return f"campaign {known.get('campaign')} of {known.get('asker')}"
    known = {name: value for name, value in flat(known).items() if value is not None}
    return ", ".join(f"{name} {_rule(value)}" for name, value in known.items())


def description_page(description: Description) -> str:
    """One page for everybody who has to say yes, before anything is asked."""
    d = description
    lead = [
        f"Before anything is asked: what {d.asker} wants to know of each source about "
        f"{d.model or 'a model'}, why an owner may allow it, and what it costs.",
        "A model says how sure it is of each answer, and is often too sure where data differ from those "
        "it was made with. The answers of many sources, each hidden in noise, are enough to correct that.",
    ]
    sections = [
        Section("What is asked", join(_known(d), paragraphs(*([d.purpose] if d.purpose else [])))),
        Section("What leaves each source", join(items(d.leaves()), paragraphs(d.stays()))),
        Section("Why that is acceptable", items(d.acceptable())),
        Section("What it costs", items(d.costs())),
        Section("How owners know that they speak of the same", _digest(d)),
        Section("A policy that allows this and nothing else", _policy(d)),
    ]
    return page("A campaign, for approval", lead, sections)


def _known(d: Description) -> Html:
    options = ", ".join(f"{name} {value}" for name, value in (d.options or {}).items())
    known = {
        "asked by": d.asker,
        "contact": d.contact,
        "campaign": d.campaign,
        "model": d.model,
        "ε at each source": f"{d.epsilon:g}",
        "how": None if d.secure is None else "in a secure sum",
        "method": d.method,
        "options of the method": options,
        "sources, about": None if d.sources is None else f"{d.sources:,}",
        "public rows of the calibrator": None if d.public is None else f"{d.public['rows']:,}",
    }
    return facts({name: value for name, value in known.items() if value})


def _digest(d: Description) -> Html:
    return join(
        paragraphs(
            "The digest below is computed from who asks, the campaign, the model, and every question "
            "with its ε. The asker is shown the same one, and so is the owner, when the question "
            "arrives and when the campaign waits for approval: compare all its digits by telephone. "
            "An approval covers the questions with this digest and no others. Purpose, contact and "
            "method are the asker's words; they are not in it."
        ),
        tag("p", tag("code", d.digest), class_="card"),
    )


def _policy(d: Description) -> Html:
    return join(
        paragraphs(
            "An owner who says yes can write these rules into a file and give it to the source's ledger "
            "(privcal ledger create, or privcal ledger policy). With approve, the campaign still waits "
            "for a last word.",
            *(
                [
                    "A question by mail that nobody signed comes from the name with “(unsigned)” behind "
                    "it. Leave out the name that you do not expect."
                ]
                if len(d.askers) > 1
                else []
            ),
        ),
        tag(
            "div",
            tag("pre", tag("code", d.policy())),
            class_="scroll card",
            tabindex="0",
            role="region",
            aria_label="policy",
        ),
    )
