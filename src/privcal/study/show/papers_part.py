"""The part of a study's page that is about the paper: its claims, checked with this study's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privcal.pages import Html, Node, Section, items, join, tag
from privcal.pages.html import slug
from privcal.study.paper.claim import FAILS, HOLDS, UNKNOWN, Claim
from privcal.study.paper.claims import claims_of
from privcal.study.paper.overall import in_short
from privcal.study.paper.ranking import beside_the_paper
from privcal.study.paper.theory import THEORY
from privcal.study.results import Results
from privcal.study.show.page_table import page_table

CSS_CLASSES = {HOLDS: "holds", FAILS: "fails"}
VERDICT_MARKS = {HOLDS: "✓", FAILS: "✗"}


def papers_sections(main: Results | None, factors: Results | None) -> list[Section]:
    """None of a study that is not the paper's: its claims are about its own data and settings."""
    if not (main.reported if main is not None else factors is not None and factors.paper):
        return []
    claims = claims_of(main, factors)
    decided = {
        topic: told
        for topic, group in claims.items()
        if (told := [claim for claim in group if claim.verdict != UNKNOWN])
    }
    undecided = [c for group in claims.values() for c in group if c.verdict == UNKNOWN]
    sections = [
        Section(
            "The paper's claims, in short", _summary(decided, undecided, main, factors), "claims"
        ),
        Section("The paper's claims, one by one", _claims(decided), "each-claim"),
    ]
    ranked = None if main is None else beside_the_paper(main)
    if ranked is not None:
        table, notes = ranked
        made = join(page_table(table), items(notes))
        sections.append(Section("The order of the methods, here and in the paper", made, "ranking"))
    theory = Section("What the paper proves, and where it slips", items(THEORY), "theory")
    return [*sections, theory]


def _summary(
    decided: Mapping[str, Sequence[Claim]],
    undecided: Sequence[Claim],
    main: Results | None,
    factors: Results | None,
) -> Html:
    every = [claim for group in decided.values() for claim in group]
    counts = {verdict: sum(c.verdict == verdict for c in every) for verdict in (HOLDS, FAILS)}
    text = (
        f"Of {len(every)} claims of the paper about its methods that this study can tell, "
        f"{counts[HOLDS]} hold and {counts[FAILS]} do not.{in_short(main)}"
    )
    groups = (
        tag("div", tag("h3", topic), tag("ul", *map(_line, group)), class_="card")
        for topic, group in decided.items()
    )
    cards = tag("div", *groups, class_="cards")
    return join(tag("p", text), _more(undecided, factors), cards)


def _more(undecided: Sequence[Claim], factors: Results | None) -> Html | None:
    """What to run for the others: said once, here."""
    if not undecided:
        return None
    opening = f"{len(undecided)} more would take more than was run: "
    run: tuple[Node, ...] = ("all of the paper's methods, its grid, or more trials.",)
    if factors is None:
        run = (
            "a study of factors (",
            tag("code", "privcal study run --grid factors --out factors"),
            ", then ",
            tag("code", "privcal study report STUDY --factors factors"),
            ") for most of them, all methods and more trials for the rest.",
        )
    names = tag(
        "details",
        tag("summary", "Which they are"),
        tag("ul", *(tag("li", f"{c.name}. {c.reading}".replace("`", "")) for c in undecided)),
    )
    return join(tag("p", opening, *run), names)


def _line(claim: Claim) -> Html:
    return tag("li", tag("a", claim.name, href=f"#claim-{slug(claim.name)}"), " ", _badge(claim))


def _claims(claims: Mapping[str, Sequence[Claim]]) -> Html:
    return join(*(join(tag("h3", topic), *map(_claim, group)) for topic, group in claims.items()))


def _claim(claim: Claim) -> Html:
    return tag(
        "article",
        tag("h4", claim.name, ": ", _badge(claim)),
        tag("p", f"The paper: {claim.statement}", class_="soft"),
        tag("p", claim.reading),
        items(claim.details) if claim.details else None,
        class_="card",
        id=f"claim-{slug(claim.name)}",
    )


def _badge(claim: Claim) -> Html:
    said = f"{VERDICT_MARKS[claim.verdict]}\u00a0{claim.verdict}"
    return tag("span", said, class_=f"verdict {CSS_CLASSES[claim.verdict]}")
