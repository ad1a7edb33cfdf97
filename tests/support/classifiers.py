"""Ordinary scikit-learn models on data bundled with it, shifted: what a sketch must cope with.

Their scores are nothing like a network's: naive Bayes is certain of nearly every row, a forest
knows a hundred probabilities and gives 1.0 to many rows, Platt's scores are never far from the
middle. A bed holds the outputs of one model for rows it was not trained on: public ones as they
are, hidden and unseen ones shifted. Each shifted row is there several times, each time disturbed
anew, so that an ECE is measured on thousands of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from privcal import Scores
from privcal.calibration import methods
from privcal.calibration.kernel import FAST
from privcal.calibration.maps import Map
from privcal.calibration.methods.base import Ask, Batch, Rounds
from privcal.calibration.methods.sketch import SketchMethod
from privcal.calibration.metrics import brier, ece
from privcal.calibration.sketch import evaluate_privately
from privcal.calibration.sketch.evaluation import Estimate
from privcal.planning.simulate import answers
from privcal.planning.simulate.splits import Resampled
from privcal.trusted.scores import FloatArray

MODELS: dict[str, Callable[[], Any]] = {
    "naive Bayes": GaussianNB,
    "logistic, C = 1e4": lambda: make_pipeline(
        StandardScaler(), LogisticRegression(C=1e4, max_iter=2000)
    ),
    "random forest": lambda: RandomForestClassifier(100, random_state=0, n_jobs=1),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
    "SVM, Platt": lambda: make_pipeline(
        StandardScaler(), CalibratedClassifierCV(SVC(), ensemble=False, cv=3)
    ),
    "MLP": lambda: make_pipeline(
        StandardScaler(), MLPClassifier((50,), max_iter=300, random_state=0)
    ),
}

DATA: dict[str, Callable[[], Any]] = {
    "digits": datasets.load_digits,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
}

Shift = Callable[[FloatArray, FloatArray, np.random.Generator], FloatArray]
"""From features, and the standard deviation of each, to disturbed ones."""

SHIFTS: dict[str, Shift] = {
    "clean": lambda x, sd, rng: x,
    "noise": lambda x, sd, rng: x + 0.7 * sd * rng.standard_normal(x.shape),
    "strong noise": lambda x, sd, rng: x + 1.5 * sd * rng.standard_normal(x.shape),
    "missing": lambda x, sd, rng: np.where(rng.random(x.shape) < 0.3, 0.0, x),
    "gain": lambda x, sd, rng: x * rng.uniform(0.7, 1.5, (len(x), 1)),
}

_COPIES = 8


@dataclass(frozen=True, eq=False)
class Bed:
    """One model's outputs for rows that it was not trained on."""

    public: Scores
    """As the model was trained for."""
    hidden: Scores
    """Shifted; what sources draw their rows from."""
    unseen: Scores
    """Shifted alike, made of other rows; what maps are measured on."""


