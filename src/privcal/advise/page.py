"""The plan as a page: what to do in words, what to expect as pictures, sliders to other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from privcal.pages import (
    Axis,
    Chart,
    Html,
    Section,
    Series,
    charts,
    facts,
    items,
    join,
    lines,
    page,
    paragraphs,
    table,
    tag,
)
from privcal.privacy.epsilon import as_odds
from privcal.simulate.aggregation import EACH
from privcal.simulate.variants import UNCALIBRATED, Variant
from privcal.study.show.styles import styles

Document = Mapping[str, Any]
"""A plan as `Plan.to_dict` has it."""

MEASURES = {"ece": "ECE", "brier": "Brier score"}
TITLES = {measure: f"Expected {name}" for measure, name in MEASURES.items()}
ALONG = {"epsilons": "ε at each source", "sources": "sources", "samples": "rows of each source"}
BANDS = "Band: 10th to 90th percentile over shifts, of the recommended method."


def plan_page(plan: Document, methods: Sequence[Variant]) -> str:
    """`methods`: those of the plan's table, in its order."""
    looks = [
        _series(method, expected)
        for method, expected in zip(methods, plan["point"]["expected"], strict=True)
    ]
    sections = [Section("What to expect", _pictures(plan, looks), heading=False)]
    sections += [
        Section("All methods at this setting", _table(plan)),
        Section("What it costs", _costs(plan)),
        Section("What this rests on", _basis(plan)),
    ]
    around = plan["around"]
    return page(
        f"A plan: {_setting(plan)}",
        join(
            tag(
                "p", tag("strong", plan["recommendation"]), id="recommendation", aria_live="polite"
            ),
            tag("p", plan["enough"]["sentence"], id="enough", class_=plan["enough"]["verdict"]),
        ),
        sections,
        script=(files("privcal.advise") / "plan.js").read_text("utf-8") if around else "",
        data=_data(plan, looks) if around else None,
        made=f"Simulated with seed {plan['basis']['seed']}; nobody was asked.",
    )


def _setting(plan: Document) -> str:
    repeated = plan["repeated"]
    sources = f"{plan['sources']:,} sources of {plan['samples']:,} rows{_summed(plan)}"
    if repeated is not None:
        return (
            f"{repeated['campaigns']:,} campaigns at {sources}, ε = {repeated['epsilon']:g} in all"
        )
    return f"{sources}, ε = {plan['epsilon']:g} at each"


def _summed(plan: Document) -> str:
    return "" if plan["aggregation"] == EACH else " in secure sums"


def _series(method: Variant, expected: Document) -> Series:
    """How a method looks in every picture of the page; what asks nobody is dashed."""
    look = styles([method])[method].look
    asks = bool(expected["private"])
    return Series(str(method), (), (), look=look, dashed=not asks, marked=asks)


# --- pictures ----------------------------------------------------------------------------------


def _pictures(plan: Document, looks: Sequence[Series]) -> Html:
    if plan["around"] is not None:
        drawn = charts(*(lines(_around_chart(plan, looks, measure)) for measure in MEASURES))
        return join(_controls(plan["around"], plan), drawn)
    if plan["repeated"] is not None:
        return charts(*(lines(_campaign_chart(plan, measure)) for measure in MEASURES))
    if plan["search"] is not None:
        return charts(*(lines(_search_chart(plan, looks, measure)) for measure in MEASURES))
    return charts(*(lines(_bar_chart(plan, measure)) for measure in MEASURES))


def _around_chart(plan: Document, looks: Sequence[Series], measure: str) -> Chart:
    """Along ε at the recommended setting; plan.js draws the others."""
    around = plan["around"]
    epsilons = around["epsilons"]
    start = _place(plan) - epsilons.index(plan["epsilon"])
    along = [spot[measure] for spot in around["spots"][start : start + len(epsilons)]]
    return _lines(plan, looks, measure, ALONG["epsilons"], epsilons, along, plan["epsilon"])


def _search_chart(plan: Document, looks: Sequence[Series], measure: str) -> Chart:
    search = plan["search"]
    along = [
        [tuple(e[measure][name] for name in ("mean", "low", "high")) for e in point["expected"]]
        for point in search["points"]
    ]
    name = ALONG["epsilons" if search["over"] == "epsilon" else "sources"]
    return _lines(plan, looks, measure, name, search["grid"], along, plan[search["over"]])


