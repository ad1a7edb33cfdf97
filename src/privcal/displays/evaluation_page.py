"""An evaluation as a page: of rows one may look at, or of hidden ones from a sketch."""

from __future__ import annotations

from privcal.displays import parts
from privcal.displays.diagram import Diagram
from privcal.displays.reliability import ReliabilityDisplay
from privcal.displays.risk import RiskDisplay
from privcal.evaluation import Evaluation
from privcal.pages import Section, charts, join, page, paragraphs


def displays_of(results: dict[str, Evaluation]) -> list[tuple[str, Diagram]]:
    """A diagram for each evaluation: of the risk where one was measured."""
    return [
        (
            when,
            ReliabilityDisplay.from_evaluation(result)
            if result.risk is None
            else RiskDisplay.from_evaluation(result),
        )
        for when, result in results.items()
    ]


def evaluation_page(name: str, results: dict[str, Evaluation]) -> str:
    """The page of some labelled rows, before and (where there is a map) after it."""
    before = results["before"]
    lead = f"How far the claims of a model hold, measured on {before.rows:,} rows of {name}."
    pictures = [parts.picture(d, when.capitalize()) for when, d in displays_of(results)]
    sections = [
        Section("What it says", join(paragraphs(*_findings(results)), charts(*pictures))),
        Section("All measures", parts.measured(results)),
        Section(
            "What this page holds",
            paragraphs(
                "Exact figures of these rows: no privacy is involved. Whoever may not see the rows may "
                "not see this page."
            ),
        ),
    ]
    return page("How good a model's claims are", lead, sections)


def _findings(results: dict[str, Evaluation]) -> list[str]:
    return [
        (_claims if result.risk is None else _risks)(
            "The model by itself" if when == "before" else "After the map it", result
        )
        for when, result in results.items()
    ]


def _claims(who: str, result: Evaluation) -> str:
    return (
        f"{who} claims to be right {100 * result.mean_confidence:.0f} times in 100, and is right "
        f"{100 * result.accuracy:.0f} times. Its claims are off by {100 * result.ece:.1f} points in 100, "
        "on average (ECE)."
    )


def _risks(who: str, result: Evaluation) -> str:
    risk = result.risk
    assert risk is not None
    return (
        f"{who} expects {100 * risk.risk:.1f} cases of class {risk.event} in 100 rows, and there are "
        f"{100 * risk.prevalence:.1f}: {risk.observed_expected:.2f} for each that is expected. The "
        f"calibration slope is {risk.slope:.2f} (1 is right)."
    )
