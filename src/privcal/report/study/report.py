"""A study as one HTML page: the picture first, then tables, and of the paper's own study its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privcal.data.html import slug
from privcal.lab.study.claims import THEORY, Claim, claims_of, in_short
from privcal.lab.study.results import Results, shown
from privcal.lab.study.verdict import FAILS, HOLDS, UNKNOWN
from privcal.planning.simulate.variants import UNCALIBRATED, Variant
from privcal.report.pages import Html, Node, Section, items, join, page, save, table, tag
from privcal.report.study.explorer import each_shift, explorer, factor_charts, of_study, script
from privcal.report.study.ranking import (
    beside_the_paper,
    ece_against_others,
    medians,
    more_helps_table,
)
from privcal.report.study.tables import Table, all_tables, overall

StepDone = Callable[[str, int, int], None]
"""Called with what is made next, and how many of how many parts are done."""


def write(
    results: Results,
    path: str | Path,
    factors: Results | None = None,
    progress: StepDone | None = None,
) -> Path:
    """Write the page. `results` may itself be a study of factors; then it has only that part."""
    main: Results | None = results
    if results.is_factors:
        main, factors = None, results
    return save(path, _page(main, factors, progress or (lambda *_: None)))


def _page(main: Results | None, factors: Results | None, progress: StepDone) -> str:
    study = main or factors
    assert study is not None
    document: dict[str, Any] | None = None
    sections: list[Section] = []
    progress("pictures", 0, 4)
    if main is not None:
        document = of_study(main)
        sections.append(
            Section("What each method does", explorer(document), "explorer", heading=False)
        )
    progress("tables", 1, 4)
    if main is not None and document is not None:
        sections += _main_sections(main, document)
    progress("factors", 2, 4)
    if factors is not None and factors.perturbations:
        sections.append(Section("What helps and what hurts", _factors(factors), "factors"))
    progress("the paper's claims", 3, 4)
    sections += papers_sections(main, factors)
    sections.append(Section("How this was made", items(_method(study)), "method"))
    made = page(
        f"Recalibration under differential privacy: {study.title}",
        _lead(main, study),
        sections,
        script=script() if document is not None else "",
        data=document,
        made=_facts(study),
    )
    progress("written", 4, 4)
    return made


def _lead(main: Results | None, study: Results) -> list[str]:
    """What was found, in sentences about this archive."""
    if main is None or not main.perturbations:
        return [f"What was measured on {study.title}: {_facts(study)}"]
    eces, briers = medians(main, "ece_mean"), medians(main, "brier_mean")
    best, nothing = next(iter(eces)), Variant(UNCALIBRATED)
    before = f"; {nothing}: {shown(eces[nothing])}" if nothing in eces else ""
    sharp = next(iter(briers))
    brier = f"the lowest median Brier score, {shown(briers[sharp])}"
    return [
        f"Over {len(main.perturbations)} shifts of {main.dataset} and "
        f"{len(main.config['settings'])} settings, {best} has the lowest median ECE "
        f"({shown(eces[best])}{before}) and {'' if sharp == best else f'{sharp} has '}{brier}."
    ]


def _facts(study: Results) -> str:
    config = study.config
    return (
        f"{len(config['shifts'])} shifts × {len(config['settings'])} settings × "
        f"{len(config['methods'])} {'variants' if study.is_factors else 'methods'} × "
        f"{study.trials:,} trials; grid {config['grid']}, {_public(study)}"
        f"seed {config.get('seed', 0)}."
    )


def _public(study: Results) -> str:
    rows = study.config.get("public_rows", 0)
    return f"{rows:,} public rows, " if rows else ""


# --- sections ----------------------------------------------------------------------------


def _main_sections(main: Results, document: dict[str, Any]) -> list[Section]:
    sections = [Section("Every shift", each_shift(document), "shifts")]
    if main.perturbations:
        title = "The paper's Table 1" if main.reported else "All shifts together"
        sections.append(Section(title, page_table(overall(main)), "table"))
        sections.append(Section("ECE beside Brier and AURC", _beside(main), "brier"))
        helps = page_table(more_helps_table(main))
        sections.append(Section("More sources, samples, ε", helps, "more"))
    rest = [table for table in all_tables(main) if table.name != "overall"]
    return [*sections, Section("Shift by shift", join(*map(page_table, rest)), "tables")]


def _beside(main: Results) -> Html:
    mislead = (
        "The ECE alone can mislead: a constant confidence equal to the accuracy has almost none, "
        "and tells nobody which answers to trust. The Brier score, the mean squared error of the "
        "confidence, does not forgive that. The area under the risk–coverage curve (AURC), the mean "
        "error rate of the k most confident rows over all k, asks only whether right answers come "
        "before wrong ones. Both stand beside the ECE here."
    )
    return join(tag("p", mislead), items(ece_against_others(main)))


def _factors(factors: Results) -> Html:
    about = tag("p", f"{factors.title}; {_facts(factors)}", class_="soft")
    return join(about, factor_charts(factors), *map(page_table, all_tables(factors)))


def _method(study: Results) -> list[str]:
    notes = [
        "For each trial the rows of a shift are split at random into sources of equally many rows "
        "and a test set of all the rest; a method asks the sources, with noise; ECE (15 bins of "
        "equal width), Brier and AURC are measured on the test set and averaged over trials.",
        "Noise is simulated here, from the law that real sources' noise has; the methods' code is "
        "the one that ships.",
        "ε is what each source spends on one run. one-source, one-source-nll and one-source-ece are "
        "one source's own fits, by accuracy, by NLL and by ECE, without noise: they never leave it.",
    ]
    if study.secure:
        notes.append(
            f"{study.secure} All sources answer here. The paper has nothing like it: what is compared "
            "with it are the methods without."
        )
    if study.reported:
        notes += [
            "A verdict rests on differences larger than 1.96 standard errors over trials; where it "
            "says “best”, “good” or “on a par”, the rule is in the text. It is about this network "
            "and these perturbations.",
            "Acc-T, NLL-T, ECE-T, histogram binning, no recalibration (uncalibrated) and one source "
            "are the paper's. It does not say how it fits one source; of the ways to do so, ECE-T's "
            "own search on that source's rows, without noise (one-source-ece), comes nearest to its "
            "figures. Every other name is a method it does not have.",
        ]
    if "skew" in study.sweeps:
        notes.append(
            "Along skew, sources are not alike: their sizes are log-normal, and each has its own "
            "proportions of labels (in the shift “mixed”, of shifts), from a Dirichlet law whose "
            "concentration is the skew times the overall proportions. Averages of sums over the "
            "same rows do not depend on who holds them, so methods that ask for sums notice only "
            "that the private rows together differ in make-up from the test rows."
        )
    if _public(study):
        notes.append(
            "Public rows are unperturbed ones, set aside at random and the same for all shifts: "
            "never private and never tested on. A method named with “public” was given them, "
            "with their labels."
        )
    if study.paper and study.remark:
        notes.append(study.remark)
    return notes


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


def page_table(shown: Table) -> Html:
    """With its title; the paper's columns stand back, and headings sort."""
    theirs = {c for c, heading in enumerate(shown.header) if "(paper)" in heading}
    made = table(
        shown.caption,
        shown.header,
        shown.rows,
        strong=shown.best,
        noted=shown.marked,
        soft=theirs,
        id=f"table-{shown.name}",
    )
    return join(tag("h3", shown.title), made)
