"""All metrics of a confidence, in one pass over blocks of rows; and how good the risk of one class is.

The measures of a risk are those by which clinicians judge one (Van Calster et al. 2019). A sketch estimates
the same ones where nobody may look at the rows: as the mean over a density of scores, of which rows are
one case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privcal.calibration import metrics
from privcal.calibration.fit import SHIFT
from privcal.calibration.maps import Map, TemperatureMap, sigmoid
from privcal.calibration.metrics import AllRows, ClassWise, Mean, Reliability
from privcal.calibration.target import Target
from privcal.data.scores import Scores
from privcal.data.wording import place_of
from privcal.trusted.checks import whole
from privcal.trusted.errors import InputError
from privcal.trusted.scores import BoolArray, FloatArray

_BLOCK = 1 << 20

MOST = 30.0
"""The largest log-odds in a ratio or a regression: a risk of 1 − 10⁻¹³, never of 0 or 1."""

_STEPS = 50


@dataclass(frozen=True, eq=False)
class RiskMeasures:
    """Exact measures of the risk of one class, for data one may look at.

    What rows cannot tell is NaN: an O/E where no risk is above 0, a slope where all rows with the
    event have a higher risk than all without (it would be infinite), an AUROC of one outcome alone.
    """

    event: int
    """The class whose risk it is, counted from 0."""
    event_name: str
    """What it is called: its number, where classes have no names."""
    prevalence: float
    """The share of rows for which the event was so."""
    risk: float
    """The mean risk, which should be the prevalence."""
    observed_expected: float
    """Prevalence over mean risk: 1 is right, above 1 the risk is too low."""
    intercept: float
    """What the log-odds of every risk lack, on the whole (calibration in the large): 0 is right."""
    slope: float
    """By what the log-odds are to be multiplied (logistic recalibration): 1 is right, and below 1 high
    risks are too high and low ones too low."""
    brier_risk: float
    """The mean of (risk − outcome)²."""
    auroc: float
    """How well the risk puts rows with the event above those without; equal risks count half."""
    rows: AllRows
    """The risk of every row, and whether it was so."""

    def to_dict(self) -> dict[str, float | int]:
        """The values by name: numbers alone."""
        return {k: v for k, v in vars(self).items() if k not in ("rows", "event_name")}

    @property
    def about(self) -> Target:
        """The same as one value."""
        return Target(self.event, self.event_name)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """All metrics of some labelled scores; what `evaluate` returns.

    The values are exact, so this is only for data one may look at.

    Attributes
    ----------
    rows
        The number of rows.
    accuracy, mean_confidence, ece, mce, brier, brier_multiclass, aurc, nll
        As the functions of the same names in `privcal.metrics`.
    ece_equal_mass, ece_debiased, ece_classwise
        As `equal_mass_ece`, `debiased_ece` and `classwise_ece`. This last, `brier_multiclass` and `nll`
        need the outputs of all classes: NaN where only a confidence is known.
    reliability
        The `privcal.metrics.Reliability` behind the binned metrics, as diagrams draw it.
    risk
        Where an event is given: how good its risk is (`RiskMeasures`): prevalence,
        mean risk, observed over expected, calibration intercept and slope, Brier score, AUROC.

    Examples
    --------
    >>> scores = privcal.Scores(probabilities=[0.25, 0.75], labels=[0, 0])
    >>> privcal.evaluate(scores).to_dict()["accuracy"]
    0.5
    """

    rows: int
    accuracy: float
    mean_confidence: float
    ece: float
    ece_equal_mass: float
    ece_debiased: float
    ece_classwise: float
    mce: float
    brier: float
    brier_multiclass: float
    aurc: float
    nll: float
    reliability: Reliability
    risk: RiskMeasures | None = None

    @property
    def about(self) -> Target:
        """What was asked about: the class of `risk`, or being right."""
        return Target() if self.risk is None else self.risk.about

    def to_dict(self) -> dict[str, float | int]:
        """The values by name, those that there are, without the reliability: what `--json` prints."""
        own = {k: v for k, v in vars(self).items() if k not in ("reliability", "risk")}
        known = {name: value for name, value in own.items() if not math.isnan(value)}
        risk = {} if self.risk is None else self.risk.to_dict()  # it is what one looks for, then
        return {"rows": self.rows, **risk, **known}

    def __repr__(self) -> str:
        risk = ""
        if self.risk is not None:
            risk = (
                f"risk{self.about.of_class} with observed / expected "
                f"{self.risk.observed_expected:.2f}, slope {self.risk.slope:.2f}; "
            )
        return (
            f"Evaluation({self.rows} rows: {risk}accuracy {self.accuracy:.4f}, ECE {self.ece:.4f}, "
            f"Brier {self.brier:.4f})"
        )

    def _repr_html_(self) -> str:
        from privcal.data.html import fragment

        values = {name.replace("_", " "): value for name, value in self.to_dict().items()}
        return fragment("Evaluation", values, "Exact: for data one may look at.")


def evaluate(
    scores: Scores,
    map: Map | None = None,
    bins: int = 15,
    *,
    event: int | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """All metrics of the confidence of `scores`, after `map` where one is given.

    Parameters
    ----------
    scores
        n labelled rows. No rows are an `InputError`, and so are logits that look like probabilities
        (from 0 to 1, with a sum of 1 in every row).
    map
        The map whose confidence is measured; by default the model's own (temperature 1). A row is
        correct where the class that the map predicts is the true one.
    bins
        The number of bins of the binned metrics, from 1 to 1,000.
    event
        A class whose risk is measured as well, by its name or its number from 0 on; by default the
        one that `map` is about, if any.
    progress
        Called with the number of rows that are done, and of all.

    Returns
    -------
    Evaluation
        Exact: nothing here is private.

    Examples
    --------
    >>> logits = np.log([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.25, 0.75]])
    >>> scores = privcal.Scores(logits=logits, labels=[0, 0, 1, 1])
    >>> before = privcal.evaluate(scores)
    >>> round(before.accuracy, 6), round(before.ece, 6), round(before.brier, 6)
    (0.75, 0.0, 0.1875)
    >>> after = privcal.evaluate(scores, privcal.TemperatureMap(0.5))
    >>> round(after.ece, 6), after.aurc == before.aurc
    (0.15, True)
    """
    if len(scores) == 0:
        raise InputError("there are no rows to measure")
    scores.outputs.need_logits(SHIFT)
    map = map or TemperatureMap(1.0)
    names = scores.class_names or map.class_names
    event = place_of(event, names)
    about = Target.of(map.about.event if event is None else event, names)
    if about.event is not None:
        if scores.outputs.kind == "confidence":
            raise InputError(
                "the risk of a class needs the outputs of all classes, not a confidence"
            )
        whole("event", about.event, 0, scores.classes - 1)
    risk: list[FloatArray] = []
    reliability = Reliability.of([], np.array([], bool), bins)
    rows = AllRows.of([], np.array([], bool))
    classwise: ClassWise | None = None
    brier = multiclass = nll = Mean(0.0, 0)
    step = max(1, _BLOCK // scores.classes)
    for start in range(0, len(scores), step):
        block = scores.take(slice(start, start + step))
        confidence = map.confidence(logits=block)  # looked at as a whole, above
        correct = map.predict(logits=block) == block.labels
        reliability += Reliability.of(confidence, correct, bins)
        rows += AllRows.of(confidence, correct)
        brier += Mean.of((confidence - correct) ** 2)
        if progress is not None:
            progress(min(start + step, len(scores)), len(scores))
        if scores.outputs.kind == "confidence":
            continue
        p = map.predict_proba(logits=block)
        state = ClassWise.of(p, block.labels, bins)
        classwise = state if classwise is None else classwise + state
        multiclass += Mean.of(metrics.brier_multiclass_rows(p, block.labels))
        if about.event is not None:
            risk.append(p[:, about.event].copy())
        with np.errstate(divide="ignore"):
            nll += Mean.of(-np.log(p[np.arange(len(block)), block.labels]))
    return Evaluation(
        rows=len(scores),
        accuracy=float(reliability.correct.sum() / len(scores)),
        mean_confidence=float(reliability.confidence.sum() / len(scores)),
        ece=reliability.ece,
        ece_equal_mass=rows.reliability(bins).ece,
        ece_debiased=reliability.debiased_ece,
        ece_classwise=math.nan if classwise is None else classwise.ece,
        mce=reliability.mce,
        brier=brier.value,
        brier_multiclass=math.nan if classwise is None else multiclass.value,
        aurc=rows.aurc,
        nll=math.nan if classwise is None else nll.value,
        reliability=reliability,
        risk=measure_risk(np.concatenate(risk), scores, about) if risk else None,
    )


def measure_risk(risk: FloatArray, scores: Scores, about: Target) -> RiskMeasures:
    """All measures of a `risk` (n,) of what `about` says, by the labels of `scores`."""
    rows = AllRows.of(risk, about.outcome(scores))
    r, y = rows.confidence, rows.correct
    values, group = np.unique(r, return_inverse=True)
    count = np.bincount(group)
    share: FloatArray = (count / len(r))[None]
    yes: FloatArray = (np.bincount(group, y) / count)[None]
    odds, mixed = log_odds(values), bool(y.any() and not y.all())
    return RiskMeasures(
        **vars(about),
        prevalence=float(y.mean()),
        risk=float(r.mean()),
        observed_expected=float(y.mean() / r.mean()) if r.any() else math.nan,
        intercept=float(intercept(yes, share, odds)[0]) if mixed else math.nan,
        slope=float(slope(yes, share, odds)[0]) if _overlap(log_odds(r), y) else math.nan,
        brier_risk=float(np.mean((r - y) ** 2)),
        auroc=float(auroc(yes, share)[0]) if mixed else math.nan,
        rows=rows,
    )


def _overlap(risk: FloatArray, outcome: BoolArray) -> bool:
    """Whether a finite slope is the most probable: no limit parts the outcomes, in either direction."""
    yes, no = risk[outcome], risk[~outcome]
    if not len(yes) or not len(no):
        return False
    return bool(yes.min() < no.max() and no.min() < yes.max())


# --- on rows, or on draws of a density of scores (draws, scores) ---------------------------


def log_odds(p: FloatArray) -> FloatArray:
    """Those of probabilities, within what a regression on them can bear."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(np.log(p) - np.log1p(-p), -MOST, MOST))


