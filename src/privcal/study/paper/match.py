"""Whether a study, or an archive, is like the paper's: only then are its figures set beside ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from privcal.errors import InputError
from privcal.simulate.archive import CLEAN, DRAWN_FROST, MADE_HERE, Archive
from privcal.study.grids import GRIDS, Setting, most_rows
from privcal.study.paper.reported import Reported, reported
from privcal.wording import plural


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
