"""A study as one HTML page: the picture first, then tables, and of the paper's own study its claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from privcal.pages import Html, Section, items, join, page, save, tag
from privcal.simulate.variants import UNCALIBRATED, Variant
from privcal.study.paper.ranking import ece_against_others, medians
from privcal.study.paper.sweeps import more_helps_table
from privcal.study.results import Results
from privcal.study.show import explorer
from privcal.study.show.factor_charts import factor_charts
from privcal.study.show.page_table import page_table
from privcal.study.show.papers_part import papers_sections
from privcal.study.show.tables import all_tables, overall
from privcal.study.table import shown

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
        document = explorer.of_study(main)
        sections.append(
            Section("What each method does", explorer.explorer(document), "explorer", heading=False)
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
        script=explorer.script() if document is not None else "",
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
    sections = [Section("Every shift", explorer.each_shift(document), "shifts")]
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
