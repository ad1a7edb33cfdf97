"""A sketch, and what it says, as a page."""

from __future__ import annotations

import math

from privcal.displays import parts
from privcal.displays.estimates import Estimated, display_of
from privcal.pages import Html, Section, facts, join, page, paragraphs, table
from privcal.privacy.epsilon import from_nano
from privcal.sketch.answers import SketchTotal
from privcal.sketch.sketch import Sketch
from privcal.wording import plural

NEEDS_PUBLIC = (
    "This sketch was taken with public rows of the calibrator. What it says can be read only with the "
    "same rows (privcal sketch show with --public)."
)


def sketch_page(sketch: Sketch, evaluation: Estimated | None, name: str) -> str:
    """The page of a sketch; without an evaluation, what is in it but not what it says."""
    secure = bool(sketch.totals)
    alone = max(sketch.alone.values()) if secure else None
    counted = {
        "sources": f"{len(sketch.nano_spent):,}",
        "answers": f"{sketch.count:,}",
        "ε at each source, at most": f"{sketch.epsilon:g}",
    }
    sections = [
        *said(evaluation, sketch.epsilon),
        Section("What left each source", parts.what_left(sketch.query.describe(), together=secure)),
        Section(
            "What it cost", join(facts(counted), parts.cost(sketch.epsilon, parts.UNIT, alone))
        ),
        Section("Who answered", _who(sketch)),
        Section("The noisy totals", _totals(sketch)),
    ]
    return page("What a sketch says", _lead(sketch), sections, made=f"From the sketch {name}.")


def _lead(sketch: Sketch) -> str:
    sources, model = plural(len(sketch.nano_spent), "source"), sketch.model or "a model"
    how, noisy = "each with random noise added on its own machine", "noisy answers"
    if sketch.totals:
        how += ", sealed so that only a total of many could be opened"
        noisy = "noisy totals"
    if sketch.totals and sketch.answers:
        how, noisy = (
            "by itself or in a sealed total of many, each with noise",
            "noisy answers and totals",
        )
    return (
        f"{sources} answered a question about {model}, {how}. This page shows what can be read off the "
        f"{noisy}. Reading them costs no further privacy."
    )


def said(evaluation: Estimated | None, epsilon: float) -> list[Section]:
    """What a sketch found, with its picture and its estimates."""
    if evaluation is None:
        return [Section("What it says", paragraphs(NEEDS_PUBLIC))]
    words = parts.findings(evaluation)
    shown = parts.picture(display_of(evaluation, epsilon), "Claimed and true")
    return [
        Section("What it says", join(paragraphs(*words), shown)),
        Section("Estimates", parts.estimates(evaluation)),
    ]


def _who(sketch: Sketch) -> Html:
    return join(
        _answers(sketch) if sketch.answers else None, *(_total(total) for total in sketch.totals)
    )


def _answers(sketch: Sketch) -> Html:
    rows = [
        (
            a.source,
            a.asker,
            a.campaign,
            f"{from_nano(a.nano_epsilon):g}",
            parts.odds(from_nano(a.nano_epsilon)),
        )
        for a in sketch.answers
    ]
    header = (
        "source",
        "asked by",
        "campaign",
        "ε",
        "what somebody may come to believe of one person",
    )
    return table("Every answer, and what it cost its source.", header, rows)


def _total(total: SketchTotal) -> Html:
    epsilon, alone = from_nano(total.nano_epsilon), from_nano(total.nano_alone)
    known = {
        "asked by": total.asker,
        "campaign": total.campaign,
        "sources in it": f"{len(total.sources):,}",
        "groups, of which the median counts": str(total.noise.groups),
        "ε at each source": f"{epsilon:g} ({parts.odds(epsilon)})",
        "ε if all others work together": f"{alone:g} ({parts.odds(alone)})",
        "its noise": total.noise.describe(),
    }
    if total.noise.groups == 1:
        del known["groups, of which the median counts"]
    listed = table(
        "Whose answers are in the total; nobody saw one of them.",
        ("group", "sources"),
        [(str(group), ", ".join(part.sources)) for group, part in enumerate(total.parts, 1)],
        sortable=False,
    )
    if total.noise.groups == 1:
        listed = paragraphs(f"In it: {', '.join(total.parts[0].sources)}.")
    return join(facts(known), listed)


def _totals(sketch: Sketch) -> Html:
    count, knots = sketch.count, sketch.query.knots
    deviation = count * math.sqrt(sketch.noise_variance)
    totals = sketch.average * count
    places = max(0, 1 - math.floor(math.log10(deviation)))  # more digits would be noise alone
    event = sketch.query.event
    halves = ("wrong", "right") if event is None else ("other classes", f"class {event}")
    rows = [
        (f"{100 / (1 + math.exp(-knot)):.3g} %", float(wrong), float(right))
        for knot, wrong, right in zip(
            knots, totals[: len(knots)], totals[len(knots) :], strict=True
        )
    ]
    caption = (
        "What all answers add up to, around each claim of the model. These are no counts: each has "
        f"noise of standard deviation {deviation:.3g}, and may be negative."
    )
    return table(caption, ("claimed", *halves), rows, digits=places, sortable=False)
