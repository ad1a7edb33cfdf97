"""A campaign as a page for approval: what leaves each site, why that is acceptable, what it costs."""

from __future__ import annotations

from privcal.description import Description
from privcal.pages import Html, Section, facts, items, join, page, paragraphs, tag


def description_page(description: Description) -> str:
    """One page for everybody who has to say yes, before anything is asked."""
    d = description
    who = d.asker or "a calibrator"
    lead = [
        f"Before anything is asked: what {who} wants to know of each source about "
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
            "The digest below is computed from the facts of this page. Owners who read out the same "
            "digits to each other, all of them, were shown the same facts; if any fact differs, the "
            "digest does."
        ),
        tag("p", tag("code", d.spoken), class_="card"),
        *([] if d.questions is None else [_questions(d.questions)]),
    )


def _questions(digest: str) -> Html:
    return join(
        paragraphs(
            "Whoever asks was shown this digest of the questions when the file was written:"
        ),
        tag("p", tag("code", digest), class_="card"),
    )


def _policy(d: Description) -> Html:
    return join(
        paragraphs(
            "An owner who says yes can write these rules into a file and give it to the source's ledger "
            "(privcal ledger create, or privcal ledger policy). With approve, the campaign still waits "
            "for a last word."
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
