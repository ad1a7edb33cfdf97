"""The figures the paper reports, under our names, and what they may be set beside: a study like the paper's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from privcal.data.wording import plural
from privcal.lab.study.grids import GRIDS, Setting, most_rows
from privcal.planning.simulate.archive import CLEAN, DRAWN_FROST, MADE_HERE, Archive
from privcal.planning.simulate.variants import ONE_SOURCE, ONE_SOURCE_ECE, UNCALIBRATED, Variant
from privcal.trusted.errors import InputError

ACC_T, NLL_T, ECE_T = Variant("acc-t"), Variant("nll-t"), Variant("ece-t")
ONE = Variant(ONE_SOURCE_ECE)
OUR_ONE = Variant(ONE_SOURCE)
"""The better fit of one source, by accuracy, which the paper does not have."""
NOTHING = Variant(UNCALIBRATED)
METHODS = (NOTHING, ONE, Variant("histogram-binning"), ECE_T, NLL_T, ACC_T)
"""The paper's methods, in the order of its Table 1."""
PRIVATE = METHODS[2:]
"""Those that ask the sources, and so pay for their answers with noise."""


@dataclass(frozen=True)
class Reported:
    """What the paper reports for one data set."""

    name: str
    classes: int
    rows: int
    """Of its test set."""
    grid: str
    """The name of its settings."""
    severity: int
    under_privacy: dict[Variant, dict[str, float]]
    """ECE by method, `median` and `mean`: its Table 1."""
    without_privacy: dict[str, dict[str, float]]
    """ECE by shift and exact fit."""
    accuracy: dict[str, float]
    """By shift."""


def reported(dataset: str) -> Reported | None:
    """What the paper has for a data set of this name, whatever the spelling; None: nothing.

    Whether a study is like the paper's is another question, for `match_study`.
    """
    facts = _facts()
    spelt = _SPELT.match(dataset.strip().lower())
    if spelt is None:
        return None
    figures = facts["datasets"][re.sub(r"[^a-z0-9]", "", spelt[1])]
    under_privacy = {Variant(name): ece for name, ece in figures["under_privacy"].items()}
    return Reported(**{**figures, "severity": facts["severity"], "under_privacy": under_privacy})


# The name, a C for the perturbed version, and after the C what a file name may add. Nothing
# else: CIFAR-10.1, ImageNet-V2 and Tiny-ImageNet-C are other data sets.
_SPELT = re.compile(r"(cifar[-_ ]?100?|imagenet)(?:[-_ ]?c(?:[_ ,.(].*)?)?$")


@cache
def _facts() -> dict[str, Any]:
    text = (files("privcal.lab.study") / "paper.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts


# --- Whether a study, or an archive, is like the paper's ------------------------------------------


@dataclass(frozen=True)
class Differs:
    """The paper has figures for this data set, but for something else than what is here."""

    name: str
    """The paper's name of the data set."""
    what: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"The paper's figures for {self.name} are left out, because this is not what it "
            f"measured: {'; '.join(self.what)}."
        )


def match_data(
    dataset: str, severity: int | None, rows: int, classes: int
) -> Reported | Differs | None:
    """The paper's figures for a data set; or what differs; or None, if it has no such data set.

    A severity that nobody states is taken to be the paper's; `Results.remark` says so.
    """
    paper = reported(dataset)
    if paper is None:
        return None
    severity = stated_severity(dataset, severity)
    what = []
    if severity not in (None, paper.severity):
        what.append(f"severity {severity}, not {paper.severity}")
    if classes != paper.classes:
        what.append(f"{classes:,} classes, not {paper.classes:,}")
    if rows != paper.rows:
        what.append(f"{rows:,} rows, not {paper.rows:,}")
    return Differs(paper.name, tuple(what)) if what else paper


def match_study(
    data: Reported | Differs | None,
    grid: str,
    settings: Sequence[Setting],
    perturbations: Sequence[str],
) -> Reported | Differs | None:
    """The same of a whole study, whose data matched as `data` says."""
    if data is None:
        return None
    paper = reported(data.name)
    assert paper is not None
    what = list(data.what) if isinstance(data, Differs) else []
    theirs = set(paper.accuracy) - {CLEAN}
    if missing := theirs - set(perturbations):
        what.append(f"{len(theirs - missing)} of its {len(theirs)} perturbations")
    if others := [s for s in perturbations if s not in theirs]:
        count = plural(len(others), "perturbation")
        what.append(f"{count} that it does not have ({', '.join(others)})")
    papers = GRIDS[paper.grid]
    if any(setting.skew < float("inf") for setting in settings):
        what.append("sources that are not alike")
    elif set(settings) != set(papers):
        what.append(
            f"the settings of grid {grid} ({len(settings)}), not of {paper.grid} ({len(papers)})"
        )
    return Differs(paper.name, tuple(what)) if what else paper


def stated_severity(dataset: str, severity: int | None) -> int | None:
    """The severity, which a file's name may state where its meta does not."""
    stated = re.search(r"severity\D*(\d)", dataset.lower())
    return int(stated[1]) if severity is None and stated else severity


def made_here(corrupted: str | None, frost: str | None) -> str:
    """A sentence for images that were corrupted here; empty for others, and where nobody says."""
    if corrupted != MADE_HERE:
        return ""
    with_frost = "" if frost is None else f", frost {_frost(frost)}"
    return f"The corruptions were made here{with_frost}; they are not the published images."


def _frost(frost: str) -> str:
    return "drawn" if frost in DRAWN_FROST else "from photographs"


def grid_for(archive: Archive) -> tuple[str, str]:
    """The grid for an archive where nobody chose one, and why it is that one."""
    paper, rows = reported(archive.dataset), archive.rows
    if paper and paper.classes == archive.classes and rows > most_rows(GRIDS[paper.grid]):
        return paper.grid, f"the paper's for {paper.name}"
    large, small = "imagenet", "cifar"
    if rows <= most_rows(GRIDS[small]):
        raise InputError(
            f"{archive.dataset} has {rows:,} rows, too few for the paper's grids (the smaller, {small}, "
            f"takes {most_rows(GRIDS[small]):,} private ones); give a grid of your own (a TOML file)"
        )
    if rows >= 2 * most_rows(GRIDS[large]):
        return large, f"the larger one of the paper's, since {archive.dataset} has {rows:,} rows"
    return small, f"the smaller one of the paper's, since {archive.dataset} has {rows:,} rows"