def _lines(
    plan: Document,
    looks: Sequence[Series],
    measure: str,
    name: str,
    x: Sequence[float],
    along: Sequence[Sequence[tuple[float, float, float]]],
    at: float,
) -> Chart:
    chosen = _index(plan)
    series = [_line(look, x, [p[i] for p in along], i == chosen) for i, look in enumerate(looks)]
    if plan["target_ece"] is not None and measure == "ece":
        series.append(_target(plan["target_ece"]))
    ring = Series("recommended", (at,), (along[list(x).index(at)][chosen][0],), kind="ring")
    low, high = _limits(plan, measure)
    axis = Axis(MEASURES[measure], low=low, high=high, digits=3)
    return Chart(TITLES[measure], BANDS, Axis(name, log=True), axis, (*series, ring))


def _target(ece: float) -> Series:
    return Series("target", (), (ece,), kind="level", look=5)


def _line(
    look: Series, x: Sequence[float], values: Sequence[tuple[float, float, float]], strong: bool
) -> Series:
    mean, low, high = zip(*values, strict=True)
    return Series(
        look.name, tuple(x), mean, low if strong else None, high if strong else None,
        look=look.look, dashed=look.dashed, marked=look.marked, strong=strong,
    )  # fmt: skip


def _bar_chart(plan: Document, measure: str) -> Chart:
    expected = plan["point"]["expected"]
    series = Series(
        MEASURES[measure],
        tuple(map(float, range(len(expected)))),
        tuple(e[measure]["mean"] for e in expected),
        tuple(e[measure]["low"] for e in expected),
        tuple(e[measure]["high"] for e in expected),
        kind="points",
        look=4,
    )
    names = tuple(e["method"] for e in expected)
    about = "Mean over shifts; the whisker goes from the 10th to the 90th percentile."
    axis = Axis(MEASURES[measure], low=0.0, digits=3)
    return Chart(TITLES[measure], about, Axis("method", names=names), axis, (series,), legend=False)


def _campaign_chart(plan: Document, measure: str) -> Chart:
    repeated = plan["repeated"]
    numbers = tuple(float(i + 1) for i in range(repeated["campaigns"]))
    series = [
        Series(
            f"{course['method']}, budget = \"{course['budget']}\"", numbers, tuple(course[measure]),
            look=look, strong=course["budget"] == repeated["recommended"],
        )
        for course, look in ((repeated["population"], 1), (repeated["person"], 4))
    ]  # fmt: skip
    series += [
        Series(e["method"], (), (e[measure]["mean"],), kind="level", look=look)
        for e, look in zip(plan["point"]["expected"], (0, 5, 7, 9), strict=False)
        if not e["private"]
    ]
    axis = Axis(MEASURES[measure], low=0.0, digits=3)
    return Chart(
        TITLES[measure],
        "The best method of each budget.",
        Axis("campaign", digits=0),
        axis,
        tuple(series),
    )


def _limits(plan: Document, measure: str) -> tuple[float, float]:
    """The same for all settings, so that pictures can be compared. What is worse than doing nothing
    need not be seen in full."""
    spots = plan["around"]["spots"] if plan["around"] else [_as_spot(plan)]
    best = [spot[measure][spot["method"]] for spot in spots]
    nothing = [spot[measure][0][0] for spot in spots]
    low = 0.0 if measure == "ece" else 0.9 * min(p[1] for p in best)
    return low, max(1.15 * max(nothing), 1.05 * max(p[2] for p in best))


# --- sliders -----------------------------------------------------------------------------------


def _controls(around: Document, plan: Document) -> Html:
    now = {"epsilons": plan["epsilon"], "sources": plan["sources"], "samples": plan["samples"]}
    sliders = [_slider(name, around[name], value) for name, value in now.items()]
    options = (tag("option", label, value=name) for name, label in ALONG.items())
    along = tag("label", "pictures along", tag("select", *options, id="along"))
    ranges = tag("label", tag("input", type="checkbox", id="ranges"), "ranges of all methods")
    form = tag("form", *sliders, along, ranges, class_="controls js", aria_label="Another setting")
    off = "The pictures are about the setting above; with JavaScript, sliders lead to others."
    return join(form, tag("p", off, class_="soft no-js"))


def _slider(name: str, values: Sequence[float], value: float) -> Html:
    """Its places are the values of the grid."""
    said = f"{value:,g}"
    last, at = len(values) - 1, list(values).index(value)
    moved = tag("input", type="range", id=name, max=last, value=at, aria_valuetext=said)
    shown = tag("output", said, id=f"{name}-value", for_=name)
    return tag("div", tag("label", ALONG[name], for_=name), shown, moved, class_="slider")