@cache
def _trained(model: str, data: str) -> tuple[Any, FloatArray, Any, FloatArray]:
    """The fitted model, features and labels of the rows left over, deviations of the features."""
    x, y = DATA[data](return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    trained, rest = np.split(order, [len(x) * 2 // 5])
    classifier = MODELS[model]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged is as good a classifier as any here
        classifier.fit(x[trained], y[trained])
    return classifier, x[rest], y[rest], x[trained].std(axis=0)


@cache
def bed(model: str, data: str, shift: str) -> Bed:
    """The bed of a model, a data set and a shift, by their names in the tables above."""
    classifier, x, y, deviation = _trained(model, data)
    rng = np.random.default_rng(1)
    public, hidden, unseen = np.split(np.arange(len(x)), [len(x) // 5, len(x) * 3 // 5])

    def scores(rows: Any, disturb: Shift, copies: int) -> Scores:
        rows = np.tile(rows, copies)
        with np.errstate(all="ignore"):
            p = classifier.predict_proba(disturb(x[rows], deviation, rng))
        return Scores(probabilities=p, labels=y[rows])

    copies = 1 if shift == "clean" else _COPIES
    return Bed(
        scores(public, SHIFTS["clean"], 1),
        scores(hidden, SHIFTS[shift], copies),
        scores(unseen, SHIFTS[shift], copies),
    )


@dataclass(frozen=True)
class Found:
    """What some runs on one bed gave, on average."""

    ece: dict[str, float]
    """The ECE on unseen rows by method; "left alone" is none."""
    covered: dict[str, float]
    """How often the 95 % interval of each estimate, as it is printed, to three digits, holds what
    is true of the hidden rows."""
    said: dict[str, float]
    """The estimates, on average."""
    true: dict[str, float]
    """What is true of the hidden rows, on average."""
    notes: tuple[str | None, ...]
    """What the sketch's map of each run says of itself."""


def measure(
    place: Bed,
    *,
    runs: int = 12,
    sources: int = 50,
    rows: int = 25,
    epsilon: float = 1.0,
    public: bool = False,
    seed: int = 0,
    compared: Sequence[str] = ("one-hot-binning", "acc-t"),
) -> Found:
    """Calibrate by the sketch and other methods, `runs` times each, and look at what came out.

    Every source draws `rows` rows among the hidden ones, with replacement.
    """
    population, unseen = Resampled(place.hidden), place.unseen
    sketch = SketchMethod(place.public if public else None)

    def run(method: methods.Method) -> Sequence[Map]:
        rng = np.random.default_rng(seed)
        drawn = population.draw(rng, runs, sources * rows)
        return answers.run(method, drawn, sources, epsilon, rng, rows_per_source=rows)

    errors = {"left alone": ece(FAST.confidence(unseen.outputs, 1.0), unseen.correct)}
    for name in ("sketch", *compared):
        maps = run(sketch if name == "sketch" else methods.make(name))
        errors[name] = float(np.mean([ece(m.confidence(unseen), unseen.correct) for m in maps]))
        if name == "sketch":
            ours = maps
    listening = _Listening(sketch)
    run(listening)
    reader, posterior = listening.heard
    estimates, truths = [], []
    for number, map in enumerate(ours):
        estimates.append(evaluate_privately(posterior, reader, run=number).estimates())
        truths.append(_truth(place.hidden, map))
    names = list(estimates[0])
    return Found(
        errors,
        {
            k: float(np.mean([_holds(e[k], t[k]) for e, t in zip(estimates, truths, strict=True)]))
            for k in names
        },
        {k: float(np.mean([e[k].value for e in estimates])) for k in names},
        {k: float(np.mean([t[k] for t in truths])) for k in names},
        tuple(map.note for map in ours),
    )


def _holds(said: Estimate, true: float) -> bool:
    return round(said.low, 3) <= round(true, 3) <= round(said.high, 3)


class _Listening(methods.Method):
    """A sketch that keeps what it read."""

    def __init__(self, sketch: SketchMethod) -> None:
        self.sketch = sketch

    def run(self, batch: Batch) -> Rounds:
        reader = self.sketch.reader(batch)
        history = yield [Ask(reader.query, batch.nano_epsilon)]
        variance = history.variance(batch.nano_epsilon)
        self.heard = reader, reader.read(history[0], history.sources, variance)
        return []


def _truth(scores: Scores, map: Map) -> dict[str, float]:
    before, after, correct = (
        FAST.confidence(scores.outputs, 1.0),
        map.confidence(scores),
        scores.correct,
    )
    return {
        "accuracy": float(correct.mean()),
        "confidence_before": float(before.mean()),
        "confidence_after": float(after.mean()),
        "ece_before": ece(before, correct),
        "ece_after": ece(after, correct),
        "brier_before": brier(before, correct),
        "brier_after": brier(after, correct),
    }