def intercept(p: FloatArray, density: FloatArray, odds: FloatArray) -> FloatArray:
    """For each draw the a with which the mean of sigmoid(a + odds) is that of p."""
    return _regression(p, density, odds, free_slope=False)[:, 0]


def slope(p: FloatArray, density: FloatArray, odds: FloatArray) -> FloatArray:
    """For each draw the slope of a logistic regression of p on the log-odds."""
    return _regression(p, density, odds, free_slope=True)[:, 1]


def _regression(
    p: FloatArray, density: FloatArray, odds: FloatArray, free_slope: bool
) -> FloatArray:
    """Intercept and slope of each draw, by Newton's steps; the slope is 1 unless it is free.

    The log-likelihood is concave, and no outcome is certain, so there is one most probable value.
    """
    found = np.tile([0.0, 1.0], (len(p), 1))
    powers = np.stack([np.ones_like(odds), odds, odds**2], axis=1)
    for _ in range(_STEPS):
        fitted = sigmoid(found[:, :1] + found[:, 1:] * odds)
        gradient = (density * (p - fitted)) @ powers[:, :2]
        s0, s1, s2 = ((density * fitted * (1 - fitted)) @ powers).T
        if free_slope:
            determinant = np.maximum(s0 * s2 - s1**2, 1e-12)
            step = np.stack(
                [
                    s2 * gradient[:, 0] - s1 * gradient[:, 1],
                    s0 * gradient[:, 1] - s1 * gradient[:, 0],
                ],
                axis=1,
            )
            step /= determinant[:, None]
        else:
            step = gradient * [1.0, 0.0] / np.maximum(s0, 1e-12)[:, None]
        longest = np.abs(step).max(axis=1, keepdims=True)
        found += step / np.maximum(longest, 1.0)
        if longest.max() < 1e-9:
            break
    return found


def auroc(p: FloatArray, density: FloatArray) -> FloatArray:
    """For each draw: how probable it is that a row with the event has a higher score than one without.

    Equal scores count half.
    """
    yes, no = density * p, density * (1 - p)
    below = np.cumsum(no, axis=1) - no / 2
    return np.asarray((yes * below).sum(axis=1) / (yes.sum(axis=1) * no.sum(axis=1)))