def _data(plan: Document, looks: Sequence[Series]) -> Document:
    """For plan.js."""
    around = plan["around"]
    return {
        **around,
        "at": {"epsilons": plan["epsilon"], "sources": plan["sources"], "samples": plan["samples"]},
        "odds": [_odds(epsilon) for epsilon in around["epsilons"]],
        "looks": [{"name": s.name, "look": s.look, "dashed": s.dashed, "marked": s.marked} for s in looks],
        "labels": ALONG,
        "measures": {
            measure: {"title": TITLES[measure], "label": label, "low": limits[0], "high": limits[1]}
            for measure, label in MEASURES.items()
            if (limits := _limits(plan, measure))
        },
        "bands": BANDS,
        "summed": _summed(plan),
        "target": plan["target_ece"],
    }  # fmt: skip


def _place(plan: Document) -> int:
    """The place of the recommended setting among the spots."""
    around, place = plan["around"], 0
    for name, value in (
        ("samples", plan["samples"]),
        ("sources", plan["sources"]),
        ("epsilons", plan["epsilon"]),
    ):
        place = place * len(around[name]) + around[name].index(value)
    return place


def _index(plan: Document) -> int:
    """The place of what to use among the methods."""
    if plan["around"] is not None:
        return int(plan["around"]["spots"][_place(plan)]["method"])
    names = [e["method"] for e in plan["point"]["expected"]]
    return names.index(UNCALIBRATED if plan["leave_alone"] else plan["method"])


def _as_spot(plan: Document) -> Document:
    expected = plan["chosen"]["expected"]
    return {
        "method": _index(plan),
        **{m: [[e[m][k] for k in ("mean", "low", "high")] for e in expected] for m in MEASURES},
    }


# --- words -------------------------------------------------------------------------------------


def _table(plan: Document) -> Html:
    expected = plan["chosen"]["expected"]
    rows = [
        [
            e["method"], e["ece"]["mean"], _range(e["ece"]), e["ece_if_right"]["mean"],
            e["brier"]["mean"], _range(e["brier"]), e["aurc"]["mean"],
        ]
        for e in expected
    ]  # fmt: skip
    chosen = _index(plan)
    about = (
        "Means over shifts, and the 10th to 90th percentile over shifts. Lower is better; read all. "
        "If right: the ECE of a model that was right already. prior: the sketch's map before any "
        "answer. leave_alone: the sketch, leaving the model alone in doubt. one-source: a source's "
        "own exact fit, which never leaves it."
    )
    header = ["method", "ECE", "range", "if right", "Brier", "range", "AURC"]
    strong = {(chosen, column) for column in range(len(header))}
    return table(about, header, rows, strong=strong, digits=3, id="methods")


def _range(mean: Document) -> str:
    return f"{mean['low']:.3f}–{mean['high']:.3f}"


def _costs(plan: Document) -> Html:
    spent = plan["repeated"]["epsilon"] if plan["repeated"] else plan["epsilon"]
    secure = plan["secure"]
    return join(
        tag("p", _odds(spent), id="odds", aria_live="polite"),
        tag("p", secure["sentence"] if secure else "", id="secure", aria_live="polite"),
        paragraphs(
            "One row is protected, or one person where ids are given. ε is spent at each source by "
            "itself: whoever is in the data of two sources is exposed to both. What is spent is gone "
            "for good; the ledger of each source keeps count."
        ),
    )


def _odds(epsilon: float) -> str:
    return f"At ε = {epsilon:g}, {as_odds(epsilon)}."


def _basis(plan: Document) -> Html:
    basis, public, around = plan["basis"], plan["public"], plan["around"]
    known: dict[str, Html | str] = {
        "archive": basis["dataset"],
        "shifts": ", ".join(name.replace("_", " ") for name in basis["shifts"]),
        "rows of each shift": f"{basis['rows']:,}",
        "trials at each shift": f"{basis['trials']:,}"
        + (f"; {around['trials']:,} for other settings" if around else ""),
    }
    if basis["current_ece"] is not None:
        known["eased to an ECE of"] = f"{basis['current_ece']:g}"
    if public is not None:
        known["public rows"] = (
            f"{public['rows']:,}, accuracy {public['accuracy']:.3f}, ECE {public['ece']:.3f}"
        )
    said = [plan["caveat"]]
    if plan["repeated"] is not None:
        said.append(plan["repeated"]["who"])
    return join(items(said), facts(known))
